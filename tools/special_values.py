"""Check every algorithm on infinities, NaN, zeros and the largest numbers of a type.

Hypothesis draws problems with an activation, a pool or both. The data have special values. The expected
output follows ONNX's definitions of the operators, in float64 and NumPy, and shares no code with the
library. As a program:

    python tools/special_values.py --device cuda --seeds 0:50
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import helpers_of_tests  # noqa: F401
import ml_dtypes
import numpy as np
from conv_cases import ConvCase, convolve
from conv_property import (
    ROUNDINGS,
    TENSOR_CORE,
    TF32_OPERAND,
    Draw,
    Front,
    for_each_draw,
    mostly,
    pools,
    results,
    run_seeds,
    with_layouts,
)
from convswap import _native
from hypothesis import strategies as st

EXAMPLES_PER_SEED = 100
# Winograd's transformation mixes pixels that no output shares, so an infinity spreads. The planner never
# chooses this algorithm.
SPREADS_INFINITIES = frozenset({"ladder_13_winograd"})
# A larger accumulator overflows to infinity.
LARGEST_FLOAT, LARGEST_DOUBLE = (float(np.finfo(kind).max) for kind in (np.float32, np.float64))
# The steepest slope of an activation drawn here.
MAX_SLOPE = 2.0
# A larger operand rounds to infinity in TF32.
LARGEST_TF32 = np.float32(2.0**128 - 2.0**117)
INF = math.inf
PADDED = {"pads": [1, 1, 1, 1]}
# Few shapes, so that few kernel instances are compiled; every family supports some of them.
CASES = (
    ConvCase((2, 3, 11, 13), (6, 3, 3, 3), True),
    ConvCase((2, 16, 9, 12), (32, 16, 3, 3), True, PADDED),
    ConvCase((1, 64, 8, 8), (64, 64, 3, 3), True, PADDED),
    ConvCase((3, 128, 7, 7), (96, 128, 3, 3), True, {"strides": [2, 2], **PADDED}),
    ConvCase((2, 32, 10, 12), (32, 32, 1, 1), True),
    ConvCase((2, 96, 9, 9), (24, 96, 1, 1), True, {"strides": [2, 2]}),
    ConvCase((2, 32, 9, 12), (32, 1, 3, 3), True, {"group": 32, **PADDED}),
    ConvCase((2, 20, 14, 13), (20, 1, 5, 5), True, {"group": 20, "strides": [2, 2], "pads": [2, 2, 2, 2]}),
    ConvCase((2, 32, 7, 8), (32, 8, 3, 3), True, {"group": 4, **PADDED}),
    ConvCase((2, 1, 20, 28), (4, 1, 7, 7), True),
    ConvCase((2, 4, 18, 18), (16, 4, 7, 7), True),
    ConvCase((1, 3, 32, 32), (32, 3, 7, 7), True, {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    ConvCase((1, 24, 12, 12), (16, 24, 3, 3), True, {"dilations": [2, 2]}),
    ConvCase((2, 8, 40), (12, 8, 5), True, {"strides": [2]}),
    ConvCase((1, 3, 5, 6, 7), (4, 3, 3, 3, 3), True, {"pads": [1] * 6}),
)

Function = Callable[[np.ndarray], np.ndarray]


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Return ONNX's Gelu with approximate="tanh"."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function."""
    return 1 / (1 + np.exp(-x))


# ONNX's definitions, in float64. Comparisons with NaN are false, so NaN passes through.
PLAIN: dict[str, Function] = {
    "None": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0),
    "Tanh": np.tanh,
    "Sigmoid": sigmoid,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "SiLU": lambda x: x * sigmoid(x),
    "Gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x * math.sqrt(0.5))),
    "GeluTanh": gelu_tanh,
}
WITH_PARAMETERS: dict[str, Callable[[float, float], Function]] = {
    "Clip": lambda low, high: lambda x: np.minimum(np.maximum(x, low), high),
    "LeakyRelu": lambda alpha, _: lambda x: np.where(x < 0, alpha * x, x),
    "Elu": lambda alpha, _: lambda x: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
    "HardSigmoid": lambda alpha, beta: lambda x: np.clip(alpha * x + beta, 0, 1),
}


# The case that is also drawn with a depthwise convolution in front.
POINTWISE = CASES[4]


@dataclass(frozen=True)
class SpecialDraw(Draw):
    """A problem with few special values in x, and many in bias and residual.

    A depthwise convolution in front is the identity, 1 in the middle tap, so its output is exact.
    """

    def arrays(self) -> list[np.ndarray | None]:
        """Return x, w, b, the residual and the depthwise weights; None for absent arrays."""
        random = np.random.default_rng(self.data_seed + 1)
        arrays = super().arrays()
        kind = ROUNDINGS[self.type].numpy
        largest = ml_dtypes.finfo(kind).max
        specials = np.array([INF, -INF, math.nan, 0.0, -0.0, largest, -largest], kind)
        for array, max_count in zip(arrays[:4], (3, 0, None, None), strict=True):
            if array is not None and array.size:
                count = (
                    array.size // 3
                    if max_count is None
                    else int(random.integers(0, max_count, endpoint=True))
                )
                positions = random.choice(array.size, min(count, array.size), replace=False)
                array.reshape(-1)[positions] = random.choice(specials, positions.size)
        if self.front is not None:
            arrays[4] = np.zeros(self.front.d_shape, kind)
            arrays[4][:, :, 1, 1] = 1
        return arrays

    def function(self, attributes: dict[str, Any]) -> Function:
        """Return the activation of `attributes` in float64."""
        name = attributes["activation"]
        if name in PLAIN:
            return PLAIN[name]
        largest = float(ml_dtypes.finfo(ROUNDINGS[self.type].numpy).max)
        alpha = attributes.get("activation_alpha", -largest)
        return WITH_PARAMETERS[name](alpha, attributes.get("activation_beta", largest))


@st.composite
def clip_bounds(draw: st.DrawFn, kind: str) -> dict[str, float]:
    """Bounds of Clip, some absent; float64 needs both bounds, as float32 numbers."""
    largest = float(ml_dtypes.finfo(ROUNDINGS[kind].numpy).max)
    low, high = [-INF, 0.0, -1.5, 0.75], [INF, 6.0, 0.5]
    if kind != "float64":
        low, high = [None, -largest, *low], [None, largest, *high]
    bounds = {"activation_alpha": draw(st.sampled_from(low)), "activation_beta": draw(st.sampled_from(high))}
    return {name: bound for name, bound in bounds.items() if bound is not None}


@st.composite
def special_draws(draw: st.DrawFn) -> SpecialDraw:
    """A small problem with an activation, a pool or both."""
    case = draw(st.sampled_from([*CASES, *[POINTWISE] * 3]))
    kind = draw(mostly(st.sampled_from(["float32", "float16", "bfloat16"]), st.just("float64")))
    shape = _native.Problem(case.x_shape, case.w_shape, **case.attributes).output_shape
    name = draw(st.sampled_from([*PLAIN, *WITH_PARAMETERS, "Clip", "Clip"]))
    parameters: dict[str, float] = {}
    if name == "Clip":
        parameters = draw(clip_bounds(kind))
    elif name in WITH_PARAMETERS:
        parameters["activation_alpha"] = draw(st.sampled_from([0.0, 0.25, 1.0, 1.25]))
        if name == "HardSigmoid":
            parameters["activation_beta"] = draw(st.sampled_from([0.0, 0.375]))
    pool = draw(pools(*shape[2:])) if len(shape) == 4 and draw(st.booleans()) else {}
    precision, data_seed = draw(st.sampled_from(["tf32", "ieee"])), draw(st.integers(0, 2**32 - 1))
    epilogue, front = {"activation": name, **parameters, **pool}, None
    if case == POINTWISE and draw(st.booleans()):
        in_front = draw(st.sampled_from(["None", "Relu", "Clip"]))
        attributes = {"activation": in_front, **(draw(clip_bounds(kind)) if in_front == "Clip" else {})}
        front = Front(case.x_shape, (case.x_shape[1], 1, 3, 3), False, {**PADDED, **attributes})
    return SpecialDraw(case, kind, precision, data_seed, epilogue, draw(st.booleans()), front)


def accumulator_bounds(
    draw: SpecialDraw, arrays: list[np.ndarray | None], largest: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lower and upper bound of each accumulator, and a mask of undetermined accumulators.

    An accumulator that may overflow is undetermined, because its value depends on the order of the additions,
    unless it is infinite in any order. An operand that rounds to infinity also makes it undetermined.
    """
    x, w, b, z = (None if array is None else array.astype(np.float64) for array in arrays[:4])
    attributes = draw.case.attributes
    if draw.front is not None:
        front = draw.front.attributes
        x = draw.function(front)(convolve(x, arrays[4], group=len(arrays[4]), pads=front["pads"]))
    total = convolve(x, w, b, **attributes)
    magnitude = convolve(magnitudes(x), magnitudes(w), None if b is None else magnitudes(b), **attributes)
    if z is not None:
        total, magnitude = total + z, magnitude + magnitudes(z)
    rounds = draw.type == "float32" and draw.precision == "tf32"
    unit = ROUNDINGS[draw.type].accumulator_roundoff if draw.type == "float64" else TENSOR_CORE
    error = 1.01 * (2 * (TF32_OPERAND if rounds else 0.0) + (draw.case.terms + 14) * unit) * magnitude
    is_infinite = (np.abs(total) > largest + error) & (magnitude - np.abs(total) < largest / 2)
    undetermined = (magnitude + error > largest) & ~(is_infinite & np.isfinite(total))
    if rounds:
        undetermined |= convolve(magnitudes(x) > LARGEST_TF32, np.ones_like(w), **attributes) > 0
    low, high = total - error, total + error
    return with_overflow(low, largest), with_overflow(high, largest), undetermined


def magnitudes(array: np.ndarray) -> np.ndarray:
    """Return the absolute values, with 0 for infinities and NaN."""
    return np.where(np.isfinite(array), np.abs(array), 0)


def with_overflow(values: np.ndarray, largest: float) -> np.ndarray:
    """Return `values` with infinities in place of magnitudes above `largest`."""
    return np.where(np.abs(values) > largest, np.copysign(INF, values), values)


def mixed_kinds(values: np.ndarray) -> np.ndarray:
    """Return a mask of positions at which the first axis mixes finite numbers, infinities and NaN."""
    kinds = np.select([np.isnan(values), values == INF, values == -INF], [1, 2, 3], 0)
    return (kinds != kinds[0]).any(axis=0)


def windows(values: np.ndarray, pool: dict[str, Any], shape: tuple[int, ...], fill: Any) -> np.ndarray:
    """Return the values of each window of a pool with output `shape`, in a new first axis."""
    kernel, strides, pads = (pool[f"pool_{name}"] for name in ("kernel_shape", "strides", "pads"))
    end_pads = [(shape[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - values.shape[2 + i] for i in range(2)]
    padding = [(0, 0), (0, 0), *((pads[i], max(0, end_pads[i])) for i in range(2))]
    padded = np.pad(values, padding, constant_values=fill)
    spans = [slice(0, (shape[2 + i] - 1) * strides[i] + 1, strides[i]) for i in range(2)]
    return np.stack([padded[:, :, r:, s:][:, :, spans[0], spans[1]] for r, s in np.ndindex(*kernel)])


def divisors(values: np.ndarray, pool: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the divisor of each output of an average pool."""
    pads = pool["pool_pads"]
    ones = np.ones_like(values, dtype=float)
    if not pool.get("pool_count_include_pad"):
        return windows(ones, pool, shape, 0.0).sum(axis=0)
    padded = np.pad(ones, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])], constant_values=1.0)
    return windows(padded, {**pool, "pool_pads": [0] * 4}, shape, 0.0).sum(axis=0)


def expected(
    draw: SpecialDraw, arrays: list[np.ndarray | None], largest: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lower and upper bound of each output, and a mask of undetermined outputs.

    Accumulators above `largest` overflow to infinity.
    """
    low, high, undetermined = before_rounding(draw, arrays, largest)
    kind = ROUNDINGS[draw.type]
    rounding = kind.unit_roundoff * np.maximum(np.abs(low), np.abs(high)) * 1.01 + kind.smallest
    rounding = np.where(np.isfinite(rounding), rounding, 0)
    return (low - rounding).astype(kind.numpy), (high + rounding).astype(kind.numpy), undetermined


def before_rounding(
    draw: SpecialDraw, arrays: list[np.ndarray | None], largest: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return bounds and mask of the outputs before they are rounded to their type."""
    low, high, undetermined = accumulator_bounds(draw, arrays, largest)
    values = np.stack([draw.function(draw.epilogue)(each) for each in (low, (low + high) / 2, high)])
    undetermined |= mixed_kinds(values)
    # Between the bounds of an accumulator near 0 an activation may have a minimum.
    slack = np.where(np.isfinite(high - low), MAX_SLOPE * np.minimum(np.abs(high - low), 1), 0)
    slack += (
        12
        * ROUNDINGS[draw.type].accumulator_roundoff
        * (1 + np.where(np.isfinite(values[0]), np.abs(values[0]), 0))
    )
    low, high = values.min(axis=0) - slack, values.max(axis=0) + slack
    if "pool" not in draw.epilogue:
        return low, high, undetermined
    shape = replace(draw, layouts={}).problem.output_shape
    undetermined_windows = windows(undetermined, draw.epilogue, shape, False).any(axis=0)
    if draw.epilogue["pool"] == "MaxPool":
        bounds = [windows(each, draw.epilogue, shape, -INF).max(axis=0) for each in (low, high)]
        return bounds[0], bounds[1], undetermined_windows
    bounds = [windows(each, draw.epilogue, shape, 0.0) for each in (low, high)]
    window_magnitudes = np.where(np.isfinite(bounds[1]), np.maximum(*map(np.abs, bounds)), 0).sum(axis=0)
    undetermined_windows |= window_magnitudes > largest / 2
    count = divisors(low, draw.epilogue, shape)
    rounding = 20 * ROUNDINGS[draw.type].accumulator_roundoff * window_magnitudes
    return (
        (bounds[0].sum(axis=0) - rounding) / count,
        (bounds[1].sum(axis=0) + rounding) / count,
        undetermined_windows,
    )


def check(draw: SpecialDraw, device: str) -> tuple[int, int]:
    """Check every algorithm of `device` that supports the draw.

    Returns the number of compared and of undetermined outputs.
    """
    arrays = draw.arrays()
    with np.errstate(all="ignore"):
        # `reference` accumulates in float64 for every type.
        float64_bounds = expected(draw, arrays, LARGEST_DOUBLE)
        float32_bounds = float64_bounds if draw.type == "float64" else expected(draw, arrays, LARGEST_FLOAT)
    compared = skipped = 0
    for name, y in results(draw, arrays, device):
        if name in SPREADS_INFINITIES:
            continue
        low, high, undetermined = float64_bounds if name.startswith("reference") else float32_bounds
        with np.errstate(invalid="ignore"):
            right = (np.isnan(y) & np.isnan(low)) | ((y >= low) & (y <= high)) | undetermined
        wrong = np.argwhere(~right)
        if wrong.size:
            at = tuple(wrong[0].tolist())
            comparison = f"{y[at]}, expected {low[at]} to {high[at]}"
            raise AssertionError(
                f"{name} on {draw}: {len(wrong)} of {y.size} wrong, first {at}: {comparison}"
            )
        compared += int(y.size - undetermined.sum())
        skipped += int(undetermined.sum())
    return compared, skipped


def check_seed(number: int, device: str, examples: int = EXAMPLES_PER_SEED) -> tuple[int, int]:
    """Check the problems of one seed; return the number of compared and of undetermined outputs."""
    total = np.zeros(2, np.int64)

    def property_holds(draw: SpecialDraw) -> None:
        nonlocal total
        total += check(with_layouts(draw), device)

    for_each_draw(property_holds, special_draws(), number, examples)
    return int(total[0]), int(total[1])


def compared_in_seed(number: int, device: str) -> int:
    """Check the problems of one seed; return the number of compared outputs."""
    return check_seed(number, device)[0]


if __name__ == "__main__":
    sys.exit(run_seeds(compared_in_seed))
