"""Traces follow the Trace Event Format, so Perfetto can open them."""

from __future__ import annotations

import pytest
from convswap.profiling.recording import HostTimes, Recording
from convswap.profiling.records import KERNEL, RUN, SET_UP, Activity, Call, NodeRun, Records, Window
from convswap.profiling.result import timeline_of
from convswap.profiling.trace import trace_events
from hypothesis import given
from hypothesis import strategies as st
from pretend_collector import copy
from trace_rules import arrows, checked

BASE = 1_795_299_862_021_541_694


def events_of(activities, calls, nodes=(), windows=()) -> list[dict]:
    records = Records(tuple(activities), tuple(calls))
    recording = Recording(records, tuple(windows), tuple(nodes), {"convswap": HostTimes(1.0, 1.0, (1.0,))})
    return checked(trace_events(timeline_of(recording)))


def track(events: list[dict], event: dict) -> tuple[str, str]:
    """Return the names of an event's process and thread."""
    names = [each for each in events if each["ph"] == "M" and each["pid"] == event["pid"]]
    process = next(each["args"]["name"] for each in names if each["name"] == "process_name")
    thread = next(
        each["args"]["name"]
        for each in names
        if each["name"] == "thread_name" and each["tid"] == event["tid"]
    )
    return process, thread


@pytest.fixture
def example() -> list[dict]:
    return events_of(
        activities=[
            Activity(KERNEL, "_Z4tickPfi", BASE + 50_000, BASE + 90_000, 2, stream=7),
            copy("HtoD", BASE + 10_000, BASE + 45_000, 1),
        ],
        calls=[
            Call("cudaMemcpyAsync", BASE + 5_000, BASE + 9_000, 1, thread=11),
            Call("cudaLaunchKernel", BASE + 20_000, BASE + 24_000, 2, thread=11),
        ],
        nodes=[NodeRun("conv1", "Conv", BASE + 19_000, BASE + 27_500)],
        windows=[
            Window("convswap", SET_UP, 0, BASE, BASE + 1_000),
            Window("convswap", RUN, 0, BASE + 4_000, BASE + 100_000),
        ],
    )


def test_every_record_is_a_slice_on_the_track_of_its_sort(example):
    slices = {event["name"]: event for event in example if event["ph"] == "X"}
    assert {name: track(example, event) for name, event in slices.items()} == {
        "set-up 1": ("convswap: host", "phases"),
        "run 1": ("convswap: host", "phases"),
        "conv1": ("convswap: host", "ONNX nodes"),
        "cudaMemcpyAsync": ("convswap: host", "CUDA API, thread 11"),
        "cudaLaunchKernel": ("convswap: host", "CUDA API, thread 11"),
        "[CUDA memcpy HtoD]": ("convswap: card", "stream 7: copies"),
        "tick(float*, int)": ("convswap: card", "stream 7: kernels"),
    }
    kernel = slices["tick(float*, int)"]
    assert (kernel["ts"], kernel["dur"]) == (50.0, 40.0)
    assert kernel["args"] == {"node": "conv1", "correlation": 2}
    assert slices["[CUDA memcpy HtoD]"]["args"]["bytes"] == 1024
    assert slices["conv1"]["args"] == {"op": "Conv"}


def test_an_arrow_leads_from_each_launch_to_its_work(example):
    ends = [(start["ts"], end["ts"]) for start, end in arrows(example)]
    assert sorted(ends) == [(5.0, 10.0), (20.0, 50.0)]


def test_an_arrow_does_not_point_back_in_time_to_work_that_seems_to_begin_before_it_was_asked_for():
    begin = BASE + 20_000
    events = events_of(
        activities=[Activity(KERNEL, "tick", begin - 3_000, begin + 9_000, 1, stream=7)],
        calls=[Call("cudaLaunchKernel", begin, begin + 4_000, 1, thread=11)],
    )
    ((start, end),) = arrows(events)
    assert start["ts"] == end["ts"] == 3.0


def test_kernels_that_run_at_once_get_tracks_of_their_own():
    activities = [
        Activity(KERNEL, name, BASE + begin, BASE + begin + 100, 1) for name, begin in (("a", 0), ("b", 50))
    ]
    events = events_of(activities, [])
    tracks = {event["name"]: event["tid"] for event in events if event["ph"] == "X"}
    assert tracks["a"] != tracks["b"]


def test_a_node_that_seems_to_reach_into_the_next_ends_where_that_begins():
    nodes = [
        NodeRun("conv1", "Conv", BASE, BASE + 11_000),
        NodeRun("relu1", "Relu", BASE + 10_000, BASE + 20_000),
    ]
    events = events_of([], [], nodes=nodes)
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    assert (slices["conv1"]["ts"], slices["conv1"]["dur"]) == (0.0, 10.0)
    assert slices["conv1"]["tid"] == slices["relu1"]["tid"]


def test_nothing_recorded_gives_an_empty_trace():
    assert events_of([], []) == []


spans = st.tuples(st.integers(0, 200), st.integers(0, 60)).map(lambda each: (each[0], each[0] + each[1]))


@given(
    st.lists(st.tuples(spans, st.integers(1, 5), st.integers(7, 8)), max_size=25),
    st.lists(st.tuples(spans, st.integers(1, 5), st.integers(1, 2)), max_size=25),
    st.lists(spans, max_size=10),
)
def test_records_in_any_order_and_overlap_keep_to_the_rules(work, calls, nodes):
    records = (
        # Work begins after its call.
        [
            Activity(KERNEL, "k", BASE + 1000 + begin, BASE + 1000 + end, number, stream)
            for (begin, end), number, stream in work
        ],
        [Call("c", BASE + begin, BASE + end, number, thread) for (begin, end), number, thread in calls],
        [NodeRun(str(number), "Conv", BASE + begin, BASE + end) for number, (begin, end) in enumerate(nodes)],
    )
    events = events_of(*records)
    slices = [event for event in events if event["ph"] == "X"]
    assert sum(event["cat"] == "kernel" for event in slices) == len(work)
    assert sum(event["cat"] == "node" for event in slices) == len(nodes)
