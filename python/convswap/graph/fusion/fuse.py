"""Fuse the swapped Convs of a model with the nodes behind them, into `convswap.FusedConv`.

A FusedConv computes y = pool(activation(conv(X, W) + B + Z)) in one kernel. The chain of a Conv are the nodes
behind it that can be fused, in this order, each of which may be missing: constant biases, scales and batch
normalisations, which are folded into W and B; the addition of a residual Z; an activation; a pooling.

The chains are found by following the readers in onnx_ir, not by the rewrite rules of onnxscript. A rule is a
pattern of fixed length, matched from its last node, so that every combination would need its own rule, and a
rule that does not match does not say why.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import PASSING_OPS, Constants
from convswap.graph.domain import DOMAIN, FUSED_OP, SUPPORTED_ELEMENT_TYPES, is_ours, op_name
from convswap.graph.epilogue import NO_ACTIVATION, Activation, NotFusable, Pool
from convswap.graph.fusion.activations import ACTIVATION_OPS, find_decomposed_activation, read_activation
from convswap.graph.fusion.folding import Folding, numbers_for_filters
from convswap.graph.fusion.pooling import POOL_OPS, read_pool
from convswap.graph.names import UniqueNames
from convswap.graph.value_types import ValueTypes

# In older opsets Add and others broadcast by attributes, and BatchNormalization has `is_test`.
_OLDEST_OPSET = 7
# A weight shape with more filters is taken for damaged: a bias of that length would only take memory.
_MOST_FILTERS = 2**24


@dataclass(frozen=True)
class Fused:
    """A Conv and the nodes that were fused into it.

    `op` is "FusedConv", or "Conv" where only biases, scales and batch normalisations were folded into the
    weights. `taken` has op and name of each node in the order of computation. Where a depthwise Conv in front
    was fused, that one and the nodes that had been fused into it come first.
    """

    node: str
    op: str
    taken: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return this for JSON: `{"node", "op", "taken": [{"op", "node"}, …]}`."""
        return {
            "node": self.node,
            "op": self.op,
            "taken": [{"op": op, "node": name} for op, name in self.taken],
        }


@dataclass(frozen=True)
class NotFused:
    """A node that was not fused into the Conv that it follows, and the reason.

    For a depthwise Conv that was not fused with the 1x1 Conv behind it, `node` is the 1x1 Conv and `follower`
    the depthwise one.
    """

    node: str
    follower: str
    op: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return this for JSON: `{"node", "follower", "op", "reason"}`."""
        return asdict(self)


def fusion_lines(fused: Iterable[Fused], not_fused: Iterable[NotFused]) -> list[str]:
    """Return a sentence for each, without a full stop."""
    return [
        *(f"{one.op} {one.node} includes {_listed(one.taken)}" for one in fused),
        *(f"{left.op} {left.follower} is not fused into {left.node}: {left.reason}" for left in not_fused),
    ]


def fusion_remarks(fused: Iterable[Fused], not_fused: Iterable[NotFused]) -> list[str]:
    """Return a sentence for each kind: in deep networks dozens of Convs are fused with the same ops."""
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for one in fused:
        kind = (one.op, *(op for op, _ in one.taken))
        kinds.setdefault(kind, []).extend(fusion_lines([one], ()))
    for left in not_fused:
        kinds.setdefault((left.op, left.reason, None), []).extend(fusion_lines((), [left]))
    return [
        lines[0] + (f"; and {len(lines) - 1} more of the same" if len(lines) > 1 else "")
        for lines in kinds.values()
    ]


def _listed(taken: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{op} {name}" for op, name in taken)


class Stage(enum.IntEnum):
    """The steps of FusedConv after the convolution, in their order; what is folded costs no time."""

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
class _Chain:
    """A Conv, the nodes to fuse into it, and the FusedConv that they make."""

    conv: ir.Node
    element_type: ir.DataType
    rank: int | None
    folding: Folding
    last: Stage  # the last one that was asked for
    stage: Stage = Stage.FOLDED
    taken: list[ir.Node] = field(default_factory=list)
    residual: ir.Value | None = None
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None
    end: tuple[ir.Value, str] | None = None

    @property
    def result(self) -> ir.Value:
        """The output of the last node."""
        return (self.taken[-1] if self.taken else self.conv).outputs[0]

    @property
    def needs_fused_op(self) -> bool:
        return self.stage != Stage.FOLDED


def fuse_convs(
    model: ir.Model, convs: Mapping[ir.Node, Stage], names: Mapping[ir.Node, str], types: ValueTypes
) -> tuple[tuple[Fused, ...], tuple[NotFused, ...]]:
    """Fuse the `convs` of `model`, nodes of `convswap.Conv`, with the nodes behind them, in place.

    Each Conv is fused at most up to the stage that `convs` has for it. A fused node keeps the name,
    attributes, documentation and metadata of its Conv, and has the position and the output of the last node
    of its chain. Folded weights are new constants, since other nodes may share the old ones; constants
    without a reader are removed.

    `names` has a name for every node; `types` knows the values of `model` before the change.

    Returns the fused Convs, and the nodes behind Convs that were not fused.
    """
    fuser = _Fuser(model, names, types)
    chains = [chain for conv, last in convs.items() if (chain := fuser.follow(conv, last)) is not None]
    # All chains are found before the first change, because types and readers are those of the unchanged
    # model.
    left = [not_fused for chain in chains for not_fused in fuser.report_end(chain)]
    fused = [fuser.report(chain) for chain in chains if chain.taken]
    for chain in (chain for chain in chains if chain.taken):
        # Shape inference does not know FusedConv, so the shape that it found before is stored in the model.
        types.complete(chain.result)
    writer = _Writer(model, names)
    for chain in chains:
        if chain.taken:
            writer.write(chain)
    return tuple(fused), tuple(left)


class _Fuser:
    """Finds the chain of each Conv.

    A node belongs to one chain only, the first that reaches it.
    """

    def __init__(self, model: ir.Model, names: Mapping[ir.Node, str], types: ValueTypes) -> None:
        self._functions = model.functions
        # onnx-ir normalises the domain "ai.onnx" to "" in nodes, but not in opset imports.
        self._opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self._names = names
        self._types = types
        self._constants = Constants(model)
        self._taken: set[ir.Node] = set()

    def follow(self, conv: ir.Node, last: Stage) -> _Chain | None:
        """Return the chain of `conv`, up to the stage `last`.

        None where `conv` is invalid, or its element type is not known.
        """
        weights = conv.inputs[1] if len(conv.inputs) > 1 else None
        if conv.inputs[:1] == (None,) or weights is None or len(conv.outputs) != 1:
            return None
        values = [value for value in (*conv.inputs, *conv.outputs) if value is not None]
        element_type = self._types.element_type(values)
        if element_type not in SUPPORTED_ELEMENT_TYPES:
            return None
        shape = self._types.extents(weights)
        filters = shape[0] if shape and 0 < shape[0] <= _MOST_FILTERS else None
        folding = Folding(conv, filters, element_type, self._constants)
        rank = None if shape is None else len(shape)
        chain = _Chain(conv, element_type, rank, folding, last)
        try:
            while self._take_next(chain):
                pass
        except NotFusable as reason:
            chain.end = chain.result, str(reason)
        return chain

    def report(self, chain: _Chain) -> Fused:
        """Return the record of `chain`."""
        return Fused(
            self._names[chain.conv],
            FUSED_OP if chain.needs_fused_op else "Conv",
            tuple((op_name(node), self._names[node]) for node in chain.taken),
        )

    def report_end(self, chain: _Chain) -> Iterable[NotFused]:
        """Yield the node behind the end of `chain` and why it is not fused, unless it is a convolution."""
        if chain.end is None:
            return
        value, reason = chain.end
        for node in value.consumers():
            if node not in self._taken and not is_ours(node):
                yield NotFused(self._names[chain.conv], self._names[node], op_name(node), reason)
                return

    def _take_next(self, chain: _Chain) -> bool:
        """Append the reader of the result of `chain`; return False where there is none.

        Raises:
            NotFusable: the reader cannot be fused.
        """
        value = chain.result
        readers = value.consumers()
        if not readers or all(node in self._taken or is_ours(node) for node in readers):
            return False
        if self._opset < _OLDEST_OPSET:
            raise NotFusable(
                f"the model's opset is {self._opset}; nodes are fused from opset {_OLDEST_OPSET} on"
            )
        if value.is_graph_output():
            raise NotFusable(f"{value.name!r}, which it reads, is an output of the graph as well")
        if any(node.graph is not chain.conv.graph for node in readers):
            raise NotFusable(f"{value.name!r} is read inside a subgraph")
        if chain.folding.filters is None:
            raise NotFusable("the number of filters of the convolution is not known")
        if chain.stage < Stage.ACTIVATION <= chain.last and self._take_decomposed_activation(chain):
            return True
        if len(readers) > 1:
            raise NotFusable(f"{len(readers)} nodes read {value.name!r}, and are not one activation together")
        self._take(chain, readers[0])
        return True

    def _take_decomposed_activation(self, chain: _Chain) -> bool:
        found = find_decomposed_activation(chain.result, chain.element_type, self._constants)
        if found is None:
            return False
        activation, nodes = found
        if any(node in self._taken or node.op_identifier() in self._functions for node in nodes):
            return False
        chain.activation = activation
        self._append(chain, Stage.ACTIVATION, nodes)
        return True

    def _take(self, chain: _Chain, node: ir.Node) -> None:
        op = (node.domain, node.op_type)
        if node.op_identifier() in self._functions:
            raise NotFusable("it calls a function of the model")
        if not node.outputs:
            raise NotFusable("it has no output")
        if op not in POOL_OPS and any(
            output.uses() or output.is_graph_output() for output in node.outputs[1:]
        ):
            raise NotFusable("another output of it than the first is read")
        if op in (("", "Add"), ("", "Sum")):
            self._take_add(chain, node)
        elif op == ("", "Mul"):
            self._take_mul(chain, node)
        elif op == ("", "BatchNormalization"):
            self._check_order(chain, Stage.FOLDED)
            _check_is_data(chain, node)
            chain.folding.normalise(node, self._opset)
            self._append(chain, Stage.FOLDED, [node])
        elif op in ACTIVATION_OPS:
            self._check_order(chain, Stage.ACTIVATION)
            chain.activation = read_activation(
                node, chain.result, chain.element_type, self._constants, opset=self._opset
            )
            self._append(chain, Stage.ACTIVATION, [node])
        elif op in POOL_OPS:
            self._check_order(chain, Stage.POOL)
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

    def _take_add(self, chain: _Chain, node: ir.Node) -> None:
        other = _other_operand(chain, node)
        addend = self._constant_for_filters(chain, other)
        if addend is not None:
            self._check_order(chain, Stage.FOLDED)
            chain.folding.add(addend)
            self._append(chain, Stage.FOLDED, [node])
            return
        self._check_order(chain, Stage.RESIDUAL)
        # The residual cannot depend on the chain's result, because only `node` reads that.
        if not self._types.have_same_shape(chain.result, other):
            raise NotFusable(
                f"its other operand, {other.name!r}, is not known to have the shape of the convolution's "
                "result, nor is it a constant with one number for each filter"
            )
        chain.residual = other
        self._append(chain, Stage.RESIDUAL, [node])

    def _take_mul(self, chain: _Chain, node: ir.Node) -> None:
        other = _other_operand(chain, node)
        factor = self._constant_for_filters(chain, other)
        if factor is None:
            raise NotFusable(
                f"its other operand, {other.name!r}, is no constant with one number for each filter"
            )
        self._check_order(chain, Stage.FOLDED)
        chain.folding.multiply(factor)
        self._append(chain, Stage.FOLDED, [node])

    def _constant_for_filters(self, chain: _Chain, value: ir.Value) -> np.ndarray | None:
        """Return the constant `value` as one number for each filter, or None where it is something else."""
        tensor, filters = self._constants.tensor(value), chain.folding.filters
        if tensor is None or filters is None or chain.rank is None:
            return None
        return numbers_for_filters(tensor, filters, chain.rank)

    def _check_order(self, chain: _Chain, stage: Stage) -> None:
        if stage > chain.last:
            raise NotFusable(f"fusing {_STAGE_NAMES[stage]} was not asked for")
        if chain.stage > stage or (chain.stage == stage != Stage.FOLDED):
            raise NotFusable(
                f"{_STAGE_NAMES[stage]} comes after {_STAGE_NAMES[chain.stage]} here; the order that "
                "FusedConv has is biases, scales and batch normalisations, then one residual, one "
                "activation, one pooling"
            )

    def _append(self, chain: _Chain, stage: Stage, nodes: list[ir.Node]) -> None:
        chain.stage = stage
        chain.taken += nodes
        self._taken.update(nodes)


def _other_operand(chain: _Chain, node: ir.Node) -> ir.Value:
    """Return the operand of `node` that is not the result of `chain`."""
    others = [other for other in node.inputs if other is not chain.result]
    if len(node.inputs) != 2 or len(others) != 1 or others[0] is None:
        raise NotFusable("it does not combine the result of the convolution with one other value")
    return others[0]


def _check_is_data(chain: _Chain, node: ir.Node) -> None:
    if node.inputs[0] is not chain.result:
        raise NotFusable(f"it does not take {chain.result.name!r} as its data")


class _Writer:
    """Writes chains into the model."""

    def __init__(self, model: ir.Model, names: Mapping[ir.Node, str]) -> None:
        self._names = names
        self._values = UniqueNames.of_values(model.graphs())
        # In older IR versions an initializer must also be an input of the graph, which users would see.
        self._may_add_initializers = not Constants(model).inputs_may_be_constant

    def write(self, chain: _Chain) -> None:
        """Turn the last node of `chain` into the fused node, and remove the others."""
        conv, last, graph = chain.conv, chain.taken[-1], chain.conv.graph
        assert isinstance(graph, ir.Graph)
        inputs = [conv.inputs[0], self._weights(chain), self._bias(chain)]
        if chain.residual is not None:
            inputs.append(chain.residual)
        others = [conv, *chain.taken[:-1]]
        read = [value for node in (*others, last) for value in node.inputs]

        last.resize_outputs(1)
        last.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            last.replace_input_with(index, value)
        last.domain, last.op_type, last.overload, last.version = DOMAIN, "Conv", "", None
        last.name, last.doc_string = self._names[conv], conv.doc_string
        last.metadata_props.clear()
        last.metadata_props.update(conv.metadata_props)
        last.attributes.clear()
        last.attributes.update(conv.attributes)
        if chain.needs_fused_op:
            last.op_type = FUSED_OP
            pool = [ir.AttrString("pool", "None")] if chain.pool is None else chain.pool.attributes()
            for attribute in (*chain.activation.attributes(), *pool):
                last.attributes[attribute.name] = attribute
        graph.remove(others, safe=True)
        for value in read:
            _remove_if_unread(value)

    def _weights(self, chain: _Chain) -> ir.Value | None:
        if not chain.folding.changes_weights:
            return chain.conv.inputs[1]
        return self._constant(chain, "weight", chain.folding.weights())

    def _bias(self, chain: _Chain) -> ir.Value | None:
        given = chain.conv.inputs[2] if len(chain.conv.inputs) > 2 else None
        if given is not None and not chain.folding.changes_bias:
            return given
        return self._constant(chain, "bias", chain.folding.bias())

    def _constant(self, chain: _Chain, what: str, array: np.ndarray) -> ir.Value:
        name = self._values.take(f"{self._names[chain.conv]}/{what}")
        tensor = ir.Tensor(array, dtype=chain.element_type, name=name)
        graph = chain.conv.graph
        assert isinstance(graph, ir.Graph)
        if self._may_add_initializers:
            value = ir.Value(
                name=name,
                shape=ir.Shape(array.shape),
                type=ir.TensorType(chain.element_type),
                const_value=tensor,
            )
            graph.register_initializer(value)
            return value
        constant = ir.node("Constant", [], {"value": tensor}, name=name)
        constant.outputs[0].name = name
        graph.insert_before(chain.conv, constant)
        return constant.outputs[0]


def _remove_if_unread(value: ir.Value | None) -> None:
    """Remove a constant without readers, with the nodes that pass it on."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value is None or value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        producer = value.producer()
        if producer is None:
            if value.is_initializer() and value.graph is not None:
                value.graph.initializers.pop(str(value.name), None)
            continue
        op = (producer.domain, producer.op_type)
        if (op == ("", "Constant") or op in PASSING_OPS) and isinstance(producer.graph, ir.Graph):
            waiting += producer.inputs
            producer.graph.remove(producer, safe=True)
