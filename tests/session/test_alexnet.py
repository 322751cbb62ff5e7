"""AlexNet's weights file becomes the network that it belongs to, and no code in the file is run."""

from __future__ import annotations

import os
import pickle
import struct

import numpy as np
import onnx
import pytest
from alexnet_files import SHAPES, npy, npy_of_python_2, npy_of_this_numpy, random_layers
from convswap.cli import main as cli
from convswap.errors import ConvswapError
from convswap.export import pickled_arrays, read_alexnet
from convswap.export.pickled_arrays import read_pickled_arrays
from op_sessions import onnx_outputs


def convolve(x, weight, bias, stride=1, pad=0, groups=1):
    """Convolve x (rows, columns, channels) with weight (rows, columns, in, out), in float64."""
    x = np.pad(x, ((pad, pad), (pad, pad), (0, 0)))
    rows, columns, per_group, filters = weight.shape
    windows = np.lib.stride_tricks.sliding_window_view(x, (rows, columns), axis=(0, 1))[::stride, ::stride]
    parts = []
    for group in range(groups):
        windows_of_group = windows[:, :, group * per_group : (group + 1) * per_group]
        filters_of_group = weight[..., group * filters // groups : (group + 1) * filters // groups]
        parts.append(np.tensordot(windows_of_group, filters_of_group, axes=[(2, 3, 4), (2, 0, 1)]))
    return np.concatenate(parts, axis=2) + bias


def normalise(x, radius=2, alpha=2e-5, beta=0.75):
    """Normalise across channels like the published program; its alpha of 1e-4 is for five channels."""
    squares = np.pad(x * x, ((0, 0), (0, 0), (radius, radius)))
    total = sum(squares[:, :, offset : offset + x.shape[2]] for offset in range(2 * radius + 1))
    return x / (1 + alpha * total) ** beta


def pool(x):
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(0, 1))[::2, ::2]
    return windows.max(axis=(3, 4))


def alexnet_in_the_files_layout(layers, image):
    """Return the logits of an image (227, 227, 3), in channels-last layout like the file's arrays."""
    wide = {name: [array.astype(np.float64) for array in arrays] for name, arrays in layers.items()}
    value = pool(normalise(np.maximum(convolve(image, *wide["conv1"], stride=4), 0)))
    value = pool(normalise(np.maximum(convolve(value, *wide["conv2"], pad=2, groups=2), 0)))
    value = np.maximum(convolve(value, *wide["conv3"], pad=1), 0)
    value = np.maximum(convolve(value, *wide["conv4"], pad=1, groups=2), 0)
    value = pool(np.maximum(convolve(value, *wide["conv5"], pad=1, groups=2), 0)).reshape(-1)
    for name in ("fc6", "fc7"):
        value = np.maximum(value @ wide[name][0] + wide[name][1], 0)
    return value @ wide["fc8"][0] + wide["fc8"][1]


def logits(model, images):
    return onnx_outputs(model, {"image": images}, ["logits"])[0]


@pytest.mark.extended
def test_the_command_writes_the_model_that_the_file_means(tmp_path, capsys):
    # One test for all checks, because the weights are a quarter of a gigabyte.
    layers = random_layers()
    file, output = tmp_path / "bvlc_alexnet.npy", tmp_path / "mine.onnx"
    file.write_bytes(npy_of_this_numpy(layers))
    assert cli.main(["export", "--alexnet", str(file), "-o", str(output)]) == 0
    assert capsys.readouterr().out == f"{output}\n"
    model = onnx.load(output)
    # Pixels in the range of the file's training data: there the normalisation divides by 1.4.
    images = np.random.default_rng(3).normal(size=(1, 227, 227, 3)) * 64
    expected = np.stack([alexnet_in_the_files_layout(layers, image) for image in images])
    actual = logits(model, np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32))
    # float32 sums of up to 9,216 products, eight layers deep.
    assert np.linalg.norm(actual - expected) < 1e-5 * np.linalg.norm(expected)
    onnx.checker.check_model(model, full_check=True)
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    assert [dimension.dim_param or dimension.dim_value for dimension in dimensions] == ["batch", 3, 227, 227]
    groups = [
        {attribute.name: attribute.i for attribute in node.attribute}.get("group", 1)
        for node in model.graph.node
        if node.op_type == "Conv"
    ]
    assert groups == [1, 2, 1, 2, 2]
    assert {value.name for value in model.graph.value_info} >= {
        node.output[0] for node in model.graph.node[:-1]
    }
    properties = {entry.key: entry.value for entry in model.metadata_props}
    assert properties["convswap.weights"] == "bvlc_alexnet.npy"


SMALL = {
    "conv1": [np.arange(24, dtype=np.float32).reshape(2, 3, 1, 4), np.arange(4, dtype=np.float32)],
    "fc6": [np.asfortranarray(np.arange(6, dtype=np.float64).reshape(3, 2)), np.ones(2, ">f4")],
    "fc7": [np.zeros((0, 2), np.float16), np.array(0.5, np.float32)],
}


@pytest.mark.parametrize("write", [npy_of_this_numpy, npy_of_python_2])
def test_arrays_are_read_as_numpy_reads_them(write, tmp_path):
    path = tmp_path / "small.npy"
    path.write_bytes(write(SMALL))
    by_numpy = np.load(path, allow_pickle=True, encoding="latin1").item()
    restored = read_pickled_arrays(path, "weights")
    assert list(restored) == list(by_numpy) == list(SMALL)
    for name, arrays in SMALL.items():
        for array, numpy_array, ours in zip(arrays, by_numpy[name], restored[name], strict=True):
            np.testing.assert_array_equal(numpy_array, array)
            np.testing.assert_array_equal(ours, array)
            assert ours.shape == array.shape and ours.dtype == np.float32


def zeros(**shapes):
    """Return AlexNet's arrays as zeros, with other shapes for the layers in `shapes`."""
    return {
        name: [np.zeros(shape, np.float16) for shape in shapes.get(name, default)]
        for name, default in SHAPES.items()
        # fc6 to fc8 are large, and the layers before them are refused first.
        if name.startswith("conv") or name in shapes
    } | {name: [] for name in SHAPES if not name.startswith("conv") and name not in shapes}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({name: [] for name in SHAPES if name != "conv4"}, "has no layer 'conv4'; AlexNet's are conv1, "),
        (zeros() | {"conv6": []}, "has the layer 'conv6'; AlexNet's are"),
        (
            zeros(conv2=[(5, 5, 96, 256), (256,)]),
            "layer conv2 of .* has arrays of 5x5x96x256 and 256; AlexNet's are 5x5x48x256 and 256",
        ),
        (zeros(conv1=[(96, 3, 11, 11), (96,)]), "layer conv1 .* 96x3x11x11 and 96"),
        (zeros(conv3=[(3, 3, 256, 384)]), "layer conv3 .* has arrays of 3x3x256x384; AlexNet's"),
        (zeros(), "layer fc6 of .* has arrays of no arrays; AlexNet's are 9216x4096 and 4096"),
    ],
)
def test_arrays_of_another_network_are_refused(layers, message, tmp_path):
    path = tmp_path / "other.npy"
    path.write_bytes(npy_of_this_numpy(layers))
    with pytest.raises(ConvswapError, match=message):
        read_alexnet(path)


class MakesFolder:
    """An object whose unpickling creates the folder `path`."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_a_file_wants_to_run_is_not_run(tmp_path, protocol):
    folder = tmp_path / "made"
    pickled = pickle.dumps(np.array({"conv1": [MakesFolder(folder)]}, dtype=object), protocol=protocol)
    path = tmp_path / "hostile.npy"
    path.write_bytes(npy(pickled))
    with pytest.raises(ConvswapError, match="which could run a program, and was not obeyed"):
        read_pickled_arrays(path, "weights")
    assert not folder.exists()
    # NumPy does run it.
    np.load(path, allow_pickle=True)
    assert folder.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy_of_this_numpy({"conv1": "text"}), "layer 'conv1' is a str, not a list of arrays"),
        (npy_of_this_numpy("text"), "its object is a str, not a dict of layers"),
        (npy_of_this_numpy({1: []}), "it has an int as the name of a layer"),
        (npy_of_this_numpy({"fc8": [np.arange(3)]}), "an array of type 'i8', expected f2, f4, f8"),
        (npy_of_this_numpy({"fc8": [np.array([1e300])]}), "layer 'fc8' has values beyond the range"),
        (npy_of_this_numpy({"fc8": [np.array([{}, {}])]}), "not of floating-point numbers"),
        (npy_of_this_numpy(SMALL)[:-40], "is cut off or damaged; get it again"),
        (npy(b"\x80\x02K\x01."), "its pickle holds no array of one object"),
        (npy(b"\x80\x02" + b"(" * 100), "is cut off or damaged"),
        (npy(b"\x80\x02" + b"N0" * 10), "its pickle uses POP, which arrays do not need"),
        (npy(b"\x80\x02" + b"K\x01" * 30_000 + b"."), "more than 20000 pickle operations"),
        # An index into the memo for which Python's own unpickler would allocate 32 GB.
        (npy(b"\x80\x02Nr\xff\xff\xff\x7f."), "holds no array of one object"),
        (npy(b"\x80\x02cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R."), "calls something other than"),
        # A name whose hash would take 2^60 steps.
        (npy(b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"Ns."), "it has a tuple as the name of a layer"),
        (b"\x93NUMPY\x01\x00\x02\x00{\n", "is not a .npy file that NumPy reads"),
        (b"", "is not a .npy file that NumPy reads; expected weights"),
        (b"PK\x03\x04" + bytes(60), "is not a .npy file that NumPy reads"),
    ],
)
def test_anything_but_a_dict_of_arrays_is_refused_in_one_line(content, message, tmp_path):
    path = tmp_path / "damaged.npy"
    path.write_bytes(content)
    with pytest.raises(ConvswapError, match=message) as raised:
        read_pickled_arrays(path, "weights")
    assert str(raised.value).isprintable()


def test_an_array_of_numbers_is_refused(tmp_path):
    np.save(tmp_path / "numbers.npy", np.zeros((2, 2)))
    with pytest.raises(ConvswapError, match="holds an array of float64 with 2 dimensions; expected weights"):
        read_pickled_arrays(tmp_path / "numbers.npy", "weights")


def test_an_array_whose_bytes_are_missing_is_refused(tmp_path):
    content = npy_of_python_2({"fc8": [np.ones(3, np.float32)]})
    sizes = b"(J" + struct.pack("<i", 3) + b"t"
    assert content.count(sizes) == 1
    path = tmp_path / "short.npy"
    path.write_bytes(content.replace(sizes, b"(J" + struct.pack("<i", 4_000_000) + b"t"))
    with pytest.raises(
        ConvswapError, match="an array of 16000000 bytes by its shape, and 12 bytes are there"
    ):
        read_pickled_arrays(path, "weights")


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pickled_arrays, "LARGEST_FILE", 100)
    (tmp_path / "large.npy").write_bytes(bytes(101))
    with pytest.raises(ConvswapError, match="has 101 bytes; expected weights of at most 100"):
        read_pickled_arrays(tmp_path / "large.npy", "weights")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alexnet", "--alexnet", "x.npy"], "export needs one of a network's name"),
        (["--alexnet", "x.npy", "--data", "synthetic"], "--data was given with --alexnet; leave it out"),
        (["--alexnet", "x.npy"], "no such file: 'x.npy'; expected bvlc_alexnet.npy"),
    ],
)
def test_the_command_refuses_what_it_cannot_use(arguments, message, capsys):
    assert cli.main(["export", *arguments]) == 2
    assert message in capsys.readouterr().err
