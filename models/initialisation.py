"""Weights from a fixed seed: the same bits on every machine and with every version of NumPy.

He et al., "Delving Deep into Rectifiers" (2015), section 2.2: weights of variance 2 / fan_in keep the size
of what flows through the network. They are drawn uniformly from [-b, b], b = sqrt(6 / fan_in), which has
that variance: of NumPy's streams only the raw bits of a bit generator and the seeds spread by SeedSequence
are promised to stay as they are, and a uniform number is made of raw bits by exact arithmetic alone.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from convswap.models.networks import Network
from convswap.models.shapes import Shape, place
from numpy.typing import NDArray

# Fashion-MNIST's pixels, 0..255, have a root mean square of 116 at 28x28. Brought to about 1 before the first
# layer, they put its outputs where tanh still bends: at 0..255 nearly every output would be -1 or 1, and
# all that is left of an image would be its signs. A power of two keeps the division exact.
PIXEL_SCALE = 128.0


def seeded_weights(network: Network) -> dict[str, NDArray[np.float32]]:
    """Return an array for every parameter of `network`, by name (`conv1.weight`); biases are zero.

    The seed of an array is made of the network's name, its `seed` and the array's name. The first layer's
    weights are divided by PIXEL_SCALE.
    """
    weights: dict[str, NDArray[np.float32]] = {}
    for placed in place(network):
        for name, shape in placed.parameters.items():
            if name.endswith(".bias"):
                weights[name] = np.zeros(shape, np.float32)
                continue
            scale = 1.0 if weights else 1.0 / PIXEL_SCALE
            weights[name] = (_he_uniform(f"{network.name}/{network.seed}/{name}", shape) * scale).astype(
                np.float32
            )
    return weights


def digest(weights: dict[str, NDArray[np.float32]]) -> str:
    """Return the SHA-256, in hexadecimal, of the names, shapes and values of `weights`."""
    total = hashlib.sha256()
    for name, array in sorted(weights.items()):
        total.update(f"{name} {array.shape}\n".encode())
        total.update(np.ascontiguousarray(array, dtype="<f4").tobytes())
    return total.hexdigest()


def _he_uniform(seed_text: str, shape: Shape) -> NDArray[np.float64]:
    seed = int.from_bytes(hashlib.sha256(seed_text.encode()).digest(), "big")
    raw = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(math.prod(shape))
    # The upper 53 bits fill a float64's mantissa; half a step keeps the numbers symmetric about zero.
    uniform = ((raw >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    fan_in = math.prod(shape[1:])
    return ((2.0 * uniform - 1.0) * math.sqrt(6.0 / fan_in)).reshape(shape)
