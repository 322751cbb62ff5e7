"""Fuse the swapped Convs of a model with the nodes after them.

A FusedConv computes y = pool(activation(conv(X, W) + B + Z)) in one kernel. The chain of a Conv consists of
the nodes after it that can be fused, in this order; each part is optional:

1. constant biases, scales and batch normalisations, which are folded into W and B, as are constant scales and
   biases in front of the Conv (folded_inputs.py);
2. the addition of a residual Z;
3. an activation;
4. a pooling.

Chains are found by following consumers in onnx_ir, not by the rewrite rules of onnxscript. Such a rule is a
pattern of fixed length, matched from its last node, so every combination would need its own rule. A rule that
does not match gives no reason either.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants, ConstantWriter, remove_if_unused
from convswap.graph.domain import (
    DOMAIN,
    FUSED_OP,
    LAYOUT_OP,
    SUPPORTED_ELEMENT_TYPES,
    is_convswap_op,
    is_layout_op,
    op_name,
    opset_of,
)
from convswap.graph.epilogue import NO_ACTIVATION, Activation, NotFusable, Pool
from convswap.graph.fusion.activations import ACTIVATION_OPS, find_decomposed_activation, read_activation
from convswap.graph.fusion.folded_inputs import fold_inputs
from convswap.graph.fusion.folding import Folding, per_channel_values
from convswap.graph.pooling import POOL_OPS, read_pool
from convswap.graph.value_types import ValueTypes

# In older opsets, Add and other binary operators broadcast by attributes, and BatchNormalization has
# `is_test`.
_OLDEST_OPSET = 7
# Weights with more output channels count as damaged: a bias of that length would only take memory.
_MAX_CHANNELS = 2**24


@dataclass(frozen=True)
class Fused:
    """A Conv and the nodes that were fused into it.

    `op` is "FusedConv", "QuantConv", "LayoutConv" for a MatMul of NHWC tensors, or "Conv" if only biases,
    scales and batch normalisations were folded into the weights. `fused_nodes` has op and name of each node
    in the order of computation, also of scales and biases in front of the Conv. A fused depthwise Conv before
    the Conv comes first, followed by the nodes that had been fused into the depthwise Conv. `is_conv` is
    false for a mean or a fully connected layer, which became a QuantConv.
    """

    node: str
    op: str
    fused_nodes: tuple[tuple[str, str], ...]
    is_conv: bool = True

    def to_json(self) -> dict[str, Any]:
        """Return the record for JSON: `{"node", "op", "taken": [{"op", "node"}, …]}`."""
        return {
            "node": self.node,
            "op": self.op,
            "taken": [{"op": op, "node": name} for op, name in self.fused_nodes],
        }


@dataclass(frozen=True)
class NotFused:
    """Two neighbouring nodes that were not fused, and the reason.

    `node` is the Conv that would have stayed. `follower` is the node that would have been absorbed into it:
    the node after it, or for a pair the depthwise Conv before it. `op` is the follower's op, the subject of
    `reason`.
    """

    node: str
    follower: str
    op: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the record for JSON: `{"node", "follower", "op", "reason"}`."""
        return asdict(self)


def fusion_counts(fused: Sequence[Fused]) -> str:
    """Return how many Convs were fused, and how many other nodes became a QuantConv."""
    convs = sum(record.is_conv for record in fused)
    others = f", {len(fused) - convs} other nodes turned into QuantConv" if convs < len(fused) else ""
    return f"{convs} fused with the nodes after them{others}"


def fusion_lines(fused: Iterable[Fused], not_fused: Iterable[NotFused]) -> list[str]:
    """Return one sentence per record, without a full stop."""
    return [
        *(
            f"{record.op} {record.node} includes {_list_nodes(record.fused_nodes) or 'no other node'}"
            for record in fused
        ),
        *(
            f"{record.op} {record.follower} is not fused into {record.node}: {record.reason}"
            for record in not_fused
        ),
    ]


def fusion_remarks(fused: Iterable[Fused], not_fused: Iterable[NotFused]) -> list[str]:
    """Return the sentences of `fusion_lines`, but only the first of each kind, with the number of the others.

    Deep networks repeat the same few kinds. Fused records of a kind have the same ops; records that were not
    fused have the same op and reason.
    """
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for record in fused:
        kind = (record.op, *(op for op, _ in record.fused_nodes))
        kinds.setdefault(kind, []).extend(fusion_lines([record], ()))
    for failure in not_fused:
        kinds.setdefault((failure.op, failure.reason, None), []).extend(fusion_lines((), [failure]))
    return [
        lines[0] + (f"; and {len(lines) - 1} more of the same" if len(lines) > 1 else "")
        for lines in kinds.values()
    ]


def _list_nodes(fused_nodes: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{op} {name}" for op, name in fused_nodes)


class Stage(enum.IntEnum):
    """How far a Conv is fused.

    FOLDED: only biases, scales and batch normalisations, whose work moves into W and B; the node stays a
    Conv. The stages are in the order of FusedConv's steps. Fusing up to a stage allows all earlier steps,
    too; each may be absent.
    """

    FOLDED = 0
    RESIDUAL = 1
    ACTIVATION = 2
    POOL = 3


_STAGE_NAMES = {
    Stage.FOLDED: "a bias, scale or batch normalisation",
    Stage.RESIDUAL: "a residual",
    Stage.ACTIVATION: "an activation",
    Stage.POOL: "a pooling",
}


@dataclass
class Chain:
    """A Conv, the nodes to fuse into it, and the FusedConv that they make.

    The Conv is a `convswap.Conv`, or a `convswap.LayoutConv` whose tensors are all NHWC.
    """

    conv: ir.Node
    element_type: ir.DataType
    rank: int | None
    folding: Folding
    max_stage: Stage  # the last stage that the caller allows
    stage: Stage = Stage.FOLDED  # of the last fused node
    fused_nodes: list[ir.Node] = field(default_factory=list)
    residual: ir.Value | None = None
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None
    # The last value and why its consumer is not fused; None if nothing reads the value, or only nodes of
    # other chains and convswap's ops do.
    end: tuple[ir.Value, str] | None = None

    @property
    def result(self) -> ir.Value:
        """The output of the last node."""
        return (self.fused_nodes[-1] if self.fused_nodes else self.conv).outputs[0]

    @property
    def is_nhwc(self) -> bool:
        """Whether the tensors of the Conv and of the fused nodes are NHWC."""
        return is_layout_op(self.conv)

    @property
    def needs_epilogue(self) -> bool:
        """Whether more than constants is fused."""
        return self.stage != Stage.FOLDED

    @property
    def op(self) -> str:
        """The op of the node that computes the chain."""
        return LAYOUT_OP if self.is_nhwc else FUSED_OP if self.needs_epilogue else "Conv"


def fuse_convs(
    model: ir.Model,
    convs: Mapping[ir.Node, Stage],
    names: Mapping[ir.Node, str],
    types: ValueTypes,
    gains: Callable[[Chain], bool] = lambda _: True,
) -> tuple[tuple[Fused, ...], tuple[NotFused, ...]]:
    """Fuse the `convs` of `model` with the nodes after them, in place. A chain stays if `gains` is false.

    `convs` maps each Conv to the last stage to fuse. The Convs are nodes of `convswap.Conv`, or of
    `convswap.LayoutConv` with all tensors in NHWC, for which a pooling is not allowed. A fused node keeps the
    name, attributes, documentation and metadata of its Conv. It takes the position and the output of the last
    node of its chain. A missing bias becomes zeros. Folded weights are new constants, since other nodes may
    share the old constants. Constants that only removed nodes read are removed.

    `names` has a name for every node; `types` knows the values of `model` before the change.

    Returns the fused Convs, and the nodes that were not fused: at most one for each Conv, the node after its
    chain.
    """
    fuser = _Fuser(model, names, types)
    chains = [
        chain
        for conv, max_stage in convs.items()
        if (chain := fuser.follow(conv, max_stage)) is not None and gains(chain)
    ]
    # All chains are found before the first change, because types and consumers are those of the unchanged
    # model.
    not_fused = [record for chain in chains if (record := fuser.not_fused_record(chain)) is not None]
    records = {chain.conv: fuser.record(chain) for chain in chains}
    for chain in (chain for chain in chains if chain.fused_nodes):
        # Shape inference does not know FusedConv, so its output shape is stored in the model.
        types.complete(chain.result)
    writer = _Writer(model, names)
    for chain in chains:
        if chain.fused_nodes:
            writer.write(chain)
    # Scales and biases in front of Convs come last: one may be a part of an activation.
    takes_inputs = [chain for chain in chains if not chain.is_nhwc and opset_of(model) >= _OLDEST_OPSET]
    nodes = {chain.result.producer() or chain.conv: chain.conv for chain in takes_inputs}
    before = fold_inputs(model, {node: names[conv] for node, conv in nodes.items()}, names, types)
    for node, folded in before.items():
        fused = records[nodes[node]]
        records[nodes[node]] = replace(fused, fused_nodes=(*folded, *fused.fused_nodes))
    folded_names = {name for folded in before.values() for _, name in folded}
    not_fused = [record for record in not_fused if record.follower not in folded_names]
    return tuple(fused for fused in records.values() if fused.fused_nodes), tuple(not_fused)


class _Fuser:
    """Finds the chain of each Conv.

    A node belongs to the first chain that reaches it.
    """

    def __init__(self, model: ir.Model, names: Mapping[ir.Node, str], types: ValueTypes) -> None:
        self._functions = model.functions
        self._opset = opset_of(model)
        self._names = names
        self._types = types
        self._constants = Constants(model)
        self._claimed: set[ir.Node] = set()

    def follow(self, conv: ir.Node, max_stage: Stage) -> Chain | None:
        """Return the chain of `conv`, up to the stage `max_stage`.

        Return None if `conv` is invalid, or if its element type is unknown or unsupported.
        """
        weights = conv.inputs[1] if len(conv.inputs) > 1 else None
        if conv.inputs[:1] == (None,) or weights is None or len(conv.outputs) != 1:
            return None
        values = [value for value in (*conv.inputs, *conv.outputs) if value is not None]
        element_type = self._types.element_type(values)
        if element_type not in SUPPORTED_ELEMENT_TYPES:
            return None
        shape = self._types.static_shape(weights)
        channels = shape[0] if shape and 0 < shape[0] <= _MAX_CHANNELS else None
        folding = Folding(conv, channels, element_type, self._constants)
        rank = None if shape is None else len(shape)
        chain = Chain(conv, element_type, rank, folding, max_stage)
        try:
            while self._fuse_next(chain):
                pass
        except NotFusable as reason:
            chain.end = chain.result, str(reason)
        return chain

    def record(self, chain: Chain) -> Fused:
        """Return the record of the nodes fused in `chain`."""
        return Fused(
            self._names[chain.conv],
            chain.op,
            tuple((op_name(node), self._names[node]) for node in chain.fused_nodes),
        )

    def not_fused_record(self, chain: Chain) -> NotFused | None:
        """Return the record of the first node after `chain` that is in no chain and no convswap op."""
        if chain.end is None:
            return None
        value, reason = chain.end
        for node in value.consumers():
            if node not in self._claimed and not is_convswap_op(node):
                return NotFused(self._names[chain.conv], self._names[node], op_name(node), reason)
        return None

    def _fuse_next(self, chain: Chain) -> bool:
        """Append the next node, or the nodes of a decomposed activation, to `chain`.

        Return False, without a reason, if all consumers belong to other chains or are convswap nodes.

        Raises:
            NotFusable: the consumer cannot be fused.
        """
        value = chain.result
        consumers = value.consumers()
        if not consumers or all(node in self._claimed or is_convswap_op(node) for node in consumers):
            return False
        if self._opset < _OLDEST_OPSET:
            raise NotFusable(
                f"the model's opset is {self._opset}; nodes are fused from opset {_OLDEST_OPSET} on"
            )
        if value.is_graph_output():
            raise NotFusable(f"its input {value.name!r} is an output of the graph as well")
        if any(node.graph is not chain.conv.graph for node in consumers):
            raise NotFusable(f"{value.name!r} is read inside a subgraph")
        if chain.folding.channels is None:
            raise NotFusable("the convolution's number of output channels is not known")
        if chain.stage < Stage.ACTIVATION <= chain.max_stage and self._fuse_decomposed_activation(chain):
            return True
        if len(consumers) > 1:
            raise NotFusable(
                f"{len(consumers)} nodes read {value.name!r}, and are not fused as one activation"
            )
        self._fuse_node(chain, consumers[0])
        return True

    def _fuse_decomposed_activation(self, chain: Chain) -> bool:
        match = find_decomposed_activation(chain.result, chain.element_type, self._constants)
        if match is None:
            return False
        activation, nodes = match
        if any(node in self._claimed or node.op_identifier() in self._functions for node in nodes):
            return False
        chain.activation = activation
        self._append(chain, Stage.ACTIVATION, nodes)
        return True

    def _fuse_node(self, chain: Chain, node: ir.Node) -> None:
        op = (node.domain, node.op_type)
        if node.op_identifier() in self._functions:
            raise NotFusable("its op is a function of the model")
        if not node.outputs:
            raise NotFusable("it has no output")
        if op not in POOL_OPS and any(
            output.uses() or output.is_graph_output() for output in node.outputs[1:]
        ):
            raise NotFusable("an output other than its first is read")
        if op in (("", "Add"), ("", "Sum")):
            self._fuse_add(chain, node)
        elif op == ("", "Mul"):
            self._fuse_mul(chain, node)
        elif op == ("", "BatchNormalization"):
            self._check_stage(chain, Stage.FOLDED)
            _check_is_data(chain, node)
            if chain.is_nhwc:
                raise NotFusable("it normalises the second axis, and the channels are the last one")
            chain.folding.normalise(node, self._opset)
            self._append(chain, Stage.FOLDED, [node])
        elif op in ACTIVATION_OPS:
            self._check_stage(chain, Stage.ACTIVATION)
            chain.activation = read_activation(
                node, chain.result, chain.element_type, self._constants, opset=self._opset
            )
            self._append(chain, Stage.ACTIVATION, [node])
        elif op in POOL_OPS:
            self._check_stage(chain, Stage.POOL)
            _check_is_data(chain, node)
            chain.pool = read_pool(
                node,
                self._types.axes(chain.result)[2:],
                opset=self._opset,
                contradicted=self._types.contradicts(chain.result),
            )
            self._append(chain, Stage.POOL, [node])
        else:
            raise NotFusable("FusedConv does not have this op")

    def _fuse_add(self, chain: Chain, node: ir.Node) -> None:
        other = _other_operand(chain, node)
        addend = self._per_channel_constant(chain, other)
        if addend is not None:
            self._check_stage(chain, Stage.FOLDED)
            chain.folding.add(addend)
            self._append(chain, Stage.FOLDED, [node])
            return
        self._check_stage(chain, Stage.RESIDUAL)
        # The residual cannot depend on the chain's result: only `node` reads that result.
        if not self._types.have_same_shape(chain.result, other):
            raise NotFusable(
                f"its other operand, {other.name!r}, is not known to have the shape of the convolution's "
                "result, nor is it a constant of one number, or of one number for each output channel"
            )
        chain.residual = other
        self._append(chain, Stage.RESIDUAL, [node])

    def _fuse_mul(self, chain: Chain, node: ir.Node) -> None:
        other = _other_operand(chain, node)
        factor = self._per_channel_constant(chain, other)
        if factor is None:
            raise NotFusable(
                f"its other operand, {other.name!r}, is no constant of one number, or of one number for each "
                "output channel"
            )
        self._check_stage(chain, Stage.FOLDED)
        chain.folding.multiply(factor)
        self._append(chain, Stage.FOLDED, [node])

    def _per_channel_constant(self, chain: Chain, value: ir.Value) -> np.ndarray | None:
        """Return the constant `value` as one number per output channel; one number is repeated for all.

        None if `value` is no such constant.
        """
        tensor, channels = self._constants.tensor(value), chain.folding.channels
        if tensor is None or channels is None or chain.rank is None:
            return None
        return per_channel_values(tensor, channels, chain.rank, chain.rank - 1 if chain.is_nhwc else 1)

    def _check_stage(self, chain: Chain, stage: Stage) -> None:
        if stage > chain.max_stage:
            raise NotFusable(f"fusing {_STAGE_NAMES[stage]} was not asked for")
        if chain.stage > stage or (chain.stage == stage != Stage.FOLDED):
            raise NotFusable(
                f"{_STAGE_NAMES[stage]} comes after {_STAGE_NAMES[chain.stage]} here; the order that "
                "FusedConv has is biases, scales and batch normalisations, then one residual, one "
                "activation, one pooling"
            )

    def _append(self, chain: Chain, stage: Stage, nodes: list[ir.Node]) -> None:
        chain.stage = stage
        chain.fused_nodes += nodes
        self._claimed.update(nodes)


def _other_operand(chain: Chain, node: ir.Node) -> ir.Value:
    """Return the operand of `node` that is not the result of `chain`."""
    others = [other for other in node.inputs if other is not chain.result]
    if len(node.inputs) != 2 or len(others) != 1 or others[0] is None:
        raise NotFusable("it does not combine the result of the convolution with one other value")
    return others[0]


def _check_is_data(chain: Chain, node: ir.Node) -> None:
    if node.inputs[0] is not chain.result:
        raise NotFusable(f"it does not take {chain.result.name!r} as its data")


class _Writer:
    """Writes chains into the model."""

    def __init__(self, model: ir.Model, names: Mapping[ir.Node, str]) -> None:
        self._names = names
        self._constants = ConstantWriter(model)

    def write(self, chain: Chain) -> None:
        """Turn the last node of `chain` into the fused node, and remove the others."""
        conv, last_node, graph = chain.conv, chain.fused_nodes[-1], chain.conv.graph
        assert isinstance(graph, ir.Graph)
        inputs = [conv.inputs[0], self._weights(chain), self._bias(chain)]
        if chain.residual is not None:
            inputs.append(chain.residual)
        others = [conv, *chain.fused_nodes[:-1]]
        old_inputs = [value for node in (*others, last_node) for value in node.inputs]

        last_node.resize_outputs(1)
        last_node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            last_node.replace_input_with(index, value)
        last_node.domain, last_node.op_type = DOMAIN, chain.op
        last_node.overload, last_node.version = "", None
        last_node.name, last_node.doc_string = self._names[conv], conv.doc_string
        last_node.metadata_props.clear()
        last_node.metadata_props.update(conv.metadata_props)
        last_node.attributes.clear()
        last_node.attributes.update(conv.attributes)
        if chain.is_nhwc and chain.residual is not None:
            last_node.attributes["residual_layout"] = ir.AttrString("residual_layout", "NHWC")
        if chain.needs_epilogue:
            pool = [ir.AttrString("pool", "None")] if chain.pool is None else chain.pool.attributes()
            for attribute in (*chain.activation.attributes(), *pool):
                last_node.attributes[attribute.name] = attribute
        graph.remove(others, safe=True)
        for value in old_inputs:
            remove_if_unused(value)

    def _weights(self, chain: Chain) -> ir.Value | None:
        if not chain.folding.changes_weights:
            return chain.conv.inputs[1]
        return self._constant(chain, "weight", chain.folding.weights())

    def _bias(self, chain: Chain) -> ir.Value | None:
        bias = chain.conv.inputs[2] if len(chain.conv.inputs) > 2 else None
        if bias is not None and not chain.folding.changes_bias:
            return bias
        return self._constant(chain, "bias", chain.folding.bias())

    def _constant(self, chain: Chain, role: str, array: np.ndarray) -> ir.Value:
        tensor = ir.Tensor(array, dtype=chain.element_type)
        return self._constants.add(chain.conv, f"{self._names[chain.conv]}/{role}", tensor)
