"""Tell that two extents are equal though neither is known, because the same steps lead to both.

ONNX's shape inference gives the height and width of a convolution's result a new symbol each where those
of its input are symbols. Here such a symbol is resolved to what the convolution makes of its input's extent,
in a form that is the same for every way to compute the same: the input's own where padding makes up for the
filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir

from convswap.graph.epilogue import NotFusable, read_int, read_ints, read_text

# A number; a symbol; ("+", label, n) for label + n; or ("step", n) for the n-th quotient that was met, since
# quotients within each other would nest as deep as the model.
Label = int | str | tuple[Any, ...]

# How ONNX's shape inference begins the name of an extent that it knows nothing of.
MADE_UP = "unk__"
_WINDOW_OPS = {("", "Conv"), ("", "MaxPool"), ("", "AveragePool")}
_ELEMENTWISE_OPS = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}


class SymbolicExtents:
    """What the symbols of a model stand for, in which every symbol stands for one extent.

    `extents_of` gives the number or the symbol of each axis of a value, None where neither is known; nothing
    where its rank is not known.
    """

    def __init__(self, model: ir.Model, extents_of: Callable[[ir.Value], Sequence[int | str | None]]) -> None:
        self._extents_of = extents_of
        self._meaning: dict[str, Label] = {}
        self._steps: dict[tuple[str, Label, int], Label] = {}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            for axis, label in self._outcome(node):
                symbol = self._extents_of(node.outputs[0])[axis]
                # Those of inputs mean themselves.
                if isinstance(symbol, str) and symbol.startswith(MADE_UP):
                    self._meaning.setdefault(symbol, label)

    def labels(self, value: ir.Value) -> list[Label | None]:
        """Return, for each axis of `value`, what is known of its extent; nothing where its rank is not."""
        return [
            self._meaning.get(extent, extent) if isinstance(extent, str) else extent
            for extent in self._extents_of(value)
        ]

    def _outcome(self, node: ir.Node) -> Iterator[tuple[int, Label]]:
        """Yield axes of what `node` computes, with what their extents are."""
        if not node.outputs:
            return
        rank = len(self._extents_of(node.outputs[0]))
        inputs = [value for value in node.inputs if value is not None]
        if (node.domain, node.op_type) in _WINDOW_OPS and inputs:
            yield from self._of_windows(node, inputs, rank)
        elif node.domain == "" and node.op_type in _ELEMENTWISE_OPS:
            operands = [self.labels(value) for value in inputs]
            if not all(0 < len(operand) <= rank for operand in operands):
                return
            for axis in range(rank):
                # Shapes are aligned at their ends, and extents of 1 give way.
                there = [operand[axis - rank] for operand in operands if len(operand) >= rank - axis]
                longer = {label for label in there if label != 1}
                (label,) = longer if len(longer) == 1 else (None,)
                if label is not None:
                    yield axis, label

    def _of_windows(
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
            # An attribute of another type than ONNX gives it.
            return
        if not kernel and len(inputs) > 1:
            filters = self._extents_of(inputs[1])[2:]
            kernel = tuple(size if isinstance(size, int) else 0 for size in filters)
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
                yield 2 + axis, label if stride == 1 else self._step("ceil", label, stride)
                continue
            padding = pads[axis] + pads[axes + axis] if auto_pad in ("", "NOTSET") else 0
            room = _plus(label, padding - (kernel[axis] - 1) * dilations[axis] - 1)
            yield 2 + axis, _plus(room, 1) if stride == 1 else _plus(self._step("floor", room, stride), 1)

    def _step(self, rounding: str, label: Label, divisor: int) -> Label:
        """Return what stands for label / divisor, rounded so."""
        return self._steps.setdefault((rounding, label, divisor), ("step", len(self._steps)))


def _plus(label: Label, number: int) -> Label:
    match label:
        case int():
            return label + number
        case ("+", inner, int(offset)):
            return _plus(inner, offset + number)
    return label if number == 0 else ("+", label, number)
