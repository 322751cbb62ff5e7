"""Writes weights files of mini-dnn, the course's framework since 2020."""

from __future__ import annotations

import struct

import numpy as np

# Shapes of weights and bias of the ten layers; activations, poolings and the softmax have none.
SHAPES: list[list[tuple[int, ...]]] = [
    [(4, 1, 7, 7), (4,)],
    [],
    [],
    [(16, 4, 7, 7), (16,)],
    [],
    [],
    [(32, 1296), (32,)],
    [],
    [(10, 32), (10,)],
    [],
]


def random_layers(seed=1):
    """Return seeded arrays of every layer, so small that the softmax does not saturate to 0 and 1."""
    random = np.random.default_rng(seed)
    layers = []
    for shapes in SHAPES:
        arrays = []
        for shape in shapes:
            deviation = (2 / max(np.prod(shape[1:]), 1)) ** 0.5 / (128 if not layers else 1)
            arrays.append((random.normal(size=shape) * deviation).astype(np.float32))
        layers.append(arrays)
    return layers


def weights_bytes(layers):
    """Return the content of the file of `layers`, each of which is a list of arrays."""
    content = struct.pack("<i", len(layers))
    for arrays in layers:
        numbers = b"".join(np.asarray(array, "<f4").tobytes() for array in arrays)
        content += struct.pack("<i", len(numbers) // 4) + numbers
    return content


def count_offset(layers, number):
    """Return the byte offset of the count of layer `number` (from 1) in the file of `layers`."""
    return len(weights_bytes(layers[: number - 1]))
