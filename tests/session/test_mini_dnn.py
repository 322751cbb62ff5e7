"""Weights files of mini-dnn become the network of 2020; damaged files are refused in one line."""

from __future__ import annotations

import os
import struct

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.cli.main import main
from convswap.data import datasets
from convswap.export import export_network, read_mini_dnn
from convswap.graph.swap import swap
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, make_session, run
from mini_dnn_files import count_offset, random_layers, weights_bytes
from numpy_forward import convolve, dense, pool, softmax
from onnx import numpy_helper
from op_sessions import onnx_outputs
from refused import refused

SIZE = 180_788


def forward(layers, x, *, convolution_biases=False):
    """Run the network of 2020 in float64; the course's convolution ignores its bias."""
    (w1, b1), _, _, (w2, b2), _, _, (w3, b3), _, (w4, b4), _ = layers
    value = convolve(x, w1, b1 if convolution_biases else None)
    value = pool(np.maximum(value, 0), (2, 2), (2, 2))
    value = convolve(value, w2, b2 if convolution_biases else None)
    value = pool(np.maximum(value, 0), (4, 4), (4, 4), ceil=True)
    value = np.maximum(dense(value, w3, b3), 0)
    return softmax(dense(value, w4, b4))


def default_run(model, images):
    return onnx_outputs(model, {"image": images}, ["probabilities"])[0]


@pytest.fixture
def images():
    return datasets.load("synthetic", images=3, image_size=86).images


@pytest.fixture
def weights_file(tmp_path):
    path = tmp_path / "weights-86.bin"
    path.write_bytes(weights_bytes(random_layers()))
    return path


def message_of(path):
    with refused() as caught:
        read_mini_dnn(path)
    return str(caught.value)


def test_a_weights_file_computes_the_layers_of_the_course(weights_file, images):
    layers = random_layers()
    model = read_mini_dnn(weights_file)
    expected = forward(layers, images)
    assert 0.05 < expected.max(axis=1).mean() < 0.999
    # float32 sums of up to 1,296 products, as probabilities of at most 1.
    np.testing.assert_allclose(default_run(model, images), expected, atol=1e-5)
    np.testing.assert_allclose(default_run(model, images[:1]), expected[:1], atol=1e-5)
    session = make_session(ir.to_proto(swap(model).model), CONVSWAP, Device("cpu", "asked for"))
    np.testing.assert_allclose(run(session, {"image": images})[0], expected, atol=1e-5)


def test_the_biases_of_the_convolutions_are_left_out_as_in_the_course(tmp_path, weights_file, images):
    layers = random_layers()
    for number in (0, 3):
        layers[number][1] += 0.7
    changed = tmp_path / "changed.bin"
    changed.write_bytes(weights_bytes(layers))
    # The biases are large enough to change the result.
    assert np.abs(forward(layers, images, convolution_biases=True) - forward(layers, images)).max() > 0.01
    actual = read_mini_dnn(changed).SerializeToString()
    assert actual == read_mini_dnn(weights_file).SerializeToString()


def test_a_weights_file_gives_the_model_of_the_network_with_other_weights(weights_file):
    model, network = read_mini_dnn(weights_file), export_network("ece408-2020")
    onnx.checker.check_model(model, full_check=True)
    assert list(model.graph.node) == list(network.graph.node)
    assert list(model.graph.input) == list(network.graph.input)
    assert list(model.graph.output) == list(network.graph.output)
    assert list(model.graph.value_info) == list(network.graph.value_info)
    assert (model.ir_version, model.opset_import) == (network.ir_version, network.opset_import)
    assert [value.name for value in model.graph.initializer] == [
        value.name for value in network.graph.initializer
    ]
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert (properties["convswap.network"], properties["convswap.dataset"]) == (
        "ece408-2020",
        "fashion-mnist",
    )
    assert "without the biases of its convolutions" in properties["convswap.weights"]


def test_the_weights_of_a_network_survive_the_file(tmp_path):
    network = export_network("ece408-2020")
    arrays = {value.name: numpy_helper.to_array(value) for value in network.graph.initializer}
    layers = random_layers()
    for number, name in ((0, "conv1"), (3, "conv2"), (6, "fc1"), (8, "fc2")):
        layers[number][0] = arrays[f"{name}.weight"]
    for number, name in ((6, "fc1"), (8, "fc2")):
        layers[number][1] = arrays[f"{name}.bias"]
    path = tmp_path / "network.bin"
    path.write_bytes(weights_bytes(layers))
    assert list(read_mini_dnn(path).graph.initializer) == list(network.graph.initializer)


def test_a_cut_off_file_is_refused_wherever_it_was_cut(weights_file):
    content = weights_file.read_bytes()
    assert len(content) == SIZE
    offsets = [count_offset(random_layers(), number) for number in range(1, 11)]
    lengths = {0, 1, 3, 4, SIZE - 1, *offsets, *(offset + 3 for offset in offsets)}
    for length in sorted(lengths | {SIZE * part // 20 for part in range(20)}):
        weights_file.write_bytes(content[:length])
        message = message_of(weights_file)
        assert "is cut off or damaged" in message and "at byte" in message


def test_a_longer_file_is_refused(weights_file):
    weights_file.write_bytes(weights_file.read_bytes() + b"\0")
    message = message_of(weights_file)
    assert (
        f"has {SIZE + 1} bytes; expected a mini-dnn weights file of ece408-2020 of at most {SIZE}" in message
    )


@pytest.mark.parametrize("count", [0, 9, 11, -1, 2**31 - 1, 0x112])
def test_another_number_of_layers_is_refused(weights_file, count):
    weights_file.write_bytes(struct.pack("<i", count) + weights_file.read_bytes()[4:])
    assert f"it begins with {count} layers, expected 10" in message_of(weights_file)


@pytest.mark.parametrize(
    ("number", "count", "expected"),
    [
        (1, 196, "196 numbers in layer 1 (conv1), by byte 4; expected 200"),
        (2, 1, "1 numbers in layer 2 (relu1), by byte 808; expected 0"),
        (4, 3_136, "expected 3152"),
        (7, -1, "-1 numbers in layer 7 (fc1)"),
        (7, 2**31 - 1, "2147483647 numbers in layer 7 (fc1)"),
        (9, 320, "expected 330"),
        (10, 7, "7 numbers in layer 10 (softmax1)"),
    ],
)
def test_a_wrong_count_is_refused_with_its_layer(weights_file, number, count, expected):
    content = weights_file.read_bytes()
    offset = count_offset(random_layers(), number)
    weights_file.write_bytes(content[:offset] + struct.pack("<i", count) + content[offset + 4 :])
    message = message_of(weights_file)
    assert expected in message and "belongs to another network" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("layer", "array"), [(0, 0), (3, 1), (6, 0), (8, 1)])
def test_a_number_that_is_not_finite_is_refused_with_its_place(weights_file, value, layer, array):
    layers = random_layers()
    layers[layer][array].flat[2] = value
    weights_file.write_bytes(weights_bytes(layers))
    place = count_offset(layers, layer + 1) + 4 + 4 * 2 + (layers[layer][0].nbytes if array else 0)
    message = message_of(weights_file)
    assert f"at byte {place}: found {value} in layer {layer + 1} (" in message
    assert "expected finite numbers" in message


def test_missing_files_folders_and_pipes_are_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "no such file" in message_of(tmp_path / "none")
    assert "is a directory" in message_of(tmp_path)
    assert "not a regular file" in message_of(pipe)


def test_the_command_writes_a_model_named_after_the_file(weights_file, images, monkeypatch, capsys):
    monkeypatch.chdir(weights_file.parent)
    assert main(["export", "--mini-dnn", "weights-86.bin"]) == 0
    assert capsys.readouterr().out == "weights-86.onnx\n"
    actual = default_run(onnx.load("weights-86.onnx"), images)
    np.testing.assert_allclose(actual, forward(random_layers(), images), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ece408-2020"], "given: a network's name (see `convswap export --list`) and --mini-dnn"),
        (["--mxnet-symbol", "symbol.json"], "given: --mxnet-symbol with --mxnet-params and --mini-dnn"),
        (["--data", "synthetic"], "--data was given with --mini-dnn"),
        (["--image-size", "86"], "--image-size was given with --mini-dnn"),
        (["-o", "weights-86.bin"], "cannot write 'weights-86.bin'"),
    ],
)
def test_options_that_do_not_go_with_a_weights_file_are_refused(
    weights_file, monkeypatch, capsys, arguments, expected
):
    monkeypatch.chdir(weights_file.parent)
    assert main(["export", "--mini-dnn", "weights-86.bin", *arguments]) == 2
    assert expected in capsys.readouterr().err
    assert list(weights_file.parent.iterdir()) == [weights_file]
