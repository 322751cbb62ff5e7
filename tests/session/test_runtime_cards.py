"""Several cards in one machine: the op runs on the card of its tensors and leaves other cards unchanged.

Every test runs on the first card before the second. So state that is set up once per process, not once per
card, makes a test fail.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import every_conv
import numpy as np
import onnxruntime
import pytest
from conv_cases import ConvCase, case_id
from convswap import _native
from convswap.errors import ConvswapError
from cuda_driver import current_card, is_in_use, on_card, synchronize
from every_conv import answers, make_input, same_bits
from onnx import helper
from op_sessions import CASE, ROUNDING, X, case_model, check, graph_model, make_session, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(len(_native.cuda_devices()) < 2, reason="it needs two GPUs"),
]

ALGORITHMS = ("implicit_gemm", "toeplitz", "few_channels", "tiled", "naive")
# A block's shared memory without opting in to more, which each card needs separately.
SHARED_MEMORY = 48 * 1024
# Several passes, each as large as a block's shared memory.
MANY_CHANNELS = ConvCase((2, 400, 20, 22), (40, 400, 3, 3), True, {"pads": [1, 1, 1, 1]})


def session_on(card: int, model: bytes) -> onnxruntime.InferenceSession:
    return make_session(model, "cuda", provider_options={"device_id": str(card)})


@pytest.fixture
def same_kind_of_cards() -> None:
    """Skip if the first two cards differ, because they may use different tiles."""
    names = [card["name"] for card in _native.cuda_devices()[:2]]
    if names[0] != names[1]:
        pytest.skip(f"the cards are not alike: {names}")


def test_the_second_card_gives_the_bits_of_the_first(same_kind_of_cards, cuda):
    model = every_conv.model(cuda)
    sessions = [session_on(card, model) for card in (0, 1)]
    for seed in range(8):
        x = make_input(seed, 1 + seed % 3, 9 + seed, 30 - seed)
        outputs = [answers(session, x) for session in sessions]
        every_conv.check(x, outputs[1], cuda)
        assert same_bits(*outputs)


@pytest.mark.many_threads
def test_two_cards_at_once_give_the_bits_of_each_alone(cuda):
    model = every_conv.model(cuda)
    inputs = [make_input(i, 2, 30 + i, 41 - i) for i in range(8)]
    first = [session_on(card, model) for card in (0, 1)]
    expected = [[answers(session, x) for x in inputs] for session in first]
    # New sessions, so that the threads also plan at the same time.
    sessions = [session_on(card, model) for card in (0, 1)]

    def stay_on(card: int) -> bool:
        order = [i % len(inputs) for i in range(100)]
        return all(same_bits(answers(sessions[card], inputs[i]), expected[card][i]) for i in order)

    def change_cards(thread: int) -> bool:
        order = [((thread + i) % 2, (3 * thread + i) % len(inputs)) for i in range(100)]
        return all(same_bits(answers(sessions[card], inputs[i]), expected[card][i]) for card, i in order)

    with ThreadPoolExecutor(10) as pool:
        runs = [pool.submit(stay_on, card) for card in (0, 1)]
        runs += [pool.submit(change_cards, thread) for thread in range(8)]
        assert all(run.result() for run in runs)


def test_ops_after_our_op_find_the_card_that_they_need(cuda):
    """An op that left another card current would break the launch of the next op."""
    for card in (0, 1, 0):
        y = run(session_on(card, case_model(CASE, follow="Relu")), X)
        check(np.where(y > 0, y, np.minimum(CASE.reference, 0)), CASE, cuda)


def relu_model() -> bytes:
    """Return a model without our op."""
    return graph_model([helper.make_node("Relu", ["x"], ["y"])], {"x": CASE.x_shape}).SerializeToString()


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("card", [0, 1])
def test_run_leaves_the_card_current_that_a_run_without_our_op_leaves(card, before, cuda):
    our_session, plain_session = session_on(card, case_model(CASE)), session_on(card, relu_model())
    current_cards = []
    for session in (plain_session, our_session):
        for _ in range(2):  # the first run plans
            with on_card(before):
                run(session, X)
                current_cards.append(current_card())
    assert current_cards == current_cards[:1] * 4
    if before == card:
        assert current_cards[0] == card


def conv_on(card: int, algorithm: str, case: ConvCase) -> np.ndarray:
    """Return the output that the card writes to poisoned memory, in a call without ONNX Runtime."""
    x, w, b = (None if a is None else _native.DeviceArray.from_numpy(a, card) for a in case.arrays())
    problem = _native.Problem(case.x_shape, case.w_shape, case.has_bias, **case.attributes)
    y = _native.DeviceArray(problem.output_shape, device=card)
    y.poison()
    for each in (0, 1):  # copies from the host may use another card's default stream
        synchronize(each)
    _native.conv_device(x, w, b, y, algorithm=algorithm, **case.attributes)
    return y.to_numpy()


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize(
    ("algorithm", "case"),
    # toeplitz's matrix limits the channels, and implicit_gemm supports few channels.
    [(name, CASE) for name in ALGORITHMS]
    + [(name, MANY_CHANNELS) for name in ALGORITHMS if name not in ("implicit_gemm", "toeplitz")],
    ids=lambda value: value if isinstance(value, str) else case_id(value),
)
def test_direct_call_computes_on_the_card_of_its_arrays_and_leaves_the_current_one(algorithm, case, before):
    for card in (0, 1):
        with on_card(before):
            y = conv_on(card, algorithm, case)
            assert current_card() == before
        case.check(y, *ROUNDING["cpu" if algorithm == "naive" else "cuda"])


def test_more_shared_memory_than_a_block_has_is_asked_for_on_every_card(cuda):
    x, w, _ = MANY_CHANNELS.arrays()
    problem = _native.Problem(x.shape, w.shape, True, **MANY_CHANNELS.attributes)
    for card in (0, 1):
        plan = _native.describe_plan(problem, cuda, "few_channels", index=card)
        assert int(re.search(r"(\d+) bytes of shared memory", plan)[1]) > SHARED_MEMORY
        session = session_on(card, case_model(MANY_CHANNELS, algorithm="few_channels"))
        check(run(session, x), MANY_CHANNELS, cuda)


def test_arrays_on_different_cards_are_refused():
    x, w, _ = CASE.arrays()
    arrays = [_native.DeviceArray.from_numpy(x, 1), _native.DeviceArray.from_numpy(w, 0)]
    y = _native.DeviceArray(CASE.reference.shape, device=1)
    with pytest.raises(ConvswapError, match="w is float32 on device 0: expected float32 on device 1"):
        _native.conv_device(*arrays, None, y, **CASE.attributes)


def report_whether_the_first_card_is_used(model: str) -> None:
    """Run a session on the second card, and print whether the first card has been initialised."""
    session = session_on(1, case_model(CASE) if model == "ours" else relu_model())
    for _ in range(2):
        run(session, X)
    print("first card in use:", is_in_use(0), "second:", is_in_use(1), flush=True)
    os._exit(0)


def test_work_on_the_second_card_sets_up_no_other(cuda):
    """ONNX Runtime itself may initialise cards, so a session without our op is the reference."""
    line_of = {}
    for model in ("theirs", "ours"):
        program = (
            f"import sys; sys.path[:0] = {sys.path!r}; import test_runtime_cards as t; "
            f"t.onnxruntime.preload_dlls(); t.report_whether_the_first_card_is_used({model!r})"
        )
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        lines = [line for line in result.stdout.splitlines() if line.startswith("first card")]
        assert len(lines) == 1, result.stdout + result.stderr
        line_of[model] = lines[0]
    assert line_of["ours"].endswith("second: True")
    assert line_of["ours"] == line_of["theirs"]
