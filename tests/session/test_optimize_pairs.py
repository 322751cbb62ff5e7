"""`optimize` and a depthwise Conv before a 1x1 Conv: one node if the pair is faster than both Convs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest
from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Stage
from convswap.graph.swap import NodeChoice, swap_selected
from convswap.optimizing import end_to_end, measuring, pairs
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.measurement_cache import MeasurementCache
from convswap.optimizing.measuring import MeasurementContext, measure_convs
from convswap.optimizing.optimize import optimize
from convswap.optimizing.pairs import faster_pairs
from convswap.optimizing.preparation import OptimizeOptions, SegmentInputs, prepare
from convswap.optimizing.trials import choices_times
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session
from fuse_models import array, declare, tensor
from onnx import helper
from swap_models import text_model

C, K = 8, 6
CPU = Device("cpu", "asked for")
NAMES = ("depthwise", "pointwise")


def network() -> onnx.ModelProto:
    """Return the block of an inverted residual, whose Convs differ in nothing but their names."""
    nodes = """
      [expand] e = Conv <pads = [0, 0, 0, 0]> (x, ew)
      [relu_f] f = Relu(e)
      [depthwise] d = Conv <pads = [1, 1, 1, 1], group = 8> (f, dw)
      [relu_r] r = Relu(d)
      [pointwise] p = Conv <pads = [0, 0, 0, 0]> (r, pw, b)
      [add_y] y = Add(x, p)"""
    constants = {
        "ew": array("ew", C, K, 1, 1),
        "dw": array("dw", C, 1, 3, 3),
        "pw": array("pw", K, C, 1, 1),
        "b": array("b", K),
    }
    tensors = (tensor(name, values) for name, values in constants.items())
    return text_model(nodes, *tensors, inputs="float[n, 6, 9, 8] x", outputs="float[n, 6, 9, 8] y")


@pytest.fixture
def set_times(monkeypatch):
    """Return a function that sets the measured times, and returns the choices measured for pairs."""
    measurements = []

    def pretend(our_milliseconds: dict[str, float], together: float, candidates=None):
        def variant_times(segment, inputs, precision, device):
            return {DEFAULT_VARIANT: 1.0} | dict.fromkeys(
                segment.stages, our_milliseconds.get(segment.name, 2.0)
            )

        def choices_times(segment, inputs, choices, device):
            measurements.append((segment.depthwise, segment.name, sorted(inputs), choices))
            return [1.0, together]

        # By default each candidate is faster than the one before.
        whole_ms = candidates or (1.0 / (1 + number) for number in itertools.count())

        def end_to_end_times(sessions, feeds, device):
            return [2.0, next(whole_ms)]

        monkeypatch.setattr(measuring, "variant_times", variant_times)
        monkeypatch.setattr(pairs, "choices_times", choices_times)
        monkeypatch.setattr(end_to_end, "end_to_end_times", end_to_end_times)
        return measurements

    return pretend


def written_nodes(result) -> dict[str, tuple[str, int]]:
    nodes = onnx.load(result.written).graph.node
    return {each.name: (each.op_type, len(each.input)) for each in nodes if each.domain == "convswap"}


def test_pair_that_is_faster_than_both_convs_is_one_node(set_times, tmp_path):
    measurements = set_times({"depthwise": 0.5}, together=0.8)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    ((depthwise, pointwise, inputs, (separate, together)),) = measurements
    # The pair is compared with the faster Conv swapped and the other Conv unchanged.
    assert (depthwise, pointwise, inputs, list(separate)) == (*NAMES, ["f", "x"], ["depthwise"])
    assert set(together) == set(NAMES) and all(choice.may_pair for choice in together.values())
    assert written_nodes(result) == {"pointwise": ("FusedConv", 6)}
    rows = {row.node: row for row in result.nodes}
    assert {name: row.taken for name, row in rows.items()} == {
        "expand": "default",
        "depthwise": "fused",
        "pointwise": "fused",
    }
    assert rows["depthwise"].why == "in one node with pointwise: 1.25x as fast as two nodes"
    assert rows["pointwise"].why == "in one node with depthwise: 1.25x as fast as two nodes"
    assert rows["pointwise"].takes_in == ("Conv", "Relu", "Add") and rows["depthwise"].takes_in == ()
    assert result.answers_agree


def test_pair_is_fused_where_neither_is_faster_alone(set_times, tmp_path):
    measurements = set_times({}, together=0.8)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert measurements[0][-1][0] == {}
    assert written_nodes(result) == {"pointwise": ("FusedConv", 6)}


@pytest.mark.parametrize("together", [0.99, 1.5])
def test_pair_that_is_faster_by_no_more_than_noise_stays_two(set_times, tmp_path, together):
    set_times({"depthwise": 0.5, "pointwise": 0.5}, together, itertools.repeat(1.0))
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(result)) == set(NAMES)
    assert [row.why for row in result.nodes if row.node in NAMES] == ["2.00x as fast"] * 2


def test_pair_stays_two_where_the_whole_model_is_slower_with_it(set_times, tmp_path):
    times = [1.0, 1.0] * 2 + [1.2, 1.2]
    set_times({"depthwise": 0.5, "pointwise": 0.5}, 0.8, iter(times))
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(result)) == set(NAMES)


def test_model_without_the_pair_that_is_faster_by_noise_is_not_written(set_times, monkeypatch):
    # On a card a model with the nearly fastest Convs is tried too: it is 0.1 % faster, and slower with the
    # pair.
    monkeypatch.setattr(end_to_end, "_selections", lambda _prepared, measured, _faster: [measured[:1]])
    set_times({}, 0.8, itertools.chain([1.998] * 2, itertools.repeat(2.2)))
    result = optimize(network(), device="cpu")
    assert not result.gains and {row.taken for row in result.nodes} == {"default"}


def test_pair_is_tried_by_itself_where_the_model_without_it_loses(set_times, tmp_path):
    # Every model with the faster Conv swapped is slower end to end.
    def times(models):
        for loses in models:
            yield from [2.5 if loses else 1.0] * 2

    set_times({"expand": 0.5}, 0.8, times([True, False]))
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(result)) == {"pointwise"}


def test_a_second_call_measures_no_pair_again(set_times, monkeypatch):
    set_times({"depthwise": 0.5}, together=0.8)
    first = optimize(network(), device="cpu", batches=[1, 3])
    monkeypatch.setattr(pairs, "choices_times", lambda *_: pytest.fail("it was measured before"))
    second = optimize(network(), device="cpu", batches=[1, 3])
    assert [row.to_json() for row in second.nodes] == [row.to_json() for row in first.nodes]
    assert first.nodes[-1].why.startswith("in one node")


def test_pair_of_two_precisions_is_not_measured(set_times):
    measurements = set_times({"depthwise": 0.5}, together=0.8)
    prepared = prepare(network(), OptimizeOptions(), CPU)
    shared = MeasurementContext(prepared, SegmentInputs(prepared), MeasurementCache({}))
    measured = measure_convs(shared)
    faster = faster_pairs(measured, shared)
    assert [pair.names for pair in faster] == [NAMES] and len(measurements) == 1
    for precision in ("tf32", None):
        changed = [
            replace(conv, measurement=replace(conv.measurement, precision=precision))
            if conv.segment.name == "depthwise"
            else conv
            for conv in measured
        ]
        assert faster_pairs(changed, shared) == ()
    assert len(measurements) == 1


def test_pairs_are_timed_and_the_model_with_one_gives_the_same_outputs():
    prepared = prepare(network(), OptimizeOptions(batches=(2,)), CPU)
    (segment,) = prepared.pair_segments
    assert (segment.depthwise, segment.name) == NAMES
    inputs = SegmentInputs(prepared)
    feeds = {}
    for conv in prepared.segments:
        if conv.name in NAMES:
            feeds |= inputs.of(conv)[0]
    feeds = {name: feeds[name] for name in segment.layer.input_names}
    choices = dict.fromkeys(NAMES, NodeChoice(precision="ieee", may_pair=True))
    separate = {"pointwise": NodeChoice(precision="ieee", max_stage=Stage.FOLDED)}
    times = choices_times(segment, feeds, [{}, separate, choices], CPU)
    assert len(times) == 3 and min(times) > 0
    together = swap_selected(network(), choices, "it is another").to_proto()
    assert [each.op_type for each in together.graph.node] == ["Conv", "Relu", "FusedConv"]
    x = np.random.default_rng(1).standard_normal((3, K, 9, 8)).astype(np.float32)
    before, after = (
        make_session(proto, side, CPU).run(None, {"x": x})[0]
        for proto, side in ((network(), DEFAULT), (together, CONVSWAP))
    )
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_only_where_both_may_pair_is_there_one_node():
    for name in NAMES:
        choices = {each: NodeChoice(may_pair=each == name) for each in NAMES}
        swapped = swap_selected(network(), choices, "it is another").to_proto()
        assert sum(each.domain == "convswap" for each in swapped.graph.node) == 2


def test_pair_that_does_not_run_stays_two(set_times, monkeypatch, tmp_path):
    set_times({"depthwise": 0.5, "pointwise": 0.5}, 0.8, itertools.repeat(1.0))

    def refuse(*_):
        raise ConvswapError("it needs scratch memory")

    monkeypatch.setattr(pairs, "choices_times", refuse)
    result = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(result)) == set(NAMES)


def test_a_node_of_the_same_name_is_no_part_of_a_pair():
    twice = network()
    twice.graph.node.append(helper.make_node("Conv", ["x", "ew"], ["other"], name="pointwise"))
    twice.graph.output.append(declare("other", ("n", C, 9, 8)))
    prepared = prepare(twice, OptimizeOptions(), CPU)
    assert [pair.name for pair in prepared.pair_segments] == [
        "pointwise"
    ] and "pointwise_2" in prepared.swappable
