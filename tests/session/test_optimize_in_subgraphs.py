"""`optimize` on Convs in subgraphs: in branches that run they are measured, in loops they are not."""

from __future__ import annotations

import json

import convswap
import numpy as np
import onnx
import pytest
from convswap.cli.main import main
from convswap.graph.serialisation import graphs_of_proto
from convswap.optimizing import end_to_end, measuring
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.optimize import optimize
from convswap.optimizing.preparation import OptimizeOptions, SegmentInputs, prepare
from convswap.optimizing.report import optimization_verdict, optimize_html
from convswap.runtime.device import Device
from onnx import TensorProto, helper
from op_sessions import cpu_session, onnx_outputs
from swap_models import ANY, conv_in_if, conv_in_loop, text_model, weights

INNER = "it is in a subgraph, where it cannot be measured alone"
NOT_RUN = "the branch that it is in is not run with this input"
CPU = Device("cpu", "asked for")
SHAPE = (2, 3, 9, 8)


def branches(names: tuple[str, str] = ("kept", "other")) -> onnx.ModelProto:
    """Return a model whose If runs a branch with a fusible pair of Convs if the input's maximum is >= 0.

    The outer graph gives the first Conv its input and its weights. The second Conv is in an inner If and adds
    the output of the first.
    """
    first, second = (f"[{name}]" if name else "" for name in names)
    nodes = f"""
      [double] doubled = Add(x, x)
      most = ReduceMax <keepdims = 0> (x)
      right = GreaterOrEqual(most, zero)
      y = If <
        else_branch = else () => ({ANY} h) {{ {second} h = Conv <pads = [1, 1, 1, 1]> (doubled, w) }},
        then_branch = then () => ({ANY} e) {{
          {first} h = Conv <pads = [1, 1, 1, 1]> (doubled, w, b)
          [first_relu] r = Relu(h)
          e = If <
            else_branch = passed () => ({ANY} p) {{ p = Identity(r) }},
            then_branch = deep () => ({ANY} t) {{
              [deep] c = Conv <pads = [1, 1, 1, 1]> (r, wd)
              [add] s = Add(c, r)
              [relu] t = Relu(s)
            }}
          > (right)
        }}
      > (right)"""
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])
    model = text_model(nodes, weights("w", 4, 3, 3, 3), weights("b", 4), zero)
    then = model.graph.node[-1].attribute[1].g
    then.node[-1].attribute[1].g.initializer.append(weights("wd", 4, 4, 3, 3))
    return model


@pytest.fixture
def make_all_faster(monkeypatch):
    """Make the last stage of every Conv faster, and the model end to end."""

    def variant_times(segment, inputs, precision, device):
        return {DEFAULT_VARIANT: 1.0, **dict.fromkeys(segment.stages, 0.9), segment.stages[-1]: 0.5}

    monkeypatch.setattr(measuring, "variant_times", variant_times)
    monkeypatch.setattr(end_to_end, "end_to_end_times", lambda sessions, feeds, device: [2.0, 1.0])


def test_convs_of_the_branch_that_is_run_are_optimized_and_the_file_gives_the_original_outputs(
    make_all_faster, tmp_path
):
    result = optimize(branches(), tmp_path / "faster.onnx", device="cpu")
    assert {node.node: (node.taken, node.takes_in) for node in result.nodes} == {
        "kept": ("fused", ("Relu",)),
        "deep": ("fused", ("Add", "Relu")),
        "other": ("default", ()),
    }
    assert {node.node: node.why for node in result.nodes}["other"] == NOT_RUN
    session = cpu_session(onnx.load(result.written))
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    for values in (x, -abs(x)):
        expected = onnx_outputs(branches(), {"x": values})[0]
        np.testing.assert_allclose(session.run(None, {"x": values})[0], expected, rtol=1e-4, atol=1e-4)


def test_their_inputs_are_those_of_a_run():
    prepared = prepare(branches(), OptimizeOptions(), CPU)
    inputs = SegmentInputs(prepared)
    segments = {segment.name: segment for segment in prepared.segments}
    (outer_inputs,), (inner_inputs,) = inputs.of(segments["kept"]), inputs.of(segments["deep"])
    assert inputs.of(segments["other"]) is None
    (x,) = next(iter(prepared.sources.values())).first(2).values()
    np.testing.assert_array_equal(outer_inputs["doubled"].numpy(), 2 * x)
    # In the fused model the first Conv computes the input of the second.
    expected = make_conv_and_relu(2 * x)
    np.testing.assert_allclose(inner_inputs["r"].numpy(), expected, rtol=1e-4, atol=1e-4)


def make_conv_and_relu(x: np.ndarray) -> np.ndarray:
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in branches().graph.initializer[:2])
    return np.maximum(convswap._native.conv(x, w, b, algorithm="reference", pads=(1, 1, 1, 1)), 0)


def test_every_stage_in_a_branch_is_really_measured(tmp_path):
    result = optimize(branches(), tmp_path / "faster.onnx", device="cpu")
    measured = {node.node: node for node in result.nodes if node.default_ms}
    assert measured.keys() == {"kept", "deep"}
    assert all(node.algorithm == "direct" for node in measured.values())


def test_convs_of_one_name_in_two_branches_are_distinguished_and_optimized(make_all_faster, tmp_path):
    result = optimize(branches(("twice", "twice")), tmp_path / "faster.onnx", device="cpu")
    assert {node.node: (node.taken, node.why == NOT_RUN) for node in result.nodes} == {
        "twice": ("default", True),
        "twice_2": ("fused", False),
        "deep": ("fused", False),
    }
    nodes = [node for graph in graphs_of_proto(onnx.load(result.written).graph) for node in graph.node]
    assert {node.name: node.op_type for node in nodes if node.name.startswith("twice")} == {
        "twice": "Conv",
        "twice_2": "FusedConv",
    }


@pytest.mark.parametrize("names", [("deep", "deep"), ("", ""), ("double", "first_relu")])
def test_whatever_the_names_all_convs_that_are_run_are_measured(names, make_all_faster):
    # Both branches have a value `h`.
    nodes = optimize(branches(names), None, device="cpu").nodes
    assert len({node.node for node in nodes}) == 3
    assert sorted(node.taken for node in nodes) == ["default", "fused", "fused"]


def test_a_conv_of_the_models_input_is_known_to_run_or_not(make_all_faster):
    nodes = {node.node: node for node in optimize(conv_in_if(), None, device="cpu").nodes}
    run, not_run = sorted(nodes.values(), key=lambda node: node.default_ms is None)
    assert {run.node, not_run.node} == {"conv_then", "conv_else"}
    assert (run.taken, not_run.why) == ("swapped", NOT_RUN)


def test_a_conv_of_a_branch_whose_weights_are_computed_is_not_swapped_and_the_others_are_measured(
    make_all_faster,
):
    model = branches()
    (branch,) = (
        attribute.g for attribute in model.graph.node[-1].attribute if attribute.name == "then_branch"
    )
    branch.node[0].input[1] = "twice"
    branch.node.insert(0, helper.make_node("Add", ["w", "w"], ["twice"]))
    nodes = {node.node: node for node in optimize(model, None, device="cpu").nodes}
    assert (nodes["kept"].why, nodes["deep"].taken) == (INNER, "fused")


def test_large_weights_of_the_graph_around_a_branch_are_folded_into_and_written(make_all_faster, tmp_path):
    """Weights of 1 MiB in a Constant, read by a Conv of the main graph and by a Conv of a branch."""
    nodes = f"""
      [outer] c = Conv(x, w)
      y = If <
        then_branch = then () => ({ANY} t) {{ [inner] d = Conv(c, w)  [scale] t = Mul(d, half) }},
        else_branch = else () => ({ANY} e) {{ e = Neg(c) }}
      > (flag)"""
    flag = helper.make_tensor("flag", TensorProto.BOOL, [], [True])
    model = text_model(nodes, weights("half", 1, 512, 1, 1), flag, inputs="float[1, 512, 2, 2] x")
    constant = helper.make_node("Constant", [], ["w"], value=weights("", 512, 512, 1, 1))
    model.graph.node.insert(0, constant)
    result = optimize(model, tmp_path / "faster.onnx", device="cpu")
    assert {node.node: node.taken for node in result.nodes} == {"outer": "swapped", "inner": "swapped"}
    assert result.reference == "float64" and 0 < result.errors["optimized"] < 1e-5
    written = onnx.load(result.written)
    names = {node.name for graph in graphs_of_proto(written.graph) for node in graph.node}
    assert {"outer", "inner"} <= names and "scale" not in names


def test_it_says_that_no_conv_of_a_loop_can_be_measured_and_writes_no_model(tmp_path, device):
    output = tmp_path / "optimized.onnx"
    result = optimize(conv_in_loop(), output, device=device)
    assert [(node.taken, node.why) for node in result.nodes] == [("default", INNER)]
    assert (result.whole, result.written, result.speedup, output.exists()) == ((), None, None, False)
    first, second = optimization_verdict(result)
    assert first == f"No Conv can be measured alone: the table has the reasons for all {len(result.nodes)}."
    assert second == "No file is written; use the model as it is."
    page = optimize_html(result)
    assert first in page and INNER in page


def test_the_command_ends_with_status_1(tmp_path, capsys):
    model, output, result = (tmp_path / name for name in ("in.onnx", "out.onnx", "result.json"))
    onnx.save_model(conv_in_loop(), model)
    assert main(["optimize", str(model), "-o", str(output), "--device", "cpu", "--json", str(result)]) == 1
    assert "No Conv can be measured alone" in capsys.readouterr().out
    assert not output.exists() and json.loads(result.read_text())["written"] is None
