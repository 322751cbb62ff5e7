"""The float64 truth of subgraphs, and of what NumPy cannot compute, is what ONNX Runtime computes.

Tolerance: ONNX Runtime computes in float32 here, in sums of a few values near 1.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.truth.evaluation import Truth, evaluate
from onnx import TensorProto, helper
from swap_models import tensor_info
from verdict_models import built, constant, normal

CLOSE = {"rtol": 1e-5, "atol": 1e-6}
SHAPE = (4, 3, 5)


def check(model: onnx.ModelProto, feeds: dict, *, is_float64: bool = True) -> Truth:
    """Compare the truth of `model` with ONNX Runtime's answer, sequences too."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    truth = evaluate(model, feeds)
    for got, wanted in zip(truth.outputs, expected, strict=True):
        assert isinstance(got, list) == isinstance(wanted, list)
        pairs = zip(got, wanted, strict=True) if isinstance(got, list) else [(got, wanted)]
        for one, other in pairs:
            assert one.shape == other.shape
            assert one.dtype == (np.float64 if other.dtype == np.float32 else other.dtype)
            np.testing.assert_allclose(one, other, **CLOSE)
    assert (truth.in_float32 == ()) is is_float64
    return truth


def summing_body(*shape: int | str) -> onnx.GraphProto:
    """A running sum: state and slice in, state and what it is now times a value from around out."""
    return helper.make_graph(
        [
            helper.make_node("Add", ["state", "part"], ["sum"]),
            helper.make_node("Mul", ["sum", "k"], ["each"]),
        ],
        "body",
        [tensor_info("state", *shape), tensor_info("part", *shape)],
        [tensor_info("sum", *shape), tensor_info("each", *shape)],
    )


@pytest.mark.parametrize("output_direction", [0, 1])
@pytest.mark.parametrize("output_axis", [0, 1, -1])
@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 2, -2])
def test_scan_goes_along_any_axis_in_either_direction(axis, direction, output_axis, output_direction):
    shape = np.delete(SHAPE, axis).tolist()
    scan = helper.make_node(
        "Scan",
        ["start", "x"],
        ["y", "all"],
        body=summing_body(*shape),
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[direction],
        scan_output_axes=[output_axis],
        scan_output_directions=[output_direction],
    )
    model = built(
        [scan],
        [tensor_info("x", *SHAPE)],
        [tensor_info("y", *shape), tensor_info("all", None, None, None)],
        [constant("start", np.zeros(shape, np.float32)), constant("k", np.float32(0.5))],
    )
    check(model, {"x": normal(0, *SHAPE)})


def test_scan_with_a_batch_of_its_own_is_left_to_the_cpu_provider():
    scan = helper.make_node("Scan", ["", "start", "x"], ["y", "all"], body=summing_body(5), num_scan_inputs=1)
    model = built(
        [scan],
        [tensor_info("x", *SHAPE)],
        [tensor_info("y", 4, 5), tensor_info("all", *SHAPE)],
        [constant("start", np.zeros((4, 5), np.float32)), constant("k", np.float32(0.5))],
        opset=8,
    )
    truth = check(model, {"x": normal(0, *SHAPE)}, is_float64=False)
    assert truth.in_float32 == ("Scan with its subgraphs",)


@pytest.mark.parametrize("trips", [4, 1, 0])
@pytest.mark.parametrize("stops", [False, True])
def test_loop_stacks_what_it_collects(trips, stops):
    body = helper.make_graph(
        [
            helper.make_node("Less", ["count", "two"], ["early"]),
            helper.make_node(
                "Identity" if not stops else "And", ["going", *(["early"] if stops else [])], ["still"]
            ),
            helper.make_node("Mul", ["v", "k"], ["next"]),
            helper.make_node("Identity", ["next"], ["each"]),
        ],
        "body",
        [
            tensor_info("count", element_type=TensorProto.INT64),
            tensor_info("going", element_type=TensorProto.BOOL),
            tensor_info("v", *SHAPE),
        ],
        [
            tensor_info("still", element_type=TensorProto.BOOL),
            tensor_info("next", *SHAPE),
            tensor_info("each", *SHAPE),
        ],
    )
    model = built(
        [helper.make_node("Loop", ["trips", "", "x"], ["y", "all"], body=body)],
        [tensor_info("x", *SHAPE)],
        [tensor_info("y", *SHAPE), tensor_info("all", None, *SHAPE)],
        [
            constant("trips", np.array(trips)),
            constant("two", np.array(2)),
            constant("k", np.float32(0.5)),
        ],
    )
    check(model, {"x": normal(0, *SHAPE)})


@pytest.mark.parametrize("second_is_sequence", [False, True])
def test_sequence_map_sees_the_values_around_it(second_is_sequence):
    body = helper.make_graph(
        [helper.make_node("Add", ["one", "other"], ["sum"]), helper.make_node("Mul", ["sum", "k"], ["out"])],
        "body",
        [tensor_info("one", *SHAPE[1:]), tensor_info("other", *SHAPE[1:])],
        [tensor_info("out", *SHAPE[1:])],
    )
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=0),
        helper.make_node("SequenceAt", ["parts", "zero"], ["first"]),
        helper.make_node(
            "SequenceMap", ["parts", "parts" if second_is_sequence else "first"], ["y"], body=body
        ),
    ]
    model = built(
        nodes,
        [tensor_info("x", *SHAPE)],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
        [constant("zero", np.array(0)), constant("k", np.float32(0.5))],
    )
    x = normal(0, *SHAPE)
    (got,) = evaluate(model, {"x": x}).outputs
    others = x if second_is_sequence else [x[0]] * len(x)
    for one, part, other in zip(got, x, others, strict=True):
        np.testing.assert_allclose(one, 0.5 * (part.astype(np.float64) + other), rtol=1e-12)


def test_node_of_a_function_has_the_attributes_of_the_call_on_the_cpu_provider_too():
    function = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("QuickGelu", ["a"], ["b"], domain="com.microsoft")],
        [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ["alpha"],
    )
    attribute = function.node[0].attribute.add()
    attribute.name, attribute.ref_attr_name, attribute.type = "alpha", "alpha", onnx.AttributeProto.FLOAT
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Twice", ["x"], ["y"], domain="own", alpha=2.0)],
            "net",
            [tensor_info("x", *SHAPE)],
            [tensor_info("y", *SHAPE)],
        ),
        functions=[function],
        opset_imports=[
            helper.make_opsetid("", 17),
            helper.make_opsetid("own", 1),
            helper.make_opsetid("com.microsoft", 1),
        ],
    )
    model.ir_version = 8
    truth = check(model, {"x": normal(0, *SHAPE)}, is_float64=False)
    assert truth.in_float32 == ("com.microsoft.QuickGelu",)


def test_branch_that_numpy_fails_in_is_left_whole_to_the_cpu_provider(monkeypatch):
    """With an inner weight, one from around it, and a sequence as what it gives."""

    def failing(*arguments, **options):
        raise IndexError("no such thing")

    monkeypatch.setattr("onnx.reference.ops.op_if.If._run", failing)
    branch = helper.make_graph(
        [
            helper.make_node("Add", ["x", "inner"], ["a"]),
            helper.make_node("Mul", ["a", "k"], ["m"]),
            helper.make_node("SequenceConstruct", ["m", "x"], ["s"]),
        ],
        "branch",
        [],
        [helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)],
        [constant("inner", np.float32(0.25))],
    )
    model = built(
        [helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)],
        [tensor_info("x", *SHAPE)],
        [helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
        [constant("flag", np.array(True)), constant("k", np.float32(0.5))],
    )
    truth = check(model, {"x": normal(0, *SHAPE)}, is_float64=False)
    assert truth.in_float32 == ("If with its subgraphs",)


def test_memory_is_that_of_a_few_values_at_a_time():
    size, depth = 1 << 17, 24
    nodes = [helper.make_node("Add", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(depth)]
    model = built(
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
    # The input, a sum, a weight as it is stored and in float64, and the next sum, in float64 each.
    assert peak < 7 * size * 8
