"""A comparison runs both sides on the same data, and reports errors against float64, times and notes."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from card_algorithms import capability
from comparisons import checked, example, saved, small_model
from convswap.comparison import outputs as outputs_module
from convswap.comparison import preparation as compared_module
from convswap.comparison.compare import Comparison, compare
from convswap.comparison.report import comparison_verdict
from convswap.data import datasets
from convswap.errors import ConvswapError
from convswap.export import export_network, read_mxnet
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import swap
from convswap.reference.evaluation import Evaluation, evaluate
from convswap.reference.metrics import TOLERANCES
from convswap.runtime.device import Device
from convswap.runtime.layers import conv_layers
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session
from onnx import TensorProto, helper, numpy_helper
from op_sessions import onnx_outputs
from refused import refused
from repeats import repeats
from swap_models import ANY, tensor_info, text_model, weights

# The package's function of the same name hides the module.
orchestration = importlib.import_module("convswap.comparison.compare")
NETWORK = "ece408-2018sp"


@pytest.fixture(scope="module")
def network_comparison() -> Comparison:
    return compare(NETWORK, data="synthetic", images=150, device="cpu")


def test_comparison_of_a_network_keeps_to_the_schema(network_comparison):
    written = checked(network_comparison)
    assert written["model"] == NETWORK
    assert (written["device"], written["dataset"], written["precision"]) == ("cpu", "synthetic", "tf32")
    assert (written["images"], written["batch"], written["swapped"]) == (150, 100, 2)
    assert [layer["node"] for layer in written["layers"]] == ["conv1", "conv2"]
    assert written["environment"]["onnxruntime"] == onnxruntime.__version__
    assert all(written["time_ms"][side]["runs"] == 20 for side in ("default", "convswap"))


def test_accuracy_counts_every_image_once_with_the_last_partial_batch(network_comparison):
    model = export_network(NETWORK, data="synthetic")
    data = datasets.load("synthetic", images=150, image_size=64)
    classes = onnx_outputs(model, {"image": data.images})[0].argmax(axis=1)
    assert network_comparison.default.accuracy == pytest.approx(np.mean(classes == data.labels), abs=1e-12)
    # Both sides compute in float32, so a near tie would have to be closer than 1e-6.
    assert network_comparison.convswap.accuracy == pytest.approx(
        network_comparison.default.accuracy, abs=1 / 150
    )
    assert network_comparison.top1_agreement >= 149 / 150


def test_errors_against_float64_are_those_of_float32(network_comparison):
    for side in network_comparison.sides.values():
        # The errors are not zero, as they would be in a comparison of a side with itself. Logits near 100
        # rounded to float32 (6e-8) have errors of 6e-6, which softmax turns into a relative error of the same
        # size.
        assert 0 < side.relative_l2_error < 2e-5
        assert 0 < side.max_abs_error < 2e-5
    for layer in network_comparison.layers:
        assert all(0 < error < 2e-6 for error in layer.relative_l2_error.values())


def test_speedup_and_sum_of_layers_follow_from_the_times(network_comparison):
    written = checked(network_comparison)
    times = written["time_ms"]
    assert written["speedup"] == pytest.approx(times["default"]["median"] / times["convswap"]["median"])
    assert written["layers_sum_ms"]["convswap"] == pytest.approx(
        sum(layer["convswap_ms"] for layer in written["layers"])
    )
    assert all(side["median"] <= side["p95"] for side in times.values())


def test_convs_are_not_timed_alone_where_that_is_not_wanted():
    steps = []
    result = compare(small_model(), device="cpu", time_layers=False, progress=steps.append)
    written = checked(result)
    assert result.layers == () and written["layers"] == []
    assert written["layers_sum_ms"] == {"default": None, "convswap": None}  # not measured, so not 0
    assert not any("timing Conv" in step for step in steps)
    assert "the Convs were not timed alone, as asked" in result.notes
    assert result.swapped == 2 and result.within_tolerance


def test_both_sides_differ_only_in_the_swapped_convs(monkeypatch):
    sessions = []

    def recording(model, side, device, **options):
        sessions.append((side, model.message))
        return make_session(model, side, device, **options)

    for module in (compared_module, orchestration):
        monkeypatch.setattr(module, "make_session", recording)
    compare(small_model(), device="cpu")
    default, ours = (next(model for side, model in sessions if side is each) for each in (DEFAULT, CONVSWAP))
    assert [node.domain for node in default.graph.node] == ["", "", ""]
    assert [node.domain for node in ours.graph.node] == ["convswap", "", "convswap"]
    layer_domains = [(side.name, model.graph.node[0].domain) for side, model in sessions[2:]]
    assert layer_domains == [("default", ""), ("convswap", "convswap")] * 2


def test_wrong_outputs_of_our_side_are_found_in_the_layer_and_end_to_end(monkeypatch):
    def wrong_swap(model, **options):
        result = swap(model, **options)
        weight = result.model.graph.initializers["w2"]
        negated = weight.const_value.numpy().copy()
        negated *= -1
        weight.const_value = type(weight.const_value)(numpy_helper.from_array(negated, "w2"))
        return result

    monkeypatch.setattr(compared_module, "swap_to_run", wrong_swap)
    comparison = compare(small_model(), device="cpu", batch=2, images=6)
    assert comparison.default.relative_l2_error < 1e-6
    assert comparison.convswap.relative_l2_error == pytest.approx(2.0, rel=1e-5)
    assert comparison.top1_agreement == 0
    assert not comparison.within_tolerance
    assert checked(comparison)["within_tolerance"] is False


def test_tolerance_decides_whether_the_outputs_agree():
    assert compare(small_model(), device="cpu").within_tolerance
    strict = compare(small_model(), device="cpu", tolerance=1e-12)
    assert not strict.within_tolerance
    assert compare(small_model(), device="cpu", precision="ieee").tolerance == TOLERANCES["ieee"] == 1e-5


def test_any_model_gets_random_data_and_no_accuracy(tmp_path):
    result = compare(saved(small_model(), tmp_path), device="cpu")
    assert result.dataset == "random"
    assert result.default.accuracy is None and result.convswap.accuracy is None
    assert (result.images, result.batch) == (1, 1)
    assert [layer.node for layer in result.layers] == ["first", "second"]
    assert checked(result)["accuracy"] == {"default": None, "convswap": None}


def test_file_knows_its_data_and_gets_random_data_where_they_are_not_here(tmp_path, monkeypatch):
    made_for_synthetic = saved(export_network(NETWORK, data="synthetic"), tmp_path)
    result = compare(made_for_synthetic, device="cpu", images=4, time_layers=False)
    assert (result.dataset, result.images) == ("synthetic", 4)
    assert result.default.accuracy is not None

    monkeypatch.delenv("CONVSWAP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    result = compare(saved(export_network(NETWORK), tmp_path), device="cpu", images=4, time_layers=False)
    assert (result.dataset, result.default.accuracy) == ("random", None)
    assert any("--data fashion-mnist downloads it" in note for note in result.notes)


def test_network_says_that_it_got_synthetic_data_for_what_it_was_made_for(tmp_path, monkeypatch):
    monkeypatch.delenv("CONVSWAP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    comparison = compare(NETWORK, device="cpu", images=4, time_layers=False)
    assert comparison.dataset == "synthetic"
    note = "the model was made for fashion-mnist, which is not here: --data fashion-mnist downloads it"
    assert note in comparison.notes
    asked_for = compare(NETWORK, data="synthetic", device="cpu", images=4, time_layers=False)
    assert note not in asked_for.notes


@pytest.mark.skipif(not os.environ.get("CONVSWAP_DATA"), reason="CONVSWAP_DATA is not set")
def test_course_checkpoint_has_the_accuracy_that_the_course_states(tmp_path):
    folder = Path(os.environ["CONVSWAP_DATA"]) / "ece408-2019sp"
    model = read_mxnet(folder / "ece408-symbol.json", folder / "ece408-0002.params", image_size=48)
    path = saved(model, tmp_path)
    result = compare(path, device="cpu", data="fashion-mnist", images=100, precision="ieee")
    assert result.default.accuracy == result.convswap.accuracy == pytest.approx(0.84, abs=1e-12)
    assert result.top1_agreement == 1.0
    assert result.within_tolerance


def test_batch_and_images_set_how_many_samples_run():
    result = compare(small_model(), device="cpu", batch=4, images=10)
    assert (result.images, result.batch) == (10, 4)


def test_model_fixed_to_a_batch_runs_at_that_batch():
    result = compare(small_model(batch=3), device="cpu", images=4)
    assert (result.images, result.batch) == (4, 3)
    with refused(r"takes batches of 3, by its input 'x' .*, but batch 5 was given"):
        compare(small_model(batch=3), device="cpu", batch=5)


def test_images_that_fill_up_a_fixed_batch_do_not_count():
    nodes = "c = Conv(x, w)  p = GlobalMaxPool(c)  y = Flatten(p)"
    kinds = {"inputs": "float[4, 1, 16, 16] x", "outputs": "float[4, 10] y"}
    model = text_model(nodes, weights("w", 10, 1, 3, 3), **kinds)
    result = compare(model, device="cpu", data="synthetic", images=6)
    assert (result.images, result.batch) == (6, 4)
    # The accuracy is a fraction of 6 images, not of the 8 that ran.
    assert result.default.accuracy * 6 == pytest.approx(round(result.default.accuracy * 6))


def test_external_data_are_read(tmp_path):
    path = saved(
        small_model(), tmp_path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (tmp_path / "weights.bin").stat().st_size > 0
    assert compare(path, device="cpu").within_tolerance


def test_several_inputs_of_several_types_are_compared():
    model = text_model(
        "[only] c = Conv(x, w1)  row = Gather(table, tokens)  y = Add(c, row)  other = Not(flag)",
        *(weights("w1", 4, 3, 3, 3), weights("table", 2, 1)),
        inputs="float[n, 3, 8, 8] x, int64[n] tokens, bool[2] flag",
        outputs=f"{ANY} y, bool[2] other",
    )
    result = compare(model, device="cpu")
    assert result.within_tolerance and result.swapped == 1


def test_weights_computed_by_the_model_reach_the_layer():
    nodes = """
      w = Tanh(w1)
      b = Constant <value = float[4] {1, 1, 1, 1}> ()
      [only] y = Conv <auto_pad = "SAME_UPPER"> (x, w, b)"""
    model = text_model(nodes, weights("w1", 4, 3, 4, 4), inputs="float[n, 3, 8, 8] x")
    (layer,) = compare(model, device="cpu").layers
    assert all(0 < error < 1e-6 for error in layer.relative_l2_error.values())


def test_swapped_model_is_compared_like_the_one_it_was_made_from():
    result = compare(swap(small_model()).to_proto(), device="cpu")
    assert result.swapped == 2
    assert [layer.node for layer in result.layers] == ["first", "second"]


def test_convs_swapped_before_run_as_they_were_swapped(monkeypatch):
    sessions = []

    def recording(model, side, device, **options):
        sessions.append((side, model.message))
        return make_session(model, side, device, **options)

    monkeypatch.setattr(compared_module, "make_session", recording)
    swapped = swap(small_model(), algorithm="reference", precision="ieee", only="first").to_proto()
    result = compare(swapped, device="cpu", algorithm="direct")
    assert [layer.algorithm for layer in result.layers] == ["reference", "direct"]
    assert any(note.startswith("1 Conv swapped before") for note in result.notes)
    assert (result.swapped, result.tolerance) == (2, TOLERANCES["tf32"])
    default, ours = (next(model for side, model in sessions if side is each) for each in (DEFAULT, CONVSWAP))
    assert [node.domain for node in default.graph.node] == ["", "", ""]
    attributes = {
        node.name: {a.name: a.s.decode() for a in node.attribute if a.name in ("algorithm", "precision")}
        for node in ours.graph.node
        if node.domain
    }
    assert attributes == {
        "first": {"algorithm": "reference", "precision": "ieee"},
        "second": {"algorithm": "direct"},
    }
    as_it_is = compare(swapped, device="cpu")
    assert [layer.node for layer in as_it_is.layers] == ["first"]
    assert [(left.node, left.reason) for left in as_it_is.left] == [("second", "the file leaves it")]
    assert as_it_is.tolerance == TOLERANCES["ieee"]
    all_ieee = compare(swap(small_model(), precision="ieee").to_proto(), device="cpu")
    assert all_ieee.tolerance == TOLERANCES["ieee"]
    assert not any("swapped before" in note for note in compare(small_model(), device="cpu").notes)


def test_float16_weights_that_the_model_computes_make_a_float16_layer(monkeypatch):
    model = text_model(
        "half = Cast <to = 10> (x)  w = Cast <to = 10> (w1)  [only] y = Conv(half, w)",
        weights("w1", 4, 3, 3, 3),
        inputs="float[n, 3, 8, 8] x",
        outputs="float16[?, ?, ?, ?] y",
    )
    (layer,) = conv_layers(swap(model).to_proto())
    assert layer.element_type == TensorProto.FLOAT16
    rates = []
    module = importlib.import_module("convswap.comparison.compare")
    monkeypatch.setattr(module, "floor_ms", lambda problem, card, arithmetic: rates.append(arithmetic))
    result = compare(model, device="cpu")
    assert result.tolerance == TOLERANCES["float16"]
    assert rates == ["float16"]
    assert len(result.layers) == 1 and result.within_tolerance


def test_reference_that_both_sides_miss_equally_is_no_error_if_they_agree(monkeypatch):
    def off(model, feeds):
        reference = evaluate(model, feeds)
        return Evaluation([values + 1 for values in reference.outputs], reference.in_float32)

    assert not any("cannot be held to float64" in note for note in compare(small_model(), device="cpu").notes)
    monkeypatch.setattr(outputs_module, "evaluate", off)
    result = compare(small_model(), device="cpu")
    assert result.default.relative_l2_error > result.tolerance
    assert result.within_tolerance
    assert any("output 'y' cannot be held to float64" in note for note in result.notes)


def test_convs_that_were_not_swapped_are_listed_with_the_reason():
    model = small_model()
    model.graph.node.append(helper.make_node("ConvTranspose", ["y", "t"], ["z"], name="up"))
    model.graph.initializer.append(weights("t", 4, 2, 2, 2))
    del model.graph.output[:]
    model.graph.output.append(tensor_info("z", None, None, None, None))
    result = compare(model, device="cpu")
    assert [entry["node"] for entry in checked(result)["left"]] == ["up"]
    assert "transposed" in result.left[0].reason
    assert any("ConvTranspose" in note for note in result.notes)


def test_algorithm_is_the_one_asked_for():
    result = compare(small_model(), device="cpu", algorithm="reference")
    assert [layer.algorithm for layer in result.layers] == ["reference", "reference"]
    # `reference` sums in float64 and rounds once.
    assert result.layers[0].relative_l2_error["convswap"] < 1e-7


def test_cpu_comparison_says_so_and_against_all_finds_no_other_side():
    result = compare(small_model(), device="cpu", against="all")
    assert list(result.sides) == ["default", "convswap"]
    assert any("CPU provider has no options" in note for note in result.notes)


def test_progress_names_every_step():
    steps: list[str] = []
    compare(small_model(), device="cpu", progress=steps.append)
    assert len(steps) >= 5 and all(steps)


def test_plain_model_is_the_model_before_the_swap():
    model = small_model()
    back = ir.to_proto(plain_model(swap(model, algorithm="reference", precision="ieee").model))
    assert [opset.domain for opset in back.opset_import] == [""]
    for was, now in zip(model.graph.node, back.graph.node, strict=True):
        assert (was.op_type, was.domain, list(was.input)) == (now.op_type, now.domain, list(now.input))
        assert sorted(map(str, was.attribute)) == sorted(map(str, now.attribute))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "ece408-2019f"}, r"unknown network 'ece408-2019f'; did you mean 'ece408-2019fa'\?"),
        ({"model": "no/such/model.onnx"}, "no such file: 'no/such/model.onnx'"),
        ({"images": 0}, "images must be at least 1, but 0 was given"),
        ({"batch": -2}, "batch must be at least 1, but -2 was given"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"data": "mnist"}, "unknown data set 'mnist'; did you mean 'fashion-mnist'"),
        ({"data": "synthetic"}, r"needs a model with one floating-point input .* 'x' \[n, 3, 12, 12\]"),
        ({"precision": "tf23"}, "unknown precision 'tf23'; did you mean 'tf32'"),
        ({"algorithm": "dirct"}, "unknown algorithm 'dirct'; did you mean 'direct'"),
        pytest.param(
            {"algorithm": "naive"},
            "^algorithm 'naive' is not for the device cpu, which has auto, tuned, direct",
        ),
        ({"against": "everything"}, "unknown choice of sides 'everything'"),
        ({"tolerance": float("nan")}, "tolerance must be a number from 0 on"),
        ({"tolerance": -1.0}, "tolerance must be a number from 0 on"),
    ],
    ids=str,
)
def test_bad_argument_is_refused_in_one_line(arguments, message):
    with refused(message):
        compare(**{"model": small_model(), "device": "cpu", **arguments})


def test_data_with_other_classes_than_the_model_are_refused():
    model = text_model("y = Conv(x, w)", weights("w", 3, 1, 3, 3), inputs="float[n, 1, 16, 16] x")
    with refused(r"10 classes, but the model's first output has shape \[4, 3, 14, 14\]"):
        compare(model, device="cpu", data="synthetic", images=4)


def test_model_that_onnxruntime_cannot_run_is_refused_in_one_line():
    # Too small for a kernel of 3 x 3 without padding.
    inputs = "float[n, 3, height, width] x"
    model = text_model("y = Conv(x, w)", weights("w", 2, 3, 3, 3), inputs=inputs)
    with refused("ONNX Runtime cannot run the model"):
        compare(model, device="cpu", input_shape=(3, 1, 1))


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="onnxruntime has a CUDA provider"
)
def test_gpu_that_cannot_be_used_is_refused_with_the_reason_and_default_falls_to_the_cpu_with_it():
    with refused("device cuda cannot be used: onnxruntime has no CUDA provider"):
        compare(small_model(), device="cuda")
    result = compare(small_model())
    assert result.device.name == "cpu"
    assert any("onnxruntime has no CUDA provider" in note for note in result.notes)


class ProviderPart:
    """A stand-in for ONNX Runtime's record of the nodes that a provider took."""

    def __init__(self, provider: str, *nodes: onnx.NodeProto) -> None:
        self.ep_name, self._nodes = provider, nodes

    def get_nodes(self):
        return self._nodes


@pytest.mark.parametrize(
    ("side", "op"),
    [(DEFAULT, "Conv"), (CONVSWAP, "Conv"), (CONVSWAP, "FusedConv")],
    ids=["default", "convswap", "fused"],
)
def test_conv_that_would_run_on_another_provider_is_refused(side, op, monkeypatch):
    domain = "convswap" if side.uses_convswap else ""
    node = helper.make_node(op, ["x", "w"], ["y"], name="stray", domain=domain)

    class Session(onnxruntime.InferenceSession):
        def get_provider_graph_assignment_info(self):
            return [ProviderPart("CPUExecutionProvider"), ProviderPart("OtherExecutionProvider", node)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    message = rf"^{op} 'stray' of the .* side would run on OtherExecutionProvider"
    with refused(message):
        make_session(small_model(), side, Device("cpu", "asked for"))


def _no_gpu() -> str:
    try:
        orchestration.choose_device("cuda")
    except ConvswapError as error:
        return str(error)
    return ""


@pytest.mark.gpu
@pytest.mark.skipif(bool(_no_gpu()), reason=_no_gpu())
def test_network_on_the_gpu_agrees_with_float64_and_has_every_side_and_floor():
    result = compare(NETWORK, data="synthetic", images=repeats(600, minimum=20), against="all")
    written = checked(result)
    assert written["device"] == "cuda" and written["environment"]["card"]
    assert set(result.sides) == {"default", "convswap", "heuristic", "no_tf32", "nhwc"}
    assert result.within_tolerance
    # TF32 rounds inputs to 10 bits: a layer's relative error is near 3e-4, and never as small as float32's.
    smallest, largest = (1e-5, 1e-3) if capability() >= 80 else (0, 1e-5)
    assert all(smallest < layer.relative_l2_error["convswap"] < largest for layer in result.layers)
    assert result.top1_agreement > 0.99


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.skipif(bool(_no_gpu()), reason=_no_gpu())
def test_short_runs_on_the_gpu_are_timed_in_bursts():
    # Other work on the card may make a run too long for a burst.
    for _ in range(repeats(5)):
        result = compare(small_model(), batch=2)
        if result.default.times.burst > 1:
            break
    assert min(result.default.times.burst, result.convswap.times.burst) > 1
    assert any("burst" in note for note in result.notes)


@pytest.mark.parametrize(
    ("default", "layer", "message"),
    [
        (1.0, 1.0, "1.00x as fast as the default provider."),
        (0.5, 1.0, "SLOWER, 2.00x the default provider's time. `convswap optimize` swaps only what gains."),
        (2.0, 0.5, "2.00x as fast as the default provider. 1 Conv slower alone: `convswap optimize`"),
    ],
)
def test_the_verdict_names_what_is_slower_and_what_helps(default, layer, message):
    times = example().convswap.times
    sides = {
        "default": replace(example().default, times=replace(times, median=default)),
        "convswap": replace(example().convswap, times=replace(times, median=1.0)),
    }
    layers = (replace(example().layers[0], milliseconds={"default": layer, "convswap": 1.0}),)
    assert message in comparison_verdict(example(sides=sides, layers=layers)).splitlines()[1]


def test_an_unknown_layout_is_refused_before_the_model_is_read():
    with pytest.raises(ConvswapError, match="unknown layout 'nhcw'; did you mean 'nhwc'"):
        compare("no such file.onnx", layout="nhcw")
