"""The algorithm `row_windows`: windows of image rows in shared memory, taps of a filter row along K."""

from __future__ import annotations

import re

import numpy as np
import pytest
from card_calls import ELEMENTS, EPILOGUES, assert_near, cast_to, conv_on_card, problem_of, reference_of
from conv_cases import ConvCase
from convswap import _native

# A wgmma has 64 rows, filters of one output row or of several, and 128 columns; a window has eight 16-bit
# numbers or four float32.
CASES = {
    "a first layer": ConvCase((2, 3, 44, 48), (64, 3, 7, 7), True, {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "sixteen filters, four rows of each": ConvCase(
        (3, 3, 37, 40), (16, 3, 3, 3), True, {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    ),
    "one filter": ConvCase((1, 1, 33, 64), (1, 1, 5, 5), True, {"pads": [2, 2, 2, 2]}),
    "two blocks of filters": ConvCase(
        (2, 3, 47, 47), (96, 3, 11, 11), True, {"strides": [4, 4], "pads": [2, 2, 2, 2]}
    ),
    "of odd width": ConvCase((2, 2, 20, 31), (24, 2, 3, 3), False, {"pads": [1, 1, 1, 1]}),
    "without padding": ConvCase((2, 4, 30, 36), (40, 4, 5, 5), True),
    # Loads of windows depend on the width, the stride and the element type.
    "words and no pairs": ConvCase(
        (2, 3, 30, 42), (64, 3, 5, 5), True, {"strides": [2, 2], "pads": [2, 2, 2, 2]}
    ),
    "odd rows of words": ConvCase(
        (2, 3, 30, 43), (32, 3, 5, 5), True, {"strides": [2, 2], "pads": [2, 2, 2, 2]}
    ),
    "patches": ConvCase((2, 3, 32, 96), (96, 3, 4, 4), True, {"strides": [4, 4]}),
    "patches of no pairs": ConvCase((2, 3, 32, 94), (48, 3, 4, 4), True, {"strides": [4, 4]}),
    "patches far apart": ConvCase((2, 3, 33, 134), (48, 3, 7, 4), True, {"strides": [8, 8]}),
    "groups": ConvCase((2, 12, 18, 20), (30, 4, 3, 3), True, {"group": 3, "pads": [1, 1, 1, 1]}),
    "rows apart": ConvCase((1, 2, 40, 24), (20, 2, 3, 3), True, {"dilations": [3, 1], "strides": [2, 1]}),
    "uneven padding": ConvCase((1, 3, 20, 24), (33, 3, 4, 2), True, {"pads": [0, 1, 3, 5]}),
    "1-D": ConvCase((3, 2, 900), (64, 2, 10), True, {"strides": [2], "pads": [4, 5]}),
    "one tap": ConvCase((2, 16, 9, 12), (50, 16, 1, 1), True),
}
# Blocks have enough bands to fill and free each slot several times, with one to four wgmmas of 128 columns in
# a band.
BANDS_OF_A_BLOCK = 5
MANY_BANDS = {
    "small images": ConvCase((700, 1, 9, 12), (64, 1, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    "of more columns": ConvCase((700, 2, 14, 16), (64, 2, 3, 3), False, {"pads": [1, 1, 1, 1]}),
    "of many columns": ConvCase((700, 1, 30, 16), (64, 1, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    "few blocks of a group": ConvCase((9, 88, 18, 20), (88, 2, 3, 3), True, {"group": 44, "strides": [1, 1]}),
}
TF32 = 2.0**-11


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", [*CASES, *MANY_BANDS])
def test_all_cases_are_supported(name, element):
    problem = problem_of((CASES | MANY_BANDS)[name], type=element)
    assert not _native.why_not(problem, "row_windows", "cuda", compute_capability=90)


@pytest.mark.gpu
@pytest.mark.algorithm("row_windows")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", CASES)
def test_every_band_of_it_is_the_definition_and_repeats(name, element):
    case = CASES[name]
    x, w, b = cast_to(case.arrays(), element)
    reference = reference_of(x, w, b, case.attributes)
    magnitude = reference_of(*(None if each is None else np.abs(each) for each in (x, w, b)), case.attributes)
    tilings = len(_native.alternatives(problem_of(case, type=element), "row_windows", 12))
    assert tilings >= 1
    for number in range(tilings):
        y = conv_on_card("row_windows", x, w, b, case.attributes, alternative=number)
        assert_near(y, reference, magnitude, case.terms, element, TF32)
        again = conv_on_card("row_windows", x, w, b, case.attributes, alternative=number)
        assert y.tobytes() == again.tobytes()


@pytest.mark.gpu
@pytest.mark.algorithm("row_windows")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", MANY_BANDS)
def test_slots_are_used_again_and_again(name, element):
    case = MANY_BANDS[name]
    problem = problem_of(case, type=element)
    x, w, b = cast_to(case.arrays(), element)
    reference = reference_of(x, w, b, case.attributes)
    magnitude = reference_of(*(None if each is None else np.abs(each) for each in (x, w, b)), case.attributes)
    blocks = re.search(r"(\d+) x \d+ blocks", _native.describe_plan(problem, "cuda", "row_windows"))
    assert case.x_shape[0] >= (BANDS_OF_A_BLOCK - 2) * int(blocks[1])
    for number in range(len(_native.alternatives(problem, "row_windows", 6))):
        for _ in range(3):
            y = conv_on_card("row_windows", x, w, b, case.attributes, alternative=number)
            assert_near(y, reference, magnitude, case.terms, element, TF32)


@pytest.mark.gpu
@pytest.mark.algorithm("row_windows")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_are_the_definition(name, element):
    for case_name in ("a first layer", "of odd width", "two blocks of filters"):
        case = CASES[case_name]
        attributes = {**case.attributes, **EPILOGUES[name]}
        x, w, b = cast_to(case.arrays(), element)
        y, reference = conv_on_card("row_windows", x, w, b, attributes), reference_of(x, w, b, attributes)
        magnitude = reference_of(
            *(None if each is None else np.abs(each) for each in (x, w, b)), case.attributes
        )
        largest = magnitude.max()
        # SiLU and HardSwish have slopes of at most 1.5 and round a dozen times.
        assert_near(y, reference, np.full(y.shape, 1.5 * largest), case.terms + 12, element, TF32)


@pytest.mark.gpu
@pytest.mark.algorithm("row_windows")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", ["a first layer", "of odd width", "groups"])
def test_infinities_and_nan_reach_the_outputs_that_see_them_and_no_others(name, element):
    case = CASES[name]
    x, w, b = cast_to(case.arrays(), element)
    flat = x.reshape(-1)
    flat[[0, flat.size // 2 + 3, flat.size - 1]] = np.inf, np.nan, -np.inf
    attributes = {**case.attributes, "activation": "Relu"}
    y, reference = conv_on_card("row_windows", x, w, b, attributes), reference_of(x, w, b, attributes)
    is_finite = np.isfinite(reference)
    assert np.array_equal(np.isfinite(y.astype(np.float64)), is_finite) and not is_finite.all()
    wide = y[~is_finite].astype(np.float64)
    assert np.array_equal(wide, reference[~is_finite], equal_nan=True)


@pytest.mark.gpu
@pytest.mark.algorithm("row_windows")
def test_rows_that_are_no_whole_words_are_loaded_number_by_number():
    case = CASES["a first layer"]
    x, w, b = cast_to(case.arrays(), "float16")
    odd = np.ascontiguousarray(x[:, :, :, 1:])
    y = conv_on_card("row_windows", odd, w, b, case.attributes)
    reference = reference_of(odd, w, b, case.attributes)
    magnitude = reference_of(np.abs(odd), np.abs(w), np.abs(b), case.attributes)
    assert_near(y, reference, magnitude, case.terms, "float16")


@pytest.mark.parametrize(
    "problem, words",
    [
        (_native.Problem((1, 8, 4, 8, 8), (8, 8, 3, 3, 3)), "3 spatial axes"),
        (_native.Problem((1, 3, 32, 32), (8, 3, 3, 3), precision="ieee"), "precision tf32"),
        (_native.Problem((1, 3, 32, 32), (8, 3, 3, 3), type="float64"), "float64"),
        (_native.Problem((1, 3, 32, 32), (8, 3, 3, 3), dilations=[1, 2]), "dilated"),
        (_native.Problem((1, 3, 32, 32), (8, 3, 3, 10), strides=[1, 3]), "stride of 3"),
        (_native.Problem((1, 64, 32, 32), (8, 64, 3, 3)), "more than 128 windows"),
        (_native.Problem((1, 3, 32, 2**20), (8, 3, 3, 3)), "shared memory"),
        (_native.Problem((1, 200, 32, 32), (8, 200, 1, 1)), "more than 128 windows"),
    ],
)
def test_unsupported_problems_have_a_reason(problem, words):
    assert words in _native.why_not(problem, "row_windows", "cuda", compute_capability=90)


def test_other_cards_are_refused():
    for capability in (80, 100):
        assert "9.0" in _native.why_not(
            problem_of(CASES["1-D"]), "row_windows", "cuda", compute_capability=capability
        )
