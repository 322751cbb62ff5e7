"""Checks of a trace against the Trace Event Format."""

from __future__ import annotations

import bisect
import itertools
import json
from collections import defaultdict

REQUIRED = {"X": {"name", "cat", "pid", "tid", "ts", "dur"}, "M": {"name", "pid", "tid", "args"}}
REQUIRED["s"] = REQUIRED["f"] = {"name", "cat", "id", "pid", "tid", "ts"}


def checked(events: list[dict], clock_skew_us: float = 0) -> list[dict]:
    """Return the events after checking them against the format.

    `clock_skew_us`: by how much work on a card may begin before its call, because of the clocks' difference.
    """
    assert json.loads(json.dumps(events, allow_nan=False)) == events
    slices = defaultdict(list)
    names = {}
    for event in events:
        assert event["ph"] in REQUIRED
        assert set(event) >= REQUIRED[event["ph"]]
        assert type(event["pid"]) is int and type(event["tid"]) is int
        if event["ph"] == "M":
            key = (event["name"], event["pid"], event["tid"] if event["name"] == "thread_name" else 0)
            assert key not in names, "a track has two names"
            names[key] = event["args"]["name"]
            continue
        assert event["ts"] >= 0
        assert ("process_name", event["pid"], 0) in names
        assert ("thread_name", event["pid"], event["tid"]) in names
        if event["ph"] == "X":
            assert event["dur"] >= 0
            begin = round(event["ts"] * 1000)
            slices[event["pid"], event["tid"]].append((begin, begin + round(event["dur"] * 1000)))
    for track_slices in slices.values():
        assert_nested(track_slices)
    covered = {track: covering(track_slices) for track, track_slices in slices.items()}
    for start, end in arrows(events):
        assert start["ts"] <= end["ts"] + clock_skew_us and end["bp"] == "e"
        for event in (start, end):
            begins, last_ends = covered[event["pid"], event["tid"]]
            moment = round(event["ts"] * 1000)
            before = bisect.bisect_right(begins, moment)
            assert before > 0 and moment <= last_ends[before - 1], "an arrow is tied to nothing"
    return events


def assert_nested(slices: list[tuple[int, int]]) -> None:
    open_ends: list[int] = []
    for begin, end in sorted(slices, key=lambda slice_: (slice_[0], -slice_[1])):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], "slices of a track cross each other"
        open_ends.append(end)


def covering(slices: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Return the begins of slices in order, and for each the latest end of the slices up to it."""
    in_order = sorted(slices)
    return [begin for begin, _ in in_order], list(itertools.accumulate((end for _, end in in_order), max))


def arrows(events: list[dict]) -> list[tuple[dict, dict]]:
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    return [(starts[number], ends[number]) for number in starts]
