"""Expects errors for the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from convswap.errors import ConvswapError


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Expect a ConvswapError of one line that matches the regular expression `words`."""
    with pytest.raises(ConvswapError, match=words) as raised:
        yield
    assert "\n" not in str(raised.value)
