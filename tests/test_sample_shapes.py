"""Where a model leaves open what it is fed, images are fed as images, and a user may say otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from convswap import explain, tune
from convswap.cli import main
from convswap.compare import compare
from convswap.errors import ConvswapError
from convswap.feeds import declared_inputs, input_shapes
from convswap.first_run import first_run
from convswap.sample_shapes import open_shape_notes, with_sample_shapes
from onnx import helper
from swap_models import make_model, tensor_info, weights


def open_model(*sides: int | str) -> onnx.ModelProto:
    """Return a Conv of 3x3 from x [n, 3, *sides]."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)]
    return make_model(nodes, [weights("w", 4, 3, 3, 3)], inputs=[tensor_info("x", "n", 3, *sides)])


def shapes(*inputs: onnx.ValueInfoProto, given=None, batch: int = 2) -> list[tuple[int, ...]]:
    """Return what a model with these inputs is fed, where samples of the shapes `given` are asked for."""
    identity = helper.make_node("Identity", [inputs[0].name], ["y"])
    declared = declared_inputs(make_model([identity], [], inputs=inputs))
    return list(input_shapes(with_sample_shapes(declared, given), batch).values())


X = tensor_info("x", "n", 3, "h", "w")
MASK = tensor_info("mask", "n", "h", "w")
TOKENS = tensor_info("tokens", "n", "length")


def test_an_open_image_has_the_size_that_most_networks_are_made_for():
    assert shapes(X) == shapes(tensor_info("x", None, 3, None, None)) == [(2, 3, 224, 224)]
    assert shapes(tensor_info("x", "n", "c", 7, "w")) == [(2, 1, 7, 224)]


def test_what_has_the_same_name_has_the_same_size():
    assert shapes(MASK, X) == [(2, 224, 224), (2, 3, 224, 224)]
    assert shapes(X, MASK, given={"x": (3, 20, 30)}) == [(2, 3, 20, 30), (2, 20, 30)]
    assert shapes(X, tensor_info("square", "n", 1, "n", 5)) == [(2, 3, 224, 224), (2, 1, 2, 5)]


def test_all_else_that_is_open_is_one():
    volume = tensor_info("x", "n", 3, "d", "h", "w")
    assert shapes(TOKENS) == [(2, 1)]
    assert shapes(volume) == [(2, 3, 1, 1, 1)]
    assert shapes(TOKENS, given=(7,)) == [(2, 7)]
    assert shapes(TOKENS, volume, given={"x": (3, 4, 5, 6), "tokens": (9,)}) == [(2, 9), (2, 3, 4, 5, 6)]


@pytest.mark.parametrize(
    ("inputs", "given", "expected"),
    [
        ([X], (3, 20), r"input 'x' \[n, 3, h, w\] was given samples of shape \[3, 20\], without the batch"),
        ([X], (2, 3, 20, 30), r"samples of shape \[2, 3, 20, 30\]"),
        ([X], (4, 20, 30), r"samples of shape \[4, 20, 30\].*repeat the others"),
        ([X], (3, 0, 30), "an extent of input 'x' must be at least 1, but 0 was given"),
        ([X], {"y": (3, 20, 30)}, "unknown input 'y'; .*x"),
        ([X, TOKENS], (3, 20, 30), "the inputs are x, tokens: name the one that is meant"),
        ([X, MASK], {"x": (3, 20, 30), "mask": (20, 31)}, "was given 31 for 'w', which is 30 elsewhere"),
        ([tensor_info("x", "n", 3, "n", 5)], (3, 4, 5), "'n', which is the batch too"),
        ([tensor_info("x")], (1,), r"input 'x' \[\] was given"),
    ],
    ids=str,
)
def test_a_shape_that_the_model_cannot_take_is_refused(inputs, given, expected):
    with pytest.raises(ConvswapError, match=expected):
        shapes(*inputs, given=given)


def test_only_what_we_made_up_is_told():
    def notes(*inputs, given=None):
        identity = helper.make_node("Identity", [inputs[0].name], ["y"])
        declared = declared_inputs(make_model([identity], [], inputs=inputs))
        return open_shape_notes(with_sample_shapes(declared, given))

    (note,) = notes(X, tensor_info("z", "n", 3))
    assert note == (
        "the model leaves the shape of input 'x' [n, 3, h, w] open: its samples were 3x224x224; "
        "--input-shape gives another"
    )
    assert notes(X, given=(3, 20, 30)) == notes(tensor_info("x", "n", 3, "n", 5)) == []
    assert len(notes(X, TOKENS, given={"x": (3, 20, 30)})) == 1


def test_compare_feeds_what_is_asked_for_and_tells_what_is_not():
    asked = compare(open_model("h", "w"), device="cpu", input_shape=(3, 20, 30), batch=2)
    assert asked.options["input_shapes"] == {"x": [2, 3, 20, 30]}
    assert not any("open" in note for note in asked.notes)
    (layer,) = asked.layers
    left_open = compare(open_model("h", 6), device="cpu")
    assert left_open.options["input_shapes"] == {"x": [1, 3, 224, 6]}
    assert any("its samples were 3x224x6; --input-shape" in note for note in left_open.notes)
    assert asked.within_tolerance and left_open.within_tolerance and layer.node == "conv"


def test_outputs_without_an_element_agree_with_nothing():
    model = open_model("h", "w")
    model.graph.node[0].output[0] = "c"
    model.graph.node.append(helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[3, 3], strides=[2, 2]))
    assert compare(model, device="cpu", input_shape=(3, 3, 9), time_layers=False).within_tolerance
    with pytest.raises(ConvswapError, match=r"fed with 'x' \[1, 3, 1, 9\], no output .* nothing to compare"):
        compare(model, device="cpu", input_shape=(3, 1, 9))


def test_explain_and_tune_plan_for_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / "tuning.json"))
    model = open_model("h", "w")
    assert "x=1x3x224x224" in explain(model, device="cpu").convs[0].problem
    planned = explain(model, device="cpu", input_shape={"x": (3, 20, 30)}, batch=5)
    assert "x=5x3x20x30" in planned.convs[0].problem
    assert not any("open" in note for note in planned.notes)
    tuned = tune(model, device="cpu", input_shape=(3, 6, 7), runs=1)
    assert "x=1x3x6x7" in tuned.problems[0].problem


def test_first_run_is_fed_what_is_asked_for():
    # Of another shape the Add would fail.
    model = open_model("h", "w")
    model.graph.node[0].output[0] = "c"
    model.graph.node.append(helper.make_node("Add", ["c", "b"], ["y"]))
    model.graph.initializer.append(weights("b", 1, 4, 20, 30))
    found = first_run(model, device="cpu", processes=1, input_shape={"x": (3, 20, 30)})
    assert found["convswap_ms"] > 0 and found["notes"] == []
    with pytest.raises(ConvswapError, match="Add"):
        first_run(model, device="cpu", processes=1)


def test_command_line_takes_the_shape_of_one_input_or_of_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(open_model("h", "w"), "model.onnx")
    for shape in ("3,20,30", "x=3,20,30"):
        asked = ["explain", "model.onnx", "--device", "cpu", "--input-shape", shape, "--json", "plan.json"]
        assert main(asked) == 0
        assert "x=1x3x20x30" in json.loads(Path("plan.json").read_text())["layers"][0]["problem"]
    assert "open" not in capsys.readouterr().out
    assert main(["compare", "model.onnx", "--device", "cpu", "--no-layers", "--images", "1"]) == 0
    assert "its samples were 3x224x224" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--input-shape", "3,x,30"], "--input-shape '3,x,30': expected whole numbers"),
        (["--input-shape", "3,20,30", "--input-shape", "x=3,20,30"], "'x=3,20,30' is one too many"),
        (["--input-shape", "x=3,20,30", "--input-shape", "x=3,20,30"], "'x=3,20,30' is one too many"),
        (["--input-shape", "y=3,20,30"], "unknown input 'y'"),
        (["--input-shape="], "--input-shape '': expected whole numbers"),
    ],
    ids=str,
)
def test_command_line_refuses_other_shapes_in_one_line(arguments, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(open_model("h", "w"), "model.onnx")
    assert main(["explain", "model.onnx", "--device", "cpu", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_layers_of_a_suite_have_shapes_of_their_own(capsys):
    assert main(["bench", "course", "--input-shape", "3,20,30"]) == 2
    assert "--input-shape has no meaning beside a suite" in capsys.readouterr().err
