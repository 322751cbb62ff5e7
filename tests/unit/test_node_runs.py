"""When nodes ran is read from ONNX Runtime's own profile, in the nanoseconds of another clock."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from comparisons import small_model
from convswap.clock_map import SystemClocks
from convswap.device import Device
from convswap.errors import ConvswapError
from convswap.node_runs import read_node_runs
from convswap.profile_records import NodeRun
from convswap.sessions import DEFAULT, load_session

# Written by onnxruntime 1.31.1, shortened.
EVENTS = [
    {"cat": "Session", "pid": 1, "tid": 1, "dur": 221291, "ts": 8, "ph": "X", "name": "model_loading_array"},
    {
        "cat": "Node",
        "pid": 1,
        "tid": 1,
        "dur": 75,
        "ts": 612851,
        "ph": "X",
        "name": "pool1_kernel_time",
        "args": {"op_name": "MaxPool", "provider": "CUDAExecutionProvider", "node_index": "39"},
    },
    {
        "cat": "Node",
        "pid": 1,
        "tid": 1,
        "dur": 1458,
        "ts": 611384,
        "ph": "X",
        "name": "conv1_kernel_time",
        "args": {"op_name": "Conv", "provider": "CUDAExecutionProvider", "node_index": "28"},
    },
    {
        "cat": "Node",
        "dur": 3,
        "ts": 700000,
        "ph": "X",
        "name": "_kernel_time",
        "args": {"op_name": "Tanh", "node_index": "7"},
    },
    {
        "cat": "Node",
        "dur": 0,
        "ts": 700100,
        "ph": "X",
        "name": "conv1_fence_after",
        "args": {"op_name": "Conv"},
    },
    {"cat": "Session", "dur": 51655, "ts": 611348, "ph": "X", "name": "model_run", "args": {}},
]


def written(folder, content):
    path = folder / "profile.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_nodes_come_in_the_order_of_time_with_two_microseconds_for_what_was_cut_off(tmp_path):
    runs = read_node_runs(written(tmp_path, EVENTS), 1_000, lambda nanoseconds: nanoseconds + 50)
    assert runs == (
        NodeRun("conv1", "Conv", 611_384_000 + 1_050, 612_844_000 + 1_050),
        NodeRun("pool1", "MaxPool", 612_851_000 + 1_050, 612_928_000 + 1_050),
        NodeRun("Tanh 7", "Tanh", 700_000_000 + 1_050, 700_005_000 + 1_050),
    )


@pytest.mark.parametrize(
    "content",
    ["", "[{", '{"a": 1}', "[1]", '[{"cat": "Node", "name": "a_kernel_time", "ts": "x", "dur": 1}]'],
)
def test_a_damaged_profile_is_refused_in_one_line(tmp_path, content):
    with pytest.raises(ConvswapError, match="ONNX Runtime's profile cannot be understood") as refusal:
        read_node_runs(written(tmp_path, content), 0, lambda time: time)
    assert "\n" not in str(refusal.value)


def test_a_missing_profile_is_refused(tmp_path):
    with pytest.raises(ConvswapError, match="cannot be read: No such file"):
        read_node_runs(tmp_path / "none.json", 0, lambda time: time)


def share_of_a_run(prefix: Path) -> float:
    """Return how much of a run's time its nodes take; asserts that they lie within it."""
    clocks = SystemClocks()
    model = small_model().SerializeToString()
    device = Device("cpu", "asked for")
    session = load_session(model, DEFAULT, device, profile_prefix=str(prefix))
    start = session.get_profiling_start_time_ns()
    clock = clocks.which(start)
    assert clock is not None, f"onnxruntime {onnxruntime.__version__} uses another clock"
    time.sleep(0.01)
    begin = clock()
    session.run(None, {"x": np.ones((64, 3, 12, 12), np.float32)})
    end = clock()
    runs = read_node_runs(session.end_profiling(), start, lambda nanoseconds: nanoseconds)
    assert {run.op for run in runs} >= {"Conv"}
    # Cut to whole microseconds, and two of them added at the end.
    assert min(run.start for run in runs) >= begin - 1_000
    assert max(run.end for run in runs) <= end + 2_000
    return sum(run.end - run.start for run in runs) / (end - begin)


def test_the_nodes_of_a_session_lie_within_the_time_of_its_run_and_take_most_of_it(tmp_path):
    """So the profile's start and its clock are what they are taken for."""
    # Again where the machine had other work between them.
    assert any(share_of_a_run(tmp_path / str(number)) > 0.5 for number in range(10))
