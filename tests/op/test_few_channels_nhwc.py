"""`few_channels` reads NCHW and writes NHWC: the problems that it takes, and the definition of the op."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from convswap import _native
from convswap.reference.operators import reference_conv

HOPPER = {"compute_capability": 90}
OUTPUT = {"output_layout": "NHWC"}
POOL = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
RELATIVE_L2 = {"float16": 5e-4, "bfloat16": 4e-3, "tf32": 6e-4, "ieee": 1e-6}


def problem_of(x_shape, w_shape, precision="float16", **attributes) -> _native.Problem:
    element_type = "float32" if precision in ("tf32", "ieee") else precision
    arithmetic = precision if element_type == "float32" else "tf32"
    return _native.Problem(x_shape, w_shape, True, element_type, arithmetic, **{**OUTPUT, **attributes})


def transposes(problem: _native.Problem) -> bool:
    kernels = _native.kernels_of(problem, "cuda", "few_channels", **HOPPER)
    return any("layout::" in kernel for kernel in kernels)


@pytest.mark.parametrize("precision", RELATIVE_L2)
@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((64, 3, 224, 224), (64, 3, 3, 3), {"pads": [1] * 4, "activation": "Relu"}),
        ((8, 3, 640, 640), (32, 3, 3, 3), {"pads": [1] * 4, "strides": [2, 2], "activation": "SiLU"}),
        ((2, 1, 9, 9), (5, 1, 2, 2), {}),
        ((2, 1, 16000), (64, 1, 10), {"strides": [5]}),
    ],
)
def test_output_in_nhwc_is_not_transposed(x_shape, w_shape, attributes, precision):
    problem = problem_of(x_shape, w_shape, precision, **attributes)
    assert not transposes(problem)
    assert len(_native.alternatives(problem, "few_channels", 1000, **HOPPER)) > 5


def test_a_pool_of_an_output_in_nhwc_is_not_transposed():
    assert not transposes(problem_of((2, 3, 10, 10), (64, 3, 3, 3), **POOL))


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32"])
def test_the_planner_takes_it_for_the_first_layer_of_vgg(precision):
    problem = problem_of((64, 3, 224, 224), (64, 3, 3, 3), precision, pads=[1] * 4, activation="Relu")
    assert _native.choose(problem, "cuda", **HOPPER) == "few_channels"


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "attributes"),
    [
        ((2, 8, 9, 9), (64, 4, 3, 3), {"group": 2}),
        ((2, 3, 9, 9), (4, 3, 3, 3), {}),
        ((1, 1, 1 << 24), (64, 1, 3), {"pads": [1, 1]}),
    ],
    ids=["groups", "few filters", "rows beyond 32 bits"],
)
def test_other_outputs_are_transposed(x_shape, w_shape, attributes):
    assert transposes(problem_of(x_shape, w_shape, **attributes))


def test_input_in_nhwc_alone_is_transposed():
    def estimate(x_shape: tuple[int, ...], **layouts: str) -> float:
        problem = problem_of(x_shape, (64, 3, 3, 3), **layouts)
        return _native.estimates(problem, "cuda", **HOPPER)["few_channels"]

    nhwc, nchw = (2, 90, 90, 3), (2, 3, 90, 90)
    transposing_x = estimate(nhwc, input_layout="NHWC", output_layout="NCHW") - estimate(
        nchw, output_layout="NCHW"
    )
    assert estimate(nhwc, input_layout="NHWC") - estimate(nchw) == pytest.approx(transposing_x)


CASES = {
    "whole sectors": ((3, 3, 30, 44), (64, 3, 3, 3), {"pads": [1] * 4}),
    "a stem": ((2, 3, 61, 57), (96, 3, 7, 7), {"pads": [3] * 4, "strides": [2, 2]}),
    "long rows": ((2, 3, 60, 70), (48, 3, 11, 11), {"pads": [2] * 4}),
    "multiples of 4 filters": ((2, 2, 19, 23), (20, 2, 5, 5), {}),
    "an odd number of filters": ((3, 4, 17, 18), (37, 4, 3, 2), {"dilations": [2, 2]}),
    "several passes": ((1, 200, 12, 12), (16, 200, 5, 5), {}),
    "1-D": ((2, 1, 1000), (24, 1, 10), {"strides": [5]}),
}
ACTIVATIONS = {
    None: lambda v: v,
    "Relu": lambda v: np.maximum(v, 0),
    "SiLU": lambda v: v / (1 + np.exp(-v)),
    "HardSwish": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
}


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("precision", RELATIVE_L2)
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_definition(case, precision, activation):
    x_shape, w_shape, conv = CASES[case]
    attributes = {**conv, **({"activation": activation} if activation else {})}
    problem = problem_of(x_shape, w_shape, precision, **attributes)
    if why_not := _native.why_not(problem, "few_channels", "cuda"):
        pytest.skip(why_not)
    element_type = "float32" if precision in ("tf32", "ieee") else precision
    dtype = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}.get(element_type, np.float32)
    random = np.random.default_rng(0)
    x, w, b = (random.standard_normal(shape).astype(dtype) for shape in (x_shape, w_shape, w_shape[:1]))
    expected = reference_conv(*(array.astype(np.float64) for array in (x, w, b)), conv)
    expected = ACTIVATIONS[activation](np.moveaxis(expected, 1, -1))
    on_card = [_native.DeviceArray.from_numpy(array) for array in (x, w, b)]
    count = len(_native.alternatives(problem, "few_channels", 1000))
    y = _native.DeviceArray(problem.output_shape, element_type, 0, 4096)
    for tiling in sorted({0, 1, count // 2, count - 1} & set(range(count))):
        y.poison()
        _native.conv_device(
            *on_card, y, algorithm="few_channels", alternative=tiling,
            precision=precision if element_type == "float32" else "tf32", **OUTPUT, **attributes,
        )  # fmt: skip
        error = y.to_numpy().astype(np.float64) - expected
        assert np.linalg.norm(error) < RELATIVE_L2[precision] * np.linalg.norm(expected), tiling
        assert y.damage() is None
