"""What a command shows and writes: tables to standard output, progress to standard error, result files."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from convswap.errors import ConvswapError
from convswap.output.files import check_writable, json_text, write_bytes, write_text
from convswap.progress import Progress

WIDTH_WITHOUT_TERMINAL = 120

# What a file is to hold: made only where it is asked for.
Content = Callable[[], str | bytes]


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


def check_results(
    written: Mapping[str, str | None],
    *,
    model: str | None = None,
    read: Mapping[str, str | None] | None = None,
    options: argparse.Namespace | None = None,
) -> None:
    """Refuse result files that cannot be written, or are files that the command reads or writes besides.

    `written` has the paths by the options that name them, `read` further files by their roles, as in "what
    --weights reads"; `model` is a model that is read, with its external data. What feeds a model is read
    where `options` has it, see `arguments.add_inputs`.
    """
    if not any(written.values()):
        return
    taken: dict[str, Iterable[str | Path]] = {role: [path] for role, path in (read or {}).items() if path}
    if options is not None:
        taken["what --op-library reads"] = options.op_libraries
        taken["what --inputs reads"] = [options.inputs] if options.inputs else []
    if model is not None:
        from convswap.graph.model_file import model_files

        file, *weights = model_files(model)
        taken |= {"the model that is read": [file], "a file of weights of the model that is read": weights}
    for name, path in written.items():
        check_writable(path, taken, name)
        if path is not None:
            taken[f"what {name} writes"] = [path]


def give_results(
    show: Callable[[], None],
    options: argparse.Namespace,
    found: Any,
    *files: tuple[str | None, Content],
) -> None:
    """Write what a command found where --json says, and `files`, and show it: also where none can be written.

    Warns of a damaged tuning table if the command read one.

    Raises:
        ConvswapError: a file cannot be written; it has been shown nevertheless.
    """
    from convswap import _native

    if warning := _native.take_tuning_warning():
        print(f"convswap: {warning}", file=sys.stderr)
    show_and_write(show, (options.json, lambda: json_text(found)), *files)


def made_by(options: argparse.Namespace) -> str:
    """Return a page's last line: the command line and the day."""
    asked_for = shlex.join(["convswap", *options.words])
    return f"Made by `{asked_for}` on {datetime.date.today():%Y-%m-%d}."


def show_and_write(show: Callable[[], None], *files: tuple[str | None, Content]) -> None:
    """Write `files`, where they have a path, and show what was found, also where one cannot be written.

    Raises:
        ConvswapError: a file cannot be written.
    """
    faults = []
    for path, content in files:
        if path:
            try:
                made = content()
                write_bytes(path, made) if isinstance(made, bytes) else write_text(path, made)
            except ConvswapError as error:
                faults.append(str(error))
    show()
    if faults:
        sys.stdout.flush()
        raise ConvswapError("; ".join(faults))
