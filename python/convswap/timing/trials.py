"""How several ways to compute the same are timed so that the fastest is found, and the slow cost little.

Each is warmed up; then they take turns, 20 timed samples each, so that a change of clock or load meets all,
and the median counts. A sample of a short run is the mean of a burst of runs. One that is clearly slower than
the best after a few samples leaves the race with what was measured until then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from convswap.output.tables import milliseconds, set_caption

RUNS = 20
# After so many samples each, the race ends when its time is over, and drops what is so many times slower.
FEW_RUNS = 3
CLEARLY_SLOWER = 5.0
SECONDS = 30.0
# A first run that takes longer than this does so by itself, and not because it included the planning; so many
# times slower than the best, it is the last.
LONG_RUN_MS = 100.0
HOPELESS = 20.0
BURST_MS = 2.0
MOST_BURST_RUNS = 200

# Runs so many times back to back and returns the mean milliseconds of one.
Sample = Callable[[int], float]


@dataclass(frozen=True)
class Trial:
    """The median milliseconds of a run, over `runs` samples; `stopped_early` if it was clearly slower."""

    median: float
    runs: int
    stopped_early: bool = False

    def to_json(self) -> dict[str, float | int | bool]:
        """Return what the JSON of `tune` and `bench` says of an algorithm's time."""
        return {"median_ms": self.median, "runs": self.runs, "stopped_early": self.stopped_early}


def race(
    samples: Mapping[str, Sample],
    *,
    runs: int = RUNS,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Trial]:
    """Time `samples`, alternating, `runs` times each; return a trial for each, in the same order.

    No sample begins once `seconds` by `clock` are over, but for the first `FEW_RUNS` of those that are not
    clearly slower.
    """
    end = clock() + seconds
    warm: dict[str, float] = {}
    for name, sample in samples.items():
        warm[name] = _warm_up(sample, hopeless=HOPELESS * min(warm.values(), default=math.inf))
    best = min(warm.values())
    hopeless = {name for name, ms in warm.items() if ms > max(HOPELESS * best, LONG_RUN_MS)}
    racing = [name for name in samples if name not in hopeless]
    bursts = {name: _burst_length(warm[name]) for name in racing}
    times: dict[str, list[float]] = {name: [] for name in racing}
    stopped = set(hopeless)
    for number in range(1, runs + 1):
        for name in racing:
            times[name].append(samples[name](bursts[name]))
        if number < FEW_RUNS:
            continue
        limit = CLEARLY_SLOWER * min(min(times[name]) for name in racing)
        stopped |= {name for name in racing if min(times[name]) > limit}
        racing = [name for name in racing if name not in stopped]
        if clock() > end:
            break
    return {
        name: Trial(
            median=float(np.median(times.get(name) or [warm[name]])),
            runs=len(times.get(name) or [warm[name]]),
            stopped_early=name in stopped,
        )
        for name in samples
    }


def _warm_up(sample: Sample, hopeless: float) -> float:
    """Return the milliseconds of a run that plans nothing any more, or of one too long for that to matter."""
    first = sample(1)
    return first if first > max(hopeless, LONG_RUN_MS) else sample(1)


def _burst_length(milliseconds: float) -> int:
    """Return how many runs of so many milliseconds make a sample."""
    return min(max(math.ceil(BURST_MS / max(milliseconds, 1e-6)), 1), MOST_BURST_RUNS)


def trial_lines(trials: Mapping[str, Trial]) -> list[str]:
    """Return the name and the time of each, fastest first; a star says that it was stopped early."""
    fastest_first = sorted(trials.items(), key=lambda item: item[1].median)
    return [
        f"{name} {milliseconds(trial.median)}{'*' if trial.stopped_early else ''}"
        for name, trial in fastest_first
    ]


def explain_stars(table: Table, trials: Iterable[Mapping[str, Trial]]) -> None:
    """Say under a table with `trial_lines` what its stars mean, where there are any."""
    if any(trial.stopped_early for of_one in trials for trial in of_one.values()):
        set_caption(table, "* clearly slower after a few runs, and not measured further")
