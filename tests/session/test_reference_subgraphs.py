"""The float64 reference of subgraphs, and of nodes that NumPy cannot compute, agrees with ONNX Runtime.

Tolerance: ONNX Runtime computes in float32 here, in sums of a few values near 1.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from convswap.reference.evaluation import Evaluation, evaluate
from onnx import helper
from op_sessions import onnx_outputs
from swap_models import tensor_info, text_model
from verdict_models import checked_model, constant, normal

TOLERANCES = {"rtol": 1e-5, "atol": 1e-6}
SHAPE = (4, 3, 5)
X = "float[4, 3, 5] x"


def check(model: onnx.ModelProto, feeds: dict, *, is_float64: bool = True) -> Evaluation:
    """Compare the reference of `model` with ONNX Runtime's outputs, including sequences."""
    expected = onnx_outputs(model, feeds)
    reference = evaluate(model, feeds)
    for got, target in zip(reference.outputs, expected, strict=True):
        assert isinstance(got, list) == isinstance(target, list)
        pairs = zip(got, target, strict=True) if isinstance(got, list) else [(got, target)]
        for actual, reference_value in pairs:
            assert actual.shape == reference_value.shape
            assert actual.dtype == (
                np.float64 if reference_value.dtype == np.float32 else reference_value.dtype
            )
            np.testing.assert_allclose(actual, reference_value, **TOLERANCES)
    assert (reference.in_float32 == ()) is is_float64
    return reference


def summing_body(*shape: int) -> str:
    """Return a Scan body: a running sum, whose second output is the sum times `k` of the outer graph."""
    kind = f"float{list(shape)}"
    return f"""body = body ({kind} state, {kind} part) => ({kind} sum, {kind} each) {{
      sum = Add(state, part)
      each = Mul(sum, k)
    }}"""


@pytest.mark.parametrize("output_direction", [0, 1])
@pytest.mark.parametrize("output_axis", [0, 1, -1])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 2, -2])
def test_scan_goes_along_any_axis_in_either_direction(axis, direction, output_axis, output_direction):
    shape = np.delete(SHAPE, axis).tolist()
    nodes = f"""
      y, all = Scan <
        num_scan_inputs = 1,
        scan_input_axes = [{axis}], scan_input_directions = [{direction}],
        scan_output_axes = [{output_axis}], scan_output_directions = [{output_direction}],
        {summing_body(*shape)}
      > (start, x)"""
    model = text_model(
        nodes,
        *(constant("start", np.zeros(shape, np.float32)), constant("k", np.float32(0.5))),
        inputs=X,
        outputs=f"float{shape} y, float[?, ?, ?] all",
    )
    check(model, {"x": normal(0, *SHAPE)})


def test_scan_with_a_batch_of_its_own_is_left_to_the_cpu_provider():
    model = text_model(
        f"y, all = Scan <num_scan_inputs = 1, {summing_body(5)}> ( , start, x)",
        *(constant("start", np.zeros((4, 5), np.float32)), constant("k", np.float32(0.5))),
        inputs=X,
        outputs="float[4, 5] y, float[4, 3, 5] all",
        opset=8,
    )
    reference = check(model, {"x": normal(0, *SHAPE)}, is_float64=False)
    assert reference.in_float32 == ("Scan with its subgraphs",)


@pytest.mark.parametrize("trips", [4, 1, 0])
@pytest.mark.parametrize("stops", [False, True])
def test_loop_stacks_what_it_collects(trips, stops):
    nodes = f"""
      y, all = Loop <
        body = body (int64 count, bool going, float[4, 3, 5] v) =>
               (bool still, float[4, 3, 5] next, float[4, 3, 5] each) {{
          early = Less(count, two)
          still = {"And(going, early)" if stops else "Identity(going)"}
          next = Mul(v, k)
          each = Identity(next)
        }}
      > (trips, , x)"""
    model = text_model(
        nodes,
        *(constant("trips", np.array(trips)), constant("two", np.array(2)), constant("k", np.float32(0.5))),
        inputs=X,
        outputs="float[4, 3, 5] y, float[?, 4, 3, 5] all",
    )
    check(model, {"x": normal(0, *SHAPE)})


@pytest.mark.parametrize("second_is_sequence", [False, True])
def test_sequence_map_sees_the_values_around_it(second_is_sequence):
    nodes = f"""
      parts = SplitToSequence <axis = 0, keepdims = 0> (x)
      first = SequenceAt(parts, zero)
      y = SequenceMap <
        body = body (float[3, 5] one, float[3, 5] other) => (float[3, 5] out) {{
          sum = Add(one, other)
          out = Mul(sum, k)
        }}
      > (parts, {"parts" if second_is_sequence else "first"})"""
    tensors = [constant("zero", np.array(0)), constant("k", np.float32(0.5))]
    model = text_model(nodes, *tensors, inputs=X, outputs="seq(float[]) y")
    x = normal(0, *SHAPE)
    (got,) = evaluate(model, {"x": x}).outputs
    second_operands = x if second_is_sequence else [x[0]] * len(x)
    for element, part, second in zip(got, x, second_operands, strict=True):
        np.testing.assert_allclose(element, 0.5 * (part.astype(np.float64) + second), rtol=1e-12)


def test_node_of_a_function_has_the_attributes_of_the_call_on_the_cpu_provider_too():
    functions = """
      <domain: "local", opset_import: ["": 20, "com.microsoft": 1]>
      Twice <alpha> (a) => (b) { b = com.microsoft.QuickGelu <alpha: float = @alpha> (a) }"""
    model = text_model(
        "y = local.Twice <alpha = 2.0> (x)",
        inputs=X,
        outputs="float[4, 3, 5] y",
        functions=functions,
        domains="com.microsoft",
    )
    reference = check(model, {"x": normal(0, *SHAPE)}, is_float64=False)
    assert reference.in_float32 == ("com.microsoft.QuickGelu",)


def test_branch_that_numpy_fails_in_is_left_entirely_to_the_cpu_provider(monkeypatch):
    """With a weight inside the branch, one from the outer graph, and a sequence as output."""

    def failing(*arguments, **options):
        raise IndexError("no such thing")

    monkeypatch.setattr("onnx.reference.ops.op_if.If._run", failing)
    branch = """branch () => (seq(float[]) s) {
      inner = Constant <value = float {0.25}> ()
      a = Add(x, inner)
      m = Mul(a, k)
      s = SequenceConstruct(m, x)
    }"""
    model = text_model(
        f"y = If <then_branch = {branch}, else_branch = {branch}> (flag)",
        *(constant("flag", np.array(True)), constant("k", np.float32(0.5))),
        inputs=X,
        outputs="seq(float[]) y",
    )
    reference = check(model, {"x": normal(0, *SHAPE)}, is_float64=False)
    assert reference.in_float32 == ("If with its subgraphs",)


def test_memory_is_that_of_a_few_values_at_a_time():
    size, depth = 1 << 17, 24
    nodes = [helper.make_node("Add", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(depth)]
    model = checked_model(
        nodes,
        [tensor_info("v0", size)],
        [tensor_info(f"v{depth}", size)],
        [constant(f"w{i}", np.full(size, i, np.float32)) for i in range(depth)],
    )
    x = np.ones(size, np.float32)
    tracemalloc.start()
    (got,) = evaluate(model, {"v0": x}).outputs
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert got[0] == 1 + sum(range(depth))
    # The input, a sum, a weight in its stored type and in float64, and the next sum, in float64 each.
    assert peak < 7 * size * 8
