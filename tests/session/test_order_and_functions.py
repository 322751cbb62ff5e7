"""Valid models that few tools write: nodes in any order, attributes and overloads of functions."""

from __future__ import annotations

import convswap
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import swap_models as models
from convswap.graph.swap import swap
from convswap.planning.explain import explain
from op_sessions import make_session
from refused import refused
from swap_models import ANY, text_model

X = models.input_array(*models.INPUT_SHAPE)
W = models.weights("w", 3, 3, 3, 3)
WITH_FLAG = f"{models.IMAGE} x, bool flag"
PADS = "<pads = [1, 1, 1, 1]>"
FUSES = pytest.mark.parametrize("fuse", [False, True])


def outputs_of(model: onnx.ModelProto, *, ours: bool = False) -> list[list[np.ndarray]]:
    """Return the model's outputs for every value of its input `flag`, or once if it has no such input."""
    session = make_session(model.SerializeToString(), ours=ours)
    flags = [True, False] if len(session.get_inputs()) > 1 else [None]
    all_feeds = [{"x": X} if flag is None else {"x": X, "flag": np.array(flag)} for flag in flags]
    return [session.run(None, feeds) for feeds in all_feeds]


def assert_swapped_with_same_outputs(model: onnx.ModelProto, names: set[str], *, fuse: bool) -> None:
    before = model.SerializeToString()
    result = swap(model, fuse=fuse)
    assert (set(result.swapped), result.not_swapped) == (names, ())
    for actual_outputs, expected_outputs in zip(
        outputs_of(result.to_proto(), ours=True), outputs_of(model), strict=True
    ):
        for y, reference in zip(actual_outputs, expected_outputs, strict=True):
            np.testing.assert_allclose(y, reference, rtol=1e-4, atol=1e-4)
    assert model.SerializeToString() == before


# Nodes out of order


def backwards(*, computed_weights: bool = False) -> onnx.ModelProto:
    """Return two Convs, one with bias, residual and activation, each node before the nodes that it reads."""
    nodes = f"""
      [relu] y = Relu(sum)
      [residual] sum = Add(d, n)
      [conv2] d = Conv {PADS} (n, {"v" if computed_weights else "w"})
      [neg] n = Neg(s)
      [bias] s = Add(c, bias)
      [weight] v = Identity(w)
      [conv1] c = Conv {PADS} (x, w)"""
    return text_model(nodes, W, models.weights("bias", 1, 3, 1, 1))


@FUSES
@pytest.mark.parametrize("computed_weights", [False, True])
def test_nodes_may_come_before_those_whose_outputs_they_read(computed_weights, fuse):
    model = backwards(computed_weights=computed_weights)
    assert_swapped_with_same_outputs(model, {"conv1", "conv2"}, fuse=fuse)


def test_nodes_out_of_order_are_fused_as_those_in_order():
    result = swap(backwards(computed_weights=True), fuse=True)
    fused = {each.node: [op for op, _ in each.fused_nodes] for each in result.fused}
    assert fused == {"conv1": ["Add"], "conv2": ["Add", "Relu"]}


def test_nodes_that_are_in_order_stay_where_they_are():
    model = backwards()
    in_order = list(reversed(model.graph.node))
    model.graph.ClearField("node")
    model.graph.node.extend(in_order)
    swapped = swap(model, fold=False).to_proto()
    assert [node.name for node in swapped.graph.node] == [node.name for node in model.graph.node]


@FUSES
def test_calls_of_functions_may_come_before_the_nodes_that_they_read(fuse):
    model = text_model("y = local.Layer(h, w)  h = local.Layer(n, w)  n = Neg(x)", W, functions=layer())
    result = swap(model, fuse=fuse)
    assert (len(result.swapped), result.not_swapped) == (2, ())
    for actual, expected in zip(outputs_of(result.to_proto(), ours=True), outputs_of(model), strict=True):
        np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-4)


@FUSES
def test_graphs_of_nodes_out_of_order_keep_their_own_types(fuse):
    """The Convs' inputs have no declared types, and the Ifs come in the wrong order."""

    def conditional(result: str, op: str) -> str:
        branches = ", ".join(
            f"{key} = {key} () => ({ANY} {result}_{key}) {{ [{result}_{key}] {result}_{key}_out = {op}"
            f"  {result}_{key} = Abs({result}_{key}_out) }}"
            for key in ("then_branch", "else_branch")
        )
        return f"{result} = If <{branches}> (flag)"

    nodes = f"{conditional('y', f'Conv {PADS} (z, v)')}  {conditional('z', 'Neg(x)')}  v = Identity(w)"
    model = text_model(nodes, W, inputs=WITH_FLAG)
    assert_swapped_with_same_outputs(model, {"y_then_branch", "y_else_branch"}, fuse=fuse)


@FUSES
def test_a_file_with_nodes_out_of_order_is_compared_and_explained(fuse, tmp_path):
    onnx.save(backwards(computed_weights=True), tmp_path / "model.onnx")
    assert convswap.compare(tmp_path / "model.onnx", device="cpu", fuse=fuse).within_tolerance
    assert len(explain(tmp_path / "model.onnx", device="cpu", fuse=fuse).convs) == 2


def test_nodes_that_read_each_other_in_a_circle_are_an_error():
    model = backwards()
    model.graph.node[-1].input[0] = "n"
    with refused(r"is not a valid ONNX model: .*cycle"):
        swap(model)


# Functions


CONV = "[conv] r = Conv <pads: ints = @p> (a, f)"


def layer(
    parameters: str = "",
    nodes: str = CONV,
    *,
    name: str = "Layer",
    inputs: str = "a, f",
    overload: str = "",
) -> str:
    """Return the text of a function, by default of a Conv whose pads are its attribute `p`."""
    of = f', overload: "{overload}"' if overload else ""
    head = f'<domain: "local", opset_import: ["": {models.OPSET}, "local": 1]{of}>'
    return f"{head} {name} {parameters} ({inputs}) => (r) {{ {nodes} }}\n"


ONES, ZEROS = "[1, 1, 1, 1]", "[0, 0, 0, 0]"


@FUSES
@pytest.mark.parametrize(
    ("attributes", "parameters"),
    [
        ("", f"<p: ints = {ONES}>"),
        (f"<p = {ZEROS}>", f"<p: ints = {ONES}>"),
        (f"<p = {ONES}>", "<p>"),
        ("", "<p>"),
    ],
    ids=["default", "given beside a default", "given", "missing"],
)
def test_attributes_of_functions_are_given_or_default_or_missing(attributes, parameters, fuse):
    model = text_model(f"y = local.Layer {attributes} (x, w)", W, functions=layer(parameters))
    assert_swapped_with_same_outputs(model, {"conv"}, fuse=fuse)


@FUSES
@pytest.mark.parametrize("outer", [f"<q: ints = {ONES}>", "<q>"], ids=["default", "missing"])
def test_attributes_are_passed_on_by_functions_that_call_others(outer, fuse):
    calls = layer(outer, "r = local.Layer <p: ints = @q> (a, f)", name="Outer")
    functions = layer(f"<p: ints = {ZEROS}>") + calls
    model = text_model("y = local.Outer(x, w)", W, functions=functions)
    assert_swapped_with_same_outputs(model, {"conv"}, fuse=fuse)


@FUSES
def test_default_attributes_reach_the_branches_in_a_function(fuse):
    branches = ", ".join(
        f"{key} = {key} () => ({ANY} {key}) {{ [{key}] {key} = Conv <pads: ints = @p> (a, f) }}"
        for key in ("then_branch", "else_branch")
    )
    function = layer(f"<p: ints = {ONES}>", f"r = If <{branches}> (g)", inputs="a, f, g")
    model = text_model("y = local.Layer(x, w, flag)", W, inputs=WITH_FLAG, functions=function)
    assert_swapped_with_same_outputs(model, {"then_branch", "else_branch"}, fuse=fuse)


@FUSES
def test_an_input_that_a_call_leaves_out_is_left_out_in_the_conv(fuse):
    function = layer(nodes=f"[conv] r = Conv {PADS} (a, f, b)", inputs="a, f, b")
    model = text_model("y = local.Layer(x, w)", W, functions=function)
    assert_swapped_with_same_outputs(model, {"conv"}, fuse=fuse)


@FUSES
def test_overloads_of_a_function_are_distinguished(fuse):
    functions = [
        layer(nodes=f"[first] r = Conv {PADS} (a, f)", overload="one"),
        layer(nodes=f"[second] q = Conv {PADS} (a, f)  r = Relu(q)", overload="two"),
        layer(nodes="r = Abs(a)"),
    ]
    nodes = "h = local.Layer:one(x, w)  k = local.Layer:two(h, w)  y = local.Layer(k, w)"
    model = text_model(nodes, W, functions="".join(functions))
    assert_swapped_with_same_outputs(model, {"first", "second"}, fuse=fuse)
    assert [function.overload for function in swap(model).to_proto().functions] == [""]


# Graphs that functions take as attributes


def graph_of(result: str, nodes: str) -> str:
    return f"graph () => (float {result}) {{ {nodes} }}"


GRAPHS = {
    "if_more": graph_of("m", "m = Constant <value_float = 5.0> ()"),
    "if_less": graph_of("l", "l = Constant <value_float = 7.0> ()"),
}
REFERENCES = {"then_branch": "if_more", "else_branch": "if_less"}


def references(model: onnx.ModelProto) -> dict[str, str]:
    """Return the graph attributes of the call that the If in the function of `model` refers to."""
    (choice,) = [node for node in model.functions[0].node if node.op_type == "If"]
    assert not any(attribute.HasField("g") for attribute in choice.attribute)
    return {attribute.name: attribute.ref_attr_name for attribute in choice.attribute}


def scaled(
    before: str = "Neg(a)",
    *,
    by_default: bool = False,
    graphs: dict[str, str] = GRAPHS,
    outer: str = "[outer] c = Conv(x, w)",
    functions: str = "",
) -> onnx.ModelProto:
    """Return a Conv, and a call of a function of its output and w that has graphs as attributes.

    The function returns `before` of its inputs, times the result of one of two graphs. The graphs come from
    the call or from defaults.
    """
    nodes = f"""
      [inner] b = {before}
      sum = ReduceSum <keepdims = 0> (a)
      zero = Constant <value_float = 0.0> ()
      is_more = Greater(sum, zero)
      k = If <then_branch: graph = @if_more, else_branch: graph = @if_less> (is_more)
      r = Mul(b, k)"""
    defaults = ", ".join(f"{name}: graph = {graph}" for name, graph in graphs.items())
    values = ", ".join(f"{name} = {graph}" for name, graph in graphs.items())
    function = layer(f"<{defaults if by_default else ', '.join(graphs)}>", nodes, name="Scaled")
    call = f"y = local.Scaled {'' if by_default else f'<{values}>'} (c, w)"
    return text_model(f"{outer}  {call}", W, functions=function + functions)


@FUSES
@pytest.mark.parametrize("by_default", [False, True])
def test_a_function_takes_graphs_as_attributes(by_default, fuse):
    model = scaled(by_default=by_default)
    onnx.checker.check_model(model)
    assert_swapped_with_same_outputs(model, {"outer"}, fuse=fuse)
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
def test_a_conv_in_a_function_that_takes_graphs_is_not_swapped_with_the_reason(by_default, fuse):
    """The Conv in another function, which takes no graph, is swapped."""
    model = scaled("Conv(a, f)", by_default=by_default, outer="c = local.Layer(x, w)", functions=layer())
    result = swap(model, fuse=fuse)
    assert result.swapped == ("conv",)
    assert [(entry.node, entry.reason) for entry in result.not_swapped] == [
        (
            "inner",
            "it is inside function 'Scaled': it takes a graph as an attribute, and such a function cannot "
            "be inlined",
        )
    ]
    (actual,), (expected,) = outputs_of(result.to_proto(), ours=True), outputs_of(model)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-4)


@FUSES
def test_functions_that_are_called_in_a_graph_that_a_function_takes_stay(fuse):
    """onnx-ir's inliner does not look into such graphs."""
    graph = graph_of("m", "one = Constant <value_float = 1.0> ()  m = local.Once(one)")
    nodes = """
      four = Constant <value = int64[4] {1, 1, 2, 2}> ()
      u = Constant <value = float[1, 1, 1, 1] {0.75}> ()
      e = Expand(a, four)
      [deep] d = Conv(e, u)
      r = ReduceSum <keepdims = 0> (d)"""
    once = layer(nodes=nodes, name="Once", inputs="a")
    model = scaled(graphs={**GRAPHS, "if_more": graph}, functions=once)
    result = swap(model, fuse=fuse)
    assert result.swapped == ("outer",)
    assert [entry.reason for entry in result.not_swapped] == [
        "it is inside function 'Once': a graph that function 'Scaled' takes as an attribute calls it"
    ]
    (actual,), (expected,) = outputs_of(result.to_proto(), ours=True), outputs_of(model)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-4, atol=1e-4)


@FUSES
def test_a_conv_in_a_graph_that_a_function_takes_is_swapped(fuse):
    def nodes(name: str) -> str:
        return f"""
          image = Constant <value = float[1, 1, 2, 2] {{1.0, 2.0, 3.0, 4.5}}> ()
          u = Constant <value = float[1, 1, 1, 1] {{0.75}}> ()
          [{name}] d = Conv(image, u)
          m = ReduceSum <keepdims = 0> (d)"""

    graphs = {"if_more": graph_of("m", nodes("given")), "if_less": graph_of("m", nodes("other"))}
    assert_swapped_with_same_outputs(scaled(graphs=graphs), {"outer", "given", "other"}, fuse=fuse)
