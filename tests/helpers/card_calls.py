"""An algorithm of the card called directly, and how near what it computes is to the float64 definition."""

from __future__ import annotations

import numpy as np
from conv_cases import ConvCase
from convswap import _native
from element_types import TENSOR_CORE_SUMS, TYPES

# The type of the data, the relative error of a result, and the smallest normal number.
ELEMENTS = {
    "float32": (np.float32, 0.0, 2.0**-126),
    **{name: (TYPES[name][0], TYPES[name][2], TYPES[name][4]) for name in ("float16", "bfloat16")},
}
# What may follow a Conv, by name.
EPILOGUES = {
    "relu": {"activation": "Relu"},
    "clip": {"activation": "Clip", "activation_alpha": -0.5, "activation_beta": 0.75},
    "silu": {"activation": "SiLU"},
    "hardswish": {"activation": "HardSwish"},
}


def problem_of(case: ConvCase, **how) -> _native.Problem:
    """Return the case as a problem."""
    return _native.Problem(case.x_shape, case.w_shape, case.has_bias, **how, **case.attributes)


def computed_by(algorithm: str, x, w, b, attributes: dict, z=None, **how) -> np.ndarray:
    """Return what the card computes into memory that held NaN."""
    problem = _native.Problem(x.shape, w.shape, b is not None, **attributes)
    y = _native.DeviceArray(problem.output_shape, x.dtype.name)
    y.poison()
    arrays = [None if each is None else _native.DeviceArray.from_numpy(each) for each in (x, w, b)]
    more = {} if z is None else {"residual": _native.DeviceArray.from_numpy(z)}
    given = {"precision": "tf32", **more, **how, **attributes}
    _native.conv_device(*arrays, y, algorithm=algorithm, **given)
    return y.to_numpy()


def stored(arrays, element: str) -> list:
    """Return the arrays in that type."""
    return [None if each is None else each.astype(ELEMENTS[element][0]) for each in arrays]


def true(x, w, b, attributes: dict, z=None) -> np.ndarray:
    """Return the definition in float64."""
    wide = [None if each is None else each.astype(np.float64) for each in (x, w, b)]
    more = {} if z is None else {"residual": z.astype(np.float64)}
    return _native.conv(*wide, algorithm="reference", **more, **attributes)


def assert_near(
    y: np.ndarray,
    reference: np.ndarray,
    magnitude: np.ndarray,
    terms: int,
    element: str = "float32",
    operand: float = 0.0,
    sums: float = TENSOR_CORE_SUMS,
    between: float = 0.0,
) -> None:
    """Assert that `y` is the reference but for rounding.

    `magnitude` is what the terms add up to, `operand` what a float32 loses before it is multiplied, `sums`
    what an addition does, `between` what a number of any type loses from one convolution to the next.
    """
    _, result, smallest = ELEMENTS[element]
    lost = operand if element == "float32" else 0.0
    # Results below the normal numbers keep no relative accuracy.
    bound = (
        1.01 * (2 * lost + between + (terms + 2) * sums) * magnitude + result * np.abs(reference) + smallest
    )
    wrong = np.argwhere(~(np.abs(y.astype(np.float64) - reference) <= bound))
    assert wrong.size == 0, f"{len(wrong)} of {y.size} are wrong, the first at {wrong[0].tolist()}"
