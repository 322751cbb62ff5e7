"""Relates the clock of a collector to the system's clocks, so that records of both can be set side by side.

The clocks may have any offset, and run apart by hundreds of parts in a million while the system's is being
corrected. So both are read at many moments, and what lies between two of them is interpolated.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

Clock = Callable[[], int]

# Of so many readings the one counts during which the least time passed.
_TRIES = 5


class ClockMap:
    """Pairs of readings of a system clock, `system`, and of a collector's clock, `other`, in nanoseconds."""

    def __init__(self, system: Clock, other: Clock) -> None:
        self._system = system
        self._other = other
        self._pairs: list[tuple[int, int]] = []

    def sample(self) -> None:
        """Read both clocks."""
        readings = []
        for _ in range(_TRIES):
            before, other, after = self._system(), self._other(), self._system()
            readings.append((after - before, (before + after) // 2, other))
        _, system, other = min(readings)
        self._pairs.append((system, other))

    def to_other(self, system: int) -> int:
        """Return when it was `system`, by the other clock; outside the samples by the offset of the nearest.

        Raises:
            ValueError: nothing was sampled.
        """
        if not self._pairs:
            raise ValueError("no moment was sampled")
        # Differences to the first sample: a time since 1970 in nanoseconds does not fit into a float64.
        system_base, other_base = self._pairs[0]
        systems = [float(pair[0] - system_base) for pair in self._pairs]
        offsets = [float((pair[1] - other_base) - (pair[0] - system_base)) for pair in self._pairs]
        since = system - system_base
        return other_base + since + round(float(np.interp(since, systems, offsets)))


class SystemClocks:
    """Finds which system clock a program read between the creation of this object and `which`."""

    # ONNX Runtime's is std::chrono::high_resolution_clock: the first with libstdc++, the second elsewhere.
    CLOCKS: tuple[Clock, ...] = (time.time_ns, time.monotonic_ns)

    def __init__(self) -> None:
        self._begin = [clock() for clock in self.CLOCKS]

    def which(self, reading: int) -> Clock | None:
        """Return the clock that showed `reading` since this object was made; None where none did."""
        for clock, begin in zip(self.CLOCKS, self._begin, strict=True):
            if begin <= reading <= clock():
                return clock
        return None
