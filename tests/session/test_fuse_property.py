"""Fused models give the same outputs at every accepted input size, whatever shapes they declare."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.reference.evaluation import evaluate
from declared_shapes import PLACEHOLDERS, SIZES, RandomlyDeclaredModel
from fuse_models import FILTERS, array, conv, declare, model, node, reasons, taken
from onnx import TensorProto, helper, numpy_helper
from op_sessions import cpu_session
from repeats import repeats

K = FILTERS

# Environment variable with the number of graphs to draw, for longer runs.
GRAPHS = "CONVSWAP_TEST_GRAPHS"
# Float32 through up to a dozen convolutions of at most 27 products. Wrong padding or a wrong addition gives
# an error of a hundredth and more.
TOLERANCE = 1e-4


def outputs_of(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | str:
    """Return the outputs, or ONNX Runtime's message if it refuses `feeds`."""
    try:
        return session.run(None, feeds)
    except Exception as error:
        return str(error)


def agree(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> bool:
    return all(
        first.shape == second.shape
        and np.linalg.norm(first - second) <= TOLERANCE * (np.linalg.norm(first) + math.sqrt(first.size))
        for first, second in zip(expected, actual, strict=True)
    )


def assert_same_outputs(seed: int) -> Counter[str]:
    """Assert that the model of `seed` gives the same outputs fused; count the runs and the fused kinds."""
    drawn = RandomlyDeclaredModel(seed)
    try:
        original = cpu_session(drawn.model)
    except Exception:
        # The declared shapes fit no size.
        return Counter()
    runs = {run: outputs_of(original, drawn.feeds(run)) for run in range(len(SIZES))}
    runs = {run: outputs for run, outputs in runs.items() if not isinstance(outputs, str)}
    if not runs:
        return Counter()
    result = convswap.swap(drawn.model, fuse=True)
    try:
        fused = cpu_session(result.to_proto())
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    counts = Counter(_kinds(result, drawn.model))
    for run, outputs in runs.items():
        actual = outputs_of(fused, drawn.feeds(run))
        counts["runs"] += 1
        assert not isinstance(actual, str), f"seed {seed}: refused at {SIZES[run]}: {actual}"
        if not agree(outputs, actual):
            # Wrong declared shapes may mislead ONNX Runtime's own optimiser, so float64 decides.
            reference = evaluate(drawn.model, drawn.feeds(run)).outputs
            assert agree(reference, actual), f"seed {seed}: differs at {SIZES[run]}"
            assert not agree(reference, outputs), f"seed {seed}: the tolerance is too small at {SIZES[run]}"
            counts["misled"] += 1
    return counts


def _kinds(result: convswap.SwapResult, original: onnx.ModelProto) -> list[str]:
    nodes = {each.name: each for each in original.graph.node}
    constants = {value.name for value in original.graph.initializer}
    kinds = []
    for op, name in (entry for fused in result.fused for entry in fused.fused_nodes):
        if op == "Add" and not constants.intersection(nodes[name].input):
            kinds.append("residual")
        if op.endswith("Pool"):
            padded = any(b"SAME" in attribute.s for attribute in nodes[name].attribute)
            kinds.append("padded pool" if padded else "pool")
        # A fused Conv is a depthwise Conv.
        if op == "Conv":
            kinds.append("depthwise")
    return kinds


def assert_all_same_outputs(seeds: range) -> None:
    counts = sum((assert_same_outputs(seed) for seed in seeds), Counter[str]())
    # The property must have been checked.
    assert counts["runs"] > len(seeds)
    assert counts["misled"] <= counts["runs"] / 1000
    if len(seeds) >= 100:
        assert all(counts[kind] > 0 for kind in ("residual", "pool", "padded pool", "depthwise"))


def test_random_graphs_give_the_same_outputs_whatever_shapes_they_declare():
    assert_all_same_outputs(range(repeats(150, minimum=5)))


@pytest.mark.slow
def test_many_random_graphs_give_the_same_outputs_whatever_shapes_they_declare():
    assert_all_same_outputs(range(150, 150 + repeats(int(os.environ.get(GRAPHS, "150")), minimum=5)))


# Examples of each kind


@pytest.mark.parametrize("declared", [[1, K, 15, 15], [1, K, "height", "width"], ["n", K, "oh", "ow"], None])
def test_same_padding_is_computed_from_no_size_that_does_not_follow_from_inputs(declared):
    """Sizes of inputs and outputs may be made symbolic while inner values keep their declared shapes."""
    pool = node("MaxPool", "c", "y", "pool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")
    original = model([conv(), pool], x_shape=("n", 3, "height", "width"))
    original.graph.value_info.append(declare("c", declared))
    result = convswap.swap(original, fuse=True)
    assert reasons(result) == {
        "pool": "its auto_pad is SAME_UPPER, and the size of what it pools is not known from the shapes of "
        "the model's inputs"
    }
    assert_same_in_sessions(original, [{"x": (2, 3, size, size)} for size in (15, 16, 17, 18)])


@pytest.mark.parametrize(
    ("declared", "is_fused"),
    [
        (None, True),
        ([2, K, 9, 8], True),
        (["n", K, "h", "w"], True),
        ([2, K, 9, 9], False),
        ([2, K, 9], False),
    ],
)
def test_same_padding_follows_from_declared_inputs_unless_the_model_contradicts_them(declared, is_fused):
    pool = node("AveragePool", "c", "y", "pool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER")
    original = model([conv(), pool])
    original.graph.value_info.append(declare("c", declared))
    result = convswap.swap(original, fuse=True)
    if is_fused:
        assert taken(result) == {"conv": ["FusedConv", "AveragePool"]}
    else:
        assert "the model declares differs from the one that follows" in reasons(result)["pool"]
    if declared != [2, K, 9]:
        assert_same_in_sessions(original, [{"x": (2, 3, 9, 8)}])


@pytest.mark.parametrize("name", [*PLACEHOLDERS, "size"])
def test_axes_of_two_inputs_are_not_equal_by_name(name):
    """ONNX Runtime accepts different sizes for axes of one name, and broadcasts the other operand."""
    original = model(
        [conv(), node("Add", "c z", "y", "add")],
        {"w": array("w", K, 3, 3, 3)},
        inputs=[declare("x", (1, 3, name, name)), declare("z", (1, K, name, name))],
    )
    result = convswap.swap(original, fuse=True)
    assert "'z', is not known to have the shape of the convolution's result" in reasons(result)["add"]
    z_shapes = [(1, K, 1, 1), (1, K, 9, 8), (1, K, 1, 8)]
    shapes = assert_same_in_sessions(original, [{"x": (1, 3, 9, 8), "z": shape} for shape in z_shapes])
    assert shapes == [(1, K, 9, 8)] * 3


@pytest.mark.parametrize("name", [*PLACEHOLDERS, None, "size", -1])
def test_axes_computed_in_the_same_way_from_one_input_are_equal_whatever_their_names(name):
    original = model(
        [
            conv("c1", "x w3", "conv1", strides=[2, 2]),
            node("Relu", "c1", "h"),
            conv("c2", "h w3", "conv2"),
            conv("s", "x w1", "short", pads=[0] * 4, strides=[2, 2]),
            node("Add", "c2 s", "t", "add"),
            conv("c3", "t w3", "conv3"),
            node("Add", "t c3", "y", "add2"),
        ],
        {"w3": array("w3", 3, 3, 3, 3), "w1": array("w1", 3, 3, 1, 1)},
        x_shape=(name, 3, name, name),
    )
    original.graph.value_info.append(declare("c1", (2, 3, 5, 4)))
    result = convswap.swap(original, fuse=True)
    assert taken(result)["conv2"] == taken(result)["conv3"] == ["FusedConv", "Add"]
    assert_same_in_sessions(original, [{"x": (2, 3, 9, 8)}, {"x": (1, 3, 12, 15)}])


def test_sizes_after_a_window_that_onnx_runtime_drops_are_not_known():
    """With ceil_mode, ONNX's shape inference counts a pool window that begins after the data."""
    original = model(
        [
            node("MaxPool", "x", "p", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1),
            conv("c", "p w"),
            node("MaxPool", "c", "y", "pool", kernel_shape=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
        ],
        x_shape=(1, 3, 8, 8),
        y_shape=("n", K, "h", "w"),
    )
    assert "is not known from the shapes" in reasons(convswap.swap(original, fuse=True))["pool"]
    assert_same_in_sessions(original, [{"x": (1, 3, 8, 8)}])


def test_sizes_are_known_after_windows_that_all_begin_in_the_data():
    pools = {"kernel_shape": [3, 3], "strides": [2, 2]}
    original = model(
        [
            node("MaxPool", "x", "p", ceil_mode=1, **pools),
            conv("c", "p w"),
            node("MaxPool", "c", "y", "pool", auto_pad="SAME_UPPER", **pools),
        ],
        x_shape=("n", 3, 8, 8),
    )
    assert taken(convswap.swap(original, fuse=True)) == {"conv": ["FusedConv", "MaxPool"]}
    assert_same_in_sessions(original, [{"x": (2, 3, 8, 8)}])


def test_window_larger_than_what_it_pools_is_not_fused():
    original = model(
        [conv(), node("MaxPool", "c", "y", "pool", kernel_shape=[1, 2], strides=[1, 2])],
        x_shape=(1, 3, 4, 1),
        y_shape=("n", K, "h", "w"),
    )
    result = convswap.swap(original, fuse=True)
    assert reasons(result) == {
        "pool": "its kernel_shape (1, 2) reaches over more than the 1 padded positions"
    }
    assert_same_in_sessions(original, [{"x": (1, 3, 4, 1)}])


def test_residual_after_ops_that_onnx_does_not_know_is_fused():
    nodes = [
        node("com.microsoft.QuickGelu", "x", "g"),
        node("com.microsoft.BiasGelu", "g v", "h"),
        node("Relu", "h", "r"),
        conv("c", "r w3"),
        node("Add", "c h", "y", "add"),
    ]
    constants = {"w3": array("w3", 3, 3, 3, 3), "v": array("v", 8)}
    original = model(nodes, constants, domains=["com.microsoft"], y_shape=("n", 3, "h", 8))
    assert taken(convswap.swap(original, fuse=True)) == {"conv": ["FusedConv", "Add"]}
    assert_same_in_sessions(original, [{"x": (2, 3, 9, 8)}])


def test_residual_after_nodes_fused_before_is_fused():
    nodes = [
        conv("c1", "x w3", "conv1"),
        node("Relu", "c1", "h"),
        conv("c2", "h w3", "conv2"),
        node("Add", "c2 h", "y", "add"),
    ]
    original = model(nodes, {"w3": array("w3", 3, 3, 3, 3)}, x_shape=("n", 3, "height", "width"))
    before = convswap.swap(original, fuse=True, only="conv1").to_proto()
    assert taken(convswap.swap(before, fuse=True)) == {"conv2": ["FusedConv", "Add"]}


def test_extents_of_a_loop_are_not_those_of_its_body():
    """A loop may run no iteration; then its outputs have the shape of its inputs."""
    body = helper.make_graph(
        [node("Identity", "going", "going_out"), conv("state_out", "state w3", "inner", pads=[0] * 4)],
        "body",
        [
            declare("step", (), TensorProto.INT64),
            declare("going", (), TensorProto.BOOL),
            declare("state", (2, 3, 9, 8)),
        ],
        [declare("going_out", (), TensorProto.BOOL), declare("state_out", (2, 3, 7, 6))],
    )
    original = model(
        [
            helper.make_node("Loop", ["trips", "always", "x"], ["s"], name="loop", body=body),
            conv("c", "s w3"),
            node("MaxPool", "c", "y", "pool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
        ],
        {"w3": array("w3", 3, 3, 3, 3)},
        inputs=[declare("x", (2, 3, 9, 8)), declare("trips", (), TensorProto.INT64)],
        tensors=[numpy_helper.from_array(np.array(True), "always")],
        y_shape=("n", 3, "h", "w"),
    )
    assert "is not known from the shapes" in reasons(convswap.swap(original, fuse=True))["pool"]
    for trips in (0, 1, 2):
        assert_same_in_sessions(original, [{"x": (2, 3, 9, 8)}], trips=np.array(trips))


@pytest.mark.parametrize("fuse", [False, True])
def test_declared_inner_sizes_stay_only_where_they_follow_from_the_inputs(fuse):
    original = model(
        [conv("c", "x w3"), node("Tanh", "c", "t"), conv("d", "t w3", "conv2"), node("Sin", "d", "y")],
        {"w3": array("w3", 3, 3, 3, 3)},
        x_shape=("n", 3, "height", "width"),
        opset=20,
    )
    del original.graph.output[0].type.tensor_type.shape.dim[:]
    for extent in (2, 3, 9, 8):
        original.graph.output[0].type.tensor_type.shape.dim.add().dim_value = extent
    original.graph.value_info.append(declare("t", ("n", 3, "height", "n")))
    original.graph.value_info.append(declare("d", (2, 3, 9, 8)))
    swapped = convswap.swap(original, fuse=fuse).to_proto()
    assert swapped.graph.output == original.graph.output
    declared = {
        value.name: [extent.dim_param or extent.dim_value for extent in value.type.tensor_type.shape.dim]
        for value in swapped.graph.value_info
    }
    assert (declared["t"], declared["d"]) == (["n", 3, "height", "width"], ["n", 3, "height", "width"])


def assert_same_in_sessions(
    original: onnx.ModelProto, shapes: list[dict[str, tuple[int, ...]]], **feeds: np.ndarray
) -> list[tuple[int, ...]]:
    """Assert that `original` gives the same outputs fused; return their shapes."""
    before, after = cpu_session(original), cpu_session(convswap.swap(original, fuse=True).to_proto())
    results = []
    for shape_of in shapes:
        all_feeds = feeds | {name: array(name, *shape).astype(np.float32) for name, shape in shape_of.items()}
        (expected,), (actual,) = (outputs_of(session, all_feeds) for session in (before, after))
        np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
        results.append(expected.shape)
    return results
