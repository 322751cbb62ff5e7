"""Whole networks mean the same when they are fused, and as much is fused as can be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap import export
from convswap.errors import ConvswapError
from convswap.models import LARGE_NETWORKS, NETWORKS
from convswap.swap import swap
from fuse_models import assert_same, reasons, taken
from fused_conv_reference import counts, expand
from onnx import helper, numpy_helper

NOT_TAKEN = "a convolution does not take in this op"
TANH_AND_POOL = {"conv1": ["FusedConv", "Tanh", "MaxPool"]}
# The Convs that took something in, and the op that was left behind each.
COURSE = {
    "ece408-2017-high": (TANH_AND_POOL, {"Flatten"}),
    "ece408-2017-low": (TANH_AND_POOL, {"Flatten"}),
    "ece408-2020": ({name: ["FusedConv", "Relu", "MaxPool"] for name in ("conv1", "conv2")}, {"Flatten"}),
} | {
    name: (TANH_AND_POOL, {"Flatten"})
    for name in ("ece408-2018sp", "ece408-2018fa", "ece408-2019sp", "baseline-2019sp", "ece408-2019fa")
}

RELU = ("FusedConv", "Relu")
# How many Convs took in what.
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
        ("FusedConv", "BatchNormalization", "Clip"): 35,
        ("FusedConv", "BatchNormalization", "Add"): 10,
        ("Conv", "BatchNormalization"): 7,
    },
    # LayerNormalization, which is over the channels of a pixel, follows every Conv.
    "convnext-tiny": {},
}
# What is left behind a Conv in them.
LEFT = {
    "alexnet": {"LRN", "Flatten"},
    "vgg16": {"Flatten"},
    "resnet50": {"GlobalAveragePool"},
    "mobilenet-v2": {"GlobalAveragePool"},
    "convnext-tiny": {"Transpose", "Add"},
}
CONVERTED = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted"


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def test_every_network_is_here():
    assert COURSE.keys() == NETWORKS.keys() and LARGE.keys() == LARGE_NETWORKS.keys()


@pytest.mark.parametrize("name", COURSE)
def test_course_network_is_fused_and_means_the_same(name):
    original = export.export_network(name)
    result = swap(original, fuse=True)
    expected, left = COURSE[name]
    assert taken(result) == expected
    assert {follower.op for follower in result.not_fused} == left
    assert set(reasons(result).values()) == {NOT_TAKEN}
    assert_same(original, result.to_proto())


@pytest.mark.parametrize("name", LARGE)
def test_large_network_is_fused_and_means_the_same(name):
    original = export.export_network(name)
    result = swap(original, fuse=True)
    assert Counter(map(tuple, taken(result).values())) == LARGE[name]
    assert {follower.op for follower in result.not_fused} == LEFT[name]
    fused = result.to_proto()
    assert sum(counts(fused).values()) == len(result.swapped)
    images = np.random.default_rng(1).standard_normal((1, 3, *[LARGE_NETWORKS[name].image_size] * 2))
    feeds = {"image": images.astype(np.float32)}
    (before,), (after,) = run(original, feeds), run(expand(fused), feeds)
    # Float32 through up to 53 convolutions, whose weights are rounded once more; measured: at most 6e-7.
    assert np.linalg.norm(before - after) <= 3e-6 * np.linalg.norm(before)


# Of ONNX's networks without weights those of moderate size, and how many Convs take in how many nodes there.
LIGHT = {
    "densenet121": (62, 240),
    "inception_v1": (57, 58),
    "inception_v2": (69, 278),
    "resnet50": (53, 120),
    "shufflenet": (49, 94),
    "squeezenet": (26, 27),
}


@pytest.mark.parametrize("name", LIGHT)
def test_network_of_onnx_with_random_weights_is_fused_and_means_the_same(name):
    original, feeds = light_network(name)
    result = swap(original, fuse=True)
    assert (len(result.fused), sum(len(fused.taken) for fused in result.fused)) == LIGHT[name]
    for before, after in zip(run(original, feeds), run(expand(result.to_proto()), feeds), strict=True):
        assert np.linalg.norm(before - after) <= 3e-6 * np.linalg.norm(before)


def light_network(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network of LIGHT with random weights, and what to feed it."""
    original = with_weights(onnx.load(CONVERTED.parent / "light" / f"light_{name}.onnx"))
    (given,) = original.graph.input
    shape = [dimension.dim_value for dimension in given.type.tensor_type.shape.dim]
    return original, {given.name: np.random.default_rng(3).standard_normal(shape).astype(np.float32)}


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with random weights where it has constants without values."""
    random = np.random.default_rng(4)
    shapes = {name: numpy_helper.to_array(value) for name, value in initializers(model).items()}
    made = onnx.ModelProto.FromString(model.SerializeToString())
    # From this version on initializers need not be inputs, and those that are may change.
    made.ir_version = 4
    del made.graph.node[:], made.graph.input[:]
    made.graph.input.extend(value for value in model.graph.input if value.name not in shapes)
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            made.graph.node.append(node)
            continue
        shape = shapes[node.input[0]]
        # Vectors are variances too, which are positive.
        values = random.uniform(0.5, 1.5, shape) if len(shape) == 1 else random.standard_normal(shape)
        values = values * np.sqrt(2 / max(1, np.prod(shape[1:])))
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    return made


def initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {value.name: value for value in model.graph.initializer}


@pytest.mark.parametrize("folder", sorted(CONVERTED.iterdir()), ids=lambda folder: folder.name)
def test_models_converted_from_pytorch_give_the_outputs_that_onnx_ships(folder):
    fused, feeds, expected = converted_case(folder)
    # Sums of at most a few hundred float32 products, in another order than PyTorch's.
    if fused is not None:
        np.testing.assert_allclose(run(expand(fused), feeds)[0], expected, rtol=1e-4, atol=1e-5)


def converted_case(folder: Path) -> tuple[onnx.ModelProto | None, dict[str, np.ndarray], np.ndarray]:
    """Return a model that ONNX ships, fused (None where it has no Conv), its feeds and its output."""
    original = onnx.load(folder / "model.onnx")
    constants = {value.name for value in original.graph.initializer}
    names = [value.name for value in original.graph.input if value.name not in constants]
    cases = folder / "test_data_set_0"
    arrays = [numpy_helper.to_array(onnx.load_tensor(file)) for file in sorted(cases.glob("input_*.pb"))]
    expected = numpy_helper.to_array(onnx.load_tensor(cases / "output_0.pb"))
    feeds = dict(zip(names, arrays, strict=True))
    try:
        return swap(original, fuse=True).to_proto(), feeds, expected
    except ConvswapError as error:
        assert "has no Conv" in str(error)
        assert not any(node.op_type == "Conv" for node in original.graph.node)
        return None, feeds, expected


@pytest.mark.parametrize("folder", sorted(CONVERTED.glob("test_Conv2d*")), ids=lambda folder: folder.name)
@pytest.mark.parametrize("what", ["norm", "residual", "pool"])
def test_models_converted_from_pytorch_are_fused_with_what_is_put_behind_them(folder, what):
    original, feeds = converted_and_more(folder, what)
    result = swap(original, fuse=True)
    ((op, *_),) = taken(result).values()
    assert (op, len(result.not_fused)) == ("FusedConv", 0)
    (before,), (after,) = run(original, feeds), run(expand(result.to_proto()), feeds)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())


def converted_and_more(folder: Path, what: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model that ONNX ships with `what` put behind its Conv, and what to feed it.

    ONNX's models are of one Conv each, in an old format: initializers among the inputs, opset 6.
    """
    original = onnx.version_converter.convert_version(onnx.load(folder / "model.onnx"), 9)
    (conv,) = original.graph.node
    filters = next(value.dims[0] for value in original.graph.initializer if value.name == conv.input[1])
    given = {value.name for value in original.graph.initializer}
    y, conv.output[0] = conv.output[0], "conv_y"
    shape = [
        dimension.dim_value
        for dimension in onnx.shape_inference.infer_shapes(original)
        .graph.output[0]
        .type.tensor_type.shape.dim
    ]
    random = np.random.default_rng(2)
    match what:
        case "norm":
            for number in range(4):
                values = random.uniform(0.5, 1.5, size=filters).astype(np.float32)
                original.graph.initializer.append(numpy_helper.from_array(values, f"n{number}"))
                original.graph.input.append(
                    helper.make_tensor_value_info(f"n{number}", onnx.TensorProto.FLOAT, [filters])
                )
            nodes = [
                helper.make_node("BatchNormalization", ["conv_y", "n0", "n1", "n2", "n3"], ["h"]),
                helper.make_node("Elu", ["h"], [y]),
            ]
        case "residual":
            original.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, shape))
            nodes = [helper.make_node("Add", ["z", "conv_y"], ["h"]), helper.make_node("Tanh", ["h"], [y])]
        case _:
            nodes = [
                helper.make_node("Sigmoid", ["conv_y"], ["s"]),
                helper.make_node("Mul", ["conv_y", "s"], ["h"]),
                helper.make_node("MaxPool", ["h"], [y], kernel_shape=[2, 1]),
            ]
            original.graph.output[0].type.tensor_type.ClearField("shape")
    original.graph.node.extend(nodes)
    feeds = {
        value.name: random.standard_normal(
            [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in original.graph.input
        if value.name not in given and not value.name.startswith("n")
    }
    return original, feeds
