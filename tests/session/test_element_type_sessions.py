"""float16, bfloat16 and float64 in sessions on every provider, swapped and in override mode."""

from __future__ import annotations

import re

import numpy as np
import onnxruntime
import pytest
from conv_cases import CASES, EMPTY_CASES, ConvCase
from convswap import _native, override_session, register
from each_case import each
from element_types import TYPES, assert_rounded_once, ort_value
from onnx import TensorProto, helper
from op_sessions import graph_model


def session_of(
    case: ConvCase, element_type: int, device: str, *, override: bool = False, **attributes
) -> onnxruntime.InferenceSession:
    """Return a session of our Conv, or of ONNX's Conv overridden by ours; no input is a constant."""
    names = ["x", "w", "b"][: 3 if case.has_bias else 2]
    domain = "" if override else "convswap"
    node = helper.make_node("Conv", names, ["y"], name="conv", domain=domain, **case.attributes, **attributes)
    # The first opset whose Conv supports bfloat16.
    model = graph_model([node], dict.fromkeys(names), opset=22, element_type=element_type).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if override:
        return override_session(model, options, providers=[provider])
    register(options)
    return onnxruntime.InferenceSession(model, options, providers=[provider])


@pytest.mark.parametrize("override", [False, True], ids=["swapped", "override"])
@pytest.mark.parametrize("name", TYPES)
@each("case", [*CASES, *EMPTY_CASES])
def test_op_supports_the_type_on_the_provider(case, name, override, device):
    kind, element_type = TYPES[name][:2]
    arrays = case.arrays(kind)
    session = session_of(case, element_type, device, override=override)
    feeds = {
        value.name: ort_value(array, element_type)
        for value, array in zip(session.get_inputs(), arrays, strict=False)
    }
    shape = _native.Problem(case.x_shape, case.w_shape, case.has_bias, **case.attributes).output_shape
    y = np.full(shape, np.nan, kind)
    binding = session.io_binding()
    for key, value in feeds.items():
        binding.bind_ortvalue_input(key, value)
    binding.bind_ortvalue_output("y", ort_value(y, element_type))
    session.run_with_iobinding(binding)
    assert session.get_outputs()[0].type == session.get_inputs()[0].type
    assert_rounded_once(y, case, arrays, name, device)


def test_types_that_conv_does_not_know_are_refused_when_the_session_is_made():
    with pytest.raises(Exception, match=r"Type Error|Type 'tensor|invalid"):
        session_of(CASES[0], TensorProto.INT32, "cpu")


@pytest.mark.parametrize("name", TYPES)
@each(
    "attributes, message",
    [
        ({"strides": [0, 1]}, "strides [0, 1]: expected values from 1"),
        ({"strides": [1, -1]}, "strides [1, -1]: expected values from 1"),
        ({"dilations": [0, 1]}, "dilations [0, 1]: expected values from 1"),
        ({"pads": [0, -1, 0, 0]}, "pads [0, -1, 0, 0]: expected values from 0"),
    ],
)
def test_misfit_of_any_type_is_refused_when_the_session_is_made(attributes, message, name, device):
    case = ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True)
    with pytest.raises(Exception, match=re.escape(f"node 'conv': {message}")):
        session_of(case, TYPES[name][1], device, **attributes)


@pytest.mark.parametrize("name", TYPES)
@each("length", [1, 3, 5])
def test_bias_of_another_length_is_refused_for_any_type(length, name, device):
    kind, element_type = TYPES[name][:2]
    case = ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True)
    x, w, _ = case.arrays(kind)
    session = session_of(case, element_type, device)
    binding = session.io_binding()
    for key, array in (("x", x), ("w", w), ("b", np.zeros(length, kind))):
        binding.bind_ortvalue_input(key, ort_value(array, element_type))
    binding.bind_output("y")
    with pytest.raises(Exception, match=re.escape(f"bias of shape [{length}]: expected [4], one value per")):
        session.run_with_iobinding(binding)
