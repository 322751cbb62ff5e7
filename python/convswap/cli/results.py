"""The files that a command writes: refused before the long work where they cannot be, written after it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from convswap.output.files import check_writable, write_json


def check_result(path: str | None, model: str, *others: str | None) -> None:
    """Refuse a result file that cannot be written, or would be one of the model's own or of the others."""
    from convswap.graph.model_file import files_of

    if path is not None:
        check_writable(path, *files_of(model), *others)


def check_drawing(page: str | None) -> None:
    """Refuse a page with a plot, before the long work, where nothing can draw it."""
    if page is not None:
        from convswap.output.drawing import require_matplotlib

        require_matplotlib()


def write_found(options: argparse.Namespace, found: Any) -> None:
    """Write what a command found where --json says, and warn of a damaged tuning table if it read one."""
    from convswap import _native

    if warning := _native.take_tuning_warning():
        print(f"convswap: {warning}", file=sys.stderr)
    if options.json:
        write_json(options.json, found)
