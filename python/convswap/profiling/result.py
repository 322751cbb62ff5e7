"""The result of `convswap.profile`, in nvprof's columns and units, and its JSON."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from convswap.profiling.recording import HostTimes, Recording
from convswap.profiling.records import (
    KERNEL,
    MEMCPY,
    RUN,
    SET_UP,
    AttributedActivity,
    CallInWindow,
    attribute,
    calls_in_windows,
)
from convswap.runtime.device import Device

# Names for activities that no node launched: ONNX Runtime copies the inputs to the card and the outputs back.
INPUTS, OUTPUTS, NO_NODE = "(inputs)", "(outputs)", "(no node)"

SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One row: `calls` calls of `total` nanoseconds together, from `shortest` to `longest`.

    `share` is the share of the table's total, from 0 to 1. `nodes` are the nodes that launched the kernel or
    copy, most expensive first; an API call has none.
    """

    name: str
    share: float
    total: int
    calls: int
    shortest: int
    longest: int
    nodes: tuple[str, ...] = ()

    @property
    def average(self) -> float:
        """The mean time of a call in nanoseconds."""
        return self.total / self.calls

    def to_json(self) -> dict[str, Any]:
        """Return the row as `convswap profile --json` writes it, without its nodes."""
        return {
            "name": self.name,
            "share": self.share,
            "time_ns": self.total,
            "calls": self.calls,
            "avg_ns": self.average,
            "min_ns": self.shortest,
            "max_ns": self.longest,
        }


@dataclass(frozen=True)
class NodeTime:
    """The time of the card for one node: `total` nanoseconds of `calls` kernels, copies and memsets.

    `op` is the operator, "" for activities without a node; `kernels` has the names, most expensive first.
    """

    node: str
    op: str
    share: float
    total: int
    calls: int
    kernels: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the row as `convswap profile --json` writes it."""
        return {
            "node": self.node,
            "op": self.op,
            "share": self.share,
            "time_ns": self.total,
            "calls": self.calls,
            "kernels": list(self.kernels),
        }


def activity_entries(activities: Iterable[AttributedActivity]) -> tuple[Entry, ...]:
    """Return a row for each kernel, kind of copy, and memset, most expensive first: nvprof's first table."""
    return _entries(
        (readable_name(attributed), attributed.activity.duration, node_title(attributed))
        for attributed in activities
    )


def call_entries(calls: Iterable[CallInWindow]) -> tuple[Entry, ...]:
    """Return a row for each function of CUDA, most expensive first: nvprof's second table."""
    return _entries((in_window.call.name, in_window.call.duration, "") for in_window in calls)


def node_times(activities: Sequence[AttributedActivity]) -> tuple[NodeTime, ...]:
    """Return a row for each node, most expensive first. The rows add up to the card's whole time."""
    card_total = sum(attributed.activity.duration for attributed in activities)
    by_node: dict[tuple[str, str], list[AttributedActivity]] = {}
    for attributed in activities:
        op = attributed.node.op if attributed.node is not None else ""
        by_node.setdefault((node_title(attributed), op), []).append(attributed)
    rows = []
    for (node, op), of_node in by_node.items():
        total = sum(attributed.activity.duration for attributed in of_node)
        names = _most_expensive(
            (readable_name(attributed), attributed.activity.duration) for attributed in of_node
        )
        rows.append(NodeTime(node, op, _share(total, card_total), total, len(of_node), names))
    return tuple(sorted(rows, key=lambda row: -row.total))


def entries_over_90_percent(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the fewest entries that together take more than 90 % of their table's time.

    `entries` come most expensive first. ECE 408 asks its students for these entries.
    """
    longest: list[Entry] = []
    table_total = sum(entry.total for entry in entries)
    total = 0
    for entry in entries:
        # Integers are compared, since a rounded share of exactly 90 % could be above 90 %.
        if total * 10 > table_total * 9:
            break
        longest.append(entry)
        total += entry.total
    return tuple(longest)


def readable_name(attributed: AttributedActivity) -> str:
    """Return the demangled name of a kernel, or nvprof's name of a copy or memset."""
    activity = attributed.activity
    return demangle(activity.name) if activity.kind == KERNEL else activity.name


def node_title(attributed: AttributedActivity) -> str:
    """Return the name of the node that launched an activity, or a name in brackets if no node did."""
    if attributed.node is not None:
        return attributed.node.node
    activity = attributed.activity
    if activity.kind == MEMCPY and activity.name.endswith("HtoD]"):
        return INPUTS
    if activity.kind == MEMCPY and activity.name.endswith("DtoH]"):
        return OUTPUTS
    return NO_NODE


def _entries(timed: Iterable[tuple[str, int, str]]) -> tuple[Entry, ...]:
    """Return the rows for (name, nanoseconds, node), most expensive first."""
    by_name: dict[str, list[tuple[int, str]]] = {}
    for name, duration, node in timed:
        by_name.setdefault(name, []).append((duration, node))
    table_total = sum(duration for calls in by_name.values() for duration, _ in calls)
    rows = []
    for name, calls in by_name.items():
        durations = [duration for duration, _ in calls]
        rows.append(
            Entry(
                name=name,
                share=_share(sum(durations), table_total),
                total=sum(durations),
                calls=len(calls),
                shortest=min(durations),
                longest=max(durations),
                nodes=_most_expensive((node, duration) for duration, node in calls if node),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.total))


def _most_expensive(timed: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the distinct names in (name, nanoseconds), by descending total time."""
    totals: dict[str, int] = {}
    for name, duration in timed:
        totals[name] = totals.get(name, 0) + duration
    return tuple(sorted(totals, key=lambda name: -totals[name]))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def nvprof_time(nanoseconds: float) -> str:
    """Return a time as nvprof prints it: 992ns, 5.7510us, 97.765ms, 4.67456s.

    Nanoseconds are whole; micro- and milliseconds have five digits, seconds six.
    """
    if nanoseconds < 999.5:
        return f"{nanoseconds:.0f}ns"
    # A number that rounds up to 1000 of a unit is printed as 1 of the next unit.
    for unit, size in (("us", 1e3), ("ms", 1e6)):
        text = _significant(max(nanoseconds / size, 1.0), 5)
        if float(text) < 1000:
            return text + unit
    return _significant(max(nanoseconds / 1e9, 1.0), 6) + "s"


def _significant(value: float, digits: int) -> str:
    """Return `value`, which is at least 1, with `digits` digits, or with all digits before the point."""
    before_point = len(str(int(value)))
    text = f"{value:.{max(digits - before_point, 0)}f}"
    if len(text.partition(".")[0]) > before_point:
        # Rounding made it longer: 9.99999 became 10.0000.
        text = f"{value:.{max(digits - before_point - 1, 0)}f}"
    return text


def percent(share: float) -> str:
    """Return a share from 0 to 1 as nvprof prints it: 98.62%."""
    return f"{100 * share:.2f}%"


@cache
def demangle(name: str) -> str:
    """Return `name` demangled, or `name` itself if it is not a mangled C++ name or there is no libstdc++."""
    function = _demangler()
    if function is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    # The function allocates the text with malloc; `free` of the same C library releases it.
    address = function(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    _free()(address)
    return text


@cache
def _demangler() -> Any:
    """Return `__cxa_demangle` of the C++ library, None if there is none."""
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    return function


@cache
def _free() -> Any:
    function = ctypes.CDLL(None).free
    function.argtypes = [ctypes.c_void_p]
    function.restype = None
    return function


@dataclass(frozen=True)
class Tables:
    """The two tables of nvprof for one side and phase, most expensive rows first."""

    activities: tuple[Entry, ...]
    calls: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        """Return both tables, and the entries that together take more than 90 % of the time."""
        return {
            "profiling_result": [
                {**entry.to_json(), "nodes": list(entry.nodes)} for entry in self.activities
            ],
            "api_calls": [entry.to_json() for entry in self.calls],
            "over_90_percent": {
                "profiling_result": _over_90_percent(self.activities),
                "api_calls": _over_90_percent(self.calls),
            },
        }


@dataclass(frozen=True)
class SideProfile:
    """One side: its tables over all timed runs, the card's time by node, and the tables of its set-up."""

    host: HostTimes
    runs: Tables
    nodes: tuple[NodeTime, ...]
    set_up: Tables

    @property
    def run_count(self) -> int:
        """The number of runs that the tables sum up."""
        return len(self.host.runs)

    @property
    def run_ms(self) -> float:
        """The median milliseconds of a run by the host's clock, with the profilers on."""
        return float(np.median(self.host.runs))

    @property
    def mean_run_ms(self) -> float:
        """The mean milliseconds of a run by the host's clock, which include `card_ms`."""
        return float(np.mean(self.host.runs))

    @property
    def card_ms(self) -> float:
        """The mean milliseconds per run of kernels, copies and memsets on the card."""
        return sum(entry.total for entry in self.runs.activities) / 1e6 / self.run_count

    def to_json(self) -> dict[str, Any]:
        """Return the side as `convswap profile --json` writes it."""
        return {
            "runs": self.run_count,
            "run_ms": {
                "mean": self.mean_run_ms,
                "median": self.run_ms,
                "p95": float(np.percentile(self.host.runs, 95)),
                "min": min(self.host.runs),
            },
            "card_ms": self.card_ms,
            **self.runs.to_json(),
            "by_node": [node.to_json() for node in self.nodes],
            "set_up": {
                "session_ms": self.host.session,
                "first_run_ms": self.host.first_run,
                **self.set_up.to_json(),
            },
        }


@dataclass(frozen=True)
class Timeline:
    """All records of a profile with their windows and nodes, for a trace."""

    recording: Recording
    activities: tuple[AttributedActivity, ...]
    calls: tuple[CallInWindow, ...]


@dataclass(frozen=True)
class Profile:
    """The result of `convswap.profile`; `sides` has "convswap", and the sides it is compared with.

    Each run had `batch` samples of `dataset`. `notes` are sentences for a reader.
    """

    model: str
    device: Device
    precision: str
    options: Mapping[str, Any]
    environment: Mapping[str, str | None]
    dataset: str
    batch: int
    sides: Mapping[str, SideProfile]
    timeline: Timeline
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object of `convswap profile --json`; its "time_ns" are sums over the runs."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device.name,
            "precision": self.precision,
            "options": dict(self.options),
            "environment": dict(self.environment),
            "dataset": self.dataset,
            "batch": self.batch,
            "sides": {name: side.to_json() for name, side in self.sides.items()},
            "notes": list(self.notes),
        }


def timeline_of(recording: Recording) -> Timeline:
    """Return the records of `recording`, each with its window and node."""
    return Timeline(
        recording,
        tuple(attribute(recording.records, recording.windows, recording.nodes)),
        tuple(calls_in_windows(recording.records.calls, recording.windows)),
    )


def sides_of(timeline: Timeline) -> dict[str, SideProfile]:
    """Return the profile of each side of a timeline, by the side's name."""
    return {name: _side(name, host, timeline) for name, host in timeline.recording.host.items()}


def _side(name: str, host: HostTimes, timeline: Timeline) -> SideProfile:
    def tables(phase: str) -> Tables:
        return Tables(
            activity_entries(_within(timeline.activities, name, phase)),
            call_entries(_within(timeline.calls, name, phase)),
        )

    nodes = node_times(_within(timeline.activities, name, RUN))
    return SideProfile(host=host, runs=tables(RUN), nodes=nodes, set_up=tables(SET_UP))


_Windowed = TypeVar("_Windowed", AttributedActivity, CallInWindow)


def _within(records: Iterable[_Windowed], side: str, phase: str) -> list[_Windowed]:
    return [
        record
        for record in records
        if record.window is not None and record.window.side == side and record.window.phase == phase
    ]


def _over_90_percent(entries: Sequence[Entry]) -> dict[str, Any]:
    longest = entries_over_90_percent(entries)
    return {"names": [entry.name for entry in longest], "share": sum(entry.share for entry in longest)}
