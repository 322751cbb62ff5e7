"""Output of commands: tables to standard output, progress to standard error, and result files."""

from __future__ import annotations

import argparse
import datetime
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from convswap.errors import ConvswapError
from convswap.output.files import check_writable, json_text, write_bytes, write_text
from convswap.progress import Progress

WIDTH_WITHOUT_TERMINAL = 120

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")

# Makes the content of a result file; called only if the file was asked for.
Content = Callable[[], str | bytes]


class _Console(Console):
    """A console that shows control characters of names in models as "?", so that none controls the terminal.

    A closed pipe is left to `main`; rich's class would exit with status 1.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(_CONTROL_CHARACTERS.sub("?", segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return a console for standard output: as wide as the terminal, else 120 columns without colour."""
    if sys.stdout.isatty():
        return _Console()
    return _Console(width=WIDTH_WITHOUT_TERMINAL, no_color=True, force_terminal=False)


@contextmanager
def progress_line() -> Iterator[Progress]:
    """Show progress on standard error: one changing line on a terminal, else a line for each step.

    The line is drawn when it changes. A thread that redraws it would disturb measurements.
    """
    if not sys.stderr.isatty():
        yield lambda text: print(f"convswap: {text}", file=sys.stderr, flush=True)
        return
    with Live(Text("starting"), console=_Console(stderr=True), auto_refresh=False, transient=True) as line:
        yield lambda text: line.update(Text(text), refresh=True)


def check_results(
    written: Mapping[str, str | None],
    *,
    model: str | None = None,
    read: Mapping[str, str | None] | None = None,
    options: argparse.Namespace | None = None,
) -> None:
    """Refuse result files that cannot be written, or that the command also reads or writes otherwise.

    `written` has the paths by their options, `read` other files by their roles, as in "what --weights reads".
    `model` is a model that is read, with its external data. With `options`, the files of --inputs and
    --op-library count as read.
    """
    if not any(written.values()):
        return
    other_files: dict[str, Iterable[str | Path]] = {
        role: [path] for role, path in (read or {}).items() if path
    }
    if options is not None:
        other_files["what --op-library reads"] = options.op_libraries
        other_files["what --inputs reads"] = [options.inputs] if options.inputs else []
    if model is not None:
        from convswap.graph.model_file import model_files

        file, *weights = model_files(model)
        other_files |= {
            "the model that is read": [file],
            "a file of weights of the model that is read": weights,
        }
    for name, path in written.items():
        check_writable(path, other_files, name)
        if path is not None:
            other_files[f"what {name} writes"] = [path]


def give_results(
    show: Callable[[], None],
    options: argparse.Namespace,
    result: Any,
    *files: tuple[str | None, Content],
) -> None:
    """Show a command's result, and write it as JSON to --json, and `files`.

    Warn of a damaged tuning table if the command read one.

    Raises:
        ConvswapError: a file cannot be written; the result has been shown.
    """
    from convswap import _native

    if warning := _native.take_tuning_warning():
        print(f"convswap: {warning}", file=sys.stderr)
    show_and_write(show, (options.json, lambda: json_text(result)), *files)


def made_by(options: argparse.Namespace) -> str:
    """Return a page's last line: the command line and the date."""
    command = shlex.join(["convswap", *options.words])
    return f"Made by `{command}` on {datetime.date.today():%Y-%m-%d}."


def show_and_write(show: Callable[[], None], *files: tuple[str | None, Content]) -> None:
    """Write the `files` that have a path, and show the result, even if a file cannot be written.

    Raises:
        ConvswapError: a file cannot be written; the result has been shown.
    """
    messages = []
    for path, content in files:
        if path:
            try:
                data = content()
                write_bytes(path, data) if isinstance(data, bytes) else write_text(path, data)
            except ConvswapError as error:
                messages.append(str(error))
    show()
    if messages:
        sys.stdout.flush()
        raise ConvswapError("; ".join(messages))
