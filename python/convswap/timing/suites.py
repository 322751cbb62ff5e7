"""The layer suites of `convswap bench`: convolutions worth timing on their own.

They are `course`, of many channels, of one and of three spatial axes, depthwise, of small groups, the first
of networks, those that run on one image, those with an activation behind them, those of quantised networks,
and for each large network those of its convolutions that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from types import MappingProxyType
from typing import Any

from convswap.errors import ConvswapError, unknown_name
from convswap.graph.names import name_pattern
from convswap.models import LARGE_NETWORKS, Convolution, Network, place


@dataclass(frozen=True)
class SuiteLayer:
    """A convolution without a bias, whose `rank` spatial axes are alike.

    `size` is the input's extent along each spatial axis, `kernel` the filter's. `batch` is the usual batch on
    a GPU; None means that of the suite. `activation` is the FusedConv's, or None: for us one node, for the
    default provider the ONNX nodes that compute the same.
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
    activation: str | None = None

    def input_shape(self, batch: int) -> tuple[int, ...]:
        """Return (n, c, spatial...)."""
        return (batch, self.channels, *[self.size] * self.rank)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Return (k, c / group, spatial...)."""
        return (self.filters, self.channels // self.group, *[self.kernel] * self.rank)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the ONNX Conv."""
        return {
            "strides": [self.stride] * self.rank,
            "pads": [self.padding] * 2 * self.rank,
            "dilations": [self.dilation] * self.rank,
            "group": self.group,
        }

    @property
    def epilogue(self) -> dict[str, Any]:
        """The attributes that a FusedConv has beyond Conv's; empty without an activation."""
        return {} if self.activation is None else {"activation": self.activation}


def depthwise(
    channels: int, kernel: int, size: int, stride: int = 1, *, network: str = "", batch: int | None = None
) -> SuiteLayer:
    """Return a depthwise convolution whose output has ceil(size / stride) rows."""
    strided = "" if stride == 1 else f"-s{stride}"
    return SuiteLayer(
        f"{network or 'depthwise'}-{'dw-' if network else ''}{channels}-{kernel}x{kernel}{strided}-{size}",
        channels,
        channels,
        kernel,
        size,
        stride,
        padding=kernel // 2,
        group=channels,
        batch=batch,
    )


def _dense(network: str, channels: int, filters: int, kernel: int, size: int, stride: int = 1) -> SuiteLayer:
    strided = "" if stride == 1 else f"-s{stride}"
    name = f"{network}-{channels}-{filters}-{kernel}x{kernel}{strided}-{size}"
    return SuiteLayer(name, channels, filters, kernel, size, stride, padding=kernel // 2, batch=1)


def _squeezed(network: str, channels: int, inner: int) -> list[SuiteLayer]:
    """Return the two convolutions of a squeeze-and-excitation block, on images of one pixel."""
    return [_dense(network, channels, inner, 1, 1), _dense(network, inner, channels, 1, 1)]


def efficientnet_b0() -> list[SuiteLayer]:
    """Return the convolutions of EfficientNet-B0 on 224x224: Tan, Le, "EfficientNet" (2019), table 1."""
    name = "efficientnet-b0"
    layers = [_dense(name, 3, 32, 3, 224, stride=2)]
    before, size = 32, 112
    for expansion, kernel, stride, channels, repetitions in (
        (1, 3, 1, 16, 1),
        (6, 3, 2, 24, 2),
        (6, 5, 2, 40, 2),
        (6, 3, 2, 80, 3),
        (6, 5, 1, 112, 3),
        (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ):
        for repetition in range(repetitions):
            hidden, own_stride = expansion * before, stride if repetition == 0 else 1
            if expansion > 1:
                layers.append(_dense(name, before, hidden, 1, size))
            layers.append(depthwise(hidden, kernel, size, own_stride, network=name, batch=1))
            size //= own_stride
            layers += [*_squeezed(name, hidden, before // 4), _dense(name, hidden, channels, 1, size)]
            before = channels
    return [*layers, _dense(name, before, 1_280, 1, size)]


def pp_ocr_v4() -> list[SuiteLayer]:
    """Return the convolutions of PP-OCRv4's mobile text detector on 640x640, with a 0.75 PP-LCNetV3 backbone.

    They are those of the published ch_PP-OCRv4_det_infer, in which the parallel branches of training are
    merged.
    """
    name = "pp-ocr-v4"
    layers = [_dense(name, 3, 16, 3, 640, stride=2)]
    before, size = 16, 320
    for kernel, channels, stride, is_squeezed in (
        (3, 32, 1, False),
        (3, 48, 2, False),
        (3, 48, 1, False),
        (3, 96, 2, False),
        (3, 96, 1, False),
        (3, 192, 2, False),
        (5, 192, 1, False),
        (5, 384, 2, True),
        (5, 384, 1, True),
        (5, 384, 1, False),
    ):
        layers.append(depthwise(before, kernel, size, stride, network=name, batch=1))
        size //= stride
        if is_squeezed:
            layers += _squeezed(name, before, before // 4)
        layers.append(_dense(name, before, channels, 1, size))
        before = channels
    for channels, inner, size in ((48, 12, 160), (96, 18, 80), (192, 42, 40), (384, 360, 20)):
        layers += [_dense(name, channels, inner, 1, size), _dense(name, inner, 96, 1, size)]
        layers.append(_dense(name, 96, 24, 3, size))
    return [*layers, *_squeezed(name, 96, 24), *_squeezed(name, 24, 6)]


def espcn() -> list[SuiteLayer]:
    """Return the convolutions of ESPCN (Shi et al., 2016) on 224x224, which triples the resolution."""
    name = "espcn"
    widths = ((1, 64, 5), (64, 64, 3), (64, 32, 3), (32, 9, 3))
    return [_dense(name, channels, filters, kernel, 224) for channels, filters, kernel in widths]


# Convolutions of the course's networks. The networks of spring 2018 and 2019 differ only in image size.
_COURSE = (
    SuiteLayer("2017-conv1", channels=1, filters=50, kernel=5, size=28),
    SuiteLayer("2019fa-conv1", channels=1, filters=12, kernel=5, size=70),
    SuiteLayer("2019fa-conv2", channels=12, filters=24, kernel=5, size=33),
    SuiteLayer("2018fa-conv1", channels=1, filters=12, kernel=7, size=72),
    SuiteLayer("2018fa-conv2", channels=12, filters=24, kernel=7, size=33),
    SuiteLayer("2020-conv1", channels=1, filters=4, kernel=7, size=86),
    SuiteLayer("2020-conv2", channels=4, filters=16, kernel=7, size=40),
)


# Convolutions of ResNet-50, VGG-16, AlexNet, a detector and an image decoder, the last two on one image.
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

# Convolutions on sound: wav2vec 2.0, HiFi-GAN, Conv-TasNet and voices like Piper's.
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

# Convolutions on videos and medical volumes.
_THREE_D = (
    SuiteLayer("1-16-3x3x3-64", channels=1, filters=16, kernel=3, size=64, padding=1, rank=3, batch=2),
    SuiteLayer("32-32-3x3x3-32", channels=32, filters=32, kernel=3, size=32, padding=1, rank=3, batch=4),
    SuiteLayer(
        "32-64-3x3x3-s2-32", channels=32, filters=64, kernel=3, size=32, stride=2, padding=1, rank=3, batch=4
    ),
    SuiteLayer("64-64-3x3x3-16", channels=64, filters=64, kernel=3, size=16, padding=1, rank=3, batch=4),
    SuiteLayer("64-64-1x1x1-16", channels=64, filters=64, kernel=1, size=16, rank=3, batch=4),
)


# Depthwise convolutions of MobileNetV2, EfficientNet-B0, ConvNeXt and on sound; a grouped one of ResNeXt-50.
_DEPTHWISE_GROUPED = (
    *(
        depthwise(channels, kernel, size, stride, batch=64)
        for channels, kernel, size, stride in (
            (32, 3, 112, 1),
            (96, 3, 112, 1),
            (96, 3, 112, 2),
            (144, 3, 56, 1),
            (144, 3, 56, 2),
            (144, 5, 56, 2),
            (96, 7, 56, 1),
            (192, 3, 28, 1),
            (192, 3, 28, 2),
            (240, 5, 28, 1),
            (240, 3, 28, 2),
            (240, 5, 14, 1),
            (384, 3, 14, 1),
            (480, 3, 14, 1),
            (480, 5, 14, 1),
            (576, 3, 14, 1),
            (576, 3, 14, 2),
            (672, 5, 14, 1),
            (672, 5, 14, 2),
            (960, 3, 7, 1),
            (1152, 5, 7, 1),
            (1152, 3, 7, 1),
        )
    ),
    SuiteLayer(
        "depthwise-512-3-d8-4000",
        channels=512,
        filters=512,
        kernel=3,
        size=4000,
        padding=8,
        group=512,
        dilation=8,
        rank=1,
        batch=16,
    ),
    SuiteLayer(
        "128-128-3x3-g32-56", channels=128, filters=128, kernel=3, size=56, padding=1, group=32, batch=64
    ),
)

# Many groups of 2 to 32 channels: the convolutions of ResNeXt-50, and sizes between them.
_SMALL_GROUPS = tuple(
    SuiteLayer(
        f"{channels}-{channels}-{kernel}x{kernel}-g{group}{'-s2' if stride == 2 else ''}-{size}",
        channels,
        channels,
        kernel,
        size,
        stride,
        padding=kernel // 2,
        group=group,
        batch=64,
    )
    for channels, group, kernel, size, stride in (
        (128, 32, 3, 56, 1),
        (256, 32, 3, 56, 2),
        (256, 32, 3, 28, 1),
        (512, 32, 3, 28, 2),
        (512, 32, 3, 14, 1),
        (1024, 32, 3, 7, 1),
        (64, 16, 3, 56, 1),
        (64, 32, 3, 112, 1),
        (96, 12, 3, 56, 1),
        (96, 12, 5, 28, 1),
        (96, 48, 3, 28, 1),
        (128, 32, 3, 28, 1),
        (128, 32, 5, 28, 1),
        (240, 30, 3, 14, 1),
        (240, 60, 1, 28, 1),
    )
)

# Few channels and large images: the first convolutions of classifiers, detectors and wav2vec 2.0, and image
# filters.
_FIRST_LAYERS = (
    SuiteLayer("3-64-7x7-s2-224", channels=3, filters=64, kernel=7, size=224, stride=2, padding=3, batch=64),
    SuiteLayer("1-1-3x3-2048", channels=1, filters=1, kernel=3, size=2048, padding=1, batch=16),
    SuiteLayer("3-32-3x3-s2-224", channels=3, filters=32, kernel=3, size=224, stride=2, padding=1, batch=64),
    SuiteLayer("3-16-3x3-s2-640", channels=3, filters=16, kernel=3, size=640, stride=2, padding=1, batch=16),
    SuiteLayer("3-32-3x3-512", channels=3, filters=32, kernel=3, size=512, padding=1, batch=16),
    SuiteLayer("3-96-11x11-s4-227", channels=3, filters=96, kernel=11, size=227, stride=4, batch=64),
    SuiteLayer("1-8-5x5-1024", channels=1, filters=8, kernel=5, size=1024, padding=2, batch=16),
    SuiteLayer(
        "1-512-10-s5-160000", channels=1, filters=512, kernel=10, size=160_000, stride=5, rank=1, batch=8
    ),
)


# Convolutions with their activations: YOLOv8n and EfficientNet with SiLU, MobileNetV3 with HardSwish, ResNet
# with ReLU.
_FUSED = tuple(
    SuiteLayer(
        f"{channels}-{filters}-{kernel}x{kernel}{'-s2' if stride == 2 else ''}"
        f"{'-dw' if channels == group else ''}-{size}-{activation}",
        channels,
        filters,
        kernel,
        size,
        stride,
        padding=kernel // 2,
        group=group,
        batch=32,
        activation=activation,
    )
    for channels, filters, kernel, size, stride, group, activation in (
        (3, 16, 3, 320, 2, 1, "SiLU"),
        (16, 32, 3, 160, 2, 1, "SiLU"),
        (16, 16, 3, 80, 1, 1, "SiLU"),
        (32, 64, 3, 80, 2, 1, "SiLU"),
        (32, 32, 3, 40, 1, 1, "SiLU"),
        (64, 64, 3, 20, 1, 1, "SiLU"),
        (128, 128, 3, 10, 1, 1, "SiLU"),
        (64, 64, 1, 40, 1, 1, "SiLU"),
        (192, 128, 1, 20, 1, 1, "SiLU"),
        (384, 256, 1, 10, 1, 1, "SiLU"),
        (144, 144, 3, 56, 1, 144, "SiLU"),
        (240, 240, 5, 14, 1, 240, "SiLU"),
        (3, 16, 3, 224, 2, 1, "HardSwish"),
        (240, 240, 3, 28, 2, 240, "HardSwish"),
        (80, 480, 1, 14, 1, 1, "HardSwish"),
        (3, 64, 7, 224, 2, 1, "Relu"),
        (64, 64, 3, 56, 1, 1, "Relu"),
    )
)


# Convolutions with ReLU of quantised networks: ResNet-50, then MobileNetV2.
_INT8 = tuple(
    SuiteLayer(
        f"{channels}-{filters}-{kernel}x{kernel}{'-s2' if stride == 2 else ''}"
        f"{'-dw' if channels == group else ''}-{size}",
        channels,
        filters,
        kernel,
        size,
        stride,
        padding=kernel // 2,
        group=group,
        batch=64,
        activation="Relu",
    )
    for channels, filters, kernel, size, stride, group in (
        (3, 64, 7, 224, 2, 1),
        (64, 64, 3, 56, 1, 1),
        (128, 128, 3, 28, 1, 1),
        (256, 256, 3, 14, 1, 1),
        (512, 512, 3, 7, 1, 1),
        (64, 256, 1, 56, 1, 1),
        (256, 64, 1, 56, 1, 1),
        (256, 512, 1, 56, 2, 1),
        (24, 144, 1, 56, 1, 1),
        (144, 144, 3, 56, 1, 144),
    )
)


def distinct(layers: Iterable[SuiteLayer]) -> tuple[SuiteLayer, ...]:
    """Return each shape once, under the name of the first layer that has it."""
    named: dict[tuple[object, ...], SuiteLayer] = {}
    for layer in layers:
        named.setdefault(astuple(layer)[1:], layer)
    return tuple(named.values())


def convolutions_of(network: Network) -> tuple[SuiteLayer, ...]:
    """Return the distinct convolutions of `network`."""
    layers = []
    for placed in place(network):
        if not isinstance(placed.layer, Convolution):
            continue
        channels, size, _ = placed.input_shape
        layers.append(
            SuiteLayer(
                f"{network.name}-{placed.name}",
                channels,
                filters=placed.layer.out_channels,
                kernel=placed.layer.kernel,
                size=size,
                stride=placed.layer.stride,
                padding=placed.layer.padding,
                group=placed.layer.groups,
            )
        )
    return distinct(layers)


def _one_image() -> tuple[SuiteLayer, ...]:
    shipped = (
        replace(layer, batch=1)
        for name in ("yolov8n", "mobilenet-v2", "resnet50")
        for layer in convolutions_of(LARGE_NETWORKS[name])
    )
    return distinct((*shipped, *pp_ocr_v4(), *efficientnet_b0(), *espcn()))


SUITES: Mapping[str, tuple[SuiteLayer, ...]] = MappingProxyType(
    {
        "course": _COURSE,
        "many-channels": _MANY_CHANNELS,
        "one-d": _ONE_D,
        "three-d": _THREE_D,
        "depthwise-grouped": _DEPTHWISE_GROUPED,
        "small-groups": _SMALL_GROUPS,
        "first-layers": _FIRST_LAYERS,
        "one-image": _one_image(),
        "fused": _FUSED,
        "int8": _INT8,
    }
    | {name: convolutions_of(network) for name, network in LARGE_NETWORKS.items()}
)


def usual_batch(suite: str, layer: SuiteLayer, device: str) -> int:
    """Return the default batch of `bench` for a layer on `device`, "cuda" or "cpu"."""
    if layer.batch is not None:
        return {"cuda": layer.batch, "cpu": 1}[device]
    if suite in LARGE_NETWORKS:
        return {"cuda": 256, "cpu": 8}[device]
    return {"cuda": 10_000, "cpu": 100}[device]


def suite_layers(suite: str, pattern: str | None) -> list[SuiteLayer]:
    """Return the layers of `suite` whose names contain a match of the regular expression; None returns all.

    Raises:
        ConvswapError: the suite is unknown, `pattern` is no regular expression, or no layer matches.
    """
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    expression = name_pattern(pattern, "layer names", "conv1")
    wanted = [layer for layer in SUITES[suite] if expression.search(layer.name)]
    if not wanted:
        names = ", ".join(layer.name for layer in SUITES[suite])
        raise ConvswapError(f"no layer of suite {suite} matches {pattern!r}; it has {names}")
    return wanted
