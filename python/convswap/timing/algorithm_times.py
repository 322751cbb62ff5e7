"""Times of several algorithms as `tune` and `bench --against algorithms` report them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table

from convswap.output.tables import milliseconds, set_caption
from convswap.timing.sampler import Times


def algorithm_rows(times: Mapping[str, Times]) -> dict[str, dict[str, Any]]:
    """Return the JSON of the times, by algorithm."""
    return {
        name: {"median_ms": each.median, "runs": each.runs, "stopped_early": each.stopped_early}
        for name, each in times.items()
    }


def algorithm_lines(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return name and time of each of `algorithm_rows`, fastest first; a star marks one that was dropped."""
    fastest_first = sorted(rows.items(), key=lambda item: item[1]["median_ms"])
    return [
        f"{name} {milliseconds(row['median_ms'])}{'*' if row['stopped_early'] else ''}"
        for name, row in fastest_first
    ]


def explain_stars(table: Table, rows: Iterable[Mapping[str, Mapping[str, Any]]]) -> None:
    """Explain the stars of `algorithm_lines` under the table, if it has any."""
    if any(row["stopped_early"] for by_algorithm in rows for row in by_algorithm.values()):
        set_caption(table, "* clearly slower after a few runs, and not measured further")
