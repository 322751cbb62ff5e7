"""A model with our ops turned back into ONNX's own, so that the default provider can run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass, field

import onnx

from convswap.graph.domain import DOMAIN, FUSED_OP, is_ours
from convswap.graph.expansion import depthwise_weights, expand_fused

# What says how a Conv of ours is computed, and not what it computes.
OWN_ATTRIBUTES = ("algorithm", "precision", "tuned")


def plain_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` with every Conv of ours, in subgraphs too, turned back into ONNX's.

    A FusedConv becomes the nodes that it stands for.

    Raises:
        ConvswapError: a FusedConv is none that ONNX's operators of the model's opset can stand for.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _remove_our_domain(copy.opset_import)
    _make_plain(copy.graph.node, onnx_opset(copy.opset_import), _Known().inside(copy.graph))
    for function in copy.functions:
        _remove_our_domain(function.opset_import)
        _make_plain(function.node, onnx_opset(function.opset_import), _Known().with_constants(function.node))
    return copy


def plain_nodes(
    node: onnx.NodeProto, opset: int, element_type: int, lengths: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """Return the nodes of ONNX that stand for `node`, a Conv or FusedConv of ours.

    `opset` is the version of ONNX's own operators, `element_type` that of the data, of `onnx.TensorProto`,
    and `lengths` are as for `expand_fused`.

    Raises:
        ConvswapError: see `plain_model`.
    """
    if node.op_type == FUSED_OP:
        return expand_fused(node, opset, element_type, lengths)
    return [plain_conv(node)]


def plain_conv(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the Conv of ONNX that `node`, a Conv of ours, stands for."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    _become_plain_conv(plain)
    return plain


def count_swapped(model: onnx.ModelProto) -> int:
    """Return how many Convs of ours `model` has, fused or not, in subgraphs and functions too.

    A node with a depthwise Conv in front counts as two.
    """
    return sum(_count_swapped(nodes) for nodes in (model.graph.node, *(f.node for f in model.functions)))


def onnx_opset(opsets: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of ONNX's own operators among `opsets`; 1 where they have none."""
    return next((opset.version for opset in opsets if opset.domain in ("", "ai.onnx")), 1)


def count_convolutions(node: onnx.NodeProto) -> int:
    """Return how many convolutions `node` computes, if it is one of ours: two with a depthwise in front."""
    if not is_ours(node):
        return 0
    return 2 if node.op_type == FUSED_OP and depthwise_weights(node) else 1


@dataclass(frozen=True)
class _Known:
    """What a graph and those around it tell of their values, by name; two branches may have equal names.

    That is their element types, and the extents of their first axes.
    """

    types: Mapping[str, int] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)

    def inside(self, graph: onnx.GraphProto) -> _Known:
        """Return what is known in `graph`, of itself and of the graphs around it, of which this knows."""
        types, lengths = dict(self.types), dict(self.lengths)
        for value in (*graph.input, *graph.value_info, *graph.output):
            declared = value.type.tensor_type
            if declared.elem_type:
                types[value.name] = declared.elem_type
            if declared.shape.dim and declared.shape.dim[0].dim_value > 0:
                lengths[value.name] = declared.shape.dim[0].dim_value
        return (
            _Known(types, lengths)
            ._with({tensor.name: tensor for tensor in graph.initializer})
            .with_constants(graph.node)
        )

    def with_constants(self, nodes: Iterable[onnx.NodeProto]) -> _Known:
        """Return this with what Constants among `nodes` tell."""
        return self._with(
            {
                node.output[0]: attribute.t
                for node in nodes
                if node.op_type == "Constant"
                for attribute in node.attribute
                if attribute.name == "value"
            }
        )

    def _with(self, tensors: Mapping[str, onnx.TensorProto]) -> _Known:
        return _Known(
            {**self.types, **{name: tensor.data_type for name, tensor in tensors.items()}},
            {**self.lengths, **{name: tensor.dims[0] for name, tensor in tensors.items() if tensor.dims}},
        )


def _remove_our_domain(opsets: MutableSequence[onnx.OperatorSetIdProto]) -> None:
    for index in reversed(range(len(opsets))):
        if opsets[index].domain == DOMAIN:
            del opsets[index]


def _make_plain(nodes: MutableSequence[onnx.NodeProto], opset: int, known: _Known) -> None:
    for index in reversed(range(len(nodes))):
        node = nodes[index]
        for graph in subgraphs(node):
            _make_plain(graph.node, opset, known.inside(graph))
        if not is_ours(node):
            continue
        if node.op_type != FUSED_OP:
            _become_plain_conv(node)
            continue
        expanded = plain_nodes(node, opset, _element_type(node, known.types), known.lengths)
        del nodes[index]
        for replacement in reversed(expanded):
            nodes.insert(index, replacement)


def _become_plain_conv(node: onnx.NodeProto) -> None:
    node.domain = ""
    for index in reversed(range(len(node.attribute))):
        if node.attribute[index].name in OWN_ATTRIBUTES:
            del node.attribute[index]


def _element_type(node: onnx.NodeProto, types: Mapping[str, int]) -> int:
    """Return the element type of `node`, of whose values `swap` makes one a constant or declares it."""
    # Weights and bias first, whose types are certain.
    values = (*node.input[1:3], *node.input, *node.output)
    return next((types[name] for name in values if name in types), int(onnx.TensorProto.FLOAT))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs among the attributes of `node`."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _count_swapped(nodes: Iterable[onnx.NodeProto]) -> int:
    return sum(
        count_convolutions(node) + sum(_count_swapped(graph.node) for graph in subgraphs(node))
        for node in nodes
    )
