"""Progress callbacks of long-running work, and notes on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable

Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Ignore a progress message."""


def note(text: str) -> None:
    """Print a note on standard error about something that a run lacks, such as a writable cache."""
    print(f"convswap: {text}", file=sys.stderr, flush=True)
