"""Converts `bvlc_alexnet.npy`, AlexNet's weights from Caffe, to an ONNX model.

The file has a dict: layer name to [weights, bias]. Convolutions are (height, width, in, out). Fully connected
layers are (in, out). The layer fc6 is for channels-last images: its inputs are the 6x6 pixels of pool5, row
by row, with the 256 channels of each pixel together. ONNX's Flatten has the order channel, row, column.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
from convswap.errors import ConvswapError
from convswap.export.builder import build
from convswap.export.pickled_arrays import read_pickled_arrays
from convswap.models import RANDOM, Convolution, Flatten, FullyConnected, PlacedLayer, find, place
from numpy.typing import NDArray

LAYERS = ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8")
EXPECTED = "bvlc_alexnet.npy, a pickled dict of layer names and [weights, bias]"


def read_alexnet(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return AlexNet with the weights in the file at `path` as an ONNX model: opset 20, IR 9.

    The input `image`, float32 [batch, 3, 227, 227], is that of the training: blue, green and red, 0..255,
    minus the mean of the training images. The output is `logits`, float32 [batch, 1000].

    Raises ConvswapError if the file cannot be read, has anything but arrays, or has not AlexNet's arrays.
    """
    network = find("alexnet")
    layers = read_pickled_arrays(path, EXPECTED)
    missing = [name for name in LAYERS if name not in layers]
    unknown = [name for name in layers if name not in LAYERS]
    if missing or unknown:
        found = f"no layer {missing[0]!r}" if missing else f"the layer {unknown[0]!r:.60}"
        raise ConvswapError(f"{str(path)!r} has {found}; AlexNet's are {', '.join(LAYERS)}")
    flattened = next(placed for placed in place(network) if isinstance(placed.layer, Flatten))
    weights: dict[str, NDArray[np.float32]] = {}
    placed_layers = [placed for placed in place(network) if placed.parameters]
    for name, placed in zip(LAYERS, placed_layers, strict=True):
        expected = _shapes_in_file(placed)
        shapes = [array.shape for array in layers[name]]
        if shapes != expected:
            raise ConvswapError(
                f"layer {name} of {str(path)!r} has arrays of {_listed(shapes)}; AlexNet's are "
                f"{_listed(expected)}"
            )
        weight, bias = layers[name]
        if isinstance(placed.layer, Convolution):
            weight = weight.transpose(3, 2, 0, 1)
        else:
            if name == "fc6":
                channels, rows, columns = flattened.input_shape
                by_pixel = weight.reshape(rows, columns, channels, -1)
                weight = by_pixel.transpose(2, 0, 1, 3).reshape(weight.shape)
            weight = weight.T
        weights[f"{placed.name}.weight"] = np.ascontiguousarray(weight)
        weights[f"{placed.name}.bias"] = bias
    file = Path(path).name.encode(errors="replace").decode()
    metadata = {"network": network.name, "dataset": RANDOM, "weights": file}
    return build(network, weights, metadata, output="logits")


def _shapes_in_file(placed: PlacedLayer) -> list[tuple[int, ...]]:
    weight, bias = placed.parameters.values()
    if isinstance(placed.layer, FullyConnected):
        return [weight[::-1], bias]
    filters, channels, rows, columns = weight
    return [(rows, columns, channels, filters), bias]


def _listed(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join("x".join(map(str, shape)) or "one number" for shape in shapes[:4]) or "no arrays"
