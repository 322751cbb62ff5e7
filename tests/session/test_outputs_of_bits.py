"""Values of types that NumPy has not: read as ONNX Runtime computes them, and compared like others.

ONNX Runtime's CPU provider has no Conv of theirs, so that here a Conv in bfloat16 runs on our side alone.
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
# Whole numbers that all of the types hold. An odd number of them, so that the last has a byte of its own.
VALUES = np.array([[0, 1, 2, 3, 4, 5, 6]], np.float32)


def model_of(nodes: str, outputs: str, x: str = "float[1, 3, 8, 8] x") -> onnx.ModelProto:
    # The first opset with numbers of 4 bits.
    return text_model(nodes, weights("w", 4, 3, 3, 3), inputs=x, outputs=outputs, opset=21)


@pytest.mark.parametrize("name", TYPES)
def test_every_element_is_read_in_a_type_that_holds_it(name):
    kind = TensorProto.DataType.Value(name)
    outputs = f"{name.lower()}[1, 7] y, float[1, 7] z"
    model = model_of(f"y = Cast <to = {kind}> (x)  z = Neg(x)", outputs, "float[1, 7] x")
    found = run_named(make_session(model, DEFAULT, CPU), {"x": VALUES})
    assert list(found) == ["y", "z"]
    np.testing.assert_array_equal(found["y"], VALUES)
    assert found["y"].dtype == (np.int8 if "INT" in name else np.float32)
    np.testing.assert_array_equal(found["z"], -VALUES)


def test_what_has_no_element_is_read():
    nodes = f"y = Cast <to = {TensorProto.BFLOAT16}> (x)"
    model = model_of(nodes, "bfloat16[?, 7] y", "float[n, 7] x")
    assert run_named(make_session(model, DEFAULT, CPU), {"x": VALUES[:0]})["y"].shape == (0, 7)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("name", TYPES)
def test_model_is_compared(name, precision):
    kind = TensorProto.DataType.Value(name)
    # Without Abs half of them are 0, and stay so whatever the Conv does.
    nodes = f"[conv] c = Conv(x, w)  a = Abs(c)  y = Cast <to = {kind}> (a)"
    model = model_of(nodes, f"{name.lower()}[1, 4, 6, 6] y")
    found = compare(model, device="cpu", precision=precision)
    assert found.within_tolerance and found.swapped == 1
    # As numbers, not as bits.
    assert (found.elements_that_differ == {}) == ("INT" not in name)


def test_wrong_answer_in_bfloat16_is_found(monkeypatch):
    def wrong_swap(model, **options):
        result = swap(model, **options)
        value = result.model.graph.initializers["w"]
        value.const_value = ir.Tensor(value.const_value.numpy() * np.float32(1.1), name="w")
        return result

    nodes = f"[conv] c = Conv(x, w)  y = Cast <to = {TensorProto.BFLOAT16}> (c)"
    model = model_of(nodes, "bfloat16[1, 4, 6, 6] y")
    monkeypatch.setattr("convswap.comparison.preparation.swap", wrong_swap)
    found = compare(model, device="cpu", time_layers=False)
    assert found.convswap.relative_l2_error == pytest.approx(0.1, rel=0.1)
    assert not found.within_tolerance


def conv_in_bfloat16() -> onnx.ModelProto:
    """Return a model whose Conv is in bfloat16, and its input and output in float32."""
    to = TensorProto.BFLOAT16
    nodes = f"narrow = Cast <to = {to}> (x)  [conv] c = Conv(narrow, w)  y = Cast <to = 1> (c)"
    model = model_of(nodes, "float[1, 4, 6, 6] y")
    filters = numpy_helper.to_array(model.graph.initializer[0]).astype(ml_dtypes.bfloat16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(filters, "w"))
    # The first whose Conv knows bfloat16.
    model.opset_import[0].version = 22
    return model


@pytest.fixture
def segment():
    return segments_of(as_split(swap(conv_in_bfloat16()).model), None)[0]


@pytest.fixture
def fed():
    """What the Conv is fed."""
    values = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(ml_dtypes.bfloat16)
    return {"narrow": ort_value(values, TensorProto.BFLOAT16)}


def test_error_of_a_conv_in_bfloat16_is_its_rounding(segment, fed):
    compared = SimpleNamespace(device=CPU)
    session = make_session(segment.layer.model({"narrow": 4}, swapped=True), CONVSWAP, CPU)
    found = orchestration._layer_errors(compared, segment.layer, {CONVSWAP: session}, fed)
    assert 1e-4 < found["convswap"] < 2.0**-8
    assert algorithm_error(segment, fed, DEFAULT_PRECISION, "direct", CPU) == pytest.approx(found["convswap"])


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_value_is_copied_to_the_host(name):
    kind = TensorProto.DataType.Value(name)
    model = model_of(f"y = Cast <to = {kind}> (x)", f"{name.lower()}[1, 7] y", "float[1, 7] x")
    (value,) = make_session(model, DEFAULT, CPU).run_with_ort_values(["y"], {"x": value_on(VALUES)})
    # As if it were in a card's memory.
    found = host_array(sessions._on_host(value, CPU), CPU)
    assert found.dtype == TYPES[name]
    np.testing.assert_array_equal(found.astype(np.float32), VALUES)


@pytest.mark.gpu
def test_what_a_card_computes_in_bfloat16_is_read_and_compared(cuda):
    model = conv_in_bfloat16()
    del model.graph.node[2:]
    model.graph.output[0].CopyFrom(tensor_info("c", 1, 4, 6, 6, element_type=TensorProto.BFLOAT16))
    found = compare(model, device=cuda)
    assert found.within_tolerance and found.layers[0].relative_l2_error["convswap"] < 2.0**-8
