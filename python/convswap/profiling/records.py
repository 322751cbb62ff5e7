"""What a profiler records: work of the card, API calls of the host, runs of ONNX nodes, windows of time.

All times are whole nanoseconds by the clock of the collector that recorded them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

KERNEL, COPY, SET = "kernel", "memcpy", "memset"
# Phases of a session: its creation with its first run, the runs after it that nobody times, the timed runs.
SET_UP, WARM_UP, RUN = "set-up", "warm-up", "run"


@dataclass(frozen=True, slots=True)
class Activity:
    """Work of the card: a kernel, a copy or a memset.

    `name` is a kernel's name as the compiler wrote it, or what nvprof calls a copy: "[CUDA memcpy HtoD]".
    `correlation` is the number of the API call that started it; `size` is in bytes, 0 for a kernel.
    """

    kind: str
    name: str
    start: int
    end: int
    correlation: int
    stream: int = 0
    size: int = 0

    @property
    def duration(self) -> int:
        """How long the card worked on it, in nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the CUDA runtime or driver by the host thread `thread`."""

    name: str
    start: int
    end: int
    correlation: int
    thread: int = 0

    @property
    def duration(self) -> int:
        """How long the host was in it, in nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Records:
    """All that a collector recorded."""

    activities: tuple[Activity, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of one node, by the host: from before its kernels are launched until after."""

    node: str
    op: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which one side alone was at work, and the card was idle before and after.

    `number` counts the windows of a side and phase from 0.
    """

    side: str
    phase: str
    number: int
    start: int
    end: int


class Collector(Protocol):
    """Records all CUDA work of the process between `start` and `stop`: CUPTI, or what stands for it."""

    def connect(self) -> None:
        """Get ready, before long work begins.

        Raises:
            ConvswapError: it cannot record, because another profiler does, or something is missing.
        """

    def start(self) -> None:
        """Begin to record."""

    def now(self) -> int:
        """Return the time by the clock of the records."""

    def prepare(self, since: int, long_kernels: bool | None = None) -> bool:
        """Make ready for runs of long kernels, or of short ones; nothing may be running on the card.

        None: as those were that ran since the time `since`. Returns which it is.
        """

    def stop(self) -> Records:
        """End the recording and return it. Nothing may be running on the card."""
