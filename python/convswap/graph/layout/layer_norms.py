"""Replace LayerNormalizations of NHWC tensors by the library's, which is faster on a card."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.domain import DOMAIN, LAYER_NORM_OP, SUPPORTED_ELEMENT_TYPES
from convswap.graph.epilogue import NotFusable, read_int
from convswap.graph.layout.matmuls import connected_nodes
from convswap.graph.value_types import ValueTypes

# The kernel loads 16 bytes at a time, up to 8 times by each of 32 lanes.
_VECTOR_TYPES = SUPPORTED_ELEMENT_TYPES - {ir.DataType.DOUBLE}
_VECTOR_BYTES = 16
_MAX_ROW_BYTES = 32 * 8 * _VECTOR_BYTES


def replace_layer_norms(model: ir.Model, names: Mapping[ir.Node, str], types: ValueTypes) -> tuple[str, ...]:
    """Replace LayerNormalizations by `convswap.LayerNormalization`, in place; return their names.

    A node is replaced if operators that keep the order of axes connect it with the NHWC tensor of a Conv, and
    the library's kernel for it loads vectors. `names` has a name for every node; `types` knows the values of
    `model`.
    """
    constants = Constants(model)
    connected = [node for graph in model.graphs() for node in connected_nodes(graph, constants, types)]
    replaced = [node for node in connected if node.domain == "" and _has_kernel(node, types)]
    replaced = [node for node in replaced if node.op_identifier() not in model.functions]
    for node in replaced:
        node.domain, node.version = DOMAIN, None
        node.attributes.pop("stash_type", None)
        node.resize_outputs(1)
    return tuple(names[node] for node in replaced)


def _has_kernel(node: ir.Node, types: ValueTypes) -> bool:
    x, *parameters = node.inputs
    if node.op_type != LAYER_NORM_OP or x is None or parameters[:1] in ([], [None]):
        return False
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    axes, dtype = types.axes(x), types.element_type([x])
    length = axes[-1] if axes else None
    if length is None or dtype not in _VECTOR_TYPES:
        return False
    shapes = [types.static_shape(value) for value in parameters if value is not None]
    row_bytes = length * dtype.itemsize
    try:
        is_over_last_axis = read_int(node, "axis", -1) in (-1, len(axes) - 1)
        is_plain = is_over_last_axis and read_int(node, "stash_type", 1) == 1
    except NotFusable:
        return False
    is_vectors = row_bytes % _VECTOR_BYTES == 0 and 0 < row_bytes <= _MAX_ROW_BYTES
    return is_plain and is_vectors and all(shape == (length,) for shape in shapes)
