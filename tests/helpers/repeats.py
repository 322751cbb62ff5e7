"""How much of the same a test computes: less under tools that slow it down or take memory for each launch.

`tools/sanitize_cuda.py` sets CONVSWAP_TEST_SHARE for racecheck and synccheck, which look at what the threads
of one block do to its shared memory and barriers: more blocks or runs of the same kernels tell them nothing
more. So it does for memcheck where several threads launch, over which that one takes minutes, and
`tools/sanitize.sh` for everything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")
SHARE = "CONVSWAP_TEST_SHARE"


def repeats(count: int, least: int = 1) -> int:
    """Return `count`, or as much of it as CONVSWAP_TEST_SHARE says, from `least` on."""
    return max(min(count, least), math.ceil(count * float(os.environ.get(SHARE, "1"))))


def some_of(items: Iterable[Item]) -> list[Item]:
    """Return the items, or as many as `repeats` says, spread evenly over them, the last among them."""
    every = list(items)
    count = repeats(len(every))
    return [every[(i + 1) * len(every) // count - 1] for i in range(count)]


def time_fewer_runs() -> None:
    """Have comparisons and benches time fewer runs, too: as many as `repeats` says."""
    # Not above: what they import is not everywhere where tests are.
    from convswap.timing import sampler

    sampler.WARM_UPS = repeats(sampler.WARM_UPS)
    for rule in (sampler.SINGLE_RUNS, sampler.SINGLE_RUNS_ON_CARD, sampler.BACK_TO_BACK):
        # The rules are frozen, and other modules hold them by name.
        object.__setattr__(rule, "samples", repeats(rule.samples, least=3))  # of fewer there is no report
        object.__setattr__(rule, "max_burst", repeats(rule.max_burst))
