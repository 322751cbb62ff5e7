"""Error metrics of a model's outputs, against the float64 reference and against each other.

A model's error is that of its floating-point outputs, or of its other outputs if none is floating-point. The
error of the worst output counts, so that a large output cannot hide a wrong small one. Integers, booleans and
strings are categories, such as classes or indices: their error is the share of elements that differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Largest relative L2 error against float64 with which outputs count as equal.
TOLERANCES = {"tf32": 2e-3, "ieee": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
# Share of integers, booleans and strings that may differ. In float16 the scores of 21 classes tie in 0.05 %
# of all pixels, and a tie may go to either class. The limit is ten times this share; a wrong Conv changes
# many more.
MAX_DIFFERING_SHARE = 0.005
# Share of the codes of a QuantConv that may differ, by one step, for equal input codes. A number between two
# steps goes to either.
MAX_DIFFERING_CODES = 0.001
# Maximum number of images that are evaluated in float64.
REFERENCE_IMAGES = 100
# Class of a sample whose values do not determine one.
NO_CLASS = -1

# Relative error of the arithmetic alone: one rounding to the 11 significant bits of TF32 and float16 or the 8
# bits of bfloat16; for float32, the rounding of a sum of a thousand products.
ROUNDING = {"tf32": 2.0**-11, "ieee": 2.0**-20, "float16": 2.0**-11, "bfloat16": 2.0**-8}


# The sum of 2 ** 200 squares of values up to 2 ** 400 is below 2 ** 1024, the end of float64's range.
_SAFE_EXPONENT = 400

# The finite elements of values and of their reference, in the same order.
_FinitePair = tuple[np.ndarray, np.ndarray]


class Difference(NamedTuple):
    """The difference between two outputs.

    For floating-point numbers, `relative` is the relative L2 error and `distance` the L2 distance. For other
    types, both are the share of elements that differ. Both are infinite if the shapes differ.
    """

    relative: float
    distance: float


class CodeDifference(NamedTuple):
    """The difference between two arrays of codes: how many differ, of how many, and the largest in steps."""

    differing: int
    total: int
    steps: int

    @property
    def equal(self) -> float:
        """The share of the codes that are equal."""
        return 1.0 - self.differing / self.total if self.total else 1.0

    @property
    def is_rounding(self) -> bool:
        """Whether rounding explains the difference: one step, in at most one code of a thousand."""
        allowed = math.ceil(MAX_DIFFERING_CODES * self.total)
        return self.steps <= 1 and self.differing <= allowed


def code_difference(codes: np.ndarray, others: np.ndarray) -> CodeDifference:
    """Return the difference between arrays of int8 or uint8; every code differs if the shapes do."""
    if codes.shape != others.shape:
        return CodeDifference(max(codes.size, 1), max(codes.size, 1), 255)
    steps = np.abs(codes.astype(np.int64) - others.astype(np.int64))
    return CodeDifference(int(np.count_nonzero(steps)), codes.size, int(steps.max(initial=0)))


NO_DIFFERENCE = Difference(0.0, 0.0)
NOT_COMPARABLE = Difference(math.inf, math.inf)


def difference_between(values: np.ndarray, others: np.ndarray) -> Difference:
    """Return the difference between `values` and `others`, relative to `others`.

    Two empty arrays are equal whatever their shapes: the shape that a loop without iterations collects is
    unspecified.
    """
    if values.size == 0 and others.size == 0:
        return NO_DIFFERENCE
    if values.shape != others.shape:
        return NOT_COMPARABLE
    if values.dtype.kind == "f" and others.dtype.kind == "f":
        pair = _finite_pair(values, others)
        return Difference(_relative_l2_error(pair), _norm(_difference(pair)))
    share = float(np.mean(values != others))
    return Difference(share, share)


def difference_by_name(
    name: str, arrays: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
) -> Difference:
    """Return the difference between the outputs `name` of `arrays` and `others`, relative to `others`.

    The outputs are not comparable if either lacks it.
    """
    if name not in arrays or name not in others:
        return NOT_COMPARABLE
    return difference_between(arrays[name], others[name])


def relative_l2_error(values: np.ndarray, reference: np.ndarray) -> float:
    """Return ||values - reference|| / ||reference|| of two arrays of the same shape.

    Elements that are the same infinity or NaN in both are left out. The error is infinite if any other
    element is not finite, or if the reference is all zero and `values` is not.
    """
    return _relative_l2_error(_finite_pair(values, reference))


def max_abs_error(values: np.ndarray, reference: np.ndarray) -> float:
    """Return max |values - reference|; elements that are not finite count as in `relative_l2_error`."""
    return float(np.max(np.abs(_difference(_finite_pair(values, reference))), initial=0.0))


def worst_output(
    error: Callable[[np.ndarray, np.ndarray], float],
    outputs: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
) -> float:
    """Return the largest `error` of a model's outputs that count, see `counted_outputs`."""
    return max(error(outputs[index], reference[index]) for index in counted_outputs(outputs))


def counted_outputs(outputs: Sequence[np.ndarray]) -> Sequence[int]:
    """Return the indices of the floating-point outputs of a model, or of all outputs if it has none."""
    floating = [index for index, values in enumerate(outputs) if np.issubdtype(values.dtype, np.floating)]
    return floating or range(len(outputs))


def top1_classes(output: np.ndarray) -> np.ndarray:
    """Return, for each sample along axis 0, the index of its largest value; (n, classes) gives (n,).

    The class is `NO_CLASS` if a sample has no values, or if the largest is NaN or infinite.
    """
    samples = output.shape[0] if output.ndim else 1
    if output.size == 0:
        return np.full(samples, NO_CLASS)
    values = output.reshape(samples, -1)
    return np.where(np.isfinite(values.max(axis=1)), values.argmax(axis=1), NO_CLASS)


def has_finite(values: np.ndarray) -> bool:
    """Return whether `values` have a finite element; all integers, booleans and strings are finite."""
    return values.size > 0 and (values.dtype.kind != "f" or bool(np.isfinite(values).any()))


def equal_without_finite(values: np.ndarray, others: np.ndarray) -> bool:
    """Return whether two outputs are equal and neither has a finite element."""
    if has_finite(values) or has_finite(others):
        return False
    return difference_between(values, others) == NO_DIFFERENCE


def comparable_names(
    names: Iterable[str], default: Mapping[str, np.ndarray], convswap: Mapping[str, np.ndarray]
) -> list[str]:
    """Return `names` without the outputs that are equal on both sides and have no finite element."""
    return [
        name
        for name in names
        if not (name in default and name in convswap and equal_without_finite(convswap[name], default[name]))
    ]


def _finite_pair(values: np.ndarray, reference: np.ndarray) -> _FinitePair | None:
    """Return the elements that are finite in both arrays; None if the other elements are not equal."""
    values, reference = values.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    finite = np.isfinite(values) & np.isfinite(reference)
    matching = finite | (values == reference) | (np.isnan(values) & np.isnan(reference))
    return (values[finite], reference[finite]) if matching.all() else None


def _relative_l2_error(pair: _FinitePair | None) -> float:
    if pair is None:
        return math.inf
    # Both arrays are scaled by the same power of two, so that no difference overflows.
    exponent = max(map(_exponent, pair))
    values, reference = (_scaled(array, exponent) for array in pair)
    distance, reference_norm = _norm(values - reference), _norm(reference)
    if reference_norm == 0:
        return 0.0 if distance == 0 else math.inf
    return distance / reference_norm


def _difference(pair: _FinitePair | None) -> np.ndarray:
    if pair is None:
        return np.array([np.inf])
    with np.errstate(over="ignore"):
        difference: np.ndarray = pair[0] - pair[1]
    return difference


def _norm(vector: np.ndarray) -> float:
    """Return the L2 norm of `vector`, whose squares may be too large or too small for a float64."""
    exponent = _exponent(vector)
    try:
        return math.ldexp(float(np.linalg.norm(_scaled(vector, exponent))), exponent)
    except OverflowError:
        return math.inf


def _exponent(vector: np.ndarray) -> int:
    """Return e such that the sum of squares of `vector` / 2 ** e is in float64's range; usually 0."""
    exponent = math.frexp(max(vector.max(initial=0.0), -vector.min(initial=0.0)))[1]
    return exponent if abs(exponent) > _SAFE_EXPONENT else 0


def _scaled(vector: np.ndarray, exponent: int) -> np.ndarray:
    """Return `vector` / 2 ** `exponent`, without a copy if `exponent` is 0."""
    scaled: np.ndarray = np.ldexp(vector, -exponent) if exponent else vector
    return scaled
