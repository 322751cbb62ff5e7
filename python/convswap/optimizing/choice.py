"""The choice between the ways to compute a Conv: the default provider's, swapped, or fused up to a stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from convswap.graph.fusion.fuse import Stage

# A way to compute a Conv: None is the default provider's.
Way = Stage | None
DEFAULT_WAY: Way = None

# The least speedup of a way that is taken, at every batch. Two measurements of the same model differ by that
# much.
MIN_SPEEDUP_AT_A_BATCH = 0.98
# The least mean speedup of a way that is taken; a smaller one may be noise.
MIN_MEAN_SPEEDUP = 1.02
# The least speedup alone of a way that is still tried in the whole model.
MIN_SPEEDUP_TO_TRY = 0.85
# The most that our error may be, as a multiple of the default provider's: in TF32 both sides round the same
# operands but add in different orders. Errors below _EXACT are the rounding of float32 sums.
_MAX_CONV_ERROR_RATIO = 1.05
_EXACT = 1e-6


def speedup(default: Sequence[float], ours: Sequence[float]) -> float:
    """Return the geometric mean over the batches of the speedup of `ours` over `default`."""
    return math.exp(sum(math.log(one / other) for one, other in zip(default, ours, strict=True)) / len(ours))


def fastest(times: Mapping[Way, Sequence[float]], min_speedup: float = MIN_MEAN_SPEEDUP) -> Way:
    """Return the way with the best mean speedup, given the milliseconds of each way at every batch.

    A way that is more than 2 % slower than the default at some batch is not taken. Where none gains, it is
    DEFAULT_WAY.
    """
    default = times[DEFAULT_WAY]
    gains = {
        way: speedup(default, own)
        for way, own in times.items()
        if way is not DEFAULT_WAY
        and all(one / other >= MIN_SPEEDUP_AT_A_BATCH for one, other in zip(default, own, strict=True))
    }
    best = max(gains, key=lambda way: gains[way], default=DEFAULT_WAY)
    return best if best is not DEFAULT_WAY and gains[best] >= min_speedup else DEFAULT_WAY


def best_of_ours(times: Mapping[Way, Sequence[float]]) -> Way:
    """Return the fastest of our ways, whether it gains or not."""
    default = times[DEFAULT_WAY]
    return max((way for way in times if way is not DEFAULT_WAY), key=lambda way: speedup(default, times[way]))


def is_as_accurate(ours: float, default: float) -> bool:
    """Return whether our relative L2 error is no worse than the default provider's, on the same Conv."""
    return ours <= max(_MAX_CONV_ERROR_RATIO * default, _EXACT)
