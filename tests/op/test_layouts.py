"""Tensors in NHWC: the same numbers as in NCHW, in another order, by every algorithm and in every rank."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from each_case import each

LAYOUTS = list(itertools.product(("NCHW", "NHWC"), repeat=3))
TYPES = {
    "float32": np.float32,
    "float64": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
# Input shapes and weights of each rank. No two extents of a shape are equal, so that no swap of axes is
# hidden. The last has tiles of 64 elements that are cut off in both directions.
SHAPES = {
    "1-D": ((2, 5, 7), (6, 5, 3)),
    "2-D": ((2, 5, 7, 4), (6, 5, 3, 2)),
    "3-D": ((2, 3, 4, 5, 6), (4, 3, 2, 3, 1)),
    "large": ((3, 70, 9, 13), (90, 70, 1, 1)),
}
POOL = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [1, 1]}
DEPTHWISE = {"depthwise_pads": [1, 0, 1, 2], "depthwise_strides": [1, 2], "depthwise_activation": "Relu"}


def laid_out(array: np.ndarray | None, layout: str) -> np.ndarray | None:
    """Return an NCHW array in a layout."""
    if array is None or layout == "NCHW":
        return array
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def names_of(layouts: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("input_layout", "output_layout", "residual_layout"), layouts, strict=True))


def arrays_of(shape: str, element_type: str, *, has_residual: bool = False, attributes: dict[str, Any]):
    """Return x, w, the bias and the residual, or None for it, of one of SHAPES."""
    x_shape, w_shape = SHAPES[shape]
    random = np.random.default_rng(70)
    conv = {name: value for name, value in attributes.items() if not name.startswith("pool")}
    z_shape = _native.Problem(x_shape, w_shape, **conv).output_shape
    draws = [random.standard_normal(each) for each in (x_shape, w_shape, w_shape[:1], z_shape)]
    x, w, b, z = (array.astype(TYPES[element_type]) for array in draws)
    return x, w, b, z if has_residual else None


@each("has_residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("element_type", TYPES)
def test_every_cpu_algorithm_computes_the_numbers_of_nchw(element_type, shape, has_residual):
    attributes = {"activation": "Relu", **(POOL if shape == "2-D" else {})}
    x, w, b, z = arrays_of(shape, element_type, has_residual=has_residual, attributes=attributes)
    for algorithm in ["reference", *(["direct"] if element_type != "float64" else [])]:
        expected = _native.conv(x, w, b, residual=z, algorithm=algorithm, **attributes)
        for layouts in LAYOUTS:
            names = names_of(layouts)
            y = _native.conv(
                laid_out(x, names["input_layout"]),
                w,
                b,
                residual=laid_out(z, names["residual_layout"]),
                algorithm=algorithm,
                **attributes,
                **names,
            )
            np.testing.assert_array_equal(y, laid_out(expected, names["output_layout"]), str(layouts))


@each("layouts", LAYOUTS)
def test_input_layout_is_that_of_a_depthwise_convolution_in_front(layouts):
    random = np.random.default_rng(1)
    shapes = [(2, 5, 8, 7), (6, 5, 1, 1), (6,), (5, 1, 3, 2), (5,)]
    x, w, b, d, db = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    expected = _native.conv(x, w, b, depthwise=d, depthwise_bias=db, **DEPTHWISE)
    names = names_of(layouts)
    y = _native.conv(
        laid_out(x, names["input_layout"]), w, b, depthwise=d, depthwise_bias=db, **DEPTHWISE, **names
    )
    np.testing.assert_array_equal(y, laid_out(expected, names["output_layout"]))


@each("x_shape", [(2, 1, 5, 7), (2, 5, 1, 1)])
def test_tensor_with_one_channel_or_position_is_not_transposed(x_shape):
    kernel = (1, 1) if x_shape[1] > 1 else x_shape[2:]
    problem = _native.Problem(
        [x_shape[0], *x_shape[2:], x_shape[1]],
        (4, x_shape[1], *kernel),
        input_layout="NHWC",
        output_layout="NHWC",
    )
    assert problem.output_shape == (2, 1, 1, 4)
    assert "NCHW" not in _native.describe_plan(problem, "cpu")
    assert not any("layout::" in name for name in _native.kernels_of(problem, "cuda", compute_capability=90))


def nhwc_problem(**attributes: Any) -> _native.Problem:
    return _native.Problem((2, 7, 4, 5), (6, 5, 3, 2), **{"input_layout": "NHWC", **attributes})


def test_shapes_are_those_of_the_layouts():
    assert nhwc_problem().output_shape == (2, 6, 5, 3)
    assert nhwc_problem(output_layout="NHWC").output_shape == (2, 5, 3, 6)
    one_axis = _native.Problem((2, 7, 5), (6, 5, 3), input_layout="NHWC", output_layout="NHWC")
    assert one_axis.output_shape == (2, 5, 6)
    three_axes = _native.Problem((2, 4, 5, 6, 3), (4, 3, 2, 3, 1), input_layout="NHWC")
    assert three_axes.output_shape == (2, 4, 3, 3, 6)


def test_text_has_layouts_only_if_one_is_nhwc():
    nchw = _native.Problem((2, 5, 7, 4), (6, 5, 3, 2), input_layout="NCHW", output_layout="NCHW")
    assert nchw.text == _native.Problem((2, 5, 7, 4), (6, 5, 3, 2)).text
    assert "layouts" not in nchw.text
    assert nhwc_problem().text.endswith("pads=0x0x0x0 layouts=NHWC>NCHW")
    assert " x=2x5x7x4 " in nhwc_problem().text
    both = nhwc_problem(residual_shape=(2, 6, 5, 3), output_layout="NHWC")
    assert both.text.endswith(" then=residual layouts=NHWC+NCHW>NHWC")


def test_absent_residual_has_no_layout():
    plain = _native.Problem((2, 5, 7, 4), (6, 5, 3, 2))
    assert _native.Problem((2, 5, 7, 4), (6, 5, 3, 2), residual_layout="NHWC").text == plain.text


@pytest.mark.parametrize(
    ("x_shape", "attributes", "message"),
    [
        (
            (2, 5, 7, 4),
            {"input_layout": "NHWC"},
            r"input of shape \[2, 5, 7, 4\]: expected 5 channels on the last axis",
        ),
        ((2, 5), {"input_layout": "NHWC"}, r"input of shape \[2, 5\]: .*\(N, spatial..., C\)"),
        (
            (2, 7, 4, 5),
            {"input_layout": "NHWC", "residual_shape": (2, 6, 5, 3), "residual_layout": "NHWC"},
            r"residual of shape \[2, 6, 5, 3\]: expected the convolution's output in NHWC, \[2, 5, 3, 6\]",
        ),
        ((2, 7, 4, 5), {"input_layout": "NWHC"}, "unknown input_layout 'NWHC'; did you mean"),
        ((2, 7, 4, 5), {"output_layout": "nhwc"}, "unknown output_layout 'nhwc'"),
    ],
)
def test_misfit_is_refused_with_the_shape_as_given(x_shape, attributes, message):
    with pytest.raises(ConvswapError, match=message):
        _native.Problem(x_shape, (6, 5, 3, 2), **attributes)


def test_estimate_has_the_time_of_the_transposing_kernels():
    shapes = ((64, 56, 56, 32), (48, 32, 3, 3))
    nchw = _native.estimates(
        _native.Problem((64, 32, 56, 56), shapes[1], type="float16"), "cuda", compute_capability=90
    )
    nhwc = _native.estimates(
        _native.Problem(*shapes, type="float16", input_layout="NHWC"), "cuda", compute_capability=90
    )
    assert nchw.keys() <= nhwc.keys() and nhwc["naive"] is None
    coefficients = [(family, name) for family, name, *_ in _native.coefficients()]
    _, values = _native.cost_table(compute_capability=90)
    launch, bandwidth = (values[coefficients.index(("layout", name))] for name in ("launch", "memory"))
    bytes_moved = 2 * 64 * 56 * 56 * 32 * 2  # read and written
    for name in ("tiled", "few_channels"):
        added = nhwc[name] - nchw[name]
        assert added == pytest.approx((launch + bytes_moved / bandwidth) * 1e-6, rel=1e-6)


def test_kernels_and_alternatives_have_the_transposing_kernel():
    problem = nhwc_problem(output_layout="NHWC")
    for name in ("naive", "tiled", "few_channels"):
        assert "layout::kernel<float>" in _native.kernels_of(problem, "cuda", name, compute_capability=90)
        (only,) = _native.alternatives(problem, name, compute_capability=90)
        assert "layout::kernel<float>" in only["kernels"]
    reason = _native.why_not(problem, "naive", "cuda", compute_capability=90, lends_scratch=False)
    assert "scratch memory" in reason


@pytest.mark.gpu
@each("layouts", LAYOUTS)
@each("has_residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("element_type", TYPES)
def test_every_cuda_algorithm_computes_the_numbers_of_nchw(element_type, shape, has_residual, layouts):
    attributes = {"activation": "Relu", **(POOL if shape == "2-D" else {})}
    x, w, b, z = arrays_of(shape, element_type, has_residual=has_residual, attributes=attributes)
    names = names_of(layouts)

    def on_card(algorithm: str, x: np.ndarray, z: np.ndarray | None, layouts: dict[str, str]) -> np.ndarray:
        x, w_, b_ = (_native.DeviceArray.from_numpy(array) for array in (x, w, b))
        residual = None if z is None else _native.DeviceArray.from_numpy(z)
        problem = _native.Problem(
            x.shape,
            w.shape,
            True,
            element_type,
            residual_shape=None if z is None else z.shape,
            **attributes,
            **layouts,
        )
        y = _native.DeviceArray(problem.output_shape, element_type)
        y.poison()
        _native.conv_device(x, w_, b_, y, residual=residual, algorithm=algorithm, **attributes, **layouts)
        return y.to_numpy()

    nchw = _native.Problem(
        x.shape, w.shape, True, element_type, residual_shape=None if z is None else z.shape, **attributes
    )
    for algorithm in _native.estimates(nchw, "cuda"):
        expected = on_card(algorithm, x, z, {})
        y = on_card(
            algorithm, laid_out(x, names["input_layout"]), laid_out(z, names["residual_layout"]), names
        )
        # An algorithm that takes NHWC itself may add in another order.
        both = [array.astype(np.float64) for array in (y, laid_out(expected, names["output_layout"]))]
        tolerance = {"float32": 2e-3, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}[element_type]
        np.testing.assert_allclose(*both, rtol=tolerance, atol=tolerance * np.abs(both[1]).max())
