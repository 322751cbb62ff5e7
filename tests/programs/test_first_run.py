"""`convswap bench --first-run`: session creation and first run of both sides, in fresh processes in turn."""

from __future__ import annotations

import importlib
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
from comparisons import saved, small_model
from convswap.bench import first_run as module
from convswap.bench import first_run_process as process
from convswap.bench.first_run import first_run
from convswap.cli.main import main
from convswap.comparison.compare import compare
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from convswap.runtime import sessions
from convswap.runtime.layers import Capture
from convswap.runtime.sessions import BoundRun
from onnx import helper
from swap_models import make_model, weights


@pytest.fixture
def processes(monkeypatch):
    """Replace the processes by a function whose times grow; return the sides in running order."""
    ran: list[str] = []

    def run(side, job):
        ran.append(side)
        return {"session_ms": 10.0 * len(ran), "run_ms": 1.0}

    monkeypatch.setattr(module, "_run_alone", run)
    return ran


def test_both_sides_run_in_processes_of_their_own(tmp_path, device):
    result = first_run(saved(small_model(), tmp_path), batch=2, device=device, processes=1)
    assert (result["device"], result["batch"], result["precision"]) == (device, 2, "tf32")
    for side in ("default", "convswap"):
        assert result[f"{side}_session_ms"] > 0 and result[f"{side}_run_ms"] > 0
        assert result[f"{side}_ms"] == pytest.approx(
            result[f"{side}_session_ms"] + result[f"{side}_run_ms"], rel=1e-9
        )
    json.dumps(result, allow_nan=False)


def test_only_our_side_runs_the_swapped_model(tmp_path, monkeypatch):
    domains = {}

    def run(side, job):
        domains[side, job["swapped"]] = {node.domain for node in onnx.load(job["model"]).graph.node}
        return {"session_ms": 1.0, "run_ms": 1.0}

    monkeypatch.setattr(module, "_run_alone", run)
    first_run(saved(small_model(), tmp_path), device="cpu", processes=1)
    assert domains == {("default", False): {""}, ("convswap", True): {"", "convswap"}}


def test_the_order_of_the_sides_turns_round_and_the_first_of_each_does_not_count(processes):
    result = first_run(small_model(), device="cpu", processes=2)
    assert processes == ["default", "convswap", "convswap", "default", "default", "convswap"]
    # The third and sixth process ran our side, the fourth and fifth the default.
    assert result["convswap_session_ms"] == result["default_session_ms"] == 45.0
    assert result["convswap_ms"] == result["default_ms"] == 46.0


def test_command_prints_the_ratio_last_and_writes_the_figures(tmp_path, monkeypatch, capsys, processes):
    # The line would be wrapped after a folder with a long name.
    monkeypatch.chdir(tmp_path)
    path, file = Path(saved(small_model(), tmp_path)).name, tmp_path / "first.json"
    arguments = ["--first-run", path, "--batch", "3", "--device", "cpu", "--json", str(file)]
    assert main(["bench", *arguments, "--algorithm", "reference"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "model.onnx, batch 3, precision tf32, algorithm reference"
    report = json.loads(file.read_text())
    ratio = report["convswap_ms"] / report["default_ms"]
    assert lines[-1] == f"convswap takes {ratio:.2f} times what the default does until its first answer."
    assert (report["batch"], report["processes"]) == (3, 5)


def test_the_reason_for_the_cpu_is_printed_unless_it_was_asked_for(capsys, monkeypatch, processes):
    monkeypatch.setattr(
        "convswap.runtime.device._missing_for_cuda", lambda: "no NVIDIA card or driver was found"
    )
    assert main(["bench", "--first-run", "ece408-2017-low"]) == 0
    assert "default CPU provider: no NVIDIA card or driver was found" in capsys.readouterr().out


def test_fewer_processes_than_one_are_refused():
    with pytest.raises(ConvswapError, match="processes must be at least 1, but 0 was given"):
        first_run(small_model(), device="cpu", processes=0)


def test_failure_in_a_process_is_one_line_that_names_the_side(monkeypatch):
    result = subprocess.CompletedProcess([], 2, stdout="", stderr="warning\nno such card\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: result)
    with pytest.raises(ConvswapError, match=r"^the first run of the default side failed: no such card$"):
        first_run(small_model(), device="cpu")


def test_process_that_a_signal_ended_is_not_explained_by_a_warning_before(monkeypatch):
    result = subprocess.CompletedProcess([], -9, stdout="", stderr="a warning\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: result)
    with pytest.raises(ConvswapError, match=r"default side failed: its process ended with status -9$"):
        first_run(small_model(), device="cpu")


@pytest.fixture
def recorded_events(monkeypatch):
    """Record in order what a process does with the model, the session, the inputs and the clock."""
    events: list[str] = []

    def watch(owner, name, event):
        call = getattr(owner, name)

        def watched(*arguments, **options):
            events.append(event)
            return call(*arguments, **options)

        monkeypatch.setattr(owner, name, watched)

    def clock() -> float:
        events.append("clock")
        return float(len(events))

    monkeypatch.setattr(process, "time", SimpleNamespace(perf_counter=clock))
    watch(process, "on_device", "inputs")
    watch(onnx.ModelProto, "SerializeToString", "serialise")
    watch(sessions, "register", "register")
    watch(process, "check_session", "check")
    watch(onnxruntime, "InferenceSession", "session")
    watch(BoundRun, "__init__", "bind")
    watch(BoundRun, "once", "run")
    return events


@pytest.mark.parametrize("swapped", [False, True], ids=["default", "convswap"])
def test_clock_runs_for_session_creation_and_first_run_alone(swapped, recorded_events, tmp_path, capsys):
    model = swap(small_model()).to_proto() if swapped else small_model()
    job = {
        "model": saved(model, tmp_path),
        "swapped": swapped,
        "device": "cpu",
        "precision": "tf32",
        "input_shapes": {"x": [2, 3, 12, 12]},
    }
    recorded_events.clear()
    assert process.main(json.dumps(job)) == 0
    making = ["clock", "register", "session", "clock"] if swapped else ["clock", "session", "clock"]
    running = ["clock", "run", "clock"]
    assert recorded_events == ["inputs", "inputs", "serialise", *making, "check", "bind", *running]
    times = json.loads(capsys.readouterr().out)
    assert times == {"session_ms": 1e3 * (len(making) - 1), "run_ms": 2e3}


def test_driver_is_warm_for_a_model_without_inputs_too(monkeypatch, tmp_path):
    put: list[int] = []
    on_device = process.on_device

    def put_there(feeds, device):
        put.append(len(feeds))
        return on_device(feeds, device)

    monkeypatch.setattr(process, "on_device", put_there)
    conv = helper.make_node("Conv", ["x", "w"], ["y"])
    model = make_model([conv], [weights("x", 1, 3, 8, 8), weights("w", 4, 3, 3, 3)], inputs=[])
    job = {
        "model": saved(model, tmp_path),
        "swapped": False,
        "device": "cpu",
        "precision": "tf32",
        "input_shapes": {},
    }
    assert process.main(json.dumps(job)) == 0
    assert put == [1, 0]


def test_process_says_what_ails_a_model_that_does_not_run(capfd):
    job = {
        "model": "nowhere.onnx",
        "swapped": False,
        "device": "gpu",
        "precision": "tf32",
        "input_shapes": {},
    }
    assert process.main(json.dumps(job)) == 2
    assert capfd.readouterr().err.startswith("unknown device 'gpu'")


def test_process_short_of_memory_says_so_in_the_words_of_the_command(monkeypatch, tmp_path, capfd):
    def refuse(*_):
        raise MemoryError("Unable to allocate 12.2 TiB")

    monkeypatch.setattr(process, "on_device", refuse)
    job = {"model": saved(small_model(), tmp_path), "swapped": False}
    job |= {"device": "cpu", "precision": "tf32", "input_shapes": {"x": [1, 3, 12, 12]}}
    assert process.main(json.dumps(job)) == 2
    assert capfd.readouterr().err == (
        "the memory does not suffice: Unable to allocate 12.2 TiB; "
        "give a smaller batch, or smaller or fewer images\n"
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--against", "all"], "--against has no meaning beside --first-run"),
        (["--layers", "conv1"], "--layers has no meaning beside --first-run"),
        (["alexnet"], "SUITE has no meaning beside --first-run"),
        (["--alternate"], "--alternate has no meaning beside --first-run"),
        (["--batch", "1,2"], "--first-run takes one batch size, but --batch 1,2 was given"),
        (["--precision", "float16"], "float16"),
        pytest.param(
            ["--algorithm", "naive"],
            "algorithm 'naive' is not for the device cpu, which has auto, tuned, direct",
        ),
    ],
    ids=str,
)
def test_what_a_first_run_would_ignore_is_refused(arguments, expected, capsys):
    assert main(["bench", "--first-run", "ece408-2019fa", "--device", "cpu", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_first_run_of_neither_side_of_a_comparison_is_that_of_the_process(monkeypatch):
    orchestration = importlib.import_module("convswap.comparison.compare")
    recorded: list[str] = []
    shapes, measure = Capture.shapes, orchestration.measure

    def run_before(self, feeds):
        recorded.append("run")
        return shapes(self, feeds)

    def timed(*arguments, **options):
        recorded.append("timed")
        return measure(*arguments, **options)

    monkeypatch.setattr(Capture, "shapes", run_before)
    monkeypatch.setattr(orchestration, "measure", timed)
    compare(small_model(), device="cpu")
    assert recorded[:2] == ["run", "timed"]
