"""Which way a Conv is computed: the default provider's, swapped, or fused up to a stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from convswap.graph.fusion.fuse import Stage

# A way to compute a Conv: None is the default provider's.
Way = Stage | None
DEFAULT_WAY: Way = None

# At no batch may what is taken be slower than this share of the default's speed, which is within the noise of
# two measurements of the same.
LEAST_SPEEDUP = 0.98
# What a Conv must gain, so that it is more than noise.
LEAST_GAIN = 1.02
# What may lose so much alone is tried in the whole model all the same.
LEAST_TO_TRY = 0.85
# In TF32 both sides lose the same bits, but not in the same order. Below the second both are exact to what
# float32 sums lose.
_MOST_OF_DEFAULT_ERROR = 1.05
_EXACT = 1e-6


def speedup(default: Sequence[float], ours: Sequence[float]) -> float:
    """Return how many times as fast as `default` ours is: the geometric mean over the batches."""
    return math.exp(sum(math.log(one / other) for one, other in zip(default, ours, strict=True)) / len(ours))


def fastest(times: Mapping[Way, Sequence[float]], least_gain: float = LEAST_GAIN) -> Way:
    """Return the way to take, given the milliseconds of each at every batch.

    It is the best in the geometric mean of those that gain, and lose at no batch.
    """
    default = times[DEFAULT_WAY]
    gains = {
        way: speedup(default, own)
        for way, own in times.items()
        if way is not DEFAULT_WAY
        and all(one / other >= LEAST_SPEEDUP for one, other in zip(default, own, strict=True))
    }
    best = max(gains, key=lambda way: gains[way], default=DEFAULT_WAY)
    return best if best is not DEFAULT_WAY and gains[best] >= least_gain else DEFAULT_WAY


def best_of_ours(times: Mapping[Way, Sequence[float]]) -> Way:
    """Return the fastest of our ways, whether it gains or not."""
    default = times[DEFAULT_WAY]
    return max((way for way in times if way is not DEFAULT_WAY), key=lambda way: speedup(default, times[way]))


def is_as_accurate(ours: float, default: float) -> bool:
    """Return whether our relative L2 error is no worse than the default provider's, on the same Conv."""
    return ours <= max(_MOST_OF_DEFAULT_ERROR * default, _EXACT)
