"""What ONNX Runtime runs and few tools write: nodes in any order, attributes and overloads of functions."""

from __future__ import annotations

from collections.abc import Sequence

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
import swap_models as models
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from convswap.planning.explain import explain
from onnx import TensorProto, helper

CPU = ["CPUExecutionProvider"]
X = models.input_array(*models.INPUT_SHAPE)
W = models.weights("w", 3, 3, 3, 3)
FLAG = models.tensor_info("flag", element_type=TensorProto.BOOL)
PADS = {"pads": [1] * 4}
FUSES = pytest.mark.parametrize("fuse", [False, True])


def results(model: onnx.ModelProto, *, ours: bool = False) -> list[list[np.ndarray]]:
    """Return what the model gives for every value of its input `flag`, once where it has none."""
    options = onnxruntime.SessionOptions()
    if ours:
        convswap.register(options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=CPU)
    flags = [True, False] if len(session.get_inputs()) > 1 else [None]
    given = [{"x": X} if flag is None else {"x": X, "flag": np.array(flag)} for flag in flags]
    return [session.run(None, feeds) for feeds in given]


def assert_swapped_and_alike(model: onnx.ModelProto, names: set[str], *, fuse: bool) -> None:
    before = model.SerializeToString()
    result = swap(model, fuse=fuse)
    assert (set(result.swapped), result.left) == (names, ())
    for found, expected in zip(results(result.to_proto(), ours=True), results(model), strict=True):
        for y, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(y, other, rtol=1e-4, atol=1e-4)
    assert model.SerializeToString() == before


# Nodes out of order


def backwards(*, computed_weights: bool = False) -> onnx.ModelProto:
    """Return two Convs, one with a residual, a bias and an activation, each node before those it reads."""
    weight = "v" if computed_weights else "w"
    return models.make_model(
        [
            helper.make_node("Relu", ["sum"], ["y"], name="relu"),
            helper.make_node("Add", ["d", "n"], ["sum"], name="residual"),
            helper.make_node("Conv", ["n", weight], ["d"], name="conv2", **PADS),
            helper.make_node("Neg", ["s"], ["n"], name="neg"),
            helper.make_node("Add", ["c", "bias"], ["s"], name="bias"),
            helper.make_node("Identity", ["w"], ["v"], name="weight"),
            helper.make_node("Conv", ["x", "w"], ["c"], name="conv1", **PADS),
        ],
        [W, models.weights("bias", 1, 3, 1, 1)],
    )


@FUSES
@pytest.mark.parametrize("computed_weights", [False, True])
def test_nodes_may_come_before_those_whose_outputs_they_read(computed_weights, fuse):
    model = backwards(computed_weights=computed_weights)
    assert_swapped_and_alike(model, {"conv1", "conv2"}, fuse=fuse)


def test_nodes_out_of_order_are_fused_as_those_in_order():
    result = swap(backwards(computed_weights=True), fuse=True)
    fused = {each.node: [op for op, _ in each.taken] for each in result.fused}
    assert fused == {"conv1": ["Add"], "conv2": ["Add", "Relu"]}


def test_nodes_that_are_in_order_stay_where_they_are():
    model = backwards()
    in_order = list(reversed(model.graph.node))
    model.graph.ClearField("node")
    model.graph.node.extend(in_order)
    swapped = swap(model, fold=False).to_proto()
    assert [node.name for node in swapped.graph.node] == [node.name for node in model.graph.node]


@FUSES
def test_calls_of_functions_may_come_before_what_they_read(fuse):
    model = calling(
        call("y", "h"), call("h", "n"), helper.make_node("Neg", ["x"], ["n"]), functions=[layer()]
    )
    result = swap(model, fuse=fuse)
    assert (len(result.swapped), result.left) == (2, ())
    for found, expected in zip(results(result.to_proto(), ours=True), results(model), strict=True):
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)


@FUSES
def test_graphs_of_nodes_out_of_order_keep_their_own_types(fuse):
    """The Convs' inputs are declared nowhere, and the Ifs come in the wrong order."""

    def conditional(result: str, node: onnx.NodeProto) -> onnx.NodeProto:
        branches = {}
        for key in ("then_branch", "else_branch"):
            own = onnx.NodeProto()
            own.CopyFrom(node)
            own.name, own.output[0] = f"{result}_{key}", f"{result}_{key}_out"
            last = helper.make_node("Abs", [own.output[0]], [f"{result}_{key}"])
            info = models.tensor_info(f"{result}_{key}", *models.ANY_SHAPE)
            branches[key] = helper.make_graph([own, last], key, [], [info])
        return helper.make_node("If", ["flag"], [result], **branches)

    model = models.make_model(
        [
            conditional("y", helper.make_node("Conv", ["z", "v"], ["c"], **PADS)),
            conditional("z", helper.make_node("Neg", ["x"], ["n"])),
            helper.make_node("Identity", ["w"], ["v"]),
        ],
        [W],
        inputs=[models.tensor_info("x", *models.INPUT_SHAPE), FLAG],
    )
    assert_swapped_and_alike(model, {"y_then_branch", "y_else_branch"}, fuse=fuse)


@FUSES
def test_a_file_with_nodes_out_of_order_is_compared_and_explained(fuse, tmp_path):
    onnx.save(backwards(computed_weights=True), tmp_path / "model.onnx")
    assert convswap.compare(tmp_path / "model.onnx", device="cpu", fuse=fuse).within_tolerance
    assert len(explain(tmp_path / "model.onnx", device="cpu", fuse=fuse).convs) == 2


def test_nodes_that_read_each_other_in_a_circle_are_an_error():
    model = backwards()
    model.graph.node[-1].input[0] = "n"
    with pytest.raises(ConvswapError, match=r"is not a valid ONNX model: .*cycle") as error:
        swap(model)
    assert "\n" not in str(error.value)


# Functions


def with_reference(node: onnx.NodeProto, name: str, parameter: str) -> onnx.NodeProto:
    """Let the attribute `name` of `node`, integers, be that which its function is given as `parameter`."""
    node.attribute.add(name=name, type=onnx.AttributeProto.INTS, ref_attr_name=parameter)
    return node


def layer(
    *,
    required: Sequence[str] = (),
    defaults: Sequence[onnx.AttributeProto] = (),
    overload: str = "",
    nodes: Sequence[onnx.NodeProto] | None = None,
    inputs: Sequence[str] = ("a", "f"),
) -> onnx.FunctionProto:
    """Return the function `local.Layer`, by default a Conv whose pads are its attribute `p`."""
    conv = with_reference(helper.make_node("Conv", ["a", "f"], ["r"], name="conv"), "pads", "p")
    function = models.function("Layer", inputs, ["r"], [conv] if nodes is None else nodes)
    function.attribute.extend(required)
    function.attribute_proto.extend(defaults)
    function.overload = overload
    return function


def call(output: str = "y", source: str = "x", name: str = "Layer", **attributes) -> onnx.NodeProto:
    return helper.make_node(name, [source, "w"], [output], domain="local", **attributes)


def calling(*nodes: onnx.NodeProto, functions: Sequence[onnx.FunctionProto], **how) -> onnx.ModelProto:
    return models.make_model(nodes, [W], functions=list(functions), domains=["local"], **how)


ONES = helper.make_attribute("p", [1] * 4)
ZEROS = helper.make_attribute("p", [0] * 4)


@FUSES
@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ({}, {"defaults": [ONES]}),
        ({"p": [0] * 4}, {"defaults": [ONES]}),
        ({"p": [1] * 4}, {"required": ["p"]}),
        ({}, {"required": ["p"]}),
    ],
    ids=["default", "given beside a default", "given", "missing"],
)
def test_attributes_of_functions_are_given_or_default_or_missing(given, parameters, fuse):
    model = calling(call(**given), functions=[layer(**parameters)])
    assert_swapped_and_alike(model, {"conv"}, fuse=fuse)


@FUSES
@pytest.mark.parametrize(
    "outer",
    [{"attribute_proto": [helper.make_attribute("q", [1] * 4)]}, {"attribute": ["q"]}],
    ids=["default", "missing"],
)
def test_attributes_are_handed_on_by_functions_that_call_others(outer, fuse):
    inner = with_reference(call("r", "a"), "p", "q")
    inner.input[1] = "f"
    function = models.function("Outer", ["a", "f"], ["r"], [inner])
    for field, values in outer.items():
        getattr(function, field).extend(values)
    model = calling(call(name="Outer"), functions=[layer(defaults=[ZEROS]), function])
    assert_swapped_and_alike(model, {"conv"}, fuse=fuse)


@FUSES
def test_default_attributes_reach_the_branches_in_a_function(fuse):
    branches = {}
    for key in ("then_branch", "else_branch"):
        conv = with_reference(helper.make_node("Conv", ["a", "f"], [key], name=key), "pads", "p")
        branches[key] = helper.make_graph([conv], key, [], [models.tensor_info(key, *models.ANY_SHAPE)])
    choice = helper.make_node("If", ["g"], ["r"], **branches)
    function = layer(defaults=[ONES], nodes=[choice], inputs=["a", "f", "g"])
    node = call()
    node.input.append("flag")
    inputs = [models.tensor_info("x", *models.INPUT_SHAPE), FLAG]
    model = calling(node, functions=[function], inputs=inputs)
    assert_swapped_and_alike(model, {"then_branch", "else_branch"}, fuse=fuse)


@FUSES
def test_an_input_that_a_call_leaves_out_is_left_out_in_the_conv(fuse):
    conv = helper.make_node("Conv", ["a", "f", "b"], ["r"], name="conv", **PADS)
    model = calling(call(), functions=[layer(nodes=[conv], inputs=["a", "f", "b"])])
    assert_swapped_and_alike(model, {"conv"}, fuse=fuse)


@FUSES
def test_overloads_of_a_function_are_told_apart(fuse):
    first = [helper.make_node("Conv", ["a", "f"], ["r"], name="first", **PADS)]
    second = [
        helper.make_node("Conv", ["a", "f"], ["q"], name="second", **PADS),
        helper.make_node("Relu", ["q"], ["r"]),
    ]
    without = [helper.make_node("Abs", ["a"], ["r"])]
    model = calling(
        call("h", overload="one"),
        call("k", "h", overload="two"),
        call("y", "k"),
        functions=[
            layer(nodes=first, overload="one"),
            layer(nodes=second, overload="two"),
            layer(nodes=without),
        ],
    )
    model.ir_version = 10
    assert_swapped_and_alike(model, {"first", "second"}, fuse=fuse)
    assert [function.overload for function in swap(model).to_proto().functions] == [""]
