"""How tables and the lines around them look: numbers, times, ratios, and versions."""

from __future__ import annotations

import math

from rich import box
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


def plain_table(title: str) -> Table:
    """Return an empty table in the style of all of convswap's tables."""
    return Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)


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
