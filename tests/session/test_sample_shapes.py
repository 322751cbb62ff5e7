"""Shapes for inputs that a model leaves open: images by default, or the user's shapes."""

from __future__ import annotations

import functools
import importlib
import json

import numpy as np
import onnx
import pytest
from convswap import explain, tune
from convswap.bench.first_run import first_run
from convswap.cli.main import main
from convswap.comparison.compare import compare
from convswap.errors import ConvswapError
from convswap.inputs.feeds import declared_inputs, input_shapes
from convswap.inputs.sample_shapes import shape_notes, with_sample_shapes
from onnx import TensorProto, helper
from swap_models import ANY_SHAPE, model_with_inputs, tensor_info, text_model, weights


def open_model(*sides: int | str, after: str = "") -> onnx.ModelProto:
    """Return a Conv of 3x3 from x [n, 3, *sides] to y, or to c if `after` computes y from it."""
    inputs = f"float[n, 3, {', '.join(map(str, sides))}] x"
    nodes = f"[conv] {'c' if after else 'y'} = Conv <pads = [1, 1, 1, 1]> (x, w)  {after}"
    return text_model(nodes, weights("w", 4, 3, 3, 3), inputs=inputs)


def pooled_model() -> onnx.ModelProto:
    """Return a model whose output is empty for images less than three high or wide."""
    return open_model("h", "w", after="y = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (c)")


def of_20_by_30() -> onnx.ModelProto:
    """Return a model that leaves the image size open, but runs only with images of 20x30."""
    model = open_model("h", "w", after="y = Add(c, b)")
    model.graph.initializer.append(weights("b", 1, 4, 20, 30))
    return model


def declared(*inputs: onnx.ValueInfoProto):
    return declared_inputs(model_with_inputs(*inputs))


def shapes(*inputs: onnx.ValueInfoProto, sample_shapes=None, batch: int = 2) -> list[tuple[int, ...]]:
    """Return the input shapes of a model with these inputs, for samples of the shapes `sample_shapes`."""
    return list(input_shapes(with_sample_shapes(declared(*inputs), sample_shapes), batch).values())


X = tensor_info("x", "n", 3, "h", "w")
MASK = tensor_info("mask", "n", "h", "w")
TOKENS = tensor_info("tokens", "n", "length")
FLAG = tensor_info("flag", element_type=TensorProto.BOOL)
# An input as exporters write it that do not know its extents.
UNKNOWN = tensor_info("x", "?", 3, "?", "?")


def test_an_open_image_has_the_size_that_most_networks_are_made_for():
    assert shapes(X) == shapes(UNKNOWN) == shapes(tensor_info("x", None, 3, None, None)) == [(2, 3, 224, 224)]
    assert shapes(tensor_info("x", "n", "c", 7, "w")) == [(2, 1, 7, 224)]
    assert shapes(tensor_info("x", None, None, None, 3)) == [(2, 224, 224, 3)]
    assert shapes(tensor_info("x", "n", "c", "h", 5)) == [(2, 1, 224, 5)]


def test_what_has_the_same_name_has_the_same_size():
    assert shapes(MASK, X) == [(2, 224, 224), (2, 3, 224, 224)]
    assert shapes(X, MASK, sample_shapes={"x": (3, 20, 30)}) == [(2, 3, 20, 30), (2, 20, 30)]
    assert shapes(tensor_info("y", 7, "n"), X) == [(7, 2), (2, 3, 224, 224)]


def test_all_else_that_is_open_is_one():
    volume = tensor_info("x", "n", 3, "d", "h", "w")
    assert shapes(TOKENS) == [(2, 1)]
    assert shapes(volume) == [(2, 3, 1, 1, 1)]
    assert shapes(TOKENS, sample_shapes=(7,)) == [(2, 7)]
    assert shapes(TOKENS, volume, sample_shapes={"x": (3, 4, 5, 6), "tokens": (9,)}) == [
        (2, 9),
        (2, 3, 4, 5, 6),
    ]


def test_the_shape_asked_for_counts_whatever_a_name_means_elsewhere():
    assert shapes(UNKNOWN, sample_shapes=(3, 64, 80)) == [(2, 3, 64, 80)]
    unknown_mask = tensor_info("mask", "?", "?", "?")
    assert shapes(UNKNOWN, unknown_mask, sample_shapes={"x": (3, 64, 80)}) == [(2, 3, 64, 80), (2, 2, 2)]
    assert shapes(X, MASK, sample_shapes={"x": (3, 20, 30), "mask": (21, 31)}) == [
        (2, 3, 20, 30),
        (2, 21, 31),
    ]


def test_an_input_without_a_rank_gets_that_of_the_shape():
    unranked = tensor_info("x")
    unranked.type.tensor_type.ClearField("shape")
    assert shapes(unranked) == [()]
    assert shapes(FLAG, unranked, sample_shapes=(3, 20, 30)) == [(), (2, 3, 20, 30)]
    inputs_of_model = declared(unranked)
    (note,) = shape_notes(inputs_of_model, inputs_of_model, 2)
    assert "input 'x' [...] open: its samples are single numbers, --input-shape gives another" in note
    model = open_model("h", "w")
    model.graph.input[0].CopyFrom(unranked)
    result = compare(model, device="cpu", batch=2, input_shape=(3, 20, 30))
    assert result.options["input_shapes"] == {"x": [2, 3, 20, 30]} and result.within_tolerance
    assert "x=2x3x20x30" in explain(model, device="cpu", batch=2, input_shape=(3, 20, 30)).convs[0].problem
    for command in (compare, explain):
        with pytest.raises(ConvswapError, match="its samples are single numbers, --input-shape"):
            command(model, device="cpu")


def test_the_only_input_with_open_samples_needs_no_name():
    assert shapes(FLAG, X, tensor_info("y", "n", 5), sample_shapes=(3, 20, 30)) == [
        (),
        (2, 3, 20, 30),
        (2, 5),
    ]


@pytest.mark.parametrize(
    "sample_shapes", [np.array([3, 20, 30]), (3, np.int64(20), 30), [3, 20, 30]], ids=type
)
def test_any_whole_numbers_are_a_shape(sample_shapes):
    (shape,) = shapes(X, sample_shapes=sample_shapes)
    assert shape == (2, 3, 20, 30) and all(type(extent) is int for extent in shape)


@pytest.mark.parametrize(
    ("inputs", "sample_shapes", "expected"),
    [
        (
            [X],
            (3, 20),
            r"'x' \[n, 3, h, w\] takes samples of shape 3,h,w, without the batch, but 3,20 was given",
        ),
        ([X], (2, 3, 20, 30), "3,h,w, without the batch, but 2,3,20,30 was given"),
        ([X], (4, 20, 30), "3,h,w, without the batch, but 4,20,30 was given"),
        ([tensor_info("x", 1, 3, 5, 5)], (3, 7, 7), r"\[1, 3, 5, 5\] takes samples of shape 3,5,5,"),
        ([X], (3, 0, 30), r"'x' \[n, 3, h, w\] was given samples of shape 3,0,30; extents are from 1 to"),
        ([X], (3, 2**31, 5), "extents are from 1 to 2147483647"),
        ([X], {"y": (3, 20, 30)}, "unknown input 'y'; .*x"),
        ([X, TOKENS], (3, 20, 30), "the inputs are x, tokens; name the one that is meant, as in x=3,20,30"),
        ([X], "3,20,30", r"given as '3,20,30'; expected whole numbers, as in \(3, 224, 224\)"),
        ([X], 224, "given as 224; expected whole numbers"),
        ([X], (3, None, 30), r"given as \(3, None, 30\); expected whole numbers"),
        ([FLAG], (1,), r"'flag' \[\] takes samples of shape none, without the batch, but 1 was given"),
    ],
    ids=str,
)
def test_a_shape_that_the_model_cannot_take_is_refused(inputs, sample_shapes, expected):
    with pytest.raises(ConvswapError, match=expected):
        shapes(*inputs, sample_shapes=sample_shapes)


def test_a_shape_for_a_model_without_inputs_is_refused():
    with pytest.raises(ConvswapError, match="the model has no inputs; leave it out"):
        with_sample_shapes([], (3, 20, 30))


def test_every_shape_that_was_open_is_noted():
    def notes(*inputs, sample_shapes=None, batch=4):
        declared_ones = declared(*inputs)
        return shape_notes(declared_ones, with_sample_shapes(declared_ones, sample_shapes), batch)

    beginning = "the model leaves the shape of input 'x' [n, 3, h, w] open: its samples are "
    assert notes(X, FLAG) == [beginning + "3x224x224, --input-shape gives another"]
    assert notes(X, sample_shapes=(3, 20, 30)) == [beginning + "3x20x30, as asked for"]
    assert notes(X, TOKENS, sample_shapes={"x": (3, 20, 30)})[1].endswith(
        "are 1, --input-shape gives another"
    )
    (of_batch,) = notes(tensor_info("x", "n", "n", 5))
    assert "its samples are 4x5," in of_batch
    assert notes(tensor_info("x", "n", 3), tensor_info("z", 1, 3, 5, 5)) == []


def test_compare_uses_the_shape_that_is_asked_for_and_notes_it():
    comparison = compare(open_model("h", "w"), device="cpu", input_shape=(3, 20, 30), batch=2)
    assert json.loads(json.dumps(comparison.to_json()))["options"]["input_shapes"] == {"x": [2, 3, 20, 30]}
    assert any("its samples are 3x20x30, as asked for" in note for note in comparison.notes)
    default_comparison = compare(open_model("h", 6), device="cpu")
    assert default_comparison.options["input_shapes"] == {"x": [1, 3, 224, 6]}
    assert any("its samples are 3x224x6, --input-shape" in note for note in default_comparison.notes)
    assert comparison.within_tolerance and default_comparison.within_tolerance


def test_outputs_without_an_element_agree_with_nothing():
    model = pooled_model()
    assert compare(model, device="cpu", input_shape=(3, 3, 9), time_layers=False).within_tolerance
    result = compare(model, device="cpu", input_shape=(3, 1, 9), time_layers=False)
    assert result.within_tolerance and result.verdict.evidence.startswith("no output has an element")
    assert any("its samples are 3x1x9, as asked" in note for note in result.notes)
    model.graph.node.append(helper.make_node("Identity", ["x"], ["z"]))
    model.graph.output.append(tensor_info("z", *ANY_SHAPE))
    result = compare(model, device="cpu", input_shape=(3, 1, 9), time_layers=False)
    assert any(note.endswith("of which nothing was compared: 1") for note in result.notes)


def test_a_given_shape_may_suit_the_data_that_the_model_was_made_for():
    nodes = "[conv] c = Conv(x, w)  mean = GlobalAveragePool(c)  y = Flatten(mean)"
    kinds = {"inputs": "float[n, 1, s, s] x", "outputs": "float[n, 10] y"}
    model = text_model(nodes, weights("w", 10, 1, 3, 3), **kinds)
    model.metadata_props.add(key="convswap.dataset", value="synthetic")
    options = {"device": "cpu", "images": 4, "time_layers": False}
    assert compare(model, **options).dataset == "random"
    assert compare(model, input_shape=(1, 28, 28), **options).dataset == "synthetic"
    with pytest.raises(ConvswapError, match="use --data random, or --input-shape 1,28,28"):
        compare(model, data="synthetic", **options)


def test_explain_and_tune_plan_for_the_shape_that_is_asked_for():
    model = open_model("h", "w")
    default_plan = explain(model, device="cpu", batch=5)
    assert "x=5x3x224x224" in default_plan.convs[0].problem
    assert any("its samples are 3x224x224, --input-shape" in note for note in default_plan.notes)
    planned = explain(model, device="cpu", input_shape={"x": (3, 20, 30)}, batch=5)
    assert "x=5x3x20x30" in planned.convs[0].problem
    tuned = tune(model, device="cpu", input_shape=(3, 6, 7), runs=1)
    assert "x=1x3x6x7" in tuned.problems[0].problem


def test_shapes_that_follow_only_from_a_run_are_for_the_shape_that_is_asked_for():
    # The image has as many pixels as x has nonzero values, which shape inference cannot know.
    nodes = """
      places = NonZero(x)
      floats = Cast <to = 1> (places)
      axes = Constant <value_ints = [0, 1]> ()
      image = Unsqueeze(floats, axes)
      [conv] y = Conv(image, w)"""
    model = text_model(nodes, weights("w", 2, 1, 1, 1), inputs="float[n, 3, h, l] x")
    planned = explain(model, device="cpu", input_shape=(3, 5, 7))
    assert "x=1x1x4x105" in planned.convs[0].problem


@pytest.mark.extended
def test_first_run_uses_the_shape_that_is_asked_for():
    result = first_run(of_20_by_30(), device="cpu", processes=1, input_shape={"x": (3, 20, 30)})
    assert result["convswap_ms"] > 0 and result["input_shapes"] == {"x": [1, 3, 20, 30]}
    assert any("as asked for" in note for note in result["notes"])


@pytest.mark.parametrize("command", [compare, first_run])
def test_a_made_up_shape_that_fails_is_named(command):
    with pytest.raises(ConvswapError, match=r"Add.*its samples are 3x224x224, --input-shape gives another"):
        command(of_20_by_30(), device="cpu")


# The function that each command calls.
COMMANDS = {
    "comparison.compare.compare_with": ["compare", "model.onnx"],
    "planning.explain.explain": ["explain", "model.onnx"],
    "planning.tune.tune": ["tune", "model.onnx"],
    "profiling.profile.profile": ["profile", "model.onnx"],
    "bench.first_run.first_run": ["bench", "--first-run", "model.onnx"],
}


@pytest.mark.parametrize("function", COMMANDS)
def test_command_line_passes_the_shapes_on(function, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(open_model("h", "w"), "model.onnx")
    passed_shapes = []

    module, _, name = function.rpartition(".")
    right = getattr(importlib.import_module(f"convswap.{module}"), name)

    @functools.wraps(right)
    def refuse(*arguments, **options):
        arguments_by_name = vars(arguments[1]) if len(arguments) > 1 else options
        passed_shapes.append(arguments_by_name.get("input_shape"))
        raise ConvswapError("seen")

    monkeypatch.setattr(f"convswap.{function}", refuse)
    for shapes_of in ([], ["3,20,30"], ["x=3,20,30"], ["x=3,20,30", "m=a=5"]):
        options = [word for shape in shapes_of for word in ("--input-shape", shape)]
        assert main([*COMMANDS[function], *options]) == 2
    assert passed_shapes == [None, [3, 20, 30], {"x": [3, 20, 30]}, {"x": [3, 20, 30], "m=a": [5]}]
    assert capsys.readouterr().err.splitlines()[-1] == "convswap: seen"


@pytest.mark.parametrize(
    "command", [["compare", "--no-layers"], ["explain"], ["bench", "--first-run"]], ids=str
)
def test_command_prints_what_was_made_up(command, tmp_path, monkeypatch, capsys):
    module = importlib.import_module("convswap.bench.first_run")
    monkeypatch.setattr(module, "_run_alone", lambda side, job: {"session_ms": 1.0, "run_ms": 1.0})
    monkeypatch.chdir(tmp_path)
    onnx.save(open_model("h", "w"), "model.onnx")
    assert main([*command, "model.onnx", "--device", "cpu"]) == 0
    assert "its samples are 3x224x224, --input-shape" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--input-shape", "3,x,30"], "--input-shape '3,x,30': expected whole numbers"),
        (["--input-shape", "x=3,a"], "--input-shape 'x=3,a': expected whole numbers"),
        (["--input-shape", "=3,20,30"], "--input-shape '=3,20,30': expected whole numbers"),
        (["--input-shape", "3,-1,30"], "--input-shape '3,-1,30': expected whole numbers"),
        (["--input-shape="], "--input-shape '': expected whole numbers"),
        (["--input-shape", "3,20,30", "--input-shape", "x=3,20,30"], "'x=3,20,30' is one too many"),
        (["--input-shape", "x=3,20,30", "--input-shape", "3,20,30"], "'3,20,30' is one too many"),
        (["--input-shape", "x=3,20,30", "--input-shape", "x=3,20,30"], "'x=3,20,30' is one too many"),
        (["--input-shape", "y=3,20,30"], "unknown input 'y'"),
    ],
    ids=str,
)
def test_command_line_refuses_other_shapes_in_one_line(arguments, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(open_model("h", "w"), "model.onnx")
    assert main(["explain", "model.onnx", "--device", "cpu", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize("shape", ["3,2147483647,2147483647", "3,9000000,9000000"])
def test_more_than_the_memory_holds_is_one_line(shape, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(open_model("h", "w"), "model.onnx")
    assert main(["compare", "model.onnx", "--device", "cpu", "--input-shape", shape]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("convswap: the memory does not suffice: ")
    assert line.endswith("; give a smaller batch, or smaller or fewer images")


def test_layers_of_a_suite_have_shapes_of_their_own(capsys):
    assert main(["bench", "course", "--input-shape", "3,20,30"]) == 2
    assert "--input-shape has no meaning beside a suite" in capsys.readouterr().err
