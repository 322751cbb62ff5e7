"""How close the outputs of a model are to the float64 truth, and to each other.

The errors are over floating-point outputs (whole-number outputs only where a model has no other). With
several outputs, the error of the worst one counts, so that a large output cannot hide a wrong small one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# The largest relative L2 error of the outputs against float64 that counts as the same answer.
TOLERANCES = {"tf32": 2e-3, "ieee": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
# So many images are evaluated in float64, at most.
TRUTH_IMAGES = 100


def relative_l2_error(values: np.ndarray, truth: np.ndarray) -> float:
    """Return ||values - truth|| / ||truth||, both of the same shape.

    Where the truth is infinite or NaN, `values` must be the same, and such elements count no further;
    an element that is finite on one side only makes the error infinite. So does any difference from an
    all-zero truth.
    """
    difference, finite_truth = _finite_difference(values, truth)
    distance = float(np.linalg.norm(difference))
    length = float(np.linalg.norm(finite_truth))
    if length == 0:
        return 0.0 if distance == 0 else float("inf")
    return distance / length


def max_abs_error(values: np.ndarray, truth: np.ndarray) -> float:
    """Return the largest |values - truth|; elements that are not finite count as in `relative_l2_error`."""
    difference, _ = _finite_difference(values, truth)
    return float(np.max(np.abs(difference), initial=0.0))


def worst_output(
    error: Callable[[np.ndarray, np.ndarray], float],
    outputs: Sequence[np.ndarray],
    truth: Sequence[np.ndarray],
) -> float:
    """Return the largest `error` of any output of a model; see the module's text for which outputs count."""
    return max(error(outputs[index], truth[index]) for index in counted_outputs(outputs))


def counted_outputs(outputs: Sequence[np.ndarray]) -> Sequence[int]:
    """Return the places of the outputs of a model that count; see the module's text."""
    floating = [index for index, values in enumerate(outputs) if np.issubdtype(values.dtype, np.floating)]
    return floating or range(len(outputs))


def top1_classes(output: np.ndarray) -> np.ndarray:
    """Return, for each sample along axis 0, the index of its largest value; (n, classes) gives (n,)."""
    samples = output.shape[0] if output.ndim else 1
    if output.size == 0:
        return np.zeros(samples, dtype=np.int64)
    return output.reshape(samples, -1).argmax(axis=1)


def _finite_difference(values: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values, truth = values.astype(np.float64).ravel(), truth.astype(np.float64).ravel()
    both = np.isfinite(values) & np.isfinite(truth)
    same = both | (values == truth) | (np.isnan(values) & np.isnan(truth))
    if not same.all():
        return np.array([np.inf]), truth[np.isfinite(truth)]
    return values[both] - truth[both], truth[both]
