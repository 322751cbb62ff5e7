"""Which Convs are taken together into the model that `optimize` writes, and what is compiled before."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from convswap.graph.fusion.fuse import Stage
from convswap.optimizing import end_to_end, measuring
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.end_to_end import EndToEnd, best_end_to_end
from convswap.optimizing.measurement_cache import Measurement
from convswap.optimizing.measuring import MeasuredSegment
from convswap.optimizing.optimize import node_results
from convswap.optimizing.preparation import OptimizeOptions, SegmentInputs, prepare
from convswap.optimizing.result import EndToEndResult
from convswap.runtime.device import Device
from test_optimize import CPU, network

CARD = Device("cuda", "asked for", {"name": "a card"})
GAINING = {"stem": 0.5, "block": 1.02, "last": 1.5}


@pytest.fixture(autouse=True)
def own_table(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / "tuning.txt"))


def measured_on(device: Device, ours=GAINING, precision="tf32"):
    """Return the network, prepared, and its Convs, of which the default takes 1 ms each."""
    prepared = replace(prepare(network(), OptimizeOptions(), CPU), device=device)
    convs = [
        MeasuredSegment(
            segment,
            Measurement(precision, None, {DEFAULT_VARIANT: (1.0,), Stage.FOLDED: (ours[segment.name],)}),
            ({},),
        )
        for segment in prepared.segments
    ]
    return prepared, convs


def run_candidates(monkeypatch, found):
    """Have whole models of Convs by these names run in these milliseconds, where the original takes 1."""
    asked = []

    def run_end_to_end(original, taken):
        names = tuple(one.segment.name for one in taken)
        asked.append(names)
        milliseconds, agree = found[names]
        choices = {name: None for name in names}
        return EndToEnd(choices=choices, times=(EndToEndResult(1, 1.0, milliseconds),), outputs_agree=agree)

    monkeypatch.setattr(end_to_end, "_run_end_to_end", run_end_to_end)
    return asked


def test_on_a_card_what_loses_little_alone_is_tried_with_the_rest(monkeypatch):
    prepared, convs = measured_on(CARD)
    both = ("stem",), ("stem", "block")
    asked = run_candidates(monkeypatch, {both[0]: (0.8, True), both[1]: (0.7, True)})
    assert tuple(best_end_to_end(prepared, convs).choices) == both[1] and tuple(asked) == both
    rows = {row.node: row for row in node_results(prepared, convs, best_end_to_end(prepared, convs))}
    assert rows["block"].taken == "swapped"
    assert rows["block"].why == "0.98x as fast alone, but the whole model is faster with it"
    assert rows["stem"].why == "2.00x as fast" and rows["last"].taken == "default"
    run_candidates(monkeypatch, {both[0]: (0.7, True), both[1]: (0.8, True)})
    assert tuple(best_end_to_end(prepared, convs).choices) == both[0]


def test_on_a_card_the_whole_is_tried_where_no_conv_gains_alone_and_must_gain_more_than_noise(monkeypatch):
    prepared, convs = measured_on(CARD, {"stem": 1.0, "block": 1.05, "last": 1.5})
    near = ("stem", "block")
    asked = run_candidates(monkeypatch, {near: (0.9, True)})
    best = best_end_to_end(prepared, convs)
    assert tuple(best.choices) == near and asked == [near]
    rows = {row.node: row for row in node_results(prepared, convs, best)}
    assert rows["block"].why == "0.95x as fast alone, but the whole model is faster with it"
    asked = run_candidates(monkeypatch, {near: (0.99, True)})
    assert best_end_to_end(prepared, convs) == EndToEnd() and asked == [near]
    # On the CPU, where a Conv depends on its neighbours and a run takes long, nothing is.
    assert best_end_to_end(replace(prepared, device=CPU), convs) == EndToEnd() and asked == [near]


def test_on_a_card_nothing_is_tried_where_all_lose_much_or_ours_is_less_accurate(monkeypatch):
    asked = run_candidates(monkeypatch, {})
    for given in ({"ours": dict.fromkeys(GAINING, 1.2)}, {"precision": None}):
        assert best_end_to_end(*measured_on(CARD, **given)) == EndToEnd()
    assert asked == []


def test_on_a_card_what_takes_in_more_is_tried_though_alone_less_is_faster(monkeypatch):
    prepared, convs = measured_on(CARD, {"stem": 0.5, "block": 0.6, "last": 0.7})
    # 0.85 of the speed is little to lose, less is not.
    more = {"stem": 0.58, "block": 0.71, "last": 0.65}
    convs = [
        replace(one, measurement=replace(one.measurement, times={**one.times, Stage.ACTIVATION: (own,)}))
        for one, own in zip(convs, (more[one.segment.name] for one in convs), strict=True)
    ]
    monkeypatch.setattr(measuring, "_native", SimpleNamespace(choose=lambda problem, device: "naive"))
    monkeypatch.setattr(MeasuredSegment, "problems", ["a problem"])
    asked = []

    def run_end_to_end(original, taken):
        asked.append({one.segment.name: one.convswap_variant for one in taken})
        times = (EndToEndResult(1, 1.0, 0.9 - 0.1 * len(asked)),)
        named = {one.segment.name: one for one in taken}
        return EndToEnd(choices=dict.fromkeys(named), convs=named, times=times, outputs_agree=True)

    monkeypatch.setattr(end_to_end, "_run_end_to_end", run_end_to_end)
    best = best_end_to_end(prepared, convs)
    alone = {"stem": Stage.FOLDED, "block": Stage.FOLDED, "last": Stage.ACTIVATION}
    assert asked == [alone, {**alone, "stem": Stage.ACTIVATION}]
    assert best.convs["stem"].algorithms == ("naive",) and best.convs["stem"].tuning_lines == ()
    rows = {row.node: row for row in node_results(prepared, convs, best)}
    assert rows["stem"].why.startswith("1.72x as fast alone; fused this far")
    assert rows["stem"].taken == "fused" and rows["block"].taken == "swapped"


def test_a_faster_model_whose_answers_differ_is_not_preferred(monkeypatch):
    prepared, convs = measured_on(CARD)
    both = ("stem",), ("stem", "block")
    run_candidates(monkeypatch, {both[0]: (0.8, True), both[1]: (0.5, False)})
    assert tuple(best_end_to_end(prepared, convs).choices) == both[0]
    # Where no answers agree, it is the fastest that is told of.
    run_candidates(monkeypatch, {both[0]: (0.8, False), both[1]: (0.5, False)})
    assert tuple(best_end_to_end(prepared, convs).choices) == both[1]


def test_on_a_card_every_segment_is_compiled_alone_and_with_what_it_takes_in_at_each_batch(monkeypatch):
    prepared = prepare(network(), OptimizeOptions(batches=(1, 3)), CPU)
    inputs, compiled = SegmentInputs(prepared), []
    fed = [(segment, inputs.shapes(segment)) for segment in prepared.segments]
    monkeypatch.setattr(measuring, "compile_in_parallel", lambda wanted: compiled.extend(wanted))
    monkeypatch.setattr(measuring, "_native", SimpleNamespace(choose=lambda problem, device: "naive"))
    measuring._compile(prepared, fed, "ieee")
    assert compiled == []
    measuring._compile(replace(prepared, device=CARD), fed, "ieee")
    texts = [problem.text for problem, algorithm in compiled if algorithm == "naive"]
    assert len(texts) == 3 * 2 * 2 and all(text.startswith("float32 ieee ") for text in texts)
    assert sum("then=" in text for text in texts) == 3 * 2
    assert {text.split("x=")[1].split("x")[0] for text in texts} == {"1", "3"}
