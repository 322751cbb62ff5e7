"""Node times of a session's profile lie within the time of its run."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnxruntime
from comparisons import small_model
from convswap.profiling.recording import SystemClocks, read_node_runs
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, load_session


def fraction_of_a_run(prefix: Path) -> float:
    """Return the fraction of a run's time that its nodes take; assert that they lie within the run."""
    clocks = SystemClocks()
    model = small_model().SerializeToString()
    device = Device("cpu", "asked for")
    session = load_session(model, DEFAULT, device, profile_prefix=str(prefix))
    start = session.get_profiling_start_time_ns()
    clock = clocks.which(start)
    assert clock is not None, f"onnxruntime {onnxruntime.__version__} uses another clock"
    time.sleep(0.01)
    run_start = clock()
    session.run(None, {"x": np.ones((64, 3, 12, 12), np.float32)})
    run_end = clock()
    runs = read_node_runs(session.end_profiling(), start, lambda nanoseconds: nanoseconds)
    assert {run.op for run in runs} >= {"Conv"}
    # Times are truncated to microseconds, and two microseconds are added at the end.
    assert min(run.start for run in runs) >= run_start - 1_000
    assert max(run.end for run in runs) <= run_end + 2_000
    return sum(run.end - run.start for run in runs) / (run_end - run_start)


def test_the_nodes_of_a_session_lie_within_the_time_of_its_run_and_take_most_of_it(tmp_path):
    """Shows that the profile's start and clock are those that the code assumes."""
    # Several attempts, in case other processes interrupt a run.
    assert any(fraction_of_a_run(tmp_path / str(number)) > 0.5 for number in range(10))
