"""LayerNormalization in sessions: random rows are those of float64; shapes, empty tensors, refusals."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.errors import ConvswapError
from convswap.graph.plain_model import plain_model, plain_nodes
from each_case import each
from element_types import ort_value
from onnx import TensorProto, helper
from op_sessions import check_shape, cpu_session, graph_model, make_session

# NumPy type, and the unit roundoffs of the type and of the accumulators.
TYPES = {
    "float32": (np.float32, 2.0**-24, 2.0**-24),
    "float64": (np.float64, 2.0**-53, 2.0**-53),
    "float16": (np.float16, 2.0**-11, 2.0**-24),
    "bfloat16": (ml_dtypes.bfloat16, 2.0**-8, 2.0**-24),
}
# Error of a row's mean in roundings of its largest number. Equal numbers are all rounded in one direction: up
# to once for each addition to one of the CPU's 16 accumulators, half an ulp on average.
ROUNDINGS = 16
# Of float16 the kernel has a form for each number of vectors of 16 bytes that a lane holds, up to 2,048.
LENGTHS = (1, 2, 3, 8, 24, 40, 56, 96, 100, 192, 384, 768, 1000, 1280, 1792, 2048, 2056, 4096, 5000)
DRAWS = 240


def norm_model(
    element_type: int = TensorProto.FLOAT,
    x: list | None = None,
    follow: str = "",
    constants: dict[str, np.ndarray] | None = None,
    scale: list | None = None,
    bias: list | None = None,
    has_bias: bool = True,
    opset: int = 20,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one LayerNormalization, and perhaps an op behind it, with these declared shapes."""
    constants = constants or {}
    inputs = {"x": x, "scale": scale} | ({"bias": bias} if has_bias else {})
    nodes = [helper.make_node("LayerNormalization", list(inputs), ["h" if follow else "y"], "norm1",
                              domain="convswap", **attributes)]  # fmt: skip
    if follow:
        nodes.append(helper.make_node(follow, ["h"], ["y"]))
    shapes = {name: shape for name, shape in inputs.items() if name not in constants}
    return graph_model(nodes, shapes, constants, opset=opset, element_type=element_type)


def run_norm(feeds: dict[str, np.ndarray], device: str, *, constant: bool, **attributes: Any) -> np.ndarray:
    """Return the normalised `x` of `feeds`, with scale and bias as constants or as inputs."""
    x = feeds["x"]
    constants = {name: array for name, array in feeds.items() if constant and name != "x"}
    element_type = helper.np_dtype_to_tensor_dtype(x.dtype)
    model = norm_model(element_type, constants=constants, has_bias="bias" in feeds, **attributes)
    binding = (session := make_session(model.SerializeToString(), device)).io_binding()
    y = np.full(x.shape, 7, x.dtype)
    for name, array in feeds.items():
        if name not in constants:
            binding.bind_ortvalue_input(name, ort_value(array, element_type))
    binding.bind_ortvalue_output("y", ort_value(y, element_type))
    session.run_with_iobinding(binding)
    return y


def check(y: np.ndarray, feeds: dict[str, np.ndarray], epsilon: float) -> None:
    """Compare with the definition in float64. A NaN or an infinity makes its row NaN."""
    _, unit, addition = TYPES[y.dtype.name]
    wide = {name: array.astype(np.float64) for name, array in feeds.items()}
    x, scale = wide["x"], wide["scale"]
    with np.errstate(invalid="ignore"):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(epsilon))
        reference = centred / deviation * scale + wide.get("bias", 0.0)
        largest = np.abs(x).max(-1, keepdims=True)
    is_constant = (x == x[..., :1]).all(-1, keepdims=True)
    count = np.where(is_constant, ROUNDINGS + x.shape[-1] / 16, ROUNDINGS)
    roundings = count * addition * (largest / deviation + 4) * (1 + np.abs(scale))
    error, bound = np.abs(y.astype(np.float64) - reference), 1.01 * unit * np.abs(reference) + roundings
    np.testing.assert_array_equal(np.isnan(y), np.isnan(reference))
    wrong = ~(error <= bound) & ~np.isnan(reference)
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} are wrong, by {(error / bound)[wrong].max()}"


def feeds_of(
    shape: tuple[int, ...], dtype: Any, kind: str = "normal", seed: int = 0
) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal(shape)
    rows = x.reshape(-1, max(1, shape[-1]))
    if kind == "offset":
        x += 1e4
    elif kind == "constant":
        rows[:] = numbers.standard_normal((len(rows), 1))
    elif kind == "special":
        for special in (np.nan, np.inf, -np.inf):
            rows[numbers.integers(len(rows)), numbers.integers(shape[-1])] = special
    parameters = {"scale": numbers.standard_normal(shape[-1]) + 1, "bias": numbers.standard_normal(shape[-1])}
    return {name: array.astype(dtype) for name, array in ({"x": x} | parameters).items()}


@each("seed", range(DRAWS))
def test_random_rows_are_those_of_float64(seed, device):
    draw = random.Random(seed)
    dtype = list(TYPES.values())[seed % len(TYPES)][0]
    rank = draw.randint(1, 6)
    shape = (*(draw.randint(1, 4) for _ in range(rank - 1)), draw.choice(LENGTHS))
    kinds = ("normal", "normal", "constant", "special", *(["offset"] if seed % len(TYPES) < 2 else []))
    feeds = feeds_of(shape, dtype, draw.choice(kinds), seed)
    if draw.random() < 0.25:
        del feeds["bias"]
    epsilon = draw.choice((1e-5, 1e-6, 0.1))
    y = run_norm(
        feeds, device, constant=draw.random() < 0.5, axis=draw.choice((-1, rank - 1)), epsilon=epsilon
    )
    check(y, feeds, epsilon)


# ConvNeXt's, at batch 64 and 1, and rows that no vector fits.
@each(
    "shape, dtype",
    [
        ((64, 56, 56, 96), np.float16),
        ((64, 28, 28, 192), np.float16),
        ((64, 14, 14, 384), np.float32),
        ((1, 7, 7, 768), np.float16),
        ((1, 56, 56, 96), np.float32),
        ((50_000, 100), np.float16),
        ((300, 9999), np.float32),
    ],
)
@pytest.mark.gpu
def test_rows_of_networks_are_those_of_float64(shape, dtype, cuda):
    feeds = feeds_of(shape, dtype)
    check(run_norm(feeds, cuda, constant=True), feeds, 1e-5)


@pytest.mark.extended
@pytest.mark.large
def test_more_than_2_to_the_31_elements(device):
    # The block has a prime number of rows, so that an index that wraps around reads another row.
    block = feeds_of((9973, 96), np.float16)
    expected = run_norm(block, device, constant=True)
    copies = 2**32 // block["x"].size + 2 if device == "cuda" else 2**31 // block["x"].size + 2
    y = run_norm(block | {"x": np.tile(block["x"], (copies, 1))}, device, constant=True)
    assert y.size > 2**31
    assert (y.reshape(copies, *expected.shape) == expected).all()


def test_one_session_takes_any_shape(device):
    feeds = feeds_of((24, 8), np.float32)
    parameters = {name: feeds[name] for name in ("scale", "bias")}
    session = make_session(norm_model().SerializeToString(), device)
    for rows in [(24,), (2, 3, 4), (1, 2, 3, 1, 4, 1), (4, 1, 3, 2, 1, 1), (1, 2, 3, 1, 4, 1), (3, 8), ()]:
        x = feeds["x"] if rows else feeds["x"][0]
        y = session.run(None, parameters | {"x": x.reshape(*rows, 8)})[0]
        assert y.shape == (*rows, 8)
        check(y.reshape(x.shape), parameters | {"x": x}, 1e-5)


@each("shape", [(0, 8), (3, 0), (2, 0, 8), (0,)])
def test_empty_tensors_give_empty_tensors(shape, device):
    assert run_norm(feeds_of(shape, np.float32), device, constant=False).shape == shape


@each("x, expected", [(["n", 9, 8], ["n", 9, 8]), (["n", "h", 8, "c"], ["n", None, 8, None]), (["n"], ["n"])])
def test_known_extents_of_the_output_are_declared(x, expected, device):
    check_shape(norm_model(x=x, follow="Abs").SerializeToString(), expected, device)


@each(
    "options, message",
    [
        ({"x": [2, 8], "axis": 0}, "axis 0: expected the last axis of the input of shape [2, 8], -1 or 1"),
        ({"x": [2, 8], "axis": -2}, "axis -2: expected the last axis of the input of shape [2, 8], -1 or 1"),
        ({"axis": 1.0}, "attribute axis has another type or no value: expected an integer"),
        ({"epsilon": -1.0}, "epsilon -1.000000: expected a number from 0"),
        ({"epsilon": float("nan")}, "expected a number from 0"),
        ({"x": ["n", 8], "scale": [7]}, "scale of shape [7]: expected [8], one value per element of a row"),
        ({"x": [2, 8], "bias": [1, 8]}, "bias of shape [1, 8]: expected [8], one value per element of a row"),
        ({"x": [2, "c"], "scale": [1, 8]}, "scale of shape [1, 8]: expected one dimension, one value per"),
    ],
)
def test_misfit_is_refused_when_the_session_is_made(options, message, device):
    with pytest.raises(Exception, match="convswap LayerNormalization node 'norm1'") as raised:
        make_session(norm_model(**options).SerializeToString(), device)
    assert message in str(raised.value)


@each(
    "shapes, message",
    [
        (((), (8,), (8,)), "input of shape []: expected at least one dimension"),
        (((2, 8), (7,), (8,)), "scale of shape [7]: expected [8], one value per element of a row"),
        (((2, 8), (8,), (1,)), "bias of shape [1]: expected [8], one value per element of a row"),
    ],
)
def test_misfit_is_refused_in_a_run(shapes, message, device):
    session = make_session(norm_model().SerializeToString(), device)
    feeds = dict(zip(("x", "scale", "bias"), (np.ones(shape, np.float32) for shape in shapes), strict=True))
    with pytest.raises(Exception, match="convswap LayerNormalization node 'norm1'") as raised:
        session.run(None, feeds)
    assert message in str(raised.value)


def test_the_plain_node_is_that_of_onnx():
    feeds = feeds_of((4, 96), np.float32)
    model = norm_model(epsilon=0.1)
    plain = ir.to_proto(plain_model(ir.from_proto(model)))
    assert [node.domain for node in plain.graph.node] == [""]
    expected, actual = (cpu_session(each).run(None, feeds)[0] for each in (plain, model))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    (node,) = plain_nodes(model.graph.node[0], 20, TensorProto.FLOAT, {})
    assert (node.domain, node.op_type) == ("", "LayerNormalization")


@each("dtype", [np.float32, np.float64, np.float16])
@each("has_bias", [True, False])
def test_the_plain_nodes_of_older_opsets_are_those_of_the_definition(has_bias, dtype):
    feeds = feeds_of((4, 96), dtype)
    if not has_bias:
        del feeds["bias"]
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = norm_model(element_type, has_bias=has_bias, epsilon=0.1, opset=16)
    plain = ir.to_proto(plain_model(ir.from_proto(model)))
    assert {node.domain for node in plain.graph.node} == {""}
    (actual,) = cpu_session(plain).run(None, feeds)
    expected = cpu_session(model).run(None, feeds)[0].astype(np.float64)
    tolerance = 2e-2 if dtype == np.float16 else 1e-5
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=tolerance, atol=tolerance)
    nodes = plain_nodes(model.graph.node[0], 16, element_type, {})
    assert (nodes[-1].name, list(nodes[-1].output)) == ("norm1", ["y"])


def test_layer_normalisation_has_no_plain_nodes_before_opset_7():
    with pytest.raises(ConvswapError, match="its parts need 7 or newer"):
        plain_model(ir.from_proto(norm_model(opset=6)))
