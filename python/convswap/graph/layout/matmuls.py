"""Replace MatMuls of NHWC tensors by 1x1 Convs, which include the elementwise nodes after them.

The product of a tensor (n, spatial..., c) and a constant matrix (c, k) is a 1x1 convolution in NHWC. Bias,
activation, scale and residual after a MatMul are nodes of their own; a Conv computes them in its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants, ConstantWriter, remove_if_unused
from convswap.graph.domain import (
    DOMAIN,
    LAYER_NORM_OP,
    LAYOUT_OP,
    MUL_OP,
    SUPPORTED_ELEMENT_TYPES,
    is_layout_op,
)
from convswap.graph.fusion.fuse import Chain, Fused, Stage, fuse_convs
from convswap.graph.layout.axes import RANKS
from convswap.graph.layout.costs import Costs, NodeLayouts, layout_attributes
from convswap.graph.layout.operators import ELEMENTWISE, REDUCTIONS
from convswap.graph.value_types import ValueTypes

# Operators whose tensors of one rank have the same order of axes; MatMul is one, too.
_KEEP_ORDER = ELEMENTWISE | {("", op) for op in REDUCTIONS}
_KEEP_ORDER |= {("", LAYER_NORM_OP), (DOMAIN, LAYER_NORM_OP), (DOMAIN, MUL_OP)}


def replace_matmuls(
    model: ir.Model,
    names: Mapping[ir.Node, str],
    types: ValueTypes,
    costs: Costs,
    attributes_of: Callable[[str], Iterable[ir.Attr] | None],
) -> tuple[tuple[Fused, ...], float]:
    """Replace MatMuls next to Convs in NHWC by `convswap.LayoutConv` nodes where that gains, in place.

    A MatMul is replaced if operators that keep the order of axes connect it with the NHWC tensor of a Conv,
    its second operand is a constant matrix, and a node after it can be fused, see `fuse.fuse_convs`. Every
    other MatMul stays as it is.

    `names` has a name for every node; `types` knows the values of `model`. `attributes_of` returns the
    attributes of the Conv for the name of a MatMul, None for a MatMul that is to stay.

    Returns the replaced MatMuls, and the gain in the unit of `costs`.
    """
    constants, writer = Constants(model), ConstantWriter(model)
    matrices: dict[ir.Node, ir.Value] = {}
    # All MatMuls are found before the first change, because types are those of the unchanged model.
    for node in [node for graph in model.graphs() for node in connected_nodes(graph, constants, types)]:
        if node.op_type != "MatMul":
            continue
        attributes = attributes_of(names[node])
        data, matrix = node.inputs
        assert data is not None and matrix is not None
        rank = types.rank([data])
        if attributes is None or rank is None or node.op_identifier() in model.functions:
            continue
        matrices[node] = matrix
        _make_conv(node, f"{names[node]}/filters", constants, writer, rank, attributes)
    total = 0.0

    def gains(chain: Chain) -> bool:
        nonlocal total
        gain = costs.matmul_gain(chain) if chain.fused_nodes else 0.0
        total += max(0.0, gain)
        return gain > 0.0

    fused, _ = fuse_convs(model, dict.fromkeys(matrices, Stage.ACTIVATION), names, types, gains)
    replaced = {record.node for record in fused}
    for node, matrix in matrices.items():
        if names[node] in replaced:
            remove_if_unused(matrix)
        else:
            _make_matmul(node, matrix)
    return fused, total


def connected_nodes(graph: ir.Graph, constants: Constants, types: ValueTypes) -> list[ir.Node]:
    """Return the nodes that connect the NHWC tensors of the Convs of `graph` with others of their layout.

    These are operators that keep the order of axes, and MatMuls by a constant matrix.
    """
    pending = [value for node in graph if is_layout_op(node) for value in _nhwc_tensors(node)]
    seen = set(pending)
    connected: set[ir.Node] = set()
    while pending:
        value = pending.pop()
        for node in (value.producer(), *value.consumers()):
            if node is None or node.graph is not graph or node in connected:
                continue
            if (node.domain, node.op_type) not in _KEEP_ORDER and not _is_product(node, constants, types):
                continue
            connected.add(node)
            for other in (*node.inputs, *node.outputs):
                if other is None or other in seen or types.rank([other]) != types.rank([value]):
                    continue
                if constants.tensor(other) is None:
                    seen.add(other)
                    pending.append(other)
    return [node for node in graph if node in connected]


def _nhwc_tensors(node: ir.Node) -> list[ir.Value]:
    residual = node.inputs[3] if len(node.inputs) > 3 else None
    layouts = {"input_layout": node.inputs[0], "residual_layout": residual, "output_layout": node.outputs[0]}
    named = [(node.attributes.get(name), value) for name, value in layouts.items() if value is not None]
    return [value for layout, value in named if layout is not None and layout.value == "NHWC"]


def _is_product(node: ir.Node, constants: Constants, types: ValueTypes) -> bool:
    """Return whether `node` is a MatMul of a tensor with a constant matrix."""
    if (node.domain, node.op_type) != ("", "MatMul") or len(node.inputs) != 2 or node.inputs[0] is None:
        return False
    matrix = constants.tensor(node.inputs[1])
    return (
        matrix is not None
        and len(matrix.shape) == 2
        and matrix.size > 0
        and matrix.dtype in SUPPORTED_ELEMENT_TYPES
        and types.rank([node.inputs[0]]) in RANKS
    )


def _make_conv(
    node: ir.Node,
    name: str,
    constants: Constants,
    writer: ConstantWriter,
    rank: int,
    attributes: Iterable[ir.Attr],
) -> None:
    """Turn a MatMul into a LayoutConv whose weights are called `name`."""
    matrix = constants.tensor(node.inputs[1])
    assert matrix is not None
    weights = np.ascontiguousarray(matrix.numpy().T)
    weights = weights.reshape(*weights.shape, *(1,) * (rank - 2))
    node.replace_input_with(1, writer.add(node, name, ir.Tensor(weights, dtype=matrix.dtype)))
    node.domain, node.op_type, node.version = DOMAIN, LAYOUT_OP, None
    for attribute in attributes:
        node.attributes[attribute.name] = attribute
    for name, layout in layout_attributes(NodeLayouts(True, False, True)).items():
        node.attributes[name] = ir.AttrString(name, layout)


def _make_matmul(node: ir.Node, matrix: ir.Value) -> None:
    """Undo `_make_conv`."""
    weights = node.inputs[1]
    node.replace_input_with(1, matrix)
    node.domain, node.op_type = "", "MatMul"
    node.attributes.clear()
    remove_if_unused(weights)
