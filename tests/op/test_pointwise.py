"""The algorithm `pointwise`: convolutions with 1x1 filters."""

from __future__ import annotations

import numpy as np
import pytest
from card_calls import ELEMENTS, assert_near, cast_to, conv_on_card, problem_of, reference_of
from conv_cases import ConvCase
from convswap import _native

# Blocks have 32 to 256 filters, tiles 64 pixels, chunks 32 to 128 channels; cases have less than one of each,
# and more. Pixels are loaded in pairs if the planes' size is even.
CASES = {
    "one of each": ConvCase((1, 1, 1, 1), (1, 1, 1, 1)),
    "a chunk and a tile": ConvCase((1, 64, 8, 8), (64, 64, 1, 1), True),
    "odd everywhere": ConvCase((3, 67, 7, 9), (65, 67, 1, 1), True),
    "many filters": ConvCase((2, 48, 13, 11), (500, 48, 1, 1), True),
    "many channels": ConvCase((2, 700, 6, 5), (24, 700, 1, 1)),
    "many tiles": ConvCase((9, 130, 56, 56), (96, 130, 1, 1), True),
    "strided": ConvCase((2, 40, 19, 22), (70, 40, 1, 1), True, {"strides": [2, 3]}),
    "groups": ConvCase((2, 36, 9, 10), (66, 12, 1, 1), True, {"group": 3}),
    "dilated": ConvCase((1, 20, 5, 5), (8, 20, 1, 1), False, {"dilations": [3, 2]}),
    "1-D": ConvCase((4, 33, 1000), (130, 33, 1), True, {"strides": [3]}),
    "3-D": ConvCase((2, 20, 5, 6, 7), (24, 20, 1, 1, 1), True, {"strides": [2, 1, 2]}),
}
# Rounding error of a float32 operand: half a unit of 11 bits.
TF32 = 2.0**-11
EPILOGUES = {
    "relu": {"activation": "Relu"},
    "clip": {"activation": "Clip", "activation_alpha": -0.5, "activation_beta": 0.75},
    "sigmoid": {"activation": "Sigmoid"},
    "pool": {"activation": "Relu", "pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]},
}


def conv(x, w, b, attributes: dict, z=None, **options) -> np.ndarray:
    return conv_on_card("pointwise", x, w, b, attributes, z, **options)


@pytest.mark.gpu
@pytest.mark.algorithm("pointwise")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_definition(name, element):
    case = CASES[name]
    x, w, b = cast_to(case.arrays(), element)
    reference = reference_of(x, w, b, case.attributes)
    magnitude = reference_of(*(None if each is None else np.abs(each) for each in (x, w, b)), case.attributes)
    for number in range(len(_native.alternatives(problem_of(case, type=element), "pointwise", 16))):
        y = conv(x, w, b, case.attributes, alternative=number)
        assert_near(y, reference, magnitude, case.terms, element, TF32)


@pytest.mark.gpu
@pytest.mark.algorithm("pointwise")
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_are_the_definition(name, has_residual, element):
    if element != "float32" and name in ("sigmoid", "pool"):
        pytest.skip("a second kernel would round a second time")
    # Ten rows of nine pixels are pairs; nine rows are an odd number of pixels.
    for rows in (10, 9):
        case = ConvCase((3, 70, rows, 9), (200, 70, 1, 1), True)
        z = np.random.default_rng(1).standard_normal((3, 200, rows, 9)) if has_residual else None
        x, w, b, z = cast_to((*case.arrays(), z), element)
        y = conv(x, w, b, EPILOGUES[name], z)
        reference = reference_of(x, w, b, EPILOGUES[name], z)
        magnitude = reference_of(np.abs(x), np.abs(w), np.abs(b), {})
        largest = magnitude.max() + (0 if z is None else np.abs(z.astype(np.float64)).max())
        assert_near(y, reference, np.broadcast_to(largest, y.shape), case.terms, element, TF32)


@pytest.mark.gpu
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("activation", ["SiLU", "HardSwish"])
@pytest.mark.parametrize("algorithm", ["pointwise", "many_channels", "few_channels"])
def test_swish_is_the_definition(algorithm, activation, has_residual, element):
    if algorithm == "few_channels" and has_residual and element != "float32":
        pytest.skip("it adds a residual in a second kernel, which would round a second time")
    # Ten rows of nine pixels are pairs; nine rows are an odd number. 203 and 13 filters are no multiples of
    # 8.
    for filters, rows in ((203, 10), (203, 9), (13, 9)):
        case = ConvCase((3, 70, rows, 9), (filters, 70, 1, 1), True)
        z = np.random.default_rng(1).standard_normal((3, filters, rows, 9)) if has_residual else None
        x, w, b, z = cast_to((*case.arrays(), z), element)
        reference = reference_of(x, w, b, {"activation": activation}, z)
        magnitude = reference_of(np.abs(x), np.abs(w), np.abs(b), {}, None if z is None else np.abs(z))
        residual = {"residual_shape": z.shape} if has_residual else {}
        problem = problem_of(case, type=element, activation=activation, **residual)
        for number in range(len(_native.alternatives(problem, algorithm, 16)) or 1):
            y = conv_on_card(algorithm, x, w, b, {"activation": activation}, z, alternative=number)
            # Both have slopes of at largest 1.5 and round a dozen times.
            assert_near(y, reference, 1.5 * magnitude, case.terms + 12, element, TF32)


@pytest.mark.gpu
@pytest.mark.algorithm("pointwise")
def test_numbers_of_all_exponents_infinities_and_nan_are_as_they_are():
    case = ConvCase((2, 32, 9, 9), (40, 32, 1, 1))
    x, w, _ = case.arrays()
    random = np.random.default_rng(2)
    x *= np.exp2(random.integers(-60, 60, x.shape)).astype(np.float32)
    w *= np.exp2(random.integers(-40, 40, w.shape)).astype(np.float32)
    x[0, 3, 2, 2], x[1, 5, 4, 4], x[1, 7, 0, 1] = np.inf, -np.inf, np.nan
    y, reference = conv(x, w, None, {}), reference_of(x, w, None, {})
    is_finite = np.isfinite(reference)
    assert np.array_equal(y[~is_finite], reference[~is_finite].astype(np.float32), equal_nan=True)
    magnitude = reference_of(*(np.abs(np.where(np.isfinite(each), each, 0)) for each in (x, w)), None, {})
    assert_near(y[is_finite], reference[is_finite], magnitude[is_finite], case.terms, operand=TF32)


@pytest.mark.gpu
@pytest.mark.algorithm("pointwise")
def test_weights_of_any_number_of_channels_are_loaded():
    """Weights of filters that do not begin at a multiple of 16 bytes are loaded one by one."""
    for channels, element in (
        (64, "float32"),
        (65, "float32"),
        (66, "float32"),
        (68, "float16"),
        (67, "bfloat16"),
    ):
        case = ConvCase((1, channels, 9, 9), (33, channels, 1, 1))
        x, w, b = cast_to(case.arrays(), element)
        magnitude = reference_of(np.abs(x), np.abs(w), None, {})
        assert_near(conv(x, w, b, {}), reference_of(x, w, b, {}), magnitude, case.terms, element, TF32)


@pytest.mark.parametrize(
    "problem, words",
    [
        (_native.Problem((1, 32, 8, 8), (32, 32, 3, 3)), "more than one tap"),
        (_native.Problem((1, 32, 8, 8), (32, 32, 1, 1), pads=[1] * 4), "does not pad"),
        (_native.Problem((1, 32, 8, 8), (32, 32, 1, 1), precision="ieee"), "tf32 alone"),
        (_native.Problem((1, 32, 8, 8), (32, 32, 1, 1), type="float64"), "float64"),
        (_native.Problem((1, 2048, 7, 7), (512, 2048, 1, 1)), "do not fit"),
    ],
)
def test_unsupported_problems_have_a_reason(problem, words):
    assert words in _native.why_not(problem, "pointwise", "cuda", compute_capability=90)


def test_older_cards_are_refused():
    problem = _native.Problem((1, 32, 8, 8), (32, 32, 1, 1))
    assert "9.0" in _native.why_not(problem, "pointwise", "cuda", compute_capability=80)


def test_the_rule_takes_it_where_little_follows_from_much_memory():
    for channels, filters in ((256, 64), (64, 256), (64, 64)):
        problem = _native.Problem((64, channels, 56, 56), (filters, channels, 1, 1))
        assert _native.choose(problem, "cuda", compute_capability=90) == "pointwise"
        half = _native.Problem((64, channels, 56, 56), (filters, channels, 1, 1), type="float16")
        assert _native.choose(half, "cuda", compute_capability=90) == "pointwise"
    deep = _native.Problem((64, 2048, 7, 7), (512, 2048, 1, 1))
    assert _native.choose(deep, "cuda", compute_capability=90) == "many_channels"
