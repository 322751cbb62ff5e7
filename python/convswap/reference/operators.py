"""Operators of the float64 reference that ONNX's evaluator computes slowly, in float32, or wrongly.

Convolution is the library's `reference` algorithm; all other operators use NumPy. Formulas are those of the
ONNX operator specification.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization

from convswap import _native
from convswap.reference.quantised import QuantConv
from convswap.reference.subgraphs import SUBGRAPH_OPERATORS
from convswap.reference.windows import Windows

_CONV_ATTRIBUTES = ("auto_pad", "pads", "strides", "dilations", "group", "activation")


def reference_conv(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attributes: dict[str, Any]
) -> np.ndarray:
    """Return Conv of x (n, c, spatial...) and w (k, c / group, spatial...) in float64.

    `attributes` are the node's. Absent attributes and None mean ONNX's defaults. The attribute "activation"
    of a FusedConv is applied, too, with default parameters.
    """
    set_attributes = {name: attributes[name] for name in _CONV_ATTRIBUTES if attributes.get(name) is not None}
    return _native.conv(
        np.ascontiguousarray(x, dtype=np.float64),
        np.ascontiguousarray(w, dtype=np.float64),
        None if bias is None else np.ascontiguousarray(bias, dtype=np.float64),
        algorithm="reference",
        **set_attributes,
    )


class Conv(OpRun):
    """Conv by the library's reference loops with float64 accumulators."""

    def _run(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, **attributes: Any
    ) -> tuple[Any, ...]:
        return (reference_conv(x, w, bias, attributes),)


class BatchNormalization(op_batch_normalization.BatchNormalization_14):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias at every opset.

    Training mode is left to the evaluator.
    """

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray,
        mean: np.ndarray,
        var: np.ndarray,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int = 0,
        **unused: Any,
    ) -> tuple[Any, ...]:
        if training_mode:
            return super()._run(x, scale, bias, mean, var, float(epsilon), float(momentum), training_mode)
        shape = (-1, *(1,) * (x.ndim - 2))
        factor = scale / np.sqrt(var + float(epsilon))
        return ((x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape),)


class LRN(OpRun):
    """y = x / (bias + alpha / size * sum of x^2 over `size` neighbouring channels) ^ beta."""

    def _run(self, x: np.ndarray, alpha: float, beta: float, bias: float, size: int) -> tuple[Any, ...]:
        channels_before, channels_after = (size - 1) // 2, math.ceil((size - 1) / 2)
        squares = np.pad(x * x, [(0, 0), (channels_before, channels_after), *[(0, 0)] * (x.ndim - 2)])
        channels = x.shape[1]
        total = sum(squares[:, offset : offset + channels] for offset in range(size))
        return (x / (float(bias) + float(alpha) / size * total) ** float(beta),)


class Erf(OpRun):
    """The error function, without the evaluator's rounding to float32."""

    def _run(self, x: np.ndarray) -> tuple[Any, ...]:
        return (_erf(x),)


class Gelu(OpRun):
    """x * Phi(x), where Phi is the normal distribution function, or its approximation by tanh."""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[Any, ...]:
        if approximate == "tanh":
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1.0 + np.tanh(inner)),)
        return (0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),)


class Softmax(OpRun):
    """exp(x) / sum of exp(x) along the axis; below opset 13, over the axis and all axes after it."""

    def _run(self, x: np.ndarray, axis: int = -1) -> tuple[Any, ...]:
        return (_over_classes(self, x, axis, _softmax),)


class Hardmax(OpRun):
    """1 at the first of the largest values along the axes of Softmax, else 0."""

    def _run(self, x: np.ndarray, axis: int = -1) -> tuple[Any, ...]:
        return (_over_classes(self, x, axis, _hardmax),)


class LogSoftmax(OpRun):
    """The logarithm of Softmax."""

    def _run(self, x: np.ndarray, axis: int = -1) -> tuple[Any, ...]:
        return (_over_classes(self, x, axis, _log_softmax),)


class GlobalMaxPool(OpRun):
    """The largest value over all spatial axes, of any rank."""

    def _run(self, x: np.ndarray) -> tuple[Any, ...]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class MaxPool(OpRun):
    """The largest value of each pool window, and optionally its index in the flattened input."""

    def _run(self, x: np.ndarray, storage_order: int = 0, **attributes: Any) -> tuple[Any, ...]:
        windows = Windows(x.shape[2:], attributes)
        lowest = np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -np.inf
        padded = windows.pad(x, lowest)
        largest = np.full((*x.shape[:2], *windows.output), lowest, dtype=x.dtype)
        if len(self.output) == 1:
            for slices in windows.slices():
                np.maximum(largest, padded[slices], out=largest)
            return (largest,)
        positions = np.arange(math.prod(x.shape[2:])).reshape(
            x.shape[2:], order="F" if storage_order else "C"
        )
        padded_positions = windows.pad(positions[None, None], 0)
        indices = np.zeros(largest.shape, dtype=np.int64)
        for slices in windows.slices():
            larger = padded[slices] > largest
            largest = np.where(larger, padded[slices], largest)
            indices = np.where(larger, padded_positions[slices], indices)
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        return largest, indices + planes * positions.size


class AveragePool(OpRun):
    """The mean of each pool window. Padding counts with count_include_pad; positions beyond never count."""

    def _run(self, x: np.ndarray, count_include_pad: int = 0, **attributes: Any) -> tuple[Any, ...]:
        windows = Windows(x.shape[2:], attributes)
        padded = windows.pad(x, 0.0)
        ones = np.ones((1, 1, *x.shape[2:]))
        element_counts = windows.pad(ones, 1.0 if count_include_pad else 0.0, ceil_value=0.0)
        total = sum(padded[slices] for slices in windows.slices())
        return (total / sum(element_counts[slices] for slices in windows.slices()),)


class LpPool(OpRun):
    """The p-norm of each pool window: (sum of |x|^p) ^ (1/p)."""

    def _run(self, x: np.ndarray, p: float = 2, **attributes: Any) -> tuple[Any, ...]:
        windows = Windows(x.shape[2:], attributes)
        padded = windows.pad(np.abs(x) ** p, 0.0)
        return (sum(padded[slices] for slices in windows.slices()) ** (1 / p),)


class LpNormalization(OpRun):
    """x / (sum of |x|^p along the axis) ^ (1/p); 0 if all elements are 0, as in ONNX Runtime."""

    def _run(self, x: np.ndarray, axis: int = -1, p: int = 2) -> tuple[Any, ...]:
        norm = (np.abs(x) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
        return (x / np.where(norm == 0, 1.0, norm),)


class DequantizeLinear(OpRun):
    """(x - zero point) * scale at every opset, for integers with one scale or one per index of an axis."""

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        zero_point: np.ndarray | None = None,
        axis: int = 1,
        block_size: int = 0,
        **unused: Any,
    ) -> tuple[Any, ...]:
        if block_size or scale.ndim > 1 or x.dtype not in (np.int8, np.uint8, np.int16, np.uint16, np.int32):
            # The CPU provider then computes the node.
            raise NotImplementedError("DequantizeLinear of this form")
        is_per_axis = scale.size > 1
        shape = [-1 if index == axis % x.ndim else 1 for index in range(x.ndim)] if is_per_axis else []
        difference = x.astype(np.float64)
        if zero_point is not None:
            difference -= zero_point.astype(np.float64).reshape(shape)
        return (difference * scale.astype(np.float64).reshape(shape),)


class Optional(OpRun):
    """Its input, or None without an input: ONNX Runtime represents an optional by its value."""

    def _run(self, value: Any = None, **unused: Any) -> tuple[Any, ...]:
        return (value,)

    def _check_and_fix_outputs(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # The base class rejects None.
        return outputs


OPERATORS: tuple[type[OpRun], ...] = (
    Conv,
    BatchNormalization,
    LRN,
    Erf,
    Gelu,
    Softmax,
    LogSoftmax,
    Hardmax,
    GlobalMaxPool,
    MaxPool,
    AveragePool,
    DequantizeLinear,
    LpPool,
    LpNormalization,
    Optional,
    QuantConv,
    *SUBGRAPH_OPERATORS,
)


def _erf(x: np.ndarray) -> np.ndarray:
    # NumPy has no erf.
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _over_classes(
    operator: OpRun, x: np.ndarray, axis: int, function: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    if operator.run_params["opsets"][""] >= 13:
        return function(x, axis)
    # The default axis was 1 before opset 13; the evaluator passes the default of the newest opset.
    has_axis = any(attribute.name == "axis" for attribute in operator.onnx_node.attribute)
    first_axis = (axis if has_axis else 1) % max(x.ndim, 1)
    return function(x.reshape(math.prod(x.shape[:first_axis]), -1), 1).reshape(x.shape)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def _hardmax(x: np.ndarray, axis: int) -> np.ndarray:
    largest = np.zeros_like(x)
    if x.size:
        np.put_along_axis(largest, x.argmax(axis=axis, keepdims=True), 1, axis=axis)
    return largest
