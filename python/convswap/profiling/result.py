"""What a profile found: the result of `convswap.profile`, and its JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from convswap.profiling.recording import HostTimes, Recording
from convswap.profiling.records import RUN, SET_UP, Attributed, CallInWindow, attribute, calls_in_windows
from convswap.profiling.tables import (
    Entry,
    NodeTime,
    activity_entries,
    call_entries,
    most_of_the_time,
    node_times,
)
from convswap.runtime.device import Device

SCHEMA = 1


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
