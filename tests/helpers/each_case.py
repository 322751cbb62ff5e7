"""A decorator for tests that loop over their cases.

Collecting, setting up and reporting a pytest item takes longer than a small convolution.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable

import pytest


def each(names: str, cases: Iterable) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test for all `cases`, in the format of pytest's parametrize.

    A failure ends the test with a message that begins with the case. A skipped case does not end it. If all
    cases are skipped, the test is skipped with the first case's reason.
    """
    case_names = [name.strip() for name in names.split(",")]
    all_cases = list(cases)
    assert all_cases, f"there are no cases of {names}"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_cases(**fixtures: object) -> None:
            reasons = []
            for case in all_cases:
                values = dict(zip(case_names, case if len(case_names) > 1 else [case], strict=True))
                try:
                    test(**fixtures, **values)
                except pytest.skip.Exception as skipped:
                    reasons.append(str(skipped))
                except Exception as error:
                    named = ", ".join(f"{name} {value}" for name, value in values.items())
                    raise AssertionError(f"{named}: {error}") from error
            if len(reasons) == len(all_cases):
                pytest.skip(reasons[0])

        signature = inspect.signature(test)
        remaining = [parameter for name, parameter in signature.parameters.items() if name not in case_names]
        # pytest reads the signature for fixtures and its own parameters.
        run_cases.__signature__ = signature.replace(parameters=remaining)  # type: ignore[attr-defined]
        return run_cases

    return decorate
