"""The table of kernels that were right: on which card, in which network, how fast; kept in SQLite.

A kernel is known by its text, so that a run of the same text replaces its row where it was faster than the
last one. The rungs of the ladder, the default provider and our best are rows too: marks to pass.
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

from convswap import _native
from convswap.errors import ConvswapError
from convswap.tutorial.lab.result import LabResult

_NAME = "lab.sqlite"
_VERSION = 1
_BUSY_SECONDS = 10.0

_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
  card TEXT NOT NULL, network TEXT NOT NULL, batch INTEGER NOT NULL, digest TEXT NOT NULL,
  name TEXT NOT NULL, is_mark INTEGER NOT NULL, milliseconds REAL NOT NULL, floor_ms REAL,
  gigabytes_per_second REAL, driver TEXT, convswap TEXT, taken_at TEXT NOT NULL,
  PRIMARY KEY (card, network, batch, digest)
)
"""


def ranking_path() -> Path:
    """Return where the table is, or will be.

    Raises ConvswapError where there is no home folder.
    """
    # Beside the compiled kernels.
    folder = _native.kernel_store()["folder"]
    if not folder:
        raise ConvswapError("there is no home folder to keep the ranking in; set CONVSWAP_CACHE to a folder")
    return Path(folder).parent / _NAME


@contextlib.contextmanager
def lab_table(create: str) -> Iterator[sqlite3.Connection]:
    """Give the user's file, with the table that `create` makes where it is not there.

    What was done is written when the context ends without an error.

    Raises:
        ConvswapError: the file cannot be used, or is of another version.
    """
    file = ranking_path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(file, timeout=_BUSY_SECONDS)) as table, table:
            _check_version(table, file)
            table.execute(create)
            yield table
    except (sqlite3.Error, OSError) as error:
        raise ConvswapError(
            f"the ranking '{file}' cannot be used: {error}; move it away, or set CONVSWAP_CACHE to another "
            "folder"
        ) from error


def _check_version(table: sqlite3.Connection, file: Path) -> None:
    (version,) = table.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
        raise ConvswapError(
            f"the ranking '{file}' is of another version of convswap ({version}): move it away, or set "
            "CONVSWAP_CACHE to another folder"
        )
    table.execute(f"PRAGMA user_version = {_VERSION}")


@dataclass(frozen=True)
class Ranked:
    """A row: a kernel, or with `is_mark` what the library has, and its time for a network's convolutions.

    `digest` tells texts apart; of a mark it is its name. `floor_ms` is None where it is not known.
    """

    card: str
    network: str
    batch: int
    digest: str
    name: str
    is_mark: bool
    milliseconds: float
    floor_ms: float | None
    gigabytes_per_second: float | None
    driver: str | None
    convswap: str | None
    taken_at: str


_COLUMNS = tuple(column.name for column in fields(Ranked))


def remember(result: LabResult) -> None:
    """Keep a result that is right and was timed, and the marks beside it; others are left out.

    Raises:
        ConvswapError: the table cannot be written.
    """
    if result.fault is not None or result.milliseconds is None or result.card is None or result.batch is None:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    moved = sum(layer.bytes for layer in result.layers)
    rows = [
        (result.digest, result.kernel, False, result.milliseconds),
        *((name, name, True, time) for name, time in result.marks.items()),
    ]
    kept = [
        Ranked(
            card=result.card,
            network=result.target,
            batch=result.batch,
            digest=digest,
            name=name,
            is_mark=is_mark,
            milliseconds=time,
            floor_ms=result.floor_ms,
            gigabytes_per_second=moved / time / 1e6,
            driver=result.environment.get("driver"),
            convswap=result.environment.get("convswap"),
            taken_at=now,
        )
        for digest, name, is_mark, time in rows
    ]
    with lab_table(_TABLE) as table:
        _write(table, kept)


def ranked(*, card: str | None = None, network: str | None = None) -> list[Ranked]:
    """Return the rows of one card or of all, of one network or of all: together, and the fastest first.

    `card` and `network` are parts of the names, in any case of letters.

    Raises:
        ConvswapError: the table cannot be read.
    """
    if not ranking_path().exists():
        return []
    query = f"SELECT {', '.join(_COLUMNS)} FROM runs ORDER BY card, network, batch, milliseconds, name"
    with lab_table(_TABLE) as table:
        rows = [dict(zip(_COLUMNS, row, strict=True)) for row in table.execute(query)]
    found = [Ranked(**{**row, "is_mark": bool(row["is_mark"])}) for row in rows]
    return [
        row
        for row in found
        if (card or "").lower() in row.card.lower() and (network or "").lower() in row.network.lower()
    ]


def _write(table: sqlite3.Connection, rows: Iterable[Ranked]) -> None:
    """Insert rows; of a text or a mark that is there already, the faster one counts."""
    updates = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[4:])
    table.executemany(
        f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
        f"ON CONFLICT (card, network, batch, digest) DO UPDATE SET {updates} "
        "WHERE excluded.milliseconds < runs.milliseconds",
        [tuple(getattr(row, name) for name in _COLUMNS) for row in rows],
    )
