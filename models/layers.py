"""Declarations of a network's layers: their types and sizes, without any computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Layer:
    """A layer. Its `kind` and a number are its name within the network (`conv1`, `conv2`, `fc1`)."""

    kind: ClassVar[str]


@dataclass(frozen=True)
class Convolution(Layer):
    """A 2-D convolution with square filters, dilation 1, and one stride and padding for both axes."""

    kind: ClassVar[str] = "conv"
    out_channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    bias: bool = False


@dataclass(frozen=True)
class Activation(Layer):
    """A function applied to every element."""

    function: Literal["tanh", "relu", "relu6", "gelu", "silu"]

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The function's name: networks mix functions, and `tanh1` says more than `activation1`."""
        return self.function


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest element of each square window. The default `stride` is the window's size.

    With `ceil`, the last window may reach past the edge: 40 columns in windows of 4 give 10, and 34 give 9.
    Without it, columns that do not fill a window are dropped.
    """

    kind: ClassVar[str] = "pool"
    kernel: int
    ceil: bool = False
    stride: int | None = None
    padding: int = 0

    @property
    def step(self) -> int:
        """The stride, also if it is the default."""
        return self.stride or self.kernel


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """The mean of each channel: (channels, height, width) gives (channels, 1, 1)."""

    kind: ClassVar[str] = "average"


@dataclass(frozen=True)
class BatchNormalization(Layer):
    """Normalises each channel by a stored mean and variance, then multiplies by a scale and adds a bias.

    Ioffe and Szegedy, "Batch Normalization" (2015), at inference. `scale` and `bias` are the means of the
    seeded scales and biases.
    """

    kind: ClassVar[str] = "bn"
    epsilon: ClassVar[float] = 1e-5
    scale: float = 1.0
    bias: float = 0.0


@dataclass(frozen=True)
class LocalResponseNormalization(Layer):
    """`y = x / (1 + alpha / size * s) ^ beta`, s the sum of x² over `size` neighbouring channels.

    Krizhevsky et al., "ImageNet Classification with Deep Convolutional Neural Networks" (2012), section 3.3.
    """

    kind: ClassVar[str] = "lrn"
    size: int
    alpha: float
    beta: float


@dataclass(frozen=True)
class LayerNormalization(Layer):
    """Normalises the last axis, then multiplies by a scale and adds a bias; Ba et al. (2016)."""

    kind: ClassVar[str] = "ln"
    epsilon: ClassVar[float] = 1e-6


@dataclass(frozen=True)
class LayerScale(Layer):
    """Multiplies each channel by its own factor.

    Touvron et al., "Going Deeper with Image Transformers" (2021), section 2.
    """

    kind: ClassVar[str] = "scale"


@dataclass(frozen=True)
class ChannelsLast(Layer):
    """Transposes (channels, height, width) to (height, width, channels)."""

    kind: ClassVar[str] = "channels_last"


@dataclass(frozen=True)
class ChannelsFirst(Layer):
    """Transposes (height, width, channels) to (channels, height, width)."""

    kind: ClassVar[str] = "channels_first"


@dataclass(frozen=True)
class Residual(Layer):
    """The sum of the outputs of `body` and `shortcut` for the same input; an empty shortcut is the identity.

    He et al., "Deep Residual Learning for Image Recognition" (2015).
    """

    kind: ClassVar[str] = "add"
    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Keep(Layer):
    """Saves the output of the layer before under `label`, for a Take or a Concatenation. Computes nothing.

    A second Keep with the same label replaces the first.
    """

    kind: ClassVar[str] = "keep"
    label: str


@dataclass(frozen=True)
class Take(Layer):
    """Continues with the output that was saved under `label`. Computes nothing."""

    kind: ClassVar[str] = "take"
    label: str


@dataclass(frozen=True)
class Split(Layer):
    """Splits the channels into equal parts, saved under the labels. The next layer gets the last part."""

    kind: ClassVar[str] = "split"
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Concatenation(Layer):
    """Concatenates the outputs saved under the labels, along `axis` of an image; axis 0 is the channels."""

    kind: ClassVar[str] = "concat"
    labels: tuple[str, ...]
    axis: int = 0


@dataclass(frozen=True)
class Upsample(Layer):
    """Repeats each pixel `factor` times along both axes (nearest-neighbour interpolation)."""

    kind: ClassVar[str] = "upsample"
    factor: int


@dataclass(frozen=True)
class FlattenPixels(Layer):
    """Reshapes (channels, height, width) to (channels, height * width)."""

    kind: ClassVar[str] = "pixels"


@dataclass(frozen=True)
class Flatten(Layer):
    """Reshapes each image to one row of features, in the order channel, row, column."""

    kind: ClassVar[str] = "flatten"


@dataclass(frozen=True)
class FullyConnected(Layer):
    """`y = x Wᵀ + b` with `W` of shape (out_features, in_features).

    The input x is (features,). With `per_pixel` the input is (height, width, channels), and x is one pixel.
    """

    kind: ClassVar[str] = "fc"
    out_features: int
    per_pixel: bool = False


@dataclass(frozen=True)
class Softmax(Layer):
    """Probabilities over the classes."""

    kind: ClassVar[str] = "softmax"
