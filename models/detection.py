"""The inference layers of a network that detects objects of the 80 classes of COCO."""

from __future__ import annotations

from convswap.models.layers import (
    Activation,
    BatchNormalization,
    Concatenation,
    Convolution,
    FlattenPixels,
    Keep,
    Layer,
    MaxPool,
    Residual,
    Split,
    Take,
    Upsample,
)

CLASSES = 80
# Each of a box's four sides is a distribution over 16 distances: Li et al., "Generalized Focal Loss" (2020).
BOX_CHANNELS = 4 * 16

_SILU = Activation("silu")
# As in `imagenet.py`, biases keep most values away from the bend of SiLU. Most of the 63 convolutions follow
# each other without a shortcut, so rounding to TF32 would still change the logits by 2.3e-3. Larger biases
# before the last convolution of each head give the logits a part that all pixels share, as in trained heads;
# the change is then 1e-3.
_NORMALISATION = BatchNormalization(bias=1.0)
_END_OF_BLOCK = BatchNormalization(scale=0.25)
_END_OF_HEAD = BatchNormalization(scale=0.5, bias=2.0)


def yolov8n() -> tuple[Layer, ...]:
    """Return the layers of YOLOv8n: Jocher, Chaurasia and Qiu, "Ultralytics YOLOv8" (2023), smallest size.

    The output has a row for every channel, 64 of the box and then 80 of the classes, and a column for every
    pixel of the three heads, with strides 8, 16 and 32 in that order. Boxes and classes are not decoded.
    """
    backbone = (
        *_normalised(16, 3, stride=2),
        *_normalised(32, 3, stride=2),
        *_two_convolution_block(32, 1, residual=True),
        *_normalised(64, 3, stride=2),
        *_two_convolution_block(64, 2, residual=True),
        Keep("backbone 8"),
        *_normalised(128, 3, stride=2),
        *_two_convolution_block(128, 2, residual=True),
        Keep("backbone 16"),
        *_normalised(256, 3, stride=2),
        *_two_convolution_block(256, 1, residual=True),
        *_pyramid_pooling(256),
        Keep("backbone 32"),
    )
    neck = (
        *_up(128, lateral="backbone 16", result="up 16"),
        *_up(64, lateral="backbone 8", result="neck 8"),
        *_down(64, 128, lateral="up 16", result="neck 16"),
        *_down(128, 256, lateral="backbone 32", result="neck 32"),
    )
    heads = [layer for stride in (8, 16, 32) for layer in _head(f"neck {stride}", f"head {stride}")]
    return (*backbone, *neck, *heads, Concatenation(("head 8", "head 16", "head 32"), axis=1))


def _normalised(
    channels: int, kernel: int, stride: int = 1, normalisation: BatchNormalization = _NORMALISATION
) -> tuple[Layer, ...]:
    return Convolution(channels, kernel, stride, padding=kernel // 2), normalisation, _SILU


def _two_convolution_block(channels: int, bottlenecks: int, residual: bool) -> tuple[Layer, ...]:
    """Return a C2f: half of the channels pass through `bottlenecks`; all intermediate results are joined."""
    layers: list[Layer] = [*_normalised(channels, 1), Split(("half 1", "half 2"))]
    parts = ["half 1", "half 2"]
    for number in range(1, bottlenecks + 1):
        parts.append(f"bottleneck {number}")
        layers += [*_bottleneck(channels // 2, residual), Keep(parts[-1])]
    return (*layers, Concatenation(tuple(parts)), *_normalised(channels, 1))


def _bottleneck(channels: int, residual: bool) -> tuple[Layer, ...]:
    last = _END_OF_BLOCK if residual else _NORMALISATION
    body = (*_normalised(channels, 3), *_normalised(channels, 3, normalisation=last))
    return (Residual(body),) if residual else body


def _pyramid_pooling(channels: int) -> tuple[Layer, ...]:
    """Return an SPPF: max pools of 5x5, 9x9 and 13x13 pixels, as one, two and three pools of 5x5 in turn."""
    layers: list[Layer] = [*_normalised(channels // 2, 1), Keep("pooled 1")]
    for size in (5, 9, 13):
        layers += [MaxPool(5, stride=1, padding=2), Keep(f"pooled {size}")]
    return (
        *layers,
        Concatenation(("pooled 1", "pooled 5", "pooled 9", "pooled 13")),
        *_normalised(channels, 1),
    )


def _up(channels: int, lateral: str, result: str) -> tuple[Layer, ...]:
    return (Upsample(2), Keep("enlarged"), *_joined_block("enlarged", lateral, channels), Keep(result))


def _down(before: int, channels: int, lateral: str, result: str) -> tuple[Layer, ...]:
    reduced = (*_normalised(before, 3, stride=2), Keep("reduced"))
    return (*reduced, *_joined_block("reduced", lateral, channels), Keep(result))


def _joined_block(label: str, lateral: str, channels: int) -> tuple[Layer, ...]:
    return Concatenation((label, lateral)), *_two_convolution_block(channels, 1, residual=False)


def _head(source: str, result: str) -> tuple[Layer, ...]:
    layers: list[Layer] = []
    for label, channels in (("box", BOX_CHANNELS), ("classes", CLASSES)):
        layers += [Take(source), *_normalised(channels, 3)]
        layers += _normalised(channels, 3, normalisation=_END_OF_HEAD)
        layers += [Convolution(channels, 1, bias=True), Keep(label)]
    return (*layers, Concatenation(("box", "classes")), FlattenPixels(), Keep(result))
