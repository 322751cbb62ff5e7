"""FusedConv equals the convolution and its epilogue, computed by ONNX's own operators in float64."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
import onnx
import pytest
from each_case import each
from element_types import ort_value
from fused_cases import ACTIVATIONS, POOLS, TYPES, check, draw, fused_attributes, reference
from onnx import helper
from op_sessions import check_shape, graph_model, make_session, without_trailing_empty


def fused_model(
    arrays: dict[str, np.ndarray], element_type: int, attributes: dict, x_shape: list | None = None
) -> bytes:
    """Return a model of one FusedConv with constant weights; the residual, if any, is an input."""
    inputs = without_trailing_empty([name if name in arrays else "" for name in ("x", "w", "b", "z")])
    fused = helper.make_node("FusedConv", inputs, ["y"], name="conv1", domain="convswap", **attributes)
    constants = {name: arrays[name] for name in ("w", "b") if name in arrays}
    shapes = {"x": x_shape or arrays["x"].shape} | ({"z": None} if "z" in arrays else {})
    return graph_model([fused], shapes, constants, element_type=element_type).SerializeToString()


def run(
    model: bytes, device: str, arrays: dict[str, np.ndarray], element_type: str, shape: tuple[int, ...] = ()
) -> np.ndarray:
    """Run `model`; only bfloat16 needs `shape`, that of the output."""
    session = make_session(model, device)
    feeds = {name: arrays[name] for name in "xz" if name in arrays}
    if element_type != "bfloat16":
        return session.run(None, feeds)[0]
    # ONNX Runtime returns no NumPy array of bfloat16, but writes into the memory of one.
    y = np.full(shape, np.nan, ml_dtypes.bfloat16)
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort_value(array, TYPES[element_type][1]))
    binding.bind_ortvalue_output("y", ort_value(y, TYPES[element_type][1]))
    session.run_with_iobinding(binding)
    return y


@each("residual", [False, True])
@each("pool", POOLS.values())
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_the_operators_one_after_the_other(activation, pool, residual, device):
    arrays = draw("float32", residual=residual)
    attributes = {"precision": "ieee", **fused_attributes(activation, pool)}
    y = run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), device, arrays, "float32")
    check(y, reference(arrays, activation, pool, {}), "float32")


@pytest.mark.parametrize("element_type", TYPES)
@each("activation, pool", [("Tanh", "max"), ("SiLU", "none"), ("None", "average")])
def test_every_type_is_rounded_once(element_type, activation, pool, device):
    arrays = draw(element_type, residual=True)
    attributes = {"precision": "ieee", **fused_attributes(activation, POOLS[pool])}
    expected = reference(arrays, activation, POOLS[pool], {})
    model = fused_model(arrays, TYPES[element_type][1], attributes)
    check(run(model, device, arrays, element_type, expected.shape), expected, element_type)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "toeplitz", "few_channels", "tiled", "naive"])
@each("pool", POOLS.values())
@pytest.mark.parametrize("activation", ["None", "Relu", "LeakyRelu", "Tanh", "SiLU"])
def test_every_cuda_algorithm_supports_every_epilogue(algorithm, activation, pool):
    for residual in (False, True):
        arrays = draw("float32", residual=residual)
        attributes = {"precision": "ieee", "algorithm": algorithm, **fused_attributes(activation, pool)}
        y = run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), "cuda", arrays, "float32")
        check(y, reference(arrays, activation, pool, {}), "float32")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "algorithm", ["implicit_gemm", "toeplitz", "few_channels", "many_channels", "tiled", "naive"]
)
@pytest.mark.parametrize("element_type", ["float16", "bfloat16"])
@each("pool", ["none", "max", "max overlapping, padded"])
@each("activation", ["None", "Relu", "Clip"])
def test_every_cuda_algorithm_rounds_once(algorithm, element_type, activation, pool):
    arrays = draw(element_type, residual=False)
    attributes = {"algorithm": algorithm, **fused_attributes(activation, POOLS[pool])}
    expected = reference(arrays, activation, POOLS[pool], {})
    model = fused_model(arrays, TYPES[element_type][1], attributes)
    check(run(model, "cuda", arrays, element_type, expected.shape), expected, element_type)


@pytest.mark.parametrize("algorithm", ["direct", "reference"])
@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_every_cpu_algorithm_supports_every_epilogue(algorithm, pool):
    conv = {"group": 3, "strides": [2, 1], "pads": [1, 2, 0, 1], "dilations": [1, 2]}
    random = np.random.default_rng(8)
    arrays = {
        "x": random.standard_normal((3, 6, 17, 15)).astype(np.float32),
        "w": (random.standard_normal((9, 2, 3, 3)) / 4).astype(np.float32),
    }
    attributes = {**conv, "algorithm": algorithm, **fused_attributes("LeakyRelu", pool)}
    y = run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), "cpu", arrays, "float32")
    check(y, reference(arrays, "LeakyRelu", pool, conv), "float32")


def test_large_images_are_cut_into_bands_that_fit_together():
    random = np.random.default_rng(9)
    arrays = {
        "x": random.standard_normal((1, 3, 300, 190)).astype(np.float32),
        "w": (random.standard_normal((7, 3, 5, 5)) / 8).astype(np.float32),
    }
    pool = {"pool": "MaxPool", "kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    attributes = fused_attributes("Relu", pool)
    fused = run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), "cpu", arrays, "float32")
    check(fused, reference(arrays, "Relu", pool, {}), "float32")


@each("activation", [name for name in ACTIVATIONS if name != "None"])
def test_nan_stays_and_infinities_go_where_the_formula_says(activation, device):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32).reshape(1, 1, 1, 5)
    arrays = {"x": x, "w": np.ones((1, 1, 1, 1), np.float32)}
    attributes = {"precision": "ieee", **fused_attributes(activation, {})}
    y = run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), device, arrays, "float32")
    with np.errstate(all="ignore"):
        expected = reference(arrays, activation, {}, {})
    assert np.isnan(y[..., 0]).all()
    np.testing.assert_allclose(y[..., 1:], expected[..., 1:], rtol=1e-6)


def test_nan_stays_in_a_maximum_and_in_an_average(device):
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    for row, column in itertools.product((0, 1), (0, 1)):
        x[0, 0, row, column] = np.nan
        for pool in ("MaxPool", "AveragePool"):
            attributes = fused_attributes("None", {"pool": pool, "kernel_shape": [2, 2], "strides": [2, 2]})
            arrays = {"x": x, "w": np.ones((1, 1, 1, 1), np.float32)}
            y = run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), device, arrays, "float32")
            assert np.isnan(y[0, 0, 0, 0]) and not np.isnan(y[0, 0, 1, 1])
        x[0, 0, row, column] = 0


def test_shape_is_inferred_through_the_pool():
    arrays = draw("float32", residual=False)
    for x_shape, expected in (
        ([2, 3, 11, 13], [2, 6, 4, 5]),
        (["batch", 3, 11, 13], ["batch", 6, 4, 5]),
        ([2, 3, "height", 13], [2, 6, None, 5]),
    ):
        attributes = fused_attributes("Relu", {"pool": "MaxPool", "kernel_shape": [2, 2], "strides": [2, 2]})
        model = fused_model(arrays, onnx.TensorProto.FLOAT, attributes, x_shape)
        check_shape(model, expected)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"activation": "Rely"}, "unknown activation 'Rely'; did you mean 'Relu'?"),
        ({"pool": "Max"}, r"unknown pool 'Max'; "),
        ({"pool": "MaxPool"}, r"pool_kernel_shape \[\]: expected the rows and columns of a window"),
        (
            {"pool": "MaxPool", "pool_kernel_shape": [2]},
            r"pool_kernel_shape \[2\]: expected 2 values from 1 to 2147483647, for rows and columns",
        ),
        (
            {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [0, 1]},
            r"pool_strides \[0, 1\]: expected 2 values from 1",
        ),
        (
            {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_pads": [0, 0, 0, 2]},
            r"pool_pads \[0, 0, 0, 2\]: expected less than the window \[2, 2\]",
        ),
        (
            {"activation": "Clip", "activation_alpha": "low"},
            "attribute activation_alpha has another type or no value: expected a real number",
        ),
        (
            {"activation": "Clip", "activation_beta": float("nan")},
            "activation Clip: expected a number as activation_beta beside it, but there is NaN",
        ),
        (
            {"activation": "LeakyRelu"},
            "activation LeakyRelu: expected a number as activation_alpha beside it",
        ),
        (
            {"activation": "Elu", "activation_alpha": float("nan")},
            "activation Elu: expected a number as activation_alpha beside it, but there is NaN",
        ),
    ],
)
def test_wrong_attribute_is_refused_when_the_session_is_made(attributes, words):
    arrays = draw("float32", residual=False)
    with pytest.raises(Exception, match=words) as caught:
        make_session(fused_model(arrays, onnx.TensorProto.FLOAT, attributes))
    assert "convswap FusedConv node 'conv1'" in str(caught.value)


def test_pool_larger_by_more_than_its_stride_is_refused_with_both_sizes(device):
    arrays = draw("float32", residual=False)
    attributes = fused_attributes("None", {"pool": "MaxPool", "kernel_shape": [11, 1]})
    words = "reaches over 11 positions of spatial axis 0 and the padded output of the convolution has 9;"
    with pytest.raises(Exception, match=words):
        run(fused_model(arrays, onnx.TensorProto.FLOAT, attributes), device, arrays, "float32")


def test_residual_of_another_shape_is_refused_with_both_shapes_and_the_session_goes_on(device):
    arrays = draw("float32", residual=True)
    session = make_session(fused_model(arrays, onnx.TensorProto.FLOAT, {}), device)
    right = {name: arrays[name] for name in "xz"}
    words = re.escape("residual of shape [1, 6, 9, 11]: expected the convolution's output, [2, 6, 9, 11]")
    for _ in range(2):
        first = session.run(None, right)[0]
        with pytest.raises(Exception, match=words):
            session.run(None, {**right, "z": arrays["z"][:1]})
        assert session.run(None, right)[0].tobytes() == first.tobytes()
