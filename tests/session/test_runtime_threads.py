"""Many threads and sessions at once, on every device: each run gives the same bits as alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import every_conv
import numpy as np
import onnxruntime
import pytest
from every_conv import answers, make_input, same_bits
from op_sessions import make_session
from repeats import repeats

pytestmark = pytest.mark.many_threads
THREADS = 16
SESSIONS = 8


@pytest.fixture
def inputs() -> list[np.ndarray]:
    """Return an input of a different shape for each thread."""
    inputs = [make_input(i, 1 + i % 3, 9 + i, 30 - i) for i in range(THREADS)]
    assert len({x.shape for x in inputs}) == THREADS
    return inputs


def open_session(device: str) -> onnxruntime.InferenceSession:
    return make_session(every_conv.model(device), device)


def single_thread_outputs(inputs: list[np.ndarray], device: str) -> list[list[np.ndarray]]:
    """Return the outputs of one thread and one session, after checking them."""
    session = open_session(device)
    outputs_of_inputs = [answers(session, x) for x in inputs]
    for x, outputs in zip(inputs, outputs_of_inputs, strict=True):
        every_conv.check(x, outputs, device)
    return outputs_of_inputs


def all_at_once(threads: int, work: Callable[[int], bool]) -> None:
    """Assert that `work` returns true in each of `threads` threads, which start together."""
    start = Barrier(threads)

    def wait_and_work(thread: int) -> bool:
        start.wait(60)
        return work(thread)

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(wait_and_work, range(threads))) == [True] * threads


def test_sixteen_threads_of_one_session_get_the_bits_of_runs_alone(inputs, device):
    expected = single_thread_outputs(inputs, device)
    # A new session each time, so that the threads also plan their shapes at the same time.
    for _ in range(repeats(4)):
        session = open_session(device)

        def run_every_input(thread: int, session=session) -> bool:
            order = [(thread + turn) % THREADS for turn in range(repeats(THREADS, minimum=3))]
            return all(same_bits(answers(session, inputs[i]), expected[i]) for i in order)

        all_at_once(THREADS, run_every_input)


@pytest.mark.parametrize("threads", [1, 2, 4, 8, 16])
def test_the_same_input_gives_the_same_bits_however_many_threads_run(threads, device):
    # Large enough that on a card the kernels of several runs are in flight together.
    x = make_input(3, 4, 64, 66)
    [expected] = single_thread_outputs([x], device)
    session = open_session(device)
    runs = repeats(256 // threads) if device == "cuda" else 16 // threads
    all_at_once(threads, lambda _: all(same_bits(answers(session, x), expected) for _ in range(runs)))


def test_eight_sessions_at_once_open_run_and_close_while_the_others_run(inputs, device):
    expected = single_thread_outputs(inputs, device)

    def open_run_and_close(thread: int) -> bool:
        right = True
        for turn in range(repeats(3)):
            session = open_session(device)
            chosen = [(5 * thread + 3 * turn + i) % THREADS for i in range(repeats(THREADS, minimum=3))]
            right &= all(same_bits(answers(session, inputs[i]), expected[i]) for i in chosen)
            del session
        return right

    all_at_once(SESSIONS, open_run_and_close)


def test_a_wrong_bit_in_one_run_of_many_would_be_noticed(inputs, device):
    [expected] = single_thread_outputs(inputs[:1], device)
    changed = [y.copy() for y in expected]
    changed[-1].view(np.uint32).flat[-1] ^= 1
    assert same_bits(expected, [y.copy() for y in expected])
    assert not same_bits(expected, changed)
    with pytest.raises(AssertionError):
        all_at_once(THREADS, lambda thread: thread != 5)
