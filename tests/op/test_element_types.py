"""float16, bfloat16 and float64 on every device, by every algorithm that supports them, against float64.

A result is rounded once from a float32 accumulator (float64 for float64 data). Its error is at most half a
unit of its type plus the rounding errors of the sum.
"""

import math

import numpy as np
import pytest
from conv_cases import CASES, EMPTY_CASES
from convswap import _native
from each_case import each
from element_types import SMALL_TYPES, TYPES, assert_rounded_once


@pytest.mark.parametrize("name", TYPES)
@each("case", [*CASES, *EMPTY_CASES])
def test_cpu_algorithms_round_once(case, name):
    arrays = case.arrays(TYPES[name][0])
    algorithms = ["reference"] if name == "float64" else ["reference", "direct"]
    for algorithm in algorithms:
        y = _native.conv(*arrays, algorithm=algorithm, **case.attributes)
        assert_rounded_once(y, case, arrays, name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", TYPES)
@each("case", [*CASES, *EMPTY_CASES])
def test_cuda_algorithms_round_once(case, name):
    arrays = case.arrays(TYPES[name][0])
    problem = _native.Problem(case.x_shape, case.w_shape, case.has_bias, name, **case.attributes)
    y = _native.DeviceArray(problem.output_shape, name)
    on_card = [None if array is None else _native.DeviceArray.from_numpy(array) for array in arrays]
    algorithms = ("naive", "tiled", "few_channels", "toeplitz", "implicit_gemm", "many_channels")
    supporting = [a for a in algorithms if not _native.why_not(problem, a, "cuda")]
    assert "naive" in supporting
    for algorithm in supporting:
        y.poison()
        _native.conv_device(*on_card, y, algorithm=algorithm, **case.attributes)
        assert_rounded_once(y.to_numpy(), case, arrays, name, "cpu" if algorithm == "naive" else "cuda")


def every_number(kind) -> np.ndarray:
    numbers = np.arange(2**16, dtype=np.uint16).view(kind)
    return numbers[np.isfinite(numbers.astype(np.float32))]


@pytest.mark.parametrize("algorithm", ["reference", "direct"])
@pytest.mark.parametrize("name", SMALL_TYPES)
def test_every_number_of_a_small_type_is_read_and_written_exactly(name, algorithm):
    kind = TYPES[name][0]
    x = every_number(kind).reshape(1, 1, -1)
    y = _native.conv(x, np.ones((1, 1, 1), kind), algorithm=algorithm)
    np.testing.assert_array_equal(y.astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("name", SMALL_TYPES)
def test_sums_round_to_the_nearest_and_ties_to_even(name):
    kind = TYPES[name][0]
    random = np.random.default_rng(0)
    numbers = every_number(kind)
    x = random.choice(numbers, (1, 2, 200_000))
    # A tie: 1.5 units in the last place.
    x[0, 1, :100_000] = (x[0, 0, :100_000].astype(np.float32) * (1.5 * 2.0 * TYPES[name][2])).astype(kind)
    expected_sums = x[0, 0].astype(np.float32) + x[0, 1].astype(np.float32)
    finite = np.isfinite(expected_sums)
    with np.errstate(over="ignore"):
        expected = expected_sums.astype(kind).astype(np.float32)
    y = _native.conv(x, np.ones((1, 2, 1), kind), algorithm="direct")[0, 0].astype(np.float32)
    np.testing.assert_array_equal(y[finite], expected[finite])
    assert np.isinf(expected).any(), "the draw must hold sums beyond the largest number"


@pytest.mark.parametrize("name", SMALL_TYPES)
def test_nan_and_infinity_of_a_small_type_stay_what_they_are(name):
    kind = TYPES[name][0]
    x = np.array([np.nan, np.inf, -np.inf, 1], kind).reshape(1, 1, 4)
    y = _native.conv(x, np.ones((1, 1, 1), kind), algorithm="direct").astype(np.float32).ravel()
    assert math.isnan(y[0])
    assert list(y[1:]) == [math.inf, -math.inf, 1]
