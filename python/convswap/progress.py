"""How long work tells what it is at: it calls a function of its caller's with a few words."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""
