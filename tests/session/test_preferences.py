"""The attribute `tuned`: lines that decide a node's algorithm, and lines that leave it to the rule."""

from __future__ import annotations

from pathlib import Path

import convswap
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap import _native
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import NodeChoice, swap_selected
from convswap.planning.warm import warm
from fake_card import LAYER, needs_compiler, run_beside_card
from op_sessions import CASE, case_model, conv_model, make_session, run
from tuning_files import FALLBACK, line, write

PROBLEM = _native.Problem(CASE.x_shape, CASE.w_shape, CASE.has_bias, **CASE.attributes)
TEXT = PROBLEM.text
X = CASE.arrays()[0]
GOOD = line(TEXT, "reference", "cpu")
FIELDS = GOOD.split(" | ")
OTHER_SIZE = _native.Problem((1, 3, 9, 8), CASE.w_shape, CASE.has_bias, **CASE.attributes).text
HOPPERS = ("cuda NVIDIA H200", "cuda NVIDIA H100 80GB HBM3")
MISFITS = {
    "processor": line(TEXT, "reference", "cpu", device_name="cpu Another Processor avx512"),
    "card": line(TEXT, "reference", "cpu", device_name=HOPPERS[0]),
    "version": line(TEXT, "reference", "cpu", version="0.0.1"),
    "size": line(OTHER_SIZE, "reference", "cpu"),
    "precision": line(TEXT.replace("tf32", "ieee"), "reference", "cpu"),
    "unknown": line(TEXT, "winograd", "cpu"),
    "of cards": line(TEXT, "naive", "cpu"),
    "rung": line(TEXT, "ladder_01_loops", "cpu"),
    "four fields": " | ".join(FIELDS[:4]),
    "no time": " | ".join([*FIELDS[:4], "reference fast"]),
    "cut": GOOD[: len(GOOD) // 2],
    "not ASCII": GOOD.replace("cpu", "cpü"),
    "header": _native.tuning_header,
    "empty": "",
}


def chosen_algorithm(tuned: str, algorithm: str = "auto", problem: _native.Problem = PROBLEM) -> str:
    return _native.choose(problem, "cpu", algorithm, tuned=tuned)


@pytest.mark.parametrize("op", ["Conv", "FusedConv"])
def test_a_session_runs_the_algorithm_of_the_nodes_own_line(device, op):
    """Shown by the bits: the two algorithms sum in different orders and precisions."""
    tuned = "\n".join([MISFITS["size"], line(TEXT, FALLBACK[device], device), MISFITS["version"]])
    models = {
        "tuned": case_model(CASE, op=op, tuned=tuned),
        "by name": case_model(CASE, op=op, algorithm=FALLBACK[device]),
        "rule": case_model(CASE, op=op),
    }
    outputs = {name: run(make_session(model, device), X) for name, model in models.items()}
    assert np.array_equal(outputs["tuned"], outputs["by name"])
    assert not np.array_equal(outputs["tuned"], outputs["rule"])


@pytest.mark.parametrize("algorithm", ["auto", "tuned"])
@pytest.mark.parametrize("misfit", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_leaves_the_choice_to_the_rule(table, misfit, algorithm):
    assert chosen_algorithm(misfit, algorithm) == "direct"
    expected = _native.conv(*CASE.arrays(), algorithm="direct", **CASE.attributes)
    session = make_session(case_model(CASE, algorithm=algorithm, tuned=misfit))
    assert np.array_equal(run(session, X), expected)
    # Such a line does no harm before or after a line that fits.
    for lines in ([misfit, GOOD], [GOOD, misfit]):
        is_about_same_problem = misfit in (MISFITS["unknown"], MISFITS["of cards"], MISFITS["rung"])
        expected_algorithm = "direct" if is_about_same_problem and lines[-1] == misfit else "reference"
        assert chosen_algorithm("\n".join(lines), algorithm) == expected_algorithm


def test_an_algorithm_that_cannot_compute_the_problem_leaves_the_choice_to_the_rule():
    problem = _native.Problem((1, 1, 4, 4), (1, 1, 3, 3), type="float64")
    assert chosen_algorithm(line(problem.text, "direct", "cpu"), problem=problem) == "reference"


def test_another_size_in_the_same_session_is_planned_by_the_rule():
    _, w, b = CASE.arrays()
    model = conv_model(x=["n", *CASE.x_shape[1:]], w=w, b=b, **CASE.attributes, tuned=GOOD)
    session = make_session(model)
    for x, algorithm in ((X[:1], "direct"), (X, "reference"), (X[:1], "direct")):
        expected = _native.conv(x, w, b, algorithm=algorithm, **CASE.attributes)
        assert np.array_equal(run(session, x), expected)


def test_an_algorithm_asked_for_by_name_is_a_command():
    assert chosen_algorithm(GOOD, "direct") == "direct"


def test_the_nodes_own_line_comes_before_the_table(table):
    write(table, line(TEXT, "direct", "cpu"))
    assert chosen_algorithm(GOOD, "tuned") == "reference"
    write(table, GOOD)
    assert chosen_algorithm(line(TEXT, "direct", "cpu"), "tuned") == "direct"
    assert chosen_algorithm(MISFITS["size"], "tuned") == "reference"


def test_of_two_lines_about_one_problem_the_last_counts():
    assert chosen_algorithm("\n".join([line(TEXT, "direct", "cpu"), GOOD])) == "reference"
    assert chosen_algorithm("\n".join([GOOD, line(TEXT, "direct", "cpu")])) == "direct"


def test_the_explanation_says_that_the_file_decided():
    times = {"reference": 0.25, "direct": 0.75}
    explanation = _native.explain(PROBLEM, "cpu", tuned=line(TEXT, "reference", "cpu", milliseconds=times))
    assert (explanation["algorithm"], explanation["decided_by"], explanation["milliseconds"]) == (
        "reference",
        "file",
        0.25,
    )
    assert explanation["why"] == "the file says that it was measured here: 0.25 ms"
    assert explanation["others"][0]["why_not"] == "measured slower: 0.75 ms"
    other_line = line(TEXT, "direct", "cpu", milliseconds=times)
    assert (
        "the file names another" in _native.explain(PROBLEM, "cpu", tuned=other_line)["others"][0]["why_not"]
    )


def test_the_model_is_explained_swapped_again_and_compared_by_what_it_says():
    model = onnx.load_from_string(case_model(CASE, tuned=GOOD))
    for again in (model, convswap.swap(model).to_proto()):
        (conv,) = convswap.explain(again, device="cpu").convs
        assert (conv.explanation["algorithm"], conv.explanation["decided_by"]) == ("reference", "file")
    (layer,) = convswap.compare(model, device="cpu", images=2, batch=2).layers
    assert layer.algorithm == "reference"


def test_the_model_turned_back_into_onnx_has_no_such_attribute():
    (node,) = plain_model(ir.from_proto(onnx.load_from_string(case_model(CASE, tuned=GOOD)))).graph
    assert not {"tuned", "algorithm", "precision"} & node.attributes.keys()


def model_tuned_on_hopper() -> onnx.ModelProto:
    """Return a swapped model as `optimize` writes it on a machine with other cards."""
    lines = [
        line(_native.Problem(*shapes, True, **CASE.attributes).text, algorithm, "cuda", device_name=card)
        for card, algorithm in zip(HOPPERS, ("many_channels", "implicit_gemm"), strict=True)
        for shapes in [(CASE.x_shape, CASE.w_shape)]
    ]
    model = onnx.load_from_string(case_model(CASE, domain=""))
    return swap_selected(model, {"conv1": NodeChoice(tuned=tuple(lines))}, "it is another").to_proto()


def test_a_file_made_on_a_hopper_card_runs_on_a_cpu():
    model = model_tuned_on_hopper()
    assert HOPPERS[1] in model.graph.node[0].attribute[-1].s.decode()
    y = run(make_session(model.SerializeToString()), X)
    assert np.array_equal(y, _native.conv(*CASE.arrays(), **CASE.attributes))
    (conv,) = convswap.explain(model, device="cpu").convs
    assert (conv.explanation["algorithm"], conv.explanation["decided_by"]) == ("direct", "rule")


@pytest.mark.parametrize("capability", [75, 80])
def test_a_file_made_on_a_hopper_card_is_planned_for_other_cards(capability):
    (conv,) = convswap.explain(model_tuned_on_hopper(), compute_capability=capability).convs
    by_rule = _native.choose(PROBLEM, "cuda", compute_capability=capability)
    assert (conv.explanation["algorithm"], conv.explanation["decided_by"]) == (by_rule, "rule")
    # Both algorithms support only cards of compute capability 9.0.
    assert by_rule not in ("many_channels", "implicit_gemm")


# Arguments: the text of `tuned`, then the extents of x and w. Prints the selected algorithm, and whether the
# kernels are those of naive.
CHOOSE = """
import sys
from convswap import _native
problem = _native.Problem(*(tuple(map(int, text.split(","))) for text in sys.argv[2:4]))
text = sys.argv[1].replace("PROBLEM", problem.text)
print(_native.choose(problem, "cuda", tuned=text))
print(_native.kernels_of(problem, "cuda", tuned=text) == _native.kernels_of(problem, "cuda", "naive"))
"""


@pytest.mark.parametrize(("card", "decides"), [("cuda Fake card 0", True), (HOPPERS[0], False)])
def test_the_line_of_the_present_card_decides(card, decides, tmp_path):
    tuned = line("PROBLEM", "naive", "cuda", device_name=card)
    result = run_beside_card(CHOOSE, tuned, *LAYER, cache=tmp_path)
    assert result.returncode == 0, result.stderr
    name, has_naive_kernels = result.stdout.split()
    assert (name == "naive", has_naive_kernels) == (decides, str(decides))


def test_an_algorithm_that_cannot_compute_the_layer_on_the_card_is_not_selected(tmp_path):
    misfits = "\n".join(
        line("PROBLEM", name, "cuda", device_name="cuda Fake card 0") for name in ("no such one", "pointwise")
    )
    result = run_beside_card(CHOOSE, misfits, *LAYER, cache=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] not in ("pointwise", "naive")


@needs_compiler
def test_a_pack_has_the_kernels_of_the_files_algorithm_for_another_card(tmp_path: Path):
    preferred = line(TEXT, "naive", "cuda", device_name=HOPPERS[0])
    model = onnx.load_from_string(case_model(CASE, tuned=preferred))
    names = {name for name, _ in warm(model, batches=[2], compute_capabilities=[90]).kernels}
    expected = {
        kernel
        for algorithm in ("auto", "naive")
        for kernel in _native.kernels_of(PROBLEM, "cuda", algorithm, compute_capability=90)
    }
    assert names == expected
    assert expected > set(_native.kernels_of(PROBLEM, "cuda", compute_capability=90))


def test_swapping_writes_the_lines_and_fusing_keeps_them():
    model = onnx.load_from_string(case_model(CASE, domain="", follow="Relu"))
    choice = NodeChoice(tuned=(MISFITS["size"], GOOD))
    (node,) = swap_selected(model, {"conv1": choice}, "it is another").to_proto().graph.node
    written = {attribute.name: attribute for attribute in node.attribute}["tuned"].s.decode()
    assert (node.op_type, written) == ("FusedConv", f"{MISFITS['size']}\n{GOOD}")
