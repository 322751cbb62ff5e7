"""Weights from a fixed seed: the same bits on every machine and with every version of NumPy.

He et al., "Delving Deep into Rectifiers" (2015), section 2.2: weights of variance 2 / fan_in preserve the
magnitude of activations. The weights are uniform in [-b, b] with b = sqrt(6 / fan_in), which has that
variance. NumPy guarantees only the raw bits of a bit generator and the output of SeedSequence for future
versions; exact arithmetic turns raw bits into a uniform number.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from convswap.models.layers import BatchNormalization
from convswap.models.networks import Network
from convswap.models.shapes import Shape, place
from numpy.typing import NDArray

# Elements drawn at a time: the largest layer of VGG-16 has 103 million, which take 8 bytes each on the way.
BLOCK = 1 << 20


def seeded_weights(network: Network) -> dict[str, NDArray[np.float32]]:
    """Return an array for every parameter of `network`, by name (`conv1.weight`).

    An array's seed is a hash of the network's name, its `seed` and the array's name. The first layer's
    weights are multiplied by `first_layer_gain`. Biases are within `largest_bias` of zero, scales within a
    quarter of 1. Those of a batch normalisation are scaled and shifted by the layer's `scale` and `bias`.
    """
    weights: dict[str, NDArray[np.float32]] = {}
    for placed in place(network):
        for name, shape in placed.parameters.items():
            seed = f"{network.name}/{network.seed}/{name}"
            if name.endswith(".weight"):
                gain = 1.0 if weights else network.first_layer_gain
                weights[name] = _uniform(seed, shape, math.sqrt(6.0 / math.prod(shape[1:])), gain)
                continue
            scale, bias = 1.0, 0.0
            if isinstance(placed.layer, BatchNormalization):
                scale, bias = placed.layer.scale, placed.layer.bias
            if name.endswith(".scale"):
                weights[name] = np.float32(scale) * (np.float32(1.0) + _uniform(seed, shape, 0.25))
            else:
                weights[name] = np.float32(bias) + _uniform(seed, shape, network.largest_bias)
    return weights


def seeded_images(network: Network, images: int) -> NDArray[np.float32]:
    """Return (images, channels, size, size) of independent elements of mean 0 and variance 1."""
    shape = (images, network.channels, network.image_size, network.image_size)
    return _uniform(f"{network.name}/{network.seed}/images", shape, math.sqrt(3.0))


def _uniform(seed_text: str, shape: Shape, bound: float, gain: float = 1.0) -> NDArray[np.float32]:
    """Return elements between -bound and bound, times `gain`."""
    seed = int.from_bytes(hashlib.sha256(seed_text.encode()).digest(), "big")
    generator = np.random.PCG64(np.random.SeedSequence(seed))
    values = np.zeros(math.prod(shape), np.float32)
    if bound:
        for start in range(0, values.size, BLOCK):
            block = values[start : start + BLOCK]
            raw = generator.random_raw(block.size)
            # The upper 53 bits fill a float64's mantissa. Half a step makes the numbers symmetric about zero.
            uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
            block[:] = (2.0 * uniform - 1.0) * bound * gain
    return values.reshape(shape)
