"""Time several ways to compute the same thing, in turn, with one stopping rule.

Times are sampled in rounds. In each round every side gives one sample: the mean time of a burst of runs that
are started back to back and waited for once. The sides take turns, so a change of clock rate or load meets
all of them. The first run of a side includes planning and is kept apart. Warm-up runs follow, and the
shortest one decides how many runs a burst has. Medians and 95th percentiles are those of the samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from convswap.runtime.device import Device
from convswap.timing.gpu_timer import GpuTimer

# Takes a number of runs, runs them back to back, and returns the mean milliseconds of a run.
Sample = Callable[[int], float]
Side = TypeVar("Side", bound=Hashable)

WARM_UPS = 3
# The warm-up ends after this time, but not before one run of each side.
WARM_UP_SECONDS = 4.0
# Every side that is not dropped gives at least so many samples.
MIN_SAMPLES = 3
# A first run below this may be long because it includes the planning.
LONG_RUN_MS = 100.0


@dataclass(frozen=True)
class StoppingRule:
    """Lengths of bursts, and when to stop sampling.

    Attributes:
        samples: how many samples each side gives.
        seconds: no round begins later than this after the warm-up, except for the first `MIN_SAMPLES`.
        burst_ms: how long a burst should take; a longer run is a burst of its own.
        max_burst: the most runs in a burst.
        burst_below_ms: every burst is a single run if no side's run is shorter than this.
        drop_slower: a side whose best sample is so many times slower than the best of all is dropped after
            `MIN_SAMPLES`.
        drop_first: so is a side after its first run, if that is also longer than `LONG_RUN_MS`.
    """

    samples: int
    seconds: float
    burst_ms: float
    max_burst: int
    burst_below_ms: float = math.inf
    drop_slower: float = math.inf
    drop_first: float = math.inf


# Whole runs as a user sees them, each waited for.
SINGLE_RUNS = StoppingRule(samples=20, seconds=40, burst_ms=0, max_burst=1)
# The same on a card. The host takes some 100 us to start a run there, so shorter runs are timed in bursts.
SINGLE_RUNS_ON_CARD = StoppingRule(samples=20, seconds=40, burst_ms=2, max_burst=500, burst_below_ms=0.1)
# Runs in a stream of others, for the time of one node.
BACK_TO_BACK = StoppingRule(samples=5, seconds=60, burst_ms=200, max_burst=200)
# Many algorithms of which the fastest is wanted.
FIND_FASTEST = StoppingRule(samples=20, seconds=30, burst_ms=2, max_burst=200, drop_slower=5, drop_first=20)


@dataclass(frozen=True)
class Times:
    """Milliseconds of one side's run: median and 95th percentile of the samples, and the first run of all.

    `runs` counts the samples, `burst` the runs in each. `stopped_early` marks a side that was dropped.
    """

    median: float
    p95: float
    first: float
    runs: int
    burst: int = 1
    stopped_early: bool = False

    def to_json(self) -> dict[str, float | int]:
        """Return what the JSON of `compare` says about a side's time."""
        return {"median": self.median, "p95": self.p95, "first": self.first, "runs": self.runs}


class Startable(Protocol):
    """Something that can be run over and over without waiting for the result."""

    def start(self, runs: int) -> None:
        """Start `runs` runs back to back."""

    def wait(self) -> None:
        """Wait for all runs that were started."""


def single_runs(device: Device) -> StoppingRule:
    """Return the rule for whole runs on `device`."""
    return SINGLE_RUNS_ON_CARD if device.name == "cuda" else SINGLE_RUNS


def sample_of(run: Startable, timer: GpuTimer | None = None) -> Sample:
    """Return a sample of `run`: by `timer`, on whose stream it runs, or else by the host's clock."""

    def sample(runs: int) -> float:
        if timer is not None:
            return timer.milliseconds(lambda: run.start(runs)) / runs
        begin = time.perf_counter()
        run.start(runs)
        run.wait()
        return (time.perf_counter() - begin) * 1e3 / runs

    return sample


def measure(
    sides: Mapping[Side, Sample], rule: StoppingRule, clock: Callable[[], float] = time.monotonic
) -> dict[Side, Times]:
    """Time `sides` in turn until `rule` ends it, and return the times in the same order.

    `clock` returns seconds.
    """
    first: dict[Side, float] = {}
    racing: list[Side] = []
    for side, sample in sides.items():
        first[side] = sample(1)
        if first[side] <= max(LONG_RUN_MS, rule.drop_first * min(first.values())):
            racing.append(side)
    warm = _warm_up({side: sides[side] for side in racing}, clock)
    bursts = _bursts(warm, rule)
    samples: dict[Side, list[float]] = {side: [] for side in racing}
    end = clock() + rule.seconds
    for taken in range(rule.samples):
        if taken >= MIN_SAMPLES and clock() > end:
            break
        for side in racing:
            samples[side].append(sides[side](bursts[side]))
        if taken + 1 >= MIN_SAMPLES:
            limit = rule.drop_slower * min(min(samples[side]) for side in racing)
            racing = [side for side in racing if min(samples[side]) <= limit]
    return {
        side: _times(samples.get(side) or [first[side]], first[side], bursts.get(side, 1), side not in racing)
        for side in sides
    }


def _warm_up(sides: Mapping[Side, Sample], clock: Callable[[], float]) -> dict[Side, float]:
    """Return the milliseconds of the shortest warm-up run of each side."""
    end = clock() + WARM_UP_SECONDS
    warm = dict.fromkeys(sides, math.inf)
    for taken in range(WARM_UPS):
        if taken and clock() > end:
            break
        for side, sample in sides.items():
            warm[side] = min(warm[side], sample(1))
    return warm


def _bursts(warm: Mapping[Side, float], rule: StoppingRule) -> dict[Side, int]:
    """Return how many runs make a burst of each side, given the milliseconds of a run."""
    if min(warm.values()) >= rule.burst_below_ms:
        return dict.fromkeys(warm, 1)
    return {
        side: max(1, min(rule.max_burst, math.ceil(rule.burst_ms / max(milliseconds, 1e-6))))
        for side, milliseconds in warm.items()
    }


def _times(samples: Sequence[float], first: float, burst: int, stopped_early: bool) -> Times:
    return Times(
        median=float(np.median(samples)),
        p95=float(np.percentile(samples, 95)),
        first=first,
        runs=len(samples),
        burst=burst,
        stopped_early=stopped_early,
    )
