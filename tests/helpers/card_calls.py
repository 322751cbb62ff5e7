"""Calls CUDA algorithms directly and compares their results with the float64 reference."""

from __future__ import annotations

import numpy as np
from conv_cases import ConvCase
from convswap import _native
from element_types import TENSOR_CORE_ADDITION, TYPES

# The type of the data, the relative error of a result, and the smallest normal number.
ELEMENTS = {
    "float32": (np.float32, 0.0, 2.0**-126),
    **{name: (TYPES[name][0], TYPES[name][2], TYPES[name][4]) for name in ("float16", "bfloat16")},
}
# Epilogues by name.
EPILOGUES = {
    "relu": {"activation": "Relu"},
    "clip": {"activation": "Clip", "activation_alpha": -0.5, "activation_beta": 0.75},
    "silu": {"activation": "SiLU"},
    "hardswish": {"activation": "HardSwish"},
}


def problem_of(case: ConvCase, **options) -> _native.Problem:
    """Return the case as a problem."""
    return _native.Problem(case.x_shape, case.w_shape, case.has_bias, **options, **case.attributes)


def conv_on_card(algorithm: str, x, w, b, attributes: dict, z=None, **options) -> np.ndarray:
    """Return the output of the algorithm on the card, written into memory that held NaN."""
    problem = _native.Problem(x.shape, w.shape, b is not None, **attributes)
    y = _native.DeviceArray(problem.output_shape, x.dtype.name)
    y.poison()
    arrays = [None if each is None else _native.DeviceArray.from_numpy(each) for each in (x, w, b)]
    residual = {} if z is None else {"residual": _native.DeviceArray.from_numpy(z)}
    options = {"precision": "tf32", **residual, **options, **attributes}
    _native.conv_device(*arrays, y, algorithm=algorithm, **options)
    return y.to_numpy()


def cast_to(arrays, element: str) -> list:
    """Return the arrays cast to the element type."""
    return [None if each is None else each.astype(ELEMENTS[element][0]) for each in arrays]


def reference_of(x, w, b, attributes: dict, z=None) -> np.ndarray:
    """Return the float64 reference of the arrays."""
    wide = [None if each is None else each.astype(np.float64) for each in (x, w, b)]
    residual = {} if z is None else {"residual": z.astype(np.float64)}
    return _native.conv(*wide, algorithm="reference", **residual, **attributes)


def assert_near(
    y: np.ndarray,
    reference: np.ndarray,
    magnitude: np.ndarray,
    terms: int,
    element: str = "float32",
    operand: float = 0.0,
    addition: float = TENSOR_CORE_ADDITION,
    intermediate: float = 0.0,
) -> None:
    """Assert that `y` is the reference but for rounding.

    `magnitude` is the sum of the terms' absolute values. Relative errors: `operand` of rounding a float32
    before the multiplication, `addition` of an addition, `intermediate` of rounding the tensor between two
    convolutions.
    """
    _, result, smallest = ELEMENTS[element]
    operand = operand if element == "float32" else 0.0
    # Subnormal results have no relative accuracy.
    bound = (
        1.01 * (2 * operand + intermediate + (terms + 2) * addition) * magnitude
        + result * np.abs(reference)
        + smallest
    )
    wrong = np.argwhere(~(np.abs(y.astype(np.float64) - reference) <= bound))
    assert wrong.size == 0, f"{len(wrong)} of {y.size} are wrong, the first at {wrong[0].tolist()}"
