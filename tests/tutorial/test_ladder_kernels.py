"""Every rung of the ladder computes the convolution, in emulation and on a card.

Tolerances are those of `compare`: 1e-5 for rungs in float32, because Winograd's transformations cost up to a
digit, and 2e-3 for rungs on tensor cores, which round to TF32.
"""

from __future__ import annotations

import functools
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from bound_model import GRAPH, RUNS_TO_CAPTURE, BoundModel
from conv_cases import ConvCase
from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import able_algorithms
from convswap.reference.metrics import TOLERANCES
from course_layers import course_layers
from each_case import each
from emulate import build
from ladder_sources import PAGES, WITH_KERNELS
from op_sessions import conv_model, make_session, run
from repeats import repeats
from tuning_files import line, write

COURSE = course_layers()
ON_CARD = [page for page in PAGES if page.device == "cuda"]
# A thousand more seeds take minutes:
# python tools/emulate.py ladder --rung NAME --seeds 30:1030
SEEDS = 20
TIMEOUT_SECONDS = 300
each_page = pytest.mark.parametrize("page", ON_CARD, ids=lambda page: page.name)
each_layer = pytest.mark.parametrize("layer", COURSE, ids=lambda layer: layer.name)


@pytest.fixture(scope="module")
def emulation() -> Path:
    """The program that runs every rung's kernels on the CPU."""
    return build("ladder")[0]


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_KERNELS, ids=lambda page: page.name)
def test_rung_is_the_convolution_in_emulation(emulation: Path, page) -> None:
    command = [emulation, page.name, "0", str(SEEDS)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr
    computed, _, summary = result.stdout.splitlines()[-1].partition(" ")
    assert summary == "problems computed, 0 wrong"
    # The first problems are the layers of the course. Every rung supports them, and some rungs support no
    # other.
    assert int(computed) >= len(COURSE)


def test_every_rung_of_the_sources_is_in_the_catalog_in_order() -> None:
    rungs = [(entry.device, entry.name) for entry in _native.catalog() if entry.by_name_alone]
    assert rungs == [(page.device, page.name) for page in PAGES]


@each_layer
def test_loops_on_the_processor_are_the_convolution(layer) -> None:
    case = ConvCase(layer.input_shape(2), layer.weight_shape, has_bias=layer.filters % 4 == 0)
    case.check(_native.conv(*case.arrays(), algorithm="ladder_01_loops"), unit=2.0**-24)


@pytest.mark.parametrize(
    ("case", "options", "reason"),
    [
        (ConvCase((1, 1, 9, 9), (1, 1, 3, 3)), {"type": "float64"}, "float32, and the data are float64"),
        (ConvCase((1, 1, 9), (1, 1, 3)), {}, "images, with 2 spatial axes, and these have 1"),
        (ConvCase((1, 1, 9, 9), (1, 1, 3, 3), False, {"strides": [1, 2]}), {}, "stride 1"),
        (ConvCase((1, 1, 9, 9), (1, 1, 3, 3), False, {"dilations": [2, 1]}), {}, "dilation 1"),
        (ConvCase((1, 1, 9, 9), (1, 1, 3, 3), False, {"pads": [0, 0, 0, 1]}), {}, "without padding"),
        (ConvCase((1, 4, 9, 9), (4, 2, 3, 3), False, {"group": 2}), {}, "one group, and these are 2"),
        (ConvCase((1, 0, 9, 9), (4, 0, 3, 3)), {}, "the input has no channels"),
        (ConvCase((0, 1, 9, 9), (4, 1, 3, 3)), {}, "the output is empty"),
        (ConvCase((40_000, 1, 200, 200), (1, 1, 1, 1)), {}, "indices have 32 bits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_problems_outside_the_ladder_are_refused_with_the_reason(case, options, reason) -> None:
    problem = _native.Problem(case.x_shape, case.w_shape, case.has_bias, **options, **case.attributes)
    assert reason in _native.why_not(problem, "ladder_01_loops", "cpu")
    with pytest.raises(ConvswapError, match="use algorithm 'auto', which selects one that can"):
        _native.choose(problem, "cpu", "ladder_01_loops")
    for page in ON_CARD:
        assert reason in _native.why_not(problem, page.name, "cuda", compute_capability=90)


@pytest.mark.parametrize(
    "fused",
    [
        {"activation": "Tanh"},
        {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]},
        {"residual_shape": (2, 4, 7, 7)},
    ],
    ids=["activation", "pool", "residual"],
)
def test_epilogues_are_left_to_the_last_rung(fused) -> None:
    problem = _native.Problem((2, 1, 9, 9), (4, 1, 3, 3), **fused)
    assert "the convolution alone" in _native.why_not(problem, "ladder_01_loops", "cpu")
    reasons = {
        page.name: _native.why_not(problem, page.name, "cuda", compute_capability=90) for page in ON_CARD
    }
    assert reasons.pop("ladder_16_fused") == ""
    assert all("the convolution alone" in reason for reason in reasons.values())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda")])
def test_nobody_gets_a_rung_without_asking_for_it(device) -> None:
    card = {"compute_capability": 90} if device == "cuda" else {}
    names = {entry.name for entry in _native.catalog() if entry.by_name_alone}
    for layer in COURSE:
        for options in ({}, {"precision": "ieee"}):
            problem = _native.Problem(layer.input_shape(10), layer.weight_shape, **options)
            for algorithm in ("auto", "tuned"):
                explanation = _native.explain(problem, device, algorithm, **card)
                assert explanation["algorithm"] not in names
                assert not names & {candidate["algorithm"] for candidate in explanation["others"]}
    if device == "cpu":
        assert not names & set(able_algorithms(problem, device))


def test_rung_that_a_tuning_table_names_is_not_selected(table) -> None:
    problem = _native.Problem((2, 1, 28, 28), (50, 1, 5, 5))
    times = {"ladder_01_loops": 0.1, "direct": 0.2}
    write(table, line(problem.text, "ladder_01_loops", "cpu", milliseconds=times))
    explanation = _native.explain(problem, "cpu", "tuned")
    assert (explanation["algorithm"], explanation["decided_by"]) == ("direct", "rule")
    assert "a rung of the ladder, taken by its own name alone" in explanation["why"]


def test_misspelt_rung_is_named_and_others_are_not_bothered_with_rungs() -> None:
    problem = _native.Problem((2, 1, 28, 28), (50, 1, 5, 5))
    with pytest.raises(ConvswapError, match="did you mean 'ladder_01_loops'"):
        _native.choose(problem, "cpu", "ladder_01_loop")
    with pytest.raises(ConvswapError) as raised:
        _native.choose(problem, "cpu", "winograd_of_mine")
    assert "known: direct reference quantised auto tuned" in str(raised.value)


@each_layer
def test_every_rung_supports_every_course_layer_on_an_h200(layer) -> None:
    for page in ON_CARD:
        problem = _native.Problem(layer.input_shape(10_000), layer.weight_shape, precision=page.precision)
        assert _native.why_not(problem, page.name, "cuda", compute_capability=90) == ""


def test_rungs_that_are_compiled_for_some_layers_name_them() -> None:
    odd = _native.Problem((3, 1, 30, 30), (13, 1, 3, 3))
    reasons = {page.name: _native.why_not(odd, page.name, "cuda", compute_capability=90) for page in ON_CARD}
    assert "4, 6, 12, 16, 24 and 50 filters; this layer has 13" in reasons["ladder_07_array_of_outputs"]
    assert "this layer has 13 of 3x3" in reasons["ladder_08_unrolled"]
    for name in ("ladder_09_constants", "ladder_10_constant_memory"):
        assert "the convolutions of the course's networks" in reasons[name]
    assert "5x5 and 7x7; these are 3x3" in reasons["ladder_13_winograd"]
    ieee = _native.Problem((3, 1, 30, 30), (13, 1, 3, 3), precision="ieee")
    assert "ieee" in _native.why_not(ieee, "ladder_14_tensor_cores", "cuda", compute_capability=90)
    assert "8.0" in _native.why_not(odd, "ladder_14_tensor_cores", "cuda", compute_capability=75)
    large = _native.Problem((1, 64, 100, 100), (8, 64, 5, 5))
    assert "bytes in shared memory" in _native.why_not(
        large, "ladder_05_flat_blocks", "cuda", compute_capability=90
    )


# Consecutive tests have the same layer.
@functools.lru_cache(maxsize=1)
def reference_of(layer, batch: int, has_bias: bool) -> np.ndarray:
    case = ConvCase(layer.input_shape(batch), layer.weight_shape, has_bias)
    wide = [None if array is None else array.astype(np.float64) for array in case.arrays()]
    return _native.conv(*wide, algorithm="reference")


def on_card(page, x, w, b) -> np.ndarray:
    """Return the card's output; memory starts as NaN, so elements that are not written show."""
    y = _native.DeviceArray(_native.Problem(x.shape, w.shape, b is not None).output_shape)
    y.poison()
    arrays = [None if array is None else _native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    _native.conv_device(*arrays, y, algorithm=page.name, precision=page.precision)
    return y.to_numpy()


@pytest.mark.gpu
@each_layer
@pytest.mark.parametrize(("batch", "has_bias"), [(1, True), (3, False), (131, True)])
@each("page", ON_CARD)
def test_rung_is_the_convolution_on_the_card(layer, page, batch, has_bias) -> None:
    # The im2col columns of 131 images exceed its scratch memory, so it needs several passes. racecheck gets
    # fewer images, which fit.
    batch = repeats(batch, minimum=3)
    case = ConvCase(layer.input_shape(batch), layer.weight_shape, has_bias)
    if reason := _native.why_not(
        _native.Problem(case.x_shape, case.w_shape, has_bias, precision=page.precision), page.name, "cuda"
    ):
        pytest.skip(reason)
    reference = reference_of(layer, batch, has_bias)
    y = on_card(page, *case.arrays())
    assert np.all(np.isfinite(y))
    assert np.linalg.norm(y - reference) <= TOLERANCES[page.precision] * np.linalg.norm(reference)


@pytest.mark.gpu
@each_page
def test_kernels_of_a_rung_have_registers_and_shared_memory_and_spill_nothing(page) -> None:
    for layer in COURSE:
        problem = _native.Problem(layer.input_shape(100), layer.weight_shape, precision=page.precision)
        if _native.why_not(problem, page.name, "cuda"):
            continue
        kernels = _native.explain(problem, "cuda", page.name)["kernels"]
        assert kernels
        for kernel in kernels:
            assert 16 <= kernel["registers"] <= 255 and kernel["blocks"] >= 1
            assert 1 <= kernel["threads"] <= 1024
            if page.number < 15:
                assert kernel["spilled_bytes"] == 0, (layer.name, kernel)
        if 4 <= page.number <= 14:
            assert max(kernel["shared_bytes"] for kernel in kernels) > 0


@pytest.mark.gpu
@pytest.mark.many_threads
def test_filters_in_constant_memory_belong_to_one_run_at_a_time(cuda) -> None:
    """Sessions on several streams fill the card's one constant memory with different filters."""
    layer = COURSE[0]
    sessions = []
    for seed in range(4):
        random = np.random.default_rng(seed)
        x, w = (
            random.normal(size=size).astype(np.float32)
            for size in (layer.input_shape(repeats(64)), layer.weight_shape)
        )
        model = conv_model(x=list(x.shape), w=w, algorithm="ladder_10_constant_memory")
        session = make_session(model, "cuda")
        sessions.append((session, x, _native.conv(x, w, algorithm="direct")))
    wrong: list[int] = []

    def run_repeatedly(number: int) -> None:
        session, x, expected = sessions[number]
        for _ in range(repeats(50)):
            if np.linalg.norm(run(session, x) - expected) > 1e-5 * np.linalg.norm(expected):
                wrong.append(number)

    threads = [threading.Thread(target=run_repeatedly, args=(number,)) for number in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.algorithm(page.name), id=page.name)
        for page in ON_CARD
        if page.number != 10
    ],
)
def test_rung_allocates_and_waits_for_nothing_so_that_a_graph_replays_it(page, cuda) -> None:
    layer = COURSE[6]
    random = np.random.default_rng(0)
    shape = layer.input_shape(repeats(70))
    x, other = (random.normal(size=shape).astype(np.float32) for _ in range(2))
    w = random.normal(size=layer.weight_shape).astype(np.float32)
    model = conv_model(x=list(x.shape), w=w, algorithm=page.name, precision=page.precision)
    plain = make_session(model, cuda)
    bound = BoundModel(make_session(model, cuda, provider_options=GRAPH), x, [run(plain, x)])
    for _ in range(RUNS_TO_CAPTURE):
        assert np.array_equal(bound.run()[0], run(plain, x))
    bound.x.update_inplace(other)
    assert np.array_equal(bound.run()[0], run(plain, other))


@pytest.mark.gpu
def test_constant_memory_is_refused_to_a_graph_with_the_reason(cuda) -> None:
    layer = COURSE[0]
    x, w = (np.ones(shape, np.float32) for shape in (layer.input_shape(2), layer.weight_shape))
    model = conv_model(x=list(x.shape), w=w, algorithm="ladder_10_constant_memory")
    expected = run(make_session(model, cuda), x)
    bound = BoundModel(make_session(model, cuda, provider_options=GRAPH), x, [expected])
    with pytest.raises(Exception, match=r"all sessions of a card share.*run without enable_cuda_graph"):
        for _ in range(RUNS_TO_CAPTURE):
            bound.run()
