"""Replace operators of NHWC tensors by the library's of the same name, which are faster on a card."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from convswap.graph.constants import Constants, ConstantWriter
from convswap.graph.domain import DOMAIN, LAYER_NORM_OP, MUL_OP, SUPPORTED_ELEMENT_TYPES
from convswap.graph.epilogue import NotFusable, read_int
from convswap.graph.layout.decomposed_norms import make_layer_norm, read_decomposed_norm
from convswap.graph.layout.matmuls import connected_nodes
from convswap.graph.value_types import ValueTypes

# The kernels load 16 bytes at a time, that of LayerNormalization up to 8 times by each of 32 lanes.
_VECTOR_TYPES = SUPPORTED_ELEMENT_TYPES - {ir.DataType.DOUBLE}
_VECTOR_BYTES = 16
_MAX_ROW_BYTES = 32 * 8 * _VECTOR_BYTES


def replace_operators(
    model: ir.Model, names: Mapping[ir.Node, str], types: ValueTypes
) -> dict[str, tuple[str, ...]]:
    """Replace LayerNormalizations and Muls by the library's, in place; return their names by operator.

    A node is replaced if operators that keep the order of axes connect it with the NHWC tensor of a Conv, and
    the library's kernel for it loads vectors. The factors of a Mul are the same at all positions of an image,
    as in squeeze-and-excitation. The nodes of a decomposed LayerNormalization become one node with the name
    of the last. `names` has a name for every node; `types` knows the values of `model`.
    """
    constants, writer = Constants(model), ConstantWriter(model)
    connected = [node for graph in model.graphs() for node in connected_nodes(graph, constants, types)]
    connected = [node for node in connected if node.domain == ""]
    connected = [node for node in connected if node.op_identifier() not in model.functions]
    replaced: dict[str, list[str]] = {LAYER_NORM_OP: [], MUL_OP: []}
    for node in connected:
        norm = read_decomposed_norm(node, constants, types)
        if norm is not None and 0 < _vector_row_bytes(norm.x, types) <= _MAX_ROW_BYTES:
            make_layer_norm(norm, names[norm.nodes[-1]], writer)
            replaced[LAYER_NORM_OP].append(names[norm.nodes[-1]])
    for node in connected:
        if node.graph is None or node.domain == DOMAIN:
            continue
        operands = _operands_of_mul(node, types)
        if operands is None and not _is_layer_norm(node, types):
            continue
        for index, operand in enumerate(operands or ()):
            node.replace_input_with(index, operand)
        node.domain, node.version = DOMAIN, None
        node.attributes.pop("stash_type", None)
        node.resize_outputs(1)
        replaced[node.op_type].append(names[node])
    return {op: tuple(nodes) for op, nodes in replaced.items()}


def _is_layer_norm(node: ir.Node, types: ValueTypes) -> bool:
    x, *parameters = node.inputs
    if node.op_type != LAYER_NORM_OP or x is None or parameters[:1] in ([], [None]):
        return False
    if any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        return False
    row_bytes, axes = _vector_row_bytes(x, types), types.axes(x)
    shapes = [types.static_shape(value) for value in parameters if value is not None]
    try:
        is_over_last_axis = read_int(node, "axis", -1) in (-1, len(axes) - 1)
        is_plain = is_over_last_axis and read_int(node, "stash_type", 1) == 1
    except NotFusable:
        return False
    return is_plain and 0 < row_bytes <= _MAX_ROW_BYTES and all(shape == (axes[-1],) for shape in shapes)


def _operands_of_mul(node: ir.Node, types: ValueTypes) -> tuple[ir.Value, ir.Value] | None:
    """Return the NHWC tensor and the factors of a Mul that the library has; None for another node."""
    if node.op_type != MUL_OP or len(node.inputs) != 2:
        return None
    for x, factors in (node.inputs, node.inputs[::-1]):
        if x is not None and factors is not None and _are_factors(x, factors, types):
            return x, factors
    return None


def _are_factors(x: ir.Value, factors: ir.Value, types: ValueTypes) -> bool:
    axes, factor_axes = types.axes(x), types.axes(factors)
    return (
        2 < len(axes) == len(factor_axes)
        and set(factor_axes[1:-1]) == {1}
        and set(axes[1:-1]) != {1}
        and _vector_row_bytes(x, types) > 0
        and all(types.have_same_extent(x, factors, axis) for axis in (0, -1))
    )


def _vector_row_bytes(x: ir.Value, types: ValueTypes) -> int:
    """Return the bytes of a row along the last axis; 0 if it is unknown or no whole number of vectors."""
    axes, dtype = types.axes(x), types.element_type([x])
    length = axes[-1] if axes else None
    if length is None or dtype not in _VECTOR_TYPES or length * dtype.itemsize % _VECTOR_BYTES != 0:
        return 0
    return int(length * dtype.itemsize)
