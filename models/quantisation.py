"""4-bit quantisation: groups of 32 numbers share a float16 scale, so a number takes 4.5 bits.

A number is `code * scale` with an integer code from -8 to 7. The scale's sign gives the number of the largest
magnitude the code -8, because there is one more negative code than positive codes. All sixteen codes are then
usable, and quantising a second time changes nothing. A group is 32 consecutive elements of the flat array;
the last group is padded with zeros.

A byte has two codes plus 8, the first in the lower four bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GROUP = 32
LOWEST, HIGHEST = -8, 7


def groups_of(elements: int) -> int:
    """Return the number of groups for `elements` numbers."""
    return -(-elements // GROUP)


def quantise(array: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float16]]:
    """Return the packed codes, uint8 (16 * groups,), and the scales, float16 (groups,), of `array`.

    Each code is the nearest one for the rounded scale. Raises ValueError if a number is not finite, or its
    magnitude exceeds 524,032, the limit of a float16 scale.
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
    # All numbers of a group are zero if its scale is zero or rounds to zero.
    divisors = np.where(scales == 0, np.float32(np.inf), scales.astype(np.float32))
    codes = np.clip(np.rint(groups / divisors), LOWEST, HIGHEST).astype(np.int8)
    pairs = (codes - LOWEST).astype(np.uint8).reshape(-1, 2)
    return pairs[:, 0] | pairs[:, 1] << np.uint8(4), scales[:, 0]


def dequantise(
    packed: NDArray[np.uint8], scales: NDArray[np.float16], shape: Sequence[int]
) -> NDArray[np.float32]:
    """Return the float32 numbers, in `shape`, of `packed` and `scales`, which `quantise` returned."""
    codes = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1, GROUP).astype(np.float32) + LOWEST
    numbers = codes * scales.astype(np.float32)[:, None]
    return numbers.ravel()[: math.prod(shape)].reshape(shape)
