"""How two sides are timed, so that the difference is theirs.

The method, the same for a whole network and for one layer: each side's first run is kept apart, since it
includes planning; warm-ups follow; then the sides take turns, 20 timed and synchronised runs each, so that a
change of clock or load meets both. Inputs and outputs are already on the device. On a GPU a run below 100 us
is mostly the host's time to start it, so there each timed run is a burst of back-to-back runs with a single
synchronisation, on all sides alike, and its time is divided by their number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

WARM_UPS = 3
RUNS = 20
SHORT_RUN_SECONDS = 100e-6
BURST_SECONDS = 2e-3
BURST_RUNS = (10, 500)
# What all bursts of all sides may take together, where a short run's burst would be a long one's minutes.
BURST_BUDGET_SECONDS = 3.0
# 20 runs of a side that takes longer than this would keep a user waiting for minutes.
SLOW_RUN_SECONDS = 4.0
SLOW_BUDGET_SECONDS = 40.0


class Runner(Protocol):
    """One side, ready to run: inputs bound, outputs on the device."""

    def once(self) -> None:
        """Run and wait for the result."""

    def burst(self, runs: int) -> None:
        """Start `runs` runs back to back, then wait for all."""


@dataclass(frozen=True)
class Times:
    """Times of one side in milliseconds: of `runs` timed runs, and of the first run of all.

    `burst` is how many back-to-back runs each timed run averages over; 1 means each was synchronised.
    """

    median: float
    p95: float
    first: float
    runs: int
    burst: int = 1

    def to_json(self) -> dict[str, float | int]:
        """Return what the JSON of `compare` says about a side's time."""
        return {"median": self.median, "p95": self.p95, "first": self.first, "runs": self.runs}


def measure(
    sides: Sequence[Runner], *, bursts: bool = False, clock: Callable[[], float] = time.perf_counter
) -> list[Times]:
    """Time `sides`, alternating; return their times in the same order.

    `bursts` allows bursts for short runs: for devices whose work the host starts without waiting for it. They
    are shorter where the other sides are so slow that all would take more than `BURST_BUDGET_SECONDS`.
    A side slower than `SLOW_RUN_SECONDS` gets fewer runs, never below 3; `Times.runs` says how many.
    `clock` returns seconds.
    """
    first = [_elapsed(side.once, clock) for side in sides]
    slow = max(first) > SLOW_RUN_SECONDS
    once = [partial(_elapsed, side.once, clock) for side in sides]
    warm = [min(times) for times in in_turn(once, 1 if slow else WARM_UPS)]
    burst = _burst_length(warm) if bursts else 1
    runs = timed_runs(max(warm))
    bursts_of = [partial(_elapsed, partial(side.burst, burst), clock) for side in sides]
    samples = in_turn(bursts_of if burst > 1 else once, runs)
    return [_times(side, start, burst) for side, start in zip(samples, first, strict=True)]


def _elapsed(run: Callable[[], None], clock: Callable[[], float]) -> float:
    start = clock()
    run()
    return clock() - start


def in_turn(samples: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Return what each of `samples` gave in so many rounds, in which they take turns.

    A change of clock or load meets them all.
    """
    times: list[list[float]] = [[] for _ in samples]
    for _ in range(rounds):
        for sample, own in zip(samples, times, strict=True):
            own.append(sample())
    return times


def _burst_length(warm: Sequence[float]) -> int:
    """Return how many runs make a burst, given the seconds that a run of each side takes."""
    shortest = min(warm)
    if shortest >= SHORT_RUN_SECONDS:
        return 1
    fewest, most = BURST_RUNS
    wanted = min(max(math.ceil(BURST_SECONDS / max(shortest, 1e-9)), fewest), most)
    affordable = int(BURST_BUDGET_SECONDS / (RUNS * max(sum(warm), 1e-9)))
    return max(1, min(wanted, affordable))


def timed_runs(seconds: float) -> int:
    """Return how many runs to time where the slowest side takes so many seconds."""
    if seconds <= SLOW_RUN_SECONDS:
        return RUNS
    return max(3, min(RUNS, int(SLOW_BUDGET_SECONDS / seconds)))


def _times(samples: Sequence[float], first: float, burst: int) -> Times:
    milliseconds = np.array(samples) * 1e3 / burst
    return Times(
        median=float(np.median(milliseconds)),
        p95=float(np.percentile(milliseconds, 95)),
        first=first * 1e3,
        runs=len(samples),
        burst=burst,
    )
