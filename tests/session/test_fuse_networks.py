"""Whole networks mean the same when they are fused, and as much is fused as can be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.graph.plain_model import count_swapped
from convswap.graph.swap import swap
from convswap.models import LARGE_NETWORKS, NETWORKS
from each_case import each
from exported_networks import exported
from fuse_models import assert_same, reasons, taken
from fused_conv_reference import expand
from onnx_networks import CONVERTED, LIGHT, converted_and_more, converted_case, light_network

pytestmark = [pytest.mark.slow, pytest.mark.extended]

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
        ("FusedConv", "BatchNormalization", "Clip"): 18,
        # The depthwise Conv of each of 17 blocks, and the 1x1 Conv behind it.
        ("FusedConv", "Conv", "BatchNormalization", "Clip", "BatchNormalization", "Add"): 10,
        ("FusedConv", "Conv", "BatchNormalization", "Clip", "BatchNormalization"): 7,
    },
    # LayerNormalization, which is over the channels of a pixel, follows every Conv.
    "convnext-tiny": {},
    # All but the last of each head's two branches.
    "yolov8n": {("FusedConv", "BatchNormalization", "Sigmoid", "Mul"): 57},
}
# What is left behind a Conv in them.
LEFT = {
    "alexnet": {"LRN", "Flatten"},
    "vgg16": {"Flatten"},
    "resnet50": {"GlobalAveragePool"},
    "mobilenet-v2": {"GlobalAveragePool"},
    "convnext-tiny": {"Transpose", "Add"},
    "yolov8n": {"Add", "Concat", "MaxPool", "Resize", "Split"},
}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def test_every_network_is_here():
    assert COURSE.keys() == NETWORKS.keys() and LARGE.keys() == LARGE_NETWORKS.keys()


@pytest.mark.parametrize("name", COURSE)
def test_course_network_is_fused_and_means_the_same(name):
    original = exported(name)
    result = swap(original, fuse=True)
    expected, left = COURSE[name]
    assert taken(result) == expected
    assert {follower.op for follower in result.not_fused} == left
    assert set(reasons(result).values()) == {NOT_TAKEN}
    assert_same(original, result.to_proto())


@pytest.mark.parametrize("name", LARGE)
def test_large_network_is_fused_and_means_the_same(name):
    original = exported(name)
    result = swap(original, fuse=True)
    assert Counter(map(tuple, taken(result).values())) == LARGE[name]
    assert {follower.op for follower in result.not_fused} == LEFT[name]
    fused = result.to_proto()
    assert count_swapped(fused) == len(result.swapped)
    # Half a gigabyte of weights, fused as those of alexnet.
    if name == "vgg16":
        assert LARGE["vgg16"].keys() == LARGE["alexnet"].keys()
        return
    images = np.random.default_rng(1).standard_normal((1, 3, *[LARGE_NETWORKS[name].image_size] * 2))
    feeds = {"image": images.astype(np.float32)}
    (before,), (after,) = run(original, feeds), run(expand(fused), feeds)
    # Float32 through up to 63 convolutions, whose weights are rounded once more; measured: at most 6e-7.
    assert np.linalg.norm(before - after) <= 3e-6 * np.linalg.norm(before)


@pytest.mark.parametrize("name", LIGHT)
def test_network_of_onnx_with_random_weights_is_fused_and_means_the_same(name):
    original, feeds = light_network(name)
    result = swap(original, fuse=True)
    assert (len(result.fused), sum(len(fused.taken) for fused in result.fused)) == LIGHT[name]
    for before, after in zip(run(original, feeds), run(expand(result.to_proto()), feeds), strict=True):
        assert np.linalg.norm(before - after) <= 3e-6 * np.linalg.norm(before)


@each("folder", sorted(CONVERTED.iterdir()))
def test_models_converted_from_pytorch_give_the_outputs_that_onnx_ships(folder):
    fused, feeds, expected = converted_case(folder)
    # Sums of at most a few hundred float32 products, in another order than PyTorch's.
    if fused is not None:
        np.testing.assert_allclose(run(expand(fused), feeds)[0], expected, rtol=1e-4, atol=1e-5)


@each("folder", sorted(CONVERTED.glob("test_Conv2d*")))
@pytest.mark.parametrize("what", ["norm", "residual", "pool"])
def test_models_converted_from_pytorch_are_fused_with_what_is_put_behind_them(folder, what):
    original, feeds = converted_and_more(folder, what)
    result = swap(original, fuse=True)
    ((op, *_),) = taken(result).values()
    assert (op, len(result.not_fused)) == ("FusedConv", 0)
    (before,), (after,) = run(original, feeds), run(expand(result.to_proto()), feeds)
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5 * np.abs(before).max())
