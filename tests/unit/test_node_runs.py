"""Times of nodes are read from ONNX Runtime's profile and converted to another clock."""

from __future__ import annotations

import json

import pytest
from convswap.errors import ConvswapError
from convswap.profiling.recording import read_node_runs
from convswap.profiling.records import NodeRun
from refused import refused

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
    with refused("ONNX Runtime's profile cannot be understood"):
        read_node_runs(written(tmp_path, content), 0, lambda time: time)


def test_a_missing_profile_is_refused(tmp_path):
    with pytest.raises(ConvswapError, match="cannot be read: No such file"):
        read_node_runs(tmp_path / "none.json", 0, lambda time: time)
