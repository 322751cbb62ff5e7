"""How close the outputs of a model are to the float64 reference, and to each other.

A model's error is over its floating-point outputs, and over integer outputs only where it has no others. With
several outputs the worst one counts, so that a large output cannot hide a wrong small one. Integers, booleans
and strings are names rather than amounts, a class or an index: their error is the share of elements that
differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

# The largest relative L2 error of the outputs against float64 that counts as the same answer.
TOLERANCES = {"tf32": 2e-3, "ieee": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
# The share of integers, booleans and strings that may differ. In float16 the scores of 21 classes tie in 0.05
# % of all pixels, and a tie goes to either class; this is ten times that. A wrong Conv changes many more.
ELEMENTS_THAT_MAY_DIFFER = 0.005
# The most images that are evaluated in float64.
REFERENCE_IMAGES = 100
# The class of a sample whose values name none.
NO_CLASS = -1

# The relative error that the arithmetic alone explains: one rounding to the 11 or 8 bits of TF32, float16 and
# bfloat16, and for float32 the rounding of a sum of a thousand products.
ROUNDING = {"tf32": 2.0**-11, "ieee": 2.0**-20, "float16": 2.0**-11, "bfloat16": 2.0**-8}


# Of values up to 2 ** 400, 2 ** 200 squares have a sum below 2 ** 1024, where float64 ends.
_SAFE_EXPONENT = 400

# The finite elements of some values and of their reference, in the same order.
_Pair = tuple[np.ndarray, np.ndarray]


class Difference(NamedTuple):
    """How far two outputs are from each other.

    `relative` is the relative L2 error of floating-point numbers, and for other types the share of elements
    that differ. `distance` is the L2 distance, or that share again. Both are infinite where the shapes
    differ.
    """

    relative: float
    distance: float


NO_DIFFERENCE = Difference(0.0, 0.0)
NOT_COMPARABLE = Difference(math.inf, math.inf)


def apart(values: np.ndarray, others: np.ndarray) -> Difference:
    """Return how far `values` are from `others`, which count as the right ones.

    Two arrays without an element are the same: of what a loop collects in no run, nobody knows the shape.
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
    """Return how far what is called `name` is from that of the right answers `others`; both may lack it."""
    if name not in arrays or name not in others:
        return NOT_COMPARABLE
    return apart(arrays[name], others[name])


def relative_l2_error(values: np.ndarray, reference: np.ndarray) -> float:
    """Return ||values - reference|| / ||reference||, both of the same shape.

    Where the reference is infinite or NaN, `values` must be the same, and such elements count no further;
    an element that is finite on one side only makes the error infinite. So does any difference from an
    all-zero reference.
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
    """Return the largest `error` of any output of a model; see the module's text for which outputs count."""
    return max(error(outputs[index], reference[index]) for index in counted_outputs(outputs))


def counted_outputs(outputs: Sequence[np.ndarray]) -> Sequence[int]:
    """Return the places of the outputs of a model that count; see the module's text."""
    floating = [index for index, values in enumerate(outputs) if np.issubdtype(values.dtype, np.floating)]
    return floating or range(len(outputs))


def top1_classes(output: np.ndarray) -> np.ndarray:
    """Return, for each sample along axis 0, the index of its largest value; (n, classes) gives (n,).

    It is `NO_CLASS` where a sample has no value, or its largest is NaN or infinite.
    """
    samples = output.shape[0] if output.ndim else 1
    if output.size == 0:
        return np.full(samples, NO_CLASS)
    values = output.reshape(samples, -1)
    return np.where(np.isfinite(values.max(axis=1)), values.argmax(axis=1), NO_CLASS)


def has_finite(values: np.ndarray) -> bool:
    """Return whether `values` have an element that is no infinity and no NaN."""
    return values.size > 0 and (values.dtype.kind != "f" or bool(np.isfinite(values).any()))


def are_alike_without_finite(values: np.ndarray, others: np.ndarray) -> bool:
    """Return whether two answers differ in nothing because neither has a finite element."""
    return not (has_finite(values) or has_finite(others)) and apart(values, others) == NO_DIFFERENCE


def comparable_names(
    names: Iterable[str], default: Mapping[str, np.ndarray], ours: Mapping[str, np.ndarray]
) -> list[str]:
    """Return those of `names` but for what both answers have, alike and without a finite element."""
    return [
        name
        for name in names
        if not (name in default and name in ours and are_alike_without_finite(ours[name], default[name]))
    ]


def _finite_pair(values: np.ndarray, reference: np.ndarray) -> _Pair | None:
    """Return the elements that are finite in both arrays; None where the others are not the same in both."""
    values, reference = values.astype(np.float64).ravel(), reference.astype(np.float64).ravel()
    both = np.isfinite(values) & np.isfinite(reference)
    same = both | (values == reference) | (np.isnan(values) & np.isnan(reference))
    return (values[both], reference[both]) if same.all() else None


def _relative_l2_error(pair: _Pair | None) -> float:
    if pair is None:
        return math.inf
    # Both in one unit, in which no difference overflows.
    exponent = max(map(_exponent, pair))
    values, reference = (_divided(array, exponent) for array in pair)
    distance, length = _norm(values - reference), _norm(reference)
    if length == 0:
        return 0.0 if distance == 0 else math.inf
    return distance / length


def _difference(pair: _Pair | None) -> np.ndarray:
    if pair is None:
        return np.array([np.inf])
    with np.errstate(over="ignore"):
        difference: np.ndarray = pair[0] - pair[1]
    return difference


def _norm(vector: np.ndarray) -> float:
    """Return the L2 norm of `vector`, whose squares may be too large or too small for a float64."""
    exponent = _exponent(vector)
    try:
        return math.ldexp(float(np.linalg.norm(_divided(vector, exponent))), exponent)
    except OverflowError:
        return math.inf


def _exponent(vector: np.ndarray) -> int:
    """Return e where `vector` / 2 ** e has squares whose sum is in the range of float64; 0 if it has too."""
    exponent = math.frexp(max(vector.max(initial=0.0), -vector.min(initial=0.0)))[1]
    return exponent if abs(exponent) > _SAFE_EXPONENT else 0


def _divided(vector: np.ndarray, exponent: int) -> np.ndarray:
    """Return `vector` / 2 ** `exponent`; `vector` itself where that is 1, since outputs are large."""
    scaled: np.ndarray = np.ldexp(vector, -exponent) if exponent else vector
    return scaled
