"""Let operators that only move elements compute with codes, without DequantizeLinear and QuantizeLinear.

ONNX Runtime's CUDA provider has kernels for the codes of these operators. Codes of another quantisation are
written by a QuantConv of one tap, which reads and writes bytes, where numbers are four times as many.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import ConstantWriter
from convswap.graph.domain import opset_of
from convswap.graph.epilogue import NO_ACTIVATION, NotFusable, read_text
from convswap.graph.layout.axes import RANKS
from convswap.graph.quantised.accumulators import Accumulator, Weights, only_reader
from convswap.graph.quantised.epilogues import Epilogue
from convswap.graph.quantised.quantisation import (
    CODE_TYPES,
    NotQuantised,
    Quantisation,
    Quantisations,
    is_dequantize,
    is_quantize,
)
from convswap.graph.quantised.write import remove_unused
from convswap.graph.value_types import ValueTypes

_MOVES = frozenset(
    {"Flatten", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
_MAX_POOL_TAKES_CODES = 12  # opset

Chain = tuple[Accumulator, Epilogue]


class CodeMover:
    """Rewrites the nodes of a model that move elements."""

    def __init__(self, model: ir.Model, quantisations: Quantisations, types: ValueTypes) -> None:
        self._model, self._quantisations, self._types = model, quantisations, types
        self._opset = opset_of(model)
        self._names = ConstantWriter(model)

    def concatenate(self, chains: Iterable[Chain]) -> list[Chain]:
        """Let each Concat in front of a QuantizeLinear concatenate codes if that adds no node of numbers.

        An operand with the quantisation of the result is read in front of its DequantizeLinear. So is the
        result of a QuantConv, of `chains`, that nothing else reads: it gets the quantisation of the Concat.
        Each other operand gets a QuantizeLinear, which `requantise` replaces if the operand is dequantised
        codes. The concatenated codes are the same. They are a quarter of the bytes, so an equal number of
        nodes is a gain.

        Returns the chains with the new quantisations. Their nodes are not written yet.
        """
        by_result = {chain[1].result: chain for chain in chains}
        for node in self._nodes():
            if node.op_type == "Concat":
                try:
                    self._concatenate(node, by_result)
                except NotQuantised:
                    continue
        return list(by_result.values())

    def _concatenate(self, node: ir.Node, chains: dict[ir.Value, Chain]) -> None:
        quantize, graph = only_reader(node.outputs[0]), node.graph
        if quantize is None or not is_quantize(quantize) or not isinstance(graph, ir.Graph):
            return
        target = self._per_tensor(quantize)
        codes: dict[ir.Value | None, ir.Value] = {}
        requantised: dict[ir.Value, Chain] = {}
        removed = 1
        for value in node.inputs:
            dequantize = None if value is None else value.producer()
            source = dequantize.inputs[0] if dequantize is not None and is_dequantize(dequantize) else None
            if dequantize is None or source is None:
                continue
            quantisation, is_only_reader = (
                self._per_tensor(dequantize),
                only_reader(dequantize.outputs[0]) is node,
            )
            if quantisation.is_same(target):
                codes[value] = source
                removed += is_only_reader
            elif is_only_reader and only_reader(source) is dequantize and source in chains:
                chain = _requantised(*chains[source], quantisation, target)
                if chain is not None:
                    codes[value], requantised[source] = source, chain
                    removed += 1
        others = dict.fromkeys(value for value in node.inputs if value not in codes)
        if sum(self._dequantised(value) is None for value in others) > removed:
            return
        for value in others:
            if value is not None:
                codes[value] = self._quantized(value, quantize, target, before=node, graph=graph)
        for value, chain in requantised.items():
            chains[value] = chain
            value.type = ir.TensorType(target.dtype)
            # Its codes are those of no value in the original model.
            value.name = self._names.names.make_unique(f"{value.name}/requantised")
        operands = list(node.inputs)
        quantize.resize_inputs(len(operands))
        for index, value in enumerate(operands):
            quantize.replace_input_with(index, codes[value])
        quantize.domain, quantize.op_type, quantize.name = "", "Concat", node.name
        quantize.attributes.clear()
        quantize.attributes.update(node.attributes)
        graph.remove(node, safe=True)
        remove_unused(operands)

    def _quantized(
        self, value: ir.Value, like: ir.Node, target: Quantisation, *, before: ir.Node, graph: ir.Graph
    ) -> ir.Value:
        """Return the codes of `value`, by a new node like `like`."""
        name = self._names.node_names.make_unique(f"{value.name}/QuantizeLinear")
        node = ir.node(
            "QuantizeLinear",
            [value, *like.inputs[1:]],
            dict(like.attributes),
            domain=like.domain,
            name=name,
        )
        result = node.outputs[0]
        result.name = self._names.names.make_unique(f"{value.name}/requantised")
        result.type, result.shape = ir.TensorType(target.dtype), value.shape
        graph.insert_before(before, node)
        return result

    def requantise(self) -> list[tuple[ir.Node, Chain]]:
        """Return each QuantizeLinear of dequantised codes, and the QuantConv of one tap that replaces it.

        The QuantConv looks up the numbers of its codes (`sum_values`), and rounds them to codes of the other
        quantisation.
        """
        replaced = []
        for node in self._nodes():
            value = node.inputs[0] if is_quantize(node) else None
            dequantised = self._dequantised(value)
            if value is None or dequantised is None:
                continue
            try:
                target = self._per_tensor(node)
            except NotQuantised:
                continue
            if target.dtype in CODE_TYPES:
                replaced.append((node, self._requantisation(node, value, *dequantised, target)))
        return replaced

    def _dequantised(self, value: ir.Value | None) -> tuple[ir.Value, Quantisation] | None:
        """Return the codes of numbers that `requantise` can read, and their quantisation."""
        node = None if value is None else value.producer()
        if value is None or node is None or not is_dequantize(node) or node.inputs[0] is None:
            return None
        axes = self._types.axes(value)
        if self._types.element_type([value]) != ir.DataType.FLOAT or axes is None or len(axes) not in RANKS:
            return None
        try:
            quantisation = self._per_tensor(node)
        except NotQuantised:
            return None
        is_constant = self._quantisations.constants.tensor(node.inputs[0]) is not None
        is_usable = (
            quantisation.dtype in CODE_TYPES
            and isinstance(axes[1], int)
            and 0 not in axes[1:]
            and not is_constant
        )
        return (node.inputs[0], quantisation) if is_usable else None

    def _requantisation(
        self, node: ir.Node, value: ir.Value, codes: ir.Value, source: Quantisation, target: Quantisation
    ) -> Chain:
        axes = self._types.axes(value)
        assert axes is not None and isinstance(axes[1], int)
        channels, taps = axes[1], [1] * (len(axes) - 2)
        node.attributes.clear()
        node.attributes["group"] = ir.AttrInt64("group", channels)
        node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", taps)
        result = node.outputs[0]
        self._types.complete(result)
        ones = np.ones(channels, np.float32)
        weights = Weights(np.ones((channels, 1, *taps), np.int8), ones, None)
        accumulator = Accumulator(codes, source, weights, ones, result, nodes=[node])
        rounded = replace(source, scale=np.ones((), np.float32))
        numbers = source.numbers(source.every_code)
        return accumulator, Epilogue(result, y=target, rounded=rounded, sum_values=numbers)

    def move(self) -> None:
        """Let operators read codes if the numbers before and behind them have the same quantisation."""
        for node in self._nodes():
            if node.op_type in _MOVES:
                try:
                    self._move(node)
                except (NotQuantised, NotFusable):
                    continue

    def _move(self, node: ir.Node) -> None:
        dequantize = None if node.inputs[0] is None else node.inputs[0].producer()
        if dequantize is None or not is_dequantize(dequantize) or dequantize.inputs[0] is None:
            return
        quantisation = self._per_tensor(dequantize)
        if not self._takes_codes(node, quantisation.dtype):
            return
        readers: dict[ir.Value, ir.Node] = {}
        for result in node.outputs:
            quantize = only_reader(result)
            if quantize is None or not is_quantize(quantize) or quantize.outputs[0].is_graph_output():
                return
            if not quantisation.is_same(self._per_tensor(quantize)):
                return
            readers[result] = quantize
        node.replace_input_with(0, dequantize.inputs[0])
        for result, quantize in readers.items():
            codes = quantize.outputs[0]
            codes.replace_all_uses_with(result)
            result.name, codes.name = codes.name, None
            result.type = ir.TensorType(quantisation.dtype)
            remove_unused([codes])
        remove_unused(dequantize.outputs)

    def _takes_codes(self, node: ir.Node, dtype: ir.DataType) -> bool:
        """Return whether the CUDA provider has a kernel that moves the codes of `node`."""
        if node.op_type == "MaxPool":
            return self._opset >= _MAX_POOL_TAKES_CODES
        if node.op_type == "Resize":
            mode, coordinates = (
                read_text(node, name, default)
                for name, default in (("mode", "nearest"), ("coordinate_transformation_mode", ""))
            )
            return dtype == ir.DataType.UINT8 and mode == "nearest" and coordinates != "tf_crop_and_resize"
        return True

    def _nodes(self) -> list[ir.Node]:
        return [
            node
            for node in ir.traversal.RecursiveGraphIterator(self._model.graph)
            if node.domain == "" and node.op_identifier() not in self._model.functions
        ]

    def _per_tensor(self, node: ir.Node) -> Quantisation:
        what = "its codes"
        return self._quantisations.per_tensor(self._quantisations.of_node(node, what=what), what=what)


def _requantised(
    accumulator: Accumulator, epilogue: Epilogue, quantisation: Quantisation, target: Quantisation
) -> Chain | None:
    """Return the chain with the codes in `target` of the numbers that its codes stand for in `quantisation`.

    None if a QuantConv does not compute that: its only rounding is in front of the residual.
    """
    rounded, y = epilogue.rounded or epilogue.y, epilogue.y
    is_last = epilogue.residual is None and epilogue.pool is None and epilogue.activation == NO_ACTIVATION
    if y is None or rounded is None or not is_last or rounded.dtype != accumulator.x.dtype:
        return None

    def as_floats(numbers: np.ndarray) -> np.ndarray:
        return numbers.astype(accumulator.float_type.numpy()).astype(np.float32)

    codes = rounded.every_code
    if epilogue.rounded is not None:
        values = epilogue.sum_values
        codes = y.codes(as_floats(rounded.numbers(codes)) if values is None else values)
    numbers = as_floats(quantisation.numbers(codes))
    return accumulator, replace(epilogue, rounded=rounded, sum_values=numbers, y=target)
