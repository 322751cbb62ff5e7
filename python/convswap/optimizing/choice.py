"""The choice between the variants of a Conv: the default provider's, swapped, or fused up to a stage."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from convswap.graph.fusion.fuse import Stage

# A variant of a Conv. None is the default provider's; a stage is convswap's, fused up to that stage.
Variant = Stage | None
DEFAULT_VARIANT: Variant = None

# The minimum speedup of a selected variant at every batch. Two measurements of the same model differ by as
# much.
MIN_SPEEDUP_AT_A_BATCH = 0.98
# The minimum mean speedup of a selected variant. A smaller speedup may be noise.
MIN_MEAN_SPEEDUP = 1.02
# A variant with at least this speedup over another is still tried in the whole model. Its time is at most
# 1 / 0.85 = 1.18 times the other's.
MIN_SPEEDUP_TO_TRY = 0.85
# The maximum ratio of convswap's error on a Conv to the default provider's. In TF32 both round the same
# operands, but add in different orders. Errors below _EXACT are the rounding of float32 sums.
_MAX_CONV_ERROR_RATIO = 1.05
_EXACT = 1e-6


def speedup(baseline: Sequence[float], times: Sequence[float]) -> float:
    """Return the geometric mean over the batches of the speedup of `times` over `baseline`."""
    return math.exp(sum(map(math.log, _speedups(baseline, times))) / len(times))


def _speedups(baseline: Sequence[float], times: Sequence[float]) -> list[float]:
    return [before / after for before, after in zip(baseline, times, strict=True)]


def reaches_speedup(baseline: Sequence[float], times: Sequence[float], min_speedup: float) -> bool:
    """Return whether `times` have at least `min_speedup` over `baseline` at every batch."""
    return all(ratio >= min_speedup for ratio in _speedups(baseline, times))


def select_variant(times: Mapping[Variant, Sequence[float]]) -> Variant:
    """Return the variant with the best mean speedup, given the milliseconds of each at every batch.

    Variants that are more than 2 % slower than the default at some batch are left out. If none reaches
    MIN_MEAN_SPEEDUP, the result is DEFAULT_VARIANT.
    """
    default = times[DEFAULT_VARIANT]
    speedups = {
        variant: speedup(default, variant_times)
        for variant, variant_times in times.items()
        if variant is not DEFAULT_VARIANT and reaches_speedup(default, variant_times, MIN_SPEEDUP_AT_A_BATCH)
    }
    best = max(speedups, key=lambda variant: speedups[variant], default=DEFAULT_VARIANT)
    return best if best is not DEFAULT_VARIANT and speedups[best] >= MIN_MEAN_SPEEDUP else DEFAULT_VARIANT


def fastest_convswap_variant(times: Mapping[Variant, Sequence[float]]) -> Variant:
    """Return the fastest variant other than the default, even if it is slower than the default."""
    default = times[DEFAULT_VARIANT]
    return max(
        (variant for variant in times if variant is not DEFAULT_VARIANT),
        key=lambda variant: speedup(default, times[variant]),
    )


def is_as_accurate(error: float, default_error: float) -> bool:
    """Return whether convswap's relative L2 error on a Conv is at most 5 % worse than the default provider's.

    Errors up to 1e-6 are always accurate enough.
    """
    return error <= max(_MAX_CONV_ERROR_RATIO * default_error, _EXACT)
