"""A profile as a file that Perfetto, and Chrome's chrome://tracing, open: the Trace Event Format, as JSON.

Each side has two processes: its host, with the tracks `phases`, `ONNX nodes` and one for each thread that
called CUDA; and its card, with tracks for the kernels and for the copies of each stream. Arrows lead from the
call that started a kernel or copy to it. Times are microseconds from the first record on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from convswap.profiling.records import KERNEL, Window
from convswap.profiling.result import Profile, Timeline, node_title, readable_name

Event = dict[str, Any]

# How far beyond its true end a node may seem to end: see `recording._node_run`.
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
    base = min((one.start for one in slices), default=0)
    tracks = _Tracks()
    events: list[Event] = []
    calls: dict[int, _Slice] = {}
    started: list[_Slice] = []
    for one in sorted(slices, key=lambda one: (one.start, -one.end)):
        one.process, one.thread = tracks.place(one)
        events.append(_complete(one, base))
        if one.is_call:
            calls[one.correlation] = one
        elif one.correlation:
            started.append(one)
    for number, work in enumerate(started, start=1):
        if work.correlation in calls:
            events += _arrow(number, calls[work.correlation], work, base)
    metadata = list(tracks.metadata())
    return metadata + sorted(events, key=lambda event: float(event["ts"]))


@dataclass(eq=False)
class _Slice:
    """One bar of the trace, in nanoseconds; `group` is its process, `track` what its thread is called."""

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
    """Gives each slice its process and thread number, and names them.

    Slices of one thread must lie within each other or apart, which Perfetto relies on. One that would cross
    another gets a second thread of the same name.
    """

    def __init__(self) -> None:
        self._processes: dict[str, int] = {}
        # By process and track: for each thread its number and the ends of the slices that are open in it.
        self._lanes: dict[tuple[int, str], list[tuple[int, list[int]]]] = {}
        self._threads: dict[int, tuple[int, str]] = {}

    def place(self, one: _Slice) -> tuple[int, int]:
        """Return process and thread of a slice; they must come in the order of their start, longest first."""
        process = self._processes.setdefault(one.group, len(self._processes) + 1)
        lanes = self._lanes.setdefault((process, one.track), [])
        for thread, open_ends in lanes:
            while open_ends and open_ends[-1] <= one.start:
                open_ends.pop()
            if not open_ends or one.end <= open_ends[-1]:
                open_ends.append(one.end)
                return process, thread
        thread = len(self._threads) + 1
        self._threads[thread] = process, one.track
        lanes.append((thread, [one.end]))
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
    """Yield the nodes. Their ends are known to within 2 us, and must not reach into the next node."""
    windows = timeline.recording.windows
    nodes = sorted(timeline.recording.nodes, key=lambda node: (node.start, -node.end))
    for index, node in enumerate(nodes):
        following = nodes[index + 1].start if index + 1 < len(nodes) else node.end
        reaches_into_next = node.start < following < node.end <= following + _NODE_END_ERROR
        around = (window for window in windows if window.start <= node.start <= window.end)
        yield _Slice(
            group=f"{_side(next(around, None))}: host",
            track="ONNX nodes",
            name=node.node,
            start=node.start,
            end=following if reaches_into_next else node.end,
            category="node",
            arguments={"op": node.op},
        )


def _card_slices(timeline: Timeline) -> Iterator[_Slice]:
    for one in timeline.activities:
        activity = one.activity
        side = _side(one.window)
        work = "kernels" if activity.kind == KERNEL else "copies"
        arguments: dict[str, Any] = {"node": node_title(one), "correlation": activity.correlation}
        if activity.kind != KERNEL:
            arguments["bytes"] = activity.size
        yield _Slice(
            group=f"{side}: card",
            track=f"stream {activity.stream}: {work}",
            name=readable_name(one),
            start=activity.start,
            end=activity.end,
            category=activity.kind,
            arguments=arguments,
            correlation=activity.correlation,
        )


def _side(window: Window | None) -> str:
    return "between" if window is None else window.side


def _complete(one: _Slice, base: int) -> Event:
    return {
        "ph": "X",
        "name": one.name,
        "cat": one.category,
        "pid": one.process,
        "tid": one.thread,
        "ts": (one.start - base) / 1e3,
        "dur": (one.end - one.start) / 1e3,
        "args": one.arguments,
    }


def _arrow(number: int, call: _Slice, work: _Slice, base: int) -> Iterator[Event]:
    common = {"name": "starts", "cat": "starts", "id": number}
    # An arrow is tied to the slice that is open where it begins, and where it ends with "bp": "e". CUPTI
    # knows the card's clock to some microseconds only, by which work may seem to begin before it was asked
    # for: the arrow then ends within the work, so that it does not point back in time.
    end = min(max(work.start, call.start), work.end)
    yield {**common, "ph": "s", "pid": call.process, "tid": call.thread, "ts": (call.start - base) / 1e3}
    yield {
        **common,
        "ph": "f",
        "bp": "e",
        "pid": work.process,
        "tid": work.thread,
        "ts": (end - base) / 1e3,
    }
