"""An error that a user is told of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from convswap.errors import ConvswapError


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Expect a ConvswapError of one line, in which the regular expression `words` is found."""
    with pytest.raises(ConvswapError, match=words) as raised:
        yield
    assert "\n" not in str(raised.value)
