"""On a card, with CUPTI itself: what a session does is recorded, and another profiler is noticed."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from convswap.profiling.cupti_collector import connect


@pytest.mark.gpu
def test_another_subscriber_in_the_process_is_noticed():
    pytest.importorskip("cupti", reason="cupti-python is not installed")
    program = """
import sys
from cupti import cupti
parameters = cupti.SubscriberParams()
parameters.struct_size = cupti.SUBSCRIBER_PARAMS_SIZE
parameters.subscriber_name = "somebody else"
cupti.subscribe_v2(lambda *_: None, None, parameters.ptr)
from convswap.cli.main import main
sys.exit(main(["profile", "ece408-2019sp", "--data", "synthetic"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "another profiler" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("long_kernels", [False, True, False])
def test_the_card_records_what_a_session_does(cuda, long_kernels):
    pytest.importorskip("cupti", reason="cupti-python is not installed")
    import numpy as np
    from comparisons import small_model
    from convswap.graph.swap import swap
    from convswap.runtime.device import choose_device
    from convswap.runtime.sessions import CONVSWAP, BoundRun, make_session, on_device

    importlib.import_module("onnxruntime")
    device = choose_device("cuda")
    session = make_session(swap(small_model()).to_proto(), CONVSWAP, device)
    feeds = on_device({"x": np.ones((16, 3, 12, 12), np.float32)}, device)
    run = BoundRun(session, feeds, device)
    run.once()
    collector = connect()
    collector.start()
    run.once()
    assert collector.prepare(0, long_kernels) is long_kernels
    begin = collector.now()
    for _ in range(3):
        run.once()
    end = collector.now()
    records = collector.stop()
    kernels = [one for one in records.activities if one.kind == "kernel" and one.start >= begin]
    # Two Convs and a Relu, three times.
    assert len(kernels) >= 9 and len(kernels) % 3 == 0
    launches = {call.correlation: call for call in records.calls}
    for one in kernels:
        assert begin <= one.start < one.end <= end
        assert launches[one.correlation].start <= one.start
    assert {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"} & {
        call.name for call in records.calls
    }
