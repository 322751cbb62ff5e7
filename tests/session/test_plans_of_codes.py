"""`explain` and `tune` plan and measure QuantConv nodes in the layouts that `swap --fuse` gives them."""

from __future__ import annotations

import json

import convswap
import pytest
import quantised_models as models
from comparisons import saved
from convswap.cli.main import main
from convswap.graph.swap import swap
from convswap.runtime.tuning import read_table
from onnxruntime.quantization import QuantType

NAMES = ["stem", "a1", "a2", "b1", "b2", "fc"]


def quantised_net(**options):
    return models.quantised(models.residual_net(), **options)


@pytest.mark.parametrize("device", [["--device", "cpu"], ["--compute-capability", "9.0"]])
def test_each_quant_conv_is_explained(tmp_path, device):
    path, plan = saved(quantised_net(), tmp_path), tmp_path / "plan.json"
    command = ["explain", path, "--fuse", "--batch", "64", *device, "--json", str(plan)]
    assert main(command) == 0
    layers = json.loads(plan.read_text())["layers"]
    assert [layer["node"] for layer in layers] == NAMES
    assert layers[2]["fused"] == ["Add"]
    assert layers[1]["problem"].startswith("int8>int8 x=64x16x8x9 w=16x16x3x3")
    assert layers[2]["problem"].endswith("layouts=NHWC+NHWC>NHWC")
    supported = {other["algorithm"] for other in layers[1]["others"] if other["supports"]}
    able = {"quantised"} if "cpu" in device else {"quantised", "channels_last", "channels_last_mma"}
    assert {layers[1]["algorithm"]} | supported == able


def test_swapped_file_has_the_plans_of_the_model_with_fuse(tmp_path):
    path = tmp_path / "swapped.onnx"
    swap(quantised_net(), fuse=True).save(path)
    plans = [
        convswap.explain(model, fuse=fuse, device="cpu", batch=4).to_json()["layers"]
        for model, fuse in ((quantised_net(), True), (str(path), False))
    ]
    assert [layer["node"] for layer in plans[0]] == NAMES
    assert plans[0] == plans[1]


def test_quant_convs_are_measured_and_found_in_the_table(table):
    model = models.quantised(models.mobile_net(), per_channel=True, activations=QuantType.QUInt8)
    tuning = convswap.tune(model, fuse=True, device="cpu", batch=1, runs=3)
    assert {name for problem in tuning.problems for name in problem.nodes} >= {"stem", "a2", "b3", "head"}
    assert {entry.problem for entry in read_table()[0]} == {problem.problem for problem in tuning.problems}
    assert all(entry.problem.startswith("uint8>uint8") for entry in read_table()[0])
    file = swap(model, fuse=True, algorithm="tuned").to_proto()
    plan = convswap.explain(file, device="cpu", batch=1)
    assert [conv.explanation["decided_by"] for conv in plan.convs] == ["tuned"] * len(plan.convs)


def test_numbers_as_result_are_measured(table):
    tuning = convswap.tune(
        models.model_optimizer_net(), fuse=True, device="cpu", batch=1, runs=3, only="head"
    )
    assert [problem.problem.split()[0] for problem in tuning.problems] == ["int8>float32"]


@pytest.mark.parametrize("name, written", [("tuned", "tuned"), ("quantised", "quantised"), ("direct", None)])
def test_quant_conv_gets_an_algorithm_that_computes_codes(name, written):
    nodes = models.quant_convs(swap(quantised_net(), fuse=True, algorithm=name).to_proto())
    assert len(nodes) == len(NAMES)
    assert {models.attributes_of(node).get("algorithm") for node in nodes} == {written}
