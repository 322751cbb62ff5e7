"""The networks: those of the University of Illinois course ECE 408, by semester, and six large networks.

Students of the course write the forward convolution of its networks for Fashion-MNIST. These networks have
one input channel with pixel values 0..255, not normalised; the images are the 28x28 originals, resized. The
large networks have three input channels of mean 0 and variance 1, and their outputs are logits: those of five
are for the 1,000 classes of ImageNet, and a detector's are for boxes and the 80 classes of COCO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convswap.errors import unknown_name
from convswap.models import detection, imagenet
from convswap.models.layers import Activation, Convolution, Flatten, FullyConnected, Layer, MaxPool, Softmax

# Divisor that brings pixels to about 1: Fashion-MNIST's pixels, 0..255, have a root mean square of 116 at
# 28x28. Without it, nearly every output of the first layer's tanh would be -1 or 1. A power of two makes the
# division exact.
PIXEL_SCALE = 128.0
# The data set of a network that was not trained: seeded random values.
RANDOM = "random"


@dataclass(frozen=True)
class Network:
    """A network: its input, its layers in order, and its origin.

    `course_accuracy` maps a number n to the top-1 accuracy of the course's own checkpoint on the first n test
    images of Fashion-MNIST. This project's weights have another accuracy. `seed` selects the initial weights.
    `data` is the default data set. `first_layer_gain` multiplies the initial weights of the first layer.
    Initial biases are within `largest_bias` of zero.
    """

    name: str
    origin: str
    image_size: int
    layers: tuple[Layer, ...]
    course_accuracy: Mapping[int, float] = field(hash=False)
    channels: int = 1
    seed: int = 0
    data: str = "fashion-mnist"
    first_layer_gain: float = 1.0 / PIXEL_SCALE
    largest_bias: float = 0.0


def _two_tanh_convolutions(first: int, second: int, kernel: int, hidden: int) -> tuple[Layer, ...]:
    """Return the layers that the course used from 2018 to 2019, for the given channels, kernel and width."""
    return (
        Convolution(first, kernel),
        Activation("tanh"),
        MaxPool(2),
        Convolution(second, kernel),
        Flatten(),
        FullyConnected(hidden),
        Activation("tanh"),
        FullyConnected(10),
        Softmax(),
    )


_FALL_2017 = (
    Convolution(50, 5),
    Activation("tanh"),
    MaxPool(2),
    Flatten(),
    FullyConnected(500),
    Activation("tanh"),
    FullyConnected(10),
    Softmax(),
)

_FROM_2020 = (
    Convolution(4, 7),
    Activation("relu"),
    MaxPool(2),
    Convolution(16, 7),
    Activation("relu"),
    MaxPool(4, ceil=True),
    Flatten(),
    FullyConnected(32),
    Activation("relu"),
    FullyConnected(10),
    Softmax(),
)

_DECLARED = (
    Network(
        "ece408-2017-high",
        "ECE 408, 2017, the better of two",
        28,
        _FALL_2017,
        {2_000: 0.8625, 10_000: 0.8562},
    ),
    Network(
        "ece408-2017-low",
        "ECE 408, 2017, the worse of two",
        28,
        _FALL_2017,
        {2_000: 0.6275, 10_000: 0.629},
    ),
    Network(
        "ece408-2018sp",
        "ECE 408, spring 2018",
        64,
        _two_tanh_convolutions(6, 16, kernel=5, hidden=140),
        {100: 0.88, 10_000: 0.8451},
    ),
    Network(
        "ece408-2018fa",
        "ECE 408, fall 2018",
        72,
        _two_tanh_convolutions(12, 24, kernel=7, hidden=160),
        {100: 0.85, 1_000: 0.827, 10_000: 0.8171},
    ),
    Network(
        "ece408-2019sp",
        "ECE 408, spring 2019",
        48,
        _two_tanh_convolutions(6, 16, kernel=5, hidden=140),
        {100: 0.84, 1_000: 0.852, 10_000: 0.8397},
    ),
    Network(
        "baseline-2019sp",
        "ECE 408, spring 2019, the network to start from",
        48,
        _two_tanh_convolutions(12, 24, kernel=7, hidden=160),
        {10_000: 0.8236},
    ),
    Network(
        "ece408-2019fa",
        "ECE 408, fall 2019",
        70,
        _two_tanh_convolutions(12, 24, kernel=5, hidden=160),
        {100: 0.76, 1_000: 0.767, 10_000: 0.7653},
    ),
    Network(
        "ece408-2020",
        "ECE 408, from 2020 on",
        86,
        _FROM_2020,
        {100: 0.86, 1_000: 0.886, 10_000: 0.8714},
        # The last layer has only 32 features. If only that layer is fitted, the initial weights matter: of
        # the first sixteen seeds, 10 was the most accurate on 4,000 training images that the fit had not
        # seen. The stored weights were trained from this seed, too.
        seed=10,
    ),
)


def _large(
    name: str, origin: str, layers: tuple[Layer, ...], image_size: int = 224, first_layer_gain: float = 1.0
) -> Network:
    return Network(
        name,
        origin,
        image_size,
        layers,
        {},
        channels=3,
        data=RANDOM,
        first_layer_gain=first_layer_gain,
        # Not zero, so that a missing bias changes the outputs.
        largest_bias=0.1,
    )


_LARGE = (
    # The original's inputs are pixels minus their mean, about -128..127. The gain gives the first layer's
    # outputs the same magnitude, for which the local response normalisation still divides by 1 + 0.4.
    _large(
        "alexnet",
        "Krizhevsky et al. 2012, as Caffe's bvlc_alexnet",
        imagenet.alexnet(),
        image_size=227,
        first_layer_gain=64.0,
    ),
    _large("resnet50", "He et al. 2015, stride in the 3x3 convolutions", imagenet.resnet50()),
    _large("vgg16", "Simonyan and Zisserman 2014, configuration D", imagenet.vgg16()),
    _large("mobilenet-v2", "Sandler et al. 2018", imagenet.mobilenet_v2()),
    _large("convnext-tiny", "Liu et al. 2022", imagenet.convnext_tiny()),
    # The published network is for 640x640 and accepts every multiple of 32.
    _large(
        "yolov8n", "Jocher et al. 2023, a detector; heads not decoded", detection.yolov8n(), image_size=320
    ),
)

# The course's networks, for which the package has weights trained on Fashion-MNIST.
NETWORKS: dict[str, Network] = {network.name: network for network in _DECLARED}
LARGE_NETWORKS: dict[str, Network] = {network.name: network for network in _LARGE}
ALL_NETWORKS: dict[str, Network] = NETWORKS | LARGE_NETWORKS


def find(name: str) -> Network:
    """Return the network called `name`.

    Raises ConvswapError with the most similar name if there is no such network.
    """
    if name not in ALL_NETWORKS:
        raise unknown_name("network", name, ALL_NETWORKS)
    return ALL_NETWORKS[name]
