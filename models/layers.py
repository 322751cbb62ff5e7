"""The layers a network is declared with. They hold what a reader would write down, and compute nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Layer:
    """What every layer has: a `kind`, which names it within its network (`conv1`, `conv2`, `fc1`)."""

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
    """The largest element of each square window; without `stride`, that is the window's size.

    With `ceil`, the last window may reach past the edge (40 columns in windows of 4 are 10; 34 are 9);
    without it, what does not fill a window is dropped.
    """

    kind: ClassVar[str] = "pool"
    kernel: int
    ceil: bool = False
    stride: int | None = None
    padding: int = 0

    @property
    def step(self) -> int:
        """How far apart the windows begin."""
        return self.stride or self.kernel


@dataclass(frozen=True)
class GlobalAveragePool(Layer):
    """The mean of each channel: (channels, height, width) gives (channels, 1, 1)."""

    kind: ClassVar[str] = "average"


@dataclass(frozen=True)
class BatchNormalization(Layer):
    """Each channel less its mean, over its deviation, times a scale, plus a bias; mean and variance are kept.

    Ioffe and Szegedy, "Batch Normalization" (2015), as at inference. Seeded scales and biases lie around
    `scale` and `bias`.
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
    """The last axis less its mean, over its deviation, times a scale, plus a bias; Ba et al. (2016)."""

    kind: ClassVar[str] = "ln"
    epsilon: ClassVar[float] = 1e-6


@dataclass(frozen=True)
class LayerScale(Layer):
    """Each channel times a factor of its own.

    Touvron et al., "Going Deeper with Image Transformers" (2021), section 2.
    """

    kind: ClassVar[str] = "scale"


@dataclass(frozen=True)
class ChannelsLast(Layer):
    """(channels, height, width) gives (height, width, channels)."""

    kind: ClassVar[str] = "channels_last"


@dataclass(frozen=True)
class ChannelsFirst(Layer):
    """(height, width, channels) gives (channels, height, width)."""

    kind: ClassVar[str] = "channels_first"


@dataclass(frozen=True)
class Residual(Layer):
    """What `body` gives plus what `shortcut` gives of the same input; no shortcut is the input itself.

    He et al., "Deep Residual Learning for Image Recognition" (2015).
    """

    kind: ClassVar[str] = "add"
    body: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Keep(Layer):
    """What the layer before gives, kept under `label` for a Take or a Concatenation; computes nothing.

    A label that is kept again means the later one from then on.
    """

    kind: ClassVar[str] = "keep"
    label: str


@dataclass(frozen=True)
class Take(Layer):
    """What was kept under `label`, whatever the layer before gives; computes nothing."""

    kind: ClassVar[str] = "take"
    label: str


@dataclass(frozen=True)
class Split(Layer):
    """Equal parts of the channels, in order, each kept under a label; the next layer takes the last."""

    kind: ClassVar[str] = "split"
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Concatenation(Layer):
    """What was kept under the labels, side by side along `axis` of an image; 0 is that of the channels."""

    kind: ClassVar[str] = "concat"
    labels: tuple[str, ...]
    axis: int = 0


@dataclass(frozen=True)
class Upsample(Layer):
    """Each pixel becomes `factor` rows and columns of its like."""

    kind: ClassVar[str] = "upsample"
    factor: int


@dataclass(frozen=True)
class FlattenPixels(Layer):
    """One row of pixels for each channel: (channels, height, width) gives (channels, height * width)."""

    kind: ClassVar[str] = "pixels"


@dataclass(frozen=True)
class Flatten(Layer):
    """One row of features for each image, in the order channel, row, column."""

    kind: ClassVar[str] = "flatten"


@dataclass(frozen=True)
class FullyConnected(Layer):
    """`y = x Wᵀ + b` with `W` of shape (out_features, in_features).

    It takes (features,), or with `per_pixel` the channels of every pixel of (height, width, channels).
    """

    kind: ClassVar[str] = "fc"
    out_features: int
    per_pixel: bool = False


@dataclass(frozen=True)
class Softmax(Layer):
    """Probabilities over the classes."""

    kind: ClassVar[str] = "softmax"
