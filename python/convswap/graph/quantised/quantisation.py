"""Read scales and zero points: of QuantizeLinear, of DequantizeLinear, and of operators on codes.

A code c stands for the real number (c - zero_point) * scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from convswap.graph.domain import type_name
from convswap.graph.epilogue import NotFusable, read_int
from convswap.graph.quantised.computed_constants import ComputedConstants
from convswap.graph.value_types import ValueTypes

# Older versions of ONNX Runtime's tools write both operators in its own domain for types that ONNX did not
# have.
_DOMAINS = ("", "com.microsoft")
CODE_TYPES = (ir.DataType.INT8, ir.DataType.UINT8)
# Precisions of QuantizeLinear's division: unspecified and float32.
_PRECISIONS = (0, int(ir.DataType.FLOAT))


class NotQuantised(Exception):
    """A convolution cannot become a QuantConv. The message is the reason; its "it" is the convolution."""


def is_quantize(node: ir.Node | None) -> bool:
    """Return whether `node` is a QuantizeLinear."""
    return node is not None and node.op_type == "QuantizeLinear" and node.domain in _DOMAINS


def is_dequantize(node: ir.Node | None) -> bool:
    """Return whether `node` is a DequantizeLinear."""
    return node is not None and node.op_type == "DequantizeLinear" and node.domain in _DOMAINS


@dataclass(frozen=True, eq=False)
class Quantisation:
    """Scales (float32) and zero points (int64) of codes of type `dtype`.

    Both arrays have no axis, or one element for each channel of the axis `axis`.
    """

    scale: np.ndarray
    zero_point: np.ndarray
    dtype: ir.DataType
    axis: int | None = None

    @property
    def lowest(self) -> int:
        """The lowest code."""
        return int(np.iinfo(self.dtype.numpy()).min)

    @property
    def highest(self) -> int:
        """The highest code."""
        return int(np.iinfo(self.dtype.numpy()).max)

    @property
    def every_code(self) -> np.ndarray:
        """All codes in order."""
        return np.arange(self.lowest, self.highest + 1).astype(self.dtype.numpy())

    @property
    def only_scale(self) -> np.float32:
        """The scale of a quantisation per tensor."""
        return np.float32(self.scale.item())

    @property
    def only_zero_point(self) -> int:
        """The zero point of a quantisation per tensor."""
        return int(self.zero_point.item())

    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for equal quantisations."""
        return (
            self.dtype, self.axis, self.scale.shape, self.scale.tobytes(), self.zero_point.tobytes()
        )  # fmt: skip

    def is_same(self, other: Quantisation) -> bool:
        """Return whether equal codes mean equal numbers in both."""
        return self.key() == other.key()

    def codes(self, numbers: np.ndarray) -> np.ndarray:
        """Return the codes of `numbers`, as QuantizeLinear computes them."""
        with np.errstate(over="ignore"):
            rounded = np.rint(numbers.astype(np.float32) / self._along_axis(self.scale, numbers.ndim))
        shifted = rounded + self._along_axis(self.zero_point, numbers.ndim)
        return np.clip(shifted, self.lowest, self.highest).astype(self.dtype.numpy())

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """Return the numbers of `codes` in float32, as DequantizeLinear computes them."""
        differences = codes.astype(np.int64) - self._along_axis(self.zero_point, codes.ndim)
        return differences.astype(np.float32) * self._along_axis(self.scale, codes.ndim)

    def _along_axis(self, array: np.ndarray, rank: int) -> np.ndarray:
        if self.axis is None:
            return array
        return array.reshape([-1 if axis == self.axis % rank else 1 for axis in range(rank)])


class Quantisations:
    """Reads the quantisations of a model's nodes; its methods raise NotQuantised."""

    def __init__(self, model: ir.Model, types: ValueTypes) -> None:
        self._types = types
        self.constants = ComputedConstants(model)

    def of_node(self, node: ir.Node, *, what: str) -> Quantisation:
        """Return the quantisation of a QuantizeLinear or DequantizeLinear; `what` names its codes."""
        (scale, zero_point) = [*node.inputs[1:], None, None][:2]
        try:
            block_size = read_int(node, "block_size", 0)
            precision = read_int(node, "precision", 0)
            axis = read_int(node, "axis", 1)
            output_dtype = read_int(node, "output_dtype", 0)
        except NotFusable as reason:
            raise NotQuantised(f"the quantisation of {what}: {reason}") from None
        if block_size:
            raise NotQuantised(f"{what} have a scale for each block; QuantConv takes one for each channel")
        if precision not in _PRECISIONS:
            raise NotQuantised(f"{what} are quantised in the precision {ir.DataType(precision).name}")
        dtype = self._types.element_type([node.inputs[0]]) if is_dequantize(node) and node.inputs[0] else None
        if is_quantize(node):
            dtype = ir.DataType(output_dtype) if output_dtype else ir.DataType.UINT8
            self._check_division(node, precision, what)
        return self.read(scale, zero_point, dtype, axis=axis, what=what)

    def _check_division(self, node: ir.Node, precision: int, what: str) -> None:
        """Raise NotQuantised if numbers are divided by the scale in another type than their own."""
        number, scale = (self._types.element_type([value]) for value in node.inputs[:2] if value is not None)
        if not precision and None not in (number, scale) and number != scale:
            names = " by a scale of ".join(type_name(dtype) for dtype in (number, scale) if dtype is not None)
            raise NotQuantised(f"{what} are numbers of {names}, which is divided in the type of the scale")

    def read(
        self,
        scale: ir.Value | None,
        zero_point: ir.Value | None,
        dtype: ir.DataType | None,
        *,
        axis: int,
        what: str,
        types: Sequence[ir.DataType] = CODE_TYPES,
    ) -> Quantisation:
        """Return the quantisation with these scales and zero points, which `what` names the codes of.

        `axis` counts if there are several scales. `dtype` is the type of codes without a zero point.
        """
        scales = self.constants.tensor(scale)
        if scales is None:
            raise NotQuantised(f"the scale of {what} is no constant")
        if not scales.dtype.is_floating_point():
            raise NotQuantised(f"the scale of {what} is {type_name(scales.dtype)}")
        numbers = scales.numpy().astype(np.float32)
        zeros = None
        if zero_point is not None:
            zeros = self.constants.tensor(zero_point)
            if zeros is None:
                raise NotQuantised(f"the zero point of {what} is no constant")
            dtype = zeros.dtype
        if dtype is None or dtype not in types:
            expected = " or ".join(map(type_name, types))
            actual = "of unknown type" if dtype is None else type_name(dtype)
            raise NotQuantised(f"{what} are {actual}; QuantConv takes {expected}")
        zero_points = np.zeros(numbers.shape, np.int64) if zeros is None else zeros.numpy().astype(np.int64)
        if zero_points.size == 1:
            zero_points = np.full(numbers.shape, zero_points.item(), np.int64)
        elif numbers.size == 1:  # the weights of ConvInteger have no scale
            numbers = np.full(zero_points.shape, numbers.item(), np.float32)
        if numbers.ndim > 1 and numbers.size > 1:
            raise NotQuantised(f"{what} have a scale for each block; QuantConv takes one for each channel")
        if not (np.isfinite(numbers).all() and (numbers >= 0).all()):
            raise NotQuantised(f"a scale of {what} is negative, infinite or NaN")
        if zero_points.size != numbers.size:
            raise NotQuantised(f"{what} have {numbers.size} scales, but {zero_points.size} zero points")
        if numbers.size == 1:
            return Quantisation(numbers.reshape(()), zero_points.reshape(()), dtype)
        return Quantisation(numbers, zero_points.reshape(-1), dtype, axis)

    def per_tensor(self, quantisation: Quantisation, *, what: str) -> Quantisation:
        """Return `quantisation` if it has one scale, and that is not 0."""
        if quantisation.axis is not None:
            raise NotQuantised(f"{what} have a scale for each channel; QuantConv takes one")
        if not quantisation.only_scale > 0:
            raise NotQuantised(f"the scale of {what} is 0")
        return quantisation
