"""Operators of the float64 reference, where ONNX's own evaluator loops in Python, rounds to float32, or errs.

Convolution is the library's `reference` algorithm; everything else is NumPy. Formulas are those of the ONNX
operator specification.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_batch_normalization

from convswap import _native
from convswap.reference.subgraphs import SUBGRAPH_OPERATORS

_CONV_ATTRIBUTES = ("auto_pad", "pads", "strides", "dilations", "group", "activation")


def reference_conv(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, attributes: dict[str, Any]
) -> np.ndarray:
    """Return Conv of x (n, c, spatial...) and w (k, c / group, spatial...) in float64.

    `attributes` are the node's; those that are absent or None take ONNX's defaults. Of a FusedConv the
    activation counts, with parameters that are left out.
    """
    given = {name: attributes[name] for name in _CONV_ATTRIBUTES if attributes.get(name) is not None}
    return _native.conv(
        np.ascontiguousarray(x, dtype=np.float64),
        np.ascontiguousarray(w, dtype=np.float64),
        None if bias is None else np.ascontiguousarray(bias, dtype=np.float64),
        algorithm="reference",
        **given,
    )


class Conv(OpRun):
    """Conv by the library's plain loops with float64 sums."""

    def _run(
        self, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None = None, **attributes: Any
    ) -> tuple[Any, ...]:
        return (reference_conv(x, w, bias, attributes),)


class BatchNormalization(op_batch_normalization.BatchNormalization_14):
    """y = scale * (x - mean) / sqrt(variance + epsilon) + bias at every opset; training by the evaluator."""

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
        before, after = (size - 1) // 2, math.ceil((size - 1) / 2)
        squares = np.pad(x * x, [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
        channels = x.shape[1]
        total = sum(squares[:, offset : offset + channels] for offset in range(size))
        return (x / (float(bias) + float(alpha) / size * total) ** float(beta),)


class Erf(OpRun):
    """The error function, without the evaluator's rounding to float32."""

    def _run(self, x: np.ndarray) -> tuple[Any, ...]:
        return (_erf(x),)


class Gelu(OpRun):
    """x times the normal distribution function of x, or with `approximate` "tanh" what is usual for it."""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[Any, ...]:
        if approximate == "tanh":
            inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1.0 + np.tanh(inner)),)
        return (0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))),)


class Softmax(OpRun):
    """exp(x) / sum of exp(x) along the axis; below opset 13, over that axis and all that follow it."""

    def _run(self, x: np.ndarray, axis: int = -1) -> tuple[Any, ...]:
        return (_over_classes(self, x, axis, _softmax),)


class Hardmax(OpRun):
    """1 at the first of the largest values along the axis or axes of Softmax, else 0."""

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
    """The largest value of each window, and on request where it is in the whole input."""

    def _run(self, x: np.ndarray, storage_order: int = 0, **attributes: Any) -> tuple[Any, ...]:
        windows = _Windows(x.shape[2:], attributes)
        lowest = np.iinfo(x.dtype).min if np.issubdtype(x.dtype, np.integer) else -np.inf
        padded = windows.pad(x, lowest)
        largest = np.full((*x.shape[:2], *windows.output), lowest, dtype=x.dtype)
        if len(self.output) == 1:
            for part in windows.slices():
                np.maximum(largest, padded[part], out=largest)
            return (largest,)
        positions = np.arange(math.prod(x.shape[2:])).reshape(
            x.shape[2:], order="F" if storage_order else "C"
        )
        padded_positions = windows.pad(positions[None, None], 0)
        indices = np.zeros(largest.shape, dtype=np.int64)
        for part in windows.slices():
            larger = padded[part] > largest
            largest = np.where(larger, padded[part], largest)
            indices = np.where(larger, padded_positions[part], indices)
        planes = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))
        return largest, indices + planes * positions.size


class AveragePool(OpRun):
    """The mean of each window; padding counts only with count_include_pad, what lies beyond it never."""

    def _run(self, x: np.ndarray, count_include_pad: int = 0, **attributes: Any) -> tuple[Any, ...]:
        windows = _Windows(x.shape[2:], attributes)
        padded = windows.pad(x, 0.0)
        ones = np.ones((1, 1, *x.shape[2:]))
        counted = windows.pad(ones, 1.0 if count_include_pad else 0.0, beyond=0.0)
        total = sum(padded[part] for part in windows.slices())
        return (total / sum(counted[part] for part in windows.slices()),)


class LpPool(OpRun):
    """The p-norm of each window: (sum of |x|^p) ^ (1/p)."""

    def _run(self, x: np.ndarray, p: float = 2, **attributes: Any) -> tuple[Any, ...]:
        windows = _Windows(x.shape[2:], attributes)
        padded = windows.pad(np.abs(x) ** p, 0.0)
        return (sum(padded[part] for part in windows.slices()) ** (1 / p),)


class LpNormalization(OpRun):
    """x / (sum of |x|^p along the axis) ^ (1/p); as in ONNX Runtime, 0 where all is 0."""

    def _run(self, x: np.ndarray, axis: int = -1, p: int = 2) -> tuple[Any, ...]:
        norm = (np.abs(x) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
        return (x / np.where(norm == 0, 1.0, norm),)


class Optional(OpRun):
    """What it is given, as ONNX Runtime hands an optional on; None where it is empty."""

    def _run(self, held: Any = None, **unused: Any) -> tuple[Any, ...]:
        return (held,)

    def _check_and_fix_outputs(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        # The evaluator's own refuses None.
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
    LpPool,
    LpNormalization,
    Optional,
    *SUBGRAPH_OPERATORS,
)


def _erf(x: np.ndarray) -> np.ndarray:
    # NumPy has none.
    return np.vectorize(math.erf, otypes=[np.float64])(x)


def _over_classes(
    operator: OpRun, x: np.ndarray, axis: int, function: Callable[[np.ndarray, int], np.ndarray]
) -> np.ndarray:
    if operator.run_params["opsets"][""] >= 13:
        return function(x, axis)
    # The default axis was 1 then, and the evaluator knows the newest default only.
    given = any(attribute.name == "axis" for attribute in operator.onnx_node.attribute)
    first = (axis if given else 1) % max(x.ndim, 1)
    return function(x.reshape(math.prod(x.shape[:first]), -1), 1).reshape(x.shape)


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


class _Windows:
    """The windows of a pooling: how many, and where the elements of all of them lie."""

    def __init__(self, spatial: Sequence[int], attributes: dict[str, Any]) -> None:
        rank = len(spatial)
        self._kernel = list(attributes["kernel_shape"])
        self._strides = list(attributes.get("strides") or [1] * rank)
        self._dilations = list(attributes.get("dilations") or [1] * rank)
        extent = [(k - 1) * d + 1 for k, d in zip(self._kernel, self._dilations, strict=True)]
        auto_pad = attributes.get("auto_pad") or "NOTSET"
        is_same = auto_pad.startswith("SAME")
        if is_same and any(dilation != 1 for dilation in self._dilations):
            # ONNX Runtime pads for windows that are not dilated, and so has another shape than ONNX. The
            # evaluator leaves to the CPU provider what an operator here does not do.
            raise NotImplementedError("auto_pad SAME with dilations")
        axes = list(zip(spatial, extent, self._strides, strict=True))
        if is_same:
            self._padding = [_same_padding(*axis, auto_pad) for axis in axes]
        else:
            pads = (attributes.get("pads") if auto_pad == "NOTSET" else None) or [0] * 2 * rank
            self._padding = list(zip(pads[:rank], pads[rank:], strict=True))
        ceil_mode = bool(attributes.get("ceil_mode")) and not is_same
        padded = list(zip(axes, self._padding, strict=True))
        self.output = [_window_count(*axis, padding, ceil_mode) for axis, padding in padded]
        self._beyond = [
            max(0, (out - 1) * stride + reach - size - sum(padding))
            for out, ((size, reach, stride), padding) in zip(self.output, padded, strict=True)
        ]

    def pad(self, values: np.ndarray, padding: float, beyond: float | None = None) -> np.ndarray:
        """Surround the spatial axes with `padding`, then fill what only ceil_mode reaches with `beyond`."""
        inner = np.pad(values, [(0, 0), (0, 0), *self._padding], constant_values=padding)
        outer = [(0, 0), (0, 0), *((0, more) for more in self._beyond)]
        return np.pad(inner, outer, constant_values=padding if beyond is None else beyond)

    def slices(self) -> list[tuple[slice, ...]]:
        """Return, for each element of a window, the slices that take it from all windows at once."""
        return [
            (
                slice(None),
                slice(None),
                *(
                    slice(offset * dilation, offset * dilation + (out - 1) * stride + 1, stride)
                    for offset, dilation, out, stride in zip(
                        offsets, self._dilations, self.output, self._strides, strict=True
                    )
                ),
            )
            for offsets in itertools.product(*(range(size) for size in self._kernel))
        ]


def _same_padding(size: int, reach: int, stride: int, auto_pad: str) -> tuple[int, int]:
    """Return the padding with which there are ceil(size / stride) windows."""
    total = max((-(-size // stride) - 1) * stride + reach - size, 0)
    smaller, larger = total // 2, total - total // 2
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def _window_count(size: int, reach: int, stride: int, padding: tuple[int, int], ceil_mode: bool) -> int:
    room = size + sum(padding) - reach
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    # A window that would start in the padding at the end is left out.
    if ceil_mode and (count - 1) * stride >= size + padding[0]:
        count -= 1
    return count
