"""For how many samples both sides name the same class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from convswap.truth.closeness import NO_CLASS


class Agreement(NamedTuple):
    """The share of samples of the same class, None where no sample has one; `without_class` have none.

    A sample that has a class on one side only counts as one of another class.
    """

    share: float | None
    without_class: int


def agreement(classes: np.ndarray, others: np.ndarray) -> Agreement:
    """Return for how many samples the classes of two sides, (n,) and (m,), are the same."""
    count = max(len(classes), len(others))
    one, other = (_padded(named, count) for named in (classes, others))
    named = (one != NO_CLASS) | (other != NO_CLASS)
    share = float(np.mean(one[named] == other[named])) if named.any() else None
    return Agreement(share, count - int(named.sum()))


def _padded(classes: np.ndarray, count: int) -> np.ndarray:
    """Return `classes`, numbers or strings, of `count` samples."""
    padded = np.full(count, NO_CLASS, dtype=object)
    padded[: len(classes)] = classes
    return padded
