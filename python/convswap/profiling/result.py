"""What a profile found: the result of `convswap.profile`, in nvprof's columns and units, and its JSON."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from convswap.profiling.recording import HostTimes, Recording
from convswap.profiling.records import (
    COPY,
    KERNEL,
    RUN,
    SET_UP,
    Attributed,
    CallInWindow,
    attribute,
    calls_in_windows,
)
from convswap.runtime.device import Device

# What no node started: ONNX Runtime brings the inputs to the card and fetches the outputs.
INPUTS, OUTPUTS, NO_NODE = "(inputs)", "(outputs)", "(no node)"

SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One row: `calls` times of altogether `total` nanoseconds, from `shortest` to `longest`.

    `share` is its part of the sum of its table, from 0 to 1. `nodes` are those that started it, most
    expensive first; an API call has none.
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
        """The mean of its times in nanoseconds."""
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

    `op` is its operator, "" for what belongs to no node; `kernels` are their names, most expensive first.
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


def activity_entries(activities: Iterable[Attributed]) -> tuple[Entry, ...]:
    """Return a row for each kernel, sort of copy, and memset, most expensive first: nvprof's first table."""
    return _entries((readable_name(one), one.activity.duration, node_title(one)) for one in activities)


def call_entries(calls: Iterable[CallInWindow]) -> tuple[Entry, ...]:
    """Return a row for each function of CUDA, most expensive first: nvprof's second table."""
    return _entries((one.call.name, one.call.duration, "") for one in calls)


def node_times(activities: Sequence[Attributed]) -> tuple[NodeTime, ...]:
    """Return a row for each node, most expensive first. All rows together are all of the card's time."""
    sum_of_all = sum(one.activity.duration for one in activities)
    by_node: dict[tuple[str, str], list[Attributed]] = {}
    for one in activities:
        op = one.node.op if one.node is not None else ""
        by_node.setdefault((node_title(one), op), []).append(one)
    rows = []
    for (node, op), own in by_node.items():
        total = sum(one.activity.duration for one in own)
        names = _most_expensive((readable_name(one), one.activity.duration) for one in own)
        rows.append(NodeTime(node, op, _share(total, sum_of_all), total, len(own), names))
    return tuple(sorted(rows, key=lambda row: -row.total))


def most_of_the_time(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the fewest entries that together take more than 90 % of their table's time.

    `entries` come most expensive first. This is what ECE 408 asks its students for.
    """
    found: list[Entry] = []
    sum_of_all = sum(entry.total for entry in entries)
    total = 0
    for entry in entries:
        # In whole numbers, for a rounded share could call 90 % more than 90 %.
        if total * 10 > sum_of_all * 9:
            break
        found.append(entry)
        total += entry.total
    return tuple(found)


def readable_name(one: Attributed) -> str:
    """Return the name of a kernel in the words of its source, or nvprof's of a copy or memset."""
    return demangle(one.activity.name) if one.activity.kind == KERNEL else one.activity.name


def node_title(one: Attributed) -> str:
    """Return the name of the node that started an activity, or in brackets what it is where none did."""
    if one.node is not None:
        return one.node.node
    if one.activity.kind == COPY and one.activity.name.endswith("HtoD]"):
        return INPUTS
    if one.activity.kind == COPY and one.activity.name.endswith("DtoH]"):
        return OUTPUTS
    return NO_NODE


def _entries(timed: Iterable[tuple[str, int, str]]) -> tuple[Entry, ...]:
    """Return the rows for (name, nanoseconds, node), most expensive first."""
    by_name: dict[str, list[tuple[int, str]]] = {}
    for name, duration, node in timed:
        by_name.setdefault(name, []).append((duration, node))
    sum_of_all = sum(duration for own in by_name.values() for duration, _ in own)
    rows = []
    for name, own in by_name.items():
        durations = [duration for duration, _ in own]
        rows.append(
            Entry(
                name=name,
                share=_share(sum(durations), sum_of_all),
                total=sum(durations),
                calls=len(own),
                shortest=min(durations),
                longest=max(durations),
                nodes=_most_expensive((node, duration) for duration, node in own if node),
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.total))


def _most_expensive(timed: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the names in (name, nanoseconds), each once, by the sum of their times."""
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
    # A number that rounds up to 1000 of a unit is 1 of the next.
    for unit, size in (("us", 1e3), ("ms", 1e6)):
        text = _significant(max(nanoseconds / size, 1.0), 5)
        if float(text) < 1000:
            return text + unit
    return _significant(max(nanoseconds / 1e9, 1.0), 6) + "s"


def _significant(value: float, digits: int) -> str:
    """Return `value`, from 1 on, with so many digits, or as many as lie before the point."""
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
    """Return `name` as it stands in the source, with types; `name` itself where it is not a C++ name.

    Also where there is no libstdc++, whose `__cxa_demangle` does the work.
    """
    function = _demangler()
    if function is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    # It allocates the text, which only free of the same C library may take back.
    address = function(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not address:
        return name
    text = ctypes.string_at(address).decode(errors="replace")
    _free()(address)
    return text


@cache
def _demangler() -> Any:
    """Return the function of the C++ library, None where there is none."""
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
        """Return both tables, and which of their entries together take more than 90 % of the time."""
        return {
            "profiling_result": [
                {**entry.to_json(), "nodes": list(entry.nodes)} for entry in self.activities
            ],
            "api_calls": [entry.to_json() for entry in self.calls],
            "over_90_percent": {
                "profiling_result": _together(self.activities),
                "api_calls": _together(self.calls),
            },
        }


@dataclass(frozen=True)
class SideProfile:
    """One side: its tables over all timed runs, the card's time by node, and its set-up apart."""

    host: HostTimes
    runs: Tables
    nodes: tuple[NodeTime, ...]
    set_up: Tables

    @property
    def run_count(self) -> int:
        """How many runs the tables sum up."""
        return len(self.host.runs)

    @property
    def run_ms(self) -> float:
        """The median milliseconds of a run by the host's clock, with the profilers on."""
        return float(np.median(self.host.runs))

    @property
    def mean_run_ms(self) -> float:
        """The mean milliseconds of a run by the host's clock: what `card_ms` is a part of."""
        return float(np.mean(self.host.runs))

    @property
    def card_ms(self) -> float:
        """The mean milliseconds of a run that the card works: kernels, copies and memsets."""
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
    """Every record of a profile in its place, for a trace."""

    recording: Recording
    activities: tuple[Attributed, ...]
    calls: tuple[CallInWindow, ...]


@dataclass(frozen=True)
class Profile:
    """The outcome of `convswap.profile`; `sides` has "convswap", and those that it was set against.

    `batch` samples of `dataset` went through each run. `notes` are sentences for a reader.
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
    """Return what each side of a timeline took, by the side's name."""
    return {name: _side(name, host, timeline) for name, host in timeline.recording.host.items()}


def _side(name: str, host: HostTimes, timeline: Timeline) -> SideProfile:
    def tables(phase: str) -> Tables:
        return Tables(
            activity_entries(_within(timeline.activities, name, phase)),
            call_entries(_within(timeline.calls, name, phase)),
        )

    nodes = node_times(_within(timeline.activities, name, RUN))
    return SideProfile(host=host, runs=tables(RUN), nodes=nodes, set_up=tables(SET_UP))


_Placed = TypeVar("_Placed", Attributed, CallInWindow)


def _within(recorded: Iterable[_Placed], side: str, phase: str) -> list[_Placed]:
    return [
        one
        for one in recorded
        if one.window is not None and one.window.side == side and one.window.phase == phase
    ]


def _together(entries: Sequence[Entry]) -> dict[str, Any]:
    most = most_of_the_time(entries)
    return {"names": [entry.name for entry in most], "share": sum(entry.share for entry in most)}
