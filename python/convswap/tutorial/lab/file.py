"""The file that the lab keeps its tables in, `lab.sqlite`, beside the compiled kernels."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from convswap import _native
from convswap.errors import ConvswapError

_NAME = "lab.sqlite"
_VERSION = 1
_BUSY_SECONDS = 10.0


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
def lab_table(path: Path | None, create: str) -> Iterator[sqlite3.Connection]:
    """Give the file, by default the user's, with the table that `create` makes where it is not there.

    What was done is written when the context ends without an error.

    Raises:
        ConvswapError: the file cannot be used, or is of another version.
    """
    file = path or ranking_path()
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
