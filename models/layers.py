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
    """A 2-D convolution with square filters, stride 1, dilation 1, no padding and no bias."""

    kind: ClassVar[str] = "conv"
    out_channels: int
    kernel: int


@dataclass(frozen=True)
class Activation(Layer):
    """A function applied to every element."""

    function: Literal["tanh", "relu"]

    @property
    def kind(self) -> str:  # type: ignore[override]
        """The function's name: networks mix functions, and `tanh1` says more than `activation1`."""
        return self.function


@dataclass(frozen=True)
class MaxPool(Layer):
    """The largest element of each square window; the stride is the window's size.

    With `ceil`, the last window may reach past the edge (40 columns in windows of 4 are 10; 34 are 9);
    without it, what does not fill a window is dropped.
    """

    kind: ClassVar[str] = "pool"
    kernel: int
    ceil: bool = False


@dataclass(frozen=True)
class Flatten(Layer):
    """One row of features for each image, in the order channel, row, column."""

    kind: ClassVar[str] = "flatten"


@dataclass(frozen=True)
class FullyConnected(Layer):
    """`y = x Wᵀ + b` with `W` of shape (out_features, in_features)."""

    kind: ClassVar[str] = "fc"
    out_features: int


@dataclass(frozen=True)
class Softmax(Layer):
    """Probabilities over the classes."""

    kind: ClassVar[str] = "softmax"
