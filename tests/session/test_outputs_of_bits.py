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
from convswap.graph.swap import DEFAULT_PRECISION, swap
from convswap.optimizing.segments import segments_of
from convswap.optimizing.trials import error_by
from convswap.runtime import sessions
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, host_array, make_session, run_named, value_on
from element_types import ort_value
from onnx import TensorProto, helper, numpy_helper
from swap_models import tensor_info, weights

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


def model_of(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto], *shape: int) -> onnx.ModelProto:
    tensors = [weights("w", 4, 3, 3, 3)]
    graph = helper.make_graph(nodes, "net", [tensor_info("x", *shape)], outputs, tensors)
    # The first opset with numbers of 4 bits.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("name", TYPES)
def test_every_element_is_read_in_a_type_that_holds_it(name):
    kind = TensorProto.DataType.Value(name)
    model = model_of(
        [helper.make_node("Cast", ["x"], ["y"], to=kind), helper.make_node("Neg", ["x"], ["z"])],
        [tensor_info("y", 1, 7, element_type=kind), tensor_info("z", 1, 7)],
        1,
        7,
    )
    found = run_named(make_session(model, DEFAULT, CPU), {"x": VALUES})
    assert list(found) == ["y", "z"]
    np.testing.assert_array_equal(found["y"], VALUES)
    assert found["y"].dtype == (np.int8 if "INT" in name else np.float32)
    np.testing.assert_array_equal(found["z"], -VALUES)


def test_what_has_no_element_is_read():
    model = model_of(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)],
        [tensor_info("y", None, 7, element_type=TensorProto.BFLOAT16)],
        "n",
        7,
    )
    assert run_named(make_session(model, DEFAULT, CPU), {"x": VALUES[:0]})["y"].shape == (0, 7)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("name", TYPES)
def test_model_is_compared(name, precision):
    kind = TensorProto.DataType.Value(name)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        # Half of them are 0 otherwise, and stay so whatever the Conv does.
        helper.make_node("Abs", ["c"], ["a"]),
        helper.make_node("Cast", ["a"], ["y"], to=kind),
    ]
    model = model_of(nodes, [tensor_info("y", 1, 4, 6, 6, element_type=kind)], 1, 3, 8, 8)
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

    kind = TensorProto.BFLOAT16
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Cast", ["c"], ["y"], to=kind),
    ]
    model = model_of(nodes, [tensor_info("y", 1, 4, 6, 6, element_type=kind)], 1, 3, 8, 8)
    monkeypatch.setattr("convswap.comparison.preparation.swap", wrong_swap)
    found = compare(model, device="cpu", time_layers=False)
    assert found.convswap.relative_l2_error == pytest.approx(0.1, rel=0.1)
    assert not found.within_tolerance


def conv_in_bfloat16() -> onnx.ModelProto:
    """Return a model whose Conv is in bfloat16, and its input and output in float32."""
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("Conv", ["narrow", "w"], ["c"], name="conv"),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, [tensor_info("y", 1, 4, 6, 6)], 1, 3, 8, 8)
    filters = numpy_helper.to_array(model.graph.initializer[0]).astype(ml_dtypes.bfloat16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(filters, "w"))
    # The first whose Conv knows bfloat16.
    model.opset_import[0].version = 22
    return model


@pytest.fixture
def segment():
    return segments_of(ir.to_proto(swap(conv_in_bfloat16()).model), None, {})[0]


@pytest.fixture
def fed():
    """What the Conv is fed."""
    values = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(ml_dtypes.bfloat16)
    return {"narrow": ort_value(values, TensorProto.BFLOAT16)}


def test_error_of_a_conv_in_bfloat16_is_its_rounding(segment, fed):
    compared = SimpleNamespace(
        device=CPU, layer_model=lambda layer, ranks, ours: layer.model(ranks, ours=ours)
    )
    session = make_session(segment.layer.model({"narrow": 4}, ours=True), CONVSWAP, CPU)
    found = orchestration._layer_errors(compared, segment.layer, {CONVSWAP: session}, fed)
    assert 1e-4 < found["convswap"] < 2.0**-8
    assert error_by(segment, fed, DEFAULT_PRECISION, "direct", CPU) == pytest.approx(found["convswap"])


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"])
def test_value_is_copied_to_the_host(name):
    kind = TensorProto.DataType.Value(name)
    model = model_of(
        [helper.make_node("Cast", ["x"], ["y"], to=kind)], [tensor_info("y", 1, 7, element_type=kind)], 1, 7
    )
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
