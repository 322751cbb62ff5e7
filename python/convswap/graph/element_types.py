"""The element types of tensors that NumPy has itself, and those that it has not."""

from __future__ import annotations

import ml_dtypes
import numpy as np

# What `numpy.dtype.isbuiltin` is for types that a package of its own adds to NumPy.
_ADDED_BY_OTHERS = 2


def is_numpys(dtype: np.dtype) -> bool:
    """Return whether NumPy has `dtype` itself; bfloat16 and numbers of 8 and 4 bits a package adds to it."""
    return dtype.isbuiltin != _ADDED_BY_OTHERS


def largest(dtype: np.dtype) -> float:
    """Return the largest finite number of a floating-point `dtype`."""
    return float(ml_dtypes.finfo(dtype).max)


def widened(values: np.ndarray) -> np.ndarray:
    """Return `values` in a type that NumPy has itself and that holds them exactly."""
    if is_numpys(values.dtype):
        return values
    return values.astype(np.int8 if "int" in values.dtype.name else np.float32)
