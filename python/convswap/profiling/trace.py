"""A profile as a file for Perfetto or Chrome's chrome://tracing: the Trace Event Format, as JSON.

Each side has two processes: its host, with the tracks `phases`, `ONNX nodes` and one for each thread that
called CUDA; and its card, with tracks for the kernels and for the copies of each stream. An arrow leads from
an API call to the kernel or copy that it launched. Times are microseconds since the first record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from convswap.profiling.records import KERNEL, Window
from convswap.profiling.result import Profile, Timeline, node_title, readable_name

Event = dict[str, Any]

# The nanoseconds by which a node's recorded end may be later than its true end; see `recording._node_run`.
_NODE_END_ERROR = 2_000


def trace_text(profile: Profile) -> str:
    """Return the content of the trace file of `profile`."""
    trace = {
        "traceEvents": trace_events(profile.timeline),
        "displayTimeUnit": "ns",
        "otherData": {
            "model": profile.model,
            "batch": profile.batch,
            **{name: value for name, value in profile.environment.items() if value is not None},
        },
    }
    return json.dumps(trace, allow_nan=False) + "\n"


def trace_events(timeline: Timeline) -> list[Event]:
    """Return the events of the trace: metadata first, then slices and arrows in the order of time."""
    slices = [*_host_slices(timeline), *_card_slices(timeline)]
    base = min((slice_.start for slice_ in slices), default=0)
    tracks = _Tracks()
    events: list[Event] = []
    calls: dict[int, _Slice] = {}
    activities: list[_Slice] = []
    for slice_ in sorted(slices, key=lambda slice_: (slice_.start, -slice_.end)):
        slice_.process, slice_.thread = tracks.place(slice_)
        events.append(_complete_event(slice_, base))
        if slice_.is_call:
            calls[slice_.correlation] = slice_
        elif slice_.correlation:
            activities.append(slice_)
    for number, activity in enumerate(activities, start=1):
        if activity.correlation in calls:
            events += _arrow(number, calls[activity.correlation], activity, base)
    metadata = list(tracks.metadata())
    return metadata + sorted(events, key=lambda event: float(event["ts"]))


@dataclass(eq=False)
class _Slice:
    """One bar of the trace, in nanoseconds; `group` names its process, `track` its thread."""

    group: str
    track: str
    name: str
    start: int
    end: int
    category: str
    arguments: dict[str, Any] = field(default_factory=dict)
    correlation: int = 0
    is_call: bool = False
    process: int = 0
    thread: int = 0


class _Tracks:
    """Assigns a process and a thread number to each slice, and names them.

    Slices of one thread must be nested or disjoint, which Perfetto relies on. A slice that would cross
    another gets a second thread of the same name.
    """

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        # By process and track: the number of each thread, and the ends of the slices that are open in it.
        self._threads_of_track: dict[tuple[int, str], list[tuple[int, list[int]]]] = {}
        self._threads: dict[int, tuple[int, str]] = {}

    def place(self, slice_: _Slice) -> tuple[int, int]:
        """Return process and thread of a slice; slices must come in the order of start, longest first."""
        process = self._processes.setdefault(slice_.group, len(self._processes) + 1)
        threads = self._threads_of_track.setdefault((process, slice_.track), [])
        for thread, open_ends in threads:
            while open_ends and open_ends[-1] <= slice_.start:
                open_ends.pop()
            if not open_ends or slice_.end <= open_ends[-1]:
                open_ends.append(slice_.end)
                return process, thread
        thread = len(self._threads) + 1
        self._threads[thread] = process, slice_.track
        threads.append((thread, [slice_.end]))
        return process, thread

    def metadata(self) -> Iterator[Event]:
        """Yield the events that name processes and threads."""
        for name, process in self._processes.items():
            yield _name("process_name", name, process, 0)
        for thread, (process, name) in self._threads.items():
            yield _name("thread_name", name, process, thread)


def _name(kind: str, name: str, process: int, thread: int) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _host_slices(timeline: Timeline) -> Iterator[_Slice]:
    for window in timeline.recording.windows:
        name = f"{window.phase} {window.number + 1}"
        yield _Slice(f"{window.side}: host", "phases", name, window.start, window.end, "phase")
    yield from _node_slices(timeline)
    for call in timeline.calls:
        side = _side(call.window)
        yield _Slice(
            group=f"{side}: host",
            track=f"CUDA API, thread {call.call.thread}",
            name=call.call.name,
            start=call.call.start,
            end=call.call.end,
            category="api",
            arguments={"correlation": call.call.correlation},
            correlation=call.call.correlation,
            is_call=True,
        )


def _node_slices(timeline: Timeline) -> Iterator[_Slice]:
    """Yield the node runs, whose ends are known to within 2 us, and must not reach into the next node."""
    windows = timeline.recording.windows
    nodes = sorted(timeline.recording.nodes, key=lambda node: (node.start, -node.end))
    for index, node in enumerate(nodes):
        next_start = nodes[index + 1].start if index + 1 < len(nodes) else node.end
        reaches_into_next = node.start < next_start < node.end <= next_start + _NODE_END_ERROR
        around = (window for window in windows if window.start <= node.start <= window.end)
        yield _Slice(
            group=f"{_side(next(around, None))}: host",
            track="ONNX nodes",
            name=node.node,
            start=node.start,
            end=next_start if reaches_into_next else node.end,
            category="node",
            arguments={"op": node.op},
        )


def _card_slices(timeline: Timeline) -> Iterator[_Slice]:
    for attributed in timeline.activities:
        activity = attributed.activity
        side = _side(attributed.window)
        kind = "kernels" if activity.kind == KERNEL else "copies"
        arguments: dict[str, Any] = {"node": node_title(attributed), "correlation": activity.correlation}
        if activity.kind != KERNEL:
            arguments["bytes"] = activity.size
        yield _Slice(
            group=f"{side}: card",
            track=f"stream {activity.stream}: {kind}",
            name=readable_name(attributed),
            start=activity.start,
            end=activity.end,
            category=activity.kind,
            arguments=arguments,
            correlation=activity.correlation,
        )


def _side(window: Window | None) -> str:
    return "between" if window is None else window.side


def _complete_event(slice_: _Slice, base: int) -> Event:
    return {
        "ph": "X",
        "name": slice_.name,
        "cat": slice_.category,
        "pid": slice_.process,
        "tid": slice_.thread,
        "ts": (slice_.start - base) / 1e3,
        "dur": (slice_.end - slice_.start) / 1e3,
        "args": slice_.arguments,
    }


def _arrow(number: int, call: _Slice, activity: _Slice, base: int) -> Iterator[Event]:
    common = {"name": "starts", "cat": "starts", "id": number}
    # An arrow is bound to the slice that is open at its begin and, with "bp": "e", at its end. CUPTI knows
    # the card's clock only to some microseconds, so an activity may seem to begin before its call. The arrow
    # then ends within the activity, so that it does not point back in time.
    end = min(max(activity.start, call.start), activity.end)
    yield {**common, "ph": "s", "pid": call.process, "tid": call.thread, "ts": (call.start - base) / 1e3}
    yield {
        **common,
        "ph": "f",
        "bp": "e",
        "pid": activity.process,
        "tid": activity.thread,
        "ts": (end - base) / 1e3,
    }
