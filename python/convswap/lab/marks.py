"""The times of the ladder's rungs, kept from one run of the lab to the next: on one card, driver and version."""

from __future__ import annotations

from pathlib import Path

from convswap.lab.file import lab_table
from convswap.runtime.device import Device, environment

_TABLE = """
CREATE TABLE IF NOT EXISTS marks (
  card TEXT NOT NULL, driver TEXT NOT NULL, convswap TEXT NOT NULL, problem TEXT NOT NULL, name TEXT NOT NULL,
  milliseconds REAL NOT NULL, PRIMARY KEY (card, driver, convswap, problem, name)
)
"""


def known_mark(device: Device, problem: str, name: str, path: Path | None = None) -> float | None:
    """Return the milliseconds of a `Problem.text` by the algorithm `name` on the card; None where not kept.

    Raises:
        ConvswapError: the file cannot be used.
    """
    with lab_table(path, _TABLE) as table:
        query = "SELECT milliseconds FROM marks WHERE card = ? AND driver = ? AND convswap = ? AND problem = ? AND name = ?"
        row = table.execute(query, (*_place(device), problem, name)).fetchone()
    return None if row is None else float(row[0])


def keep_mark(device: Device, problem: str, name: str, milliseconds: float, path: Path | None = None) -> None:
    """Keep such a time.

    Raises:
        ConvswapError: the file cannot be used.
    """
    with lab_table(path, _TABLE) as table:
        row = (*_place(device), problem, name, milliseconds)
        table.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)", row)


def _place(device: Device) -> tuple[str, str, str]:
    found = environment(device)
    return device.title, str(found["driver"]), str(found["convswap"])
