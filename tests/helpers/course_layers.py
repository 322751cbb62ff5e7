"""All distinct convolutions of the course's networks; the suite `course` has those worth timing."""

from __future__ import annotations

from convswap.models import NETWORKS, Convolution, place
from convswap.timing.suites import SuiteLayer


def course_layers() -> list[SuiteLayer]:
    """Return the convolutions of the eight networks without repetitions."""
    layers: dict[tuple[int, ...], SuiteLayer] = {}
    for network in NETWORKS.values():
        for placed in place(network):
            if isinstance(placed.layer, Convolution):
                channels, size, _ = placed.input_shape
                key = (channels, placed.layer.out_channels, placed.layer.kernel, size)
                layers.setdefault(key, SuiteLayer(f"{network.name}-{placed.name}", *key))
    return list(layers.values())
