"""What a function prints for a reader."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console


def printed(show: Callable[..., None], *arguments: Any, width: int = 120, **options: Any) -> str:
    """Return what `show` prints on a console that is no terminal."""
    stream = io.StringIO()
    show(*arguments, Console(file=stream, width=width), **options)
    return stream.getvalue()
