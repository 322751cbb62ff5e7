"""Shape arithmetic follows ONNX; error messages name the given and the expected value."""

from __future__ import annotations

import itertools
import math

import pytest
from conv_cases import CASES, ConvCase, output_shape, random_cases
from convswap import _native
from convswap.errors import ConvswapError
from each_case import each


def problem(case: ConvCase) -> _native.Problem:
    return _native.Problem(case.x_shape, case.w_shape, case.has_bias, **case.attributes)


@each("case", CASES)
def test_output_shape_follows_the_formulas_of_onnx(case):
    assert problem(case).output_shape == output_shape(case.x_shape, case.w_shape, **case.attributes)


def test_output_shapes_of_many_draws_follow_the_formulas_of_onnx():
    for case in random_cases(seed=1, count=2000):
        expected = output_shape(case.x_shape, case.w_shape, **case.attributes)
        assert problem(case).output_shape == expected, str(case)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_gives_input_over_stride_rounded_up_for_every_filter_stride_and_dilation(mode):
    for size, kernel, stride, dilation in itertools.product(
        range(1, 9), range(1, 6), range(1, 5), range(1, 4)
    ):
        conv = _native.Problem(
            (1, 1, size), (1, 1, kernel), auto_pad=mode, strides=[stride], dilations=[dilation]
        )
        assert conv.output_shape == (1, 1, -(-size // stride)), (size, kernel, stride, dilation)


def test_batch_channels_and_filters_may_be_zero():
    assert _native.Problem((0, 3, 9, 8), (4, 3, 3, 3)).output_shape == (0, 4, 7, 6)
    assert _native.Problem((2, 0, 9, 8), (4, 0, 3, 3)).output_shape == (2, 4, 7, 6)
    assert _native.Problem((2, 3, 9, 8), (0, 3, 3, 3)).output_shape == (2, 0, 7, 6)


def test_image_that_padding_alone_makes_large_enough_is_valid():
    assert _native.Problem((1, 1, 0, 4), (1, 1, 3, 3), pads=[2, 0, 1, 0]).output_shape == (1, 1, 1, 2)


def test_kernel_shape_is_optional_and_changes_nothing():
    with_it = _native.Problem((1, 3, 9, 8), (4, 3, 3, 2), kernel_shape=[3, 2])
    assert with_it.output_shape == _native.Problem((1, 3, 9, 8), (4, 3, 3, 2)).output_shape


def test_operations_count_a_multiplication_and_an_addition_per_tap():
    conv = _native.Problem((10, 4, 9, 8), (6, 2, 3, 3), group=2, pads=[1, 1, 1, 1])
    assert conv.operations == 2 * (10 * 6 * 9 * 8) * (2 * 3 * 3)


@pytest.mark.parametrize(("element_type", "size"), [("float32", 4), ("float64", 8)])
def test_bytes_count_every_tensor_once(element_type, size):
    conv = _native.Problem((10, 4, 9, 8), (6, 4, 3, 3), True, type=element_type)
    assert conv.bytes == size * (10 * 4 * 9 * 8 + 6 * 4 * 3 * 3 + 6 + 10 * 6 * 7 * 6)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "read"),
    [
        # Every second row, in all of whose sectors of eight float32 a column is read.
        ((1, 2, 56, 56), (3, 2, 1, 1), {"strides": [2, 2]}, 2 * 28 * 56),
        # Every sixteenth column: every second sector.
        ((1, 2, 4, 64), (3, 2, 1, 1), {"strides": [1, 16]}, 2 * 4 * 32),
        # Rows 0 and 2, 3 and 5, 6 and 8.
        ((1, 1, 9, 8), (1, 1, 2, 8), {"strides": [3, 1], "dilations": [2, 1]}, 6 * 8),
        # Padding and pixels behind the last output are not read.
        ((1, 1, 10, 8), (1, 1, 3, 3), {"strides": [4, 1], "pads": [1, 1, 0, 1]}, 8 * 8),
        ((1, 1, 1000), (1, 1, 1), {"strides": [400]}, 3 * 8),
        # Rows that overlap: of ten the last is not read, and of twelve with three of padding the last two.
        ((1, 1, 10, 8), (1, 1, 3, 3), {"strides": [2, 1], "pads": [0, 1, 0, 1]}, 9 * 8),
        ((1, 1, 12, 8), (1, 1, 5, 3), {"strides": [4, 1], "pads": [3, 1, 0, 1]}, 10 * 8),
    ],
)
def test_bytes_count_what_is_read_of_the_input(x, w, attributes, read):
    conv = _native.Problem(x, w, **attributes)
    assert conv.bytes == 4 * (read + math.prod(w) + math.prod(conv.output_shape))


LARGEST = "2147483647"

# Shapes, attributes, and the message, with the given and the expected value.
MISFITS = [
    ((1, 3), (4, 3, 3, 3), {}, "input of shape [1, 3]: expected 3, 4 or 5 dimensions: (N, C, spatial...)"),
    (
        (1, 3, 2, 2, 2, 2),
        (4, 3, 1, 1),
        {},
        "input of shape [1, 3, 2, 2, 2, 2]: expected 3, 4 or 5 dimensions: (N, C, spatial...)",
    ),
    (
        (1, 3, 9, 8),
        (4, 3),
        {},
        "weights of shape [4, 3]: expected 3, 4 or 5 dimensions: (K, C / group, filter...)",
    ),
    ((1, 3, 9, 8), (), {}, "weights of shape []: expected 3, 4 or 5 dimensions"),
    (
        (1, 3, 9, 8),
        (4, 3, 3),
        {},
        "weights of shape [4, 3, 3]: expected as many dimensions as the input of shape [1, 3, 9, 8]: "
        "(K, C / group, filter...)",
    ),
    (
        (1, 5, 9, 8),
        (4, 3, 3, 3),
        {},
        "input of shape [1, 5, 9, 8]: expected 3 channels: the weights [4, 3, 3, 3] have 3 per group and "
        "group is 1",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"group": 2},
        "input of shape [1, 3, 9, 8]: expected 6 channels: the weights [4, 3, 3, 3] have 3 per group and "
        "group is 2",
    ),
    (
        (1, 9, 9, 8),
        (4, 3, 3, 3),
        {"group": 3},
        "group 3: expected a divisor of the weights' 4 output channels",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 0, 3),
        {},
        f"the filter of the weights [0, 3]: expected values from 1 to {LARGEST}",
    ),
    ((-1, 3, 9, 8), (4, 3, 3, 3), {}, "input of shape [-1, 3, 9, 8]: expected no negative dimension"),
    ((1, 3, 9, 8), (-4, 3, 3, 3), {}, "weights of shape [-4, 3, 3, 3]: expected no negative dimension"),
    (
        (1, 1, 2**62, 9),
        (1, 1, 3, 3),
        {},
        f"input of shape [1, 1, {2**62}, 9]: expected fewer than 2^57 elements",
    ),
    (
        (2**30, 1, 9, 9),
        (2**30, 1, 3, 3),
        {},
        f"output of shape [{2**30}, {2**30}, 7, 7]: expected fewer than 2^57 elements",
    ),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"group": 0}, f"group [0]: expected values from 1 to {LARGEST}"),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"strides": [0, 1]}, f"strides [0, 1]: expected values from 1 to {LARGEST}"),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"strides": [1, -2]},
        f"strides [1, -2]: expected values from 1 to {LARGEST}",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"strides": [2**31, 1]},
        f"strides [{2**31}, 1]: expected values from 1 to {LARGEST}",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"dilations": [1, 0]},
        f"dilations [1, 0]: expected values from 1 to {LARGEST}",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"pads": [0, 0, -1, 0]},
        f"pads [0, 0, -1, 0]: expected values from 0 to {LARGEST}",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"pads": [1, 1, 1]},
        "pads [1, 1, 1]: expected an even number of values, begins then ends",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"pads": [1, 1]},
        "pads [1, 1]: expected 4 values, for the 2 spatial axes of the weights [4, 3, 3, 3]",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"strides": [1]},
        "strides [1]: expected 2 values, for the 2 spatial axes of the weights [4, 3, 3, 3]",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"dilations": [1, 1, 1]},
        "dilations [1, 1, 1]: expected 2 values, for the 2 spatial axes of the weights [4, 3, 3, 3]",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"strides": [1], "dilations": [1, 1]},
        "dilations [1, 1]: expected 1 values, as many spatial axes as the other attributes have",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"kernel_shape": [3, 2]},
        "kernel_shape [3, 2]: expected the filter of the weights, [3, 3]",
    ),
    (
        (1, 3, 2, 8),
        (4, 3, 3, 3),
        {},
        "spatial axis 0: the filter reaches over 3 positions but the padded input has 2; expected a larger "
        "input or more padding",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"dilations": [1, 5], "pads": [0, 1, 0, 1]},
        "spatial axis 1: the filter reaches over 11 positions but the padded input has 10; expected a larger "
        "input or more padding",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"auto_pad": "SAME_UPER"},
        "unknown auto_pad 'SAME_UPER'; did you mean 'SAME_UPPER'?",
    ),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"auto_pad": "reflect"},
        "unknown auto_pad 'reflect'; known: NOTSET SAME_UPPER SAME_LOWER VALID",
    ),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"precision": "tf23"}, "unknown precision 'tf23'; did you mean 'tf32'?"),
    (
        (1, 3, 9, 8),
        (4, 3, 3, 3),
        {"type": "complex"},
        "unknown element type 'complex'; known: float32 float64 float16 bfloat16 int8 uint8",
    ),
]


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "arguments", "message"), MISFITS, ids=[misfit[-1][:60] for misfit in MISFITS]
)
def test_misfit_is_named_with_what_was_given_and_expected(x_shape, w_shape, arguments, message):
    with pytest.raises(ConvswapError) as raised:
        _native.Problem(x_shape, w_shape, **arguments)
    assert str(raised.value) == message


def test_valid_padding_ignores_pads_as_onnx_runtime_does():
    assert _native.Problem((1, 1, 9, 8), (1, 1, 3, 3), auto_pad="VALID", pads=[1, 1, 1, 1]).output_shape == (
        1,
        1,
        7,
        6,
    )
