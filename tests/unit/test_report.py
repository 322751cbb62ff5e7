"""The report of a comparison is complete and fits into 120 columns without truncation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparisons import LONG_NODE, REASON, example
from convswap.comparison.report import print_comparison, print_course_lines
from convswap.comparison.result import Comparison, SideResult
from convswap.graph.fusion.fuse import Fused, NotFused
from convswap.graph.swap import NotSwapped
from convswap.output.tables import milliseconds
from convswap.timing.sampler import Times
from printed import printed


def lines_of(comparison: Comparison, width: int = 120) -> list[str]:
    return printed(print_comparison, comparison, width=width).splitlines()


def course_lines_of(comparison: Comparison) -> list[str]:
    return printed(print_course_lines, comparison).splitlines()


def row(lines: list[str], *start: str) -> list[str]:
    """Return the words of the first line that begins with `start`."""
    return next(line.split() for line in lines if line.split()[: len(start)] == list(start))


def test_every_line_fits_into_120_columns_without_colour():
    lines = lines_of(example())
    assert max(map(len, lines)) <= 120
    assert "\x1b" not in "".join(lines)


def test_card_driver_versions_and_options_stand_above_the_figures():
    head = "\n".join(lines_of(example())[:4])
    for word in ("net.onnx", "NVIDIA H200", "580.159", "CUDA 13.0", "ONNX Runtime 1.31.1", "convswap 0.1.0"):
        assert word in head
    for word in ("10,000 images", "fashion-mnist", "batch 10,000", "precision tf32", "algorithm auto"):
        assert word in head


def test_each_side_has_its_times_accuracy_and_errors():
    lines = lines_of(example())
    assert row(lines, "default") == ["default", "59.2", "60.1", "812", "20", "0.7653", "1.20e-03", "4.10e-04"]
    assert row(lines, "convswap") == [
        "convswap", "4.47", "4.60", "9.80", "20", "13.24x", "0.7654", "1.10e-03", "4.00e-04",
    ]  # fmt: skip


def test_each_conv_has_a_row_with_its_share_of_the_floor():
    lines = lines_of(example())
    assert row(lines, "conv1")[1:8] == ["few_channels", "47.8", "0.885", "54.01x", "0.532", "60", "%"]


def test_sum_of_the_layers_stands_beside_the_time_of_the_whole():
    lines = lines_of(example())
    assert row(lines, "sum", "of", "all", "Conv")[4:] == ["57.0", "1.94", "29.47x"]
    assert row(lines, "whole", "model")[2:] == ["59.2", "4.47", "13.24x"]


@pytest.mark.parametrize("width", [120, 80])
def test_long_names_and_reasons_are_folded_and_never_cut(width):
    lines = lines_of(example(), width)
    text = "".join(line for line in lines)
    assert "…" not in text
    first_column = "".join(line.split()[0] for line in lines if line.strip())
    assert LONG_NODE in first_column
    assert all(word in text for word in REASON.split())


def test_agreement_is_100_per_cent_only_when_all_images_agree():
    assert any("99.98 %" in line for line in lines_of(example()))
    assert any("99.99 %" in line for line in lines_of(example(top1_agreement=0.999999)))
    assert any("100 %" in line for line in lines_of(example(top1_agreement=1.0)))


def test_last_lines_say_whether_the_answers_agree():
    assert any(line.startswith("The outputs agree") for line in lines_of(example())[-2:])
    assert any(line.startswith("THE OUTPUTS DIFFER") for line in lines_of(example(tolerance=1e-5))[-2:])


def fused_example() -> Comparison:
    first, second = example().layers
    return example(
        layers=(replace(first, fused=("Tanh", "MaxPool")), second),
        options={"algorithm": "auto", "fuse": True},
        fused=(Fused("conv1", "FusedConv", (("Tanh", "tanh1"), ("MaxPool", "[b]pool1[/b]"))),),
        not_fused=(NotFused(LONG_NODE, "flatten1", "Flatten", "FusedConv does not have this op"),),
    )


def test_row_of_a_fused_conv_says_what_it_takes_in_and_the_sum_what_it_is_of():
    lines = lines_of(fused_example())
    assert max(map(len, lines)) <= 120
    conv1 = row(lines, "conv1", "+", "Tanh", "+", "MaxPool")
    assert conv1[5:9] == ["few_channels", "47.8", "0.885", "54.01x"]
    assert any(line.startswith("Each Conv alone, with what is fused with it on both sides") for line in lines)
    assert row(lines, "sum", "of", "all", "rows")[4:] == ["57.0", "1.94", "29.47x"]


def test_what_was_fused_and_what_was_left_stands_below_with_the_reason():
    text = " ".join("\n".join(lines_of(fused_example())).split())
    assert "FusedConv conv1 includes Tanh tanh1, MaxPool [b]pool1[/b]." in text
    assert f"Flatten flatten1 is not fused into {LONG_NODE}: FusedConv does not have this op." in text
    assert "2 Conv swapped, 1 left, 1 fused with the nodes after them; 13.24x as fast" in text
    assert "fused" not in "\n".join(lines_of(example()))
    written = fused_example().to_json()
    assert [layer["fused"] for layer in written["layers"]] == [["Tanh", "MaxPool"], []]
    assert written["fused"][0]["taken"][1] == {"op": "MaxPool", "node": "[b]pool1[/b]"}
    assert written["not_fused"][0]["follower"] == "flatten1"


def test_nodes_that_were_no_convs_are_counted_apart():
    head = Fused("head", "QuantConv", (("QuantizeLinear", "codes"),), is_conv=False)
    text = " ".join(
        "\n".join(lines_of(replace(fused_example(), fused=(*fused_example().fused, head)))).split()
    )
    assert "1 fused with the nodes after them, 1 other nodes turned into QuantConv; 13.24x as fast" in text


def test_op_time_of_fused_convs_says_what_it_is_of():
    assert any("what is fused with the convolutions too" in line for line in course_lines_of(fused_example()))
    assert not any("is fused" in line for line in course_lines_of(example()))


@pytest.mark.parametrize("other", ["fc", "rounding"])
def test_quant_convs_of_other_nodes_do_not_count_as_convs(other):
    first, second = example().layers
    layers = (replace(first, precision="int8"), second, replace(first, node=other, precision="int8"))
    fused = (Fused("conv1", "QuantConv", ()), Fused("fc", "QuantConv", (), is_conv=False))
    comparison = example(layers=layers, fused=fused, swapped=2)
    assert "precision tf32, int8 of QuantConv, algorithm" in "\n".join(lines_of(comparison)[:4])
    (note,) = (line for line in course_lines_of(comparison) if "not timed" in line)
    assert note == "Note: Op Time leaves out 1 convolutions that were not timed alone."
    comparison = example(layers=(layers[0], layers[2]), fused=fused, swapped=1, left=())
    assert "precision int8, algorithm" in "\n".join(lines_of(comparison)[:4])
    assert not any("not timed" in line for line in course_lines_of(comparison))


def test_other_options_of_the_provider_are_shown_by_what_they_are():
    sides = dict(example().sides)
    sides["heuristic"] = SideResult(
        Times(10.9, 11, 90, 20), 0.7653, 1e-3, 4e-4, {"cudnn_conv_algo_search": "HEURISTIC"}
    )
    layers = tuple(
        replace(layer, milliseconds={**layer.milliseconds, "heuristic": 4.97}) for layer in example().layers
    )
    comparison = example(sides=sides, layers=layers)
    lines = lines_of(comparison)
    assert any("cudnn_conv_algo_search=HEURISTIC" in line for line in lines)
    assert max(map(len, lines)) <= 120
    assert ["conv1", "47.8", "4.97", "0.885"] in [line.split() for line in lines]
    assert ["sum", "of", "all", "Conv", "57.0", "9.94", "1.94"] in [line.split() for line in lines]
    written = comparison.to_json()
    assert written["others"]["heuristic"]["speedup"] == pytest.approx(10.9 / 4.47)
    assert written["layers"][0]["others_ms"] == {"heuristic": 4.97}
    assert set(written["time_ms"]) == {"default", "convswap"}


def test_course_lines_are_those_of_the_course_for_each_side():
    # 47.8 + 9.22 and 0.885 + 1.05 ms, in seconds.
    assert course_lines_of(example(left=(), model="ece408-high")) == [
        "default:",
        "Op Time: 0.057020",
        "Correctness: 0.7653 Model: ece408-high",
        "convswap:",
        "Op Time: 0.001935",
        "Correctness: 0.7654 Model: ece408-high",
    ]


def test_op_time_is_that_of_all_images_not_of_one_batch():
    lines = course_lines_of(example(images=10_000, batch=100))
    assert [line for line in lines if line.startswith("Op Time")] == [
        "Op Time: 5.702000",
        "Op Time: 0.193500",
    ]


def test_correctness_has_the_digits_that_the_course_prints():
    sides = dict(example().sides)
    sides["default"] = replace(sides["default"], accuracy=84 / 100)
    sides["convswap"] = replace(sides["convswap"], accuracy=2 / 3)
    lines = course_lines_of(example(sides=sides))
    assert "Correctness: 0.84 Model: net.onnx" in lines
    assert "Correctness: 0.6667 Model: net.onnx" in lines
    sides["default"] = replace(sides["default"], accuracy=None)
    assert "Correctness: unknown Model: net.onnx" in course_lines_of(example(sides=sides))


def test_course_lines_are_not_folded_whatever_the_name_of_the_model():
    name = "/a folder/" + "long/" * 60 + "[bold]net[/bold].onnx"
    assert f"Correctness: 0.7653 Model: {name}" in course_lines_of(example(model=name))


def test_op_time_says_how_many_convolutions_it_leaves_out():
    assert "leaves out" not in "\n".join(course_lines_of(example(left=())))
    # One Conv was left, and two were swapped in subgraphs.
    assert "Note: Op Time leaves out 3 convolutions" in course_lines_of(example(swapped=4))[-1]


def test_square_brackets_in_names_are_text_and_not_markup():
    layer = replace(example().layers[0], node="[red]conv[/red]")
    lines = lines_of(
        example(layers=(layer,), model="[bold]m[/bold]", left=(NotSwapped("[x]", "Conv", "[y]"),))
    )
    text = "\n".join(lines)
    assert "[red]conv[/red]" in text and "[bold]m[/bold]" in text and "[x]" in text


def test_error_that_is_not_finite_is_null_in_json_and_words_in_the_table():
    sides = dict(example().sides)
    sides["convswap"] = replace(sides["convswap"], relative_l2_error=math.inf, max_abs_error=math.nan)
    comparison = example(sides=sides)
    assert comparison.to_json()["relative_l2_error"]["convswap"] is None
    assert not comparison.within_tolerance
    assert any("not finite" in line for line in lines_of(comparison))


@pytest.mark.parametrize(
    ("value", "text"),
    [(812.4, "812"), (1234.5, "1,234"), (59.24, "59.2"), (4.469, "4.47"), (0.0354, "0.0354"), (None, "-")],
)
def test_times_have_three_digits(value, text):
    assert milliseconds(value) == text
