"""The algorithm `sliced_k`: few pixels, with K split over a block's warps."""

from __future__ import annotations

import numpy as np
import pytest
from card_calls import EPILOGUES, assert_near, cast_to, conv_on_card, problem_of, reference_of
from conv_cases import ConvCase
from convswap import _native
from convswap.reference.metrics import relative_l2_error
from convswap.timing.suites import suite_layers

# A step along K is 16 channels times taps. Blocks have 16 to 64 filters and 8 to 32 pixels; a thread loads up
# to four pixels together if the planes' size is a multiple of four.
CASES = {
    "one filter of two channels": ConvCase((1, 2, 1, 1), (1, 2, 1, 1)),
    "one pixel": ConvCase((1, 480, 1, 1), (20, 480, 1, 1), True),
    "one pixel of odd depth": ConvCase((3, 67, 1, 1), (33, 67, 1, 1), True),
    "planes of 49": ConvCase((2, 160, 7, 7), (90, 160, 1, 1), True),
    "planes of 196": ConvCase((1, 96, 14, 14), (40, 96, 1, 1), True),
    "planes of 42, which are pairs": ConvCase((3, 70, 6, 7), (40, 70, 1, 1), True),
    "strided": ConvCase((2, 40, 19, 22), (70, 40, 1, 1), True, {"strides": [2, 3]}),
    "3x3": ConvCase((1, 64, 10, 10), (80, 64, 3, 3), True, {"pads": [1, 1, 1, 1]}),
    "3x3 of few channels, strided": ConvCase((2, 3, 17, 18), (24, 3, 3, 3), False, {"strides": [2, 2]}),
    "5x2, dilated, uneven padding": ConvCase(
        (1, 20, 13, 12), (17, 20, 5, 2), True, {"dilations": [2, 3], "pads": [4, 0, 1, 2]}
    ),
    "groups": ConvCase((2, 36, 9, 10), (66, 12, 3, 3), True, {"group": 3}),
    "padding around one tap": ConvCase((1, 20, 5, 5), (8, 20, 1, 1), False, {"pads": [1, 0, 0, 2]}),
    "1-D": ConvCase((4, 33, 100), (130, 33, 5), True, {"strides": [3], "pads": [2, 2]}),
    "depthwise": ConvCase((2, 20, 9, 10), (20, 1, 3, 3), True, {"group": 20, "pads": [1, 1, 1, 1]}),
    "a filter of sound": ConvCase((2, 1, 1, 600), (1, 1, 1, 256), True, {"strides": [1, 2]}),
}
# Rounding errors of a float32 operand: half a unit of 11 bits in tf32, of 23 bits in two TF32 numbers in
# ieee.
TF32, PAIRS = 2.0**-11, 2.0**-23
# Element type, precision, and rounding error of a float32 operand.
FORMATS = {
    "float32": ("float32", "tf32", TF32),
    "ieee": ("float32", "ieee", PAIRS),
    "float16": ("float16", "tf32", 0.0),
    "bfloat16": ("bfloat16", "tf32", 0.0),
}


def operand_error(case: ConvCase, operand: float) -> float:
    """Return the rounding error of an operand: depthwise convolutions do not round to TF32."""
    is_depthwise = case.w_shape[1] == 1 and case.attributes.get("group", 1) == case.w_shape[0]
    return min(operand, PAIRS) if is_depthwise else operand


@pytest.mark.gpu
@pytest.mark.algorithm("sliced_k")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_every_tile_of_it_is_the_definition_and_repeats(name, form):
    case = CASES[name]
    element, precision, operand = FORMATS[form]
    options = {"precision": precision}
    x, w, b = cast_to(case.arrays(), element)
    reference = reference_of(x, w, b, case.attributes)
    magnitude = reference_of(*(None if each is None else np.abs(each) for each in (x, w, b)), case.attributes)
    tiles = len(_native.alternatives(problem_of(case, type=element, **options), "sliced_k", 20))
    assert tiles == 12
    for number in range(tiles):
        y = conv_on_card("sliced_k", x, w, b, case.attributes, alternative=number, **options)
        assert_near(y, reference, magnitude, case.terms, element, operand_error(case, operand))
        again = conv_on_card("sliced_k", x, w, b, case.attributes, alternative=number, **options)
        assert y.tobytes() == again.tobytes()


# The default provider's float32 has errors of 6e-8 to 4e-7 at such layers.
@pytest.mark.gpu
@pytest.mark.algorithm("sliced_k")
@pytest.mark.parametrize("name", ["3x3", "planes of 196", "one pixel", "1-D", "a filter of sound"])
def test_pairs_are_as_accurate_as_float32(name):
    case = CASES[name]
    x, w, b = cast_to(case.arrays(), "float32")
    reference = reference_of(x, w, b, case.attributes)
    for number in range(12):
        y = conv_on_card("sliced_k", x, w, b, case.attributes, alternative=number, precision="ieee")
        assert relative_l2_error(y, reference) < 4e-7


@pytest.mark.gpu
@pytest.mark.algorithm("sliced_k")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_are_the_definition(name, has_residual, form):
    element, precision, operand = FORMATS[form]
    for case_name in ("planes of 49", "planes of 196", "3x3"):
        case = CASES[case_name]
        attributes = {**case.attributes, **EPILOGUES[name]}
        shape = reference_of(*case.arrays(), case.attributes).shape
        z = np.random.default_rng(1).standard_normal(shape) if has_residual else None
        x, w, b, z = cast_to((*case.arrays(), z), element)
        y = conv_on_card("sliced_k", x, w, b, attributes, z, precision=precision)
        reference = reference_of(x, w, b, attributes, z)
        magnitude = reference_of(np.abs(x), np.abs(w), np.abs(b), case.attributes)
        largest = magnitude.max() + (0 if z is None else np.abs(z.astype(np.float64)).max())
        # SiLU and HardSwish have slopes of at most 1.5 and round a dozen times.
        assert_near(y, reference, np.full(y.shape, 1.5 * largest), case.terms + 12, element, operand)


@pytest.mark.gpu
@pytest.mark.algorithm("sliced_k")
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("name", ["planes of 49", "planes of 196", "3x3", "groups"])
def test_infinities_and_nan_reach_the_outputs_that_see_them_and_no_others(name, precision):
    case = CASES[name]
    x, w, _ = case.arrays()
    flat = x.reshape(-1)
    flat[[0, flat.size // 2, flat.size - 1]] = np.inf, np.nan, -np.inf
    y = conv_on_card("sliced_k", x, w, None, case.attributes, precision=precision)
    reference = reference_of(x, w, None, case.attributes)
    is_finite = np.isfinite(reference)
    assert np.array_equal(np.isfinite(y), is_finite) and not is_finite.all()
    assert np.array_equal(y[~is_finite], reference[~is_finite].astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    "problem, words",
    [
        (_native.Problem((1, 8, 4, 8, 8), (8, 8, 3, 3, 3)), "3 spatial axes"),
        (_native.Problem((1, 32, 8, 8), (32, 32, 1, 1), type="float64"), "float64"),
        (_native.Problem((1, 1, 8, 8), (2**21, 1, 1, 1)), "65535 blocks of 16 filters"),
        (_native.Problem((1, 40_000, 4, 4), (680_000, 1, 1, 1), group=40_000), "65535 blocks of 16 filters"),
        (
            _native.Problem((1, 8, 2, 2), (8, 8, 1, 1), pads=[2**31 - 1] * 4, strides=[2**31 - 1] * 2),
            "32 bits",
        ),
        (_native.Problem((1, 2**29, 1, 1), (1, 2**29, 1, 1)), "32 bits"),
        (_native.Problem((1, 2**31, 0, 1), (1, 2**31, 1, 1), pads=[1, 0, 1, 0]), "32 bits"),
    ],
)
def test_unsupported_problems_have_a_reason(problem, words):
    assert words in _native.why_not(problem, "sliced_k", "cuda", compute_capability=90)


def test_older_cards_are_refused():
    assert "8.0" in _native.why_not(problem_of(CASES["3x3"]), "sliced_k", "cuda", compute_capability=75)


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_the_rule_takes_it_for_single_small_images(capability):
    for x, w, pads in (
        ((1, 1152, 1, 1), (48, 1152, 1, 1), 0),
        ((1, 960, 7, 7), (160, 960, 1, 1), 0),
        ((1, 128, 10, 10), (128, 128, 3, 3), 1),
    ):
        for form, (element, precision, _) in FORMATS.items():
            problem = _native.Problem(x, w, type=element, precision=precision, pads=[pads] * 4)
            assert _native.choose(problem, "cuda", compute_capability=capability) == "sliced_k", (x, form)


def test_splitting_numbers_costs_less_than_twice_the_time():
    for layer in suite_layers("one-image", None):
        problems = [
            _native.Problem(layer.input_shape(1), layer.weight_shape, precision=precision, **layer.attributes)
            for precision in ("tf32", "ieee")
        ]
        rounded, split = (
            _native.estimates(each, "cuda", compute_capability=90)["sliced_k"] for each in problems
        )
        # Depthwise convolutions split numbers in both precisions.
        is_depthwise = layer.group == layer.weight_shape[0] > 1
        assert rounded == split if is_depthwise else rounded < split < 2 * rounded, layer.name


def test_the_rule_takes_others_for_many_large_images():
    many = _native.Problem((64, 64, 56, 56), (64, 64, 3, 3), pads=[1] * 4)
    assert _native.choose(many, "cuda", compute_capability=90) == "many_channels"


def test_the_rule_takes_it_for_most_dense_layers_of_one_image():
    chosen = [
        _native.choose(
            _native.Problem(layer.input_shape(1), layer.weight_shape, **layer.attributes),
            "cuda",
            compute_capability=90,
        )
        for layer in suite_layers("one-image", None)
        if layer.group == 1
    ]
    assert chosen.count("sliced_k") > len(chosen) / 2
