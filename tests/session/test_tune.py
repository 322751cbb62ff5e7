"""`convswap tune` measures every algorithm on every problem, slow ones briefly, and stores the results."""

from __future__ import annotations

import errno
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import convswap
import numpy as np
import onnx
import pytest
from card_algorithms import first_on_card
from command_line import only_line_of_refusal
from convswap import _native
from convswap.cli.main import main
from convswap.doctor import diagnosis as doctor
from convswap.errors import ConvswapError
from convswap.planning.tune import TunedProblem, print_tuning
from convswap.runtime.tuning import read_table
from convswap.timing.sampler import Times
from onnx import TensorProto
from op_sessions import make_session, run
from printed import printed
from swap_models import (
    ANY,
    conv_and_activation,
    input_array,
    make_model,
    tensor_info,
    text_model,
    three_convs,
    weights,
)
from tuning_files import line, write


def test_results_are_stored_and_used_by_a_session(table):
    result = convswap.tune(three_convs(), device="cpu", batch=2, runs=3)
    assert [tuned.nodes for tuned in result.problems] == [("a", "c"), ("b",)]
    entries, damage = read_table()
    assert damage == "" and {entry.problem for entry in entries} == {
        tuned.problem for tuned in result.problems
    }
    for entry in entries:
        assert (entry.device, entry.version) == (_native.tuning_device("cpu"), _native.__version__)
        assert entry.milliseconds.keys() == {"direct", "reference"}
        assert entry.milliseconds[entry.algorithm] == min(entry.milliseconds.values())
    plan = convswap.explain(three_convs(), device="cpu", batch=2, algorithm="tuned")
    assert {conv.explanation["decided_by"] for conv in plan.convs} == {"tuned"}


def test_the_fastest_is_what_a_tuned_session_runs(table, monkeypatch):
    """With measurements that contradict the rule."""
    times = {"direct": 2.0, "reference": 1.0}
    # The package's `tune` is the function.
    monkeypatch.setattr(
        sys.modules["convswap.planning.tune"],
        "measure",
        lambda samples, rule: {name: Times(times[name], times[name], times[name], 20) for name in samples},
    )
    result = convswap.tune(three_convs(), device="cpu", batch=2)
    assert [(tuned.best, tuned.compared, tuned.gain) for tuned in result.problems] == [
        ("reference", "direct", 2.0)
    ] * 2
    x = input_array(2, 2, 6, 7)
    outputs = {
        name: run(
            make_session(convswap.swap(three_convs(), algorithm=name).to_proto().SerializeToString()), x
        )
        for name in ("tuned", "reference", "auto")
    }
    assert np.array_equal(outputs["tuned"], outputs["reference"])
    assert not np.array_equal(outputs["tuned"], outputs["auto"])


@pytest.mark.parametrize("kind", ["FLOAT16", "DOUBLE"])
def test_other_element_types_are_measured(table, kind):
    result = convswap.tune(three_convs(TensorProto.DataType.Value(kind)), device="cpu", runs=1)
    able = {"FLOAT16": {"direct", "reference"}, "DOUBLE": {"reference"}}[kind]
    assert all(tuned.times.keys() == able for tuned in result.problems)


def test_bfloat16_between_casts_is_measured(table):
    model = three_convs(TensorProto.BFLOAT16)
    model.graph.input[0].CopyFrom(tensor_info("f", 1, 2, 6, 7))
    model.graph.output[0].CopyFrom(tensor_info("g", None, None, None, None))
    nodes = list(model.graph.node)
    cast = onnx.helper.make_node("Cast", ["f"], ["x"], to=TensorProto.BFLOAT16)
    back = onnx.helper.make_node("Cast", ["y"], ["g"], to=TensorProto.FLOAT)
    del model.graph.node[:]
    model.graph.node.extend([cast, *nodes, back])
    result = convswap.tune(model, device="cpu", runs=1)
    assert all(tuned.problem.startswith("bfloat16 x=") for tuned in result.problems)
    assert len(read_table()[0]) == 2


def test_weights_that_the_model_computes_are_measured(table):
    model = three_convs()
    model.graph.initializer[0].name = "u"
    model.graph.node.insert(0, onnx.helper.make_node("Neg", ["u"], ["w"], name="negated"))
    assert len(convswap.tune(model, device="cpu", runs=1).problems) == 2


def test_only_measures_the_nodes_that_match(table):
    result = convswap.tune(three_convs(), device="cpu", runs=1, only="^b$")
    assert [tuned.nodes for tuned in result.problems] == [("b",)]


def test_convs_without_an_output_are_not_measured(table):
    model = make_model(
        list(three_convs().graph.node),
        list(three_convs().graph.initializer),
        inputs=[tensor_info("x", 0, 2, 6, 7)],
    )
    with pytest.raises(ConvswapError, match="nothing to measure"):
        convswap.tune(model, device="cpu", runs=1)


def test_where_nothing_can_be_measured_the_reason_is_given(table):
    branch = f"branch () => ({ANY} y) {{ [inner] y = Conv <pads = [1, 1, 1, 1]> (x, w) }}"
    nodes = f"z = If <then_branch = {branch}, else_branch = {branch}> (flag)"
    kinds = {"inputs": "float[1, 2, 6, 7] x, bool flag", "outputs": f"{ANY} z"}
    model = text_model(nodes, weights("w", 2, 2, 3, 3), **kinds)
    with pytest.raises(ConvswapError, match="no Conv that can be measured: 2 swapped Conv in subgraphs"):
        convswap.tune(model, device="cpu", runs=1)


def test_command_shows_progress_prints_the_table_and_writes_json(table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(three_convs(), "model.onnx")
    arguments = ["--device", "cpu", "--batch", "3", "--runs", "2", "--json", "tuning.json"]
    assert main(["tune", "model.onnx", *arguments]) == 0
    captured = capsys.readouterr()
    assert "measuring problem 1 of 2: a and 1 more of the same" in captured.err
    assert max(map(len, captured.out.splitlines())) <= 120
    for expected in ("reference", "direct", "against the planner's", "Problems stored in"):
        assert expected in captured.out
    report = json.loads(Path("tuning.json").read_text())
    assert (report["schema"], report["batch"], report["device"]) == (1, 3, "cpu")
    for problem in report["problems"]:
        assert problem.keys() == {"nodes", "problem", "best", "compared", "gain", "algorithms"}
        assert problem["gain"] >= 1 and problem["compared"] == "direct"
        assert problem["algorithms"]["direct"]["median_ms"] > 0
    assert str(tmp_path) not in Path("tuning.json").read_text()


def test_printed_times_mark_what_was_stopped_early(table):
    times = {
        "direct": Times(1.0, 1.0, 1.0, 20),
        "reference": Times(30.0, 30.0, 30.0, 1, stopped_early=True),
    }
    result = convswap.tune(three_convs(), device="cpu", runs=1)
    problem = TunedProblem(("a",), "a problem", times, "direct")
    text = printed(print_tuning, replace(result, problems=(problem,)))
    assert "reference 30.0*" in text and "* clearly slower" in text


def test_an_algorithm_asked_for_is_what_the_best_is_set_against(table):
    result = convswap.tune(three_convs(), device="cpu", runs=1, algorithm="reference")
    assert {tuned.compared for tuned in result.problems} == {"reference"}


def test_a_damaged_table_is_mended_with_one_warning(table, tmp_path, capsys):
    write(table, "damaged", line("other", "direct", "cpu"))
    path = tmp_path / "model.onnx"
    onnx.save(three_convs(), path)
    assert main(["tune", str(path), "--device", "cpu", "--runs", "1"]) == 0
    warnings = [text for text in capsys.readouterr().err.splitlines() if "damaged" in text]
    assert len(warnings) == 1
    assert (len(read_table()[0]), read_table()[1]) == (3, "")


@pytest.mark.parametrize("command", ["compare", "bench"])
def test_other_commands_warn_once_of_a_damaged_table(command, table, tmp_path, capsys):
    write(table, "damaged")
    path = tmp_path / "model.onnx"
    onnx.save(three_convs(), path)
    arguments = {"compare": [str(path)], "bench": ["--layers", "2017", "--batch", "1"]}[command]
    assert main([command, *arguments, "--device", "cpu", "--algorithm", "tuned"]) == 0
    captured = capsys.readouterr()
    assert len([text for text in captured.err.splitlines() if "is damaged" in text]) == 1
    assert "direct" in captured.out


def test_doctor_names_the_table_and_its_damage(table):
    def finding() -> doctor.Finding:
        return next(each for each in doctor.diagnose() if each.name == "tuning table")

    assert (finding().ok, finding().advice) == (None, "convswap tune MODEL")
    write(table, line("other", "direct", "cpu"))
    assert finding().ok is True and f"{table}, problems measured: 1" in finding().found
    write(table, "damaged")
    assert finding().ok is None and "damaged: line 2" in finding().found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["missing.onnx"], "missing.onnx"),
        (["ece408-2019sp", "--runs", "0"], "runs must be at least 1, but 0 was given"),
        (["ece408-2019sp", "--only", "("], "'(' is not a regular expression"),
        (["ece408-2019sp", "--only", "conv9"], "matches 'conv9'; the model has conv1, conv2"),
        (["ece408-2019sp", "--algorithm", "tunde"], "did you mean 'tuned'"),
        (["ece408-2019sp", "--batch", "-1"], "batch must be at least 1"),
    ],
)
def test_bad_usage_is_one_line(arguments, expected, table, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert expected in only_line_of_refusal(capsys, "tune", *arguments, "--device", "cpu")
    assert not table.exists()


def test_a_table_that_cannot_be_written_is_refused_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path))
    assert "it is a folder" in only_line_of_refusal(
        capsys, "tune", "ece408-2019sp", "--device", "cpu", "--batch", "1"
    )


@pytest.mark.parametrize("fault", ["no folder", "full disk"])
def test_a_cache_that_cannot_be_written_costs_the_table_but_not_the_times(
    monkeypatch, tmp_path, capsys, fault
):
    monkeypatch.delenv("CONVSWAP_TUNING", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if fault == "no folder":
        (tmp_path / "cache").write_text("")
    else:
        monkeypatch.setattr("convswap.output.files._replace", full_disk)
    onnx.save(three_convs(), tmp_path / "model.onnx")
    assert main(["tune", str(tmp_path / "model.onnx"), "--device", "cpu", "--runs", "1"]) == 2
    captured = capsys.readouterr()
    assert "reference" in captured.out and "they could not be stored" in captured.out
    assert captured.err.splitlines()[-1].startswith("convswap: the measurements could not be stored: cannot ")


def full_disk(*_written):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.gpu
def test_a_card_is_measured_by_its_own_clock_and_named_in_the_table(table, cuda):
    result = convswap.tune("ece408-2019sp", device="cuda", batch=64)
    able = {entry.name for entry in _native.catalog() if entry.device == "cuda"}
    for tuned in result.problems:
        assert {first_on_card("few_channels", "tiled"), "naive"} <= tuned.times.keys() <= able
        assert tuned.times[tuned.best].runs == 20
    entries, _ = read_table()
    assert {entry.device for entry in entries} == {f"cuda {_native.cuda_devices()[0]['name']}"}
    plan = convswap.explain("ece408-2019sp", device="cuda", batch=64, algorithm="tuned")
    assert [conv.explanation["algorithm"] for conv in plan.convs] == [tuned.best for tuned in result.problems]


@pytest.mark.parametrize("option", ["--fuse", "fused before"])
def test_fused_convs_are_measured_and_a_session_runs_the_fastest(option, table, tmp_path, monkeypatch):
    """With measurements that contradict the rule; the problem's text must be equal to the session's."""
    times = {"direct": 2.0, "reference": 1.0}
    runs = []

    def set_times(samples, rule):
        runs.extend(sample(1) for sample in samples.values())
        return {name: Times(times[name], times[name], times[name], 20) for name in samples}

    monkeypatch.setattr(sys.modules["convswap.planning.tune"], "measure", set_times)
    onnx.save(conv_and_activation(), tmp_path / "model.onnx")
    convswap.swap(conv_and_activation(), fuse=True, algorithm="tuned").save(tmp_path / "fused.onnx")
    name, *options = ["model.onnx", option] if option == "--fuse" else ["fused.onnx"]
    assert main(["tune", str(tmp_path / name), *options, "--device", "cpu", "--batch", "2"]) == 0
    assert len(runs) == 4 and min(runs) > 0
    problems = [entry.problem for entry in read_table()[0]]
    assert sorted(problem.partition(" then=")[2] for problem in problems) == [
        "Clip(-3.40282347e+38,6) MaxPool 2x2 strides=2x2 pads=0x0x0x0",
        "residual HardSwish",
    ]
    x = input_array(2, 2, 6, 8)
    outputs = {
        algorithm: run(
            make_session(
                convswap.swap(conv_and_activation(), fuse=True, algorithm=algorithm)
                .to_proto()
                .SerializeToString()
            ),
            x,
        )
        for algorithm in ("tuned", "reference", "auto")
    }
    assert np.array_equal(outputs["tuned"], outputs["reference"])
    assert not np.array_equal(outputs["tuned"], outputs["auto"])


@pytest.mark.gpu
def test_fused_convs_are_measured_on_a_card(table, cuda):
    result = convswap.tune(conv_and_activation(), device="cuda", batch=64, fuse=True)
    assert ["then=" in tuned.problem for tuned in result.problems] == [True, True]
    plan = convswap.explain(conv_and_activation(), device="cuda", batch=64, algorithm="tuned", fuse=True)
    assert [conv.explanation["decided_by"] for conv in plan.convs] == ["tuned", "tuned"]
