"""QuantConv in sessions: images of several sizes, inferred shapes and types, and nodes that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from convswap.reference.quantised import quant_conv
from onnx import TensorProto, helper, numpy_helper
from op_sessions import make_session

NHWC = {"input_layout": "NHWC", "output_layout": "NHWC"}
RNG = np.random.default_rng(0)
WEIGHTS = RNG.integers(-128, 128, (32, 16, 3, 3)).astype(np.int8)
SCALE = RNG.uniform(1e-4, 4e-4, 32).astype(np.float32)
BIAS = RNG.integers(-9000, 9000, 32).astype(np.int32)
ATTRIBUTES = {"pads": [1] * 4, "strides": [2, 2], "x_zero_point": 7, **NHWC}
TYPES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8, np.float32: TensorProto.FLOAT}


def quant_model(y_type=np.uint8, *, zero_point=None, is_constant=True, last_inputs=(), **attributes) -> bytes:
    """Return a model of one QuantConv, whose image has an open size.

    `last_inputs` are constants behind the bias, or names of inputs of the model: uint8 tensors in NHWC.
    """
    given = np.array(5 if y_type != np.float32 else 0, y_type) if zero_point is None else zero_point
    constants = {"w": WEIGHTS, "scale": SCALE, "b": BIAS} | ({"zero": given} if is_constant else {})
    inputs = [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", "h", "w", 16])]
    names = ["x", "w", "scale", "zero", "b"]
    for index, operand in enumerate(last_inputs):
        names.append(operand if isinstance(operand, str) else f"last_{index}")
        if isinstance(operand, str):
            inputs.append(helper.make_tensor_value_info(operand, TensorProto.UINT8, [None] * 4))
        else:
            constants[names[-1]] = operand
    if not is_constant:
        inputs.append(helper.make_tensor_value_info("zero", TYPES[y_type], []))
    node = helper.make_node(
        "QuantConv", names, ["y"], "conv1", domain="convswap", **ATTRIBUTES | attributes
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "net", inputs, [helper.make_tensor_value_info("y", TYPES[y_type], None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("convswap", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def check_sizes(device: str) -> None:
    """Run images of several sizes through one session: with stride 2 some have no border at their end."""
    session = make_session(quant_model(), device)
    for batch, height, width in ((2, 14, 14), (1, 13, 14), (3, 13, 9), (1, 1, 2), (2, 14, 14)):
        x = RNG.integers(0, 256, (batch, height, width, 16)).astype(np.uint8)
        expected = quant_conv(x, WEIGHTS, SCALE, np.array(5, np.uint8), BIAS, attributes=ATTRIBUTES)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected)


def test_one_session_computes_images_of_several_sizes():
    check_sizes("cpu")


@pytest.mark.gpu
def test_one_session_computes_images_of_several_sizes_on_a_card():
    """The zero point's part of borders is prepared for each kind of border, not once for the weights."""
    check_sizes("cuda")


OFFSET = np.zeros(32, np.float32)
NO_RESIDUAL = np.zeros(0, np.uint8)
SUM_VALUES = np.linspace(-3, 40, 256, dtype=np.float32) ** 2


def check_sum_values(device: str, y_type: type, *, has_residual: bool) -> None:
    """Run a node with sum values; an absent residual in front of them is an empty constant."""
    x = RNG.integers(0, 256, (2, 13, 14, 16)).astype(np.uint8)
    residual = RNG.integers(0, 256, (2, 7, 7, 32)).astype(np.uint8)
    own = {"sum_zero_point": 100} | ({"y_scale": 5.0} if y_type != np.float32 else {})
    feeds = {"x": x}
    if has_residual:
        own |= {"z_scale": 2.0, "residual_layout": "NHWC"}
        feeds["z"] = residual
    last_inputs = (OFFSET, "z" if has_residual else NO_RESIDUAL, SUM_VALUES)
    (actual,) = make_session(quant_model(y_type, last_inputs=last_inputs, **own), device).run(None, feeds)
    expected = quant_conv(
        x, WEIGHTS, SCALE, np.array(5 if y_type != np.float32 else 0, y_type), BIAS, OFFSET, feeds.get("z"),
        SUM_VALUES, ATTRIBUTES | own,
    )  # fmt: skip
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("y_type", TYPES)
def test_sum_values_are_numbers_of_codes(y_type, has_residual):
    check_sum_values("cpu", y_type, has_residual=has_residual)


@pytest.mark.gpu
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("y_type", TYPES)
def test_sum_values_are_numbers_of_codes_on_a_card(y_type, has_residual):
    check_sum_values("cuda", y_type, has_residual=has_residual)


def test_the_zero_point_of_numbers_may_be_computed():
    """ONNX Runtime's CPU provider casts it where it computes a float16 node in float32."""
    feeds = {"x": RNG.integers(0, 256, (2, 13, 14, 16)).astype(np.uint8)}
    (expected,) = make_session(quant_model(np.float32), "cpu").run(None, feeds)
    session = make_session(quant_model(np.float32, is_constant=False), "cpu")
    (computed,) = {each.name for each in session.get_inputs()} - {"x"}
    (actual,) = session.run(None, feeds | {computed: np.array(0, np.float32)})
    np.testing.assert_array_equal(actual, expected)


def test_a_node_with_more_inputs_than_the_library_knows_is_refused():
    """Libraries before `sum_values` know one input less, and so never compute without them."""
    last_inputs = (OFFSET, NO_RESIDUAL, SUM_VALUES, SUM_VALUES)
    with pytest.raises(Exception, match=r"conv1.* has more inputs \(9\)|conv1.*input size 9 not in range"):
        make_session(quant_model(last_inputs=last_inputs, sum_zero_point=100), "cpu")


@pytest.mark.parametrize("y_type", TYPES)
def test_y_has_the_type_of_its_zero_point_and_the_known_extents(y_type):
    (y,) = make_session(quant_model(y_type), "cpu").get_outputs()
    assert y.type == {np.uint8: "tensor(uint8)", np.int8: "tensor(int8)", np.float32: "tensor(float)"}[y_type]
    assert (y.shape[0], y.shape[3]) == ("n", 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"is_constant": False}, "input y_zero_point: expected a constant scalar"),
        ({"zero_point": np.array([5], np.uint8)}, "input y_zero_point: expected a constant scalar"),
        (
            {"y_type": np.float32, "zero_point": np.array(1, np.float32)},
            "input y_zero_point: expected 0, because y has numbers of float32 and no codes",
        ),
        (
            {"y_type": np.float32, "y_scale": 0.5},
            "attribute y_scale: expected none, because y has numbers of float32 and no codes",
        ),
        ({"x_zero_point": 300}, "x_zero_point 300: expected from 0 to 255, a code of uint8"),
        ({"sum_scale": 0.5}, "attribute sum_scale: expected sum_zero_point, too, and there is none"),
        ({"sum_zero_point": 5}, "expected the attribute sum_scale or the input sum_values, too"),
        (
            {"last_inputs": (OFFSET, NO_RESIDUAL, SUM_VALUES)},
            "input sum_values: expected the attribute sum_zero_point and no sum_scale",
        ),
        (
            {"last_inputs": (OFFSET, NO_RESIDUAL, SUM_VALUES[:8]), "sum_zero_point": 5},
            "sum_values of shape [8]: expected [256], one value per code",
        ),
        ({"algorithm": "direct"}, "it takes no int8 and uint8 codes"),
    ],
)
def test_a_node_that_cannot_be_computed_is_refused_by_name(options, message):
    x = np.zeros((1, 8, 8, 16), np.uint8)
    with pytest.raises(Exception, match="conv1") as raised:
        make_session(quant_model(**options), "cpu").run(None, {"x": x})
    assert message in str(raised.value)
