"""Branches of Ifs: analysed as models of their own, and their inner values added to the model's outputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.graph.branches import (
    SubgraphValue,
    branch_model,
    branch_paths,
    graphs_along,
    locate_value,
    with_values_as_outputs,
)
from onnx import TensorProto, helper
from op_sessions import onnx_outputs
from swap_models import conv_in_if, conv_in_loop, text_model, weights

THEN, ELSE = (("y", "then_branch"),), (("y", "else_branch"),)
INNER_IF = (*THEN, ("d", "else_branch"))


def nested() -> onnx.ModelProto:
    """Return an If in a branch of another If, with flags as inputs; both branches have a value `h`."""
    # The inner If's result is already an output of the branch.
    nodes = """
      outer = Add(x, x)
      y = If <
        then_branch = branch () => (float[?, ?] d) {
          h = Mul(outer, two)
          d = If <
            then_branch = branch () => (float[?, ?] dt) { dt = Neg(h) },
            else_branch = branch () => (float[?, ?] de) { q = Abs(outer)  de = Add(q, h) }
          > (inner)
        },
        else_branch = branch () => (float[?, ?] h) { h = Neg(outer) }
      > (flag)"""
    two = helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0])
    inputs = "float[2, 3] x, bool flag, bool inner"
    return text_model(nodes, two, inputs=inputs, outputs="float[?, ?] y")


X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
HOMES = {
    "then h": SubgraphValue(THEN, "h"),
    "else h": SubgraphValue(ELSE, "h"),
    "outer": SubgraphValue((), "outer"),
    "deep q": SubgraphValue(INNER_IF, "q"),
    "deep result": SubgraphValue(INNER_IF, "de"),
}
EMPTY = np.empty(0, np.float32)
INNER_RESULT = abs(2 * X) + 4 * X


@pytest.mark.parametrize(
    ("flag", "inner", "expected"),
    [
        (True, False, {"then h": 4 * X, "else h": EMPTY, "deep q": abs(2 * X), "deep result": INNER_RESULT}),
        (True, True, {"then h": 4 * X, "else h": EMPTY, "deep q": EMPTY, "deep result": EMPTY}),
        (False, True, {"then h": EMPTY, "else h": -2 * X, "deep q": EMPTY, "deep result": EMPTY}),
    ],
)  # fmt: skip
def test_inner_values_come_out_of_the_branches_that_are_run(flag, inner, expected):
    model, names = with_values_as_outputs(nested(), {home: TensorProto.FLOAT for home in HOMES.values()})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": X, "flag": np.array(flag), "inner": np.array(inner)}
    outputs = dict(
        zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True)
    )
    for title, values in {**expected, "outer": 2 * X}.items():
        np.testing.assert_array_equal(outputs[names[HOMES[title]]], values, err_msg=title)
    np.testing.assert_array_equal(outputs["y"], onnx_outputs(nested(), feeds)[0])


def test_the_model_is_not_changed():
    model = nested()
    before = model.SerializeToString(deterministic=True)
    with_values_as_outputs(model, {home: TensorProto.FLOAT for home in HOMES.values()})
    assert model.SerializeToString(deterministic=True) == before


def test_the_paths_lead_to_every_branch_of_an_if_and_into_no_loop():
    model = nested()
    inner_paths = [(*THEN, ("d", name)) for name in ("then_branch", "else_branch")]
    assert set(branch_paths(model.graph)) == {THEN, ELSE, *inner_paths}
    assert [node.op_type for node in graphs_along(model.graph, INNER_IF)[-1].node] == ["Abs", "Add"]
    assert list(branch_paths(conv_in_loop().graph)) == []


@pytest.mark.parametrize(
    ("path", "name", "home"),
    [
        (INNER_IF, "q", SubgraphValue(INNER_IF, "q")),
        (INNER_IF, "h", SubgraphValue(THEN, "h")),
        (ELSE, "h", SubgraphValue(ELSE, "h")),
        (INNER_IF, "outer", SubgraphValue((), "outer")),
        (INNER_IF, "x", None),
    ],
)
def test_a_value_is_found_where_it_is_computed(path, name, home):
    assert locate_value(nested().graph, path, name) == home


def test_a_branch_alone_has_the_constants_around_it_that_it_reads():
    model = conv_in_if()
    model.graph.initializer.append(weights("unused", 2))
    model.graph.node.insert(0, helper.make_node("Identity", ["w"], ["passed"]))
    branch = graphs_along(model.graph, THEN)[-1]
    branch.node[0].input[1] = "passed"
    standalone = branch_model(model, THEN)
    assert [node.op_type for node in standalone.graph.node] == ["Identity", "Conv"]
    assert [tensor.name for tensor in standalone.graph.initializer] == ["w"]
    assert standalone.opset_import == model.opset_import and standalone.ir_version == model.ir_version
    assert [tensor.name for tensor in branch_model(model, ELSE).graph.initializer] == ["w", "we"]
