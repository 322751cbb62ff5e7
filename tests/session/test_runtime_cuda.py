"""Features of ONNX Runtime's CUDA provider: graphs, a user's stream, a memory limit.

A captured graph proves that a run with a known shape does not allocate, wait or use the default stream. A
capture refuses the first two. Work on another stream is not part of the graph, so a replay would leave the
poison in the outputs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

import every_conv
import numpy as np
import onnxruntime
import pytest
from bound_model import GRAPH, NO_GRAPH, RUNS_TO_CAPTURE, BoundModel
from build_tools import environment_with_helpers
from conv_cases import ConvCase, assert_within_rounding
from convswap import _native
from cuda_driver import CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, Stream, free_bytes, synchronize
from every_conv import answers, make_input, same_bits
from op_sessions import PROVIDERS, ROUNDING, X, conv_model, make_session, run

MIB = 1 << 20
# Much longer than enqueueing a run takes.
DELAY_SECONDS = 0.5

on_every_card = pytest.mark.parametrize(
    "card",
    [
        0,
        pytest.param(
            1, marks=pytest.mark.skipif(len(_native.cuda_devices()) < 2, reason="it needs two GPUs")
        ),
    ],
)


@pytest.mark.gpu
@on_every_card
def test_graph_of_every_kind_of_conv_replays_on_new_data(card, cuda):
    model, options = every_conv.model(cuda), {"device_id": str(card)}
    first = make_input(0)
    plain = make_session(model, cuda, provider_options=options)
    session = make_session(model, cuda, provider_options=options | GRAPH)
    bound = BoundModel(session, first, answers(plain, first), card=card)
    for _ in range(RUNS_TO_CAPTURE):
        assert same_bits(bound.run(), answers(plain, first))
    for seed in range(1, 6):
        x = make_input(seed)
        bound.x.update_inplace(x)
        outputs = bound.run()
        every_conv.check(x, outputs, cuda)
        assert same_bits(outputs, answers(plain, x))


@pytest.mark.gpu
def test_a_captured_session_replays_and_no_longer_calls_the_op(cuda):
    """A replay reads the memory that was captured; a call of the op would read the memory bound now."""
    model, x = every_conv.model(cuda), make_input(0)
    expected = answers(make_session(model, cuda), x)
    bound = BoundModel(make_session(model, cuda, provider_options=GRAPH), x, expected)
    for _ in range(RUNS_TO_CAPTURE):
        bound.run()
    other = onnxruntime.OrtValue.ortvalue_from_numpy(make_input(1), cuda, 0)
    bound.binding.bind_ortvalue_input("x", other)
    assert same_bits(bound.run(), expected)


@pytest.mark.gpu
def test_shapes_that_take_turns_are_each_captured_right_after_another_one(cuda):
    model = every_conv.model(cuda)
    shapes = [(2, 11, 14), (1, 40, 33), (3, 9, 64)]
    plain = make_session(model, cuda)
    session = make_session(model, cuda, provider_options=GRAPH)
    inputs = [make_input(i, *shape) for i, shape in enumerate(shapes)]
    bound = [BoundModel(session, x, answers(plain, x)) for x in inputs]
    # Every shape is planned, then captured after all the others, then replayed in turn.
    for i, x in enumerate(inputs):
        assert same_bits(bound[i].run(NO_GRAPH), answers(plain, x))
    for i, x in enumerate(inputs):
        for _ in range(RUNS_TO_CAPTURE):
            assert same_bits(bound[i].run(i + 1), answers(plain, x))
    for turn in range(1, 4):
        for i, shape in enumerate(shapes):
            x = make_input(10 * turn + i, *shape)
            bound[i].x.update_inplace(x)
            outputs = bound[i].run(i + 1)
            every_conv.check(x, outputs, cuda)
            assert same_bits(outputs, answers(plain, x))
    # A new shape is planned between replays, and captured right after a replay.
    x = make_input(50, 2, 21, 20)
    new_shape = BoundModel(session, x, answers(plain, x))
    assert same_bits(new_shape.run(NO_GRAPH), answers(plain, x))
    outputs = bound[0].run(1)
    for _ in range(RUNS_TO_CAPTURE + 1):
        assert same_bits(new_shape.run(4), answers(plain, x))
    assert same_bits(bound[0].run(1), outputs)


@pytest.mark.gpu
@pytest.mark.failing_calls
def test_a_capture_refuses_to_allocate_and_to_wait(cuda):
    """Shows that a capture is a proof: calls that a warm run must not make fail and invalidate it."""
    x = _native.DeviceArray.from_numpy(X)
    y = _native.DeviceArray.from_numpy(np.full_like(X, np.nan))
    stream = Stream()
    with stream.captured() as errors:
        stream.copy(y.pointer, x.pointer, X.nbytes)
    assert errors == []
    stream.synchronize()
    assert np.isnan(y.to_numpy()).all()  # the copy was recorded and not executed
    with stream.captured() as errors, pytest.raises(RuntimeError, match="stream is capturing"):
        _native.DeviceArray(X.shape)
    assert errors == [CAPTURE_INVALIDATED]
    with (
        stream.captured() as errors,
        pytest.raises(AssertionError, match=f"cuStreamSynchronize failed with error {CAPTURE_UNSUPPORTED}"),
    ):
        stream.synchronize()
    assert errors == [CAPTURE_INVALIDATED]
    stream.close()


# One thread captures repeatedly while another loads kernels, most of which it compiles first.
CAPTURES_MEANWHILE = """
import threading
from convswap import _native
from cuda_driver import Stream

x, y = _native.DeviceArray([1 << 10]), _native.DeviceArray([1 << 10])
errors, failures, loaded, captures, is_over = [], [], 0, 0, threading.Event()

def load():
    global loaded
    try:
        problem = _native.Problem((2, 1, 28, 28), (50, 1, 5, 5), False, "float32")
        for entry in _native.catalog():
            if entry.device == "cuda" and not _native.why_not(problem, entry.name, "cuda"):
                _native.describe_plan(problem, "cuda", entry.name)
                loaded += 1
    except Exception as error:
        failures.append(error)
    is_over.set()

loads = threading.Thread(target=load)
stream = Stream()
loads.start()
while not is_over.is_set():
    with stream.captured() as found:
        for _ in range(100):
            stream.copy(y.pointer, x.pointer, 1 << 12)
    errors += found
    captures += 1
loads.join()
print(errors, failures, captures, loaded)
"""


@pytest.mark.gpu
def test_kernels_that_are_loaded_break_no_capture_of_another_thread(cuda, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", CAPTURES_MEANWHILE],
        env=environment_with_helpers() | {"CONVSWAP_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    errors, captures, loaded = re.fullmatch(r"(\[.*\]) (\d+) (\d+)", result.stdout.strip()).groups()
    assert errors == "[] []"
    # The number of algorithms depends on the card, and the number of captures on the machine.
    assert int(captures) > 1 and int(loaded) >= 5


# The user's own stream.


def outputs_after_a_delay(
    session: onnxruntime.InferenceSession, stream: Stream, x: np.ndarray, like: list[np.ndarray]
) -> list[np.ndarray]:
    """Return the outputs of a warm session whose input arrives on the stream only after a delay.

    Everything is enqueued without waiting: the delay, the copy of the input into the session's input memory,
    the run, and the copies out of its output memory. Each memory holds NaNs until its data arrive.
    """

    def place(array: np.ndarray) -> _native.DeviceArray:
        return _native.DeviceArray.from_numpy(array, stream.card)

    source, memory = place(x), place(np.full_like(x, np.nan))
    written = [place(np.full_like(y, np.nan)) for y in like]
    results = [place(np.full_like(y, np.nan)) for y in like]
    binding = session.io_binding()
    binding.bind_input("x", "cuda", stream.card, x.dtype.type, list(x.shape), memory.pointer)
    for info, y, array in zip(session.get_outputs(), like, written, strict=True):
        binding.bind_output(info.name, "cuda", stream.card, y.dtype.type, list(y.shape), array.pointer)
    without_waiting = onnxruntime.RunOptions()
    without_waiting.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(3):
        session.run_with_iobinding(binding, without_waiting)
    for card in {0, stream.card}:  # copies from the host may use the first card's default stream
        synchronize(card)

    stream.sleep(DELAY_SECONDS)
    stream.copy(memory.pointer, source.pointer, x.nbytes)
    session.run_with_iobinding(binding, without_waiting)
    for y, array, result in zip(like, written, results, strict=True):
        stream.copy(result.pointer, array.pointer, y.nbytes)
    assert stream.is_busy(), f"enqueueing a run took {DELAY_SECONDS} s: something waited for the card"
    stream.synchronize()
    return [result.to_numpy() for result in results]


@pytest.mark.gpu
@on_every_card
def test_work_on_the_users_stream_is_done_in_order_and_without_waiting(card, cuda):
    stream, model, x = Stream(card), every_conv.model(cuda), make_input(0)
    options = {"device_id": str(card)}
    expected = answers(make_session(model, cuda, provider_options=options), x)
    session = make_session(
        model, cuda, provider_options=options | {"user_compute_stream": str(stream.pointer)}
    )
    for _ in range(3):
        assert same_bits(outputs_after_a_delay(session, stream, x, expected), expected)
    # The session holds the stream until it is deleted.
    del session
    stream.close()


@pytest.mark.gpu
def test_work_on_another_stream_would_be_done_too_early(cuda):
    """Shows that the test above can fail: a session with a stream of its own reads and writes NaNs."""
    stream, model, x = Stream(), every_conv.model(cuda), make_input(0)
    session = make_session(model, cuda)
    too_early = outputs_after_a_delay(session, stream, x, answers(session, x))
    assert all(np.isnan(y).all() for y in too_early)
    stream.close()


@pytest.mark.gpu
def test_graph_on_the_users_stream_replays_on_new_data(cuda):
    stream, model, first = Stream(), every_conv.model(cuda), make_input(0)
    plain = make_session(model, cuda)
    options = GRAPH | {"user_compute_stream": str(stream.pointer)}
    session = make_session(model, cuda, provider_options=options)
    bound = BoundModel(session, first, answers(plain, first))
    for _ in range(RUNS_TO_CAPTURE):
        bound.run()
    for seed in range(1, 4):
        x = make_input(seed)
        bound.x.update_inplace(x)
        assert same_bits(bound.run(), answers(plain, x))
    del bound, session
    stream.close()


# Memory.

LIMIT = 128 * MIB
FILTERS = 64
MAX_WAIT_SECONDS = 60
# The first input has 12 MiB, and an output of 256 MiB; the second input alone exceeds the limit.
LARGE_OUTPUT = (1, 3, 1024, 1024)
LARGE_INPUT = (16, 3, 1024, 1024)


@pytest.mark.alone
@pytest.mark.gpu
@pytest.mark.parametrize("shape", [LARGE_OUTPUT, LARGE_INPUT], ids=["output", "input"])
def test_run_beyond_the_memory_limit_raises_and_the_session_goes_on(shape, cuda):
    w = np.random.default_rng(4).normal(size=(FILTERS, 3, 3, 3)).astype(np.float32)
    model = conv_model(x=["N", 3, "H", "W"], w=w, pads=[1, 1, 1, 1])
    session = make_session(model, cuda, provider_options={"gpu_mem_limit": str(LIMIT)})
    session.disable_fallback()  # otherwise some errors would make it a session on the CPU
    small = ConvCase((2, 3, 9, 8), w.shape, False, {"pads": [1, 1, 1, 1]}).arrays()[0]
    expected = run(session, small)
    assert_within_rounding(expected, (small, w, None), *ROUNDING[cuda], pads=[1, 1, 1, 1])
    large = np.ones(shape, np.float32)
    for attempt in range(20):
        with pytest.raises(Exception, match=r"(?i)memory") as raised:
            run(session, large)
        if shape == LARGE_OUTPUT:
            assert "convswap Conv node 'conv1'" in str(raised.value)
        assert same_bits([run(session, small)], [expected])
        if attempt == 2:
            free = free_bytes()
    # A page of the card's memory; a run allocates nothing as small. Other processes allocate and free memory,
    # but memory that the session leaks stays allocated.
    end = time.monotonic() + MAX_WAIT_SECONDS
    while free - free_bytes() > 2 * MIB and time.monotonic() < end:
        time.sleep(0.2)
    assert free - free_bytes() <= 2 * MIB
    assert session.get_providers()[0] == PROVIDERS[cuda]
