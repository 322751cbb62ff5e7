"""A fake of the CUPTI collector, with records of a card that is always busy.

Every `TICK` nanoseconds a call launches a kernel of half a tick, which runs `DELAY` later. A node therefore
has as many kernels as its host time has ticks. The clock has an offset and a drift.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from convswap.profiling import profile
from convswap.profiling.records import KERNEL, MEMCPY, Activity, Call, Records
from convswap.runtime.device import Device

TICK = 20_000
KERNEL_NANOSECONDS = TICK // 2
# Nanoseconds from a kernel's launch to its start.
DELAY = 3 * TICK
OFFSET = 86_400_000_000_000
DRIFT = 2e-4


class PretendCollector:
    """A `records.Collector` of pretended records."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.prepared_for: list[bool | None] = []
        self.warm_up_began = 0
        self._origin = time.time_ns()
        self._begin = 0

    def start(self) -> None:
        self.asked.append("start")
        self._begin = self.now()

    def now(self) -> int:
        passed = time.time_ns() - self._origin
        return self._origin + OFFSET + passed + int(passed * DRIFT)

    def prepare(self, since: int, long_kernels: bool | None = None) -> bool:
        self.asked.append("prepare")
        self.warm_up_began = since
        self.prepared_for.append(long_kernels)
        return True if long_kernels is None else long_kernels

    def stop(self) -> Records:
        self.asked.append("stop")
        calls, activities = [], []
        for number, start in enumerate(range(self._begin, self.now(), TICK), start=1):
            calls.append(Call("cudaLaunchKernel", start, start + TICK // 4, number, thread=1))
            begin = start + DELAY
            activities.append(
                Activity(KERNEL, "_Z4tickPfi", begin, begin + KERNEL_NANOSECONDS, number, stream=7)
            )
        return Records(tuple(activities), tuple(calls))


def copy(direction: str, start: int, end: int, correlation: int) -> Activity:
    """Return a copy with its name in nvprof: "HtoD" or "DtoH"."""
    return Activity(MEMCPY, f"[CUDA memcpy {direction}]", start, end, correlation, stream=7, size=1024)


@contextmanager
def on_pretended_card(collector: PretendCollector | None = None) -> Iterator[Device]:
    """Make `profile` and `study` run on the CPU and record with `collector`; yields the device."""
    device, collector = Device("cpu", "asked for"), collector or PretendCollector()
    with (
        mock.patch.object(profile, "profiled_card", lambda: device),
        mock.patch.object(profile, "connect", lambda: collector),
    ):
        yield device
