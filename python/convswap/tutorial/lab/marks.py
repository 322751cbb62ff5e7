"""The times of the ladder's rungs and of the default provider, kept from one run of the lab to the next."""

from __future__ import annotations

import contextlib
from pathlib import Path

from convswap.errors import ConvswapError
from convswap.runtime.device import Device, environment
from convswap.tutorial.lab.file import lab_table

_TABLE = """
CREATE TABLE IF NOT EXISTS marks (
  card TEXT NOT NULL, driver TEXT NOT NULL, convswap TEXT NOT NULL, problem TEXT NOT NULL, name TEXT NOT NULL,
  milliseconds REAL NOT NULL, PRIMARY KEY (card, driver, convswap, problem, name)
)
"""


def known_mark(device: Device, problem: str, name: str, path: Path | None = None) -> float | None:
    """Return the milliseconds of a `Problem.text` by an algorithm on the card; None where not kept."""
    place = "card = ? AND driver = ? AND convswap = ? AND problem = ? AND name = ?"
    # Where the file cannot be used, what it would have is measured again.
    with contextlib.suppress(ConvswapError), lab_table(path, _TABLE) as table:
        query = f"SELECT milliseconds FROM marks WHERE {place}"
        row = table.execute(query, (*_place(device), problem, name)).fetchone()
        return None if row is None else float(row[0])
    return None


def keep_mark(device: Device, problem: str, name: str, milliseconds: float, path: Path | None = None) -> None:
    """Keep such a time, where the file can be used."""
    with contextlib.suppress(ConvswapError), lab_table(path, _TABLE) as table:
        row = (*_place(device), problem, name, milliseconds)
        table.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)", row)


def _place(device: Device) -> tuple[str, str, str]:
    found = environment(device)
    return device.title, str(found["driver"]), str(found["convswap"])
