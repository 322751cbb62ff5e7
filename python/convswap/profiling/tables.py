"""The tables of a profile: what took how much time, summed up by name, in nvprof's columns and units."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from convswap.profiling.records import COPY, KERNEL, Attributed, CallInWindow

# What no node started: ONNX Runtime brings the inputs to the card and fetches the outputs.
INPUTS, OUTPUTS, NO_NODE = "(inputs)", "(outputs)", "(no node)"


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
