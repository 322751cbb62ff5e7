"""The large networks have the published shapes and reasonable activations, and run in compare and bench."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap import export
from convswap.bench.suite_runs import run_suite
from convswap.cli import main as cli
from convswap.comparison.compare import compare
from convswap.errors import ConvswapError
from convswap.export import calibration
from convswap.export.builder import build
from convswap.graph.model_file import model_from_proto
from convswap.inputs.feeds import RandomSource, declared_inputs
from convswap.inputs.model_with_data import ModelWithData, batch_of, open_model_with_data, source_of
from convswap.models import (
    ALL_NETWORKS,
    LARGE_NETWORKS,
    NETWORKS,
    Activation,
    BatchNormalization,
    ChannelsFirst,
    ChannelsLast,
    Concatenation,
    Convolution,
    Flatten,
    FlattenPixels,
    FullyConnected,
    GlobalAveragePool,
    Keep,
    LayerNormalization,
    LayerScale,
    LocalResponseNormalization,
    MaxPool,
    Network,
    Residual,
    Split,
    Take,
    Upsample,
    place,
    seeded_images,
    seeded_weights,
)
from convswap.reference.evaluation import evaluate
from convswap.reference.metrics import TOLERANCES
from convswap.runtime.device import Device
from convswap.timing import sampler
from convswap.timing.suites import SUITES, usual_batch
from exported_networks import exported
from numpy_forward import convolve, dense
from onnx import helper, numpy_helper

pytestmark = [pytest.mark.slow, pytest.mark.extended]

# Published numbers of parameters; torchvision counts the same for its four networks. YOLOv8n's 3,157,200
# include the 16 constants that decode boxes.
PARAMETERS = {
    "alexnet": 60_965_224,
    "resnet50": 25_557_032,
    "vgg16": 138_357_544,
    "mobilenet-v2": 3_504_872,
    "convnext-tiny": 28_589_128,
    "yolov8n": 3_157_184,
}
# Billions of multiplications per image, from the papers' tables; ResNet-50's for a stride in the 3x3
# convolutions. YOLOv8n's 8.7 billion operations are for four times as many pixels, and two per
# multiplication.
BILLIONS = {
    "alexnet": 0.72,
    "resnet50": 4.1,
    "vgg16": 15.5,
    "mobilenet-v2": 0.30,
    "convnext-tiny": 4.5,
    "yolov8n": 8.7 / 8,
}
# Without VGG-16: it would need half a gigabyte of weights, and AlexNet has the same kinds of layers.
EXPORTED = tuple(name for name in PARAMETERS if name != "vgg16")
# 1,000 classes; for YOLOv8n 4 x 16 distances and 80 classes at each of 40x40, 20x20 and 10x10 pixels.
LOGITS = dict.fromkeys(PARAMETERS, (1000,)) | {"yolov8n": (144, 2100)}


def session_of(model):
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(model, images):
    return session_of(model).run(["logits"], {"image": images})[0]


def test_there_are_six_in_addition_to_those_of_the_course():
    assert set(LARGE_NETWORKS) == set(PARAMETERS)
    assert not set(LARGE_NETWORKS) & set(NETWORKS)
    assert [network.name for network in export.networks()] == [*NETWORKS, *LARGE_NETWORKS]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_network_has_as_many_parameters_as_published(name):
    placed = place(LARGE_NETWORKS[name])
    shapes = [shape for layer in placed for shape in layer.parameters.values()]
    assert sum(map(math.prod, shapes)) == PARAMETERS[name]


@pytest.mark.parametrize("name", BILLIONS)
def test_a_network_multiplies_as_often_as_published(name):
    multiplications = 0
    for placed in place(LARGE_NETWORKS[name]):
        if isinstance(placed.layer, Convolution):
            pixels = math.prod(placed.output_shape[1:])
        elif isinstance(placed.layer, FullyConnected):
            pixels = math.prod(placed.output_shape[:-1])
        else:
            continue
        multiplications += pixels * math.prod(placed.parameters[f"{placed.name}.weight"])
    # The papers give two digits.
    assert multiplications / 1e9 == pytest.approx(BILLIONS[name], rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "torchvision_name"),
    [
        ("resnet50", "resnet50"),
        ("vgg16", "vgg16"),
        ("mobilenet-v2", "mobilenet_v2"),
        ("convnext-tiny", "convnext_tiny"),
    ],
)
def test_arrays_have_the_shapes_of_torchvision(name, torchvision_name):
    try:
        import torchvision
    except (ImportError, RuntimeError) as error:
        # A PyTorch for which torchvision was not built makes it raise RuntimeError.
        pytest.skip(f"torchvision cannot be imported: {error}")
    module = getattr(torchvision.models, torchvision_name)(weights=None)
    expected = Counter(tuple(parameter.shape) for parameter in module.parameters())
    placed = place(LARGE_NETWORKS[name])
    assert expected == Counter(shape for layer in placed for shape in layer.parameters.values())
    # The buffers are the statistics, and a count of batches for each normalisation, which has no dimension.
    buffers = Counter(tuple(buffer.shape) for buffer in module.buffers() if buffer.ndim)
    assert buffers == Counter(shape for layer in placed for shape in layer.statistics.values())


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_network_is_a_sound_model_with_a_symbolic_batch(name):
    model, network = exported(name), LARGE_NETWORKS[name]
    onnx.checker.check_model(model, full_check=True)
    inferred = {
        value.name: [dimension.dim_param or dimension.dim_value for dimension in _dimensions(value)]
        for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)
    }
    size = network.image_size
    assert inferred["image"] == ["batch", 3, size, size]
    assert inferred["logits"] == ["batch", *LOGITS[name]]
    outputs = {node.name: node.output[0] for node in model.graph.node}
    for placed in place(network):
        assert inferred[outputs[placed.name]] == ["batch", *placed.output_shape]
    assert (model.ir_version, model.opset_import[0].version) == (9, 20)
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert (properties["convswap.network"], properties["convswap.dataset"]) == (name, "random")


def _dimensions(value):
    return value.type.tensor_type.shape.dim


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_network_runs_with_any_batch_and_distinguishes_images(name):
    images = np.random.default_rng(4).standard_normal((2, 3, *[LARGE_NETWORKS[name].image_size] * 2))
    images = images.astype(np.float32)
    session = session_of(exported(name))
    two_images, second_image = (session.run(None, {"image": batch})[0] for batch in (images, images[1:]))
    assert two_images.shape == (2, *LOGITS[name])
    deviation = two_images.std()
    assert deviation < 500
    # A thousand times the rounding error of float32 through the deepest network.
    assert np.abs(two_images[0] - two_images[1]).max() > 0.01 * deviation
    np.testing.assert_allclose(second_image, two_images[1:], atol=1e-4 * deviation)


@pytest.mark.parametrize("name", EXPORTED)
def test_activations_keep_sane_magnitudes(name):
    model = onnx.ModelProto()
    model.CopyFrom(exported(name))
    inner = [node.output[0] for node in model.graph.node if node.op_type in ("Conv", "Gemm", "MatMul", "Add")]
    model.graph.output.extend(onnx.ValueInfoProto(name=value) for value in inner if value != "logits")
    values = session_of(model).run(None, {"image": seeded_images(LARGE_NETWORKS[name], 1)})
    # AlexNet's activations have the magnitude of pixels; those of the others stay about 1 through up to 63
    # convolutions.
    low, high = (5, 500) if name == "alexnet" else (0.1, 20)
    assert all(low < np.sqrt(np.mean(value**2)) < high for value in values)


def test_normalisation_across_channels_matters_in_alexnet():
    model = exported("alexnet")
    images = seeded_images(LARGE_NETWORKS["alexnet"], 1)
    without_lrn = onnx.ModelProto()
    without_lrn.CopyFrom(model)
    for node in without_lrn.graph.node:
        if node.op_type == "LRN":
            next(attribute for attribute in node.attribute if attribute.name == "alpha").f = 1e-12
    original, changed = run(model, images), run(without_lrn, images)
    assert np.linalg.norm(original - changed) > 0.1 * np.linalg.norm(original)


def test_seeded_images_are_of_mean_0_and_variance_1_and_the_same_for_every_count():
    network = LARGE_NETWORKS["resnet50"]
    images = seeded_images(network, 2)
    assert images.shape == (2, 3, 224, 224)
    # 300,000 independent numbers: four deviations of their mean and variance.
    assert abs(images.mean()) < 4 / math.sqrt(images.size)
    assert abs(images.var() - 1) < 4 * math.sqrt(0.8 / images.size)
    np.testing.assert_array_equal(seeded_images(network, 1), images[:1])


def rounded_to_tf32(model):
    """Return `model` with the inputs of Conv, Gemm and MatMul rounded to the 11 significant bits of TF32."""
    # Veltkamp's splitting: with c = (2^13 + 1) x, c - (c - x) is x without its last 13 bits, rounded.
    splitter = np.float32(2**13 + 1)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    tensors = {tensor.name: tensor for tensor in copy.graph.initializer}
    copy.graph.initializer.append(numpy_helper.from_array(np.array(splitter), "splitter"))
    nodes, rounded = [], {}
    for node in copy.graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            value, weight = node.input[0], tensors[node.input[1]]
            if value not in rounded:
                rounded[value] = f"{value}_rounded"
                nodes += [
                    helper.make_node("Mul", [value, "splitter"], [f"{value}_c"]),
                    helper.make_node("Sub", [f"{value}_c", value], [f"{value}_rest"]),
                    helper.make_node("Sub", [f"{value}_c", f"{value}_rest"], [rounded[value]]),
                ]
            node.input[0] = rounded[value]
            array = numpy_helper.to_array(weight)
            c = splitter * array
            weight.CopyFrom(numpy_helper.from_array(c - (c - array), weight.name))
        nodes.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del copy.graph.node[:], copy.graph.value_info[:]
    copy.graph.node.extend(nodes)
    return copy


@pytest.mark.parametrize("name", EXPORTED)
def test_rounding_to_tf32_moves_the_logits_by_less_than_the_tolerance(name):
    model = exported(name)
    images = seeded_images(LARGE_NETWORKS[name], 1)
    original, rounded = run(model, images), run(rounded_to_tf32(model), images)
    error = np.linalg.norm(rounded - original) / np.linalg.norm(original)
    # The lower bound shows that rounding took place. A card may round a little worse than to nearest.
    assert 1e-4 < error < 0.75 * TOLERANCES["tf32"]


# A network with every kind of layer but Upsample, small enough to evaluate twice.
EVERY_LAYER = Network(
    "every-layer",
    "a test",
    19,
    (
        Convolution(6, 3, stride=2, padding=1, bias=True),
        Activation("relu"),
        LocalResponseNormalization(3, alpha=0.3, beta=0.75),
        BatchNormalization(scale=0.7, bias=0.4),
        Residual((Convolution(6, 3, padding=1, groups=3), BatchNormalization(), Activation("relu6"))),
        MaxPool(3, stride=2, padding=1),
        Residual((Convolution(8, 1), Activation("gelu")), (Convolution(8, 1), BatchNormalization())),
        Keep("whole"),
        Split(("half 1", "half 2")),
        Activation("silu"),
        Keep("half 2"),
        Concatenation(("half 2", "whole", "half 1")),
        ChannelsLast(),
        LayerNormalization(),
        FullyConnected(10, per_pixel=True),
        ChannelsFirst(),
        LayerScale(),
        Keep("scaled"),
        GlobalAveragePool(),
        FlattenPixels(),
        Keep("mean"),
        Take("scaled"),
        FlattenPixels(),
        Keep("pixels"),
        Concatenation(("pixels", "mean"), axis=1),
        Flatten(),
        LayerNormalization(),
        FullyConnected(4),
    ),
    {},
    channels=3,
    largest_bias=0.5,
)


@pytest.fixture(scope="module")
def every_layer():
    weights = seeded_weights(EVERY_LAYER)
    weights |= calibration.batch_statistics(EVERY_LAYER, weights)
    return weights, build(EVERY_LAYER, weights, {"dataset": "random"}, output="logits")


def as_attribute(value):
    """Return `value` rounded to float32, as ONNX stores attributes."""
    return float(np.float32(value))


def forward(weights, images):
    """Compute EVERY_LAYER in float64, layer by layer, from its definition."""
    values = {"image": images.astype(np.float64)}
    statistics = {}
    for placed in place(EVERY_LAYER):
        x = values[placed.sources[0]]
        arrays = {name.split(".")[1]: weights[name].astype(np.float64) for name in placed.parameters}
        layer = placed.layer
        match layer:
            case Convolution():
                pair = {
                    name: (value,) * 2 for name, value in (("stride", layer.stride), ("pad", layer.padding))
                }
                y = convolve(x, arrays["weight"], arrays.get("bias"), groups=layer.groups, **pair)
            case Activation(function="relu"):
                y = np.maximum(x, 0)
            case Activation(function="relu6"):
                y = np.clip(x, 0, 6)
            case Activation(function="gelu"):
                y = x * np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(x)
            case Activation(function="silu"):
                y = x / (1 + np.exp(-x))
            case Split(labels=labels):
                values |= zip(placed.outputs, np.split(x, len(labels), axis=1), strict=True)
                continue
            case Concatenation(axis=axis):
                y = np.concatenate([values[source] for source in placed.sources], axis=axis + 1)
            case FlattenPixels():
                y = x.reshape(*x.shape[:2], -1)
            case LocalResponseNormalization():
                squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
                total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
                y = x / (1 + as_attribute(0.3) / 3 * total) ** 0.75
            case BatchNormalization():
                statistics[f"{placed.name}.mean"] = x.mean(axis=(0, 2, 3))
                statistics[f"{placed.name}.variance"] = x.var(axis=(0, 2, 3))
                mean, variance, scale, bias = (
                    array.astype(np.float64).reshape(-1, 1, 1)
                    for array in (
                        weights[f"{placed.name}.mean"],
                        weights[f"{placed.name}.variance"],
                        arrays["scale"],
                        arrays["bias"],
                    )
                )
                y = (x - mean) / np.sqrt(variance + as_attribute(1e-5)) * scale + bias
            case Residual():
                y = x + values[placed.sources[1]]
            case MaxPool():
                padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
                windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
                y = windows[:, :, ::2, ::2].max(axis=(4, 5))
            case ChannelsLast():
                y = np.moveaxis(x, 1, 3)
            case ChannelsFirst():
                y = np.moveaxis(x, 3, 1)
            case LayerNormalization():
                centred = x - x.mean(axis=-1, keepdims=True)
                variance = x.var(axis=-1, keepdims=True)
                y = centred / np.sqrt(variance + as_attribute(1e-6)) * arrays["scale"] + arrays["bias"]
            case LayerScale():
                y = x * arrays["scale"]
            case GlobalAveragePool():
                y = x.mean(axis=(2, 3), keepdims=True)
            case Flatten():
                y = x.reshape(len(x), -1)
            case FullyConnected():
                rows = dense(x.reshape(-1, x.shape[-1]), arrays["weight"], arrays["bias"])
                y = rows.reshape(*x.shape[:-1], -1)
        values[placed.name] = y
    return y, statistics


def test_every_kind_of_layer_computes_its_definition(every_layer):
    weights, model = every_layer
    images = np.random.default_rng(6).standard_normal((3, 3, 19, 19)).astype(np.float32)
    expected, _ = forward(weights, images)
    # float32 sums of up to 260 products, through a dozen layers that keep values near 1.
    np.testing.assert_allclose(run(model, images), expected, atol=2e-5)
    np.testing.assert_allclose(evaluate(model, {"image": images}).outputs[0], expected, rtol=0, atol=1e-12)
    assert evaluate(model, {"image": images}).in_float32 == ()


def test_upsample_repeats_rows_and_columns():
    network = Network("upsample", "a test", 4, (Upsample(3),), {}, channels=2)
    images = seeded_images(network, 2)
    expected = images.repeat(3, axis=2).repeat(3, axis=3)
    np.testing.assert_array_equal(run(build(network, {}, {}, output="logits"), images), expected)


def test_statistics_are_those_of_the_seeded_batch(every_layer):
    weights, _ = every_layer
    _, statistics = forward(weights, seeded_images(EVERY_LAYER, calibration.IMAGES))
    names = {name for placed in place(EVERY_LAYER) for name in placed.statistics}
    assert set(statistics) == names and len(names) == 6
    for name, expected in statistics.items():
        np.testing.assert_allclose(weights[name], expected, atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        (Residual((Convolution(4, 3),)),),
        (Convolution(4, 3, groups=2),),
        (FullyConnected(10),),
        (Flatten(), BatchNormalization()),
        (Split(("half 1", "half 2")),),
        (Take("never kept"),),
        (Keep("large"), MaxPool(2), Keep("small"), Concatenation(("large", "small"))),
        (Keep("image"), Concatenation(("image", "image"), axis=3)),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(layers):
    with pytest.raises(ValueError):
        place(Network("wrong", "a test", 19, layers, {}, channels=3))


@pytest.mark.parametrize(("device", "images"), [("cpu", 8), ("cuda", 256)])
def test_random_images_are_as_many_as_the_device_is_for(device, images, every_layer):
    model = model_from_proto(every_layer[1])
    chosen = Device(device, "asked for")
    tested = ModelWithData("every-layer", model, model, "random")
    source = source_of(tested, None, None, chosen)
    assert isinstance(source, RandomSource)
    assert (source.images, source.batch, source.labels) == (images, images, None)
    assert batch_of(model, declared_inputs(model), None, chosen) == images
    fewer = source_of(tested, 3, None, chosen)
    assert (fewer.images, fewer.batch) == (3, 3)
    in_batches = source_of(tested, 5, 2, chosen)
    assert (in_batches.images, in_batches.batch) == (5, 2)


@pytest.fixture
def small_networks(monkeypatch):
    """Reduce two networks to 64x64 pixels, because float64 is slow; the commands find networks by name."""
    for name in ("mobilenet-v2", "yolov8n"):
        monkeypatch.setitem(ALL_NETWORKS, name, replace(LARGE_NETWORKS[name], image_size=64))


@pytest.mark.usefixtures("small_networks")
def test_a_network_is_compared_by_name_without_labels(monkeypatch):
    # The number of samples of the 52 layers does not matter here.
    monkeypatch.setattr(sampler, "SINGLE_RUNS", replace(sampler.SINGLE_RUNS, samples=1))
    monkeypatch.setattr(sampler, "WARM_UPS", 1)
    result = compare("mobilenet-v2", images=1, device="cpu", precision="ieee")
    assert (result.dataset, result.images, result.swapped, len(result.layers)) == ("random", 1, 52, 52)
    assert result.default.accuracy is None and result.convswap.accuracy is None
    assert result.top1_agreement == 1.0
    assert result.truth_images == 1
    assert result.within_tolerance and 0 < result.convswap.relative_l2_error < 1e-5
    assert not [note for note in result.notes if "float32" in note]


@pytest.mark.usefixtures("small_networks")
def test_a_detector_is_compared_by_name():
    result = compare("yolov8n", images=1, device="cpu", precision="ieee", time_layers=False)
    assert (result.dataset, result.swapped, result.top1_agreement) == ("random", 63, 1.0)
    assert result.within_tolerance and 0 < result.convswap.relative_l2_error < 1e-5


def test_data_with_labels_do_not_suit_a_large_network():
    with pytest.raises(ConvswapError, match="data set synthetic needs a model with one floating-point input"):
        tested = open_model_with_data("mobilenet-v2", "synthetic")
        source_of(tested, None, None, Device("cpu", "asked for"))
    with pytest.raises(ConvswapError, match="mobilenet-v2 is not fitted to data, but 'synthetic' was given"):
        export.export_network("mobilenet-v2", data="synthetic")


def test_without_onnxruntime_a_network_with_statistics_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(
        ConvswapError, match=r"making mobilenet-v2 .* convswap's folder, pip install '\.\[cpu\]'"
    ):
        export.export_network("mobilenet-v2")


def test_the_list_names_every_network(capsys):
    assert cli.main(["export", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    sizes = {"alexnet": "227x227", "yolov8n": "320x320"}
    assert [line.split()[:2] for line in lines[len(NETWORKS) :]] == [
        [name, sizes.get(name, "224x224")] for name in PARAMETERS
    ]


def test_the_suite_of_a_network_has_each_of_its_convolutions_once():
    suite = SUITES["resnet50"]
    # The stem has one shape. The first stage has 1x1 in, 3x3, 1x1 out (also the shortcut) and 1x1 back. Each
    # later stage has the first block's 1x1, strided 3x3 and shortcut, and 1x1 back, 3x3 and 1x1 out.
    assert len(suite) == 1 + 4 + 3 * 6
    assert (
        len({(layer.channels, layer.filters, layer.kernel, layer.size, layer.stride) for layer in suite})
        == 23
    )
    depthwise = [layer for layer in SUITES["mobilenet-v2"] if layer.group > 1]
    assert depthwise and all(layer.group == layer.channels == layer.filters for layer in depthwise)
    for name in LARGE_NETWORKS:
        assert all(layer.name.startswith(f"{name}-conv") for layer in SUITES[name])


@pytest.fixture
def few_runs(monkeypatch):
    """Time layers with few samples, whose number does not matter here."""
    monkeypatch.setattr(sampler, "SINGLE_RUNS", replace(sampler.SINGLE_RUNS, samples=2))


@pytest.mark.usefixtures("few_runs")
def test_bench_times_a_layer_of_a_network_at_its_usual_batch():
    (row,) = run_suite("convnext-tiny", layers="conv2$", device="cpu")
    assert (row["layer"], row["batch"]) == ("convnext-tiny-conv2", 8)
    # Depthwise 7x7: float32 sums of 49 products.
    assert 0 < row["relative_l2_error"] < 1e-6


@pytest.mark.usefixtures("few_runs")
@pytest.mark.parametrize(
    ("suite", "layer"),
    [
        ("many-channels", "2048-512-1x1-7"),
        ("one-d", "piper-flow"),
        ("one-d", "tasnet-depthwise"),
        ("three-d", "64-64-3x3x3-16"),
        ("depthwise-grouped", "depthwise-960-3x3-7"),
        ("depthwise-grouped", "128-128-3x3-g32-56"),
        ("small-groups", "240-240-1x1-g60-28"),
        ("fused", "16-16-3x3-80-SiLU"),
        ("fused", "80-480-1x1-14-HardSwish"),
        ("fused", "240-240-5x5-dw-14-SiLU"),
        ("first-layers", "3-32-3x3-s2-224"),
        ("one-image", "pp-ocr-v4-48-192-1x1-1"),
    ],
)
def test_bench_times_a_layer_of_any_rank_at_its_usual_batch(suite: str, layer: str) -> None:
    (row,) = run_suite(suite, layers=f"^{layer}$", device="cpu")
    assert (row["layer"], row["batch"]) == (layer, 1)
    assert 0 < row["relative_l2_error"] < 1e-6


def test_one_image_has_the_layers_of_six_networks_at_batch_one() -> None:
    layers = SUITES["one-image"]
    assert all(layer.batch == 1 for layer in layers)
    shapes = [replace(layer, name="") for layer in layers]
    assert len(set(shapes)) == len(shapes)
    networks = ("yolov8n", "mobilenet-v2", "resnet50", "pp-ocr-v4", "efficientnet-b0", "espcn")
    assert all(layer.name.startswith(networks) for layer in layers)
    by_name = {layer.name: layer for layer in layers}
    widest = by_name["efficientnet-b0-dw-1152-5x5-7"]
    assert (widest.group, widest.weight_shape) == (1152, (1152, 1, 5, 5))


def test_layers_of_the_other_suites_have_a_batch_of_their_own_on_a_gpu() -> None:
    for suite in (
        "many-channels",
        "one-d",
        "three-d",
        "depthwise-grouped",
        "small-groups",
        "first-layers",
        "one-image",
        "fused",
    ):
        names = [layer.name for layer in SUITES[suite]]
        assert len(set(names)) == len(names)
        for layer in SUITES[suite]:
            assert usual_batch(suite, layer, "cuda") == layer.batch
            assert len(layer.weight_shape) == len(layer.input_shape(1)) == 2 + layer.rank
