"""What is wrong with a kernel, in one paragraph for its author."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

# The process that asks has no need of ONNX, which takes a second to import.
if TYPE_CHECKING:
    from convswap.tutorial.lab.cases import Case

# How far an output may be from the float64 truth, of the sum of the absolute values of its terms: what
# products in TF32 come to. A kernel that leaves out a term, or takes another, is off by more somewhere.
TOLERANCE = 1e-3
# What memory holds that nobody has written yet.
_UNWRITTEN = 0xFFFFFFFF


# What a tensor is to its author, who calls it as he likes.
_WORDS = {"x": "the images", "w": "the filters", "b": "the bias", "y": "y"}


@dataclass(frozen=True)
class Fault:
    """What is wrong: its `kind`, one word, and the paragraph. `detail` has figures for programs.

    The kinds are "compile", "launch", "outside", "unwritten", "wrong", "race", "crash", "time", "output".
    """

    kind: str
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fault with the keys of `convswap lab run --json`."""
        return {"kind": self.kind, "text": self.text, **self.detail}


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
    for tensor, place in outcome.outside.items():
        return _outside(name, case, tensor, place)
    for tensor, place in outcome.changed.items():
        return Fault(
            "outside",
            f"{name} writes to its input: for {case}, float {place} of {_WORDS[tensor]} is not what it was. "
            "Inputs are const; write to y alone.",
            {"case": str(case), "tensor": tensor, "place": place},
        )
    y = outcome.y.reshape(case.truth.shape)
    again = outcome.again.reshape(case.truth.shape)
    return _unwritten(name, case, y) or _wrong(name, case, y, again) or _race(name, case, y, again)


def _outside(name: str, case: Case, tensor: str, place: int) -> Fault:
    count = {"x": case.arrays[0].size, "w": case.arrays[1].size, "y": case.truth.size}.get(tensor, 0)
    where = (
        f"float {place - count + 1} behind its end (it has {count:,})"
        if place >= count
        else f"float {-place} before its beginning"
    )
    return Fault(
        "outside",
        f"{name} writes outside of {_WORDS[tensor]}: for {case}, {where} was overwritten. A thread of the "
        "last block, or of the last row, has nothing to compute and writes all the same: compare its "
        "indices with B, M, H_out and W_out first.",
        {"case": str(case), "tensor": tensor, "place": place},
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
        f"y{_index(first)}, expected {_number(case.truth[first])}. Too few blocks or threads are started for "
        "these sizes, or a condition leaves out too much; see the launch line and what follows an `if`.",
        _numbers(case, first, float(case.truth[first]), None, int(left.sum())),
    )


def _wrong(name: str, case: Case, y: np.ndarray, again: np.ndarray) -> Fault | None:
    limit = TOLERANCE * np.maximum(case.magnitude, np.finfo(np.float32).tiny)
    # NaN is never within a limit.
    with np.errstate(invalid="ignore", over="ignore"):
        off = ~(np.abs(y.astype(np.float64) - case.truth) <= limit)
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
        f"first is y{_index(first)}: expected {_number(case.truth[first])}, got {_number(got)}.{why}",
        _numbers(case, first, float(case.truth[first]), got, int(off.sum())),
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
        f"outputs, the first is y{_index(first)}: expected {_number(case.truth[first])}, got "
        f"{_number(y[first])}, then {_number(again[first])}. What comes out depends on which thread is "
        "first: a __syncthreads() is missing, or two threads write to the same place.",
        _numbers(case, first, float(case.truth[first]), float(again[first]), int(differing.sum())),
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
