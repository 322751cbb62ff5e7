"""A folder that the processes of a run of the tests share, for what takes one of them long to make."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def of_all_workers(factory: pytest.TempPathFactory, name: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder, and whether another process has filled it; the others wait meanwhile."""
    own = factory.getbasetemp()
    # pytest-xdist gives each process a folder within that of the run.
    base = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = base / name
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_made = folder.exists()
        folder.mkdir(exist_ok=True)
        yield folder, is_made
