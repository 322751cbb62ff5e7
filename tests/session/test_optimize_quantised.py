"""On a card, `optimize` tries the whole model with QuantConv; on the CPU it leaves quantised Convs."""

from __future__ import annotations

import json
from dataclasses import replace

import onnx
import pytest
import quantised_models as models
from comparisons import saved
from convswap.cli.main import main
from convswap.graph.swap import quantised_convs, swap
from convswap.optimizing import end_to_end
from convswap.optimizing.end_to_end import best_end_to_end
from convswap.optimizing.optimize import _swap_best, node_results
from convswap.optimizing.preparation import OptimizeOptions, prepare
from convswap.optimizing.result import WholeModelTimes
from convswap.runtime.device import Device

CPU = Device("cpu", "asked for")
NAMES = {"stem", "a1", "a2", "b1", "b2"}


def prepared_as_on_a_card(model: onnx.ModelProto):
    """Return `model` prepared for sessions of the CPU, and for QuantConv as on a card."""
    prepared = prepare(model, OptimizeOptions(), CPU)
    return replace(prepared, quantised=quantised_convs(prepared.original))


def set_speedup(monkeypatch, speedup: float) -> None:
    monkeypatch.setattr(end_to_end._Original, "times", lambda *_: (WholeModelTimes(1, 1.0, 1 / speedup),))


@pytest.mark.parametrize("qdq", [True, False], ids=["qdq", "qoperator"])
def test_model_with_quant_convs_is_taken_if_it_is_faster_and_right(monkeypatch, qdq):
    model = models.quantised(models.residual_net(), qdq=qdq)
    set_speedup(monkeypatch, 1.5)
    prepared = prepared_as_on_a_card(model)
    best = best_end_to_end(prepared, ())
    assert best.outputs_agree and best.is_faster
    result = _swap_best(best, prepared, model)
    expected = swap(model, fuse=True)
    assert models.quant_convs(result.to_proto()) == models.quant_convs(expected.to_proto())
    rows = {row.node.removesuffix("_quant"): row for row in node_results(prepared, (), best)}
    assert rows.keys() == NAMES
    assert {row.taken for row in rows.values()} == {"fused"}
    assert {row.precision for row in rows.values()} == {"int8"}
    assert "MaxPool" in rows["stem"].takes_in


def test_model_with_quant_convs_is_left_if_it_is_not_faster(monkeypatch):
    model = models.quantised(models.residual_net(), qdq=False)
    set_speedup(monkeypatch, 0.9)
    prepared = prepared_as_on_a_card(model)
    best = best_end_to_end(prepared, ())
    assert _swap_best(best, prepared, model) is None
    rows = node_results(prepared, (), end_to_end.Candidate())
    assert {row.why for row in rows} == {
        "with QuantConv nodes the whole model is not faster, or its outputs differ"
    }


def test_model_with_wrong_quant_convs_is_left(monkeypatch):
    model = models.quantised(models.residual_net())
    set_speedup(monkeypatch, 1.5)
    prepared = prepared_as_on_a_card(model)
    swapped_model = end_to_end.swapped_model

    def wrong(*arguments):
        split, swapping = swapped_model(*arguments)
        (scale,) = (each for each in split.message.graph.initializer if each.name == "a1/scale")
        array = onnx.numpy_helper.to_array(scale) * 1.2
        scale.CopyFrom(onnx.numpy_helper.from_array(array.astype("float32"), scale.name))
        return split, swapping

    monkeypatch.setattr(end_to_end, "swapped_model", wrong)
    best = best_end_to_end(prepared, ())
    assert not best.outputs_agree
    assert _swap_best(best, prepared, model) is None


@pytest.mark.parametrize("qdq", [True, False], ids=["qdq", "qoperator"])
def test_quantised_convs_are_left_on_the_cpu(tmp_path, capsys, qdq):
    path = saved(models.quantised(models.residual_net(), qdq=qdq), tmp_path)
    found = tmp_path / "found.json"
    command = ["optimize", path, "-o", str(tmp_path / "out.onnx"), "--device", "cpu", "--json", str(found)]
    assert main(command) == 1
    nodes = json.loads(found.read_text())["nodes"]
    assert {node["node"].removesuffix("_quant") for node in nodes} == NAMES
    assert all(node["taken"] == "default" and node["default_ms"] is None for node in nodes)
    if qdq:
        assert all("it is quantised" in node["why"] for node in nodes)
    assert "use the model as it is" in capsys.readouterr().out
