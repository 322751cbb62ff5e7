"""The algorithms `depthwise` and `sliding_rows`: depthwise convolutions."""

from __future__ import annotations

import numpy as np
import pytest
from card_calls import ELEMENTS, assert_near, cast_to, conv_on_card, problem_of, reference_of
from conv_cases import ConvCase
from convswap import _native

FLOAT32 = 2.0**-24


def depthwise_case(
    x_shape: tuple[int, ...], kernel: tuple[int, ...], multiplier: int = 1, **attributes
) -> ConvCase:
    """Return a depthwise case with a bias, padded by half a filter unless `attributes` have pads."""
    channels, dilations = x_shape[1], attributes.get("dilations", [1] * len(kernel))
    half = [(taps - 1) * dilation // 2 for taps, dilation in zip(kernel, dilations, strict=True)]
    attributes = {"group": channels, "pads": [*half, *half], **attributes}
    return ConvCase(x_shape, (channels * multiplier, 1, *kernel), True, attributes)


# Rows loaded by four columns, by two and one by one; one plane and many planes in a block; tiles that are
# parts of rows and of columns; a last block that is half empty.
CASES = {
    "3x3": depthwise_case((2, 5, 56, 56), (3, 3)),
    "3x3 of many small": depthwise_case((7, 33, 14, 14), (3, 3)),
    "3x3 of the smallest": depthwise_case((3, 50, 7, 7), (3, 3)),
    "3x3 of a wide image": depthwise_case((1, 2, 70, 1500), (3, 3)),
    "3x3 strided": depthwise_case((2, 9, 57, 60), (3, 3), strides=[2, 2]),
    "3x3 dilated": depthwise_case((2, 9, 31, 44), (3, 3), dilations=[2, 3]),
    "3x3 unpadded": depthwise_case((2, 9, 20, 24), (3, 3), pads=[0, 0, 0, 0]),
    "3x3 padded at one side": depthwise_case((2, 9, 20, 24), (3, 3), pads=[0, 2, 2, 0]),
    "5x5": depthwise_case((2, 19, 14, 14), (5, 5)),
    "5x5 strided": depthwise_case((2, 6, 28, 28), (5, 5), strides=[2, 1]),
    "7x7": depthwise_case((2, 6, 56, 56), (7, 7)),
    "3x3 of odd widths, strided": depthwise_case((2, 9, 30, 31), (3, 3), strides=[2, 2]),
    "3x3 with TensorFlow's padding": depthwise_case(
        (2, 9, 30, 92), (3, 3), strides=[2, 2], pads=[0, 0, 1, 1]
    ),
    "5x5 strided alike": depthwise_case((2, 19, 14, 14), (5, 5), strides=[2, 2]),
    "7x7 strided": depthwise_case((2, 6, 63, 200), (7, 7), strides=[2, 2]),
    "2x2": depthwise_case((2, 6, 17, 18), (2, 2), strides=[2, 2]),
    "9x4": depthwise_case((2, 6, 17, 18), (9, 4)),
    "31x31": depthwise_case((1, 3, 40, 40), (31, 31)),
    "one tap": depthwise_case((2, 6, 17, 18), (1, 1)),
    "three filters of a channel": depthwise_case((2, 6, 17, 20), (3, 3), 3),
    "1-D": depthwise_case((3, 40, 1000), (3,)),
    "1-D dilated": depthwise_case((2, 17, 4001), (3,), dilations=[8]),
    "1-D with a long filter": depthwise_case((2, 5, 5000), (1023,)),
    "1-D strided": depthwise_case((2, 17, 999), (7,), strides=[3]),
    "3-D": depthwise_case((2, 4, 6, 12, 13), (3, 3, 3), strides=[1, 2, 1]),
    "3-D with flat filters": depthwise_case((2, 4, 6, 12, 12), (1, 5, 5)),
}
# Cases that `sliding_rows` supports.
SLIDING = (
    *("3x3", "3x3 of many small", "3x3 of the smallest", "3x3 of a wide image", "3x3 strided"),
    *("3x3 of odd widths, strided", "3x3 with TensorFlow's padding", "5x5", "5x5 strided alike"),
    *("7x7", "7x7 strided", "three filters of a channel"),
)
SUPPORTED = [("depthwise", name) for name in CASES] + [("sliding_rows", name) for name in SLIDING]
EPILOGUES = {
    "relu": {"activation": "Relu"},
    "clip": {"activation": "Clip", "activation_alpha": -0.5, "activation_beta": 0.75},
    "SiLU": {"activation": "SiLU"},
    "HardSwish": {"activation": "HardSwish"},
    "pool": {"activation": "Relu", "pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]},
}


def magnitude_of(x, w, b, attributes: dict) -> np.ndarray:
    return reference_of(*(None if each is None else np.abs(each) for each in (x, w, b)), attributes)


@pytest.mark.gpu
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize(("algorithm", "name"), SUPPORTED)
def test_it_is_the_definition_with_sums_in_float32(algorithm, name, element, cuda):
    case = CASES[name]
    x, w, b = cast_to(case.arrays(), element)
    reference, magnitude = reference_of(x, w, b, case.attributes), magnitude_of(x, w, b, case.attributes)
    for precision in ("tf32", "ieee"):
        y = conv_on_card(algorithm, x, w, b, case.attributes, precision=precision)
        assert_near(y, reference, magnitude, case.terms, element, addition=FLOAT32)
        again = conv_on_card(algorithm, x, w, b, case.attributes, precision=precision)
        assert y.tobytes() == again.tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize("algorithm", ["depthwise", "sliding_rows"])
def test_epilogues_are_the_definition(algorithm, name, has_residual, element, cuda):
    if element != "float32" and name == "pool":
        pytest.skip("a second kernel would round a second time")
    for case_name in ("3x3 of many small", "3x3 strided", "2x2", "3x3 of odd widths, strided"):
        if (algorithm, case_name) not in SUPPORTED:
            continue
        case = CASES[case_name]
        attributes = {**case.attributes, **EPILOGUES[name]}
        shape = reference_of(*case.arrays(), case.attributes).shape
        z = np.random.default_rng(1).standard_normal(shape) if has_residual else None
        x, w, b, z = cast_to((*case.arrays(), z), element)
        y, reference = conv_on_card(algorithm, x, w, b, attributes, z), reference_of(x, w, b, attributes, z)
        largest = magnitude_of(x, w, b, case.attributes).max()
        largest += 0 if z is None else np.abs(z.astype(np.float64)).max()
        # SiLU and HardSwish have slopes of at largest 1.5 and round a dozen times.
        assert_near(
            y, reference, np.broadcast_to(1.5 * largest, y.shape), case.terms + 12, element, addition=FLOAT32
        )


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("algorithm", "name"),
    [("depthwise", name) for name in ("3x3", "3x3 of many small", "5x5 strided", "9x4", "1-D dilated", "3-D")]
    + [("sliding_rows", name) for name in ("3x3", "3x3 of many small", "3x3 of a wide image", "7x7")],
)
def test_infinities_and_nan_reach_the_outputs_that_see_them_and_no_others(algorithm, name, cuda):
    case = CASES[name]
    x, w, _ = case.arrays()
    flat = x.reshape(-1)
    flat[[0, flat.size // 2, flat.size - 1]] = np.inf, np.nan, -np.inf
    y, reference = (
        conv_on_card(algorithm, x, w, None, case.attributes),
        reference_of(x, w, None, case.attributes),
    )
    is_finite = np.isfinite(reference)
    assert np.array_equal(np.isfinite(y), is_finite) and not is_finite.all()
    assert np.array_equal(y[~is_finite], reference[~is_finite].astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (_native.Problem((1, 32, 8, 8), (32, 32, 3, 3)), "see 32 channels"),
        (_native.Problem((1, 32, 8, 8), (16, 2, 3, 3), group=16), "see 2 channels"),
        (_native.Problem((1, 32, 8, 8), (32, 1, 3, 3), group=32, type="float64"), "float64"),
        (_native.Problem((1, 1, 99), (1, 1, 3), dilations=[50_000], pads=[99_999] * 2), "does not fit"),
    ],
)
def test_unsupported_problems_have_a_reason(problem, words):
    assert words in _native.why_not(problem, "depthwise", "cuda", compute_capability=90)


def test_sliding_rows_takes_images_with_filters_of_its_list():
    supported = [
        name
        for name, case in CASES.items()
        if not _native.why_not(problem_of(case), "sliding_rows", "cuda", compute_capability=90)
    ]
    assert sorted(supported) == sorted(SLIDING)
    beyond = {"strides": [2, 2], "pads": [1, 1, 1, 2**31 - 4]}
    for problem, words in (
        (problem_of(CASES["9x4"]), "filters of 3x3, 5x5 or 7x7 taps"),
        (_native.Problem((1, 32, 8, 8), (16, 2, 3, 3), group=16, pads=[1] * 4), "see 2 channels"),
        (_native.Problem((1, 8, 8, 8), (8, 1, 3, 3), group=8, pads=[1] * 4, type="float64"), "float64"),
        (_native.Problem((1, 1, 1, 4), (1, 1, 3, 3), **beyond), "32 bits"),
    ):
        assert words in _native.why_not(problem, "sliding_rows", "cuda", compute_capability=90)


@pytest.mark.parametrize("capability", [75, 80, 86, 90, 100, 120])
def test_the_rule_takes_one_of_them_on_every_card_for_layers_of_real_networks(capability):
    names = ("3x3", "3x3 of many small", "3x3 strided", "5x5", "7x7", "1-D", "1-D dilated")
    for name in names:
        for element in ELEMENTS:
            problem = problem_of(CASES[name], type=element)
            assert not _native.why_not(problem, "depthwise", "cuda", compute_capability=capability)
            if capability == 90 and name.startswith("1-D"):
                # On small problems other algorithms are as fast.
                continue
            chosen = _native.choose(problem, "cuda", compute_capability=capability)
            if (chosen, name) not in SUPPORTED:
                # On small problems the estimates differ by less than their errors.
                estimates = _native.estimates(problem, "cuda", compute_capability=capability)
                depthwise = min(
                    estimates[each] for each in ("depthwise", "sliding_rows") if each in estimates
                )
                assert depthwise < 1.05 * estimates[chosen], (chosen, name)
    mobile = _native.Problem((64, 96, 112, 112), (96, 1, 3, 3), group=96, pads=[1] * 4)
    assert _native.choose(mobile, "cuda", compute_capability=capability) == "sliding_rows"


@pytest.mark.parametrize("length", [44098, 22176, 11215, 5734, 2994, 1624, 939, 596])
@pytest.mark.parametrize("batch", [1, 4, 32])
def test_the_rule_does_not_round_filters_of_one_channel_to_tf32(batch, length):
    # Basic Pitch halves its sampling rate by these layers, one after the other. cuDNN computes them in
    # float32; with operands rounded to TF32 the model's answers are 0.028 off.
    problem = _native.Problem((batch, 1, 1, length), (1, 1, 1, 256), strides=[1, 2])
    chosen = _native.choose(problem, "cuda", compute_capability=90)
    assert chosen in ("depthwise", "tiled", "sliced_k")  # sliced_k multiplies two TF32 for each


def test_algorithms_that_round_depthwise_convolutions_are_taken_where_they_gain_much():
    # `toeplitz` or `few_channels` has the lowest estimate for each layer.
    is_taken = {}
    for name, x, w in (
        ("little", (64, 132, 56, 56), (132, 1, 7, 7)),
        ("little, too", (2, 3, 224, 224), (3, 1, 13, 13)),
        ("much", (64, 8, 1543), (8, 1, 1024)),
    ):
        pads = [w[2] // 2] * 2 * (len(x) - 2) if len(x) == 4 else []
        problem = _native.Problem(x, w, group=x[1], pads=pads, precision="tf32")
        estimates = _native.estimates(problem, "cuda", compute_capability=90)
        first = min((ms, each) for each, ms in estimates.items() if ms is not None)[1]
        assert first in ("toeplitz", "few_channels"), (name, estimates)
        is_taken[name] = first == _native.choose(problem, "cuda", compute_capability=90)
    assert is_taken == {"little": False, "little, too": False, "much": True}
