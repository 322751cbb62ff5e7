"""float16, bfloat16 and float64: on every device, by every algorithm that takes them, against float64.

A result is rounded once, from a sum that is float32 (of float64 data float64): its error is at most half a
unit of its own type, and the rounding of the sum's terms.
"""

import math
import re

import numpy as np
import onnxruntime
import pytest
from conv_cases import CASES, EMPTY_CASES, ConvCase
from convswap import _native, override_session, register
from element_types import SMALL_TYPES, TYPES, assert_rounded_once, ort_value
from onnx import TensorProto, helper


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("case", [*CASES, *EMPTY_CASES], ids=str)
def test_cpu_algorithms_round_once(case, name):
    arrays = case.arrays(TYPES[name][0])
    algorithms = ["reference"] if name == "float64" else ["reference", "direct"]
    for algorithm in algorithms:
        y = _native.conv(*arrays, algorithm=algorithm, **case.attributes)
        assert_rounded_once(y, case, arrays, name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("case", [*CASES, *EMPTY_CASES], ids=str)
def test_cuda_algorithms_round_once(case, name):
    arrays = case.arrays(TYPES[name][0])
    problem = _native.Problem(case.x_shape, case.w_shape, case.has_bias, name, **case.attributes)
    y = _native.DeviceArray(problem.output_shape, name)
    on_card = [None if array is None else _native.DeviceArray.from_numpy(array) for array in arrays]
    algorithms = ("naive", "tiled", "few_channels", "toeplitz", "implicit_gemm")
    supporting = [a for a in algorithms if not _native.why_not(problem, a, "cuda")]
    assert "naive" in supporting
    for algorithm in supporting:
        y.poison()
        _native.conv_device(*on_card, y, algorithm=algorithm, **case.attributes)
        assert_rounded_once(y.to_numpy(), case, arrays, name, "cpu" if algorithm == "naive" else "cuda")


def session_of(
    case: ConvCase, element_type: int, device: str, *, override: bool = False, **attributes
) -> onnxruntime.InferenceSession:
    """Return a session of our Conv, or of ONNX's own with ours in its place; no input is a constant."""
    names = ["x", "w", "b"][: 3 if case.has_bias else 2]
    inputs = [helper.make_tensor_value_info(name, element_type, None) for name in names]
    outputs = [helper.make_tensor_value_info("y", element_type, None)]
    domain = "" if override else "convswap"
    node = helper.make_node("Conv", names, ["y"], name="conv", domain=domain, **case.attributes, **attributes)
    graph = helper.make_graph([node], "graph", inputs, outputs)
    # The first opset whose Conv knows bfloat16.
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("convswap", 1)]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    if override:
        return override_session(model, options, providers=[provider])
    register(options)
    return onnxruntime.InferenceSession(model, options, providers=[provider])


@pytest.mark.parametrize("override", [False, True], ids=["swapped", "override"])
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("case", [*CASES, *EMPTY_CASES], ids=str)
def test_op_takes_the_type_on_the_provider(case, name, override, device):
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
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"strides": [0, 1]}, "strides [0, 1]: expected values from 1"),
        ({"strides": [1, -1]}, "strides [1, -1]: expected values from 1"),
        ({"dilations": [0, 1]}, "dilations [0, 1]: expected values from 1"),
        ({"pads": [0, -1, 0, 0]}, "pads [0, -1, 0, 0]: expected values from 0"),
    ],
    ids=str,
)
def test_misfit_of_any_type_is_refused_when_the_session_is_made(attributes, message, name, device):
    case = ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True)
    with pytest.raises(Exception, match=re.escape(f"node 'conv': {message}")):
        session_of(case, TYPES[name][1], device, **attributes)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("length", [1, 3, 5])
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


def every_number(kind) -> np.ndarray:
    numbers = np.arange(2**16, dtype=np.uint16).view(kind)
    return numbers[np.isfinite(numbers.astype(np.float32))]


@pytest.mark.parametrize("algorithm", ["reference", "direct"])
@pytest.mark.parametrize("name", SMALL_TYPES)
def test_every_number_of_a_small_type_is_read_and_written_exactly(name, algorithm):
    kind = TYPES[name][0]
    x = every_number(kind).reshape(1, 1, -1)
    y = _native.conv(x, np.ones((1, 1, 1), kind), algorithm=algorithm)
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("name", SMALL_TYPES)
def test_sums_round_to_the_nearest_and_ties_to_even(name):
    kind = TYPES[name][0]
    random = np.random.default_rng(0)
    numbers = every_number(kind)
    x = random.choice(numbers, (1, 2, 200_000))
    # A tie: one unit and a half of the last place.
    x[0, 1, :100_000] = (x[0, 0, :100_000].astype(np.float32) * (1.5 * 2.0 * TYPES[name][2])).astype(kind)
    sums = x[0, 0].astype(np.float32) + x[0, 1].astype(np.float32)
    finite = np.isfinite(sums)
    with np.errstate(over="ignore"):
        expected = sums.astype(kind).astype(np.float32)
    y = _native.conv(x, np.ones((1, 2, 1), kind), algorithm="direct")[0, 0].astype(np.float32)
    np.testing.assert_array_equal(y[finite], expected[finite])
    assert np.isinf(expected).any(), "the draw must hold sums beyond the largest number"


@pytest.mark.parametrize("name", SMALL_TYPES)
def test_nan_and_infinity_of_a_small_type_stay_what_they_are(name):
    kind = TYPES[name][0]
    x = np.array([np.nan, np.inf, -np.inf, 1], kind).reshape(1, 1, 4)
    y = _native.conv(x, np.ones((1, 1, 1), kind), algorithm="direct").astype(np.float32).ravel()
    assert math.isnan(y[0])
    assert list(y[1:]) == [math.inf, -math.inf, 1]
