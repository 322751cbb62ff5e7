"""How long work tells what it is at: it calls a function of its caller's with a few words; and notes."""

from __future__ import annotations

import sys
from collections.abc import Callable

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""


def note(text: str) -> None:
    """Say on standard error what a run goes without, such as a cache that cannot be written."""
    print(f"convswap: {text}", file=sys.stderr, flush=True)
