"""One convolution, with what follows it, that `convswap bench` times on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SuiteLayer:
    """One convolution, without a bias, of `rank` spatial axes that are alike.

    Each has `size` positions, of which `kernel` make a filter. `batch` is how many images a GPU usually takes
    of it; None: as many as for the others of its suite. `activation` follows, by its name in a FusedConv: for
    us one node, for the default provider ONNX's nodes that compute the same.
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
        """Return the attributes of ONNX Conv that tell how it is computed."""
        return {
            "strides": [self.stride] * self.rank,
            "pads": [self.padding] * 2 * self.rank,
            "dilations": [self.dilation] * self.rank,
            "group": self.group,
        }

    @property
    def following(self) -> dict[str, Any]:
        """Return the attributes of a FusedConv that tell what follows; empty where nothing does."""
        return {} if self.activation is None else {"activation": self.activation}
