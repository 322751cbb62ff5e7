"""The same outputs from a node that meets more shapes than its plan cache holds."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest
from build_tools import REPOSITORY
from op_sessions import conv_model, make_session, run

# One filter of two weights and 1-D data, so that most of a run is planning.
W = np.array([[[3.0, -0.7]]], np.float32)
SHAPES = 4200
REPEATED = 200
THREADS = 4


def inputs(count: int, first: int = 2) -> list[np.ndarray]:
    """Return `count` inputs of different lengths."""
    values = np.random.default_rng(1).standard_normal(first + count, dtype=np.float32)
    return [values[:length].reshape(1, 1, -1) for length in range(first, first + count)]


@pytest.fixture
def session() -> onnxruntime.InferenceSession:
    return make_session(conv_model(x=[1, 1, None], w=W), intra_op_num_threads=1)


def test_so_many_shapes_are_more_than_a_cache_holds():
    source = (REPOSITORY / "custom_op" / "plan" / "planner.cc").read_text()
    assert int(re.search(r"kMaxPlans = (\d+);", source)[1]) < SHAPES


def test_shapes_that_were_forgotten_give_the_same_bits_again(session):
    all_inputs = inputs(SHAPES)
    outputs = [run(session, x) for x in all_inputs]
    for x, y in zip(all_inputs, outputs, strict=True):
        # Two products of float32 and their sum, each rounded once: 3 roundings of numbers of at most 15.
        expected = W[0, 0, 0] * x[..., :-1].astype(np.float64) + W[0, 0, 1] * x[..., 1:]
        np.testing.assert_allclose(y, expected, rtol=0, atol=3 * 15 * 2.0**-24)
    for x, y in zip(all_inputs[:REPEATED], outputs, strict=False):
        assert run(session, x).tobytes() == y.tobytes()


@pytest.mark.many_threads
def test_threads_whose_shapes_are_forgotten_in_the_middle_of_a_run_get_the_same_bits(session):
    # Each thread runs all shapes, starting at another one, so that plans are evicted while in use.
    all_inputs = inputs(SHAPES)
    first = [run(session, x) for x in all_inputs[:REPEATED]]

    def run_all(thread: int) -> list[np.ndarray]:
        order = np.roll(np.arange(SHAPES), -thread * SHAPES // THREADS)
        outputs = {i: run(session, all_inputs[i]) for i in order}
        return [outputs[i] for i in range(SHAPES)]

    with ThreadPoolExecutor(THREADS) as pool:
        outputs_of_threads = list(pool.map(run_all, range(THREADS)))
    for outputs in outputs_of_threads:
        assert all(a.tobytes() == b.tobytes() for a, b in zip(outputs, outputs_of_threads[0], strict=True))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(outputs, first, strict=False))
