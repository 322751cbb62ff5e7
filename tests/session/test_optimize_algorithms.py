"""`optimize` measures algorithms on Convs that are faster swapped, and writes the fastest into the file."""

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
    """Return two Convs, the second with an activation that can be fused."""
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "w2"], ["c"], name="second"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    tensors = [weights("w1", 8, 3, 3, 3), weights("w2", 4, 8, 3, 3)]
    return make_model(nodes, tensors, inputs=[tensor_info("x", "n", 3, 12, 12)])


# Milliseconds of each Conv's stages; stages that are missing are slow.
STAGE_TIMES = {
    "first": {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5},
    "second": {DEFAULT_VARIANT: 1.0, Stage.ACTIVATION: 0.5},
}


@pytest.fixture
def set_times(monkeypatch):
    """Return a function that sets the times of each Conv's stages and of `direct` and `reference`."""
    measurements = []

    def pretend(by_algorithm, stage_times=STAGE_TIMES):
        def variant_times(segment, inputs, precision, device):
            return {
                stage: stage_times[segment.name].get(stage, 9.0)
                for stage in (DEFAULT_VARIANT, *segment.stages)
            }

        def times_by_algorithm(segment, inputs, choice, names, device):
            batch = len(inputs[segment.layer.input_names[0]].numpy())
            measurements.append((segment.name, batch, choice.max_stage))
            times = by_algorithm[segment.name]
            return dict(zip(names, times[batch] if isinstance(times, dict) else times, strict=True))

        monkeypatch.setattr(measuring, "variant_times", variant_times)
        monkeypatch.setattr(end_to_end, "end_to_end_times", lambda sessions, feeds, device: [2.0, 1.0])
        monkeypatch.setattr(
            measuring, "candidate_algorithms", lambda problem, device: ["direct", "reference"]
        )
        monkeypatch.setattr(measuring, "times_by_algorithm", times_by_algorithm)
        return measurements

    return pretend


def tuned_of(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return the lines of the attribute `tuned` of each node that has it."""
    return {
        node.name: attribute.s.decode().split("\n")
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.name == "tuned"
    }


def test_what_is_measured_to_be_faster_is_written_and_a_session_uses_it(set_times, tmp_path):
    set_times({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[2])
    assert [(node.node, node.algorithm) for node in result.nodes] == [
        ("first", "reference"),
        ("second", "direct"),
    ]
    # The time of the selected algorithm.
    assert [node.best_ms for node in result.nodes] == [{2: 0.4}, {2: 0.5}]
    plans = convswap.explain(result.written, device="cpu", batch=2).convs
    assert [(plan.explanation["algorithm"], plan.explanation["decided_by"]) for plan in plans] == [
        ("reference", "file"),
        ("direct", "file"),
    ]
    # The rule decides for other sizes.
    plans = convswap.explain(result.written, device="cpu", batch=3).convs
    assert {(plan.explanation["algorithm"], plan.explanation["decided_by"]) for plan in plans} == {
        ("direct", "rule")
    }
    assert output_bytes(onnx.load(result.written), {}) == output_bytes(
        onnx.load(result.written), {"first": "reference", "second": "direct"}
    )
    assert output_bytes(onnx.load(result.written), {}) != output_bytes(
        onnx.load(result.written), {"first": "direct"}
    )


def output_bytes(model: onnx.ModelProto, algorithm_of: dict[str, str]) -> bytes:
    """Return the bits of the output for two samples, with the algorithms of some nodes set by name."""
    for node in model.graph.node:
        if node.name in algorithm_of:
            node.attribute.append(helper.make_attribute("algorithm", algorithm_of[node.name]))
    x = np.random.default_rng(5).standard_normal((2, 3, 12, 12)).astype(np.float32)
    return make_session(model, CONVSWAP, CPU).run(None, {"x": x})[0].tobytes()


def test_the_lines_have_the_form_of_the_tuning_table_and_all_times(set_times, tmp_path):
    set_times({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[2])
    (written,) = tuned_of(onnx.load(result.written))["first"]
    device, version, problem, algorithm, times = written.split(" | ")
    assert (device, version) == (_native.tuning_device("cpu"), _native.__version__)
    assert problem == convswap.explain(result.written, device="cpu", batch=2).convs[0].problem
    assert (algorithm, times) == ("reference", "reference 0.4, direct 0.5")


def test_each_batch_has_its_own_line_at_the_selected_stage(set_times, tmp_path):
    measurements = set_times({"first": {1: (0.5, 0.9), 4: (0.5, 0.3)}, "second": (0.5, 0.9)})
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu", batches=[1, 4])
    assert measurements == [(name, batch, max(STAGE_TIMES[name], key=lambda at: -1 if at is None else at))
                     for name in STAGE_TIMES for batch in (1, 4)]  # fmt: skip
    assert [node.algorithm for node in result.nodes] == ["direct, reference", "direct"]
    assert {name: len(lines) for name, lines in tuned_of(onnx.load(result.written)).items()} == {
        "first": 2,
        "second": 2,
    }
    for batch, algorithm in ((1, "direct"), (4, "reference")):
        plan = convswap.explain(result.written, device="cpu", batch=batch).convs[0]
        assert (plan.explanation["algorithm"], plan.explanation["decided_by"]) == (algorithm, "file")


def test_the_rules_choice_stays_where_another_is_faster_by_no_more_than_the_noise(set_times, tmp_path):
    set_times({"first": (0.5, 0.49), "second": (0.5, 0.48)})
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert [node.algorithm for node in result.nodes] == ["direct", "reference"]
    assert [node.best_ms for node in result.nodes] == [{1: 0.5}, {1: 0.48}]
    # The file records the measurement too, so that another build's rule does not change the choice.
    assert "| direct | reference 0.49, direct 0.5" in tuned_of(onnx.load(result.written))["first"][0]


@pytest.mark.parametrize(
    "first",
    [{DEFAULT_VARIANT: 1.0, Stage.FOLDED: 1.0}, {DEFAULT_VARIANT: 0.02, Stage.FOLDED: 0.01}],
    ids=["gains nothing", "takes no time"],
)
def test_a_conv_that_is_not_faster_or_takes_no_time_is_not_tried(set_times, first):
    measurements = set_times({"second": (0.5, 0.4)}, {**STAGE_TIMES, "first": first})
    optimize(network(), None, device="cpu", batches=[2])
    assert measurements == [("second", 2, Stage.ACTIVATION)]


def test_a_second_call_tries_nothing_again(set_times, monkeypatch):
    set_times({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    first = optimize(network(), None, device="cpu")
    monkeypatch.setattr(measuring, "times_by_algorithm", lambda *_: pytest.fail("it was tried before"))
    second = optimize(network(), None, device="cpu")
    assert [node.to_json() for node in second.nodes] == [node.to_json() for node in first.nodes]


def test_algorithm_less_accurate_than_the_default_is_not_selected(set_times, monkeypatch):
    set_times({"first": (0.5, 0.4), "second": (0.5, 0.4)})
    errors = {"default": 1e-3, "tf32": 1e-3}
    monkeypatch.setattr(measuring, "_precision", lambda *_: ("tf32", errors))
    compared = []

    def algorithm_error(segment, inputs, precision, algorithm, device):
        compared.append((segment.name, precision, algorithm))
        return {"first": 2e-3, "second": 1e-3}[segment.name]

    monkeypatch.setattr(measuring, "algorithm_error", algorithm_error)
    for _ in range(2):
        result = optimize(network(), None, device="cpu", batches=[2])
        assert [node.algorithm for node in result.nodes] == ["direct", "reference"]
    # Measured once, then cached.
    assert compared == [("first", "tf32", "reference"), ("second", "tf32", "reference")]


@pytest.mark.parametrize("error", [None, math.inf, math.nan])
def test_algorithm_of_unknown_error_is_not_selected(set_times, monkeypatch, error):
    set_times({"first": (0.5, 0.4), "second": (0.5, 0.4)})
    monkeypatch.setattr(measuring, "_precision", lambda *_: ("tf32", {"default": 1e-3, "tf32": 1e-3}))
    monkeypatch.setattr(measuring, "algorithm_error", lambda *_: error)
    assert {node.algorithm for node in optimize(network(), None, device="cpu").nodes} == {"direct"}


def test_on_a_cpu_there_is_nothing_to_try_and_no_time_goes_by(set_times, monkeypatch, tmp_path):
    real = measuring.candidate_algorithms
    set_times({})
    monkeypatch.setattr(measuring, "candidate_algorithms", real)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert tuned_of(onnx.load(result.written)) == {}
    assert [node.algorithm for node in result.nodes] == ["direct", "direct"]


def test_on_a_card_all_that_is_tried_is_compiled_before_the_first_is_timed(set_times, monkeypatch):
    measurements = set_times({"first": (0.5, 0.4), "second": (0.5, 0.6)})
    planned = []

    class Native:
        def __getattr__(self, name):
            return getattr(_native, name)

        def describe_plan(self, problem, device, algorithm):
            assert not measurements
            planned.append((problem.text.split("w=")[1].split()[0], device, algorithm))
            raise RuntimeError("there is no card, and what is wrong with a kernel is said when it is run")

    monkeypatch.setattr(measuring, "_native", Native())
    prepared = prepare(network(), OptimizeOptions(), CPU)
    shared = measuring.MeasurementContext(prepared, SegmentInputs(prepared), MeasurementCache({}))
    measured = measuring.measure_convs(shared)
    card = replace(prepared, device=Device("cuda", "asked for", {"name": "a card"}))
    monkeypatch.setattr(_native, "tuning_device", lambda device: "cuda a card")
    result = measuring.with_fastest_algorithms(measured, replace(shared, prepared=card))
    assert sorted(planned) == [
        (weights, "cuda", name) for weights in ("4x8x3x3", "8x3x3x3") for name in ("direct", "reference")
    ]
    assert [each.tuning_lines[0].split(" | ")[0] for each in result] == ["cuda a card"] * 2


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
    inputs = on_device({name: values for name in segment.layer.input_names}, CPU)
    choice = NodeChoice(precision="ieee", max_stage=Stage.ACTIVATION)
    # A CUDA algorithm does not run on the CPU.
    times = trials.times_by_algorithm(segment, inputs, choice, ["direct", "tiled", "reference"], CPU)
    assert list(times) == ["direct", "reference"]
    assert all(time > 0 for time in times.values())
    with pytest.raises(ConvswapError, match="tiled"):
        trials.times_by_algorithm(segment, inputs, choice, ["tiled", "direct"], CPU)


def test_the_error_is_that_of_the_algorithm():
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[0]
    values = np.random.default_rng(2).standard_normal((1, 3, 12, 12)).astype(np.float32)
    inputs = on_device({name: values for name in segment.layer.input_names}, CPU)
    errors = {
        name: trials.algorithm_error(segment, inputs, "ieee", name, CPU) for name in ("direct", "reference")
    }
    # The reference sums in float64 and rounds once.
    assert 0 < errors["reference"] < errors["direct"] < 1e-6


def test_the_error_of_a_precision_is_that_of_the_rules_choice_at_every_batch(monkeypatch):
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
    of_both_batches = trials.conv_errors(segment, by_batch, CPU)["tf32"]
    assert shapes_chosen == [1, 1, 2, 2]  # unfused and fully fused
    of_first_batch = trials.conv_errors(segment, by_batch[:1], CPU)["tf32"]
    # The reference sums in float64 and rounds once.
    assert 0 < of_first_batch < of_both_batches < 1e-6


def test_errors_and_digests_are_of_the_external_weights_with_foldings():
    """A Conv with weights of 1 MiB, which `optimize` holds in memory once, and a batch normalisation."""
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
        inputs = on_device({"x": np.ones((1, 512, 4, 4), np.float32)}, CPU)
        errors = trials.conv_errors(segment, [inputs], CPU)
        assert errors.keys() == {"default", "tf32"} and all(0 < error < 1e-6 for error in errors.values())
        assert 0 < trials.algorithm_error(segment, inputs, "ieee", "direct", CPU) < 1e-6
    assert digests[0] != digests[1]


def test_an_algorithm_that_does_not_support_the_segment_has_no_error(monkeypatch):
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[0]
    inputs = on_device({name: np.ones((1, 3, 12, 12), np.float32) for name in segment.layer.input_names}, CPU)
    monkeypatch.setattr(_native, "why_not", lambda *_: "it takes larger ones")
    assert trials.algorithm_error(segment, inputs, "ieee", "direct", CPU) is None


def test_the_problem_of_each_stage_is_that_of_the_written_node():
    prepared = prepare(network(), OptimizeOptions(), CPU)
    segment = prepared.segments[1]
    shapes = {name: (2, 8, 12, 12) for name in segment.layer.input_names}
    for stage in segment.stages:
        written = segment.convswap_model(shapes, NodeChoice(precision="ieee", max_stage=stage))
        (conv,) = convswap.explain(written.message, device="cpu").convs
        layer = segment.convswap_layer(shapes, NodeChoice(precision="ieee", max_stage=stage))
        assert conv.problem == layer.problem(shapes).text
