"""The regular expressions that users choose nodes and layers with."""

from __future__ import annotations

import re

from convswap.errors import ConvswapError


def name_pattern(expression: str | None, names: str, example: str) -> re.Pattern[str]:
    """Return the compiled expression; None matches every name.

    Raises:
        ConvswapError: it is not a regular expression. `names` and `example` say what one would match.
    """
    if not isinstance(expression, str | None):
        raise ConvswapError(
            f"{expression!r} is not a regular expression; expected text that matches {names}, such as "
            f"{example!r}"
        )
    try:
        return re.compile(expression or "")
    except re.error as error:
        raise ConvswapError(
            f"{expression!r} is not a regular expression: {error}; expected one that matches {names}, "
            f"such as {example!r}"
        ) from error
