"""The fitted last layers that come with the package, so that exporting a network needs no data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from convswap.models.networks import Network
from numpy.typing import NDArray


@dataclass(frozen=True)
class Head:
    """A fitted last layer: `weight` (classes, features) and `bias` (classes,), and how it was made."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    made: dict[str, Any]


def read_head(network: Network) -> Head:
    """Return the last layer of `network` that was fitted to Fashion-MNIST's training images.

    `python -m convswap.export.heads` makes these files; `made` says with what.
    """
    entry = resources.files("convswap.models") / "weights" / f"{network.name}.npz"
    with entry.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return Head(arrays["weight"], arrays["bias"], json.loads(str(arrays["made"])))
