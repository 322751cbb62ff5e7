"""What a session leaves behind when it is closed: nothing of ours.

ONNX Runtime's CUDA provider keeps host memory of every session that has run, whatever the model. So our
sessions are set against those of a model without a convolution, in turns, in one process.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from mixed_load import host_memory
from onnx import TensorProto, helper
from repeats import repeats
from test_op_session import CASE, conv_model, make_session

SESSIONS = repeats(60)
ROUNDS = repeats(3)
# Bytes for each session: two pages. What rounds of the same model keep differs by half a page; with 20
# sessions, on an H200, it differed by two and a half.
MOST_MORE = 8 << 10

X = CASE.arrays()[0]


def relu_model() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def kept(make: Callable[[], onnxruntime.InferenceSession]) -> float:
    """Return by how many bytes the process grows for each session that is opened, run and closed."""
    before = settled_host_memory()
    for _ in range(SESSIONS):
        session = make()
        for _ in range(3):
            session.run(None, {"x": X})
        del session
    return (settled_host_memory() - before) / SESSIONS


def settled_host_memory() -> int:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return host_memory()


@pytest.mark.parametrize("kind", ["swapped", "override"])
def test_closed_session_leaves_no_more_than_one_without_our_op(device: str, kind: str) -> None:
    override = kind == "override"
    model = conv_model(domain="") if override else conv_model()

    def ours() -> onnxruntime.InferenceSession:
        return make_session(model, device, override=override, intra_op_num_threads=1)

    def without() -> onnxruntime.InferenceSession:
        return make_session(relu_model(), device, ours=False, intra_op_num_threads=1)

    for make in (ours, without):
        kept(make)
    more = statistics.median(kept(ours) - kept(without) for _ in range(ROUNDS))
    assert more < MOST_MORE, f"{more:.0f} bytes more for each session"


def test_memory_that_a_session_keeps_is_noticed() -> None:
    keeps = []

    def keeping() -> onnxruntime.InferenceSession:
        keeps.append(np.ones(2 * MOST_MORE, np.uint8))
        return make_session(relu_model(), "cpu", ours=False, intra_op_num_threads=1)

    kept(keeping)
    assert statistics.median(kept(keeping) for _ in range(ROUNDS)) > MOST_MORE
