"""The files that a command writes: refused before the long work where they cannot be, written after it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError
from convswap.output.files import check_writable, json_text, write_bytes, write_text

# What a file is to hold: made only where it is asked for.
Content = Callable[[], str | bytes]


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
        taken["what --op-library reads"] = options.op_library
        taken["what --inputs reads"] = [options.inputs] if options.inputs else []
    if model is not None:
        from convswap.graph.model_file import files_of

        file, *weights = files_of(model)
        taken |= {"the model that is read": [file], "a file of weights of the model that is read": weights}
    for name, path in written.items():
        check_writable(path, taken, name)
        if path is not None:
            taken[f"what {name} writes"] = [path]


def check_drawing(page: str | None) -> None:
    """Refuse a page with a plot, before the long work, where nothing can draw it."""
    if page is not None:
        from convswap.output.drawing import require_matplotlib

        require_matplotlib()


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
