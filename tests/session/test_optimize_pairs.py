"""`optimize` and a depthwise Conv in front of a 1x1 Conv: one node where it is faster than both apart."""

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
    """Return the block of an inverted residual, whose Convs are the same in all but their names."""
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


@pytest.fixture(autouse=True)
def own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / "kept" / "tuning.txt"))


@pytest.fixture
def pretended(monkeypatch):
    """Return what sets the times that are measured, and has the choices that pairs were asked for."""
    asked = []

    def pretend(ours: dict[str, float], together: float, candidates=None):
        def variant_times(segment, inputs, precision, device):
            return {DEFAULT_VARIANT: 1.0} | dict.fromkeys(segment.stages, ours.get(segment.name, 2.0))

        def choices_times(segment, inputs, ways, device):
            asked.append((segment.depthwise, segment.name, sorted(inputs), ways))
            return [1.0, together]

        # Each that is tried is faster than the one before, where nothing else is said.
        whole_ms = candidates or (1.0 / (1 + number) for number in itertools.count())

        def end_to_end_times(sessions, feeds, device):
            return [2.0, next(whole_ms)]

        monkeypatch.setattr(measuring, "variant_times", variant_times)
        monkeypatch.setattr(pairs, "choices_times", choices_times)
        monkeypatch.setattr(end_to_end, "end_to_end_times", end_to_end_times)
        return asked

    return pretend


def written_nodes(found) -> dict[str, tuple[str, int]]:
    nodes = onnx.load(found.written).graph.node
    return {each.name: (each.op_type, len(each.input)) for each in nodes if each.domain == "convswap"}


def test_pair_that_is_faster_than_both_apart_is_one_node(pretended, tmp_path):
    asked = pretended({"depthwise": 0.5}, together=0.8)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    ((front, behind, fed, (apart, together)),) = asked
    # The one against which it is measured has the Conv that gains, and the other as it was.
    assert (front, behind, fed, list(apart)) == (*NAMES, ["f", "x"], ["depthwise"])
    assert set(together) == set(NAMES) and all(choice.may_pair for choice in together.values())
    assert written_nodes(found) == {"pointwise": ("FusedConv", 6)}
    rows = {row.node: row for row in found.nodes}
    assert {name: row.taken for name, row in rows.items()} == {
        "expand": "default",
        "depthwise": "fused",
        "pointwise": "fused",
    }
    assert rows["depthwise"].why == "in one node with pointwise: 1.25x as fast as two nodes"
    assert rows["pointwise"].why == "in one node with depthwise: 1.25x as fast as two nodes"
    assert rows["pointwise"].takes_in == ("Conv", "Relu", "Add") and rows["depthwise"].takes_in == ()
    assert found.answers_agree


def test_pair_is_taken_where_neither_gains_alone(pretended, tmp_path):
    asked = pretended({}, together=0.8)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert asked[0][-1][0] == {}
    assert written_nodes(found) == {"pointwise": ("FusedConv", 6)}


@pytest.mark.parametrize("together", [0.99, 1.5])
def test_pair_that_gains_no_more_than_noise_stays_two(pretended, tmp_path, together):
    pretended({"depthwise": 0.5, "pointwise": 0.5}, together, itertools.repeat(1.0))
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(found)) == set(NAMES)
    assert [row.why for row in found.nodes if row.node in NAMES] == ["2.00x as fast"] * 2


def test_pair_stays_two_where_the_whole_model_is_slower_with_it(pretended, tmp_path):
    times = [1.0, 1.0] * 2 + [1.2, 1.2]
    pretended({"depthwise": 0.5, "pointwise": 0.5}, 0.8, iter(times))
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(found)) == set(NAMES)


def test_model_without_the_pair_that_gains_only_noise_is_none(pretended, monkeypatch):
    # On a card a model of the Convs that lose little is tried too: 0.1 % faster, that with the pair slower.
    monkeypatch.setattr(end_to_end, "_selections", lambda _prepared, measured, _faster: [measured[:1]])
    pretended({}, 0.8, itertools.chain([1.998] * 2, itertools.repeat(2.2)))
    found = optimize(network(), device="cpu")
    assert not found.gains and {row.taken for row in found.nodes} == {"default"}


def test_pair_is_tried_by_itself_where_the_model_without_it_loses(pretended, tmp_path):
    # Of the Conv that gains alone the whole model gets slower, whatever is taken with it.
    def times(models):
        for loses in models:
            yield from [2.5 if loses else 1.0] * 2

    pretended({"expand": 0.5}, 0.8, times([True, False]))
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(found)) == {"pointwise"}


def test_a_second_call_measures_no_pair_again(pretended, monkeypatch):
    pretended({"depthwise": 0.5}, together=0.8)
    first = optimize(network(), device="cpu", batches=[1, 3])
    monkeypatch.setattr(pairs, "choices_times", lambda *_: pytest.fail("it was measured before"))
    second = optimize(network(), device="cpu", batches=[1, 3])
    assert [row.to_json() for row in second.nodes] == [row.to_json() for row in first.nodes]
    assert first.nodes[-1].why.startswith("in one node")


def test_pair_of_two_precisions_is_not_measured(pretended):
    asked = pretended({"depthwise": 0.5}, together=0.8)
    prepared = prepare(network(), OptimizeOptions(), CPU)
    shared = MeasurementContext(prepared, SegmentInputs(prepared), MeasurementCache({}))
    measured = measure_convs(shared)
    found = faster_pairs(measured, shared)
    assert [pair.names for pair in found] == [NAMES] and len(asked) == 1
    for precision in ("tf32", None):
        other = [
            replace(one, measurement=replace(one.measurement, precision=precision))
            if one.segment.name == "depthwise"
            else one
            for one in measured
        ]
        assert faster_pairs(other, shared) == ()
    assert len(asked) == 1


def test_pairs_are_timed_and_the_model_with_one_answers_as_it_was():
    prepared = prepare(network(), OptimizeOptions(batches=(2,)), CPU)
    (segment,) = prepared.pairs
    assert (segment.depthwise, segment.name) == NAMES
    inputs = SegmentInputs(prepared)
    fed = {}
    for one in prepared.segments:
        if one.name in NAMES:
            fed |= inputs.of(one)[0]
    fed = {name: fed[name] for name in segment.layer.input_names}
    choices = dict.fromkeys(NAMES, NodeChoice(precision="ieee", may_pair=True))
    apart = {"pointwise": NodeChoice(precision="ieee", max_stage=Stage.FOLDED)}
    times = choices_times(segment, fed, [{}, apart, choices], CPU)
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
        found = swap_selected(network(), choices, "it is another").to_proto()
        assert sum(each.domain == "convswap" for each in found.graph.node) == 2


def test_pair_that_does_not_run_stays_two(pretended, monkeypatch, tmp_path):
    pretended({"depthwise": 0.5, "pointwise": 0.5}, 0.8, itertools.repeat(1.0))

    def refuse(*_):
        raise ConvswapError("it needs scratch memory")

    monkeypatch.setattr(pairs, "choices_times", refuse)
    found = optimize(network(), tmp_path / "faster.onnx", device="cpu")
    assert set(written_nodes(found)) == set(NAMES)


def test_a_node_of_the_same_name_is_no_part_of_a_pair():
    twice = network()
    twice.graph.node.append(helper.make_node("Conv", ["x", "ew"], ["other"], name="pointwise"))
    twice.graph.output.append(declare("other", ("n", C, 9, 8)))
    prepared = prepare(twice, OptimizeOptions(), CPU)
    assert [pair.name for pair in prepared.pairs] == ["pointwise"] and "pointwise_2" in prepared.swapped
