"""Formats of terminal tables and the lines around them: numbers, times, ratios, versions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds with three significant digits; "-" for None."""
    return three_digits(value)


def three_digits(value: float | None) -> str:
    """Return a number with three significant digits, or more before the decimal point; "-" for None."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{max(0, min(digits, 6))}f}"


def error(value: float) -> str:
    """Return an error in scientific notation; "-" for NaN, the error of an output without numbers."""
    if math.isnan(value):
        return "-"
    return f"{value:.2e}" if math.isfinite(value) else "not finite"


def times_faster(value: float) -> str:
    """Return a speedup, such as "3.21x"."""
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def plain_table(title: str, *headings: str) -> Table:
    """Return a table in convswap's style, with these columns and no rows.

    A heading that begins with ">" marks a right-aligned column, for numbers. Cells are folded, never cut.
    """
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        is_number = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if is_number else "left", overflow="fold")
    return table


def set_caption(table: Table, text: str) -> None:
    """Put a line of text below a table, left-aligned."""
    table.caption, table.caption_justify = Text(text), "left"


def print_notes(notes: Iterable[str], console: Console) -> None:
    """Print each note on a separate line."""
    for note in notes:
        console.print(Text(f"Note: {note}."))


def versions_line(environment: dict[str, str | None], device_title: str) -> str:
    """Return one line with the device and the software versions of a result."""
    parts = [device_title]
    for name, key in (
        ("driver", "driver"),
        ("CUDA", "cuda"),
        ("ONNX Runtime", "onnxruntime"),
        ("convswap", "convswap"),
    ):
        if environment.get(key):
            parts.append(f"{name} {environment[key]}")
    return ", ".join(parts)
