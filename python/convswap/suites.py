"""The layer suites of `convswap bench`: convolutions worth timing on their own.

They are `course`, and for each large network those of its convolutions that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType

from convswap.errors import ConvswapError, unknown_name
from convswap.models import LARGE_NETWORKS, Convolution, Network, place
from convswap.name_pattern import name_pattern


@dataclass(frozen=True)
class SuiteLayer:
    """One 2-D convolution: square images of `size` pixels, square filters of `kernel` pixels, no bias."""

    name: str
    channels: int
    filters: int
    kernel: int
    size: int
    stride: int = 1
    padding: int = 0
    group: int = 1

    def input_shape(self, batch: int) -> tuple[int, int, int, int]:
        """Return (n, c, h, w)."""
        return batch, self.channels, self.size, self.size

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        """Return (k, c / group, r, s)."""
        return self.filters, self.channels // self.group, self.kernel, self.kernel


# The convolutions of the course's networks; those of spring 2018 and 2019 differ in image size alone.
_COURSE = (
    SuiteLayer("2017-conv1", channels=1, filters=50, kernel=5, size=28),
    SuiteLayer("2019fa-conv1", channels=1, filters=12, kernel=5, size=70),
    SuiteLayer("2019fa-conv2", channels=12, filters=24, kernel=5, size=33),
    SuiteLayer("2018fa-conv1", channels=1, filters=12, kernel=7, size=72),
    SuiteLayer("2018fa-conv2", channels=12, filters=24, kernel=7, size=33),
    SuiteLayer("2020-conv1", channels=1, filters=4, kernel=7, size=86),
    SuiteLayer("2020-conv2", channels=4, filters=16, kernel=7, size=40),
)


def _convolutions_of(network: Network) -> tuple[SuiteLayer, ...]:
    """Return the convolutions of `network`, each shape once, with the name of the first that has it."""
    named: dict[tuple[object, ...], SuiteLayer] = {}
    for placed in place(network):
        if not isinstance(placed.layer, Convolution):
            continue
        channels, size, _ = placed.input_shape
        layer = SuiteLayer(
            f"{network.name}-{placed.name}",
            channels,
            filters=placed.layer.out_channels,
            kernel=placed.layer.kernel,
            size=size,
            stride=placed.layer.stride,
            padding=placed.layer.padding,
            group=placed.layer.groups,
        )
        named.setdefault(astuple(layer)[1:], layer)
    return tuple(named.values())


SUITES: Mapping[str, tuple[SuiteLayer, ...]] = MappingProxyType(
    {"course": _COURSE} | {name: _convolutions_of(network) for name, network in LARGE_NETWORKS.items()}
)


def usual_batch(suite: str, device: str) -> int:
    """Return how many images `bench` takes on `device`, "cuda" or "cpu", unless told otherwise."""
    if suite in LARGE_NETWORKS:
        return {"cuda": 256, "cpu": 8}[device]
    return {"cuda": 10_000, "cpu": 100}[device]


def suite_layers(suite: str, pattern: str | None) -> list[SuiteLayer]:
    """Return the layers of `suite` in whose name the regular expression matches; None keeps all.

    Raises:
        ConvswapError: there is no such suite, `pattern` is no regular expression, or no layer matches.
    """
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    expression = name_pattern(pattern, "layer names", "conv1")
    wanted = [layer for layer in SUITES[suite] if expression.search(layer.name)]
    if not wanted:
        names = ", ".join(layer.name for layer in SUITES[suite])
        raise ConvswapError(f"no layer of suite {suite} matches {pattern!r}; it has {names}")
    return wanted
