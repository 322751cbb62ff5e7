"""`optimize` tries algorithms on the Convs that gain, and writes into the file which was the fastest."""

from __future__ import annotations

import math
from dataclasses import replace

import convswap
import numpy as np
import onnx
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.external_weights import as_split
from convswap.graph.fusion.fuse import Stage
from convswap.graph.swap import NodeChoice
from convswap.optimizing import end_to_end, measuring, trials
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.measurement_cache import MeasurementCache
from convswap.optimizing.optimize import optimize
from convswap.optimizing.preparation import OptimizeOptions, SegmentInputs, prepare
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, make_session, on_device
from onnx import helper, numpy_helper
from swap_models import make_model, tensor_info, weights

CPU = Device("cpu", "asked for")


def network() -> onnx.ModelProto:
    """Return two Convs, the second with an activation that it can take in."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["c"], name="second"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    tensors = [weights("w1", 8, 3, 3, 3), weights("w2", 4, 8, 3, 3)]
    return make_model(nodes, tensors, inputs=[tensor_info("x", "n", 3, 12, 12)])


# Of the ways of each Conv; what is not named loses.
WAYS = {
    "first": {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5},
    "second": {DEFAULT_VARIANT: 1.0, Stage.ACTIVATION: 0.5},
}


@pytest.fixture(autouse=True)
def own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / "kept" / "tuning.txt"))


@pytest.fixture
def pretended(monkeypatch):
    """Return what sets the times of each Conv's ways, and those of `direct` and `reference` on each."""
    asked = []

    def pretend(by_algorithm, ways=WAYS):
        def variant_times(segment, inputs, precision, device):
            return {way: ways[segment.name].get(way, 9.0) for way in (DEFAULT_VARIANT, *segment.stages)}

        def times_by_algorithm(segment, inputs, choice, names, device):
            batch = len(inputs[segment.layer.input_names[0]].numpy())
            asked.append((segment.name, batch, choice.max_stage))
            times = by_algorithm[segment.name]
            return dict(zip(names, times[batch] if isinstance(times, dict) else times, strict=True))

        monkeypatch.setattr(measuring, "variant_times", variant_times)
        monkeypatch.setattr(end_to_end, "end_to_end_times", lambda sessions, feeds, device: [2.0, 1.0])
        monkeypatch.setattr(
            measuring, "candidate_algorithms", lambda problem, device: ["direct", "reference"]
        )
        monkeypatch.setattr(measuring, "times_by_algorithm", times_by_algorithm)
        return asked

    return pretend


def tuned_of(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return the lines of each node that has some."""
    return {
        node.name: attribute.s.decode().split("\n")
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "tuned"
    }


def test_what_is_measured_to_be_faster_is_written_and_a_session_uses_it(pretended, tmp_path):
    pretended({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[2])
    assert [(node.node, node.algorithm) for node in found.nodes] == [
        ("first", "reference"),
        ("second", "direct"),
    ]
    # The time is that of the algorithm which is taken.
    assert [node.best_ms for node in found.nodes] == [{2: 0.4}, {2: 0.5}]
    plans = convswap.explain(found.written, device="cpu", batch=2).convs
    assert [(plan.explanation["algorithm"], plan.explanation["decided_by"]) for plan in plans] == [
        ("reference", "file"),
        ("direct", "file"),
    ]
    # Other sizes are the rule's.
    plans = convswap.explain(found.written, device="cpu", batch=3).convs
    assert {(plan.explanation["algorithm"], plan.explanation["decided_by"]) for plan in plans} == {
        ("direct", "rule")
    }
    assert answers(onnx.load(found.written), {}) == answers(
        onnx.load(found.written), {"first": "reference", "second": "direct"}
    )
    assert answers(onnx.load(found.written), {}) != answers(onnx.load(found.written), {"first": "direct"})


def answers(model: onnx.ModelProto, algorithm_of: dict[str, str]) -> bytes:
    """Return the bits of the answer to two samples, with some nodes given an algorithm by name."""
    for node in model.graph.node:
        if node.name in algorithm_of:
            node.attribute.append(helper.make_attribute("algorithm", algorithm_of[node.name]))
    x = np.random.default_rng(5).standard_normal((2, 3, 12, 12)).astype(np.float32)
    return make_session(model, CONVSWAP, CPU).run(None, {"x": x})[0].tobytes()


def test_the_lines_have_the_form_of_the_tuning_table_and_all_times(pretended, tmp_path):
    pretended({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[2])
    (written,) = tuned_of(onnx.load(found.written))["first"]
    device, version, problem, algorithm, times = written.split(" | ")
    assert (device, version) == (_native.tuning_device("cpu"), _native.__version__)
    assert problem == convswap.explain(found.written, device="cpu", batch=2).convs[0].problem
    assert (algorithm, times) == ("reference", "reference 0.4, direct 0.5")


def test_each_batch_has_its_own_line_at_the_stage_that_is_taken(pretended, tmp_path):
    asked = pretended({"first": {1: (0.5, 0.9), 4: (0.5, 0.3)}, "second": (0.5, 0.9)})
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[1, 4])
    assert asked == [(name, batch, max(WAYS[name], key=lambda way: -1 if way is None else way))
                     for name in WAYS for batch in (1, 4)]  # fmt: skip
    assert [node.algorithm for node in found.nodes] == ["direct, reference", "direct"]
    assert {name: len(lines) for name, lines in tuned_of(onnx.load(found.written)).items()} == {
        "first": 2,
        "second": 2,
    }
    for batch, algorithm in ((1, "direct"), (4, "reference")):
        plan = convswap.explain(found.written, device="cpu", batch=batch).convs[0]
        assert (plan.explanation["algorithm"], plan.explanation["decided_by"]) == (algorithm, "file")


def test_the_rules_choice_stays_where_another_gains_no_more_than_the_noise(pretended, tmp_path):
    pretended({"first": (0.5, 0.49), "second": (0.5, 0.48)})
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert [node.algorithm for node in found.nodes] == ["direct", "reference"]
    assert [node.best_ms for node in found.nodes] == [{1: 0.5}, {1: 0.48}]
    # That it was measured is in the file too, so that another build's rule does not change it.
    assert "| direct | reference 0.49, direct 0.5" in tuned_of(onnx.load(found.written))["first"][0]


@pytest.mark.parametrize(
    "first",
    [{DEFAULT_VARIANT: 1.0, Stage.FOLDED: 1.0}, {DEFAULT_VARIANT: 0.02, Stage.FOLDED: 0.01}],
    ids=["gains nothing", "takes no time"],
)
def test_a_conv_that_gains_nothing_or_takes_no_time_is_not_tried(pretended, first):
    asked = pretended({"second": (0.5, 0.4)}, {**WAYS, "first": first})
    optimize(network(), None, device="cpu", batches=[2])
    assert asked == [("second", 2, Stage.ACTIVATION)]


def test_a_second_call_tries_nothing_again(pretended, monkeypatch):
    pretended({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    first = optimize(network(), None, device="cpu")
    monkeypatch.setattr(measuring, "times_by_algorithm", lambda *_: pytest.fail("it was tried before"))
    second = optimize(network(), None, device="cpu")
    assert [node.to_json() for node in second.nodes] == [node.to_json() for node in first.nodes]


def test_one_that_is_less_accurate_than_the_default_is_not_taken(pretended, monkeypatch):
    pretended({"first": (0.5, 0.4), "second": (0.5, 0.4)})
    errors = {"default": 1e-3, "tf32": 1e-3}
    monkeypatch.setattr(measuring, "_precision", lambda *_: ("tf32", errors))
    judged = []

    def algorithm_error(segment, inputs, precision, algorithm, device):
        judged.append((segment.name, precision, algorithm))
        return {"first": 2e-3, "second": 1e-3}[segment.name]

    monkeypatch.setattr(measuring, "algorithm_error", algorithm_error)
    for _ in range(2):
        found = optimize(network(), None, device="cpu", batches=[2])
        assert [node.algorithm for node in found.nodes] == ["direct", "reference"]
    # Once: it is kept.
    assert judged == [("first", "tf32", "reference"), ("second", "tf32", "reference")]


@pytest.mark.parametrize("error", [None, math.inf, math.nan])
def test_one_whose_error_cannot_be_told_is_not_taken(pretended, monkeypatch, error):
    pretended({"first": (0.5, 0.4), "second": (0.5, 0.4)})
    monkeypatch.setattr(measuring, "_precision", lambda *_: ("tf32", {"default": 1e-3, "tf32": 1e-3}))
    monkeypatch.setattr(measuring, "algorithm_error", lambda *_: error)
    assert {node.algorithm for node in optimize(network(), None, device="cpu").nodes} == {"direct"}


def test_on_a_cpu_there_is_nothing_to_try_and_no_time_goes_by(pretended, monkeypatch, tmp_path):
    real = measuring.candidate_algorithms
    pretended({})
    monkeypatch.setattr(measuring, "candidate_algorithms", real)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert tuned_of(onnx.load(found.written)) == {}
    assert [node.algorithm for node in found.nodes] == ["direct", "direct"]


def test_on_a_card_all_that_is_tried_is_compiled_before_the_first_is_timed(pretended, monkeypatch):
    asked = pretended({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    planned = []

    class Native:
        def __getattr__(self, name):
            return getattr(_native, name)

        def describe_plan(self, problem, device, algorithm):
            assert not asked
            planned.append((problem.text.split("w=")[1].split()[0], device, algorithm))
            raise RuntimeError("there is no card, and what is wrong with a kernel is said when it is run")

    monkeypatch.setattr(measuring, "_native", Native())
    prepared = prepare(network(), OptimizeOptions(), CPU)
    shared = measuring.MeasurementContext(prepared, SegmentInputs(prepared), MeasurementCache({}))
    measured = measuring.measure_convs(shared)
    card = replace(prepared, device=Device("cuda", "asked for", {"name": "a card"}))
    monkeypatch.setattr(_native, "tuning_device", lambda device: "cuda a card")
    found = measuring.with_fastest_algorithms(measured, replace(shared, prepared=card))
    assert sorted(planned) == [
        (weights, "cuda", name) for weights in ("4x8x3x3", "8x3x3x3") for name in ("direct", "reference")
    ]
    assert [one.tuning_lines[0].split(" | ")[0] for one in found] == ["cuda a card"] * 2


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ({"tiled": 1.0, "naive": None}, ["tiled"]),
        ({"tiled": 1.0, "few_channels": 1.9, "toeplitz": 2.1}, ["tiled", "few_channels"]),
        (
            {"tiled": 1.3, "few_channels": 1.1, "toeplitz": 1.2, "pointwise": 1.0},
            ["pointwise", "few_channels", "toeplitz"],
        ),
    ],
)
def test_what_could_be_the_fastest_by_its_estimate_is_tried(monkeypatch, estimates, expected):
    class Native:
        @staticmethod
        def estimates(problem, device):
            return estimates

        @staticmethod
        def choose(problem, device):
            return expected[0]

    monkeypatch.setattr(measuring, "_native", Native)
    assert measuring.candidate_algorithms(None, "cuda") == expected


def test_the_times_are_of_each_algorithm_that_runs():
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[1]
    values = np.random.default_rng(2).standard_normal((1, 8, 12, 12)).astype(np.float32)
    fed = on_device({name: values for name in segment.layer.input_names}, CPU)
    choice = NodeChoice(precision="ieee", max_stage=Stage.ACTIVATION)
    # A card's algorithm does not run here.
    times = trials.times_by_algorithm(segment, fed, choice, ["direct", "tiled", "reference"], CPU)
    assert list(times) == ["direct", "reference"]
    assert all(time > 0 for time in times.values())
    with pytest.raises(ConvswapError, match="tiled"):
        trials.times_by_algorithm(segment, fed, choice, ["tiled", "direct"], CPU)


def test_the_error_is_that_of_the_algorithm():
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[0]
    values = np.random.default_rng(2).standard_normal((1, 3, 12, 12)).astype(np.float32)
    fed = on_device({name: values for name in segment.layer.input_names}, CPU)
    errors = {
        name: trials.algorithm_error(segment, fed, "ieee", name, CPU) for name in ("direct", "reference")
    }
    # The reference sums in float64, and rounds once.
    assert 0 < errors["reference"] < errors["direct"] < 1e-6


def test_a_precision_is_judged_by_what_the_rule_chooses_at_every_batch(monkeypatch):
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[0]
    values = np.random.default_rng(2).standard_normal((2, 3, 12, 12)).astype(np.float32)
    by_batch = [
        on_device({name: values[:batch] for name in segment.layer.input_names}, CPU) for batch in (1, 2)
    ]
    rule = {1: "reference", 2: "direct"}
    shapes_chosen = []

    def choose(problem, device):
        shapes_chosen.append(problem.output_shape[0])
        return rule[problem.output_shape[0]]

    monkeypatch.setattr(_native, "choose", choose)
    both = trials.conv_errors(segment, by_batch, CPU)["tf32"]
    assert shapes_chosen == [1, 1, 2, 2]  # alone and with all that it can take in
    first = trials.conv_errors(segment, by_batch[:1], CPU)["tf32"]
    # The reference sums in float64, and rounds once.
    assert 0 < first < both < 1e-6


def test_weights_that_are_apart_and_folded_into_are_those_that_errors_and_digests_are_of():
    """A Conv with weights of 1 MiB, which `optimize` has in memory once, and a batch normalisation."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["y"], name="relu"),
    ]
    tensors = [weights("w", 512, 512, 1, 1), *(weights(name, 512) for name in "sbm")]
    tensors.append(numpy_helper.from_array(np.full(512, 2, np.float32), "v"))
    digests = []
    for factor in (1, 2):
        tensors[0] = numpy_helper.from_array(factor * numpy_helper.to_array(tensors[0]), "w")
        model = make_model(nodes, tensors, inputs=[tensor_info("x", 1, 512, 4, 4)])
        prepared = prepare(model, OptimizeOptions(), CPU)
        assert as_split(prepared.original).message.ByteSize() < 20_000
        (segment,) = prepared.segments
        assert segment.layer.weights.keys() == {"w"}
        digests.append(segment.weights_digest)
        fed = on_device({"x": np.ones((1, 512, 4, 4), np.float32)}, CPU)
        errors = trials.conv_errors(segment, [fed], CPU)
        assert errors.keys() == {"default", "tf32"} and all(0 < error < 1e-6 for error in errors.values())
        assert 0 < trials.algorithm_error(segment, fed, "ieee", "direct", CPU) < 1e-6
    assert digests[0] != digests[1]


def test_an_algorithm_that_does_not_take_the_part_has_no_error(monkeypatch):
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[0]
    fed = on_device({name: np.ones((1, 3, 12, 12), np.float32) for name in segment.layer.input_names}, CPU)
    monkeypatch.setattr(_native, "why_not", lambda *_: "it takes larger ones")
    assert trials.algorithm_error(segment, fed, "ieee", "direct", CPU) is None


def test_the_problem_of_each_stage_is_that_of_the_node_which_is_written():
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[1]
    shapes = {name: (2, 8, 12, 12) for name in segment.layer.input_names}
    for stage in segment.stages:
        written = segment.convswap_model(shapes, NodeChoice(precision="ieee", max_stage=stage))
        (conv,) = convswap.explain(written.message, device="cpu").convs
        layer = segment.convswap_layer(shapes, NodeChoice(precision="ieee", max_stage=stage))
        assert conv.problem == layer.problem(shapes).text
