"""Records of a profiler: activities of the card, API calls of the host, runs of ONNX nodes, windows of time.

All times are whole nanoseconds by the clock of the collector that recorded them.

The card works later than the host launches the work, so the card's times do not tell which node launched it.
But each record of an activity has the correlation number of its API call. By the host's clock that call lies
between begin and end of its node. Node runs of one session do not overlap, except that nodes of a subgraph
lie within the node that has the subgraph; the innermost node counts then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

KERNEL, MEMCPY, MEMSET = "kernel", "memcpy", "memset"
# Phases of a session: its creation with the first run, untimed runs, timed runs.
SET_UP, WARM_UP, RUN = "set-up", "warm-up", "run"


@dataclass(frozen=True, slots=True)
class Activity:
    """An activity of the card: a kernel, a copy or a memset.

    `name` is a kernel's mangled name, or nvprof's name of a copy, as in "[CUDA memcpy HtoD]". `correlation`
    is the number of the API call that launched the activity. `size` is in bytes, 0 for a kernel.
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
        """The time of the activity on the card, in nanoseconds."""
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
        """The time of the call on the host, in nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Records:
    """All records of a collector."""

    activities: tuple[Activity, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of one node on the host, from before its kernels are launched until after."""

    node: str
    op: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which one side alone ran, with the card idle before and after.

    `number` counts the windows of a side and phase from 0.
    """

    side: str
    phase: str
    number: int
    start: int
    end: int


class Collector(Protocol):
    """Records all CUDA work of the process between `start` and `stop`: CUPTI, or a stand-in for tests."""

    def start(self) -> None:
        """Begin to record."""

    def now(self) -> int:
        """Return the time by the clock of the records."""

    def prepare(self, since: int, long_kernels: bool | None = None) -> bool:
        """Prepare for runs of long or of short kernels, and return whether the kernels are long.

        If `long_kernels` is None, the kernels that ran since the time `since` decide. Nothing may be running
        on the card.
        """

    def stop(self) -> Records:
        """End the recording and return it. Nothing may be running on the card."""


_Interval = TypeVar("_Interval", NodeRun, Window)


@dataclass(frozen=True, slots=True)
class AttributedActivity:
    """An activity with its window and the node that launched it, None if there is none."""

    activity: Activity
    window: Window | None
    node: NodeRun | None


@dataclass(frozen=True, slots=True)
class CallInWindow:
    """An API call with its window; None for a call between windows."""

    call: Call
    window: Window | None


class _Intervals(Generic[_Interval]):
    """Finds the interval around a moment: of the intervals that contain it, the one that begins last."""

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


def attribute(
    records: Records, windows: Sequence[Window], nodes: Sequence[NodeRun]
) -> list[AttributedActivity]:
    """Return the activities of `records` in the order of their start, with window and node.

    An activity whose API call was not recorded has no node; its window is the one in which it ran.
    """
    # A runtime call and the driver call within it may share a number; either began within the node.
    call_starts = {call.correlation: call.start for call in records.calls}
    window_intervals, node_intervals = _Intervals(windows), _Intervals(nodes)
    attributed = []
    for activity in sorted(records.activities, key=lambda activity: (activity.start, activity.end)):
        launch = call_starts.get(activity.correlation)
        attributed.append(
            AttributedActivity(
                activity,
                window_intervals.around(activity.start if launch is None else launch),
                None if launch is None else node_intervals.around(launch),
            )
        )
    return attributed


def calls_in_windows(calls: Iterable[Call], windows: Sequence[Window]) -> list[CallInWindow]:
    """Return the outermost of `calls`, in the order of their start, with their windows."""
    intervals = _Intervals(windows)
    return [CallInWindow(call, intervals.around(call.start)) for call in outermost(calls)]


def outermost(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that are not within another call of the same thread, in the order of their start.

    The runtime works by calls of the driver, whose time is part of the runtime call's time.
    """
    ends: dict[int, int] = {}
    outer = []
    for call in sorted(calls, key=lambda call: (call.start, -call.end)):
        if call.end > ends.get(call.thread, -1):
            outer.append(call)
            ends[call.thread] = call.end
    return outer
