"""ONNX's own cases of QLinearConv and ConvInteger, with constant scales and zero points, as QuantConv."""

from __future__ import annotations

import importlib

import numpy as np
import onnx
import pytest
import quantised_models as models
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case import node as cases
from op_sessions import make_session

# The number that a sum of 1 becomes.
STEP = 0.25


@pytest.fixture(scope="module")
def onnx_cases() -> dict[str, cases.TestCase]:
    """Return ONNX's cases of both operators."""
    for module in ("qlinearconv", "convinteger"):
        importlib.import_module(f"onnx.backend.test.case.node.{module}")
    return {
        case.name: case
        for case in cases._NodeTestCases
        if case.name.split("_")[1] in ("qlinearconv", "convinteger")
    }


def with_constants(case: cases.TestCase) -> tuple[onnx.ModelProto, np.ndarray, np.ndarray]:
    """Return the case with all inputs but the data as constants, its data, and the result that it stores."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    ((inputs, (expected,)),) = case.data_sets
    names = [value.name for value in model.graph.input]
    del model.graph.input[1:]
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in zip(names[1:], inputs[1:], strict=True)
    )
    return model, inputs[0], expected


@pytest.mark.parametrize("padding", ["with_padding", "without_padding"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sums_of_conv_integer_are_what_onnx_stores(padding, device, onnx_cases):
    model, x, expected = with_constants(onnx_cases[f"test_convinteger_{padding}"])
    (sums,) = model.graph.output
    model.graph.node.append(helper.make_node("Cast", [sums.name], ["numbers"], to=TensorProto.FLOAT))
    model.graph.node.append(helper.make_node("Mul", ["numbers", "step"], ["scaled"]))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(STEP), "step"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("scaled", TensorProto.FLOAT, expected.shape))
    result = swap(model, fuse=True)
    swapped = result.to_proto()
    assert models.ops(swapped) == ["QuantConv"]
    (actual,) = make_session(swapped.SerializeToString(), device).run(None, {model.graph.input[0].name: x})
    np.testing.assert_array_equal(actual, expected * np.float32(STEP))


def test_the_case_of_qlinear_conv_has_a_weight_beyond_int8(onnx_cases):
    """Its only weight is the code 0 with the zero point 255."""
    model, _, _ = with_constants(onnx_cases["test_qlinearconv"])
    with pytest.raises(ConvswapError, match="its weights less their zero points are -255 to 0"):
        swap(model, fuse=True)


def test_all_cases_of_both_operators_are_here(onnx_cases):
    assert sorted(onnx_cases) == [
        "test_convinteger_with_padding",
        "test_convinteger_without_padding",
        "test_qlinearconv",
    ]
