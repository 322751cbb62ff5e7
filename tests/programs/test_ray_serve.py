"""The example of Ray Serve answers each request with its own output, and runs requests as batches."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import convswap
import numpy as np
import pytest
from build_tools import REPOSITORY
from op_sessions import onnx_outputs
from swap_models import text_model, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.skipif(
        find_spec("ray") is None or find_spec("starlette") is None,
        reason="Ray Serve is not installed: pip install 'ray[serve]'",
    ),
]


@pytest.fixture
def model():
    """Return a model whose output is multiplied by the size of the batch."""
    return text_model(
        "a = Conv (x, w) p = GlobalAveragePool (a) f = Flatten (p) "
        "s = Shape <end = 1> (x) n = Cast <to = 1> (s) y = Mul (f, n)",
        weights("w", 5, 3, 3, 3),
        inputs="float[n, 3, 8, 8] x",
        outputs="float[n, 5] y",
    )


@pytest.fixture
def send(model, tmp_path):
    """Return a function that sends a sample to the example and returns the reply."""
    convswap.swap(model).save(tmp_path / "faster.onnx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, REPOSITORY / "examples/ray_serve.py", tmp_path / "faster.onnx"]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)

    def send(sample):
        data = json.dumps(sample.tolist()).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", data, timeout=60) as reply:
            return np.array(json.load(reply), np.float32)

    yield send, server
    server.send_signal(signal.SIGINT)
    server.wait()


def test_each_request_gets_its_output_and_requests_share_runs(send, model):
    send, server = send
    samples = np.random.default_rng(4).standard_normal((24, 3, 8, 8)).astype(np.float32)
    while server.poll() is None:
        try:
            send(samples[0])
            break
        except urllib.error.URLError:
            time.sleep(0.2)
    expected = onnx_outputs(model, {"x": samples})[0] / len(samples)
    with ThreadPoolExecutor(len(samples)) as clients:
        replies = np.stack(list(clients.map(send, samples)))
    batches = np.round(replies[:, :1] / expected[:, :1])
    np.testing.assert_allclose(replies, expected * batches, rtol=1e-3, atol=1e-5)
    assert batches.max() > 1
