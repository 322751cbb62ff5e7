"""The layer suites of `convswap bench`: convolutions worth timing on their own.

They are `course`, of many channels, of one and of three spatial axes, and for each large network those of its
convolutions that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any

from convswap.errors import ConvswapError, unknown_name
from convswap.graph.name_pattern import name_pattern
from convswap.models import LARGE_NETWORKS, Convolution, Network, place


@dataclass(frozen=True)
class SuiteLayer:
    """One convolution, without a bias, of `rank` spatial axes that are alike.

    Each has `size` positions, of which `kernel` make a filter. `batch` is how many images a GPU usually takes
    of it; None: as many as for the others of its suite.
    """

    name: str
    channels: int
    filters: int
    kernel: int
    size: int
    stride: int = 1
    padding: int = 0
    group: int = 1
    dilation: int = 1
    rank: int = 2
    batch: int | None = None

    def input_shape(self, batch: int) -> tuple[int, ...]:
        """Return (n, c, spatial...)."""
        return (batch, self.channels, *[self.size] * self.rank)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return (k, c / group, spatial...)."""
        return (self.filters, self.channels // self.group, *[self.kernel] * self.rank)

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the attributes of ONNX Conv that tell how it is computed."""
        return {
            "strides": [self.stride] * self.rank,
            "pads": [self.padding] * 2 * self.rank,
            "dilations": [self.dilation] * self.rank,
            "group": self.group,
        }


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


# Of ResNet-50, VGG-16, AlexNet, a detector and a decoder of images, the last at their usual single image.
_MANY_CHANNELS = (
    SuiteLayer("64-64-3x3-56", channels=64, filters=64, kernel=3, size=56, padding=1, batch=64),
    SuiteLayer("128-128-3x3-28", channels=128, filters=128, kernel=3, size=28, padding=1, batch=64),
    SuiteLayer("256-256-3x3-14", channels=256, filters=256, kernel=3, size=14, padding=1, batch=64),
    SuiteLayer("512-512-3x3-7", channels=512, filters=512, kernel=3, size=7, padding=1, batch=64),
    SuiteLayer("64-256-1x1-56", channels=64, filters=256, kernel=1, size=56, batch=64),
    SuiteLayer("256-64-1x1-56", channels=256, filters=64, kernel=1, size=56, batch=64),
    SuiteLayer("2048-512-1x1-7", channels=2048, filters=512, kernel=1, size=7, batch=64),
    SuiteLayer("256-512-1x1-s2-56", channels=256, filters=512, kernel=1, size=56, stride=2, batch=64),
    SuiteLayer(
        "128-128-3x3-s2-56", channels=128, filters=128, kernel=3, size=56, stride=2, padding=1, batch=64
    ),
    SuiteLayer("64-64-3x3-224", channels=64, filters=64, kernel=3, size=224, padding=1, batch=32),
    SuiteLayer("512-512-3x3-14", channels=512, filters=512, kernel=3, size=14, padding=1, batch=32),
    SuiteLayer("3-96-11x11-s4-227", channels=3, filters=96, kernel=11, size=227, stride=4, batch=256),
    SuiteLayer(
        "96-256-5x5-g2-27", channels=96, filters=256, kernel=5, size=27, padding=2, group=2, batch=256
    ),
    SuiteLayer("64-64-3x3-80", channels=64, filters=64, kernel=3, size=80, padding=1, batch=1),
    SuiteLayer("128-128-3x3-512", channels=128, filters=128, kernel=3, size=512, padding=1, batch=1),
)

# Of sound: wav2vec 2.0, HiFi-GAN, Conv-TasNet and voices like Piper's.
_ONE_D = (
    SuiteLayer("wav2vec-conv0", channels=1, filters=512, kernel=10, size=160_000, stride=5, rank=1, batch=8),
    SuiteLayer("wav2vec-conv1", channels=512, filters=512, kernel=3, size=31_999, stride=2, rank=1, batch=8),
    SuiteLayer(
        "hifigan-resblock",
        channels=256,
        filters=256,
        kernel=7,
        size=8192,
        padding=9,
        dilation=3,
        rank=1,
        batch=4,
    ),
    SuiteLayer("tasnet-pointwise", channels=128, filters=512, kernel=1, size=8000, rank=1, batch=8),
    SuiteLayer(
        "tasnet-depthwise",
        channels=512,
        filters=512,
        kernel=3,
        size=8000,
        padding=8,
        group=512,
        dilation=8,
        rank=1,
        batch=8,
    ),
    SuiteLayer("piper-flow", channels=192, filters=384, kernel=5, size=512, padding=2, rank=1, batch=1),
)

# Of videos and of volumes that scanners take.
_THREE_D = (
    SuiteLayer("1-16-3x3x3-64", channels=1, filters=16, kernel=3, size=64, padding=1, rank=3, batch=2),
    SuiteLayer("32-32-3x3x3-32", channels=32, filters=32, kernel=3, size=32, padding=1, rank=3, batch=4),
    SuiteLayer(
        "32-64-3x3x3-s2-32", channels=32, filters=64, kernel=3, size=32, stride=2, padding=1, rank=3, batch=4
    ),
    SuiteLayer("64-64-3x3x3-16", channels=64, filters=64, kernel=3, size=16, padding=1, rank=3, batch=4),
    SuiteLayer("64-64-1x1x1-16", channels=64, filters=64, kernel=1, size=16, rank=3, batch=4),
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
    {"course": _COURSE, "many-channels": _MANY_CHANNELS, "one-d": _ONE_D, "three-d": _THREE_D}
    | {name: _convolutions_of(network) for name, network in LARGE_NETWORKS.items()}
)


def usual_batch(suite: str, layer: SuiteLayer, device: str) -> int:
    """Return how many images of a layer `bench` takes on `device`, "cuda" or "cpu", unless told otherwise."""
    if layer.batch is not None:
        return {"cuda": layer.batch, "cpu": 1}[device]
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
