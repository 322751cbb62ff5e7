"""What sessions leave behind in the host's memory when they are closed, beside those without our op.

    python tools/session_memory.py KIND cpu|cuda

prints by how many bytes more the process grows for each session of a kind than for one of a model of as many
tensors without a convolution, the median of a few rounds: ONNX Runtime's CUDA provider keeps host memory of
every session that has run, some 109,000 bytes, and 2,500 more of one whose model has a weight (with its own
Conv 155,000; one H100). A process that has done other work is no place for it: what it freed and could not
give back takes in what sessions keep, and nothing grows.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
from collections.abc import Callable

import mixed_load  # which turns telemetry off: before the runtime is loaded
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from op_sessions import CASE, conv_model, make_session
from repeats import repeats

SESSIONS = repeats(60)
ROUNDS = repeats(3)
# Bytes for each session: two pages. What rounds of the same model keep differs by a page (on an H100, 60
# sessions); with 20 sessions, on an H200, it differed by two and a half.
MOST_MORE = 8 << 10

X = CASE.arrays()[0]
kept_for_good: list[np.ndarray] = []


def add_model() -> bytes:
    """Return a model without a convolution, of one node that has a weight."""
    weight = numpy_helper.from_array(np.ones((1,) * X.ndim, np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, X.shape)],
        [weight],
    )
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def without(device: str) -> onnxruntime.InferenceSession:
    """Open a session without our op."""
    return make_session(add_model(), device, ours=False, intra_op_num_threads=1)


def swapped(device: str) -> onnxruntime.InferenceSession:
    """Open a session of a swapped model."""
    return make_session(conv_model(), device, intra_op_num_threads=1)


def override(device: str) -> onnxruntime.InferenceSession:
    """Open a session in override mode."""
    return make_session(conv_model(domain=""), device, override=True, intra_op_num_threads=1)


def keeping(device: str) -> onnxruntime.InferenceSession:
    """One that keeps twice what is allowed, so that the measurement itself can be looked at."""
    kept_for_good.append(np.ones(2 * MOST_MORE, np.uint8))
    return without(device)


KINDS = {make.__name__: make for make in (swapped, override, keeping)}


def kept(make: Callable[[str], onnxruntime.InferenceSession], device: str) -> float:
    """Return by how many bytes the process grows for each session that is opened, run and closed."""
    before = settled_host_memory()
    for _ in range(SESSIONS):
        session = make(device)
        for _ in range(3):
            session.run(None, {"x": X})
        del session
    return (settled_host_memory() - before) / SESSIONS


def settled_host_memory() -> int:
    """Return what this process takes once it has given back what it can."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return mixed_load.host_memory()


def main() -> None:
    """Measure what the command line names, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("device", choices=["cpu", "cuda"])
    options = parser.parse_args()
    make, device = KINDS[options.kind], options.device
    for each in (make, without):
        kept(each, device)
    print(statistics.median(kept(make, device) - kept(without, device) for _ in range(ROUNDS)))


if __name__ == "__main__":
    main()
