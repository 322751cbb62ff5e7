"""A fused network gives, in a session, what the network gave: on both providers, by the op itself."""

from __future__ import annotations

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.graph.swap import swap
from convswap.models import LARGE_NETWORKS, NETWORKS
from each_case import each
from exported_networks import exported
from onnx import helper
from onnx_networks import CONVERTED, LIGHT, converted_and_more, converted_case, light_network
from op_sessions import PROVIDERS

pytestmark = pytest.mark.slow

# TF32 rounds to 11 bits on CUDA; on the CPU only the order of the sums differs, and that some weights were
# rounded once more when they took in a batch normalisation.
CLOSE = {"cpu": 1e-5, "cuda": 2e-3}


def run(model: onnx.ModelProto, device: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return the output of `model`, all of whose nodes of ours run on `device`."""
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
    ours = sum(node.domain == "convswap" for node in model.graph.node)
    assert placed == [PROVIDERS[device]] * ours
    return session.run(None, feeds)[0]


def check_fused(original: onnx.ModelProto, device: str, shape: tuple[int, ...]) -> None:
    name = original.graph.input[0].name
    feeds = {name: np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    check_same(original, device, feeds)


def check_same(original: onnx.ModelProto, device: str, feeds: dict[str, np.ndarray]) -> None:
    result = swap(original, fuse=True)
    assert any(taking.op == "FusedConv" for taking in result.fused)
    assert_close(run(result.to_proto(), device, feeds), run(original, "cpu", feeds), device)


def assert_close(after: np.ndarray, before: np.ndarray, device: str) -> None:
    assert after.shape == before.shape
    assert np.linalg.norm(after - before) <= CLOSE[device] * np.linalg.norm(before)


@pytest.mark.parametrize("name", NETWORKS)
def test_fused_course_network_gives_the_same(name, device):
    size = NETWORKS[name].image_size
    check_fused(exported(name), device, (3, 1, size, size))


# Of VGG all that is fused is in AlexNet too, at a quarter of the weights.
@pytest.mark.extended
@pytest.mark.parametrize("name", [name for name in LARGE_NETWORKS if name not in ("convnext-tiny", "vgg16")])
def test_fused_large_network_gives_the_same(name, device):
    size = LARGE_NETWORKS[name].image_size
    check_fused(exported(name), device, (1, 3, size, size))


@pytest.mark.extended
def test_large_network_in_which_nothing_can_be_fused_gives_the_same(device):
    original = exported("convnext-tiny")
    result = swap(original, fuse=True)
    assert result.fused == () and len(result.swapped) > 0
    feeds = {"image": np.random.default_rng(2).standard_normal((1, 3, 224, 224)).astype(np.float32)}
    assert_close(run(result.to_proto(), device, feeds), run(original, "cpu", feeds), device)


@pytest.mark.extended
@pytest.mark.parametrize("name", LIGHT)
def test_network_of_onnx_with_random_weights_gives_the_same(name):
    original, feeds = light_network(name)
    check_same(original, "cpu", feeds)


@each("folder", sorted(CONVERTED.iterdir()))
def test_model_converted_from_pytorch_gives_the_output_that_onnx_ships(folder, device):
    fused, feeds, expected = converted_case(folder)
    if fused is not None:
        assert_close(run(fused, device, feeds), expected, device)


@pytest.mark.parametrize("what", ["norm", "residual", "pool"])
@each("folder", sorted(CONVERTED.glob("test_Conv2d*")))
def test_model_converted_from_pytorch_gives_the_same_with_what_is_put_behind_it(folder, what, device):
    original, feeds = converted_and_more(folder, what)
    check_same(original, device, feeds)


@pytest.mark.parametrize(("least", "most"), [(None, 0.5), (-0.5, None)])
def test_clip_that_leaves_out_a_bound_turns_infinities_into_the_largest_number_there(device, least, most):
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
    y = run(result.to_proto(), device, {"x": x}).ravel()
    largest = np.finfo(np.float32).max
    expected = np.clip(x, -largest if least is None else least, largest if most is None else most)
    np.testing.assert_array_equal(y, expected.ravel())
