"""The convolutions that a kernel is checked with, and one paragraph on what is wrong with what it left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from convswap import _native
from convswap.models import NETWORKS, Convolution, place
from convswap.reference.operators import reference_conv
from convswap.tutorial.lab.kernel import Kernel
from convswap.tutorial.lab.result import Fault

# Of the course's layers so many images: one, and a number that no block is made for.
_COURSE_BATCHES = (1, 3)

# How far an output may be from the float64 reference, of the sum of the absolute values of its terms: what
# products in TF32 come to. A kernel that leaves out a term, or takes another, is off by more somewhere.
TOLERANCE = 1e-3
# What memory holds that nobody has written yet.
_UNWRITTEN = 0xFFFFFFFF

# What a tensor is to its author, who calls it as he likes.
_WORDS = {"x": "the images", "w": "the filters", "b": "the bias", "y": "y"}


@dataclass(frozen=True)
class Case:
    """A convolution of float32 data: x is (N, C, H, W), w is (K, C / group, R, S); attributes as in ONNX."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    has_bias: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        (batch, channels, height, width), (filters, _, rows, columns) = self.x_shape, self.w_shape
        size = f"K={rows}" if rows == columns else f"R={rows} S={columns}"
        more = [f"{name}={value}".replace(" ", "") for name, value in self.attributes.items()]
        words = [f"B={batch} M={filters} C={channels} H={height} W={width} {size}", *more]
        return " ".join([*words, "bias"] if self.has_bias else words)

    @cached_property
    def problem(self) -> _native.Problem:
        """The problem, as the planner knows it."""
        return _native.Problem(self.x_shape, self.w_shape, self.has_bias, **self.attributes)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Normal data, weights and bias (None without one), which depend on the case alone."""
        random = np.random.default_rng([*self.x_shape, *self.w_shape])
        x = random.standard_normal(self.x_shape, dtype=np.float32)
        w = random.standard_normal(self.w_shape, dtype=np.float32)
        return x, w, random.standard_normal(self.w_shape[0], dtype=np.float32) if self.has_bias else None

    @cached_property
    def reference(self) -> np.ndarray:
        """The convolution in float64."""
        return reference_conv(*self.arrays, self.attributes)

    @cached_property
    def magnitude(self) -> np.ndarray:
        """For each output the sum of the absolute values of its terms: what its rounding is a share of."""
        sizes = [None if array is None else np.abs(array) for array in self.arrays]
        x, w, bias = sizes
        assert x is not None and w is not None
        return reference_conv(x, w, bias, self.attributes)


def _square(batch: int, filters: int, channels: int, height: int, width: int, kernel: int) -> Case:
    return Case((batch, channels, height, width), (filters, channels, kernel, kernel))


# Of the course's interface: one of everything, odd sizes, more rows than columns and the other way round, an
# image as large as the filter, and sizes just beyond what blocks are made of.
_COURSE = (
    _square(1, 1, 1, 5, 5, 3),
    _square(2, 3, 2, 13, 11, 3),
    _square(3, 5, 1, 7, 34, 2),
    _square(1, 7, 3, 33, 18, 1),
    _square(2, 2, 4, 7, 7, 7),
    _square(5, 17, 2, 21, 21, 5),
    _square(1, 3, 1, 67, 40, 4),
    _square(2, 16, 1, 20, 20, 5),
)
# Of the whole op, one attribute after the other, then together.
_CONV = (
    Case((2, 3, 12, 9), (4, 3, 3, 2), True),
    Case((1, 2, 11, 14), (3, 2, 3, 3), False, {"strides": [2, 3]}),
    Case((2, 2, 9, 8), (3, 2, 5, 3), True, {"pads": [2, 1, 1, 0]}),
    Case((1, 2, 13, 13), (2, 2, 3, 3), False, {"dilations": [2, 3]}),
    Case((2, 6, 8, 8), (4, 3, 3, 3), True, {"group": 2}),
    Case((1, 5, 9, 9), (5, 1, 3, 3), False, {"group": 5, "pads": [1, 1, 1, 1]}),
    Case((3, 4, 17, 15), (6, 2, 3, 5), True, {"group": 2, "strides": [2, 2], "pads": [1, 2, 1, 2]}),
)


def cases_for(kernel: Kernel) -> tuple[Case, ...]:
    """Return what `kernel` is checked with, the smallest first; empty where its `only` line admits none."""
    general: Sequence[Case] = (*_COURSE, *_CONV) if kernel.interface == "conv" else _COURSE
    taken = [case for case in general if not kernel.source.why_not(case.problem)]
    if len(taken) < len(_COURSE):
        # A file that is for some sizes only is most likely for a layer of the course.
        taken += [case for case in _course_cases() if not kernel.source.why_not(case.problem)]
    return tuple(sorted(taken, key=lambda case: case.problem.operations))


def _course_cases() -> Iterator[Case]:
    """Yield the convolutions of the course's networks, each once."""
    layers: dict[tuple[int, ...], None] = {}
    for network in NETWORKS.values():
        for placed in place(network):
            if isinstance(placed.layer, Convolution):
                layers[placed.layer.out_channels, *placed.input_shape, placed.layer.kernel] = None
    for layer in layers:
        for batch in _COURSE_BATCHES:
            yield _square(batch, *layer)


@dataclass(frozen=True)
class Outcome:
    """What two runs of a kernel left: `y` and `again`, of the case's shape or flat.

    `outside` has, by tensor, how many floats before (negative) or from the beginning of a tensor on a fence
    was first written to; `changed` the place of the first input that is not what it was.
    """

    y: np.ndarray
    again: np.ndarray
    outside: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)


def fault_of(name: str, case: Case, outcome: Outcome) -> Fault | None:
    """Return what is wrong with a kernel that left `outcome`; None where nothing is."""
    for tensor, offset in outcome.outside.items():
        return _outside(name, case, tensor, offset)
    for tensor, offset in outcome.changed.items():
        return Fault(
            "outside",
            f"{name} writes to its input: for {case}, float {offset} of {_WORDS[tensor]} is not what it was. "
            "Inputs are const; write to y alone.",
            {"case": str(case), "tensor": tensor, "place": offset},
        )
    y = outcome.y.reshape(case.reference.shape)
    again = outcome.again.reshape(case.reference.shape)
    return _unwritten(name, case, y) or _wrong(name, case, y, again) or _race(name, case, y, again)


def _outside(name: str, case: Case, tensor: str, offset: int) -> Fault:
    count = {"x": case.arrays[0].size, "w": case.arrays[1].size, "y": case.reference.size}.get(tensor, 0)
    where = (
        f"float {offset - count + 1} behind its end (it has {count:,})"
        if offset >= count
        else f"float {-offset} before its beginning"
    )
    return Fault(
        "outside",
        f"{name} writes outside of {_WORDS[tensor]}: for {case}, {where} was overwritten. A thread of the "
        "last block, or of the last row, has nothing to compute and writes all the same: compare its "
        "indices with B, M, H_out and W_out first.",
        {"case": str(case), "tensor": tensor, "place": offset},
    )


def _unwritten(name: str, case: Case, y: np.ndarray) -> Fault | None:
    left = np.ascontiguousarray(y, np.float32).view(np.uint32) == _UNWRITTEN
    if not left.any():
        return None
    first = _first(left)
    share = f"all {y.size:,} outputs" if left.all() else f"{left.sum():,} of {y.size:,} outputs"
    return Fault(
        "unwritten",
        f"{name} leaves {share} unwritten: for {case}, the first that is missing is "
        f"y{_index(first)}, expected {_number(case.reference[first])}. Too few blocks or threads are started "
        "for these sizes, or a condition leaves out too much; see the launch line and what follows an `if`.",
        _numbers(case, first, float(case.reference[first]), None, int(left.sum())),
    )


def _wrong(name: str, case: Case, y: np.ndarray, again: np.ndarray) -> Fault | None:
    limit = TOLERANCE * np.maximum(case.magnitude, np.finfo(np.float32).tiny)
    # NaN is never within a limit.
    with np.errstate(invalid="ignore", over="ignore"):
        off = ~(np.abs(y.astype(np.float64) - case.reference) <= limit)
    if not off.any():
        return None
    first = _first(off)
    got = float(y[first])
    why = ""
    if np.isnan(got):
        why = (
            " NaN is what stands in memory that was never written and behind the ends of tensors: an index "
            "leaves its tensor, shared memory is read before it is filled, or a __syncthreads() is missing."
        )
    elif _differing(y, again).any():
        why = (
            " A second run with the same input gave other numbers: threads read what others write without a "
            "__syncthreads() between."
        )
    return Fault(
        "wrong",
        f"{name} computes something else: for {case}, {off.sum():,} of {y.size:,} outputs are wrong, the "
        f"first is y{_index(first)}: expected {_number(case.reference[first])}, got {_number(got)}.{why}",
        _numbers(case, first, float(case.reference[first]), got, int(off.sum())),
    )


def _race(name: str, case: Case, y: np.ndarray, again: np.ndarray) -> Fault | None:
    differing = _differing(y, again) & ~(
        np.abs(y.astype(np.float64) - again) <= TOLERANCE * np.maximum(case.magnitude, 1e-30)
    )
    if not differing.any():
        return None
    first = _first(differing)
    return Fault(
        "race",
        f"two runs of {name} with the same input differ: for {case}, {differing.sum():,} of {y.size:,} "
        f"outputs, the first is y{_index(first)}: expected {_number(case.reference[first])}, got "
        f"{_number(y[first])}, then {_number(again[first])}. What comes out depends on which thread is "
        "first: a __syncthreads() is missing, or two threads write to the same place.",
        _numbers(case, first, float(case.reference[first]), float(again[first]), int(differing.sum())),
    )


def _differing(y: np.ndarray, again: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(y).view(np.uint32) != np.ascontiguousarray(again).view(np.uint32)


def _numbers(
    case: Case, first: tuple[int, ...], expected: float, got: float | None, count: int
) -> dict[str, Any]:
    known = None if got is None or not np.isfinite(got) else got
    return {"case": str(case), "index": list(first), "expected": expected, "got": known, "wrong": count}


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _index(place: tuple[int, ...]) -> str:
    return "".join(f"[{i}]" for i in place)


def _number(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{float(value):.6g}"
