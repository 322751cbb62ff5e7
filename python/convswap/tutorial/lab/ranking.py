"""The ranking of correct kernels by card, network and batch, stored in SQLite.

The hash of its text identifies a kernel: another run of the same text replaces its row if it was faster.
Baselines are rows too: the rungs of the ladder, the default provider and our best.
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from convswap import _native
from convswap.errors import ConvswapError
from convswap.tutorial.lab.result import LabResult

_FILE_NAME = "lab.sqlite"
_VERSION = 1
_BUSY_SECONDS = 10.0

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
  card TEXT NOT NULL, network TEXT NOT NULL, batch INTEGER NOT NULL, digest TEXT NOT NULL,
  name TEXT NOT NULL, is_mark INTEGER NOT NULL, milliseconds REAL NOT NULL, floor_ms REAL,
  gigabytes_per_second REAL, driver TEXT, convswap TEXT, taken_at TEXT NOT NULL,
  PRIMARY KEY (card, network, batch, digest)
)
"""


def ranking_path() -> Path:
    """Return the path of the ranking's file, beside the kernel store.

    Raises ConvswapError if there is no home folder.
    """
    folder = _native.kernel_store()["folder"]
    if not folder:
        raise ConvswapError("there is no home folder to keep the ranking in; set CONVSWAP_CACHE to a folder")
    return Path(folder).parent / _FILE_NAME


@contextlib.contextmanager
def lab_table(create: str) -> Iterator[sqlite3.Connection]:
    """Open the ranking's file and execute `create`, which makes a table unless it exists.

    Changes are committed if the context ends without an error.

    Raises:
        ConvswapError: the file cannot be used, or has another version.
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
class RankedRun:
    """A row: a kernel, or a baseline if `is_baseline`, and its time for a network's convolutions.

    `digest` is the hash of the kernel's text; for a baseline it is its name. `floor_ms` may be None.
    """

    card: str
    network: str
    batch: int
    digest: str
    name: str
    is_baseline: bool
    milliseconds: float
    floor_ms: float | None
    gigabytes_per_second: float | None
    driver: str | None
    convswap: str | None
    taken_at: str


_FIELDS = tuple(field.name for field in fields(RankedRun))
# The table's column for `is_baseline` is `is_mark`.
_COLUMNS = tuple(name.replace("is_baseline", "is_mark") for name in _FIELDS)


def remember(result: LabResult) -> None:
    """Store a timed result without a fault, and its baselines; ignore any other result.

    Raises:
        ConvswapError: the table cannot be written.
    """
    if result.fault is not None or result.milliseconds is None or result.card is None or result.batch is None:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    bytes_moved = sum(layer.bytes for layer in result.layers)
    rows = [
        (result.digest, result.kernel, False, result.milliseconds),
        *((name, name, True, time) for name, time in result.baselines.items()),
    ]
    ranked_runs = [
        RankedRun(
            card=result.card,
            network=result.target,
            batch=result.batch,
            digest=digest,
            name=name,
            is_baseline=is_baseline,
            milliseconds=time,
            floor_ms=result.floor_ms,
            gigabytes_per_second=bytes_moved / time / 1e6,
            driver=result.environment.get("driver"),
            convswap=result.environment.get("convswap"),
            taken_at=now,
        )
        for digest, name, is_baseline, time in rows
    ]
    with lab_table(_CREATE_TABLE) as table:
        _write_rows(table, ranked_runs)


def ranked(*, card: str | None = None, network: str | None = None) -> list[RankedRun]:
    """Return the rows of matching cards and networks, by card, network and batch, the fastest first.

    `card` and `network` match parts of the names and ignore case.

    Raises:
        ConvswapError: the table cannot be read.
    """
    if not ranking_path().exists():
        return []
    query = f"SELECT {', '.join(_COLUMNS)} FROM runs ORDER BY card, network, batch, milliseconds, name"
    with lab_table(_CREATE_TABLE) as table:
        rows = [dict(zip(_FIELDS, row, strict=True)) for row in table.execute(query)]
    ranked_runs = [RankedRun(**{**row, "is_baseline": bool(row["is_baseline"])}) for row in rows]
    return [
        row
        for row in ranked_runs
        if (card or "").lower() in row.card.lower() and (network or "").lower() in row.network.lower()
    ]


def _write_rows(table: sqlite3.Connection, rows: Iterable[RankedRun]) -> None:
    """Insert rows; replace the row of the same kernel or baseline if the new one is faster."""
    updates = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[4:])
    table.executemany(
        f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
        f"ON CONFLICT (card, network, batch, digest) DO UPDATE SET {updates} "
        "WHERE excluded.milliseconds < runs.milliseconds",
        [astuple(row) for row in rows],
    )
