"""Recording with CUPTI on a card: the activities of a session, and another profiler that holds CUPTI."""

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
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    assert "another profiler" in result.stderr and "Traceback" not in result.stderr


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
    start = collector.now()
    for _ in range(3):
        run.once()
    end = collector.now()
    records = collector.stop()
    kernels = [kernel for kernel in records.activities if kernel.kind == "kernel" and kernel.start >= start]
    # Two Convs and a Relu, three times.
    assert len(kernels) >= 9 and len(kernels) % 3 == 0
    launches = {call.correlation: call for call in records.calls}
    for kernel in kernels:
        assert start <= kernel.start < kernel.end <= end
        assert launches[kernel.correlation].start <= kernel.start
    assert {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"} & {
        call.name for call in records.calls
    }
