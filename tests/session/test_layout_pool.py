"""LayoutPool in sessions: random pools are those of ONNX Runtime in NCHW; shapes, empty tensors, refusals."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from each_case import each
from element_types import ort_value
from onnx import TensorProto, helper
from op_sessions import check_shape, graph_model, make_session, onnx_outputs

# ONNX Runtime rejects a model with a bfloat16 AveragePool or MaxPool below this opset.
OPSET = 22
TYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
}
INTEGERS = ("int8", "uint8")
# Of averages of numbers of about 1: float32 sums in another order, and half an ulp of 16-bit types. float64
# is compared with sums in float32.
TOLERANCE = {"float32": 1e-6, "float64": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
DRAWS = 300


def pool_model(
    element_type: int = TensorProto.FLOAT, x: list | None = None, follow: str = "", **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one LayoutPool, and perhaps an op behind it. Attributes of None are left out."""
    attributes = {"pool": "MaxPool", "kernel_shape": [3, 2]} | attributes
    given = {name: value for name, value in attributes.items() if value is not None}
    nodes = [
        helper.make_node("LayoutPool", ["x"], ["h" if follow else "y"], "pool1", domain="convswap", **given)
    ]
    if follow:
        nodes.append(helper.make_node(follow, ["h"], ["y"]))
    return graph_model(nodes, {"x": x}, opset=OPSET, element_type=element_type)


def pooled_in_nchw(x: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """Return ONNX Runtime's pool of an NHWC tensor, in float32 if it does not have the type."""
    options = {name: value for name, value in attributes.items() if name != "pool"}
    data = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    has_type = data.dtype in (np.int8, np.uint8) or (
        data.dtype == np.float64 and attributes["pool"] == "MaxPool"
    )
    if not has_type:
        data = data.astype(np.float32)
    element_type = helper.np_dtype_to_tensor_dtype(data.dtype)
    node = helper.make_node(attributes["pool"], ["x"], ["y"], **options)
    model = graph_model([node], {"x": None}, opset=12, element_type=element_type)
    return onnx_outputs(model, {"x": data})[0].transpose(0, 2, 3, 1)


def run_pool(x: np.ndarray, device: str, shape: tuple[int, ...] = (), **attributes: Any) -> np.ndarray:
    """Return the LayoutPool of `x`. `shape` is that of the result; bfloat16 needs memory for it."""
    element_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    session = make_session(pool_model(element_type, **attributes).SerializeToString(), device)
    if x.dtype != ml_dtypes.bfloat16:
        return session.run(None, {"x": x})[0]
    y = np.full(shape, np.nan, x.dtype)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort_value(x, element_type))
    binding.bind_ortvalue_output("y", ort_value(y, element_type))
    session.run_with_iobinding(binding)
    return y


class Draw:
    """A random pool that ONNX Runtime computes in NCHW, too, and its input, which has NaN in one of ten."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.type = list(TYPES)[seed % len(TYPES)]
        kind = "MaxPool" if self.type in INTEGERS else draw.choice(("MaxPool", "AveragePool"))
        kernel = [draw.randint(1, 6) for _ in range(2)]
        if draw.random() < 0.5:
            kernel[1] = kernel[0]
        strides = draw.choice(([1, 1], [2, 2], [draw.randint(1, 3), draw.randint(1, 3)]))
        self.attributes: dict[str, Any] = {"pool": kind, "kernel_shape": kernel, "strides": strides}
        self.attributes["pads"] = [draw.randint(0, size - 1) for size in kernel * 2]
        self.attributes["ceil_mode"] = int(draw.random() < 0.4)
        if kind == "AveragePool":
            self.attributes["count_include_pad"] = int(draw.random() < 0.5)
        extents = [size + draw.randint(0, 14) for size in kernel]
        shape = (draw.randint(1, 3), *extents, draw.choice((1, 3, 8, 16, 24, 32, 64)))
        numbers = np.random.default_rng(seed)
        if self.type in INTEGERS:
            self.x = numbers.integers(0, 256, shape).astype(np.uint8).view(self.type)
        else:
            self.x = numbers.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(TYPES[self.type]))
            if draw.random() < 0.1:
                self.x[numbers.random(shape) < 0.05] = np.nan

    def check(self, device: str) -> None:
        # A window with NaN is NaN. ONNX Runtime's MaxPool gives NaN for some of them.
        is_nan = np.isnan(self.x) if self.type not in INTEGERS else np.zeros(self.x.shape, bool)
        expected = pooled_in_nchw(np.where(is_nan, 0, self.x).astype(self.x.dtype), self.attributes)
        y = run_pool(self.x, device, expected.shape, **self.attributes)
        assert y.dtype == self.x.dtype
        windows = {name: value for name, value in self.attributes.items() if name != "count_include_pad"}
        has_nan = pooled_in_nchw(is_nan.astype(np.float32), windows | {"pool": "MaxPool"}) > 0
        tolerance = 0 if self.attributes["pool"] == "MaxPool" else TOLERANCE[self.type]
        y, expected = y.astype(np.float64), expected.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(y), has_nan)
        y, expected = y[~has_nan], expected[~has_nan]
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


@each("seed", range(DRAWS))
def test_random_pools_are_those_of_onnx_runtime_in_nchw(seed, device):
    Draw(seed).check(device)


# The second to the fifth are so large that a thread computes four neighbouring outputs on an H200.
@each(
    "shape, attributes",
    [
        ((64, 10, 10, 128), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
        ((64, 40, 40, 128), {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]}),
        ((16, 28, 28, 192), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ((16, 28, 30, 192), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "pool": "AveragePool"}),
        ((32, 19, 19, 256), {"kernel_shape": [13, 13], "pads": [6, 6, 6, 6]}),
        ((8, 112, 112, 64), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((8, 7, 7, 512), {"kernel_shape": [7, 7], "pool": "AveragePool"}),
    ],
)
@pytest.mark.gpu
def test_pools_of_networks_are_those_of_onnx_runtime(shape, attributes, cuda):
    attributes = {"pool": "MaxPool"} | attributes
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    y = run_pool(x, cuda, **attributes).astype(np.float32)
    expected = pooled_in_nchw(x, attributes)
    tolerance = 0 if attributes["pool"] == "MaxPool" else TOLERANCE["float16"]
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)


@each(
    "x, attributes, expected",
    [
        (["n", 9, 8, 5], {}, ["n", 7, 7, 5]),
        (["n", "h", 8, 5], {"strides": [1, 2]}, ["n", None, 4, 5]),
        ([2, 9, "w", "c"], {"pads": [2, 0, 0, 1]}, [2, 9, None, None]),
        ([2, 9, 8, 5], {"strides": [2, 3], "ceil_mode": 1}, [2, 4, 3, 5]),
    ],
)
def test_known_extents_of_the_output_are_declared(x, attributes, expected, device):
    model = pool_model(x=x, follow="Abs", **attributes)
    check_shape(model.SerializeToString(), expected, device)


def test_one_session_takes_any_size(device):
    attributes = {"pool": "MaxPool", "kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    session = make_session(pool_model(**attributes).SerializeToString(), device)
    for shape in [(1, 5, 6, 8), (3, 9, 4, 8), (1, 5, 6, 8), (2, 5, 6, 3), (1, 1, 1, 4), (4, 2, 2, 2)]:
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], pooled_in_nchw(x, attributes))


@each("shape, expected", [((0, 5, 6, 8), (0, 3, 5, 8)), ((2, 5, 6, 0), (2, 3, 5, 0))])
def test_empty_tensors_give_empty_tensors(shape, expected, device):
    assert (
        run_pool(np.zeros(shape, np.float32), device, pool="MaxPool", kernel_shape=[3, 2]).shape == expected
    )


@each(
    "options, message",
    [
        ({"pool": None}, "pool None: expected MaxPool or AveragePool"),
        ({"pool": "MinPool"}, "unknown pool 'MinPool'; did you mean 'MaxPool'?"),
        ({"kernel_shape": None}, "kernel_shape []: expected the rows and columns of a window"),
        ({"kernel_shape": [3]}, "kernel_shape [3]: expected 2 values from 1 to"),
        ({"kernel_shape": [3, 0]}, "kernel_shape [3, 0]: expected 2 values from 1 to"),
        ({"strides": [0, 1]}, "strides [0, 1]: expected 2 values from 1 to"),
        ({"pads": [1, 1]}, "pads [1, 1]: expected 4 values from 0 to"),
        ({"pads": [0, 2, 0, 0]}, "pads [0, 2, 0, 0]: expected less than the window [3, 2]"),
        ({"dilations": [1, 2]}, "dilations [1, 2]: expected no such attribute of LayoutPool, or ones"),
        ({"auto_pad": "SAME_UPPER"}, "auto_pad SAME_UPPER: expected no such attribute of LayoutPool"),
        ({"strides": 1}, "attribute strides has another type or no value: expected a list of integers"),
        ({"x": [2, 9, 8]}, "input of shape [2, 9, 8]: expected 4 dimensions: (N, H, W, C)"),
        ({"element_type": TensorProto.INT8, "pool": "AveragePool"}, "expected MaxPool for int8 data"),
        ({"x": [2, 1, 8, 4], "kernel_shape": [4, 1]},
         "kernel_shape: its window reaches over 4 positions of spatial axis 0 and the padded input has 1"),
    ],
)  # fmt: skip
def test_misfit_is_refused_when_the_session_is_made(options, message, device):
    with pytest.raises(Exception, match="convswap LayoutPool node 'pool1'") as raised:
        make_session(pool_model(**options).SerializeToString(), device)
    assert message in str(raised.value)


@each(
    "shape, message",
    [
        ((2, 9, 8), "input of shape [2, 9, 8]: expected 4 dimensions: (N, H, W, C)"),
        ((2, 0, 8, 3), "kernel_shape: its window reaches over 3 positions of spatial axis 0"),
    ],
)
def test_misfit_is_refused_in_a_run(shape, message, device):
    session = make_session(pool_model().SerializeToString(), device)
    with pytest.raises(Exception, match="convswap LayoutPool node 'pool1'") as raised:
        session.run(None, {"x": np.zeros(shape, np.float32)})
    assert message in str(raised.value)
