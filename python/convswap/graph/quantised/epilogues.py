"""Find the nodes behind a quantised convolution that a QuantConv computes, too.

In this order, each part optional: one rounding to codes with any function of these codes, the addition of a
dequantised residual, an activation, a pooling, and the quantisation of the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from convswap.graph.domain import opset_of
from convswap.graph.epilogue import NO_ACTIVATION, Activation, NotFusable, Pool
from convswap.graph.fusion.activations import ACTIVATION_OPS, find_decomposed_activation, read_activation
from convswap.graph.layout.axes import RANKS
from convswap.graph.pooling import POOL_OPS, read_pool
from convswap.graph.quantised.accumulators import Accumulator, only_reader
from convswap.graph.quantised.quantisation import (
    NotQuantised,
    Quantisation,
    Quantisations,
    is_dequantize,
    is_quantize,
)
from convswap.graph.quantised.tables import TableFinder
from convswap.graph.value_types import ValueTypes


@dataclass(frozen=True)
class Epilogue:
    """The steps of a QuantConv behind its sums.

    `nodes` are the nodes that compute them, and `result` is the value of the last one: codes of the
    quantisation `y`, or numbers if `y` is None. `rounded` is the quantisation of a rounding before the
    residual `residual`, whose codes have the quantisation `z`. `sum_values` are the numbers of the rounding's
    codes, if those are not dequantised.
    """

    result: ir.Value
    y: Quantisation | None = None
    nodes: tuple[ir.Node, ...] = ()
    rounded: Quantisation | None = None
    sum_values: np.ndarray | None = None
    residual: ir.Value | None = None
    z: Quantisation | None = None
    activation: Activation = NO_ACTIVATION
    pool: Pool | None = None

    @property
    def may_round(self) -> bool:
        """Whether nothing came yet that has to come behind a rounding."""
        return self.rounded is None and self.residual is None and self.pool is None

    @property
    def may_add(self) -> bool:
        """Whether nothing came yet that has to come behind a residual."""
        return self.residual is None and self.pool is None and self.activation == NO_ACTIVATION


class EpilogueFinder:
    """Finds the steps behind each convolution. A node belongs to the first convolution that reaches it."""

    def __init__(self, model: ir.Model, quantisations: Quantisations, types: ValueTypes) -> None:
        self._functions = model.functions
        self._opset = opset_of(model)
        self._quantisations, self._types = quantisations, types
        self._tables = TableFinder(model, quantisations)
        self._claimed: set[ir.Node] = set()

    def find(self, accumulator: Accumulator) -> Epilogue:
        """Return the longest steps that end in codes; without any, the longest that end in numbers."""
        following: Epilogue | None = Epilogue(accumulator.result, accumulator.y)
        while following is not None:
            best = following
            steps = (self._to_stable(step, accumulator) for step in self._steps(best, accumulator))
            following = next((step for step in steps if step is not None), None)
        self._claimed.update((*accumulator.nodes, *best.nodes))
        return best

    def _to_stable(self, state: Epilogue, accumulator: Accumulator) -> Epilogue | None:
        """Return `state`, or if its rounding was the last step, the next one that ends in codes."""
        if state.rounded is None or state.y is not None:
            return state
        for step in self._steps(state, accumulator):
            stable = self._to_stable(step, accumulator)
            if stable is not None:
                return stable
        return None

    def _steps(self, state: Epilogue, accumulator: Accumulator) -> Iterator[Epilogue]:
        """Yield the states after one more step, the best first."""
        try:
            if state.y is None:
                yield from self._steps_of_numbers(state, accumulator)
            else:
                yield from self._steps_of_codes(state, state.y, accumulator)
        except (NotQuantised, NotFusable):
            # The step stays a node of its own.
            return

    def _steps_of_numbers(self, state: Epilogue, accumulator: Accumulator) -> Iterator[Epilogue]:
        value = state.result
        if state.activation == NO_ACTIVATION and state.pool is None:
            match = find_decomposed_activation(value, accumulator.float_type, self._quantisations.constants)
            if match is not None and not any(map(self._is_taken, match[1])):
                activation, nodes = match
                yield replace(
                    state,
                    result=nodes[-1].outputs[0],
                    nodes=(*state.nodes, *nodes),
                    activation=activation,
                )
        node = only_reader(value)
        if node is None or self._is_taken(node):
            return
        op = (node.domain, node.op_type)
        longer = replace(state, result=node.outputs[0], nodes=(*state.nodes, node))
        if is_quantize(node):
            yield replace(longer, y=self._per_tensor(node))
        elif op == ("", "Add") and state.may_add:
            yield self._with_residual(longer, value, node, accumulator)
        elif op in ACTIVATION_OPS and state.activation == NO_ACTIVATION and state.pool is None:
            activation = read_activation(
                node, value, accumulator.float_type, self._quantisations.constants, opset=self._opset
            )
            yield replace(longer, activation=activation)
        elif op in POOL_OPS and state.pool is None and node.inputs[0] is value:
            yield replace(longer, pool=self._pool(node, value))

    def _steps_of_codes(
        self, state: Epilogue, codes: Quantisation, accumulator: Accumulator
    ) -> Iterator[Epilogue]:
        node = only_reader(state.result)
        if node is not None and self._is_taken(node):
            return
        may_be_rounded = (
            state.may_round and codes.dtype == accumulator.x.dtype and _is_redundant(state.activation, codes)
        )
        op = None if node is None else (node.domain, node.op_type)
        if node is not None and op == ("", "MaxPool") and state.pool is None:
            # The largest code is that of the largest number.
            yield replace(
                state,
                result=node.outputs[0],
                nodes=(*state.nodes, node),
                pool=self._pool(node, state.result),
            )
        dequantize = None
        if node is not None and is_dequantize(node) and codes.is_same(self._per_tensor(node)):
            dequantize = node
            if (same := self._step_on_equal_codes(state, codes, dequantize)) is not None:
                yield same
        if not may_be_rounded:
            return
        rounded = replace(state, y=None, rounded=codes, activation=NO_ACTIVATION)
        rank = accumulator.weights.codes.ndim
        for table in self._tables.find(state.result, codes, accumulator.float_type, rank):
            if not any(map(self._is_taken, table.nodes)):
                nodes = (*state.nodes, *table.nodes)
                yield replace(rounded, result=table.result, nodes=nodes, sum_values=table.values)
        if dequantize is not None:
            yield replace(rounded, result=dequantize.outputs[0], nodes=(*state.nodes, dequantize))

    def _step_on_equal_codes(
        self, state: Epilogue, codes: Quantisation, dequantize: ir.Node
    ) -> Epilogue | None:
        """Return the step of a Relu or MaxPool between codes of one quantisation, which needs no rounding."""
        value = dequantize.outputs[0]
        node = only_reader(value)
        quantize = None if node is None else only_reader(node.outputs[0])
        if node is None or quantize is None or not is_quantize(quantize) or state.pool is not None:
            return None
        if any(map(self._is_taken, (node, quantize))) or node.inputs[0] is not value:
            return None
        if not codes.is_same(self._per_tensor(quantize)):
            return None
        longer = replace(state, result=quantize.outputs[0], nodes=(*state.nodes, dequantize, node, quantize))
        if (node.domain, node.op_type) == ("", "MaxPool"):
            return replace(longer, pool=self._pool(node, value))
        if (node.domain, node.op_type) == ("", "Relu") and state.activation in (
            NO_ACTIVATION,
            Activation("Relu"),
        ):
            return replace(longer, activation=Activation("Relu"))
        return None

    def _with_residual(
        self, longer: Epilogue, value: ir.Value, node: ir.Node, accumulator: Accumulator
    ) -> Epilogue:
        others = [other for other in node.inputs if other is not value]
        other = others[0] if len(node.inputs) == 2 and len(others) == 1 else None
        writer = None if other is None else other.producer()
        if other is None or writer is None or not is_dequantize(writer) or writer.inputs[0] is None:
            raise NotFusable("its other operand is no result of DequantizeLinear")
        z = self._per_tensor(writer)
        has_shape = self._types.rank([value]) in RANKS and self._types.have_same_shape(value, other)
        if z.dtype != accumulator.x.dtype or not has_shape:
            raise NotFusable("its other operand has another type or shape")
        return replace(longer, residual=writer.inputs[0], z=z)

    def _pool(self, node: ir.Node, value: ir.Value) -> Pool:
        return read_pool(
            node,
            self._types.axes(value)[2:],
            opset=self._opset,
            contradicted=self._types.contradicts(value),
        )

    def _per_tensor(self, node: ir.Node) -> Quantisation:
        what = f"the codes of {node.op_type} {node.name}"
        return self._quantisations.per_tensor(self._quantisations.of_node(node, what=what), what=what)

    def _is_taken(self, node: ir.Node) -> bool:
        return node in self._claimed or node.op_identifier() in self._functions or not node.outputs


def _is_redundant(activation: Activation, codes: Quantisation) -> bool:
    """Return whether a rounding to `codes` limits numbers to the bounds of `activation` anyway."""
    if activation == NO_ACTIVATION:
        return True
    if activation.name not in ("Relu", "Clip"):
        return False
    low, high = activation.alpha, activation.beta
    bounds = np.array([0.0 if low is None else low, np.inf if high is None else high])
    lowest, highest = np.rint(bounds / codes.only_scale) + codes.only_zero_point
    return bool(lowest <= codes.lowest and highest >= codes.highest)
