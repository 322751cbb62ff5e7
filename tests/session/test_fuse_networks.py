"""Networks give the same outputs fused, and as many of their nodes are fused as possible."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.export.builder import build
from convswap.graph.plain_model import count_swapped
from convswap.graph.swap import SwapResult, swap
from convswap.models import LARGE_NETWORKS, NETWORKS, place
from each_case import each
from exported_networks import exported
from fuse_models import declare, node, reasons, taken, tensor
from onnx import helper, numpy_helper
from op_sessions import PROVIDERS, graph_model

pytestmark = pytest.mark.slow

NO_SUCH_OP = "FusedConv does not have this op"
TANH_AND_POOL = {"conv1": ["FusedConv", "Tanh", "MaxPool"]}
# Fused nodes of each Conv, and the ops after Convs that were not fused.
COURSE = {
    "ece408-2017-high": (TANH_AND_POOL, {"Flatten"}),
    "ece408-2017-low": (TANH_AND_POOL, {"Flatten"}),
    "ece408-2020": ({name: ["FusedConv", "Relu", "MaxPool"] for name in ("conv1", "conv2")}, {"Flatten"}),
} | {
    name: (TANH_AND_POOL, {"Flatten"})
    for name in ("ece408-2018sp", "ece408-2018fa", "ece408-2019sp", "baseline-2019sp", "ece408-2019fa")
}

RELU = ("FusedConv", "Relu")
# Number of Convs by fused nodes.
LARGE = {
    "alexnet": {RELU: 4, (*RELU, "MaxPool"): 1},
    "vgg16": {RELU: 8, (*RELU, "MaxPool"): 5},
    "resnet50": {
        ("FusedConv", "BatchNormalization", "Relu", "MaxPool"): 1,
        ("FusedConv", "BatchNormalization", "Relu"): 32,
        ("FusedConv", "BatchNormalization", "Add", "Relu"): 16,
        ("Conv", "BatchNormalization"): 4,
    },
    "mobilenet-v2": {
        ("FusedConv", "BatchNormalization", "Clip"): 18,
        # The depthwise Conv of each of 17 blocks, and the 1x1 Conv after it.
        ("FusedConv", "Conv", "BatchNormalization", "Clip", "BatchNormalization", "Add"): 10,
        ("FusedConv", "Conv", "BatchNormalization", "Clip", "BatchNormalization"): 7,
    },
    # LayerNormalization over the channels of a pixel follows every Conv.
    "convnext-tiny": {},
    # All but the last Conv of each head's two branches.
    "yolov8n": {("FusedConv", "BatchNormalization", "Sigmoid", "Mul"): 57},
}
# Ops after Convs that are not fused.
NOT_FUSED = {
    "alexnet": {"LRN", "Flatten"},
    "vgg16": {"Flatten"},
    "resnet50": {"GlobalAveragePool"},
    "mobilenet-v2": {"GlobalAveragePool"},
    "convnext-tiny": {"Transpose", "Add"},
    "yolov8n": {"Add", "Concat", "MaxPool", "Resize", "Split"},
}
CONVERTED = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted"
# ONNX's networks without weights, of moderate size: the number of fused Convs, and of nodes fused into them.
LIGHT = {
    "densenet121": (62, 240),
    "inception_v1": (57, 58),
    "inception_v2": (69, 278),
    "shufflenet": (49, 94),
    "squeezenet": (26, 27),
}

# TF32 rounds to 11 bits on CUDA. On the CPU the order of the sums differs, and weights are rounded once more
# when a batch normalisation is folded into them.
TOLERANCES = {"cpu": 1e-5, "cuda": 2e-3}


def run(model: onnx.ModelProto, device: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return the output of `model`, with all of our nodes on `device`."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    convswap.register(options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[PROVIDERS[device]], enable_fallback=0
    )
    placed = [
        part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if node.domain == "convswap"
    ]
    our_nodes = sum(node.domain == "convswap" for node in model.graph.node)
    assert placed == [PROVIDERS[device]] * our_nodes
    return session.run(None, feeds)[0]


def check_same(original: onnx.ModelProto, device: str, feeds: dict[str, np.ndarray]) -> SwapResult:
    result = swap(original, fuse=True)
    assert_close(run(result.to_proto(), device, feeds), run(original, "cpu", feeds), device)
    return result


def assert_close(after: np.ndarray, before: np.ndarray, device: str) -> None:
    assert after.shape == before.shape
    assert np.linalg.norm(after - before) <= TOLERANCES[device] * np.linalg.norm(before)


def images(*shape: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(2).standard_normal(shape).astype(np.float32)}


def test_every_network_is_here():
    assert COURSE.keys() == NETWORKS.keys() and LARGE.keys() == LARGE_NETWORKS.keys()


@pytest.mark.parametrize("name", COURSE)
def test_course_network_is_fused_and_gives_the_same(name, device):
    size = NETWORKS[name].image_size
    result = check_same(exported(name), device, images(3, 1, size, size))
    expected, not_fused = COURSE[name]
    assert taken(result) == expected
    assert {follower.op for follower in result.not_fused} == not_fused
    assert set(reasons(result).values()) == {NO_SUCH_OP}


def check_counts(name: str, result: SwapResult) -> None:
    assert Counter(map(tuple, taken(result).values())) == LARGE[name]
    assert {follower.op for follower in result.not_fused} == NOT_FUSED[name]


@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in LARGE if name != "vgg16"])
def test_large_network_is_fused_and_gives_the_same(name, device):
    size = LARGE_NETWORKS[name].image_size
    result = check_same(exported(name), device, images(1, 3, size, size))
    check_counts(name, result)
    assert count_swapped(result.model) == len(result.swapped)


@pytest.mark.extended
def test_vgg16_is_fused_as_alexnet_is():
    # Images of one pixel after the last pooling; 224x224 images would need half a gigabyte of weights.
    network = replace(LARGE_NETWORKS["vgg16"], image_size=32)
    shapes = {name: shape for placed in place(network) for name, shape in placed.parameters.items()}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    check_counts("vgg16", swap(build(network, weights, {}), fuse=True))
    assert LARGE["vgg16"].keys() == LARGE["alexnet"].keys()


def light_network(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network of LIGHT with random weights, and its inputs."""
    original = with_weights(onnx.load(CONVERTED.parent / "light" / f"light_{name}.onnx"))
    (image,) = original.graph.input
    values = np.random.default_rng(3).standard_normal(shape_of(image))
    return original, {image.name: values.astype(np.float32)}


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with random weights for constants without values."""
    random = np.random.default_rng(4)
    shapes = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    # From this version on initializers need not be inputs, and initializers that are inputs may be replaced.
    changed.ir_version = 4
    del changed.graph.node[:], changed.graph.input[:]
    changed.graph.input.extend(value for value in model.graph.input if value.name not in shapes)
    for original in model.graph.node:
        if original.op_type != "ConstantOfShape":
            changed.graph.node.append(original)
            continue
        shape = shapes[original.input[0]]
        # Vectors may be variances, which are positive.
        values = random.uniform(0.5, 1.5, shape) if len(shape) == 1 else random.standard_normal(shape)
        values = values * np.sqrt(2 / max(1, np.prod(shape[1:])))
        changed.graph.initializer.append(
            numpy_helper.from_array(values.astype(np.float32), original.output[0])
        )
    return changed


@pytest.mark.extended
@pytest.mark.parametrize("name", LIGHT)
def test_network_of_onnx_with_random_weights_is_fused_and_gives_the_same(name):
    original, feeds = light_network(name)
    result = check_same(original, "cpu", feeds)
    assert (len(result.fused), sum(len(fused.fused_nodes) for fused in result.fused)) == LIGHT[name]


@each("folder", sorted(CONVERTED.iterdir()))
def test_model_converted_from_pytorch_gives_the_output_that_onnx_ships(folder, device):
    original = onnx.load(folder / "model.onnx")
    if not any(each.op_type == "Conv" for each in original.graph.node):
        return
    constants = {value.name for value in original.graph.initializer}
    names = [value.name for value in original.graph.input if value.name not in constants]
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"))
    *inputs, expected = (
        numpy_helper.to_array(onnx.load_tensor(file)) for file in (*files, files[0].with_name("output_0.pb"))
    )
    fused = swap(original, fuse=True).to_proto()
    assert_close(run(fused, device, dict(zip(names, inputs, strict=True))), expected, device)


def converted_with(folder: Path, addition: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model that ONNX ships with an `addition` after its Conv, and its inputs.

    Each of these models has one Conv, in an old format: initializers among the inputs, opset 6.
    """
    original = onnx.version_converter.convert_version(onnx.load(folder / "model.onnx"), 9)
    graph, random = original.graph, np.random.default_rng(2)
    (conv,) = graph.node
    constants = {value.name: value for value in graph.initializer}
    filters = constants[conv.input[1]].dims[0]
    (output,) = onnx.shape_inference.infer_shapes(original).graph.output
    y, conv.output[0] = conv.output[0], "c"
    if addition == "norm":
        for name in ("n0", "n1", "n2", "n3"):
            constants[name] = tensor(name, random.uniform(0.5, 1.5, filters))
            graph.initializer.append(constants[name])
            graph.input.append(declare(name, [filters]))
        graph.node.extend([node("BatchNormalization", "c n0 n1 n2 n3", "h"), node("Elu", "h", y)])
    elif addition == "residual":
        graph.input.append(declare("z", shape_of(output)))
        graph.node.extend([node("Add", "z c", "h"), node("Tanh", "h", y)])
    else:
        pool = node("MaxPool", "h", y, kernel_shape=[2, 1])
        graph.node.extend([node("Sigmoid", "c", "s"), node("Mul", "c s", "h"), pool])
        graph.output[0].type.tensor_type.ClearField("shape")
    inputs = [value for value in graph.input if value.name not in constants]
    return original, {
        value.name: random.standard_normal(shape_of(value)).astype(np.float32) for value in inputs
    }


def shape_of(value: onnx.ValueInfoProto) -> list[int]:
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("addition", ["norm", "residual", "pool"])
@each("folder", sorted(CONVERTED.glob("test_Conv2d*")))
def test_model_converted_from_pytorch_is_fused_with_nodes_added_after_it(folder, addition, device):
    original, feeds = converted_with(folder, addition)
    result = check_same(original, device, feeds)
    ((op, *_),) = taken(result).values()
    assert (op, len(result.not_fused)) == ("FusedConv", 0)


@pytest.mark.parametrize(("low", "high"), [(None, 0.5), (-0.5, None)])
def test_clip_that_leaves_out_a_bound_turns_infinities_into_the_largest_number_there(device, low, high):
    bounds = {"low": low, "high": high}
    constants = {name: np.array(value, np.float32) for name, value in bounds.items() if value is not None}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("Clip", ["h", *(name if name in constants else "" for name in bounds)], ["y"]),
    ]
    weights = {"w": np.ones((1, 1, 1, 1), np.float32), **constants}
    model = graph_model(nodes, {"x": [1, 1, 1, 4]}, weights, opset=17)
    result = swap(model, fuse=True)
    assert [conv.op for conv in result.fused] == ["FusedConv"]
    x = np.array([-np.inf, -1, 1, np.inf], np.float32).reshape(1, 1, 1, 4)
    y = run(result.to_proto(), device, {"x": x}).ravel()
    largest = np.finfo(np.float32).max
    expected = np.clip(x, -largest if low is None else low, largest if high is None else high)
    np.testing.assert_array_equal(y, expected.ravel())
