"""Converts a weights file of mini-dnn, the course's framework since 2020, to an ONNX model.

The format, little-endian: i32 number of layers; then for each layer an i32 count and that many float32, first
the weights, then the bias. Convolutions are [out][in][row][column], fully connected layers [out][in]. The
file has all ten layers of the network; layers without parameters have a count of 0.

The file has biases for the convolutions too. The layer that students wrote ignores them, and the course's
published accuracies are without them. They are dropped here: the model is the network `ece408-2020`, whose
convolutions have no bias.
"""

from __future__ import annotations

import math
import os

import numpy as np
import onnx
from convswap.errors import ConvswapError
from convswap.export.builder import build
from convswap.export.byte_reader import BinaryReader, read_checkpoint_file
from convswap.models import Convolution, Flatten, PlacedLayer, find, place
from numpy.typing import NDArray

NETWORK = "ece408-2020"


def read_mini_dnn(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return the weights file at `path` (`weights-86.bin`) as an ONNX model: opset 20, IR 9.

    The model is that of `export_network("ece408-2020")` with these weights: the input `image` is float32
    [batch, 1, 86, 86] with pixel values 0..255, the output `probabilities` float32 [batch, 10]. The biases of
    the convolutions are dropped, as in the course.

    Raises ConvswapError, with the layer or byte, if the file cannot be read, is cut off, belongs to another
    network, or has a number that is not finite.
    """
    network = find(NETWORK)
    # mini-dnn's fully connected layer flattens by itself.
    layers = [placed for placed in place(network) if not isinstance(placed.layer, Flatten)]
    counts = [_numbers_in_file(placed) for placed in layers]
    size = 4 * (1 + len(counts) + sum(counts))
    expected = f"a mini-dnn weights file of {network.name}"
    reader = BinaryReader(read_checkpoint_file(path, expected, largest=size), str(path))
    (layer_count,) = reader.numbers("i", "the number of layers")
    if layer_count != len(layers):
        raise ConvswapError(
            f"{str(path)!r} is not {expected}: it begins with {layer_count} layers, expected {len(layers)}; "
            "check which file you named"
        )
    weights: dict[str, NDArray[np.float32]] = {}
    for number, (placed, count) in enumerate(zip(layers, counts, strict=True), start=1):
        weights |= _read_layer(reader, placed, number, count)
    metadata = {
        "network": network.name,
        "dataset": "fashion-mnist",
        "weights": "a mini-dnn weights file, without the biases of its convolutions",
    }
    return build(network, weights, metadata)


def _numbers_in_file(placed: PlacedLayer) -> int:
    """Return the file's count of numbers for a layer, including the ignored bias of a convolution."""
    ignored = placed.layer.out_channels if isinstance(placed.layer, Convolution) else 0
    return sum(math.prod(shape) for shape in placed.parameters.values()) + ignored


def _read_layer(
    reader: BinaryReader, placed: PlacedLayer, number: int, expected: int
) -> dict[str, NDArray[np.float32]]:
    """Read the arrays of one layer and return them by name, in the shapes of `placed`."""
    title = f"layer {number} ({placed.name})"
    start = reader.offset
    (count,) = reader.numbers("i", f"the count of {title}")
    if count != expected:
        raise ConvswapError(
            f"{reader.path!r} has {count} numbers in {title}, by byte {start}; expected {expected}: "
            "it is damaged or belongs to another network"
        )
    start = reader.offset
    values = np.frombuffer(reader.take(4 * count, f"the numbers of {title}"), "<f4").astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        first = int(wrong[0])
        raise reader.damaged(start + 4 * first, f"{values[first]} in {title}", "finite numbers")
    arrays = {}
    for name, shape in placed.parameters.items():
        size = math.prod(shape)
        arrays[name], values = values[:size].reshape(shape), values[size:]
    return arrays
