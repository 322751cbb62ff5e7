"""The float64 reference of models with functions agrees with ONNX Runtime, and is float64 throughout.

Tolerance: ONNX Runtime computes in float32 here, a few operations on values near 1.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from convswap.graph.external_weights import SplitModel
from convswap.reference.evaluation import evaluate
from op_sessions import onnx_outputs
from swap_models import text_model
from verdict_models import normal

SHAPE = (3, 4)
X = normal(0, *SHAPE)


def function(name: str, nodes: str, parameters: str = "", *, overload: str = "", opset: int = 20) -> str:
    """Return the text of a function from a to b."""
    of = f', overload: "{overload}"' if overload else ""
    head = f'<domain: "local", opset_import: ["": {opset}, "local": 1]{of}>'
    return f"{head} {name} {parameters} (a) => (b) {{ {nodes} }}\n"


def model_of(nodes: str, *functions: str) -> onnx.ModelProto:
    """Return a model from x to y."""
    kinds = {"inputs": "float[3, 4] x", "outputs": "float[?, ?] y"}
    return text_model(nodes, functions="".join(functions), **kinds)


def reference_of(model: onnx.ModelProto) -> np.ndarray:
    """Return the float64 reference of `model`, and check that the model is unchanged."""
    before = model.SerializeToString(deterministic=True)
    reference = evaluate(model, {"x": X})
    assert model.SerializeToString(deterministic=True) == before
    (got,) = reference.outputs
    assert got.dtype == np.float64
    assert reference.in_float32 == ()
    return got


def check(nodes: str, *functions: str) -> np.ndarray:
    """Return the reference of the model of `nodes`, after comparing it with ONNX Runtime's output."""
    model = model_of(nodes, *functions)
    onnx.checker.check_model(model)
    (expected,) = onnx_outputs(model, {"x": X})
    got = reference_of(model)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    return got


NEGATIVE = function("P", "b = Neg(a)", overload="negative")
POWER = function("P", "b = Exp(a)", overload="power")
LEAKY = "b = LeakyRelu <alpha: float = @slope> (a)"
# The attribute of this function has a default.
STEEP = function("D", LEAKY, "<slope: float = 0.5>")


def test_overload_that_is_called_is_computed():
    got = check("n = local.P:negative(x)  y = local.P:power(n)", NEGATIVE, POWER)
    np.testing.assert_allclose(got, np.exp(-X.astype(np.float64)), rtol=1e-12)


def test_overload_is_distinguished_from_a_function_of_a_similar_name():
    similar = function("P_2", "b = Tanh(a)")
    check("n = local.P:negative(x)  e = local.P:power(n)  y = local.P_2(e)", NEGATIVE, POWER, similar)


@pytest.mark.parametrize("flag", [False, True])
def test_overload_is_found_within_a_subgraph_and_a_function(flag):
    """ONNX Runtime 1.32 finds no overload there."""
    twice = function("Twice", "n = local.P:negative(a)  b = local.P:power(n)")
    nodes = f"""
      flag = Constant <value = bool {{{int(flag)}}}> ()
      t = local.Twice(x)
      y = If <
        then_branch = then () => (float[3, 4] then_y) {{ then_y = local.P:negative(t) }},
        else_branch = else () => (float[3, 4] else_y) {{ else_y = local.P:power(t) }}
      > (flag)"""
    inner = np.exp(-X.astype(np.float64))
    got = reference_of(model_of(nodes, NEGATIVE, POWER, twice))
    np.testing.assert_allclose(got, -inner if flag else np.exp(inner), rtol=1e-12)


@pytest.mark.parametrize(("attributes", "slope"), [("", 0.5), ("<slope = 0.25>", 0.25)])
def test_attribute_has_its_default_where_the_call_gives_none(attributes, slope):
    got = check(f"y = local.D {attributes} (x)", STEEP)
    wide = X.astype(np.float64)
    np.testing.assert_allclose(got, np.where(wide < 0, slope * wide, wide), rtol=1e-12)


def test_attribute_without_a_value_is_left_to_the_default_of_the_operator():
    check("y = local.D(x)", function("D", LEAKY, "<slope>"))


def test_calls_of_one_function_have_the_attributes_of_their_own():
    check("h = local.D <slope = 0.25> (x)  i = local.D(h)  y = local.D <slope = 4.0> (i)", STEEP)


def test_attribute_goes_through_a_function_to_one_that_stands_after_it():
    nodes = "h = local.D <slope: float = @steep> (a)  b = local.D(h)"
    outer = function("Outer", nodes, "<steep: float = 2.0>")
    check("h = local.Outer(x)  y = local.Outer <steep = 0.125> (h)", outer, STEEP)


def test_attribute_reaches_a_subgraph_of_the_function():
    nodes = """
      flag = Constant <value = bool {1}> ()
      b = If <
        then_branch = then () => (float[3, 4] t) { t = LeakyRelu <alpha: float = @slope> (a) },
        else_branch = else () => (float[3, 4] e) { e = Neg(a) }
      > (flag)"""
    definition = function("D", nodes, "<slope: float = 0.5>")
    check("h = local.D(x)  y = local.D <slope = 0.25> (h)", definition)


def test_constant_and_type_that_a_call_gives_are_widened():
    """All constants and types become float64, also those from a call's attributes."""
    nodes = """
      k = Constant <value_float: float = @factor> ()
      e = Exp(a)
      c = Cast <to: int = @kind> (e)
      b = Mul(c, k)"""
    got = check("y = local.F <factor = 0.5, kind = 1> (x)", function("F", nodes, "<factor, kind>"))
    np.testing.assert_allclose(got, 0.5 * np.exp(X.astype(np.float64)), rtol=1e-12)


def test_function_keeps_an_opset_of_its_own():
    """Softmax is over the last axis in the model's opset, and over all but the first in the function's."""
    nodes = """
      shape = Constant <value = int64[3] {3, 2, 2}> ()
      flat = Constant <value = int64[2] {3, 4}> ()
      r = Reshape(a, shape)
      s = Softmax(r)
      b = Reshape(s, flat)"""
    got = reference_of(model_of("y = local.F(x)", function("F", nodes, opset=12)))
    np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-12)


def test_external_weights_are_read_around_a_function():
    model = model_of("n = local.P:negative(x)  y = Mul(n, w)", NEGATIVE)
    (got,) = evaluate(SplitModel(model, {"w": np.float32([2, 3, 4, 5])}), {"x": X}).outputs
    np.testing.assert_allclose(got, -X.astype(np.float64) * [2, 3, 4, 5], rtol=1e-12)
