"""Depthwise convolutions and pools of NHWC tensors: nothing is transposed, and they are the definition."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from convswap import _native

NHWC = {"input_layout": "NHWC", "output_layout": "NHWC"}
HOPPER = {"compute_capability": 90}
TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
# Relative L2 errors: the result is rounded once.
TOLERANCES = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 1e-6}
ALGORITHM = "channels_last_depthwise"


def problem_of(x_shape, w_shape, element_type="float16", **attributes) -> _native.Problem:
    return _native.Problem(x_shape, w_shape, type=element_type, **{**NHWC, **attributes})


def depthwise_problem(size: int, channels: int, taps: int, stride: int, batch: int, **options: Any):
    attributes = {"pads": [taps // 2] * 4, "strides": [stride] * 2, "group": channels, **options}
    return problem_of((batch, size, size, channels), (channels, 1, taps, taps), **attributes)


@pytest.mark.parametrize("capability", [75, 80, 90, 120])
@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize(
    ("size", "channels", "taps", "stride"),
    [
        (112, 32, 3, 1),
        (112, 96, 3, 2),
        (56, 144, 5, 2),
        (28, 240, 5, 1),
        (14, 672, 5, 1),
        (7, 1152, 3, 1),
        (56, 96, 7, 1),
        (7, 768, 7, 1),
    ],
)
def test_the_planner_takes_it_for_depthwise_layers_of_networks(
    size, channels, taps, stride, batch, element_type, capability
):
    problem = depthwise_problem(size, channels, taps, stride, batch, element_type=element_type)
    assert _native.choose(problem, "cuda", compute_capability=capability) == ALGORITHM
    kernels = _native.kernels_of(problem, "cuda", ALGORITHM, compute_capability=capability)
    assert not any("layout::" in kernel for kernel in kernels)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (_native.Problem((1, 8, 9, 9), (8, 1, 3, 3), group=8), "it takes x, y and the residual in NHWC"),
        (problem_of((1, 9, 9, 8), (8, 1, 3, 3), group=8, output_layout="NCHW"), "it takes x, y and"),
        (problem_of((1, 9, 9, 8), (8, 2, 3, 3), group=4), "it computes depthwise convolutions, and"),
        (problem_of((1, 9, 9, 8), (8, 1, 3, 3), "float64", group=8), "it does not compute float64"),
        (problem_of((0, 9, 9, 8), (8, 1, 3, 3), group=8), "the output is empty"),
    ],
)
def test_it_says_why_it_cannot(problem, reason):
    assert _native.why_not(problem, ALGORITHM, "cuda", **HOPPER).startswith(reason)


@pytest.mark.parametrize(
    ("problem", "kernel"),
    [
        (depthwise_problem(9, 12, 3, 1, 1), "row_by_row<Float16, false, 0>"),
        (depthwise_problem(9, 12, 3, 1, 1, element_type="float32"), "sliding<float, 3, 1>"),
        (depthwise_problem(9, 16, 3, 2, 1), "sliding<Float16, 3, 2>"),
        (depthwise_problem(9, 16, 5, 1, 1, element_type="bfloat16"), "sliding<BFloat16, 5, 1>"),
        (depthwise_problem(9, 16, 3, 3, 1), "row_by_row<Float16, true, 0>"),
        (problem_of((1, 9, 9, 8), (16, 1, 3, 3), group=8), "row_by_row<Float16, false, 0>"),
        (depthwise_problem(9, 16, 3, 1, 1, dilations=[1, 2]), "row_by_row<Float16, true, 0>"),
        (depthwise_problem(9, 16, 3, 1, 1, dilations=[2, 1]), "row_by_row<Float16, true, 3>"),
        (problem_of((1, 9, 9, 9, 16), (16, 1, 5, 1, 3), group=16), "row_by_row<Float16, true, 3>"),
        (problem_of((1, 9, 9, 9, 16), (16, 1, 1, 3, 3), group=16), "sliding<Float16, 3, 1>"),
    ],
)
def test_square_filters_slide_and_vectors_take_whole_vectors_of_channels(problem, kernel):
    names = _native.kernels_of(problem, "cuda", ALGORITHM, **HOPPER)
    assert f"{ALGORITHM}::{kernel}" in names


def test_cards_without_asynchronous_copies_go_row_by_row():
    problem = depthwise_problem(9, 16, 3, 1, 1)
    names = _native.kernels_of(problem, "cuda", ALGORITHM, compute_capability=75)
    assert f"{ALGORITHM}::row_by_row<Float16, true, 3>" in names


POOLS = {
    "max 2x2": {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]},
    "max 3x3": {
        "pool": "MaxPool", "pool_kernel_shape": [3, 3], "pool_strides": [2, 2], "pool_pads": [1] * 4,
    },
    "max 4x1": {"pool": "MaxPool", "pool_kernel_shape": [4, 1], "pool_ceil_mode": 1},
    "average 2x2": {"pool": "AveragePool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]},
    "average 3x2": {
        "pool": "AveragePool", "pool_kernel_shape": [3, 2], "pool_strides": [2, 1], "pool_pads": [1, 0, 1, 1],
        "pool_count_include_pad": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "algorithm", "kernel"),
    [
        (
            problem_of((2, 20, 20, 64), (64, 64, 3, 3), pads=[1] * 4, **POOLS["max 2x2"]),
            "channels_last",
            "epilogue::kernel<Float16, true, true>",
        ),
        (
            depthwise_problem(20, 12, 3, 1, 2, element_type="float32", **POOLS["average 2x2"]),
            ALGORITHM,
            "epilogue::kernel<float, true, true>",
        ),
        (
            depthwise_problem(20, 6, 3, 1, 2, element_type="float32", **POOLS["max 3x3"]),
            ALGORITHM,
            "epilogue::kernel<float, true, false>",
        ),
    ],
)
def test_results_in_nhwc_are_pooled_without_a_transposition(problem, algorithm, kernel):
    names = _native.kernels_of(problem, "cuda", algorithm, **HOPPER)
    assert kernel in names
    assert not any("layout::" in name for name in names)


def arrays_of(x_shape, w_shape, element_type, attributes):
    """Return x, w, the bias and the residual."""
    rng = np.random.default_rng(0)
    conv = {name: value for name, value in attributes.items() if not name.startswith("pool")}
    z_shape = problem_of(x_shape, w_shape, element_type, **conv).output_shape
    scales = (1, 1 / np.sqrt(np.prod(w_shape[1:])), 1, 1)
    shapes = (x_shape, w_shape, w_shape[:1], z_shape)
    return [
        (scale * rng.standard_normal(shape)).astype(TYPES[element_type])
        for scale, shape in zip(scales, shapes, strict=True)
    ]


def check_on_card(
    x_shape, w_shape, element_type, *, algorithm, has_residual=False, tilings=(0,), **attributes
):
    """Compare the algorithm with the CPU's reference on the same data in float64."""
    x, w, b, z = arrays_of(x_shape, w_shape, element_type, attributes)
    layouts = {**NHWC, **({"residual_layout": "NHWC"} if has_residual else {})}
    expected = _native.conv(
        *(array.astype(np.float64) for array in (x, w, b)),
        residual=z.astype(np.float64) if has_residual else None,
        algorithm="reference",
        **layouts,
        **attributes,
    )
    on_card = [_native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    residual = _native.DeviceArray.from_numpy(z) if has_residual else None
    y = _native.DeviceArray(expected.shape, element_type, 0, 4096)
    for tiling in tilings:
        y.poison()
        _native.conv_device(
            *on_card, y, residual=residual, algorithm=algorithm, alternative=tiling,
            prepared=tiling % 2 == 0, **layouts, **attributes,
        )  # fmt: skip
        error = y.to_numpy().astype(np.float64) - expected
        assert np.linalg.norm(error) < TOLERANCES[element_type] * np.linalg.norm(expected), tiling
        assert y.damage() is None


CASES = {
    "3x3": ((3, 20, 29, 48), (48, 1, 3, 3), {"pads": [1] * 4}),
    "3x3 stride 2": ((2, 21, 30, 40), (40, 1, 3, 3), {"pads": [0, 1, 1, 1], "strides": [2, 2]}),
    "5x5": ((2, 14, 14, 480), (480, 1, 5, 5), {"pads": [2] * 4}),
    "5x5 stride 2": ((2, 13, 15, 24), (24, 1, 5, 5), {"pads": [2] * 4, "strides": [2, 2]}),
    "7x7": ((3, 7, 7, 768), (768, 1, 7, 7), {"pads": [3] * 4}),
    "7x7 stride 2": ((2, 30, 23, 40), (40, 1, 7, 7), {"pads": [3, 2, 1, 3], "strides": [2, 2]}),
    "no padding": ((2, 11, 13, 72), (72, 1, 5, 5), {}),
    "one column": ((2, 40, 3, 32), (32, 1, 3, 3), {"pads": [1, 0, 1, 0]}),
    "more padding than taps": ((2, 6, 5, 32), (32, 1, 3, 3), {"pads": [5, 4, 5, 4]}),
    "dilations": ((2, 17, 19, 16), (16, 1, 3, 3), {"pads": [2, 3, 2, 3], "dilations": [2, 3]}),
    "strides of 3": ((2, 17, 19, 16), (16, 1, 4, 2), {"strides": [3, 3]}),
    "odd channels": ((2, 17, 19, 13), (13, 1, 3, 3), {"pads": [1] * 4}),
    "two filters for a channel": ((2, 17, 19, 8), (16, 1, 3, 3), {"pads": [1] * 4}),
    "1-D": ((2, 400, 32), (32, 1, 9), {"pads": [4, 4]}),
    "3-D, flat filter": ((2, 5, 9, 11, 32), (32, 1, 1, 3, 3), {"pads": [0, 1, 1] * 2}),
    "3-D": ((2, 5, 9, 11, 32), (32, 1, 3, 3, 3), {"pads": [1] * 6, "strides": [2, 1, 1]}),
}
ACTIVATIONS = {
    "none": {},
    "clip": {"activation": "Clip", "activation_alpha": 0.0, "activation_beta": 6.0},
    "SiLU": {"activation": "SiLU"},
    "Gelu": {"activation": "Gelu"},
}


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_definition_with_every_epilogue(case, element_type, has_residual, activation):
    x_shape, w_shape, attributes = CASES[case]
    attributes = {**attributes, "group": x_shape[-1], **ACTIVATIONS[activation]}
    problem = problem_of(x_shape, w_shape, element_type, **attributes)
    count = len(_native.alternatives(problem, ALGORITHM, 1000))
    tilings = sorted({0, 1, count // 3, count // 2, count - 1} & set(range(count)))
    check_on_card(
        x_shape, w_shape, element_type,
        algorithm=ALGORITHM, has_residual=has_residual, tilings=tilings, **attributes,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [24, 13])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("element_type", ["float32", "float16"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_pool_of_nhwc_results_is_the_definition(pool, element_type, has_residual, channels):
    if element_type != "float32" and (has_residual or pool.startswith("average")):
        pytest.skip("two kernels would round twice")
    activation = "SiLU" if element_type == "float32" else "Relu"
    check_on_card(
        (3, 21, 30, channels), (channels, 1, 3, 3), element_type,
        algorithm=ALGORITHM, has_residual=has_residual, group=channels, pads=[1] * 4, activation=activation,
        **POOLS[pool],
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.algorithm("channels_last")
@pytest.mark.parametrize("element_type", ["float16", "bfloat16"])
@pytest.mark.parametrize("pool", ["max 2x2", "max 3x3"])
def test_a_pool_behind_channels_last_is_the_definition(pool, element_type):
    check_on_card(
        (2, 28, 28, 64), (128, 64, 3, 3), element_type,
        algorithm="channels_last", pads=[1] * 4, activation="Relu", **POOLS[pool],
    )  # fmt: skip
