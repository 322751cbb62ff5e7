"""Expects errors for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from convswap.errors import ConvswapError


@contextmanager
def refused(words: str | None = None) -> Iterator[pytest.ExceptionInfo[ConvswapError]]:
    """Expect a ConvswapError of one line that matches the regular expression `words`, and yield it."""
    with pytest.raises(ConvswapError, match=words) as raised:
        yield raised
    assert "\n" not in str(raised.value)
