"""`optimize` on Convs in subgraphs: in the branch of an If that is run they are measured, in a loop not."""

from __future__ import annotations

import json

import convswap
import numpy as np
import onnx
import onnxruntime
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
from swap_models import ANY, conv_in_if, conv_in_loop, text_model, weights

INNER = "it is in a subgraph, where it cannot be measured alone"
NOT_RUN = "the branch that it is in is not run with this input"
CPU = Device("cpu", "asked for")
SHAPE = (2, 3, 9, 8)


def branches(names: tuple[str, str] = ("kept", "other")) -> onnx.ModelProto:
    """Return a model whose If runs the branch that has a fused pair of Convs where the input is not negative.

    The first is fed by the graph around it and has its weights there; the second is in an If of its own and
    adds what the first computes.
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


@pytest.fixture(autouse=True)
def own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / "kept" / "tuning.txt"))


@pytest.fixture
def pretended(monkeypatch):
    """Have the last stage of every Conv gain, and the whole model."""

    def variant_times(segment, inputs, precision, device):
        return {DEFAULT_VARIANT: 1.0, **dict.fromkeys(segment.stages, 0.9), segment.stages[-1]: 0.5}

    monkeypatch.setattr(measuring, "variant_times", variant_times)
    monkeypatch.setattr(end_to_end, "end_to_end_times", lambda sessions, feeds, device: [2.0, 1.0])


def test_convs_of_the_branch_that_is_run_are_taken_and_the_file_answers_as_the_original(pretended, tmp_path):
    found = optimize(branches(), tmp_path / "faster.onnx", device="cpu")
    assert {node.node: (node.taken, node.takes_in) for node in found.nodes} == {
        "kept": ("fused", ("Relu",)),
        "deep": ("fused", ("Add", "Relu")),
        "other": ("default", ()),
    }
    assert {node.node: node.why for node in found.nodes}["other"] == NOT_RUN
    options = onnxruntime.SessionOptions()
    convswap.register(options)
    ours = onnxruntime.InferenceSession(str(found.written), options, providers=["CPUExecutionProvider"])
    original = onnxruntime.InferenceSession(
        branches().SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    for values in (x, -abs(x)):
        expected = original.run(None, {"x": values})[0]
        np.testing.assert_allclose(ours.run(None, {"x": values})[0], expected, rtol=1e-4, atol=1e-4)


def test_they_are_fed_what_they_really_get():
    prepared = prepare(branches(), OptimizeOptions(), CPU)
    inputs = SegmentInputs(prepared)
    segments = {segment.name: segment for segment in prepared.segments}
    (kept,), (deep,) = inputs.of(segments["kept"]), inputs.of(segments["deep"])
    assert inputs.of(segments["other"]) is None
    (x,) = next(iter(prepared.sources.values())).first(2).values()
    np.testing.assert_array_equal(kept["doubled"].numpy(), 2 * x)
    # In the fused model the first computes what the second is fed.
    expected = make_conv_and_relu(2 * x)
    np.testing.assert_allclose(deep["r"].numpy(), expected, rtol=1e-4, atol=1e-4)


def make_conv_and_relu(x: np.ndarray) -> np.ndarray:
    w, b = (onnx.numpy_helper.to_array(tensor) for tensor in branches().graph.initializer[:2])
    return np.maximum(convswap._native.conv(x, w, b, algorithm="reference", pads=(1, 1, 1, 1)), 0)


def test_every_way_in_a_branch_is_really_measured(tmp_path):
    found = optimize(branches(), tmp_path / "faster.onnx", device="cpu")
    measured = {node.node: node for node in found.nodes if node.default_ms}
    assert measured.keys() == {"kept", "deep"}
    assert all(node.algorithm == "direct" for node in measured.values())


def test_convs_of_one_name_in_two_branches_are_told_apart_and_taken(pretended, tmp_path):
    found = optimize(branches(("twice", "twice")), tmp_path / "faster.onnx", device="cpu")
    assert {node.node: (node.taken, node.why == NOT_RUN) for node in found.nodes} == {
        "twice": ("default", True),
        "twice_2": ("fused", False),
        "deep": ("fused", False),
    }
    nodes = [node for graph in graphs_of_proto(onnx.load(found.written).graph) for node in graph.node]
    assert {node.name: node.op_type for node in nodes if node.name.startswith("twice")} == {
        "twice": "Conv",
        "twice_2": "FusedConv",
    }


@pytest.mark.parametrize("names", [("deep", "deep"), ("", ""), ("double", "first_relu")])
def test_whatever_the_names_all_convs_that_are_run_are_measured(names, pretended):
    # Both branches have a value `h`.
    nodes = optimize(branches(names), None, device="cpu").nodes
    assert len({node.node for node in nodes}) == 3
    assert sorted(node.taken for node in nodes) == ["default", "fused", "fused"]


def test_of_a_conv_that_is_fed_the_models_input_it_is_known_whether_it_is_run(pretended):
    found = {node.node: node for node in optimize(conv_in_if(), None, device="cpu").nodes}
    run, not_run = sorted(found.values(), key=lambda node: node.default_ms is None)
    assert {run.node, not_run.node} == {"conv_then", "conv_else"}
    assert (run.taken, not_run.why) == ("swapped", NOT_RUN)


def test_a_conv_of_a_branch_whose_weights_are_computed_is_left_and_the_others_are_measured(pretended):
    model = branches()
    (branch,) = (
        attribute.g for attribute in model.graph.node[-1].attribute if attribute.name == "then_branch"
    )
    branch.node[0].input[1] = "twice"
    branch.node.insert(0, helper.make_node("Add", ["w", "w"], ["twice"]))
    found = {node.node: node for node in optimize(model, None, device="cpu").nodes}
    assert (found["kept"].why, found["deep"].taken) == (INNER, "fused")


def test_large_weights_of_the_graph_around_a_branch_are_folded_into_and_written(pretended, tmp_path):
    """Weights of 1 MiB in a Constant, which a Conv of the main graph reads and one of a branch."""
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
    found = optimize(model, tmp_path / "faster.onnx", device="cpu")
    assert {node.node: node.taken for node in found.nodes} == {"outer": "swapped", "inner": "swapped"}
    assert found.reference == "float64" and 0 < found.errors["optimized"] < 1e-5
    written = onnx.load(found.written)
    names = {own.name for graph in graphs_of_proto(written.graph) for own in graph.node}
    assert {"outer", "inner"} <= names and "scale" not in names


def test_it_says_that_no_conv_of_a_loop_can_be_measured_and_writes_no_model(tmp_path, device):
    output = tmp_path / "optimized.onnx"
    found = optimize(conv_in_loop(), output, device=device)
    assert [(node.taken, node.why) for node in found.nodes] == [("default", INNER)]
    assert (found.whole, found.written, found.speedup, output.exists()) == ((), None, None, False)
    first, second = optimization_verdict(found)
    assert first == f"No Conv can be measured alone: the table has the reasons for all {len(found.nodes)}."
    assert second == "No file is written; use the model as it is."
    page = optimize_html(found)
    assert first in page and INNER in page


def test_the_command_ends_with_status_1(tmp_path, capsys):
    model, output, result = (tmp_path / name for name in ("in.onnx", "out.onnx", "result.json"))
    onnx.save_model(conv_in_loop(), model)
    assert main(["optimize", str(model), "-o", str(output), "--device", "cpu", "--json", str(result)]) == 1
    assert "No Conv can be measured alone" in capsys.readouterr().out
    assert not output.exists() and json.loads(result.read_text())["written"] is None
