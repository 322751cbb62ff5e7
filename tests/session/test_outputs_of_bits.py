"""Outputs of types that NumPy has not: read as ONNX Runtime computes them, and compared like others."""

from __future__ import annotations

import importlib

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.graph.swap import swap
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, make_session, run_named
from onnx import TensorProto, helper
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
    monkeypatch.setattr(orchestration, "swap", wrong_swap)
    found = compare(model, device="cpu", time_layers=False)
    assert found.convswap.relative_l2_error == pytest.approx(0.1, rel=0.1)
    assert not found.within_tolerance
