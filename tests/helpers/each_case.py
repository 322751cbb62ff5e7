"""Tests that go through their cases themselves, where the cases are data and the way to them is the same.

A test of its own, which pytest collects, sets up and reports, takes longer than a small convolution.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable

import pytest


def each(names: str, cases: Iterable) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that has one test run for all `cases`, given as pytest's parametrize gives them.

    A failure ends the test with a message that begins with the case. A case that is skipped does not; where
    all are, so is the test, for the first one's reason.
    """
    own = [name.strip() for name in names.split(",")]
    every = list(cases)
    assert every, f"there are no cases of {names}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def in_turn(**given: object) -> None:
            reasons = []
            for case in every:
                values = dict(zip(own, case if len(own) > 1 else [case], strict=True))
                try:
                    test(**given, **values)
                except pytest.skip.Exception as skipped:
                    reasons.append(str(skipped))
                except Exception as error:
                    named = ", ".join(f"{name} {value}" for name, value in values.items())
                    raise AssertionError(f"{named}: {error}") from error
            if len(reasons) == len(every):
                pytest.skip(reasons[0])

        signature = inspect.signature(test)
        left = [parameter for name, parameter in signature.parameters.items() if name not in own]
        # Which pytest reads for the fixtures and parameters that are left to it.
        in_turn.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return in_turn

    return decorate
