"""Error metrics of two outputs; non-finite values are never hidden."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from convswap.reference.metrics import (
    NO_CLASS,
    NO_DIFFERENCE,
    Difference,
    difference_between,
    equal_without_finite,
    max_abs_error,
    relative_l2_error,
    top1_classes,
    worst_output,
)


def test_relative_l2_error_is_the_distance_over_the_length_of_the_reference():
    reference = np.array([[3.0, 0.0], [0.0, 4.0]])
    values = reference.astype(np.float32) + np.float32(0.5)
    assert relative_l2_error(values, reference) == pytest.approx(1.0 / 5.0)
    assert max_abs_error(values, reference) == pytest.approx(0.5)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("error", [relative_l2_error, max_abs_error])
def test_value_that_is_not_finite_where_the_reference_is_makes_the_error_infinite(error, wrong):
    assert error(np.array([1.0, wrong]), np.array([1.0, 2.0])) == math.inf
    assert error(np.array([1.0, 2.0]), np.array([1.0, wrong])) == math.inf


@pytest.mark.parametrize("error", [relative_l2_error, max_abs_error])
def test_infinity_and_nan_that_the_reference_has_too_are_no_error(error):
    reference = np.array([1.0, np.inf, -np.inf, np.nan])
    assert error(reference.astype(np.float32), reference) == 0
    assert error(np.array([1.0, -np.inf, -np.inf, np.nan]), reference) == math.inf


def test_any_difference_from_an_all_zero_reference_is_infinite():
    assert relative_l2_error(np.zeros(3), np.zeros(3)) == 0
    assert relative_l2_error(np.full(3, 1e-30), np.zeros(3)) == math.inf


@pytest.fixture
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("scale", [1e200, 1e307, 1e-200, 1e-307])
def test_errors_are_right_where_squares_leave_the_range_of_float64(no_warning, scale):
    reference = np.array([[3.0, 0.0], [0.0, 4.0]]) * scale
    assert relative_l2_error(reference, reference) == 0
    assert difference_between(reference, reference) == NO_DIFFERENCE
    # A distance of 1 relative to a length of 5.
    values = reference + 0.5 * scale
    assert relative_l2_error(values, reference) == pytest.approx(0.2)
    assert difference_between(values, reference) == Difference(pytest.approx(0.2), pytest.approx(scale))
    assert max_abs_error(values, reference) == pytest.approx(0.5 * scale)


def test_difference_beyond_the_range_of_float64_counts_by_its_share(no_warning):
    largest = np.full(8, np.finfo(np.float64).max)
    assert relative_l2_error(largest, largest) == 0
    assert relative_l2_error(-largest, largest) == pytest.approx(2)
    assert relative_l2_error(np.zeros(8), largest) == pytest.approx(1)
    assert max_abs_error(-largest, largest) == math.inf


def test_value_that_is_infinite_in_a_narrow_type_only_is_infinitely_wrong(no_warning):
    """exp(400) overflows in float32 only: both sides have the same error, and their difference is not NaN."""
    reference = np.array([1.0, 5e173])
    with np.errstate(over="ignore"):
        values = reference.astype(np.float32)
    assert relative_l2_error(values, reference) == math.inf
    assert difference_between(values, reference).distance == math.inf
    assert difference_between(values, values) == NO_DIFFERENCE


def test_empty_outputs_do_not_differ():
    assert relative_l2_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0
    assert max_abs_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0


def test_large_output_does_not_hide_a_wrong_small_one():
    reference = [np.full(1000, 1e6), np.ones(2)]
    outputs = [np.full(1000, 1e6, np.float32), np.array([1.0, 1.5], np.float32)]
    assert worst_output(relative_l2_error, outputs, reference) == pytest.approx(0.5 / math.sqrt(2))


def test_whole_number_outputs_count_only_where_there_is_no_other():
    reference = [np.ones(3), np.array([1, 2, 3])]
    near_tie = [np.ones(3, np.float32), np.array([1, 3, 2])]
    assert worst_output(max_abs_error, near_tie, reference) == 0
    assert worst_output(max_abs_error, near_tie[1:], reference[1:]) == 1


def test_top1_is_the_largest_value_of_each_sample():
    assert top1_classes(np.array([[0.1, 0.9], [0.8, 0.2]])).tolist() == [1, 0]
    assert top1_classes(np.arange(12).reshape(2, 3, 2)).tolist() == [5, 5]
    assert top1_classes(np.float32(3.0)).tolist() == [0]


def test_sample_whose_largest_value_is_not_finite_has_no_class():
    assert top1_classes(np.zeros((2, 0))).tolist() == [NO_CLASS] * 2
    inf, nan = np.inf, np.nan
    values = np.array([[0, 1, nan], [0, inf, 1], [-inf, -inf, -inf], [-inf, 2, -inf]])
    assert top1_classes(values).tolist() == [NO_CLASS, NO_CLASS, NO_CLASS, 1]


def test_answers_without_a_finite_element_are_alike_where_they_are_the_same():
    nothing, nan, inf = np.zeros((0, 3)), np.full(2, np.nan), np.full(2, np.inf)
    for values in (nothing, nan, inf, nan.astype(np.float16)):
        assert equal_without_finite(values, values.copy())
    for values, others in (
        (nan, inf),
        (nan, nothing),
        (nan, np.array([np.nan, 1])),
        (np.ones(2), np.ones(2)),
    ):
        assert not equal_without_finite(values, others)
    assert not equal_without_finite(np.array([True]), np.array([True]))
