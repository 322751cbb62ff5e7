"""A fused network gives, in a session, what the network gave: on both providers, by the op itself."""

from __future__ import annotations

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from convswap import export
from convswap.models import LARGE_NETWORKS, NETWORKS
from convswap.swap import swap
from onnx import helper
from test_op_session import PROVIDERS

on_each_provider = pytest.mark.parametrize("provider", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
# TF32 rounds to 11 bits on CUDA; on the CPU only the order of the sums differs, and that some weights were
# rounded once more when they took in a batch normalisation.
CLOSE = {"cpu": 1e-5, "cuda": 2e-3}


def run(model: onnx.ModelProto, provider: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    convswap.register(options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=[PROVIDERS[provider]]
    )
    return session.run(None, feeds)[0]


def check_fused(original: onnx.ModelProto, provider: str, shape: tuple[int, ...]) -> None:
    result = swap(original, fuse=True)
    assert any(taking.op == "FusedConv" for taking in result.fused)
    name = original.graph.input[0].name
    feeds = {name: np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    before, after = run(original, "cpu", feeds), run(result.to_proto(), provider, feeds)
    assert after.shape == before.shape
    assert np.linalg.norm(after - before) <= CLOSE[provider] * np.linalg.norm(before)


@on_each_provider
@pytest.mark.parametrize("name", NETWORKS)
def test_fused_course_network_gives_the_same(name, provider):
    size = NETWORKS[name].image_size
    check_fused(export.export_network(name), provider, (3, 1, size, size))


@on_each_provider
@pytest.mark.parametrize("name", [name for name in LARGE_NETWORKS if name != "convnext-tiny"])
def test_fused_large_network_gives_the_same(name, provider):
    size = LARGE_NETWORKS[name].image_size
    check_fused(export.export_network(name), provider, (1, 3, size, size))


@on_each_provider
@pytest.mark.parametrize(("least", "most"), [(None, 0.5), (-0.5, None)])
def test_clip_that_is_open_at_one_end_lets_infinities_through_there(provider, least, most):
    bounds = {"least": least, "most": most}
    given = {name: np.array(value, np.float32) for name, value in bounds.items() if value is not None}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
        helper.make_node("Clip", ["h", *(name if name in given else "" for name in bounds)], ["y"]),
    ]
    weights = {"w": np.ones((1, 1, 1, 1), np.float32), **given}
    graph = helper.make_graph(
        nodes,
        "clip",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, 1, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = swap(model, fuse=True)
    assert [taking.op for taking in result.fused] == ["FusedConv"]
    x = np.array([-np.inf, -1, 1, np.inf], np.float32).reshape(1, 1, 1, 4)
    y = run(result.to_proto(), provider, {"x": x}).ravel()
    np.testing.assert_array_equal(y, np.clip(x, least, most).ravel())
