"""Least squares for the coefficients of the planner's estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from convswap import _native

Vector = NDArray[np.float64]

_STEP = 1e-4
_ITERATIONS = 40
# Residuals beyond this count linearly (Huber's loss), so that a few odd times do not decide.
_LINEAR_FROM = 0.2
# Factors stay between exp(-_FARTHEST) and exp(_FARTHEST).
_FARTHEST = 4.0
# The fit ends when an iteration improves the loss by less than this share.
_ENOUGH = 1e-5


class EstimatedTimes:
    """The times of some of an algorithm's tilings on a problem, and their estimates.

    The algorithm's fastest tiling has weight 1 in a fit, others less: near the fastest, errors of estimates
    change choices. `tilings` are names of `_native.alternatives`; `index` or `compute_capability` selects the
    card, as there.
    """

    def __init__(
        self,
        problem: _native.Problem,
        algorithm: str,
        tilings: Sequence[str],
        milliseconds: Sequence[float],
        *,
        index: int = 0,
        compute_capability: int = 0,
    ) -> None:
        """Prepare the estimates."""
        self.algorithm = algorithm
        card = {"index": index, "compute_capability": compute_capability}
        self._estimates = _native.Estimates(problem, algorithm, tilings, **card)
        times = np.array(milliseconds)
        self._logs, self._weights = np.log(times), np.sqrt(times.min() / times)

    def estimates(self, costs: Sequence[float]) -> list[float | None]:
        """Return the estimated milliseconds of each tiling; None if the library does not have the tiling."""
        return self._estimates.milliseconds(costs)

    def residuals(self, costs: Sequence[float]) -> Vector:
        """Return the weighted logarithms of times over estimates."""
        estimates = np.array([np.nan if each is None else each for each in self.estimates(costs)])
        residuals: Vector = self._weights * (self._logs - np.log(estimates))
        return residuals[np.isfinite(residuals)]


def residuals_of(times: Sequence[EstimatedTimes], costs: Sequence[float]) -> Vector:
    """Return the weighted logarithms of times over estimates."""
    return np.concatenate([each.residuals(costs) for each in times])


def root_mean_square(values: Vector) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


def fitted_factors(residuals: Callable[[Vector], Vector], count: int, ridge: float) -> Vector:
    """Return the factors of `count` coefficients with the least loss, by the Levenberg-Marquardt method.

    The loss is the sum of Huber's loss of the residuals, and `ridge` / 2 times the sum of the squared
    logarithms of the factors, which keeps a factor at 1 if the residuals do not depend on it.

    Args:
        residuals: returns the residuals, logarithms of relative errors, for factors.
        count: the number of factors.
        ridge: the weight of the logarithms.
    """
    logs = np.zeros(count)
    found = residuals(np.exp(logs))
    loss = _loss(found, logs, ridge)
    damping = 1e-3
    for _ in range(_ITERATIONS):
        slopes = np.empty((len(found), count))
        for index in range(count):
            moved = logs.copy()
            moved[index] += _STEP
            slopes[:, index] = (residuals(np.exp(moved)) - found) / _STEP
        weights = _LINEAR_FROM / np.maximum(np.abs(found), _LINEAR_FROM)
        normal = slopes.T @ (weights[:, None] * slopes) + ridge * np.eye(count)
        gradient = slopes.T @ (weights * found) + ridge * logs
        improved = False
        while damping < 1e6 and not improved:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            tried = np.clip(logs + np.clip(step, -1, 1), -_FARTHEST, _FARTHEST)
            new = residuals(np.exp(tried))
            new_loss = _loss(new, tried, ridge)
            improved = new_loss < loss
            damping *= 0.3 if improved else 5
        if not improved:
            break
        gain = (loss - new_loss) / loss
        logs, found, loss = tried, new, new_loss
        if gain < _ENOUGH:
            break
    return np.exp(logs)


def _loss(residuals: Vector, logs: Vector, ridge: float) -> float:
    sizes = np.abs(residuals)
    huber = np.where(sizes <= _LINEAR_FROM, sizes**2 / 2, _LINEAR_FROM * (sizes - _LINEAR_FROM / 2))
    return float(huber.sum() + ridge * (logs**2).sum() / 2)
