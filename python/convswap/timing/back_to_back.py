"""How short runs are timed: 200 of a side back to back, then those of the next side, five times in turn.

The time is the card's own, by events, or that of the clock: on the CPU, and where the host's time belongs to
it. A side whose runs are long makes fewer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np

from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.measure import in_turn
from convswap.timing.trials import Sample

ROUNDS = 5
RUNS = 200
# What one side's runs of a round may take together.
ROUND_MS = 200.0
# The first plans, the second may still allocate.
WARM_UPS = 3


class Startable(Protocol):
    """Something that can be run over and over without waiting for the result."""

    def start(self, runs: int) -> None:
        """Start `runs` runs back to back."""

    def wait(self) -> None:
        """Wait for all runs that were started."""


def session_sample(run: Startable, timer: GpuTimer | None) -> Sample:
    """Return what times so many runs of `run`: by `timer`, whose stream it is on, or by the clock."""

    def sample(runs: int) -> float:
        if timer is not None:
            return timer.milliseconds(lambda: run.start(runs)) / runs
        begin = time.perf_counter()
        run.start(runs)
        run.wait()
        return (time.perf_counter() - begin) * 1e3 / runs

    return sample


def back_to_back(samples: Sequence[Sample], *, round_ms: float = ROUND_MS) -> list[float]:
    """Return the median milliseconds of a run of each, in the same order.

    `round_ms` is what one side's runs of a round may take together.
    """
    lengths = [_runs(min(sample(1) for _ in range(WARM_UPS)), round_ms) for sample in samples]
    rounds = [partial(sample, length) for sample, length in zip(samples, lengths, strict=True)]
    return [float(np.median(own)) for own in in_turn(rounds, ROUNDS)]


def _runs(milliseconds: float, round_ms: float) -> int:
    """Return how many runs of so many milliseconds are timed together."""
    return max(1, min(RUNS, int(round_ms / max(milliseconds, 1e-6))))
