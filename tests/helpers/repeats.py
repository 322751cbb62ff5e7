"""Reduces repetitions in tests under tools that slow them down or take memory for each launch.

`tools/sanitize_cuda.py` sets CONVSWAP_TEST_SHARE for racecheck and synccheck, which check shared memory and
barriers within a block: more blocks or runs of the same kernels add nothing. It also sets the variable for
memcheck of tests in which several threads launch, which take minutes. `tools/sanitize.sh` sets it for all
tests.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")
SHARE = "CONVSWAP_TEST_SHARE"


def repeats(count: int, minimum: int = 1) -> int:
    """Return `count`, reduced by the factor CONVSWAP_TEST_SHARE to `minimum` or more."""
    return max(min(count, minimum), math.ceil(count * float(os.environ.get(SHARE, "1"))))


def sample_of(items: Iterable[Item]) -> list[Item]:
    """Return `repeats(len(items))` of the items, evenly spread, including the last."""
    sequence = list(items)
    count = repeats(len(sequence))
    return [sequence[(i + 1) * len(sequence) // count - 1] for i in range(count)]


def time_fewer_runs() -> None:
    """Reduce the timed runs of comparisons and benches by `repeats`."""
    # Imported here, because some environments of tests lack the imports of this module.
    from convswap.timing import sampler

    sampler.WARM_UPS = repeats(sampler.WARM_UPS)
    for rule in (sampler.SINGLE_RUNS, sampler.SINGLE_RUNS_ON_CARD, sampler.BACK_TO_BACK):
        # The rules are frozen, and other modules hold them by name.
        object.__setattr__(rule, "samples", repeats(rule.samples, minimum=3))  # reports need three runs
        object.__setattr__(rule, "max_burst", repeats(rule.max_burst))
