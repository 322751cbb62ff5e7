"""Every command feeds a model what its user gives: its shapes are planned, its values run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import convswap
import numpy as np
import onnx
import pytest
from command_line import only_line_of_refusal, refusal
from comparisons import small_model
from convswap.bench.first_run import first_run
from convswap.bench.first_run_process import main as run_first
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.inputs.given import GivenInputs
from convswap.profiling.profile import profile_with
from convswap.runtime.device import Device
from onnx import TensorProto, helper
from PIL import Image
from pretend_collector import PretendCollector
from swap_models import make_model, tensor_info, weights
from tuning_files import table

__all__ = ["table"]

CPU = Device("cpu", "asked for")
FIRST_RUN = importlib.import_module("convswap.bench.first_run")
NOTE = "whole-number input 'size' [4] is fed zeros and ones; --inputs gives it real values"


def resized() -> onnx.ModelProto:
    """Return a Conv of 3x3 behind a Resize of x [n, 3, 16, 16] to what the input size says."""
    nodes = [
        helper.make_node("Resize", ["x", "", "", "size"], ["r"]),
        helper.make_node("Conv", ["r", "w"], ["y"], name="conv"),
    ]
    inputs = [tensor_info("x", "n", 3, 16, 16), tensor_info("size", 4, element_type=TensorProto.INT64)]
    return make_model(nodes, [weights("w", 4, 3, 3, 3)], inputs=inputs)


def given(batch: int = 2) -> dict[str, np.ndarray]:
    data = np.random.default_rng(0).standard_normal((batch, 3, 16, 16))
    return {"x": data, "size": np.array([batch, 3, 10, 12])}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(resized(), "model.onnx")
    np.savez("inputs.npz", **given())
    return tmp_path


def test_the_shapes_of_what_is_given_are_planned():
    plan = convswap.explain(resized(), device="cpu", inputs=given())
    assert plan.batch == 2 and "x=2x3x10x12" in plan.convs[0].problem
    assert not any("whole-number" in note for note in plan.notes)
    open_images = small_model(side="s")
    plan = convswap.explain(open_images, device="cpu", inputs={"x": np.zeros((3, 3, 9, 9))})
    assert plan.batch == 3 and "x=3x3x9x9" in plan.convs[0].problem
    assert any("open: what was given is 3x3x9x9" in note for note in plan.notes)
    plan = convswap.explain(open_images, device="cpu", batch=7, inputs={"x": np.zeros((3, 3, 9, 9))})
    assert plan.batch == 7 and "x=7x3x9x9" in plan.convs[0].problem


def test_tune_measures_the_shapes_of_what_is_given(here, table):
    tuning = convswap.tune(resized(), device="cpu", inputs="inputs.npz", runs=1)
    assert "x=2x3x10x12" in tuning.problems[0].problem


def test_warm_plans_the_shapes_and_the_batch_of_what_is_given(monkeypatch):
    warm = importlib.import_module("convswap.planning.warm")
    problems: list[str] = []

    def kernels(found, card, *, is_here):
        problems.extend(conv.problem.text for conv in found.convs)
        return [("kernel", 90)]

    monkeypatch.setattr(warm, "_kernels", kernels)
    monkeypatch.setattr(warm, "_compile", lambda *_: 1)
    monkeypatch.setattr(warm._native, "kernel_compiler", lambda: {"why_not": ""})
    warmed = warm.warm(resized(), compute_capabilities=[90], inputs=given())
    assert warmed.batches == (2,) and ["x=2x3x10x12" in problem for problem in problems] == [True]
    fixed = small_model(batch=3)
    assert warm.warm(fixed, compute_capabilities=[90]).batches == (3,)
    assert warm.warm(small_model(), compute_capabilities=[90]).batches == warm.BATCHES
    assert warm.warm(small_model(), compute_capabilities=[90], batches=[4]).batches == (4,)


def test_compare_and_optimize_run_what_is_given():
    found = convswap.compare(resized(), device="cpu", inputs=given(), time_layers=False)
    assert found.within_tolerance and (found.images, found.batch, found.dataset) == (2, 2, "given")
    assert not any("whole-number" in note for note in found.notes)
    optimized = convswap.optimize(resized(), device="cpu", inputs=given())
    assert [list(node.default_ms) for node in optimized.nodes] == [[2]]
    assert not any("whole-number" in note for note in optimized.notes)


def test_several_samples_of_a_fixed_batch_are_all_compared():
    values = np.random.default_rng(0).standard_normal((5, 3, 12, 12))
    found = convswap.compare(small_model(batch=1), device="cpu", inputs={"x": values}, time_layers=False)
    assert (found.images, found.batch) == (5, 1) and found.within_tolerance


def test_profile_runs_what_is_given(monkeypatch):
    recording = importlib.import_module("convswap.profiling.profile")
    fed = {}
    record = recording.record

    def watched(models, feeds, *arguments, **options):
        fed.update(feeds)
        return record(models, feeds, *arguments, **options)

    monkeypatch.setattr(recording, "record", watched)
    usual = {"images": None, "batch": None, "precision": "tf32", "algorithm": "auto", "only": None}
    usual |= {"fuse": False, "against": None, "runs": 1, "resident": False, "input_shape": None}
    options = {**usual, "data": None, "progress": lambda _: None}
    found = profile_with(PretendCollector(), CPU, resized(), **options, inputs=given())
    assert found.batch == 2 and fed["size"].tolist() == [2, 3, 10, 12]
    assert not any("whole-number" in note for note in found.notes)
    with pytest.raises(ConvswapError, match="data set random and inputs were both given"):
        profile_with(PretendCollector(), CPU, resized(), **{**options, "data": "random"}, inputs=given())
    plain = small_model()
    plain.graph.input.append(tensor_info("size", 4, element_type=TensorProto.INT64))
    assert NOTE in profile_with(PretendCollector(), CPU, plain, **options).notes


def test_first_run_is_fed_what_is_given(monkeypatch, capsys):
    jobs = []

    def run(side, job):
        jobs.append(job)
        assert run_first(json.dumps(job)) == 0
        return json.loads(capsys.readouterr().out)

    monkeypatch.setattr(FIRST_RUN, "_run_alone", run)
    found = first_run(resized(), device="cpu", processes=1, inputs=given())
    assert found["batch"] == 2 and found["input_shapes"] == {"x": [2, 3, 16, 16], "size": [4]}
    assert len(jobs) == 4 and found["notes"] == []


def test_whole_numbers_that_nobody_gave_are_told():
    model = small_model()
    model.graph.input.append(tensor_info("size", 4, element_type=TensorProto.INT64))
    assert NOTE in convswap.compare(model, device="cpu", time_layers=False).notes
    assert NOTE in convswap.explain(model, device="cpu").notes
    assert NOTE in convswap.optimize(model, device="cpu").notes


@pytest.mark.parametrize("command", [["compare"], ["optimize", "-o", "out.onnx"], ["bench", "--first-run"]])
def test_a_model_that_made_up_numbers_do_not_suit_ends_with_the_option(here, capsys, command):
    assert refusal(capsys, *command, "model.onnx", "--device", "cpu").endswith(NOTE)


# The command line


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "model.onnx", "--no-layers"],
        ["optimize", "model.onnx", "-o", "out.onnx"],
        ["explain", "model.onnx"],
        ["tune", "model.onnx", "--runs", "1"],
        ["bench", "--first-run", "model.onnx"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_inputs(here, command, monkeypatch, table):
    monkeypatch.setattr(FIRST_RUN, "_run_alone", lambda *_: {"session_ms": 1.0, "run_ms": 1.0})
    status = main([*command, "--device", "cpu", "--inputs", "inputs.npz"])
    # Whether anything is gained depends on the machine.
    assert status in ((0, 1) if command[0] == "optimize" else (0,))


def test_images_of_a_folder_are_compared(here):
    Path("images").mkdir()
    for number in range(3):
        Image.new("RGB", (20, 30), (number, 99, 3)).save(f"images/{number}.png")
    onnx.save(small_model(), "small.onnx")
    arguments = ["--inputs", "images", "--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
    common = ["small.onnx", "--device", "cpu", "--no-layers", "--json", "found.json"]
    assert main(["compare", *common, *arguments]) == 0
    found = json.loads(Path("found.json").read_text())
    assert (found["images"], found["dataset"]) == (3, "given")
    with_inputs = GivenInputs("images", mean=0.5)
    assert convswap.compare(small_model(), device="cpu", inputs=with_inputs, time_layers=False).images == 3


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--inputs", "nowhere.npz"], "cannot read the inputs 'nowhere.npz': No such file or directory"),
        (["--mean", "0.5"], "--mean has no meaning without --inputs and a folder of images"),
        (["--inputs", "inputs.npz", "--std", "0.2"], "std is of images, but 'inputs.npz' has arrays"),
        (["--inputs", "images", "--mean", "a,b"], "--mean 'a,b': expected numbers with commas between"),
        (["--inputs", "model.onnx"], "it is no .npz file"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused_in_one_line(here, capsys, options, expected):
    assert expected in only_line_of_refusal(capsys, "explain", "model.onnx", "--device", "cpu", *options)


@pytest.mark.parametrize("option", [["--inputs", "inputs.npz"], ["--mean", "1"], ["--scale", "2"]], ids=str)
def test_a_suite_takes_no_inputs(here, capsys, option):
    assert f"{option[0]} has no meaning beside a suite" in refusal(capsys, "bench", "course", *option)
