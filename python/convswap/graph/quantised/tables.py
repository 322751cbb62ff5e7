"""Find functions of one tensor of codes, and evaluate them for every code.

Tools quantise each operator of an activation. Such nodes are a function of 256 codes if they compute element
by element, and from the codes and scalars alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from convswap.graph.domain import opset_of
from convswap.graph.epilogue import NotFusable, read_int
from convswap.graph.layout.operators import ELEMENTWISE
from convswap.graph.quantised.quantisation import (
    NotQuantised,
    Quantisation,
    Quantisations,
    is_dequantize,
    is_quantize,
)

# With training_mode, Dropout is random.
_OPS = frozenset(op for domain, op in ELEMENTWISE if not domain) - {"Dropout"}
# A QuantConv has these as activations behind a rounding.
_CLAMPS = ("Relu", "Clip")
# The shape of all codes. No operand of a convolution has more axes.
_SHAPE = (1, 1, 1, 1, 256)


@dataclass(frozen=True)
class Table:
    """A function of codes: `nodes` compute `result`; `values` (float32) are those of the codes in order."""

    nodes: tuple[ir.Node, ...]
    result: ir.Value
    values: np.ndarray


class TableFinder:
    """Finds the functions of codes in a model."""

    def __init__(self, model: ir.Model, quantisations: Quantisations) -> None:
        self._functions, self._opset = model.functions, opset_of(model)
        self._quantisations = quantisations

    def find(
        self, codes: ir.Value, quantisation: Quantisation, float_type: ir.DataType, rank: int
    ) -> Iterator[Table]:
        """Yield the functions of `codes` that are numbers of `float_type`, those of the most nodes first.

        Only `nodes` read the codes and the values before the result. `rank` is that of the codes. A
        DequantizeLinear alone, or with a Relu or Clip behind it, is left out.
        """
        needed = self._dependent_values(codes, rank)
        for result in reversed(list(needed)[1:]):
            nodes = tuple(needed[result])
            is_plain = is_dequantize(nodes[0]) and all(node.op_type in _CLAMPS for node in nodes[1:])
            if (len(nodes) <= 2 and is_plain) or not _is_closed(codes, nodes):
                continue
            numbers = self._evaluate(codes, quantisation, nodes)
            if numbers is not None and numbers.dtype == float_type.numpy() and np.isfinite(numbers).all():
                yield Table(nodes, result, numbers.astype(np.float32))

    def _dependent_values(self, codes: ir.Value, rank: int) -> dict[ir.Value, dict[ir.Node, None]]:
        """Return the values that are computed from `codes` and scalars alone, each with the nodes that do so.

        Values and nodes are in an order of the computation.
        """
        writer = codes.producer()
        needed: dict[ir.Value, dict[ir.Node, None]] = {codes: {}}
        pending = list(codes.consumers())
        while pending:
            node = pending.pop(0)
            if writer is None or node.graph is not writer.graph or not self._is_elementwise(node):
                continue
            result = node.outputs[0]
            others = [value for value in node.inputs if value is not None and value not in needed]
            if result in needed or not all(self._is_scalar(value, rank) for value in others):
                continue
            nodes = {each: None for value in node.inputs if value in needed for each in needed[value]}
            needed[result] = {**nodes, node: None}
            pending += result.consumers()
        return needed

    def _is_elementwise(self, node: ir.Node) -> bool:
        if node.op_identifier() in self._functions or len(node.outputs) != 1:
            return False
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            return False
        return is_quantize(node) or is_dequantize(node) or (node.domain == "" and node.op_type in _OPS)

    def _is_scalar(self, value: ir.Value, rank: int) -> bool:
        tensor = self._quantisations.constants.tensor(value)
        # A constant with more axes than the codes would add axes to the result.
        return tensor is not None and tensor.size == 1 and len(tensor.shape) <= rank

    def _evaluate(
        self, codes: ir.Value, quantisation: Quantisation, nodes: tuple[ir.Node, ...]
    ) -> np.ndarray | None:
        """Return the result of the last node for each code; None if a node cannot be evaluated."""
        values: dict[ir.Value | None, np.ndarray] = {codes: quantisation.every_code.reshape(_SHAPE)}
        try:
            for node in nodes:
                values[node.outputs[0]] = self._result(node, values)
        except NotQuantised:
            return None
        numbers = values[nodes[-1].outputs[0]]
        return numbers.reshape(-1) if numbers.shape == _SHAPE else None

    def _result(self, node: ir.Node, values: Mapping[ir.Value | None, np.ndarray]) -> np.ndarray:
        """Return the result of `node`, whose inputs are constants or have `values`."""
        arrays: dict[ir.Value | None, np.ndarray] = {}
        for value in node.inputs:
            tensor = None if value in values else self._quantisations.constants.tensor(value)
            if value is not None:
                arrays[value] = values[value] if tensor is None else tensor.numpy()
        if is_quantize(node):
            numbers = arrays[node.inputs[0]]
            if np.isnan(numbers).any():
                raise NotQuantised("providers differ in the code of NaN")
            # ONNX's evaluator has QuantizeLinear and DequantizeLinear of newer opsets only.
            return self._quantisations.of_node(node, what="codes").codes(numbers)
        if is_dequantize(node):
            numbers = self._quantisations.of_node(node, what="codes").numbers(arrays[node.inputs[0]])
            return numbers.astype(arrays[node.inputs[1]].dtype)
        if node.op_type == "Cast" and not _casts_to_floats(node):
            raise NotQuantised("providers differ in casts of numbers out of range")
        # The import loads every operator of ONNX; models without such functions need not wait for that.
        from onnx.reference import ReferenceEvaluator

        feeds = {str(value.name): array for value, array in arrays.items() if value is not None}
        try:
            with np.errstate(all="ignore"):
                (result,) = ReferenceEvaluator(ir.to_proto(node), opsets={"": self._opset}).run(None, feeds)
        except Exception as error:  # The operators' exceptions have no other common base class.
            raise NotQuantised(f"{node.op_type} {node.name} cannot be evaluated") from error
        return np.asarray(result)


def _casts_to_floats(node: ir.Node) -> bool:
    """Return whether a Cast is to a floating-point type."""
    try:
        return ir.DataType(read_int(node, "to", 0)).is_floating_point()
    except (NotFusable, ValueError):
        return False


def _is_closed(codes: ir.Value, nodes: tuple[ir.Node, ...]) -> bool:
    """Return whether `nodes` alone read `codes` and the results before the last."""
    inner = [codes, *(node.outputs[0] for node in nodes[:-1])]
    return not any(value.is_graph_output() for value in inner) and all(
        consumer in nodes for value in inner for consumer in value.consumers()
    )
