"""Fuse the swapped Convs of a model with what follows them, into `convswap.FusedConv`.

A FusedConv computes y = pool(activation(conv(X, W) + B + Z)) in one go. From each Conv the chain of nodes
that read its result is followed, one reader at a time, as far as FusedConv goes: constant biases, scales and
batch normalisations, which are folded into W and B; the addition of a residual Z; an activation; a pooling.
Each may be missing, and their order is this one.

The chain is followed in onnx_ir rather than by the rewrite rules of onnxscript: a rule is a pattern of fixed
length that is matched from its last node, so every combination would be a rule of its own, and a rule that
does not match does not say why.
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
from convswap.graph.fusion.activations import ACTIVATION_OPS, find_spelled_activation, read_activation
from convswap.graph.fusion.folding import Folding, numbers_for_filters
from convswap.graph.fusion.pooling import POOL_OPS, read_pool
from convswap.graph.names import UniqueNames
from convswap.graph.value_types import ValueTypes

# Before, Add and others broadcast by attributes, and BatchNormalization said by `is_test` what it does.
_OLDEST_OPSET = 7
# Beyond, the shape of the weights is not sound, and a bias of that length would only take memory.
_MOST_FILTERS = 2**24


@dataclass(frozen=True)
class Fused:
    """A Conv that took in what followed it: its node, the op that it is now, and the nodes taken in.

    `op` is "FusedConv", or "Conv" where biases, scales and batch normalisations alone were folded into it.
    `taken` has op and name of each node, in the order in which they were computed: first, where it took in a
    depthwise Conv in front, that one and what that had taken in.
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
    """What follows a Conv, or what was fused with it, and was left: the Conv, the follower, and why.

    A depthwise Conv that the 1x1 Conv behind it left is told of in the same way, as the follower.
    """

    node: str
    follower: str
    op: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return this for JSON: `{"node", "follower", "op", "reason"}`."""
        return asdict(self)


def fusion_lines(fused: Iterable[Fused], not_fused: Iterable[NotFused]) -> list[str]:
    """Return a line for each, for a reader."""
    return [
        *(f"{taking.op} {taking.node} takes in {_listed(taking.taken)}" for taking in fused),
        *(f"{left.node} leaves {left.op} {left.follower}: {left.reason}" for left in not_fused),
    ]


def fusion_remarks(fused: Iterable[Fused], not_fused: Iterable[NotFused]) -> list[str]:
    """Return a line for each kind: in deep networks dozens of Convs take in the same ops."""
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for taking in fused:
        kind = (taking.op, *(op for op, _ in taking.taken))
        kinds.setdefault(kind, []).extend(fusion_lines([taking], ()))
    for left in not_fused:
        kinds.setdefault((left.op, left.reason, None), []).extend(fusion_lines((), [left]))
    return [
        lines[0] + (f"; and {len(lines) - 1} more of the same" if len(lines) > 1 else "")
        for lines in kinds.values()
    ]


def _listed(taken: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{op} {name}" for op, name in taken)


class Stage(enum.IntEnum):
    """What FusedConv computes after the convolution, in this order; what is folded costs it nothing."""

    FOLDED = 0
    RESIDUAL = 1
    ACTIVATION = 2
    POOL = 3


_WORDS = {
    Stage.FOLDED: "a bias, scale or batch normalisation",
    Stage.RESIDUAL: "a residual",
    Stage.ACTIVATION: "an activation",
    Stage.POOL: "a pooling",
}


@dataclass
class _Chain:
    """A Conv and the nodes that it is to take in, with what they make of it."""

    conv: ir.Node
    element_type: ir.DataType
    rank: int | None
    folding: Folding
    last: Stage  # that is asked for
    stage: Stage = Stage.FOLDED
    taken: list[ir.Node] = field(default_factory=list)
    residual: ir.Value | None = None
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None
    end: tuple[ir.Value, str] | None = None

    @property
    def result(self) -> ir.Value:
        """Return what the last of its nodes computes."""
        return (self.taken[-1] if self.taken else self.conv).outputs[0]

    @property
    def needs_fused_op(self) -> bool:
        return self.stage != Stage.FOLDED


def fuse_convs(
    model: ir.Model, convs: Mapping[ir.Node, Stage], names: Mapping[ir.Node, str], types: ValueTypes
) -> tuple[tuple[Fused, ...], tuple[NotFused, ...]]:
    """Fuse the `convs` of `model`, nodes of `convswap.Conv`, with what follows them, in place.

    Each goes no further than the stage that it comes with. A fused node keeps the name, the attributes, the
    documentation and the metadata of its Conv, has the place and the output of the last node that it took in,
    and stands for all of them. New weights are constants of their own, so that other nodes keep those they
    share; constants that nobody reads any more go.

    `names` has a name for every node, `types` knows the values of `model` as it is.

    Returns what was fused, and what follows a Conv and was left.
    """
    fuser = _Fuser(model, names, types)
    chains = [chain for conv, last in convs.items() if (chain := fuser.follow(conv, last)) is not None]
    # All are followed before the first change, because types and readers are those of the model as it was.
    left = [not_fused for chain in chains for not_fused in fuser.report_end(chain)]
    fused = [fuser.report(chain) for chain in chains if chain.taken]
    for chain in (chain for chain in chains if chain.taken):
        # Shape inference knows no FusedConv, so what it tells of the model as it was is written down.
        types.complete(chain.result)
    writer = _Writer(model, names)
    for chain in chains:
        if chain.taken:
            writer.write(chain)
    return tuple(fused), tuple(left)


class _Fuser:
    """Finds the chain of each Conv.

    A node is taken into one chain only, the first that comes to it.
    """

    def __init__(self, model: ir.Model, names: Mapping[ir.Node, str], types: ValueTypes) -> None:
        self._functions = model.functions
        # onnx-ir writes the domain of nodes in one way only, that of opsets as the model has it.
        self._opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
        self._names = names
        self._types = types
        self._constants = Constants(model)
        self._taken: set[ir.Node] = set()

    def follow(self, conv: ir.Node, last: Stage) -> _Chain | None:
        """Return the chain of `conv`, up to the stage `last`.

        It is None where `conv` is not sound, or its element type is not known.
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
        """Return what `chain` takes in, in words."""
        return Fused(
            self._names[chain.conv],
            FUSED_OP if chain.needs_fused_op else "Conv",
            tuple((op_name(node), self._names[node]) for node in chain.taken),
        )

    def report_end(self, chain: _Chain) -> Iterable[NotFused]:
        """Yield the node at which `chain` ends and why, unless another convolution reads on there."""
        if chain.end is None:
            return
        value, reason = chain.end
        for node in value.consumers():
            if node not in self._taken and not is_ours(node):
                yield NotFused(self._names[chain.conv], self._names[node], op_name(node), reason)
                return

    def _take_next(self, chain: _Chain) -> bool:
        """Take the reader of the result of `chain` into it; return False where there is nothing to take.

        Raises:
            NotFusable: it cannot be taken in.
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
        if chain.stage < Stage.ACTIVATION <= chain.last and self._take_spelled_activation(chain):
            return True
        if len(readers) > 1:
            raise NotFusable(f"{len(readers)} nodes read {value.name!r}, and are not one activation together")
        self._take(chain, readers[0])
        return True

    def _take_spelled_activation(self, chain: _Chain) -> bool:
        found = find_spelled_activation(chain.result, chain.element_type, self._constants)
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
            raise NotFusable("a convolution does not take in this op")

    def _take_add(self, chain: _Chain, node: ir.Node) -> None:
        other = _other_operand(chain, node)
        addend = self._constant_for_filters(chain, other)
        if addend is not None:
            self._check_order(chain, Stage.FOLDED)
            chain.folding.add(addend)
            self._append(chain, Stage.FOLDED, [node])
            return
        self._check_order(chain, Stage.RESIDUAL)
        # It cannot depend on the result of `chain`, because `node` is the one node that reads that.
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
        """Return one number for each filter where that is what the constant `value` has, else None."""
        tensor, filters = self._constants.tensor(value), chain.folding.filters
        if tensor is None or filters is None or chain.rank is None:
            return None
        return numbers_for_filters(tensor, filters, chain.rank)

    def _check_order(self, chain: _Chain, stage: Stage) -> None:
        if stage > chain.last:
            raise NotFusable(f"{_WORDS[stage]} is not asked for")
        if chain.stage > stage or (chain.stage == stage != Stage.FOLDED):
            raise NotFusable(
                f"{_WORDS[stage]} comes after {_WORDS[chain.stage]} here; the order that is fused is "
                "bias, scale and batch normalisation, residual, activation, pooling, each once but the first"
            )

    def _append(self, chain: _Chain, stage: Stage, nodes: list[ir.Node]) -> None:
        chain.stage = stage
        chain.taken += nodes
        self._taken.update(nodes)


def _other_operand(chain: _Chain, node: ir.Node) -> ir.Value:
    """Return what `node` combines with the result of `chain`."""
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
        # Before, an initializer had to be an input of the graph, and so part of what users see.
        self._may_add_initializers = not Constants(model).inputs_may_be_constant

    def write(self, chain: _Chain) -> None:
        """Turn the last node of `chain` into what stands for all of them, and remove the others."""
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
    """Remove a constant that nobody reads any more, with the nodes that pass it on."""
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
