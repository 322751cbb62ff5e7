"""A small, fixed part of the property test of tools/conv_property.py.

Other tests here check that the program notices wrong results and algorithms that decline too much.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import re
import sys
from collections.abc import Iterable

import conv_property
import numpy as np
import pytest
from conv_cases import ConvCase
from conv_property import BINADES, PAIRS_EVERY, ROUNDINGS, SPREAD, Draw, check, check_seed
from convswap import _native
from repeats import repeats

SEEDS = range(4)
PAIRS_SEED = PAIRS_EVERY - 1
EXAMPLES = 150
# Minimum number of the 600 random problems that an algorithm must support. few_channels, toeplitz,
# implicit_gemm and tiled support 350 to 470.
MIN_SUPPORTED = 300
# sliced_k does not compute 3-D data.
MIN_SLICED_K = 300
# row_windows does not compute precision ieee, many channels or dilated columns either.
MIN_ROW_WINDOWS = 150
# pointwise computes only 1x1 filters, and float32 only in precision tf32.
MIN_POINTWISE = 30
# depthwise and sliding_rows compute only groups of one channel.
MIN_DEPTHWISE = 60
MIN_SLIDING_ROWS = 20
# Minimum number of the 150 random problems with a preceding depthwise convolution.
MIN_SEPARABLE = 40
# Words in plans of `direct` for filters of few channels, and the minimum number of random problems with each.
MIN_DRAWS_OF_PATHS = {"rows from strips": 60, "small images": 10}


@pytest.mark.parametrize(
    ("number", "device"),
    [
        (SEEDS[0], "cpu"),
        *(pytest.param(number, "cpu", marks=pytest.mark.extended) for number in (SEEDS[1], PAIRS_SEED)),
        *(pytest.param(number, "cuda", marks=pytest.mark.gpu) for number in (*SEEDS, PAIRS_SEED)),
    ],
)
def test_every_algorithm_is_the_convolution_within_its_rounding(number, device):
    # At least one algorithm of the device computes each problem.
    examples = repeats(EXAMPLES)
    assert check_seed(number, device, examples=examples) >= examples


def draws_of(seeds: Iterable[int]) -> list[Draw]:
    """Return the draws of seeds, in order, with repetitions."""
    draws: list[Draw] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conv_property, "check", lambda draw, device: draws.append(draw) or 1)
        for seed in seeds:
            check_seed(seed, "cpu", examples=EXAMPLES)
    return draws


@pytest.fixture(scope="module")
def draws() -> list[Draw]:
    """Return the draws of all seeds except PAIRS_SEED."""
    draws = draws_of(SEEDS)
    assert len(draws) == len(SEEDS) * EXAMPLES
    return draws


def test_pairs_are_drawn_that_separable_supports_and_others():
    draws = draws_of([PAIRS_SEED])
    assert all(draw.front is not None for draw in draws)
    separable = [
        draw
        for draw in draws
        if not _native.why_not(draw.problem, "separable", "cuda", compute_capability=90)
    ]
    assert MIN_SEPARABLE <= len(separable) <= len(draws) - MIN_SEPARABLE
    assert {draw.front.conv_attributes["strides"][0] for draw in separable} == {1, 2}
    assert {len(draw.case.x_shape) - 2 for draw in draws} == {1, 2, 3}


@pytest.mark.extended
def test_every_cuda_algorithm_but_the_special_ones_is_planned_for_half_of_the_draws_at_least(draws):
    names = [entry.name for entry in _native.catalog() if entry.device == "cuda" and not entry.by_name_alone]
    assert {"implicit_gemm", "toeplitz", "few_channels", "tiled", "naive"} <= set(names)
    problems = [draw.problem for draw in draws]
    supported = {
        name: sum(not _native.why_not(problem, name, "cuda", compute_capability=90) for problem in problems)
        for name in names
    }
    assert supported["naive"] == len(draws)
    assert supported.pop("separable") == 0  # no draw has a preceding depthwise convolution
    assert supported.pop("channels_last") == 0  # draws have few channels
    assert supported.pop("channels_last_mma") <= len(draws) // 100  # and few multiples of 16 bytes
    assert supported.pop("quantised") == 0  # it takes codes
    assert supported.pop("channels_last_depthwise") > 0  # a depthwise draw with all tensors in NHWC
    assert supported.pop("pointwise") >= MIN_POINTWISE
    assert supported.pop("sliced_k") >= MIN_SLICED_K
    assert supported.pop("row_windows") >= MIN_ROW_WINDOWS
    assert supported.pop("depthwise") >= MIN_DEPTHWISE
    assert supported.pop("sliding_rows") >= MIN_SLIDING_ROWS
    assert all(count >= MIN_SUPPORTED for count in supported.values()), supported


def test_every_path_of_direct_is_drawn_with_epilogues(draws):
    problems = [draw for draw in draws if draw.type != "float64"]
    of_paths = []
    for path, minimum in MIN_DRAWS_OF_PATHS.items():
        of_path = [draw for draw in problems if path in _native.describe_plan(draw.problem, "cpu", "direct")]
        assert len(of_path) >= minimum
        of_paths += of_path
    assert {len(draw.case.x_shape) - 2 for draw in of_paths} == {1, 2, 3}
    for has_property in (
        lambda draw: bool(draw.epilogue),
        lambda draw: draw.has_residual,
        lambda draw: max(draw.case.attributes.get("strides", [1])) > 1,
        lambda draw: max(draw.case.attributes.get("dilations", [1])) > 1,
    ):
        assert {has_property(draw) for draw in of_paths} == {False, True}


def test_some_draws_are_empty_and_some_have_data_that_are_spread(draws):
    assert sum(0 in (*draw.case.x_shape, *draw.case.w_shape) for draw in draws) >= 5
    assert sum(draw.binades != (0, 0) for draw in draws) >= 10


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("number", range(len(BINADES)))
def test_data_that_are_spread_neither_overflow_nor_become_subnormal(name, number):
    draw = Draw(ConvCase((4, 3, 20, 21), (30, 3, 5, 5)), name, "tf32", number * SPREAD + SPREAD - 1)
    assert draw.binades == BINADES[number]
    x, w, *_ = draw.arrays()
    for array, binades in zip((x, w), draw.binades, strict=True):
        exponents = np.frexp(array.astype(np.float64))[1]
        assert np.ptp(exponents) > 1.5 * binades
    sizes = [np.abs(array.astype(np.float64)) for array in (x, w)]
    assert sizes[0].min() * sizes[1].min() > np.finfo(np.float32).tiny
    # The longest sum of a draw has 2^22 terms.
    assert sizes[0].max() * sizes[1].max() * 2.0**22 < np.finfo(np.float32).max
    assert all(ROUNDINGS[name].numpy == array.dtype for array in (x, w))


@pytest.mark.parametrize(("name", "refused"), [("float32", "direct"), ("float64", "reference")])
def test_an_algorithm_that_refuses_what_it_must_compute_is_named(name, refused, monkeypatch):
    draw = Draw(ConvCase((1, 2, 5, 6), (3, 2, 3, 3)), name, "tf32", 0)
    assert check(draw, "cpu") >= 1
    why_not = _native.why_not

    def refuses(problem, algorithm, device, **options):
        return "no" if algorithm == refused else why_not(problem, algorithm, device, **options)

    monkeypatch.setattr(_native, "why_not", refuses)
    with pytest.raises(AssertionError, match=f"^{refused} did not compute Draw"):
        check(draw, "cpu")


def draws_by_text(number: int, monkeypatch) -> dict[str, Draw]:
    """Return the draws of a seed by their text."""
    draws: dict[str, Draw] = {}
    with monkeypatch.context() as patched:
        patched.setattr(conv_property, "check", lambda draw, device: bool(draws.setdefault(repr(draw), draw)))
        conv_property.check_seed(number, "cpu")
    return draws


@pytest.mark.extended
@pytest.mark.slow
def test_the_program_names_the_seed_that_failed_and_no_other_and_repeats_it(monkeypatch, capsys):
    # Threads, because a process would not have these patches.
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", concurrent.futures.ThreadPoolExecutor)
    monkeypatch.setattr(conv_property, "check_seed", functools.partial(check_seed, examples=40))
    others = draws_by_text(2, monkeypatch) | draws_by_text(4, monkeypatch)
    # A draw of seed 3 only, with outputs so small that an error of 1 is no rounding.
    of_seed = draws_by_text(3, monkeypatch)
    chosen = next(
        text
        for text, draw in of_seed.items()
        if text not in others
        and draw.type == "float32"
        and draw.binades == (0, 0)
        and not draw.epilogue
        and 0 < draw.case.terms < 100
        and math.prod(draw.problem.output_shape) > 0
    )
    original_results = conv_property.results

    def with_a_wrong_element(draw, arrays, device):
        for name, y in original_results(draw, arrays, device):
            if repr(draw) == chosen and name.startswith("direct"):
                y.reshape(-1)[-1] += 1
            yield name, y

    monkeypatch.setattr(conv_property, "results", with_a_wrong_element)
    for seeds in ("2:5", "3:4"):
        monkeypatch.setattr(sys, "argv", ["conv_property.py", "--device", "cpu", "--seeds", seeds])
        assert conv_property.run_seeds(conv_property.check_seed) == 1
        printed = capsys.readouterr().out
        assert re.findall(r"^seed (\d+) failed:$", printed, re.MULTILINE) == ["3"]
        assert re.search(rf"AssertionError: direct \S* on {re.escape(chosen)}: 1 of \d+ wrong", printed)
        assert printed.endswith(", 1 seeds failed\n")
    monkeypatch.setattr(sys, "argv", ["conv_property.py", "--device", "cpu", "--seeds", "2:3"])
    assert conv_property.run_seeds(conv_property.check_seed) == 0
    assert capsys.readouterr().out.endswith(" results compared, 0 seeds failed\n")


def test_about_half_of_the_draws_have_layouts_of_every_combination(draws):
    in_layouts = [tuple(draw.layouts.values()) for draw in draws if draw.layouts]
    assert len(draws) // 4 < len(in_layouts) < 3 * len(draws) // 4  # Hypothesis repeats some seeds
    assert len(set(in_layouts)) == 8
    assert any(
        draw.layouts["residual_layout"] == "NHWC" for draw in draws if draw.layouts and draw.has_residual
    )
