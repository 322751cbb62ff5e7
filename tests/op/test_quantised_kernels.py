"""The kernels of `quantised`: which the planner takes, and that each is QuantConv, code by code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convswap import _native
from drawn_codes import NHWC, drawn

CAPABILITIES = [75, 80, 86, 90]
POOL = {"pool": "MaxPool", "pool_kernel_shape": [3, 3], "pool_strides": [2, 2], "pool_pads": [1] * 4}


def kernels_of(problem: _native.Problem, **device: Any) -> list[str]:
    """Return the names, without template arguments, of the kernels that a plan launches."""
    names = _native.kernels_of(problem, "cuda", "quantised", **device)
    return [name.partition("<")[0].removeprefix("quantised::") for name in names]


DENSE = {
    "stem": ((2, 33, 31, 3), (64, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "stem, 24 filters": ((2, 33, 32, 3), (24, 3, 3, 3), {"pads": [0, 0, 1, 1], "strides": [2, 2]}),
    "one channel": ((3, 28, 28, 1), (20, 1, 5, 5), {"pads": [2] * 4}),
    "words of channels": ((1, 19, 23, 12), (136, 12, 3, 3), {"pads": [1] * 4}),
    "several stages": ((1, 9, 9, 260), (72, 260, 3, 3), {"pads": [1] * 4}),
    "dilations": ((2, 21, 33, 6), (12, 6, 3, 5), {"pads": [2, 4, 2, 4], "dilations": [2, 2]}),
    "groups": ((2, 12, 13, 32), (32, 4, 3, 3), {"pads": [1] * 4, "group": 8}),
    "few filters": ((2, 12, 13, 9), (3, 9, 3, 3), {"pads": [1] * 4}),
    "1-D": ((2, 500, 5), (32, 5, 7), {"pads": [3, 3], "strides": [3]}),
    "3-D": ((1, 5, 9, 9, 3), (16, 3, 3, 3, 3), {"pads": [1, 0, 1, 0, 1, 1], "strides": [2, 1, 1]}),
}
DEPTHWISE = {
    "3x3": ((3, 14, 23, 24), (24, 1, 3, 3), {"pads": [1] * 4}),
    "3x3, stride": ((2, 29, 23, 144), (144, 1, 3, 3), {"pads": [1, 0, 1, 1], "strides": [2, 2]}),
    "5x5": ((2, 14, 14, 40), (40, 1, 5, 5), {"pads": [2] * 4}),
    "5x5, stride": ((2, 15, 14, 32), (32, 1, 5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
    "dilations": ((1, 20, 21, 8), (8, 1, 3, 3), {"pads": [2] * 4, "dilations": [2, 2]}),
    "1-D": ((2, 130, 12), (12, 1, 9), {"pads": [8, 0]}),
    "3-D": ((1, 4, 9, 9, 16), (16, 1, 3, 3, 3), {"pads": [1] * 6}),
}
for _, w_shape, attributes in DEPTHWISE.values():
    attributes["group"] = w_shape[0]
CASES = DENSE | {f"depthwise, {name}": case for name, case in DEPTHWISE.items()}


def problem_of(case, batch=None, **attributes) -> _native.Problem:
    x_shape, w_shape, own = case
    shape = (batch or x_shape[0], *x_shape[1:])
    return _native.Problem(
        shape,
        w_shape,
        True,
        "uint8",
        **{"x_zero_point": 7, "y_type": "uint8", "y_zero_point": 3, **NHWC, **own, **attributes},
    )


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", DENSE)
def test_dense_convolutions_of_many_outputs_get_the_dense_kernel(case, capability):
    kernels = kernels_of(problem_of(DENSE[case], batch=128), compute_capability=capability)
    assert kernels == ["dense", "prepare_dense"]


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise_convolutions_in_nhwc_get_the_depthwise_kernel(case, capability):
    kernels = kernels_of(problem_of(DEPTHWISE[case], batch=128), compute_capability=capability)
    _, w_shape, attributes = DEPTHWISE[case]
    has_columns = w_shape[-2] == 3 and "dilations" not in attributes
    kernel = "depthwise_columns" if has_columns else "depthwise"
    # The last is for codes at odd addresses.
    assert kernels == [kernel, "prepare_depthwise", "kernel"]


@pytest.mark.parametrize("case", ["stem", "depthwise, 3x3"])
def test_without_scratch_memory_one_kernel_needs_none(case):
    for attributes in ({}, POOL):
        problem = problem_of(CASES[case], batch=128, **attributes)
        assert _native.choose(problem, "cuda", compute_capability=80, lends_scratch=False) == "quantised"


@pytest.mark.parametrize(
    ("case", "algorithm"),
    [
        (DENSE["few filters"], "quantised"),
        (DEPTHWISE["3x3"], "quantised"),
        (DENSE["stem"], "channels_last"),
        (((8, 56, 56, 64), (64, 64, 3, 3), {"pads": [1] * 4}), "channels_last"),
    ],
)
def test_a_maximum_of_codes_is_a_kernel_behind_the_convolution(case, algorithm):
    problem = problem_of(case, batch=128, **POOL)
    assert _native.choose(problem, "cuda", compute_capability=90) == algorithm
    kernels = _native.kernels_of(problem, "cuda", algorithm, compute_capability=90)
    alone = _native.kernels_of(problem_of(case, batch=128), "cuda", algorithm, compute_capability=90)
    assert kernels[:-1] == alone
    assert kernels[-1].startswith("pool::kernel<UInt8")


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (POOL | {"pool": "AveragePool"}, "its pooling kernel of codes computes maxima alone"),
        (POOL | {"y_type": "float32", "y_zero_point": 0}, "its pooling kernel takes codes"),
    ],
)
def test_other_pools_are_computed_by_one_kernel(attributes, reason):
    case = ((8, 56, 56, 64), (64, 64, 3, 3), {"pads": [1] * 4})
    problem = problem_of(case, **attributes)
    assert kernels_of(problem, compute_capability=90) == ["kernel"]
    assert _native.why_not(problem, "channels_last", "cuda", compute_capability=90) == reason


@pytest.mark.gpu
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("x_zero_point", [0, 77])
@pytest.mark.parametrize("case", CASES)
def test_every_kernel_is_the_definition(case, x_zero_point, has_residual):
    x_shape, w_shape, attributes = CASES[case]
    activation = {"activation": "Relu"} if x_zero_point else {}
    both = attributes | activation | NHWC
    for types in ({}, {"x_type": np.int8, "y_type": np.int8}):
        codes = drawn(x_shape, w_shape, has_residual=has_residual, x_zero_point=x_zero_point, **types, **both)
        expected = codes.expected()
        count = len(_native.alternatives(codes.problem(), "quantised", 1000))
        for tiling in sorted({0, 1, count // 2, count - 1} & set(range(count))):
            np.testing.assert_array_equal(codes.on_card("quantised", tiling), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("y_type", [np.int8, np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("layouts", [("NCHW", "NHWC"), ("NHWC", "NCHW"), ("NCHW", "NCHW")])
def test_the_dense_kernel_takes_every_layout_and_type_of_y(layouts, y_type):
    shape = (16, 21, 22, 3) if layouts[0] == "NHWC" else (16, 3, 21, 22)
    named = dict(zip(("input_layout", "output_layout"), layouts, strict=True))
    codes = drawn(shape, (44, 3, 5, 5), y_type=y_type, x_zero_point=200, pads=[2] * 4, **named)
    codes.offset = np.linspace(-2, 2, 44, dtype=np.float32)
    assert "dense" in kernels_of(codes.problem())
    np.testing.assert_array_equal(codes.on_card("quantised"), codes.expected())


@pytest.mark.gpu
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("kernel_shape", [[2, 2], [3, 3], [5, 4]])
@pytest.mark.parametrize(
    ("case", "algorithm"),
    [
        *(("stem", "quantised"), ("depthwise, 3x3", "quantised")),
        *(("stem", "channels_last"), ("dense", "channels_last")),
    ],
)
def test_maxima_of_codes_are_the_definition(case, algorithm, kernel_shape, has_residual):
    cases = {**CASES, "dense": ((2, 19, 18, 64), (64, 64, 3, 3), {"pads": [1] * 4})}
    x_shape, w_shape, attributes = cases[case]
    pool = POOL | {"pool_kernel_shape": kernel_shape}
    for y_type in (np.int8, np.uint8):
        codes = drawn(
            x_shape,
            w_shape,
            y_type=y_type,
            x_zero_point=9,
            activation="Relu",
            **attributes,
            **pool,
            **NHWC,
        )
        if has_residual:
            plain = problem_of(cases[case])
            rng = np.random.default_rng(1)
            codes.residual = rng.integers(0, 256, plain.output_shape).astype(np.uint8)
            codes.attributes |= {"residual_layout": "NHWC", "z_scale": 0.4, "z_zero_point": 9}
        np.testing.assert_array_equal(codes.on_card(algorithm), codes.expected())
