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

from convswap.graph.domain import DOMAIN
from convswap.graph.epilogue import NotFusable
from convswap.graph.node_attributes import read_int, read_ints, read_text

# A number; a symbol; ("+", label, n) for label + n; or ("step", n) for the n-th quotient that was met, since
# quotients within each other would nest as deep as the model.
Label = int | str | tuple[Any, ...]

_WINDOW_OPS = {("", "Conv"), (DOMAIN, "Conv"), ("", "MaxPool"), ("", "AveragePool")}
_ELEMENTWISE_OPS = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"}


class SymbolicExtents:
    """What the symbols of a model stand for.

    `labels_of` gives the number and the symbols that are known for each axis of a value; nothing where its
    rank is not known.
    """

    def __init__(self, model: ir.Model, labels_of: Callable[[ir.Value], list[set[int | str]]]) -> None:
        self._labels_of = labels_of
        self._meaning: dict[str, Label] = {}
        self._steps: dict[tuple[str, Label, int], Label] = {}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            for axis, label in self._outcome(node):
                for symbol in self._labels_of(node.outputs[0])[axis]:
                    # Never a symbol that the model declares: it has a meaning of its own, too.
                    if isinstance(symbol, str) and symbol.startswith("unk__"):
                        self._meaning.setdefault(symbol, label)

    def labels(self, value: ir.Value) -> list[set[Label]]:
        """Return, for each axis of `value`, what is known of its extent; nothing where its rank is not."""
        return [
            {self._meaning.get(label, label) if isinstance(label, str) else label for label in labels}
            for labels in self._labels_of(value)
        ]

    def _outcome(self, node: ir.Node) -> Iterator[tuple[int, Label]]:
        """Yield axes of what `node` computes, with what their extents are."""
        if not node.outputs:
            return
        rank = len(self._labels_of(node.outputs[0]))
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
                common = set.intersection(*([labels for labels in there if 1 not in labels] or [set()]))
                if common:
                    yield axis, _first(common)

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
            filters = self._labels_of(inputs[1])[2:]
            kernel = tuple(next((size for size in sizes if isinstance(size, int)), 0) for sizes in filters)
        lengths = (len(data) - 2, len(kernel), len(strides), len(dilations), len(pads) // 2)
        if ceil_mode or axes < 1 or any(length != axes for length in lengths):
            return
        if min(*kernel, *strides, *dilations) < 1:
            return
        for axis in range(axes):
            if not data[2 + axis]:
                continue
            label, stride = _first(data[2 + axis]), strides[axis]
            if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
                yield 2 + axis, label if stride == 1 else self._step("ceil", label, stride)
                continue
            padding = pads[axis] + pads[axes + axis] if auto_pad in ("", "NOTSET") else 0
            room = _plus(label, padding - (kernel[axis] - 1) * dilations[axis] - 1)
            yield 2 + axis, _plus(room, 1) if stride == 1 else _plus(self._step("floor", room, stride), 1)

    def _step(self, rounding: str, label: Label, divisor: int) -> Label:
        """Return what stands for label / divisor, rounded so."""
        return self._steps.setdefault((rounding, label, divisor), ("step", len(self._steps)))


def _first(labels: set[Label]) -> Label:
    return min(labels, key=repr)


def _plus(label: Label, number: int) -> Label:
    match label:
        case int():
            return label + number
        case ("+", inner, int(offset)):
            return _plus(inner, offset + number)
    return label if number == 0 else ("+", label, number)
