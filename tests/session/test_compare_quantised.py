"""A comparison judges and times each QuantConv against the quantised nodes that it replaced."""

from __future__ import annotations

import importlib
import json

import numpy as np
import onnx
import pytest
import quantised_models as models
from comparisons import checked, saved
from convswap.cli.main import main
from convswap.comparison.compare import compare
from convswap.comparison.report import comparison_verdict
from convswap.graph.domain import is_quant_op
from convswap.graph.replaced import unfused_model
from convswap.graph.serialisation import from_proto
from convswap.graph.swap import swap
from convswap.runtime.layers import conv_layers, in_layouts_of
from onnxruntime.quantization import QuantType
from test_quantised_movements import classifier

# The package's function of the same name hides the module.
preparation = importlib.import_module("convswap.comparison.preparation")

MODELS = {
    "qdq": lambda: models.quantised(models.residual_net()),
    "uint8": lambda: models.quantised(models.mobile_net(), per_channel=True, activations=QuantType.QUInt8),
    "classifier": lambda: classifier(32, 10),
    "qoperator": lambda: models.quantised(models.residual_net(), qdq=False),
    "model_optimizer": lambda: models.model_optimizer_net(),
    "exported": lambda: models.exported_net(),
    "yolo": lambda: models.quantised(models.yolo_net(), activations=QuantType.QUInt8),
}


@pytest.fixture(params=MODELS)
def model(request) -> onnx.ModelProto:
    return MODELS[request.param]()


def test_each_quant_conv_is_judged_and_timed_against_the_nodes_that_it_replaced(model):
    comparison = compare(model, fuse=True, device="cpu", batch=2)
    assert comparison.within_tolerance
    written = checked(comparison)
    quantised = models.quant_convs(swap(model, fuse=True).to_proto())
    assert [layer["node"] for layer in written["layers"]] == [node.name for node in quantised]
    for layer in written["layers"]:
        assert layer["precision"] == "int8"
        assert layer["relative_l2_error"]["convswap"] < 2e-3
        if "equal_codes" in layer:
            assert layer["equal_codes"]["convswap"] >= 0.999
            assert layer["largest_step"]["convswap"] <= 1
    assert any("equal_codes" in layer for layer in written["layers"])


def test_default_side_of_a_quant_conv_has_the_original_nodes(model):
    result = swap(model, fuse=True)
    original = from_proto(model)
    written = {name for node in model.graph.node for name in node.output}
    for layer in conv_layers(result.nchw_model, unfused_model(original, result)):
        ops = {
            node.op_type
            for node in layer.model(dict.fromkeys(layer.input_names, 4), swapped=False)[0].graph.node
        }
        # No original node has the codes that a Concat asks for: the default side computes the op's steps.
        has_steps = layer.node.output[0] not in written
        assert bool(ops & {"QLinearConv", "DequantizeLinear"}) != has_steps
        assert ("Cast" in ops) == has_steps


def test_quant_conv_alone_is_computed_in_the_layout_that_it_has_in_the_model():
    model = models.quantised(models.residual_net())
    result = swap(model, fuse=True)
    layers = in_layouts_of(conv_layers(result.nchw_model), result.layout)
    written = {node.name: models.attributes_of(node) for node in models.quant_convs(result.to_proto())}
    for layer in layers:
        for tensor in ("input", "residual", "output"):
            name = f"{tensor}_layout"
            assert models.attributes_of(layer.swapped_node).get(name) == written[layer.name].get(name)
    assert "NHWC" in layers[1].attributes.values()
    shapes = {"x": (2, 3, 30, 34)} | {name: (2, 16, 8, 9) for layer in layers for name in layer.input_names}
    assert "layouts=" in layers[1].problem(shapes).text


def with_wrong_node(monkeypatch, change) -> None:
    """Let compare swap models wrongly: `change` gets the second QuantConv."""

    def wrong_swap(*arguments, **options):
        result = swap(*arguments, **options)
        for swapped in {id(each): each for each in (result.model, result.nchw_model)}.values():
            change([node for node in swapped.graph if is_quant_op(node)][1])
        return result

    monkeypatch.setattr(preparation, "swap_to_run", wrong_swap)


def shift_zero_point(node) -> None:
    """Let all codes of the result be two steps larger."""
    value = node.inputs[3]
    array = value.const_value.numpy()
    value.const_value = type(value.const_value)(np.array(array + 2, array.dtype), name=value.name)


@pytest.mark.parametrize("options", [[], ["--no-layers"]])
def test_wrong_codes_of_one_node_end_with_status_1(monkeypatch, tmp_path, capsys, options):
    with_wrong_node(monkeypatch, shift_zero_point)
    path = saved(models.quantised(models.residual_net()), tmp_path)
    found = tmp_path / "found.json"
    arguments = ["compare", path, "--fuse", "--device", "cpu", "--batch", "2", "--json", str(found)]
    assert main([*arguments, *options]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "THE OUTPUTS DIFFER: QuantConv a1 alone gives" in shown
    assert "largest difference 2" in shown
    assert json.loads(found.read_text())["within_tolerance"] is False


@pytest.mark.parametrize("options", [[], ["--no-layers"]])
def test_heading_names_the_precision_int8(capsys, tmp_path, options):
    path = saved(models.quantised(models.residual_net()), tmp_path)
    assert main(["compare", path, "--fuse", "--device", "cpu", "--batch", "2", *options]) == 0
    shown = capsys.readouterr().out
    assert "precision int8," in shown
    assert ("Codes of each QuantConv alone" in shown) == (not options)


def test_file_with_quant_convs_is_compared_with_the_same_steps_in_numbers(tmp_path):
    path = tmp_path / "swapped.onnx"
    swap(models.quantised(models.residual_net()), fuse=True).save(path)
    comparison = compare(path, device="cpu", batch=2)
    assert comparison.within_tolerance
    assert {layer.precision for layer in comparison.layers} == {"int8"}
    assert all(layer.codes["convswap"].differing == 0 for layer in comparison.layers)


def test_mean_of_halves_is_right_if_the_default_side_differs_as_much():
    graph = models.QuantisedBuilder()
    x = graph.rounded("x", graph.quantisation(0.03))
    w, _ = graph.weights((16, 8, 3, 3), per_channel=False)
    y = graph.rounded(graph.add("Conv", x, w, name="conv", pads=[1] * 4), graph.quantisation(0.02))
    y = graph.add("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2])
    model = graph.model(["n", 8, 16, 16], graph.quantize(y, graph.quantisation(0.02)))
    comparison = compare(model, fuse=True, device="cpu", batch=4)
    assert comparison.within_tolerance, comparison_verdict(comparison)


def test_layer_with_numbers_as_result_has_no_codes():
    comparison = compare(models.model_optimizer_net(), fuse=True, device="cpu", batch=2)
    (head,) = (layer for layer in comparison.layers if layer.node == "head")
    assert head.codes is None
    assert head.relative_l2_error["convswap"] < 1e-6
