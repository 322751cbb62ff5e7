"""The inference layers of five networks for the 1,000 classes of ImageNet, as published.

The outputs are logits. Parameters have the shapes of torchvision's networks of the same name, except for
AlexNet: torchvision has Krizhevsky's later, smaller version without groups and normalisation.
"""

from __future__ import annotations

from typing import Literal

from convswap.models.layers import (
    Activation,
    BatchNormalization,
    ChannelsFirst,
    ChannelsLast,
    Convolution,
    Flatten,
    FullyConnected,
    GlobalAveragePool,
    Layer,
    LayerNormalization,
    LayerScale,
    LocalResponseNormalization,
    MaxPool,
    Residual,
)

CLASSES = 1_000

_RELU = Activation("relu")

# Means of the seeded scales and biases. With scales of 1 and biases of 0, a network of random weights
# amplifies a small error in every block: rounding to TF32 would change ResNet-50's logits by 2e-2 and
# MobileNetV2's by 1.4e-2, which would hide faults of a convolution. With small scales at the end of a block,
# and biases that keep most values away from the bend of ReLU, the changes are 8e-4 and 1e-3.
_NORMALISATION = BatchNormalization(bias=0.5)
_END_OF_BLOCK = BatchNormalization(scale=0.25)


def alexnet() -> tuple[Layer, ...]:
    """Return the layers of AlexNet, in the order of Caffe's `bvlc_alexnet`: normalisation before pooling.

    Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks" (2012). Three of the
    convolutions have two groups; the paper's authors computed each group on a card of its own.
    """
    normalisation = LocalResponseNormalization(5, alpha=1e-4, beta=0.75)
    pool = MaxPool(3, stride=2)
    return (
        Convolution(96, 11, stride=4, bias=True),
        _RELU,
        normalisation,
        pool,
        Convolution(256, 5, padding=2, groups=2, bias=True),
        _RELU,
        normalisation,
        pool,
        Convolution(384, 3, padding=1, bias=True),
        _RELU,
        Convolution(384, 3, padding=1, groups=2, bias=True),
        _RELU,
        Convolution(256, 3, padding=1, groups=2, bias=True),
        _RELU,
        pool,
        *_three_fully_connected(),
    )


def vgg16() -> tuple[Layer, ...]:
    """Return the layers of VGG-16: Simonyan, Zisserman, "Very Deep Convolutional Networks" (2014), D."""
    layers: list[Layer] = []
    for convolutions, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        layers += [Convolution(channels, 3, padding=1, bias=True), _RELU] * convolutions
        layers.append(MaxPool(2))
    return (*layers, *_three_fully_connected())


def resnet50() -> tuple[Layer, ...]:
    """Return the layers of ResNet-50: He et al., "Deep Residual Learning for Image Recognition" (2015).

    As in most later implementations, a block's stride is in its 3x3 convolution, not in its first.
    """
    layers: list[Layer] = [*_normalised(64, 7, stride=2, padding=3), MaxPool(3, stride=2, padding=1)]
    before = 64
    for blocks, width, first_stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers += _bottleneck(before, width, stride)
            before = 4 * width
    return (*layers, GlobalAveragePool(), Flatten(), FullyConnected(CLASSES))


def _bottleneck(before: int, width: int, stride: int) -> tuple[Layer, ...]:
    body = (
        *_normalised(width, 1),
        *_normalised(width, 3, stride=stride, padding=1),
        Convolution(4 * width, 1),
        _END_OF_BLOCK,
    )
    same_shape = stride == 1 and before == 4 * width
    shortcut = () if same_shape else (Convolution(4 * width, 1, stride=stride), _NORMALISATION)
    return Residual(body, shortcut), _RELU


def mobilenet_v2() -> tuple[Layer, ...]:
    """Return the layers of MobileNetV2: Sandler et al., "MobileNetV2: Inverted Residuals" (2018)."""
    layers: list[Layer] = [*_normalised(32, 3, stride=2, padding=1, activation="relu6")]
    before = 32
    # Table 2 of the paper: expansion, channels, repetitions, stride of the first.
    for expansion, channels, repetitions, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for repetition in range(repetitions):
            stride = first_stride if repetition == 0 else 1
            layers += _inverted_residual(before, expansion * before, channels, stride)
            before = channels
    layers += _normalised(1_280, 1, activation="relu6")
    return (*layers, GlobalAveragePool(), Flatten(), FullyConnected(CLASSES))


def _inverted_residual(before: int, hidden: int, channels: int, stride: int) -> tuple[Layer, ...]:
    same_shape = stride == 1 and before == channels
    body = (
        *(_normalised(hidden, 1, activation="relu6") if hidden != before else ()),
        *_normalised(hidden, 3, stride=stride, padding=1, groups=hidden, activation="relu6"),
        Convolution(channels, 1),
        _END_OF_BLOCK if same_shape else _NORMALISATION,
    )
    return (Residual(body),) if same_shape else body


def convnext_tiny() -> tuple[Layer, ...]:
    """Return the layers of ConvNeXt-T: Liu et al., "A ConvNet for the 2020s" (2022)."""
    layers: list[Layer] = [Convolution(96, 4, stride=4, bias=True), *_normalised_channels()]
    for stage, (blocks, channels) in enumerate(((3, 96), (3, 192), (9, 384), (3, 768))):
        if stage:
            layers += [*_normalised_channels(), Convolution(channels, 2, stride=2, bias=True)]
        layers += [_convnext_block(channels)] * blocks
    return (*layers, GlobalAveragePool(), Flatten(), LayerNormalization(), FullyConnected(CLASSES))


def _convnext_block(channels: int) -> Residual:
    return Residual(
        (
            Convolution(channels, 7, padding=3, groups=channels, bias=True),
            ChannelsLast(),
            LayerNormalization(),
            FullyConnected(4 * channels, per_pixel=True),
            Activation("gelu"),
            FullyConnected(channels, per_pixel=True),
            ChannelsFirst(),
            LayerScale(),
        )
    )


def _normalised_channels() -> tuple[Layer, ...]:
    return ChannelsLast(), LayerNormalization(), ChannelsFirst()


def _normalised(
    channels: int,
    kernel: int,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    activation: Literal["relu", "relu6"] = "relu",
) -> tuple[Layer, ...]:
    return (
        Convolution(channels, kernel, stride, padding, groups),
        _NORMALISATION,
        Activation(activation),
    )


def _three_fully_connected() -> tuple[Layer, ...]:
    return (
        Flatten(),
        FullyConnected(4_096),
        _RELU,
        FullyConnected(4_096),
        _RELU,
        FullyConnected(CLASSES),
    )
