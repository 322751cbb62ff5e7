"""Fuse a depthwise convolution and the 1x1 convolution after it into one `convswap.FusedConv`.

One FusedConv neither writes nor reads the tensor between the two. Writing and reading it moves about as many
bytes as the pair's input and output. `fuse_depthwise` runs after `fuse_convs`, so both nodes may already have
an epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.domain import FUSED_OP, is_convswap_op, is_layout_op
from convswap.graph.epilogue import NO_ACTIVATION, NotFusable, read_int, read_ints, read_text
from convswap.graph.fusion.fuse import Fused, NotFused
from convswap.graph.value_types import ValueTypes

# The planner selects the algorithm; with "tuned" it looks up the pair in the tuning table.
_AUTOMATIC_ALGORITHMS = ("auto", "tuned")
# The kernels for pairs support 2-D convolutions only.
_RANK = 4
# Indices of FusedConv's inputs.
_RESIDUAL, _DEPTHWISE_WEIGHTS, _DEPTHWISE_BIAS = 3, 4, 5
_WINDOW = ("pads", "strides", "dilations")
_ACTIVATION = ("activation", "activation_alpha", "activation_beta")


@dataclass(frozen=True)
class _Pair:
    """Two nodes of convswap; `pointwise` reads the output of `depthwise`."""

    depthwise: ir.Node
    pointwise: ir.Node


def fuse_depthwise(
    model: ir.Model,
    names: Mapping[ir.Node, str],
    types: ValueTypes,
    is_selected: Callable[[str], bool],
    fused: Sequence[Fused],
) -> tuple[tuple[Fused, ...], tuple[NotFused, ...]]:
    """Fuse depthwise convolutions of `model` into the 1x1 convolutions after them, in place.

    Both nodes are ops of convswap, fused or not, and `is_selected` holds for both names. The 1x1 convolution
    keeps its name, position, output, attributes, documentation and metadata. The weights and bias of the
    depthwise convolution, which is removed, become its inputs; pads, strides, dilations and activation become
    its attributes `depthwise_*`. It gets FusedConv's defaults for `activation` and `pool` if it was a Conv.

    `names` has a name for every node of the original model; `fused` has the fusions so far; `types` knows the
    model's values.

    Returns all fusions, and the depthwise convolutions that were not fused into a 1x1 convolution that
    follows, with the reason.
    """
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    name_of = {node: node.name or names[node] for node in nodes if is_convswap_op(node)}
    pairs, not_fused = [], []
    fuser = _Fuser(model, types)
    for node, name in name_of.items():
        pair = fuser.find(node)
        if pair is None or not is_selected(name) or not is_selected(name_of[pair.depthwise]):
            continue
        try:
            fuser.check(pair)
        except NotFusable as reason:
            not_fused.append(NotFused(name, name_of[pair.depthwise], pair.depthwise.op_type, str(reason)))
        else:
            pairs.append(pair)
    for pair in pairs:
        # Shape inference does not know FusedConv, so its output shape is stored in the model.
        types.complete(pair.pointwise.outputs[0])
    records = list(fused)
    for pair in pairs:
        _merge_records(records, pair, name_of)
        _write(pair)
    return tuple(records), tuple(not_fused)


def _merge_records(records: list[Fused], pair: _Pair, name_of: Mapping[ir.Node, str]) -> None:
    """Merge the `records` of both nodes of `pair` into one for the node that stays."""
    depthwise_name, name = name_of[pair.depthwise], name_of[pair.pointwise]
    depthwise_record = _pop_record(records, depthwise_name)
    pointwise_record = _pop_record(records, name)
    # A node with a record was a Conv before fusion, even if its op is FusedConv now.
    op = pair.depthwise.op_type if depthwise_record is None else "Conv"
    previous = [record for record in (depthwise_record, pointwise_record) if record is not None]
    fused_nodes = [node for record in previous for node in record.fused_nodes]
    records.append(Fused(name, FUSED_OP, ((op, depthwise_name), *fused_nodes)))


def _pop_record(records: list[Fused], name: str) -> Fused | None:
    """Remove and return the first record of the node called `name`; return None if it has none."""
    index = next((index for index, record in enumerate(records) if record.node == name), None)
    return None if index is None else records.pop(index)


class _Fuser:
    """Finds pairs, and checks whether one node can compute them."""

    def __init__(self, model: ir.Model, types: ValueTypes) -> None:
        self._constants = Constants(model)
        self._types = types

    def find(self, node: ir.Node) -> _Pair | None:
        """Return the pair if `node` is a 2-D 1x1 Conv after a depthwise Conv with multiplier 1, else None.

        A 1x1 Conv into which a depthwise Conv was fused before is in no pair, nor is a LayoutConv.
        """
        value = _input(node, 0)
        depthwise = None if value is None else value.producer()
        if is_layout_op(node) or (depthwise is not None and is_layout_op(depthwise)):
            return None
        if depthwise is None or not is_convswap_op(depthwise) or depthwise.graph is not node.graph:
            return None
        if len(depthwise.outputs) != 1 or len(node.outputs) != 1 or _input(depthwise, 0) is None:
            return None
        shape, depthwise_shape = self._weights_shape(node), self._weights_shape(depthwise)
        if shape is None or depthwise_shape is None or _input(node, _DEPTHWISE_WEIGHTS) is not None:
            return None
        try:
            groups = read_int(depthwise, "group", 1), read_int(node, "group", 1)
        except NotFusable:
            return None
        channels = depthwise_shape[0]
        if channels < 2 or groups != (channels, 1) or depthwise_shape[1] != 1:
            return None
        return _Pair(depthwise, node) if shape[1:] == (channels, 1, 1) else None

    def check(self, pair: _Pair) -> None:
        """Raise NotFusable if one node cannot compute `pair`; "it" in the reason is the depthwise node."""
        depthwise, pointwise = pair.depthwise, pair.pointwise
        value = depthwise.outputs[0]
        if value.is_graph_output():
            raise NotFusable(f"its output {value.name!r} is an output of the graph as well")
        if len(value.uses()) > 1:
            raise NotFusable(f"its output {value.name!r} is read more than once")
        if _input(depthwise, _RESIDUAL) is not None or read_text(depthwise, "pool", "None") != "None":
            raise NotFusable("it has a residual or a pooling, which cannot be fused before a convolution")
        read_text(depthwise, "activation", "None")  # raises NotFusable if the attribute is no string
        if any(_input(depthwise, index) is not None for index in (_DEPTHWISE_WEIGHTS, _DEPTHWISE_BIAS)):
            raise NotFusable("a depthwise convolution is fused into it already")
        # `plain_model.expand_fused`, which splits the node again, requires the number of channels.
        if self._constants.direct_tensor(_input(depthwise, 1)) is None:
            raise NotFusable("its weights are no constant")
        if read_text(depthwise, "precision", "") != read_text(pointwise, "precision", ""):
            raise NotFusable("its precision differs from that of the convolution after it")
        _check_algorithms(pair)
        _check_windows(pair, self._weights_shape(depthwise) or ())

    def _weights_shape(self, node: ir.Node) -> tuple[int, ...] | None:
        """Return the shape of the weights of `node`; None if unknown or not that of a 2-D convolution."""
        weights = _input(node, 1)
        shape = None if weights is None else self._types.static_shape(weights)
        return shape if shape is not None and len(shape) == _RANK else None


def _check_algorithms(pair: _Pair) -> None:
    algorithms = [read_text(node, "algorithm", "auto") for node in (pair.depthwise, pair.pointwise)]
    for algorithm in algorithms:
        if algorithm not in _AUTOMATIC_ALGORITHMS:
            raise NotFusable(
                f"the algorithm {algorithm!r}, which was asked for, does not compute two convolutions"
            )
    if algorithms[0] != algorithms[1]:
        raise NotFusable("its algorithm differs from that of the convolution after it")
    # The attribute `tuned`, not the algorithm of that name, has a node's measurements.
    if any(read_text(node, "tuned", "") for node in (pair.depthwise, pair.pointwise)):
        raise NotFusable(
            "one of the two has an attribute `tuned`, whose measurements do not apply to both together"
        )


def _check_windows(pair: _Pair, weights_shape: Sequence[int]) -> None:
    """Raise NotFusable if one node cannot express the window attributes (pads, strides ...) of both."""
    for node in (pair.depthwise, pair.pointwise):
        auto_pad = read_text(node, "auto_pad", "NOTSET")
        if auto_pad not in ("", "NOTSET", "VALID"):
            raise NotFusable(f"the auto_pad of it or of the convolution after it is {auto_pad}")
    kernel = tuple(weights_shape[2:])
    for name, length in (("kernel_shape", 2), ("pads", 4), ("strides", 2), ("dilations", 2)):
        values = read_ints(pair.depthwise, name, ())
        if (values and len(values) != length) or (name == "kernel_shape" and values not in ((), kernel)):
            raise NotFusable(f"its {name} {values} does not fit its filters of {kernel}")
    if any(stride != 1 for stride in read_ints(pair.pointwise, "strides", ())):
        raise NotFusable("the convolution after it has strides")
    if _is_padded(pair.pointwise):
        raise NotFusable("the convolution after it has pads")


def _is_padded(node: ir.Node) -> bool:
    # With auto_pad VALID, pads are ignored.
    return read_text(node, "auto_pad", "NOTSET") != "VALID" and any(read_ints(node, "pads", ()))


def _write(pair: _Pair) -> None:
    """Make the 1x1 node compute the depthwise convolution too, and remove the depthwise node."""
    depthwise, pointwise = pair.depthwise, pair.pointwise
    inputs = [
        _input(depthwise, 0),
        *(_input(pointwise, index) for index in (1, 2, 3)),
        _input(depthwise, 1),
        _input(depthwise, 2),
    ]
    if inputs[-1] is None:
        inputs.pop()
    pointwise.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        pointwise.replace_input_with(index, value)
    if pointwise.op_type != FUSED_OP:
        pointwise.op_type = FUSED_OP
        for attribute in (*NO_ACTIVATION.attributes(), ir.AttrString("pool", "None")):
            pointwise.attributes[attribute.name] = attribute
    for attribute in _depthwise_attributes(depthwise):
        pointwise.attributes[attribute.name] = attribute
    assert isinstance(depthwise.graph, ir.Graph)
    depthwise.graph.remove(depthwise, safe=True)


def _depthwise_attributes(depthwise: ir.Node) -> Iterator[ir.Attr]:
    for name in _WINDOW:
        if name in depthwise.attributes and (name != "pads" or _is_padded(depthwise)):
            yield ir.AttrInt64s(f"depthwise_{name}", read_ints(depthwise, name, ()))
    if read_text(depthwise, "activation", "None") != "None":
        for name in _ACTIVATION:
            if name in depthwise.attributes:
                attribute = depthwise.attributes[name]
                yield ir.Attr(f"depthwise_{name}", attribute.type, attribute.value)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if len(node.inputs) > index else None
