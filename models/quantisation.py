"""Numbers in 4 bits: groups of 32 share a float16 scale, so that a number takes 4.5 bits.

A number is `code * scale`, with a whole code from -8 to 7. There is one more code below zero than above, so
the scale takes the sign that gives a group's largest magnitude the code -8: all sixteen codes are in reach,
and what has been rounded once stays as it is when it is rounded again. A group runs along the flat array;
the last one is filled up with zeros.

In a byte the lower four bits are the first of two numbers; stored are the codes plus 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GROUP = 32
LOWEST, HIGHEST = -8, 7


def groups_of(elements: int) -> int:
    """Return how many groups hold `elements` numbers."""
    return -(-elements // GROUP)


def quantise(array: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return the packed codes, uint8 (16 * groups,), and the scales, float16 (groups,), of `array`.

    The codes are the nearest for the rounded scale. Raises ValueError where a number is not finite, or larger
    than the largest scale can hold (524,032).
    """
    flat = np.zeros(groups_of(array.size) * GROUP, np.float32)
    flat[: array.size] = np.asarray(array, np.float32).ravel()
    groups = flat.reshape(-1, GROUP)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=1)[:, None], axis=1)
    with np.errstate(over="ignore"):
        scales = (extreme / LOWEST).astype(np.float16)
    if not np.isfinite(scales).all():
        raise ValueError(
            f"cannot be written in 4 bits: largest magnitude {np.abs(array).max()}, expected at most 524032"
        )
    # Where the scale is zero, or rounded to zero, so are the numbers.
    divisors = np.where(scales == 0, np.float32(np.inf), scales.astype(np.float32))
    codes = np.clip(np.rint(groups / divisors), LOWEST, HIGHEST).astype(np.int8)
    pairs = (codes - LOWEST).astype(np.uint8).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << np.uint8(4), scales[:, 0]


def dequantise(
    packed: NDArray[np.uint8], scales: NDArray[np.float16], shape: Sequence[int]
) -> NDArray[np.float32]:
    """Return the numbers of `packed` and `scales`, as `quantise` made them, float32 in `shape`."""
    codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1, GROUP).astype(np.float32) + LOWEST
    numbers = codes * scales.astype(np.float32)[:, None]
    return numbers.ravel()[: math.prod(shape)].reshape(shape)
