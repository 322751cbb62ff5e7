"""Values of types that NumPy lacks are read as ONNX Runtime computes them, and compared like other values.

ONNX Runtime's CPU provider has no Conv for these types, so a Conv in bfloat16 runs only on our side.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.graph.external_weights import as_split
from convswap.graph.swap import DEFAULT_PRECISION, swap
from convswap.optimizing.segments import segments_of
from convswap.optimizing.trials import algorithm_error
from convswap.runtime import sessions
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, host_array, make_session, run_named, value_on
from element_types import ort_value
from onnx import TensorProto, numpy_helper
from swap_models import tensor_info, text_model, weights

orchestration = importlib.import_module("convswap.comparison.compare")
compare = orchestration.compare
CPU = Device("cpu", "asked for")
TYPES = {
    "BFLOAT16": ml_dtypes.bfloat16,
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn,
    "FLOAT8E5M2": ml_dtypes.float8_e5m2,
    "INT4": ml_dtypes.int4,
    "UINT4": ml_dtypes.uint4,
}
# Integers that all of the types represent. Their number is odd, so a 4-bit type fills half of the last byte.
VALUES = np.array([[0, 1, 2, 3, 4, 5, 6]], np.float32)


def model_of(nodes: str, outputs: str, x: str = "float[1, 3, 8, 8] x") -> onnx.ModelProto:
    # The first opset with 4-bit types.
    return text_model(nodes, weights("w", 4, 3, 3, 3), inputs=x, outputs=outputs, opset=21)


@pytest.mark.parametrize("name", TYPES)
def test_every_element_is_read_in_a_type_that_holds_it(name):
    kind = TensorProto.DataType.Value(name)
    outputs = f"{name.lower()}[1, 7] y, float[1, 7] z"
    model = model_of(f"y = Cast <to = {kind}> (x)  z = Neg(x)", outputs, "float[1, 7] x")
    values = run_named(make_session(model, DEFAULT, CPU), {"x": VALUES})
    assert list(values) == ["y", "z"]
    np.testing.assert_array_equal(values["y"], VALUES)
    assert values["y"].dtype == (np.int8 if "INT" in name else np.float32)
    np.testing.assert_array_equal(values["z"], -VALUES)


def test_what_has_no_element_is_read():
    nodes = f"y = Cast <to = {TensorProto.BFLOAT16}> (x)"
    model = model_of(nodes, "bfloat16[?, 7] y", "float[n, 7] x")
    assert run_named(make_session(model, DEFAULT, CPU), {"x": VALUES[:0]})["y"].shape == (0, 7)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("name", TYPES)
def test_model_is_compared(name, precision):
    kind = TensorProto.DataType.Value(name)
    # Without Abs half of the values would be 0 whatever the Conv computes.
    nodes = f"[conv] c = Conv(x, w)  a = Abs(c)  y = Cast <to = {kind}> (a)"
    model = model_of(nodes, f"{name.lower()}[1, 4, 6, 6] y")
    result = compare(model, device="cpu", precision=precision)
    assert result.within_tolerance and result.swapped == 1
    # Compared as numbers, not as bits.
    assert (result.elements_that_differ == {}) == ("INT" not in name)


def test_wrong_output_in_bfloat16_is_found(monkeypatch):
    def wrong_swap(model, **options):
        result = swap(model, **options)
        value = result.model.graph.initializers["w"]
        value.const_value = ir.Tensor(value.const_value.numpy() * np.float32(1.1), name="w")
        return result

    nodes = f"[conv] c = Conv(x, w)  y = Cast <to = {TensorProto.BFLOAT16}> (c)"
    model = model_of(nodes, "bfloat16[1, 4, 6, 6] y")
    monkeypatch.setattr("convswap.comparison.preparation.swap_to_run", wrong_swap)
    comparison = compare(model, device="cpu", time_layers=False)
    assert comparison.convswap.relative_l2_error == pytest.approx(0.1, rel=0.1)
    assert not comparison.within_tolerance


def conv_in_bfloat16() -> onnx.ModelProto:
    """Return a model whose Conv is in bfloat16, and its input and output in float32."""
    to = TensorProto.BFLOAT16
    nodes = f"narrow = Cast <to = {to}> (x)  [conv] c = Conv(narrow, w)  y = Cast <to = 1> (c)"
    model = model_of(nodes, "float[1, 4, 6, 6] y")
    filters = numpy_helper.to_array(model.graph.initializer[0]).astype(ml_dtypes.bfloat16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(filters, "w"))
    # The first opset whose Conv supports bfloat16.
    model.opset_import[0].version = 22
    return model


@pytest.fixture
def segment():
    return segments_of(as_split(swap(conv_in_bfloat16()).model), None)[0]


@pytest.fixture
def conv_input():
    """The Conv's input."""
    values = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(ml_dtypes.bfloat16)
    return {"narrow": ort_value(values, TensorProto.BFLOAT16)}


def test_error_of_a_conv_in_bfloat16_is_its_rounding(segment, conv_input):
    comparison = SimpleNamespace(device=CPU)
    session = make_session(segment.layer.model({"narrow": 4}, swapped=True), CONVSWAP, CPU)
    errors, _ = orchestration._layer_errors(comparison, segment.layer, {CONVSWAP: session}, conv_input)
    assert 1e-4 < errors["convswap"] < 2.0**-8
    assert algorithm_error(segment, conv_input, DEFAULT_PRECISION, "direct", CPU) == pytest.approx(
        errors["convswap"]
    )


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_value_is_copied_to_the_host(name):
    kind = TensorProto.DataType.Value(name)
    model = model_of(f"y = Cast <to = {kind}> (x)", f"{name.lower()}[1, 7] y", "float[1, 7] x")
    (value,) = make_session(model, DEFAULT, CPU).run_with_ort_values(["y"], {"x": value_on(VALUES)})
    # As if the value were in a card's memory.
    actual = host_array(sessions._on_host(value, CPU), CPU)
    assert actual.dtype == TYPES[name]
    np.testing.assert_array_equal(actual.astype(np.float32), VALUES)


@pytest.mark.gpu
def test_what_a_card_computes_in_bfloat16_is_read_and_compared(cuda):
    model = conv_in_bfloat16()
    del model.graph.node[2:]
    model.graph.output[0].CopyFrom(tensor_info("c", 1, 4, 6, 6, element_type=TensorProto.BFLOAT16))
    result = compare(model, device=cuda)
    assert result.within_tolerance and result.layers[0].relative_l2_error["convswap"] < 2.0**-8
