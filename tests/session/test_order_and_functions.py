"""What ONNX Runtime runs and few tools write: nodes in any order, attributes and overloads of functions."""

from __future__ import annotations

from collections.abc import Sequence

import convswap
import numpy as np
import onnx
import onnx_ir as ir
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


# Graphs that functions take as attributes


def graph_of(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [models.tensor_info(nodes[-1].output[0])])


def constant(name: str, value: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value_float=value)


GIVEN = {"if_more": graph_of("more", constant("m", 5.0)), "if_less": graph_of("less", constant("l", 7.0))}


REFERENCES = {"then_branch": "if_more", "else_branch": "if_less"}


def references(model: onnx.ModelProto) -> dict[str, str]:
    """Return which graphs of the call the If in the function of `model` has; it has none of its own."""
    (choice,) = [node for node in model.functions[0].node if node.op_type == "If"]
    assert not any(attribute.HasField("g") for attribute in choice.attribute)
    return {attribute.name: attribute.ref_attr_name for attribute in choice.attribute}


def scaling(before: str = "Neg", **defaults: onnx.GraphProto) -> onnx.FunctionProto:
    """Return the function `local.Scaled` of x and w: `before` of them, times what one of two graphs gives."""
    choice = helper.make_node("If", ["is_more"], ["k"])
    for name, parameter in REFERENCES.items():
        choice.attribute.add(name=name, type=onnx.AttributeProto.GRAPH, ref_attr_name=parameter)
    nodes = [
        helper.make_node(before, ["a", "f"][: 1 + (before == "Conv")], ["b"], name="inner"),
        helper.make_node("ReduceSum", ["a"], ["sum"], keepdims=0),
        constant("zero", 0.0),
        helper.make_node("Greater", ["sum", "zero"], ["is_more"]),
        choice,
        helper.make_node("Mul", ["b", "k"], ["r"]),
    ]
    return layer(
        nodes=nodes,
        required=[name for name in GIVEN if name not in defaults],
        defaults=[helper.make_attribute(name, graph) for name, graph in defaults.items()],
    )


def scaled(before: str = "Neg", *, by_default: bool = False, given=GIVEN) -> onnx.ModelProto:
    """Return a Conv and a call of `scaling`, which takes its graphs from the call or by default."""
    function = scaling(before, **(given if by_default else {}))
    function.name = "Scaled"
    return calling(
        helper.make_node("Conv", ["x", "w"], ["c"], name="outer"),
        call("y", "c", name="Scaled", **({} if by_default else given)),
        functions=[function],
    )


@FUSES
@pytest.mark.parametrize("by_default", [False, True])
def test_a_function_takes_graphs_as_attributes(by_default, fuse):
    model = scaled(by_default=by_default)
    onnx.checker.check_model(model)
    assert_swapped_and_alike(model, {"outer"}, fuse=fuse)
    assert references(swap(model, fuse=fuse).to_proto()) == REFERENCES
    assert swap(ir.from_proto(model), fuse=fuse).swapped == ("outer",)


@pytest.mark.parametrize("by_default", [False, True])
def test_a_file_whose_function_takes_graphs_is_compared_explained_and_saved(by_default, tmp_path):
    model = scaled(by_default=by_default)
    onnx.save(model, tmp_path / "model.onnx")
    assert convswap.compare(tmp_path / "model.onnx", device="cpu").within_tolerance
    assert [each.node for each in explain(tmp_path / "model.onnx", device="cpu").convs] == ["outer"]
    swap(tmp_path / "model.onnx").save(tmp_path / "swapped.onnx")
    assert references(onnx.load(tmp_path / "swapped.onnx")) == REFERENCES


@FUSES
@pytest.mark.parametrize("by_default", [False, True])
def test_a_conv_in_a_function_that_takes_graphs_is_left_with_the_reason(by_default, fuse):
    """And one beside it, in a function that takes none, is swapped."""
    model = scaled("Conv", by_default=by_default)
    model.graph.node[0].CopyFrom(call("c"))
    model.functions.append(layer())
    result = swap(model, fuse=fuse)
    assert result.swapped == ("conv",)
    assert [(left.node, left.reason) for left in result.left] == [
        (
            "inner",
            "it is inside function 'Scaled': it takes a graph as an attribute, and such a function cannot "
            "be inlined",
        )
    ]
    (found,), (expected,) = results(result.to_proto(), ours=True), results(model)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)


@FUSES
def test_functions_that_are_called_in_a_graph_that_a_function_takes_stay(fuse):
    """onnx-ir's inliner does not look into such graphs."""
    nodes = [constant("one", 1.0), helper.make_node("Once", ["one"], ["m"], domain="local")]
    model = scaled(given={**GIVEN, "if_more": graph_of("more", *nodes)})
    conv = [
        helper.make_node("Constant", [], ["u"], value=models.weights("u", 1, 1, 1, 1)),
        helper.make_node("Expand", ["a", "four"], ["e"]),
        helper.make_node("Conv", ["e", "u"], ["d"], name="deep"),
        helper.make_node("ReduceSum", ["d"], ["r"], keepdims=0),
    ]
    four = helper.make_tensor("four", TensorProto.INT64, [4], [1, 1, 2, 2])
    conv.insert(0, helper.make_node("Constant", [], ["four"], value=four))
    model.functions.append(models.function("Once", ["a"], ["r"], conv))
    result = swap(model, fuse=fuse)
    assert result.swapped == ("outer",)
    assert [left.reason for left in result.left] == [
        "it is inside function 'Once': a graph that function 'Scaled' takes as an attribute calls it"
    ]
    (found,), (expected,) = results(result.to_proto(), ours=True), results(model)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)


@FUSES
def test_a_conv_in_a_graph_that_a_function_takes_is_swapped(fuse):
    nodes = [
        helper.make_node("Constant", [], ["image"], value=models.weights("image", 1, 1, 2, 2)),
        helper.make_node("Constant", [], ["u"], value=models.weights("u", 1, 1, 1, 1)),
        helper.make_node("Conv", ["image", "u"], ["d"], name="given"),
        helper.make_node("ReduceSum", ["d"], ["m"], keepdims=0),
    ]
    model = scaled(given={name: graph_of(name, *nodes) for name in GIVEN})
    model.graph.node[1].attribute[1].g.node[2].name = "other"
    assert_swapped_and_alike(model, {"outer", "given", "other"}, fuse=fuse)
