"""A swapped model gives the outputs of the original in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import swap_models as models
from convswap.graph.swap import swap
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from op_sessions import make_session


@pytest.mark.parametrize("outputs", [["c"], ["c", ""], ["c", "same", ""], ["", "same"]])
def test_calls_may_leave_out_outputs_of_a_function(outputs, tmp_path):
    original = models.function_that_returns_its_input()
    call, add = original.graph.node
    add.input[:] = [next(name for name in outputs if name)] * 2
    # The reference comes from the call with all outputs; to ONNX both models are the same.
    (expected,) = ReferenceEvaluator(original).run(None, {"x": models.input_array()})
    call.output[:] = outputs
    result = swap(original, precision="ieee")
    assert result.swapped == ("conv",) and result.not_swapped == ()
    onnx.checker.check_model(result.to_proto())
    result.save(tmp_path / "swapped.onnx")
    actual = run_with_library(tmp_path / "swapped.onnx", {"x": models.input_array()})
    # Sums of 27 float32 products in another order.
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def run_with_library(path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return make_session(str(path)).run(None, feeds)[0]


@pytest.mark.parametrize(
    ("make", "flags"),
    [
        (models.two_convs, [None]),
        (models.empty_bias, [None]),
        (models.conv_in_if, [True, False]),
        (models.conv_in_loop, [None]),
        (models.conv_in_nested_functions, [True, False]),
        (models.function_that_returns_its_input, [None]),
        (models.weights_in_a_function, [True, False]),
    ],
)
def test_swapped_model_gives_the_outputs_that_onnx_defines_for_the_original(make, flags, tmp_path):
    original = make()
    path = tmp_path / "swapped.onnx"
    swap(original, precision="ieee").save(path)
    for flag in flags:
        feeds = {"x": models.input_array()}
        if flag is not None:
            feeds["flag"] = np.array(flag)
        (expected,) = ReferenceEvaluator(original).run(None, feeds)
        actual = run_with_library(path, feeds)
        # Both sum in float32 over at most 54 terms, three Convs deep, in another order.
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


CONVERTED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "pytorch-converted"


@pytest.mark.parametrize("folder", sorted(CONVERTED.glob("test_Conv[123]d*")), ids=lambda folder: folder.name)
def test_the_conv_models_that_onnx_ships_give_the_outputs_it_ships(folder, tmp_path):
    swap(folder / "model.onnx", precision="ieee").save(tmp_path / "m.onnx")
    cases = folder / "test_data_set_0"
    graph = onnx.load(tmp_path / "m.onnx").graph
    weight_names = {tensor.name for tensor in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weight_names]
    inputs = [numpy_helper.to_array(onnx.load_tensor(file)) for file in sorted(cases.glob("input_*.pb"))]
    expected = numpy_helper.to_array(onnx.load_tensor(cases / "output_0.pb"))
    feeds = dict(zip(names, inputs, strict=True))
    # Sums of at most a few hundred float32 products, in another order than PyTorch's.
    np.testing.assert_allclose(run_with_library(tmp_path / "m.onnx", feeds), expected, rtol=1e-4, atol=1e-5)


def test_swapped_model_with_external_data_runs_in_onnx_runtime(tmp_path):
    swap(models.save_with_external_data(tmp_path), precision="ieee").save(tmp_path / "swapped.onnx")
    feeds = {"x": models.input_array()}
    (expected,) = ReferenceEvaluator(models.two_convs()).run(None, feeds)
    actual = run_with_library(tmp_path / "swapped.onnx", feeds)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("is_quantised", ["nothing", "weights"])
def test_a_model_with_quantised_values_and_a_float32_bias_loads_and_gives_the_same_outputs(
    is_quantised, tmp_path
):
    generator = np.random.default_rng(0)
    w, b = generator.normal(size=(4, 3, 3, 3)), generator.normal(size=4)
    tensors = {"s": np.float32(0.05), "z": np.uint8(128), "w": np.float32(w), "b": np.float32(b)}
    dequantise = ""
    if is_quantised == "weights":
        tensors |= {"w": np.round(w / 0.02).astype(np.int8), "ws": np.float32(0.02), "wz": np.int8(0)}
        dequantise = "wd = DequantizeLinear(w, ws, wz)"
    nodes = f"""
      {dequantise}
      q = QuantizeLinear(x, s, z)
      d = DequantizeLinear(q, s, z)
      [conv] c = Conv(d, {"wd" if dequantise else "w"}, b)
      cq = QuantizeLinear(c, s, z)
      y = DequantizeLinear(cq, s, z)"""
    original = models.text_model(
        nodes,
        *(numpy_helper.from_array(np.asarray(values), name) for name, values in tensors.items()),
        inputs="float[1, 3, 8, 8] x",
        outputs="float[1, 4, 6, 6] y",
        opset=19,
    )
    swap(original, precision="ieee").save(tmp_path / "swapped.onnx")
    x = {"x": generator.normal(size=(1, 3, 8, 8)).astype(np.float32)}
    (expected,) = ReferenceEvaluator(original).run(None, x)
    actual = run_with_library(tmp_path / "swapped.onnx", x)
    # Values near the middle of two quantisation steps may be rounded to either.
    assert np.mean(actual != expected) < 0.02
    np.testing.assert_allclose(actual, expected, atol=1.01 * 0.05)


def test_a_branch_that_never_runs_may_have_a_filter_larger_than_its_image(tmp_path):
    original = models.text_model(
        """
      y = If(condition) <
        then_branch = then() => (t) { [small] t = Conv(x, w) },
        else_branch = otherwise() => (e) { [large] e = Conv<pads = [1, 1, 1, 1]>(x, w) }
      >""",
        numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w"),
        inputs="float[1, 3, 8, 2] x, bool condition",
        outputs="float[n, 4, h, v] y",
        opset=19,
    )
    result = swap(original, precision="ieee")
    assert result.swapped == ("large",)
    (left,) = result.not_swapped
    assert (left.node, left.reason) == ("small", "its filter is larger than its padded image")
    result.save(tmp_path / "swapped.onnx")
    feeds = {"x": np.ones((1, 3, 8, 2), np.float32), "condition": np.array(False)}
    assert run_with_library(tmp_path / "swapped.onnx", feeds).shape == (1, 4, 8, 2)
