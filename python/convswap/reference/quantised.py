"""`convswap.QuantConv` in NumPy: the specification of the op, step by step.

Sums are exact. Each later step is one operation in float32, rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from convswap.reference.windows import Windows, same_padding

_FLOAT = np.float32
_ONE = _FLOAT(1)


def quant_conv(
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray,
    y_zero_point: np.ndarray,
    bias: np.ndarray | None = None,
    offset: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    sum_values: np.ndarray | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> np.ndarray:
    """Return the result of a QuantConv; its type is that of `y_zero_point`.

    Args:
        x: codes, int8 or uint8, (n, c, spatial...), or in the layout of the attribute `input_layout`.
        w: int8 weights (k, c / group, filter...).
        scale: float32 (k).
        y_zero_point: one number; 0 for a floating-point type.
        bias: int32 (k).
        offset: float32 (k).
        residual: codes of the type of `x`, with the shape of the convolution's result, or in the layout of
            the attribute `residual_layout`. An array of shape (0) counts as None.
        sum_values: float32 (256), the number of each code of the sum, from the least on.
        attributes: those of the node; absent ones and None have their defaults.
    """
    parameters = {name: value for name, value in (attributes or {}).items() if value is not None}
    data = _to_nchw(x, parameters.get("input_layout"))
    sums = convolution_sums(data, w, int(parameters.get("x_zero_point", 0)), parameters)
    per_channel = (-1, *[1] * (data.ndim - 2))
    if bias is not None:
        sums = sums + bias.astype(np.int64).reshape(per_channel)
    limits = np.iinfo(np.int32)
    if sums.size and not limits.min <= sums.min() <= sums.max() <= limits.max:
        raise OverflowError("a sum of a QuantConv does not fit into int32")

    v = sums.astype(_FLOAT) * scale.astype(_FLOAT).reshape(per_channel)
    if offset is not None:
        v = v + offset.astype(_FLOAT).reshape(per_channel)
    if "sum_zero_point" in parameters:
        zero_point = int(parameters["sum_zero_point"])
        codes = _codes(v, zero_point, x.dtype)
        if sum_values is None:
            v = (codes - zero_point).astype(_FLOAT) * _FLOAT(parameters["sum_scale"])
        else:
            v = sum_values.astype(_FLOAT)[codes - np.iinfo(x.dtype).min]
    if residual is not None and residual.shape != (0,):
        codes = _to_nchw(residual, parameters.get("residual_layout")).astype(np.int64)
        difference = (codes - int(parameters.get("z_zero_point", 0))).astype(_FLOAT)
        v = v + difference * _FLOAT(parameters.get("z_scale", 1.0))
    v = _activate(v, parameters)
    v = _pool(v, parameters)
    y = _result(v, y_zero_point, _FLOAT(parameters.get("y_scale", 1.0)))
    is_nhwc = parameters.get("output_layout", "NCHW") == "NHWC"
    return np.ascontiguousarray(np.moveaxis(y, 1, -1)) if is_nhwc else y


def convolution_sums(
    x: np.ndarray, w: np.ndarray, x_zero_point: int, attributes: Mapping[str, Any]
) -> np.ndarray:
    """Return the sums of (x - x_zero_point) * w over taps and channels in int64.

    `x` is (n, c, spatial...). Padding counts as `x_zero_point`. The products are added in float64, which is
    exact below 2^53.
    """
    rank, group = x.ndim - 2, int(attributes.get("group", 1))
    batch, filters = x.shape[0], w.shape[0]
    dilations = list(attributes.get("dilations") or [1] * rank)
    strides = list(attributes.get("strides") or [1] * rank)
    windows = Windows(
        x.shape[2:],
        {
            "kernel_shape": w.shape[2:],
            "strides": strides,
            "dilations": dilations,
            "pads": _pads(x.shape[2:], w.shape[2:], strides, dilations, attributes),
        },
    )
    differences = windows.pad(x.astype(np.float64) - x_zero_point, 0.0)
    weights = w.astype(np.float64).reshape(group, filters // group, w.shape[1], -1)
    sums = np.zeros((batch, group, filters // group, math.prod(windows.output)))
    for tap, slices in enumerate(windows.slices()):
        columns = differences[slices].reshape(batch, group, w.shape[1], -1)
        sums += weights[..., tap] @ columns
    return sums.astype(np.int64).reshape(batch, filters, *windows.output)


def _pads(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: list[int],
    dilations: list[int],
    attributes: Mapping[str, Any],
) -> list[int]:
    """Return the pads at the beginnings and then at the ends of the spatial axes."""
    auto_pad = str(attributes.get("auto_pad") or "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        extents = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
        pads = [same_padding(*axis, auto_pad) for axis in zip(sizes, extents, strides, strict=True)]
        return [begin for begin, _ in pads] + [end for _, end in pads]
    parameters = attributes.get("pads") if auto_pad == "NOTSET" else None
    return list(parameters or [0] * 2 * len(sizes))


def _to_nchw(values: np.ndarray, layout: str | None) -> np.ndarray:
    return np.moveaxis(values, -1, 1) if layout == "NHWC" else values


def _codes(v: np.ndarray, zero_point: int, dtype: np.dtype) -> np.ndarray:
    """Return v rounded half to even, plus the zero point, limited to the range of `dtype`, in int64."""
    limits = np.iinfo(dtype)
    # The limits less the zero point are exact in float32, so clamping may come first.
    low, high = _FLOAT(limits.min - zero_point), _FLOAT(limits.max - zero_point)
    return np.rint(np.clip(v, low, high)).astype(np.int64) + zero_point


def _result(v: np.ndarray, y_zero_point: np.ndarray, y_scale: np.float32) -> np.ndarray:
    dtype = np.asarray(y_zero_point).dtype
    if not np.issubdtype(dtype, np.integer):
        return v.astype(dtype)
    if y_scale != _ONE:
        v = v * (_ONE / y_scale)
    return _codes(v, int(np.asarray(y_zero_point).item()), dtype).astype(dtype)


def _activate(v: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    """Return the activation in float32; functions such as tanh are rounded from float64."""
    alpha, beta = (_FLOAT(attributes.get(f"activation_{name}", 0.0)) for name in ("alpha", "beta"))
    zero = _FLOAT(0)
    match attributes.get("activation", "None"):
        case "None":
            return v
        case "Relu":
            return np.maximum(v, zero)
        case "LeakyRelu":
            return np.where(v < zero, v * alpha, v)
        case "Clip":
            low = _FLOAT(attributes.get("activation_alpha", np.finfo(_FLOAT).min))
            high = _FLOAT(attributes.get("activation_beta", np.finfo(_FLOAT).max))
            return np.minimum(np.maximum(v, low), high)
        case "HardSigmoid":
            return np.clip(v * alpha + beta, zero, _ONE)
        case "HardSwish":
            return v * np.clip(v * _FLOAT(1 / 6) + _FLOAT(0.5), zero, _ONE)
        case name:
            with np.errstate(over="ignore"):
                return _smooth(str(name), v.astype(np.float64), float(alpha)).astype(_FLOAT)


def _smooth(name: str, v: np.ndarray, alpha: float) -> np.ndarray:
    match name:
        case "Tanh":
            return np.tanh(v)
        case "Sigmoid":
            return 1 / (1 + np.exp(-v))
        case "SiLU":
            return v / (1 + np.exp(-v))
        case "Elu":
            return np.where(v < 0, alpha * np.expm1(np.minimum(v, 0)), v)
        case "Gelu":
            erf = np.vectorize(math.erf, otypes=[np.float64])
            return 0.5 * v * (1 + erf(v * math.sqrt(0.5)))
        case "GeluTanh":
            return 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))
    raise ValueError(f"no formula is known for the activation {name!r}")


def _pool(v: np.ndarray, attributes: Mapping[str, Any]) -> np.ndarray:
    op = attributes.get("pool", "None")
    if op == "None":
        return v
    windows = Windows(
        v.shape[2:],
        {name.removeprefix("pool_"): value for name, value in attributes.items() if name.startswith("pool_")},
    )
    if op == "MaxPool":
        padded = windows.pad(v, -np.inf)
        largest = np.full((*v.shape[:2], *windows.output), -np.inf, _FLOAT)
        for slices in windows.slices():
            np.maximum(largest, padded[slices], out=largest)
        return largest
    padded = windows.pad(v, 0.0)
    counted = 1.0 if attributes.get("pool_count_include_pad") else 0.0
    counts = windows.pad(np.ones((1, 1, *v.shape[2:])), counted, ceil_value=0.0)
    total = sum(padded[slices].astype(np.float64) for slices in windows.slices())
    return np.asarray(total / sum(counts[slices] for slices in windows.slices()), _FLOAT)


class QuantConv(OpRun):
    """QuantConv in the evaluator; in float64 models a result that is no codes becomes float64."""

    op_domain = "convswap"

    def _run(
        self,
        x: np.ndarray,
        w: np.ndarray,
        scale: np.ndarray,
        y_zero_point: np.ndarray,
        bias: np.ndarray | None = None,
        offset: np.ndarray | None = None,
        residual: np.ndarray | None = None,
        sum_values: np.ndarray | None = None,
        **attributes: Any,
    ) -> tuple[Any, ...]:
        return (quant_conv(x, w, scale, y_zero_point, bias, offset, residual, sum_values, attributes),)
