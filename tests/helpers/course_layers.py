"""Every convolution of the course's networks, each once; the suite `course` has those worth timing."""

from __future__ import annotations

from convswap.models import NETWORKS, Convolution, place
from convswap.timing.suites import SuiteLayer


def course_layers() -> list[SuiteLayer]:
    """Return the convolutions of the eight networks; those of two networks that are the same, once."""
    found: dict[tuple[int, ...], SuiteLayer] = {}
    for network in NETWORKS.values():
        for placed in place(network):
            if isinstance(placed.layer, Convolution):
                channels, size, _ = placed.input_shape
                key = (channels, placed.layer.out_channels, placed.layer.kernel, size)
                found.setdefault(key, SuiteLayer(f"{network.name}-{placed.name}", *key))
    return list(found.values())
