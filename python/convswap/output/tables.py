"""How tables and the lines around them look: numbers, times, ratios, and versions."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def milliseconds(value: float | None) -> str:
    """Return a time with three significant digits, "-" where there is none."""
    return three_digits(value)


def three_digits(value: float | None) -> str:
    """Return a number with three significant digits, or as many as lie before the point; "-" for none."""
    if value is None:
        return "-"
    if value >= 100:
        return f"{value:,.0f}"
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 2
    return f"{value:.{max(0, min(digits, 6))}f}"


def error(value: float) -> str:
    """Return an error in scientific notation, "-" for NaN: of what has no numbers."""
    if math.isnan(value):
        return "-"
    return f"{value:.2e}" if math.isfinite(value) else "not finite"


def times_faster(value: float) -> str:
    """Return a ratio of times: 3.21x."""
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def plain_table(title: str, *headings: str) -> Table:
    """Return a table in the style of all of convswap's, with these columns and no rows.

    A heading that begins with ">" is that of a column at the right, of numbers. Cells are folded, never cut.
    """
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        is_number = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if is_number else "left", overflow="fold")
    return table


def say_below(table: Table, text: str) -> None:
    """Put a line of text below a table."""
    table.caption, table.caption_justify = Text(text), "left"


def print_notes(notes: Iterable[str], console: Console) -> None:
    """Print sentences for a reader, each in a line of its own."""
    for note in notes:
        console.print(Text(f"Note: {note}."))


def versions_line(environment: dict[str, str | None], device_title: str) -> str:
    """Return the device and the software a result belongs to, in one line."""
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
