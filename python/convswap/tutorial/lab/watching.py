"""Runs a kernel again each time that its file is saved, by a worker that stays warm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError
from convswap.progress import Progress, silent
from convswap.tutorial.lab.kernel import kernel_of
from convswap.tutorial.lab.laboratory import run
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.result import LabResult

# A look costs a few microseconds, and nobody notices the wait.
_LOOK_SECONDS = 0.05
# An editor may empty a file before it writes it, or put another in its place.
_SETTLED_SECONDS = 0.05


def watch(
    source: str | os.PathLike[str],
    target: str,
    told: Callable[[LabResult | ConvswapError, float], None],
    *,
    progress: Progress | None = None,
    saves: int | None = None,
    **how: Any,
) -> None:
    """Call `told` with what comes of the file now and after each save, and the seconds since that save.

    It goes on until it is interrupted, or after so many `saves`. What is wrong with the file's comments is
    told as the error, and watched on. `how` is as of `run`.

    Raises:
        ConvswapError: there is no such file to begin with.
    """
    path = Path(source)
    if not path.is_file():
        kernel_of(path)  # which says what is wrong
    report = progress or silent
    with LabProcess(how.get("device")) as process:
        process.start()
        seen: tuple[int, ...] = ()
        rounds = 0
        while saves is None or rounds <= saves:
            seen, saved_at = _next_save(path, seen)
            begin = time.monotonic()
            try:
                result: LabResult | ConvswapError = run(path, target, process=process, progress=report, **how)
            except ConvswapError as error:
                result = error
            told(result, time.monotonic() - begin + max(0.0, begin - saved_at))
            # After a fault the next worker gets ready while the user types.
            process.start()
            rounds += 1


def _next_save(path: Path, seen: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """Wait until the file differs from what was `seen`; return what it is now, and when that was noticed."""
    while (now := _state(path)) == seen or not now:
        time.sleep(_LOOK_SECONDS)
    noticed = time.monotonic()
    while True:
        time.sleep(_SETTLED_SECONDS)
        if (later := _state(path)) == now and now:
            return now, noticed
        now = later


def _state(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
