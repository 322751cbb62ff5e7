"""`convswap explain`: the plan of every Conv, its figures, and the reason for its choice."""

from __future__ import annotations

import json
import re
from pathlib import Path

import convswap
import numpy as np
import onnx
import pytest
from command_line import only_line_of_refusal
from convswap import _native
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.planning.explain import print_plan
from convswap.timing.floor import bound_by, ceilings, floor_ms
from onnx import TensorProto, helper, numpy_helper
from op_sessions import CASE, case_model
from printed import printed
from swap_models import conv_and_activation, three_convs
from tuning_files import line, write

PROBLEM = _native.Problem((10, 1, 28, 28), (4, 1, 5, 5))


def test_native_explanation_has_the_plan_and_the_figures():
    explanation = _native.explain(PROBLEM, "cpu")
    assert explanation["device"] == _native.tuning_device("cpu")
    assert (explanation["algorithm"], explanation["decided_by"]) == ("direct", "rule")
    assert explanation["why"] == "the first of the catalog that supports it"
    assert explanation["plan"] == _native.describe_plan(PROBLEM, "cpu")
    assert (explanation["bytes"], explanation["operations"]) == (PROBLEM.bytes, PROBLEM.operations)
    assert explanation["others"] == [
        {
            "algorithm": "reference",
            "supports": True,
            "why_not": "comes later in the catalog's order; not measured",
            "milliseconds": None,
        },
        {
            "algorithm": "quantised",
            "supports": False,
            "why_not": "it takes int8 and uint8 codes",
            "milliseconds": None,
        },
    ]


def test_native_explanation_of_a_choice_by_name():
    explanation = _native.explain(PROBLEM, "cpu", "reference")
    assert (explanation["decided_by"], explanation["why"]) == ("name", "asked for by name")
    assert "another was asked for by name" in explanation["others"][0]["why_not"]


def test_native_explanation_says_why_an_algorithm_cannot():
    problem = _native.Problem((1, 1, 4, 4), (1, 1, 3, 3), type="float64")
    other = next(each for each in _native.explain(problem, "cpu")["others"] if each["algorithm"] == "direct")
    assert (other["supports"], other["why_not"]) == (False, _native.why_not(problem, "direct", "cpu"))
    with pytest.raises(ConvswapError, match="algorithm 'direct' cannot compute this convolution"):
        _native.explain(problem, "cpu", "direct")


def test_native_explanation_of_a_measured_choice(table):
    times = {"reference": 0.25, "direct": 0.75}
    write(table, line(PROBLEM.text, "reference", "cpu", milliseconds=times))
    explanation = _native.explain(PROBLEM, "cpu", "tuned")
    assert (explanation["algorithm"], explanation["decided_by"], explanation["milliseconds"]) == (
        "reference",
        "tuned",
        0.25,
    )
    assert explanation["why"] == "measured by `convswap tune`: 0.25 ms"
    assert explanation["others"][0]["why_not"] == "measured slower: 0.75 ms"
    assert explanation["others"][0]["milliseconds"] == 0.75


@pytest.mark.parametrize(
    ("times", "why_not"),
    [({"reference": 0.5}, "not measured"), ({"reference": 0.5, "direct": 0.1}, "the table names another")],
)
def test_native_explanation_of_a_table_that_a_person_wrote(table, times, why_not):
    write(table, line(PROBLEM.text, "reference", "cpu", milliseconds=times))
    explanation = _native.explain(PROBLEM, "cpu", "tuned")
    assert explanation["algorithm"] == "reference"
    assert why_not in explanation["others"][0]["why_not"]


def test_native_explanation_of_a_card_that_is_not_here():
    explanation = _native.explain(PROBLEM, "cuda", compute_capability=75)
    assert explanation["plan"] is None
    assert "7.5" in {other["algorithm"]: other for other in explanation["others"]}["few_channels"]["why_not"]
    modern = _native.explain(PROBLEM, "cuda", compute_capability=90)
    assert modern["algorithm"] == _native.choose(PROBLEM, "cuda", compute_capability=90)
    assert {other["algorithm"] for other in modern["others"]} | {modern["algorithm"]} == {
        entry.name for entry in _native.catalog() if entry.device == "cuda" and not entry.by_name_alone
    }


@pytest.mark.parametrize("batch", [1, 10_000])
def test_estimates_say_why_an_algorithm_was_taken_and_the_others_were_not(batch):
    plan = convswap.explain("ece408-2019fa", batch=batch, compute_capability=90)
    assert len(plan.convs) == 2
    for conv in plan.convs:
        estimate = re.fullmatch(r"estimated fastest: ([0-9.]+) ms", conv.explanation["why"])
        assert estimate and float(estimate[1]) > 0, conv.explanation["why"]
        supporting = [other for other in conv.explanation["others"] if other["supports"]]
        # These algorithms support both layers.
        names = {conv.explanation["algorithm"], *(other["algorithm"] for other in supporting)}
        assert names >= {"toeplitz", "few_channels", "tiled", "naive"}
        for other in supporting:
            if other["algorithm"] == "naive":
                only_if = "only for problems that no other algorithm can compute; not measured"
                assert other["why_not"] == only_if
                continue
            slower = re.fullmatch(r"estimated slower: ([0-9.]+) ms; not measured", other["why_not"])
            # Three digits are printed, so two estimates may look equal.
            assert slower and float(slower[1]) >= float(estimate[1]), (conv.explanation["why"], other)


def test_algorithm_that_rounds_and_gains_too_little_has_a_reason():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 132, 56, 56])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    w = numpy_helper.from_array(np.zeros((132, 1, 7, 7), np.float32), "w")
    conv = helper.make_node("Conv", ["x", "w"], ["y"], group=132, pads=[3] * 4)
    model = helper.make_model(helper.make_graph([conv], "depthwise", [x], [y], [w]))
    (conv_plan,) = convswap.explain(model, compute_capability=90).convs
    others = {other["algorithm"]: other["why_not"] for other in conv_plan.explanation["others"]}
    assert conv_plan.explanation["algorithm"] == "depthwise"
    assert re.fullmatch(
        r"estimated [0-9.]+ ms, not enough faster to round .* TF32; not measured", others["toeplitz"]
    )
    assert others["sliding_rows"].startswith("estimated slower")


def test_default_batch_is_that_of_compare():
    assert convswap.explain("ece408-2019sp", device="cpu").batch == 100
    assert convswap.explain(three_convs(), device="cpu").batch == 1
    assert convswap.explain(onnx.load_from_string(case_model(CASE, domain="")), device="cpu").batch == 2


@pytest.mark.parametrize(("kind", "name"), [("FLOAT16", "float16"), ("DOUBLE", "float64")])
def test_other_element_types_are_planned(kind, name):
    plan = convswap.explain(three_convs(TensorProto.DataType.Value(kind)), device="cpu")
    assert all(conv.problem.startswith(f"{name} x=") for conv in plan.convs)


def test_json_has_every_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(three_convs(), "model.onnx")
    assert main(["explain", "model.onnx", "--device", "cpu", "--batch", "5", "--json", "plan.json"]) == 0
    plan = json.loads(Path("plan.json").read_text())
    assert (plan["schema"], plan["batch"], plan["device"], plan["left"]) == (1, 5, "cpu", [])
    assert plan["estimates"] is None
    assert [layer["node"] for layer in plan["layers"]] == ["a", "b", "c"]
    for layer in plan["layers"]:
        assert layer.keys() == {
            "node", "fused", "problem", "device", "algorithm", "decided_by", "why", "milliseconds", "plan",
            "kernels",
            "bytes", "operations", "intensity", "floor_ms", "bound", "others",
        }  # fmt: skip
        assert layer["intensity"] == pytest.approx(layer["operations"] / layer["bytes"])
        assert layer["floor_ms"] is layer["bound"] is None
    assert "a and 1 more of the same" in capsys.readouterr().out


def test_table_is_120_columns_and_says_why_and_why_not():
    text = printed(print_plan, convswap.explain("ece408-2019sp", device="cpu"))
    assert max(map(len, text.splitlines())) <= 120
    for expected in (
        "conv2",
        "bands of",
        "chosen: the first of the catalog",
        "not chosen: comes later",
    ):
        assert expected in text
    assert "no floor: the memory bandwidth and peak rates of" in text


def test_floor_and_what_bounds_it_on_a_card_that_is_known():
    card = {"name": "NVIDIA H200"}
    few = _native.Problem((10_000, 1, 28, 28), (50, 1, 5, 5))
    many = _native.Problem((64, 512, 28, 28), (512, 512, 3, 3))
    assert (bound_by(few, card, "tf32"), bound_by(many, card, "tf32")) == ("memory", "arithmetic")
    assert floor_ms(many, card, "tf32") == pytest.approx(many.operations / 989e12 * 1e3)
    assert bound_by(few, None, "tf32") is None
    assert bound_by(few, {"name": "Other", "memory_bandwidth": 1e12}, "tf32") is None


def test_nodes_that_are_left_are_named():
    model = three_convs()
    model.graph.node.append(helper.make_node("ConvTranspose", ["y", "w"], ["z"], name="up"))
    assert "Left as it was: up: ConvTranspose is a transposed" in printed(
        print_plan, convswap.explain(model, device="cpu")
    )


def test_convs_in_subgraphs_are_counted_and_left_out():
    model = three_convs()
    branch = helper.make_graph(
        [helper.make_node("Conv", ["y", "w"], ["t"], name="inner")],
        "branch",
        [],
        [onnx.ValueInfoProto(name="t")],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "condition"))
    model.graph.node.append(
        helper.make_node("If", ["condition"], ["z"], then_branch=branch, else_branch=branch)
    )
    for proto in (model, convswap.swap(model).to_proto()):
        plan = convswap.explain(proto, device="cpu")
        assert [conv.node for conv in plan.convs] == ["a", "b", "c"]
        assert any(note.startswith("2 swapped Conv in subgraphs are left out") for note in plan.notes)


def test_tuned_models_are_explained_by_the_table(table, tmp_path, capsys):
    problem = convswap.explain(three_convs(), device="cpu").convs[0].problem
    write(table, line(problem, "reference", "cpu"))
    plan = convswap.explain(three_convs(), device="cpu", algorithm="tuned")
    assert [conv.explanation["decided_by"] for conv in plan.convs] == ["tuned", "rule", "tuned"]
    assert "tuned, 0.500 ms" in printed(print_plan, plan)
    # The file's own algorithm attribute has the same effect.
    path = tmp_path / "tuned.onnx"
    convswap.swap(three_convs(), algorithm="tuned").save(path)
    assert [conv.explanation["decided_by"] for conv in convswap.explain(path, device="cpu").convs] == [
        "tuned", "rule", "tuned",
    ]  # fmt: skip


def test_a_damaged_table_is_one_warning_on_standard_error_and_a_note(table, tmp_path, capsys):
    write(table, "damaged", "too")
    path = tmp_path / "model.onnx"
    onnx.save(three_convs(), path)
    assert main(["explain", str(path), "--device", "cpu", "--algorithm", "tuned"]) == 0
    captured = capsys.readouterr()
    (warning,) = captured.err.strip().splitlines()
    assert warning.startswith(f"convswap: the tuning table '{table}' is damaged: line 2 has 1 fields")
    assert "Note: the tuning table is damaged" in captured.out
    # Without algorithm tuned the table is not read.
    write(table, "damaged", "too", "again")
    assert main(["explain", str(path), "--device", "cpu"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["9.0", "90"])
def test_a_card_that_is_not_here_is_planned_for(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(three_convs(), "model.onnx")
    assert main(["explain", "model.onnx", "--compute-capability", text, "--json", "plan.json"]) == 0
    plan = json.loads(Path("plan.json").read_text())
    assert (plan["device"], plan["device_name"]) == ("cuda", "a typical card of compute capability 9.0")
    assert all(layer["plan"] is None for layer in plan["layers"])
    assert plan["estimates"].startswith("fitted to an NVIDIA H200 on 20")
    printed = capsys.readouterr().out
    assert "known only on the card itself" in printed and f"estimates {plan['estimates']}\n" in printed


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ece408-2019fal"], "did you mean 'ece408-2019fa'"),
        (["missing.onnx"], "missing.onnx"),
        (["ece408-2019sp", "--algorithm", "dirct"], "did you mean 'direct'"),
        (
            ["ece408-2019sp", "--algorithm", "few_channel"],
            "unknown algorithm for the device cpu 'few_channel'",
        ),
        (["ece408-2019sp", "--precision", "tf23"], "did you mean 'tf32'"),
        (["ece408-2019sp", "--batch", "0"], "batch must be at least 1, but 0 was given"),
        (["ece408-2019sp", "--compute-capability", "nine"], "'nine': expected one such as 8.0"),
        (["ece408-2019sp", "--compute-capability", "7.3"], "7.3: expected one from 7.5 on, such as 9.0"),
        (["ece408-2019sp", "--compute-capability", "9.0"], "leave one out"),
        (["ece408-2019sp", "--json", "nowhere/plan.json"], "nowhere"),
    ],
)
def test_bad_usage_is_one_line(arguments, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert expected in only_line_of_refusal(capsys, "explain", *arguments, "--device", "cpu")
    assert list(tmp_path.iterdir()) == []


def test_an_algorithm_that_cannot_compute_a_conv_is_refused_by_the_nodes_name(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    onnx.save(three_convs(TensorProto.DOUBLE), path)
    message = only_line_of_refusal(capsys, "explain", str(path), "--device", "cpu", "--algorithm", "direct")
    assert "Conv 'a': algorithm 'direct' cannot compute this convolution" in message


def test_compute_capabilities_that_do_not_exist_are_refused():
    with pytest.raises(ConvswapError, match="capability 1: expected one such as"):
        convswap.explain(three_convs(), compute_capability=1)


@pytest.mark.gpu
def test_plans_of_a_card_have_a_launch_shape_and_a_floor_and_say_what_bounds_it_where_that_is_known(cuda):
    plan = convswap.explain("ece408-2019fa", device="cuda")
    assert plan.batch == 10_000
    # For other cards only the memory bandwidth is known, from the driver.
    is_measured = bool(ceilings(plan.device.card).rates)
    for conv in plan.convs:
        assert "threads" in str(conv.explanation["plan"])
        assert conv.floor_ms > 0
        assert conv.bound in (("memory", "arithmetic") if is_measured else (None,))


def test_fused_convs_are_planned_with_what_they_take_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(conv_and_activation(), "model.onnx")
    convswap.swap("model.onnx", fuse=True).save("fused.onnx")
    plans = []
    for arguments in (["model.onnx", "--fuse"], ["fused.onnx"]):
        command = ["explain", *arguments, "--device", "cpu", "--batch", "3", "--json", "plan.json"]
        assert main(command) == 0
        plans.append(json.loads(Path("plan.json").read_text()))
    of_model, of_file = plans
    assert [layer["fused"] for layer in of_model["layers"]] == [["Clip", "MaxPool"], ["Add", "HardSwish"]]
    assert [layer["problem"].partition(" then=")[2] for layer in of_model["layers"]] == [
        "Clip(-3.40282347e+38,6) MaxPool 2x2 strides=2x2 pads=0x0x0x0",
        "residual HardSwish",
    ]
    assert of_model["layers"] == of_file["layers"]
    assert [conv["node"] for conv in of_model["fused"]] == ["a", "b"]
    assert of_file["fused"] == of_file["not_fused"] == []
    shown = capsys.readouterr().out
    # Each command prints two tables with the title.
    assert [shown.count(title) for title in ("a + Clip + MaxPool", "b + Add + HardSwish")] == [4, 4]


def test_what_was_fused_and_what_was_left_is_printed():
    model = conv_and_activation()
    model.graph.node[-1].op_type = "Neg"
    text = printed(print_plan, convswap.explain(model, device="cpu", fuse=True))
    assert "FusedConv a includes Clip" in text
    assert "Neg" in text and "is not fused into b: FusedConv does not have this op." in text
