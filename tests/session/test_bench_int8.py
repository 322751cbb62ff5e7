"""`bench` times QuantConv against the QDQ nodes of the same layer."""

from __future__ import annotations

import json

import numpy as np
import pytest
from comparisons import ROW_KEYS
from convswap.bench.alternating import run_alternating
from convswap.bench.suite_runs import run_suite
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, run
from convswap.timing.single_node import single_node, single_node_data, single_node_sessions
from convswap.timing.suites import SUITES, SuiteLayer

CPU = Device("cpu", "asked for")
LAYERS = {
    "dense": SuiteLayer("dense", 32, 48, 3, 11, stride=2, padding=1, activation="Relu"),
    "depthwise": SuiteLayer("depthwise", 32, 32, 3, 10, padding=1, group=32, activation="SiLU"),
    "stem": SuiteLayer("stem", 3, 16, 7, 20, stride=2, padding=3),
    "grouped": SuiteLayer("grouped", 32, 32, 3, 9, group=4, activation="HardSwish"),
    "one-d": SuiteLayer("one-d", 16, 16, 5, 30, padding=2, rank=1),
}
NHWC = {"dense": ("input", "output"), "depthwise": ("input", "output"), "stem": ("output",), "grouped": ()}


@pytest.mark.parametrize("name", LAYERS)
def test_node_computes_what_its_qdq_nodes_compute(name):
    layer = LAYERS[name]
    conv = single_node(layer, "int8", "auto")
    assert conv.name == name
    assert conv.nhwc == NHWC.get(name, ("input", "output"))
    (ours, default) = (conv.model({"x": layer.rank + 2}, swapped=swapped)[0] for swapped in (True, False))
    assert [node.op_type for node in ours.graph.node] == ["QuantConv"]
    ops = [node.op_type for node in default.graph.node]
    assert ops[:3] == ["DequantizeLinear", "DequantizeLinear", "Conv"] and ops[-1] == "QuantizeLinear"
    x = single_node_data(layer, 2, "int8")
    assert x.dtype == np.int8
    results = {}
    for side, session in single_node_sessions(conv, (DEFAULT, CONVSWAP), CPU).items():
        feeds = conv.swapped_inputs({"x": x}) if side.uses_convswap else {"x": x}
        (y,) = run(session, feeds)
        results[side.name] = conv.result_in_nchw(y) if side.uses_convswap else y
    difference = np.abs(results["default"].astype(int) - results["convswap"].astype(int))
    assert difference.max() <= 1 and np.mean(difference > 0) < 5e-3
    # The codes use their range.
    assert results["convswap"].std() > 10


def test_suite_int8_is_timed_in_int8(tmp_path, capsys):
    rows = tmp_path / "rows.json"
    assert main(["bench", "int8", "--layers", "^24-144", "--device", "cpu", "--json", str(rows)]) == 0
    (row,) = json.loads(rows.read_text())
    assert row.keys() >= ROW_KEYS
    assert (row["layer"], row["precision"], row["algorithm"]) == ("24-144-1x1-56", "int8", "quantised")
    assert row["default_ms"] > 0 and row["relative_l2_error"] < 1e-2
    assert "precision int8" in capsys.readouterr().out


def test_suite_int8_has_layers_of_quantised_networks_at_batch_64():
    assert len(SUITES["int8"]) == 10
    assert {layer.batch for layer in SUITES["int8"]} == {64}
    assert {layer.activation for layer in SUITES["int8"]} == {"Relu"}


def test_other_suites_have_int8_and_the_suite_int8_other_precisions():
    (row,) = run_suite("course", layers="2020-conv2", precision="int8", device="cpu", batches=[1])
    assert (row["precision"], row["algorithm"]) == ("int8", "quantised")
    (row,) = run_suite("int8", layers="^24-144", precision="ieee", device="cpu", batches=[1])
    assert (row["precision"], row["algorithm"]) == ("ieee", "direct")


def test_one_algorithm_has_no_distance_from_the_best():
    (row,) = run_suite("int8", layers="^24-144", device="cpu", against="algorithms")
    assert (row["algorithm"], row["best_other"], row["distance_percent"]) == ("quantised", None, 0)


def test_batches_alternate_in_int8():
    (row,) = run_alternating("int8", layers="^24-144", device="cpu", batches=[1, 2])
    assert row["precision"] == "int8" and row["default_ms"] > 0


def test_algorithm_for_numbers_is_refused():
    with pytest.raises(ConvswapError, match="it takes no int8 and uint8 codes"):
        list(run_suite("int8", layers="^24-144", device="cpu", algorithm="direct"))


def test_layer_is_planned_for_a_card_in_its_layout():
    convs = {layer.name: single_node(layer, "int8", "auto") for layer in SUITES["int8"]}
    for layer in SUITES["int8"]:
        text = convs[layer.name].problem({"x": layer.input_shape(64)}).text
        assert text.startswith(f"int8>int8 x=64x{layer.channels}x")
        assert ("layouts=NCHW>NHWC" if layer.channels in (3, 24) else "layouts=NHWC>NHWC") in text
