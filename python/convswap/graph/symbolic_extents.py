"""Recognise equal symbolic extents, by expressing each through the symbols of the model's inputs.

If the height of a convolution's input is a symbol, ONNX's shape inference gives the height of its result a
new symbol. This module resolves such a symbol to an expression in the input's symbol. Equal expressions have
the same form: with "same" padding and stride 1, the expression is the input's symbol itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from convswap.graph.epilogue import NotFusable, read_int, read_ints, read_text

# A number; a symbol; ("+", label, n) for label + n; or ("step", n) for the n-th distinct quotient. Quotients
# are numbered because nested expressions would get as deep as the model.
Label = int | str | tuple[Any, ...]

# Prefix of the symbols that ONNX's shape inference makes up for unknown extents.
UNKNOWN_EXTENT_PREFIX = "unk__"
_WINDOW_OPS = {("", "Conv"), ("", "MaxPool"), ("", "AveragePool")}
_ELEMENTWISE_OPS = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}


class SymbolicExtents:
    """Labels for the symbolic extents of a model in which equal symbols mean equal extents.

    `extents_of` returns the extent of each axis of a value: a number, a symbol or None. It returns an empty
    sequence if the rank is unknown.
    """

    def __init__(self, model: ir.Model, extents_of: Callable[[ir.Value], Sequence[int | str | None]]) -> None:
        self._extents_of = extents_of
        self._label_of: dict[str, Label] = {}
        self._quotients: dict[tuple[str, Label, int], Label] = {}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            for axis, label in self._output_labels(node):
                symbol = self._extents_of(node.outputs[0])[axis]
                # Symbols of inputs are their own labels.
                if isinstance(symbol, str) and symbol.startswith(UNKNOWN_EXTENT_PREFIX):
                    self._label_of.setdefault(symbol, label)

    def labels(self, value: ir.Value) -> list[Label | None]:
        """Return a label per axis of `value`, None for an unknown extent; an empty list for unknown rank."""
        return [
            self._label_of.get(extent, extent) if isinstance(extent, str) else extent
            for extent in self._extents_of(value)
        ]

    def _output_labels(self, node: ir.Node) -> Iterator[tuple[int, Label]]:
        """Yield axes of the first output of `node` with their labels."""
        if not node.outputs:
            return
        rank = len(self._extents_of(node.outputs[0]))
        inputs = [value for value in node.inputs if value is not None]
        if (node.domain, node.op_type) in _WINDOW_OPS and inputs:
            yield from self._window_labels(node, inputs, rank)
        elif node.domain == "" and node.op_type in _ELEMENTWISE_OPS:
            operands = [self.labels(value) for value in inputs]
            if not all(0 < len(operand) <= rank for operand in operands):
                return
            for axis in range(rank):
                # Broadcasting aligns shapes at their last axes and stretches extents of 1.
                aligned = [operand[axis - rank] for operand in operands if len(operand) >= rank - axis]
                candidates = {label for label in aligned if label != 1}
                (label,) = candidates if len(candidates) == 1 else (None,)
                if label is not None:
                    yield axis, label

    def _window_labels(
        self, node: ir.Node, inputs: Sequence[ir.Value], rank: int
    ) -> Iterator[tuple[int, Label]]:
        data = self.labels(inputs[0])
        axes = rank - 2
        try:
            kernel = read_ints(node, "kernel_shape", ())
            strides = read_ints(node, "strides", (1,) * axes)
            dilations = read_ints(node, "dilations", (1,) * axes)
            pads = read_ints(node, "pads", (0,) * 2 * axes)
            auto_pad = read_text(node, "auto_pad", "NOTSET")
            ceil_mode = read_int(node, "ceil_mode", 0)
        except NotFusable:
            # The attribute has a type that the ONNX specification does not allow.
            return
        if not kernel and len(inputs) > 1:
            taps = self._extents_of(inputs[1])[2:]
            kernel = tuple(size if isinstance(size, int) else 0 for size in taps)
        lengths = (len(data) - 2, len(kernel), len(strides), len(dilations), len(pads) // 2)
        if ceil_mode or axes < 1 or any(length != axes for length in lengths):
            return
        if min(*kernel, *strides, *dilations) < 1:
            return
        for axis in range(axes):
            label, stride = data[2 + axis], strides[axis]
            if label is None:
                continue
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                yield 2 + axis, label if stride == 1 else self._quotient("ceil", label, stride)
                continue
            padding = pads[axis] + pads[axes + axis] if auto_pad in ("", "NOTSET") else 0
            span = _plus(label, padding - (kernel[axis] - 1) * dilations[axis] - 1)
            yield 2 + axis, _plus(span, 1) if stride == 1 else _plus(self._quotient("floor", span, stride), 1)

    def _quotient(self, rounding: str, label: Label, divisor: int) -> Label:
        """Return the label of the quotient label / divisor, rounded as `rounding` ("floor", "ceil") says."""
        return self._quotients.setdefault((rounding, label, divisor), ("step", len(self._quotients)))


def _plus(label: Label, number: int) -> Label:
    match label:
        case int():
            return label + number
        case ("+", inner, int(offset)):
            return _plus(inner, offset + number)
    return label if number == 0 else ("+", label, number)
