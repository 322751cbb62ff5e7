"""The float64 truth of a model with functions is float64 throughout, and what ONNX Runtime computes.

Tolerance: ONNX Runtime computes in float32 here, a few operations on values near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.graph.external_weights import SplitModel
from convswap.truth.evaluation import evaluate
from onnx import TensorProto, helper
from swap_models import make_model, tensor_info
from verdict_models import constant, normal

SHAPE = (3, 4)
X = normal(0, *SHAPE)


def function(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    *,
    overload: str = "",
    attributes: Sequence[str] = (),
    opset: int = 20,
    **defaults: Any,
) -> onnx.FunctionProto:
    """Return a function of domain `own` from a to b."""
    made = helper.make_function(
        "own",
        name,
        ["a"],
        ["b"],
        nodes,
        [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)],
        list(attributes),
        [helper.make_attribute(key, value) for key, value in defaults.items()],
    )
    made.overload = overload
    return made


def call(name: str, source: str = "x", result: str = "y", overload: str = "", **attributes: Any):
    made = helper.make_node(name, [source], [result], domain="own", **attributes)
    made.overload = overload
    return made


def referring(node: onnx.NodeProto, kind: int, **names: str) -> onnx.NodeProto:
    """Return `node` with attributes that have the value of the function's of that name."""
    for own, outer in names.items():
        node.attribute.add(name=own, ref_attr_name=outer, type=kind)
    return node


def leaky(alpha: str, source: str = "a", result: str = "b") -> onnx.NodeProto:
    """Return a LeakyRelu whose alpha is that attribute of its function."""
    return referring(
        helper.make_node("LeakyRelu", [source], [result]), onnx.AttributeProto.FLOAT, alpha=alpha
    )


def model_of(
    nodes: Sequence[onnx.NodeProto],
    functions: Sequence[onnx.FunctionProto],
    tensors: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """Return a model from x to y."""
    return make_model(
        nodes,
        tensors,
        inputs=[tensor_info("x", *SHAPE)],
        outputs=[tensor_info("y", None, None)],
        functions=functions,
        domains=["own"],
    )


def truth_of(model: onnx.ModelProto) -> np.ndarray:
    """Return the float64 truth of `model`, which stays as it is."""
    before = model.SerializeToString(deterministic=True)
    truth = evaluate(model, {"x": X})
    assert model.SerializeToString(deterministic=True) == before
    (got,) = truth.outputs
    assert got.dtype == np.float64
    assert truth.in_float32 == ()
    return got


def check(nodes: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto]) -> np.ndarray:
    """Return the truth of the model of `nodes`, after it was compared with ONNX Runtime's answer."""
    model = model_of(nodes, functions)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": X})
    got = truth_of(model)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return got


NEGATIVE = function("P", [helper.make_node("Neg", ["a"], ["b"])], overload="negative")
POWER = function("P", [helper.make_node("Exp", ["a"], ["b"])], overload="power")


def test_overload_that_is_called_is_computed():
    got = check([call("P", "x", "n", "negative"), call("P", "n", "y", "power")], [NEGATIVE, POWER])
    np.testing.assert_allclose(got, np.exp(-X.astype(np.float64)), rtol=1e-12)


def test_overload_is_told_apart_from_a_function_of_a_similar_name():
    other = function("P_2", [helper.make_node("Tanh", ["a"], ["b"])])
    nodes = [call("P", "x", "n", "negative"), call("P", "n", "e", "power"), call("P_2", "e", "y")]
    check(nodes, [NEGATIVE, POWER, other])


@pytest.mark.parametrize("flag", [False, True])
def test_overload_is_found_within_a_subgraph_and_a_function(flag):
    """Where ONNX Runtime 1.32 finds none."""
    twice = function("Twice", [call("P", "a", "n", "negative"), call("P", "n", "b", "power")])
    branches = {
        f"{name}_branch": helper.make_graph([node], name, [], [tensor_info(f"{name}_y", *SHAPE)])
        for name, node in (
            ("then", call("P", "t", "then_y", "negative")),
            ("else", call("P", "t", "else_y", "power")),
        )
    }
    nodes = [call("Twice", "x", "t"), helper.make_node("If", ["flag"], ["y"], **branches)]
    model = model_of(nodes, [NEGATIVE, POWER, twice], [constant("flag", np.array(flag))])
    inner = np.exp(-X.astype(np.float64))
    np.testing.assert_allclose(truth_of(model), -inner if flag else np.exp(inner), rtol=1e-12)


@pytest.mark.parametrize("given", [{}, {"slope": 0.25}])
def test_attribute_has_its_default_where_the_call_gives_none(given):
    got = check([call("D", **given)], [function("D", [leaky("slope")], slope=0.5)])
    wide = X.astype(np.float64)
    np.testing.assert_allclose(got, np.where(wide < 0, given.get("slope", 0.5) * wide, wide), rtol=1e-12)


def test_attribute_without_a_value_is_left_to_the_default_of_the_operator():
    check([call("D")], [function("D", [leaky("slope")], attributes=["slope"])])


def test_calls_of_one_function_have_the_attributes_of_their_own():
    nodes = [call("D", "x", "h", slope=0.25), call("D", "h", "i"), call("D", "i", "y", slope=4.0)]
    check(nodes, [function("D", [leaky("slope")], slope=0.5)])


def test_attribute_goes_through_a_function_to_one_that_stands_after_it():
    outer = function(
        "Outer",
        [
            referring(call("D", "a", "h"), onnx.AttributeProto.FLOAT, slope="steep"),
            call("D", "h", "b"),
        ],
        steep=2.0,
    )
    inner = function("D", [leaky("slope")], slope=0.5)
    check([call("Outer", "x", "h"), call("Outer", "h", "y", steep=0.125)], [outer, inner])


def test_attribute_reaches_a_subgraph_of_the_function():
    branches = {
        f"{name}_branch": helper.make_graph([node], name, [], [tensor_info(f"{name}_b", *SHAPE)])
        for name, node in (
            ("then", leaky("slope", "a", "then_b")),
            ("else", helper.make_node("Neg", ["a"], ["else_b"])),
        )
    }
    nodes = [
        helper.make_node("Constant", [], ["flag"], value=constant("flag", np.array(True))),
        helper.make_node("If", ["flag"], ["b"], **branches),
    ]
    check([call("D", "x", "h"), call("D", "h", "y", slope=0.25)], [function("D", nodes, slope=0.5)])


def test_constant_and_type_that_a_call_gives_are_widened():
    """As all constants and types of the model are."""
    nodes = [
        referring(helper.make_node("Constant", [], ["k"]), onnx.AttributeProto.FLOAT, value_float="factor"),
        helper.make_node("Exp", ["a"], ["e"]),
        referring(helper.make_node("Cast", ["e"], ["c"]), onnx.AttributeProto.INT, to="kind"),
        helper.make_node("Mul", ["c", "k"], ["b"]),
    ]
    made = function("F", nodes, attributes=["factor", "kind"])
    got = check([call("F", factor=0.5, kind=int(TensorProto.FLOAT))], [made])
    np.testing.assert_allclose(got, 0.5 * np.exp(X.astype(np.float64)), rtol=1e-12)


def test_function_keeps_an_opset_of_its_own():
    """Softmax is over the last axis in the model's opset, over all but the first in the function's."""
    nodes = [
        helper.make_node("Constant", [], ["shape"], value=constant("shape", np.array([3, 2, 2]))),
        helper.make_node("Constant", [], ["flat"], value=constant("flat", np.array(SHAPE))),
        helper.make_node("Reshape", ["a", "shape"], ["r"]),
        helper.make_node("Softmax", ["r"], ["s"]),
        helper.make_node("Reshape", ["s", "flat"], ["b"]),
    ]
    got = truth_of(model_of([call("F")], [function("F", nodes, opset=12)]))
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)


def test_weights_that_are_given_apart_are_read_around_a_function():
    model = make_model(
        [call("P", "x", "n", "negative"), helper.make_node("Mul", ["n", "w"], ["y"])],
        [],
        inputs=[tensor_info("x", *SHAPE)],
        functions=[NEGATIVE],
        domains=["own"],
    )
    (got,) = evaluate(SplitModel(model, {"w": np.float32([2, 3, 4, 5])}), {"x": X}).outputs
    np.testing.assert_allclose(got, -X.astype(np.float64) * [2, 3, 4, 5], rtol=1e-12)
