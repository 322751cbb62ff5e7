"""Selection of the Convs for the model that `optimize` writes, and the kernels compiled beforehand."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType, SimpleNamespace

from convswap.graph.fusion.fuse import Stage
from convswap.graph.layout.choose import LayoutChange
from convswap.optimizing import end_to_end, measuring
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.end_to_end import Candidate, best_end_to_end
from convswap.optimizing.measurement_cache import Measurement
from convswap.optimizing.measuring import MeasuredSegment
from convswap.optimizing.optimize import node_results
from convswap.optimizing.preparation import OptimizeOptions, SegmentInputs, prepare
from convswap.optimizing.result import WholeModelTimes
from convswap.runtime.device import Device
from test_optimize import CPU, network

CARD = Device("cuda", "asked for", {"name": "a card"})
OUR_MILLISECONDS = {"stem": 0.5, "block": 1.02, "last": 1.5}


def measured_on(device: Device, our_milliseconds=OUR_MILLISECONDS, precision="tf32"):
    """Return the prepared network and its Convs, each of which takes 1 ms by default."""
    prepared = replace(prepare(network(), OptimizeOptions(), CPU), device=device)
    convs = [
        MeasuredSegment(
            segment,
            Measurement(
                precision, None, {DEFAULT_VARIANT: (1.0,), Stage.FOLDED: (our_milliseconds[segment.name],)}
            ),
            ({},),
        )
        for segment in prepared.segments
    ]
    return prepared, convs


def run_candidates(monkeypatch, results, nhwc=MappingProxyType({})):
    """Set end-to-end milliseconds by names of Convs (the original takes 1 ms); return the names that run.

    `nhwc` has the candidates with tensors in NHWC, by layout and names.
    """
    candidates = []

    def run_end_to_end(original, selected, pairs=(), layout="nchw"):
        names = tuple(each.segment.name for each in selected)
        if layout != "nchw":
            return nhwc.get((layout, names), Candidate())
        candidates.append(names)
        milliseconds, agree = results[names]
        choices = {name: None for name in names}
        return Candidate(choices=choices, times=(WholeModelTimes(1, 1.0, milliseconds),), outputs_agree=agree)

    monkeypatch.setattr(end_to_end, "_run_end_to_end", run_end_to_end)
    return candidates


def test_on_a_card_convs_that_are_slightly_slower_alone_are_tried_too(monkeypatch):
    prepared, convs = measured_on(CARD)
    models = ("stem",), ("stem", "block")
    candidates = run_candidates(monkeypatch, {models[0]: (0.8, True), models[1]: (0.7, True)})
    assert tuple(best_end_to_end(prepared, convs).choices) == models[1] and tuple(candidates) == models
    rows = {row.node: row for row in node_results(prepared, convs, best_end_to_end(prepared, convs))}
    assert rows["block"].taken == "swapped"
    assert rows["block"].why == "0.98x as fast alone, but the whole model is faster with it"
    assert rows["stem"].why == "2.00x as fast" and rows["last"].taken == "default"
    run_candidates(monkeypatch, {models[0]: (0.7, True), models[1]: (0.8, True)})
    assert tuple(best_end_to_end(prepared, convs).choices) == models[0]


def test_on_a_card_all_convs_are_tried_where_none_is_faster_alone_and_must_be_faster_than_noise(monkeypatch):
    prepared, convs = measured_on(CARD, {"stem": 1.0, "block": 1.05, "last": 1.5})
    nearly_faster = ("stem", "block")
    candidates = run_candidates(monkeypatch, {nearly_faster: (0.9, True)})
    best = best_end_to_end(prepared, convs)
    assert tuple(best.choices) == nearly_faster and candidates == [nearly_faster]
    rows = {row.node: row for row in node_results(prepared, convs, best)}
    assert rows["block"].why == "0.95x as fast alone, but the whole model is faster with it"
    candidates = run_candidates(monkeypatch, {nearly_faster: (0.99, True)})
    assert best_end_to_end(prepared, convs) == Candidate() and candidates == [nearly_faster]
    # On the CPU no such model is tried: there a Conv depends on its neighbours, and a run takes long.
    assert best_end_to_end(replace(prepared, device=CPU), convs) == Candidate() and candidates == [
        nearly_faster
    ]


def test_on_a_card_nothing_is_tried_where_all_are_much_slower_or_less_accurate(monkeypatch):
    candidates = run_candidates(monkeypatch, {})
    for options in ({"our_milliseconds": dict.fromkeys(OUR_MILLISECONDS, 1.2)}, {"precision": None}):
        assert best_end_to_end(*measured_on(CARD, **options)) == Candidate()
    assert candidates == []


def test_on_a_card_later_stages_are_tried_though_earlier_ones_are_faster_alone(monkeypatch):
    prepared, convs = measured_on(CARD, {"stem": 0.5, "block": 0.6, "last": 0.7})
    # A stage that reaches 0.85 of the fastest stage's speed is tried; slower stages are not.
    activation_ms = {"stem": 0.58, "block": 0.71, "last": 0.65}
    convs = [
        replace(
            conv,
            measurement=replace(conv.measurement, times={**conv.times, Stage.ACTIVATION: (milliseconds,)}),
        )
        for conv, milliseconds in zip(
            convs, (activation_ms[conv.segment.name] for conv in convs), strict=True
        )
    ]
    monkeypatch.setattr(measuring, "_native", SimpleNamespace(choose=lambda problem, device: "naive"))
    monkeypatch.setattr(MeasuredSegment, "problems", ["a problem"])
    candidates = []

    def run_end_to_end(original, selected, pairs=(), layout="nchw"):
        if layout != "nchw":
            return Candidate()
        candidates.append({conv.segment.name: conv.convswap_variant for conv in selected})
        times = (WholeModelTimes(1, 1.0, 0.9 - 0.1 * len(candidates)),)
        by_name = {conv.segment.name: conv for conv in selected}
        return Candidate(choices=dict.fromkeys(by_name), convs=by_name, times=times, outputs_agree=True)

    monkeypatch.setattr(end_to_end, "_run_end_to_end", run_end_to_end)
    best = best_end_to_end(prepared, convs)
    fastest = {"stem": Stage.FOLDED, "block": Stage.FOLDED, "last": Stage.ACTIVATION}
    assert candidates == [fastest, {**fastest, "stem": Stage.ACTIVATION}]
    assert best.convs["stem"].algorithms == ("naive",) and best.convs["stem"].tuning_lines == ()
    rows = {row.node: row for row in node_results(prepared, convs, best)}
    assert rows["stem"].why.startswith("1.72x as fast alone; fused this far")
    assert rows["stem"].taken == "fused" and rows["block"].taken == "swapped"


def test_a_faster_model_whose_outputs_differ_is_not_preferred(monkeypatch):
    prepared, convs = measured_on(CARD)
    models = ("stem",), ("stem", "block")
    run_candidates(monkeypatch, {models[0]: (0.8, True), models[1]: (0.5, False)})
    assert tuple(best_end_to_end(prepared, convs).choices) == models[0]
    # If no model's outputs agree, the fastest model is returned.
    run_candidates(monkeypatch, {models[0]: (0.8, False), models[1]: (0.5, False)})
    assert tuple(best_end_to_end(prepared, convs).choices) == models[1]


def test_on_a_card_all_convs_are_tried_with_tensors_in_nhwc(monkeypatch):
    prepared, convs = measured_on(CARD)
    everything = tuple(conv.segment.name for conv in convs)
    names = ("stem",)
    change = LayoutChange({"stem": ("output",)})

    def candidate(layout, milliseconds):
        times = (WholeModelTimes(1, 1.0, milliseconds),)
        return Candidate(
            dict.fromkeys(everything), times=times, outputs_agree=True, layout=change, layout_option=layout
        )

    in_nchw = {names: (0.8, True), ("stem", "block"): (0.9, True)}
    nhwc = {(layout, everything): candidate(layout, ms) for layout, ms in (("auto", 0.5), ("nhwc", 0.4))}
    run_candidates(monkeypatch, in_nchw, nhwc)
    best = best_end_to_end(prepared, convs)
    assert (best.layout, best.layout_option, tuple(best.choices)) == (change, "nhwc", everything)
    nhwc["nhwc", everything] = candidate("nhwc", 0.6)
    assert best_end_to_end(prepared, convs).layout_option == "auto"
    # Without a card there are no kernels for NHWC.
    run_candidates(monkeypatch, {names: (0.8, True)}, nhwc)
    assert best_end_to_end(replace(prepared, device=CPU), convs).layout is None


def test_on_a_card_every_segment_is_compiled_unfused_and_fused_at_each_batch(monkeypatch):
    prepared = prepare(network(), OptimizeOptions(batches=(1, 3)), CPU)
    inputs, compiled = SegmentInputs(prepared), []
    shapes = [(segment, inputs.shapes(segment)) for segment in prepared.segments]
    monkeypatch.setattr(measuring, "compile_in_parallel", lambda kernels: compiled.extend(kernels))
    monkeypatch.setattr(measuring, "_native", SimpleNamespace(choose=lambda problem, device: "naive"))
    measuring._compile(prepared, shapes, "ieee")
    assert compiled == []
    measuring._compile(replace(prepared, device=CARD), shapes, "ieee")
    texts = [problem.text for problem, algorithm in compiled if algorithm == "naive"]
    assert len(texts) == 3 * 2 * 2 and all(text.startswith("float32 ieee ") for text in texts)
    assert sum("then=" in text for text in texts) == 3 * 2
    assert {text.split("x=")[1].split("x")[0] for text in texts} == {"1", "3"}
