"""Test convolutions for a kernel, and the fault found in the memory that its runs left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from convswap import _native
from convswap.models import NETWORKS, Convolution, place
from convswap.reference.operators import reference_conv
from convswap.tutorial.lab.kernel import LabKernel
from convswap.tutorial.lab.result import Fault

# Batch sizes for the course's layers: one image, and a number that does not divide a usual block.
_COURSE_BATCHES = (1, 3)

# Limit of an output's error, relative to the sum of the absolute values of its terms. TF32 products stay
# below it. A kernel that omits or confuses a term exceeds it for some output.
TOLERANCE = 1e-3
# Bits of an output that no thread has written: a NaN that arithmetic does not produce.
_UNWRITTEN_BITS = 0xFFFFFFFF

# Names of the tensors in messages: the kernel's author may call its parameters anything.
_TENSOR_NAMES = {"x": "the images", "w": "the filters", "b": "the bias", "y": "y"}


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
        attributes = [f"{name}={value}".replace(" ", "") for name, value in self.attributes.items()]
        words = [f"B={batch} M={filters} C={channels} H={height} W={width} {size}", *attributes]
        return " ".join([*words, "bias"] if self.has_bias else words)

    @cached_property
    def problem(self) -> _native.Problem:
        """The conv problem, as the planner takes it."""
        return _native.Problem(self.x_shape, self.w_shape, self.has_bias, **self.attributes)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Normally distributed data, weights and bias (or None), seeded by the shapes."""
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
        """The sum of the absolute values of the terms of each output, to which its rounding error relates."""
        sizes = [None if array is None else np.abs(array) for array in self.arrays]
        x, w, bias = sizes
        assert x is not None and w is not None
        return reference_conv(x, w, bias, self.attributes)


def _square(batch: int, filters: int, channels: int, height: int, width: int, kernel: int) -> Case:
    return Case((batch, channels, height, width), (filters, channels, kernel, kernel))


# Cases for the course's interface: single channels, filters and images, odd sizes, more rows than columns and
# the reverse, an image as large as the filter, and sizes just above multiples of usual blocks.
_COURSE_CASES = (
    _square(1, 1, 1, 5, 5, 3),
    _square(2, 3, 2, 13, 11, 3),
    _square(3, 5, 1, 7, 34, 2),
    _square(1, 7, 3, 33, 18, 1),
    _square(2, 2, 4, 7, 7, 7),
    _square(5, 17, 2, 21, 21, 5),
    _square(1, 3, 1, 67, 40, 4),
    _square(2, 16, 1, 20, 20, 5),
)
# Cases for the whole op: each attribute alone, then several together.
_CONV_CASES = (
    Case((2, 3, 12, 9), (4, 3, 3, 2), True),
    Case((1, 2, 11, 14), (3, 2, 3, 3), False, {"strides": [2, 3]}),
    Case((2, 2, 9, 8), (3, 2, 5, 3), True, {"pads": [2, 1, 1, 0]}),
    Case((1, 2, 13, 13), (2, 2, 3, 3), False, {"dilations": [2, 3]}),
    Case((2, 6, 8, 8), (4, 3, 3, 3), True, {"group": 2}),
    Case((1, 5, 9, 9), (5, 1, 3, 3), False, {"group": 5, "pads": [1, 1, 1, 1]}),
    Case((3, 4, 17, 15), (6, 2, 3, 5), True, {"group": 2, "strides": [2, 2], "pads": [1, 2, 1, 2]}),
)


def cases_for(kernel: LabKernel) -> tuple[Case, ...]:
    """Return the test convolutions for `kernel`, smallest first; none if its `only` line excludes all."""
    general: Sequence[Case] = (*_COURSE_CASES, *_CONV_CASES) if kernel.interface == "conv" else _COURSE_CASES
    cases = [case for case in general if not kernel.source.why_not(case.problem)]
    if len(cases) < len(_COURSE_CASES):
        # A file with an `only` line is most likely meant for a layer of the course.
        cases += [case for case in _course_layer_cases() if not kernel.source.why_not(case.problem)]
    return tuple(sorted(cases, key=lambda case: case.problem.operations))


def _course_layer_cases() -> Iterator[Case]:
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
    """The memory after two runs of a kernel: outputs `y` and `again`, in the case's shape or flat.

    `outside` has the first float of a fence that was overwritten, by tensor: its offset from the tensor's
    first float, negative before the tensor. `changed` has the offset of the first changed float, by input.
    """

    y: np.ndarray
    again: np.ndarray
    outside: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)


def fault_of(name: str, case: Case, outcome: Outcome) -> Fault | None:
    """Return the fault that `outcome` shows, or None."""
    for tensor, offset in outcome.outside.items():
        return _outside_fault(name, case, tensor, offset)
    for tensor, offset in outcome.changed.items():
        return Fault(
            "outside",
            f"{name} writes to its input: for {case}, float {offset} of {_TENSOR_NAMES[tensor]} has changed. "
            "Inputs are const; write to y alone.",
            {"case": str(case), "tensor": tensor, "place": offset},
        )
    y = outcome.y.reshape(case.reference.shape)
    again = outcome.again.reshape(case.reference.shape)
    return (
        _unwritten_fault(name, case, y)
        or _wrong_fault(name, case, y, again)
        or _race_fault(name, case, y, again)
    )


def _outside_fault(name: str, case: Case, tensor: str, offset: int) -> Fault:
    count = {"x": case.arrays[0].size, "w": case.arrays[1].size, "y": case.reference.size}.get(tensor, 0)
    where = (
        f"float {offset - count + 1} after its end (it has {count:,})"
        if offset >= count
        else f"float {-offset} before its beginning"
    )
    return Fault(
        "outside",
        f"{name} writes outside of {_TENSOR_NAMES[tensor]}: for {case}, {where} was overwritten. Probably a "
        "thread of the last block, or of the last row, writes although it has no output: compare its indices "
        "with B, M, H_out and W_out first.",
        {"case": str(case), "tensor": tensor, "place": offset},
    )


def _unwritten_fault(name: str, case: Case, y: np.ndarray) -> Fault | None:
    unwritten = np.ascontiguousarray(y, np.float32).view(np.uint32) == _UNWRITTEN_BITS
    if not unwritten.any():
        return None
    first = _first_index(unwritten)
    amount = f"all {y.size:,} outputs" if unwritten.all() else f"{unwritten.sum():,} of {y.size:,} outputs"
    return Fault(
        "unwritten",
        f"{name} leaves {amount} unwritten: for {case}, the first missing output is y{_subscripts(first)}, "
        f"expected {_format_number(case.reference[first])}. Too few blocks or threads are started for these "
        "sizes, or a condition is too strict: check the launch line and every `if`. Outputs that are only "
        "added to (+=) are missing, too: y does not begin with zeros.",
        _fault_detail(case, first, float(case.reference[first]), None, int(unwritten.sum())),
    )


def _wrong_fault(name: str, case: Case, y: np.ndarray, again: np.ndarray) -> Fault | None:
    limit = TOLERANCE * np.maximum(case.magnitude, np.finfo(np.float32).tiny)
    # Negated, because a comparison with NaN is false.
    with np.errstate(invalid="ignore", over="ignore"):
        is_wrong = ~(np.abs(y.astype(np.float64) - case.reference) <= limit)
    if not is_wrong.any():
        return None
    first = _first_index(is_wrong)
    got = float(y[first])
    why = ""
    if np.isnan(got):
        why = (
            " Unwritten memory and the memory around tensors hold NaN: an index is outside of its tensor, "
            "shared memory is read before it is filled, or a __syncthreads() is missing."
        )
    elif _differing_bits(y, again).any():
        why = (
            " A second run with the same input gave other outputs: threads read what others write without a "
            "__syncthreads() between them, several threads write to one address, or a variable is read "
            "before it is set."
        )
    return Fault(
        "wrong",
        f"{name} computes wrong outputs: for {case}, {is_wrong.sum():,} of {y.size:,} outputs are wrong, the "
        f"first is y{_subscripts(first)}: expected {_format_number(case.reference[first])}, "
        f"got {_format_number(got)}.{why}",
        _fault_detail(case, first, float(case.reference[first]), got, int(is_wrong.sum())),
    )


def _race_fault(name: str, case: Case, y: np.ndarray, again: np.ndarray) -> Fault | None:
    differing = _differing_bits(y, again) & ~(
        np.abs(y.astype(np.float64) - again) <= TOLERANCE * np.maximum(case.magnitude, 1e-30)
    )
    if not differing.any():
        return None
    first = _first_index(differing)
    return Fault(
        "race",
        f"two runs of {name} with the same input differ: for {case}, {differing.sum():,} of {y.size:,} "
        f"outputs, the first is y{_subscripts(first)}: expected {_format_number(case.reference[first])}, got "
        f"{_format_number(y[first])}, then {_format_number(again[first])}. The outputs depend on the order "
        "of threads: a __syncthreads() is missing, or two threads write to the same address.",
        _fault_detail(case, first, float(case.reference[first]), float(again[first]), int(differing.sum())),
    )


def _differing_bits(y: np.ndarray, again: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(y).view(np.uint32) != np.ascontiguousarray(again).view(np.uint32)


def _fault_detail(
    case: Case, first: tuple[int, ...], expected: float, got: float | None, count: int
) -> dict[str, Any]:
    finite = None if got is None or not np.isfinite(got) else got
    return {"case": str(case), "index": list(first), "expected": expected, "got": finite, "wrong": count}


def _first_index(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _subscripts(place: tuple[int, ...]) -> str:
    return "".join(f"[{i}]" for i in place)


def _format_number(value: float) -> str:
    return "NaN" if np.isnan(value) else f"{float(value):.6g}"
