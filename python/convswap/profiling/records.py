"""What a profiler records: work of the card, API calls of the host, runs of ONNX nodes, windows of time.

All times are whole nanoseconds by the clock of the collector that recorded them.

The card works later than the host starts it, so its own times tell nothing of nodes. But each record of the
card's work carries the number of the API call that started it, and that call lies, by the host's clock,
between begin and end of the node that made it. Nodes of one session do not overlap, but for those of a
subgraph, which lie within the node that has it: there the innermost counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

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


_Interval = TypeVar("_Interval", NodeRun, Window)


@dataclass(frozen=True, slots=True)
class Attributed:
    """An activity with its window and the node that started it; None where there is none."""

    activity: Activity
    window: Window | None
    node: NodeRun | None


@dataclass(frozen=True, slots=True)
class CallInWindow:
    """An API call with its window; None for a call between windows."""

    call: Call
    window: Window | None


class _Intervals(Generic[_Interval]):
    """Finds the interval around a moment: the one that begins last among those that hold it."""

    def __init__(self, intervals: Iterable[_Interval]) -> None:
        self._intervals: list[_Interval] = sorted(intervals, key=lambda interval: interval.start)
        self._starts: list[int] = [interval.start for interval in self._intervals]
        self._latest_ends: list[int] = list(accumulate((interval.end for interval in self._intervals), max))

    def around(self, moment: int) -> _Interval | None:
        position = bisect_right(self._starts, moment) - 1
        while position >= 0 and self._latest_ends[position] >= moment:
            if self._intervals[position].end >= moment:
                return self._intervals[position]
            position -= 1
        return None


def attribute(records: Records, windows: Sequence[Window], nodes: Sequence[NodeRun]) -> list[Attributed]:
    """Return the activities of `records` in the order of their start, with window and node.

    An activity whose API call was not recorded has no node, and the window in which it ran.
    """
    # A runtime call and the driver call within it may share a number; either began within the node.
    begun = {call.correlation: call.start for call in records.calls}
    in_window, in_node = _Intervals(windows), _Intervals(nodes)
    attributed = []
    for activity in sorted(records.activities, key=lambda one: (one.start, one.end)):
        moment = begun.get(activity.correlation)
        attributed.append(
            Attributed(
                activity,
                in_window.around(activity.start if moment is None else moment),
                None if moment is None else in_node.around(moment),
            )
        )
    return attributed


def calls_in_windows(calls: Iterable[Call], windows: Sequence[Window]) -> list[CallInWindow]:
    """Return the outermost of `calls`, in the order of their start, with their windows."""
    in_window = _Intervals(windows)
    return [CallInWindow(call, in_window.around(call.start)) for call in outermost(calls)]


def outermost(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that no other call of the same thread made, in the order of their start.

    The runtime does its work by calls of the driver, whose time is part of its own.
    """
    ends: dict[int, int] = {}
    kept = []
    for call in sorted(calls, key=lambda one: (one.start, -one.end)):
        if call.end > ends.get(call.thread, -1):
            kept.append(call)
            ends[call.thread] = call.end
    return kept
