"""The order of the axes in both layouts, for ranks 3 to 5.

NCHW is (N, C, spatial...) and NHWC is (N, spatial..., C), in every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

RANKS = range(3, 6)

_T = TypeVar("_T")


def to_nhwc(rank: int) -> tuple[int, ...]:
    """Return the `perm` of the Transpose from NCHW to NHWC."""
    return (0, *range(2, rank), 1)


def to_nchw(rank: int) -> tuple[int, ...]:
    """Return the `perm` of the Transpose from NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def axis_in_nhwc(axis: int, rank: int) -> int:
    """Return the place in NHWC of the NCHW axis `axis`, which may be negative.

    Raises:
        IndexError: a tensor of this rank has no such axis.
    """
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} of a tensor of rank {rank}")
    return to_nchw(rank)[axis]


def in_nhwc(per_axis: Sequence[_T]) -> list[_T]:
    """Return the elements of `per_axis`, one for each axis of an NCHW tensor, in the order of NHWC."""
    return [per_axis[axis] for axis in to_nhwc(len(per_axis))]
