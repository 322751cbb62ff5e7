"""Mul in sessions: random images are products in float64, rounded once; shapes, empty tensors, refusals."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.graph.plain_model import plain_model, plain_nodes
from each_case import each
from element_types import ort_value
from onnx import TensorProto, helper
from op_sessions import check_shape, cpu_session, graph_model, make_session

TYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
CHANNELS = (1, 2, 3, 8, 12, 24, 40, 96, 100, 672)
DRAWS = 120


def mul_model(
    element_type: int = TensorProto.FLOAT,
    x: list | None = None,
    factors: list | None = None,
    follow: str = "",
) -> bytes:
    """Return a model of one Mul, and perhaps an op behind it, with these declared shapes."""
    nodes = [helper.make_node("Mul", ["x", "factors"], ["h" if follow else "y"], "mul1", domain="convswap")]
    if follow:
        nodes.append(helper.make_node(follow, ["h"], ["y"]))
    shapes = {"x": x, "factors": factors}
    return graph_model(nodes, shapes, element_type=element_type).SerializeToString()


def feeds_of(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal(shape)
    factors = numbers.standard_normal((shape[0], *(1,) * (len(shape) - 2), shape[-1]))
    for array in (x, factors):
        if array.size > 8:
            for special in (np.nan, np.inf, -np.inf, 0.0):
                array.flat[numbers.integers(array.size)] = special
    return {"x": x.astype(dtype), "factors": factors.astype(dtype)}


def product_of(feeds: dict[str, np.ndarray], device: str) -> np.ndarray:
    element_type = helper.np_dtype_to_tensor_dtype(feeds["x"].dtype)
    binding = (session := make_session(mul_model(element_type), device)).io_binding()
    y = np.full(feeds["x"].shape, 7, feeds["x"].dtype)
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort_value(array, element_type))
    binding.bind_ortvalue_output("y", ort_value(y, element_type))
    session.run_with_iobinding(binding)
    return y


def check(y: np.ndarray, feeds: dict[str, np.ndarray]) -> None:
    """Compare every element with the exact product, rounded to the type."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = [feeds[name].astype(np.float64) for name in ("x", "factors")]
        expected = (wide[0] * wide[1]).astype(y.dtype)
    # In float32: ml_dtypes compares no NaN of bfloat16.
    to = np.float64 if y.dtype == np.float64 else np.float32
    np.testing.assert_array_equal(y.astype(to), expected.astype(to))


@each("seed", range(DRAWS))
def test_random_images_are_rounded_products(seed, device):
    draw = random.Random(seed)
    shape = (draw.randint(1, 4), *(draw.randint(1, 9) for _ in range(draw.randint(1, 3))))
    feeds = feeds_of((*shape, draw.choice(CHANNELS)), TYPES[seed % len(TYPES)], seed)
    check(product_of(feeds, device), feeds)


# EfficientNet-B0's, at batch 64 and 1, and more images than a grid has rows.
@each(
    "shape, dtype",
    [
        ((64, 112, 112, 32), np.float16),
        ((64, 7, 7, 1152), np.float16),
        ((1, 56, 56, 144), np.float32),
        ((64, 28, 28, 100), ml_dtypes.bfloat16),
        ((70_000, 3, 8), np.float16),
    ],
)
@pytest.mark.gpu
def test_images_of_networks_are_rounded_products(shape, dtype, cuda):
    feeds = feeds_of(shape, dtype)
    check(product_of(feeds, cuda), feeds)


def test_one_session_takes_any_shape(device):
    session = make_session(mul_model(), device)
    for shape in [(2, 3, 8), (2, 3, 4, 8), (1, 5, 8), (3, 2, 2, 2, 5), (2, 3, 8)]:
        feeds = feeds_of(shape, np.float32)
        check(session.run(None, feeds)[0], feeds)


@each("axes", range(1, 8))
def test_one_session_refuses_factors_that_do_not_fit(axes, device):
    session = make_session(mul_model(), device)
    shape = (2, *[2] * axes, 8)
    feeds = feeds_of(shape, np.float32)
    check(session.run(None, feeds)[0], feeds)
    for factors in ((1, *[1] * axes, 8), (2, *[1] * axes, 1), (2, *[2] * axes, 8), (8,)):
        with pytest.raises(Exception, match="one factor per image and channel"):
            session.run(None, feeds | {"factors": np.ones(factors, np.float32)})
    check(session.run(None, feeds)[0], feeds)


@each("shape", [(0, 3, 8), (2, 0, 8), (2, 3, 0)])
def test_empty_tensors_give_empty_tensors(shape, device):
    assert product_of(feeds_of(shape, np.float32), device).shape == shape


@each("x, expected", [(["n", 9, 8, 5], ["n", 9, 8, 5]), (["n", "h", 8, "c"], ["n", None, 8, None])])
def test_known_extents_of_the_output_are_declared(x, expected, device):
    check_shape(mul_model(x=x, follow="Abs"), expected, device)


@each(
    "x, factors, message",
    [
        ([2, 8], [2, 8], "input of shape [2, 8]: expected at least three dimensions (N, ..., C)"),
        ([2, 3, 8], [1, 1, 8], "factors of shape [1, 1, 8]: expected [2, 1, 8], one factor per image and"),
        ([2, 3, 8], [8], "factors of shape [8]: expected [2, 1, 8], one factor per image and channel"),
        ([2, 3, 8], [2, 3, 8], "factors of shape [2, 3, 8]: expected [2, 1, 8], one factor per image and"),
    ],
)
def test_misfit_is_refused(x, factors, message, device):
    with pytest.raises(Exception, match="convswap Mul node 'mul1'") as raised:
        make_session(mul_model(x=x, factors=factors), device)
    assert message in str(raised.value)
    session = make_session(mul_model(), device)
    with pytest.raises(Exception, match="convswap Mul node 'mul1'") as raised:
        session.run(None, {"x": np.ones(x, np.float32), "factors": np.ones(factors, np.float32)})
    assert message in str(raised.value)


def test_the_plain_node_is_that_of_onnx():
    feeds, model = feeds_of((4, 5, 6, 8), np.float32), onnx.load_from_string(mul_model())
    plain = ir.to_proto(plain_model(ir.from_proto(model)))
    assert [(node.domain, node.op_type) for node in plain.graph.node] == [("", "Mul")]
    check(cpu_session(plain).run(None, feeds)[0], feeds)
    (node,) = plain_nodes(model.graph.node[0], 20, TensorProto.FLOAT, {})
    assert (node.domain, node.op_type) == ("", "Mul")
