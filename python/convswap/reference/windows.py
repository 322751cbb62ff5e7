"""The windows of poolings and convolutions in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np


class Windows:
    """The windows of a pooling or convolution: their number, the padding, and the positions of elements."""

    def __init__(self, spatial: Sequence[int], attributes: dict[str, Any]) -> None:
        rank = len(spatial)
        self._kernel = list(attributes["kernel_shape"])
        self._strides = list(attributes.get("strides") or [1] * rank)
        self._dilations = list(attributes.get("dilations") or [1] * rank)
        extent = [(k - 1) * d + 1 for k, d in zip(self._kernel, self._dilations, strict=True)]
        auto_pad = attributes.get("auto_pad") or "NOTSET"
        is_same = auto_pad.startswith("SAME")
        if is_same and any(dilation != 1 for dilation in self._dilations):
            # ONNX Runtime pads as if windows were not dilated, so its output shape differs from ONNX's. After
            # NotImplementedError the evaluator leaves the node to the CPU provider.
            raise NotImplementedError("auto_pad SAME with dilations")
        axes = list(zip(spatial, extent, self._strides, strict=True))
        if is_same:
            self._padding = [same_padding(*axis, auto_pad) for axis in axes]
        else:
            pads = (attributes.get("pads") if auto_pad == "NOTSET" else None) or [0] * 2 * rank
            self._padding = list(zip(pads[:rank], pads[rank:], strict=True))
        ceil_mode = bool(attributes.get("ceil_mode")) and not is_same
        padded = list(zip(axes, self._padding, strict=True))
        self.output = [_window_count(*axis, padding, ceil_mode) for axis, padding in padded]
        self._ceil_padding = [
            max(0, (out - 1) * stride + window - size - sum(padding))
            for out, ((size, window, stride), padding) in zip(self.output, padded, strict=True)
        ]

    def pad(self, values: np.ndarray, padding: float, ceil_value: float | None = None) -> np.ndarray:
        """Pad the spatial axes with `padding`, and positions only reached by ceil_mode with `ceil_value`."""
        inner = np.pad(values, [(0, 0), (0, 0), *self._padding], constant_values=padding)
        ceil_padding = [(0, 0), (0, 0), *((0, more) for more in self._ceil_padding)]
        return np.pad(inner, ceil_padding, constant_values=padding if ceil_value is None else ceil_value)

    def slices(self) -> list[tuple[slice, ...]]:
        """Return, for each element of a pool window, the slices that select it in all pool windows."""
        return [
            (
                slice(None),
                slice(None),
                *(
                    slice(offset * dilation, offset * dilation + (out - 1) * stride + 1, stride)
                    for offset, dilation, out, stride in zip(
                        offsets, self._dilations, self.output, self._strides, strict=True
                    )
                ),
            )
            for offsets in itertools.product(*(range(size) for size in self._kernel))
        ]


def same_padding(size: int, window: int, stride: int, auto_pad: str) -> tuple[int, int]:
    """Return the padding (begin, end) that gives ceil(size / stride) pool windows."""
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    smaller, larger = total // 2, total - total // 2
    return (smaller, larger) if auto_pad == "SAME_UPPER" else (larger, smaller)


def _window_count(size: int, window: int, stride: int, padding: tuple[int, int], ceil_mode: bool) -> int:
    span = size + sum(padding) - window
    count = (-(-span // stride) if ceil_mode else span // stride) + 1
    # A pool window that would start in the padding at the end does not count.
    if ceil_mode and (count - 1) * stride >= size + padding[0]:
        count -= 1
    return count
