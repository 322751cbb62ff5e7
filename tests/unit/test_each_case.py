"""Tests decorated with `each` run all their cases, and a failure names its case."""

from __future__ import annotations

import inspect

import pytest
from each_case import each


def test_every_case_is_run_with_the_fixtures_of_pytest():
    calls = []

    @each("name, number", [("a", 1), ("b", 2)])
    @each("letter", "xy")
    def test(name, number, letter, device):
        calls.append((name, number, letter, device))

    assert list(inspect.signature(test).parameters) == ["device"]
    test(device="cpu")
    assert calls == [("a", 1, "x", "cpu"), ("a", 1, "y", "cpu"), ("b", 2, "x", "cpu"), ("b", 2, "y", "cpu")]


def test_failure_begins_with_its_case_and_keeps_its_message():
    @each("number", [1, 2, 3])
    def test(number):
        assert number != 2, "it is even"

    with pytest.raises(AssertionError, match=r"^number 2: it is even"):
        test()


def test_error_of_another_kind_fails_the_test_with_its_case():
    @each("number", [1, 0])
    def test(number):
        assert 1 // number

    with pytest.raises(AssertionError, match=r"^number 0: .*division") as raised:
        test()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_case_that_is_skipped_leaves_the_others():
    numbers = []

    @each("number", [1, 2, 3])
    def test(number):
        if number < 3:
            pytest.skip(f"{number} is small")
        numbers.append(number)

    test()
    assert numbers == [3]


def test_test_is_skipped_where_every_case_is_with_the_reason_of_the_first():
    @each("number", [1, 2])
    def test(number):
        pytest.skip(f"{number} is small")

    with pytest.raises(pytest.skip.Exception, match="1 is small"):
        test()


def test_no_cases_are_an_error():
    with pytest.raises(AssertionError, match="there are no cases of number"):
        each("number", [])
