"""Where a command's words go: its tables to standard output, its progress to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from convswap.progress import Progress

WIDTH_WITHOUT_TERMINAL = 120


class _Output(Console):
    """A console that leaves a closed pipe to `main`; rich's own would exit with status 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Standard output: as wide as the terminal; without one 120 columns and no colour."""
    if sys.stdout.isatty():
        return _Output()
    return _Output(width=WIDTH_WITHOUT_TERMINAL, no_color=True, force_terminal=False)


@contextmanager
def progress_line() -> Iterator[Progress]:
    """Say on standard error what is going on: one changing line on a terminal, else a line for each step.

    The line is drawn when it changes, not by a thread that would take its time from what is measured.
    """
    if not sys.stderr.isatty():
        yield lambda text: print(f"convswap: {text}", file=sys.stderr, flush=True)
        return
    with Live(Text("starting"), console=Console(stderr=True), auto_refresh=False, transient=True) as line:
        yield lambda text: line.update(Text(text), refresh=True)
