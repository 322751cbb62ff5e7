"""Convolutions of int8 and uint8 codes: every algorithm against QuantConv in NumPy, code by code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from drawn_codes import NHWC, Codes, drawn

HOPPER = {"compute_capability": 90}


CASES = {
    "3x3": ((2, 9, 11, 32), (48, 32, 3, 3), {"pads": [1] * 4}),
    "stride": ((2, 15, 14, 64), (64, 64, 3, 3), {"pads": [1, 0, 1, 2], "strides": [2, 2]}),
    "dilation": ((1, 13, 17, 16), (80, 16, 3, 5), {"pads": [2, 4, 2, 4], "dilations": [2, 2]}),
    "one tap": ((3, 8, 8, 144), (256, 144, 1, 1), {}),
    "several images in a tile": ((9, 7, 7, 256), (64, 256, 3, 3), {"pads": [1] * 4}),
    "groups": ((2, 6, 6, 256), (256, 128, 3, 3), {"pads": [1] * 4, "group": 2}),
    "depthwise": ((2, 10, 9, 24), (24, 1, 3, 3), {"pads": [1] * 4, "group": 24}),
    "pairs of pixels": ((2, 9, 11, 24), (144, 24, 1, 1), {}),
    "four pixels as one": ((4, 7, 5, 44), (20, 44, 1, 1), {}),
    "stem": ((2, 33, 31, 3), (64, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "stem in NCHW": (
        (2, 3, 33, 30),
        (32, 3, 3, 5),
        {"pads": [0, 2, 1, 5], "strides": [2, 3], "input_layout": "NCHW"},
    ),
    "one channel": ((3, 28, 28, 1), (16, 1, 5, 5), {"pads": [2] * 4, "dilations": [1, 2]}),
    "stem of 24 filters": (
        (2, 3, 18, 19),
        (24, 3, 3, 3),
        {"strides": [2, 2], "pads": [1] * 4, "input_layout": "NCHW"},
    ),
    "four columns of y as one": ((2, 9, 12, 1), (16, 1, 5, 5), {"pads": [1, 2, 3, 2]}),
    "1-D, few channels": ((2, 90, 5), (32, 5, 7), {"pads": [3, 4], "strides": [2]}),
    "odd": ((1, 5, 6, 5), (7, 5, 2, 3), {}),
    "1-D": ((2, 50, 16), (32, 16, 7), {"pads": [3, 3]}),
    "3-D": ((1, 4, 6, 6, 16), (16, 16, 3, 3, 3), {"pads": [0, 1, 1, 0, 1, 1]}),
}
EPILOGUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "Relu": {"activation": "Relu"},
    "Clip": {"activation": "Clip", "activation_alpha": -3.5, "activation_beta": 40.25},
    "scaled": {"y_scale": 0.7, "activation": "LeakyRelu", "activation_alpha": 0.125},
    "rounded": {"sum_scale": 0.5, "sum_zero_point": 12, "y_scale": 1.3},
    "table": {"sum_zero_point": 12, "activation": "Relu"},
    "scaled table": {"sum_zero_point": 12, "y_scale": 1.3, "activation": "Tanh"},
}


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("case", CASES)
def test_the_cpu_computes_the_definition(case, epilogue, has_residual):
    x_shape, w_shape, attributes = CASES[case]
    both = NHWC | attributes | EPILOGUES[epilogue]
    codes = drawn(x_shape, w_shape, has_residual=has_residual, x_zero_point=3, **both)
    result, expected = codes.on_cpu(), codes.expected()
    assert len(np.unique(expected)) > (1 if epilogue == "scaled table" else 10)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("y_type", [np.int8, np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("x_type", [np.int8, np.uint8])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_cpu_computes_every_type_and_layout(x_type, y_type, layout):
    shape = (2, 6, 7, 5) if layout == "NHWC" else (2, 5, 6, 7)
    layouts = {"input_layout": layout, "output_layout": "NCHW" if layout == "NHWC" else "NHWC"}
    codes = drawn(shape, (4, 5, 3, 3), x_type=x_type, y_type=y_type, x_zero_point=7, **layouts)
    codes.offset = np.linspace(-2, 2, 4, dtype=np.float32)
    result = codes.on_cpu()
    assert result.dtype == y_type
    np.testing.assert_array_equal(result, codes.expected())


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_the_cpu_pools_the_values_of_a_window(pool):
    pooling = {"pool": pool, "pool_kernel_shape": [3, 2], "pool_strides": [2, 1], "pool_pads": [1, 0, 1, 1]}
    codes = drawn((2, 5, 9, 8), (6, 5, 3, 3), y_scale=1.1, pads=[1] * 4, **pooling)
    result = codes.on_cpu()
    np.testing.assert_array_equal(result, codes.expected())


def test_ties_are_rounded_to_even_and_results_saturate():
    x = np.array([[[-3, -1, 1, 3, 5, 127, -128]]], np.int8)
    w = np.array([[[1]]], np.int8)
    results = {}
    for y_type in (np.int8, np.uint8):
        codes = Codes(x, w, np.array([0.5], np.float32), np.array(0, y_type))
        results[y_type] = codes.on_cpu().ravel().tolist()
    assert results[np.int8] == [-2, 0, 0, 2, 2, 64, -64]
    assert results[np.uint8] == [0, 0, 0, 2, 2, 64, 0]


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes", "algorithm"),
    [
        ((64, 14, 14, 256), (256, 256, 3, 3), {"pads": [1] * 4}, "channels_last"),
        ((64, 112, 112, 3), (64, 3, 7, 7), {"strides": [2, 2]}, "channels_last"),
        ((64, 3, 112, 112), (64, 3, 7, 7), {"strides": [2, 2], "input_layout": "NCHW"}, "channels_last"),
        ((64, 112, 112, 3), (40, 3, 7, 7), {"strides": [2, 2]}, "quantised"),
        ((8, 56, 56, 96), (96, 1, 3, 3), {"group": 96}, "quantised"),
        ((64, 56, 56, 24), (144, 24, 1, 1), {}, "channels_last"),
        ((64, 56, 56, 144), (24, 144, 1, 1), {}, "channels_last"),
        ((64, 112, 112, 32), (16, 32, 1, 1), {}, "channels_last"),
        ((1, 7, 7, 144), (24, 144, 1, 1), {}, "quantised"),
        # 16 outputs of an axis have taps on padding, in three ways.
        (
            (16, 40, 40, 256),
            (256, 256, 3, 3),
            {"pads": [8] * 4, "dilations": [8, 8], "x_zero_point": 120},
            "channels_last",
        ),
        # Windows would take 805 MiB.
        ((64, 320, 320, 64), (8, 64, 3, 3), {"pads": [1] * 4}, "quantised"),
    ],
)
def test_the_planner_chooses(x_shape, w_shape, attributes, algorithm):
    problem = _native.Problem(x_shape, w_shape, type="uint8", **NHWC | attributes)
    assert _native.choose(problem, "cuda", **HOPPER) == algorithm
    # Of a group: NHWC and multiples of 16.
    has_multiples = "input_layout" not in attributes and w_shape[0] % 16 == w_shape[1] % 16 == 0
    older = "channels_last_mma" if has_multiples else "quantised"
    assert _native.choose(problem, "cuda", compute_capability=80) == older
    assert _native.choose(problem, "cpu") == "quantised"


@pytest.mark.parametrize(
    ("codes", "reason"),
    [
        (
            drawn((1, 8, 8, 16), (20, 16, 3, 3), **NHWC),
            "it takes channels and filters in multiples of 16, or without a dilation along the columns "
            "filters of 8 or 4 if 2 or 4 divide the columns of y",
        ),
        (
            drawn((1, 4, 8, 8, 24), (16, 24, 3, 1, 1), **NHWC),
            "it takes channels and filters in multiples of 16",
        ),
        (drawn((1, 8, 8, 16), (16, 16, 3, 3), y_type=np.float32, **NHWC), "its results of codes are codes"),
        (
            drawn((1, 3, 8, 8), (16, 3, 3, 3)),
            "it takes x, y and the residual in NHWC, and x in NCHW for some first layers of codes",
        ),
        (
            drawn((1, 4, 8, 8, 16), (16, 16, 3, 1, 1), x_zero_point=1, pads=[1, 0, 0, 1, 0, 0], **NHWC),
            "it takes codes with a zero point without padding along the depth",
        ),
    ],
)
def test_channels_last_says_why_it_cannot(codes, reason):
    assert _native.why_not(codes.problem(), "channels_last", "cuda", **HOPPER) == reason


def test_algorithms_for_numbers_take_no_codes():
    problem = drawn((1, 8, 8, 16), (16, 16, 3, 3), **NHWC).problem()
    floats = _native.Problem((1, 8, 8, 16), (16, 16, 3, 3), **NHWC)
    for device, names in (("cuda", ("many_channels", "naive")), ("cpu", ("direct", "reference"))):
        for name in names:
            assert _native.why_not(problem, name, device, **HOPPER) == "it takes no int8 and uint8 codes"
        assert _native.why_not(floats, "quantised", device, **HOPPER) == "it takes int8 and uint8 codes"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"x_zero_point": -1}, "x_zero_point -1: expected from 0 to 255, a code of uint8"),
        ({"y_scale": 0.0}, "y_scale 0: expected a finite number above 0"),
        ({"sum_scale": 0.5}, "expected sum_zero_point, too, and there is none"),
        ({"precision_of": 1}, "unknown attribute"),
    ],
)
def test_wrong_attributes_are_refused(attributes, message):
    with pytest.raises(ConvswapError, match=message):
        _native.Problem((1, 4, 8, 8), (4, 4, 3, 3), type="uint8", **attributes)


@pytest.mark.parametrize(
    ("attributes", "sum_values", "message"),
    [
        ({"sum_zero_point": 3}, None, "sum_scale or the input sum_values, too, and there is neither"),
        (
            {"sum_zero_point": 3},
            np.zeros(255, np.float32),
            r"of shape \[255\]: expected \[256\], one value per code",
        ),
        ({"sum_zero_point": 3}, np.zeros(256), "sum_values is float64: expected float32"),
        ({}, np.zeros(256, np.float32), "sum_values: expected the attribute sum_zero_point and no sum_scale"),
        (
            {"sum_zero_point": 3, "sum_scale": 0.5},
            np.zeros(256, np.float32),
            "sum_values: expected the attribute sum_zero_point and no sum_scale",
        ),
    ],
)
def test_wrong_sum_values_are_refused(attributes, sum_values, message):
    codes = drawn((1, 4, 8, 8), (4, 4, 3, 3), **attributes)
    with pytest.raises(ConvswapError, match=message):
        _native.conv(codes.x, codes.w, scale=codes.scale, sum_values=sum_values, **codes.typed)


def test_sums_that_could_leave_32_bits_are_refused():
    with pytest.raises(ConvswapError, match="at most 65793 channels times taps"):
        _native.Problem((1, 65_794, 1, 1), (1, 65_794, 1, 1), type="int8")
    assert _native.Problem((1, 65_793, 1, 1), (1, 65_793, 1, 1), type="int8").operations > 0


def test_arrays_of_other_types_are_refused():
    codes = drawn((1, 4, 5, 5), (4, 4, 3, 3))
    with pytest.raises(ConvswapError, match="expected `scale`, float32"):
        _native.conv(codes.x, codes.w)
    with pytest.raises(ConvswapError, match="b is float32: expected int32"):
        _native.conv(codes.x, codes.w, codes.b.astype(np.float32), scale=codes.scale)
    with pytest.raises(ConvswapError, match=r"scale of shape .*one value per output channel"):
        _native.conv(codes.x, codes.w, scale=codes.scale[:2])


def test_the_text_of_a_problem_says_what_its_arithmetic_has():
    codes = drawn((1, 4, 5, 5), (4, 4, 3, 3), y_type=np.int8, x_zero_point=3)
    assert codes.problem().text.startswith("uint8>int8 x=1x4x5x5 w=4x4x3x3 bias=yes")
    assert codes.problem().text.endswith("codes=zero point")


@pytest.mark.gpu
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("case", CASES)
def test_a_card_computes_the_definition(case, epilogue, has_residual):
    x_shape, w_shape, attributes = CASES[case]
    types = {"x_type": np.int8, "y_type": np.int8} if epilogue == "Clip" else {}
    both = NHWC | attributes | EPILOGUES[epilogue]
    for zero_point in (0, 3):
        codes = drawn(x_shape, w_shape, has_residual=has_residual, x_zero_point=zero_point, **types, **both)
        expected = codes.expected()
        for algorithm in ("auto", "quantised"):
            np.testing.assert_array_equal(codes.on_card(algorithm), expected)


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
@pytest.mark.parametrize("x_zero_point", [0, 100])
@pytest.mark.parametrize(
    "case",
    [
        *("3x3", "stride", "one tap", "several images in a tile", "groups"),
        *("pairs of pixels", "four pixels as one"),
        *("stem", "stem in NCHW", "stem of 24 filters", "one channel", "four columns of y as one"),
        *("1-D, few channels",),
    ],
)
def test_every_kind_of_tiling_of_channels_last_is_the_definition(case, x_zero_point):
    x_shape, w_shape, attributes = CASES[case]
    codes = drawn(x_shape, w_shape, x_zero_point=x_zero_point, **NHWC | attributes)
    expected = codes.expected()
    count = len(_native.alternatives(codes.problem(), "channels_last", 1000))
    for tiling in sorted({0, 1, count // 2, count - 1} & set(range(count))):
        np.testing.assert_array_equal(codes.on_card("channels_last", tiling), expected)


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("x_type", [np.int8, np.uint8])
def test_two_blocks_on_a_multiprocessor_compute_the_definition(x_type, epilogue, has_residual):
    both = NHWC | EPILOGUES[epilogue] | {"x_type": x_type, "x_zero_point": 3}
    codes = drawn((18, 32, 32, 48), (208, 48, 1, 1), has_residual=has_residual, **both)
    expected = codes.expected()
    paired: dict[str, int] = {}
    for index, each in enumerate(_native.alternatives(codes.problem(), "channels_last", 1000)):
        if "blocks 2" in each["tiling"]:
            paired.setdefault(each["tiling"].split(" images")[0], index)
    assert {"14, true", "14, false"} <= paired.keys()
    for tiling in paired.values():
        np.testing.assert_array_equal(codes.on_card("channels_last", tiling), expected)


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last_mma")
@pytest.mark.parametrize("x_zero_point", [0, 100])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(
    "case", ["3x3", "stride", "one tap", "several images in a tile", "groups", "1-D", "3-D"]
)
def test_tilings_of_channels_last_mma_are_the_definition(case, epilogue, x_zero_point):
    x_shape, w_shape, attributes = CASES[case]
    both = NHWC | attributes | EPILOGUES[epilogue]
    for has_residual in (False, True):
        codes = drawn(x_shape, w_shape, has_residual=has_residual, x_zero_point=x_zero_point, **both)
        expected = codes.expected()
        count = len(_native.alternatives(codes.problem(), "channels_last_mma", 1000))
        for tiling in sorted({0, count // 2, count - 1}):
            np.testing.assert_array_equal(codes.on_card("channels_last_mma", tiling), expected)


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last_mma")
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("x_type", [np.int8, np.uint8])
@pytest.mark.parametrize("y_type", [np.int8, np.uint8])
@pytest.mark.parametrize("case", ["dilation", "one tap", "few channels of a group"])
def test_channels_last_mma_adds_offsets_of_filters(case, y_type, x_type, has_residual):
    short = ((2, 11, 9, 96), (144, 32, 3, 3), {"pads": [1] * 4, "group": 3})
    x_shape, w_shape, attributes = CASES.get(case, short)
    types = {"x_type": x_type, "y_type": y_type, "x_zero_point": int(np.iinfo(x_type).max)}
    codes = drawn(x_shape, w_shape, has_residual=has_residual, **types, **NHWC | attributes)
    codes.offset = np.linspace(-2, 2, w_shape[0], dtype=np.float32)
    expected = codes.expected()
    count = len(_native.alternatives(codes.problem(), "channels_last_mma", 1000))
    for tiling in sorted({0, count // 2, count - 1}):
        np.testing.assert_array_equal(codes.on_card("channels_last_mma", tiling), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("y_type", [np.float16, np.float32, np.int8])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_card_computes_every_type_and_layout(y_type, layout):
    shape = (2, 6, 7, 32) if layout == "NHWC" else (2, 32, 6, 7)
    layouts = {"input_layout": layout, "output_layout": layout}
    codes = drawn(shape, (64, 32, 3, 3), y_type=y_type, x_zero_point=7, **layouts)
    codes.offset = np.linspace(-2, 2, 64, dtype=np.float32)
    np.testing.assert_array_equal(codes.on_card(), codes.expected())
