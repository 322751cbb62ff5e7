"""The user's tuning table: what `convswap tune` measured, for every later process that asks for "tuned".

The planner reads the table itself (custom_op/plan/tuning.h describes the format); this side writes it,
one writer at a time, and never leaves it half written.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convswap import _native
from convswap.errors import ConvswapError
from convswap.output.files import check_writable, resolve_link, write_text

_COMMENTS = (
    '# What `convswap tune` measured, for nodes whose algorithm is "tuned". To forget it, delete lines.',
    "# device | convswap version | problem | fastest algorithm | milliseconds of each",
)


@dataclass(frozen=True)
class TuningEntry:
    """A line of the table: a problem on a device, the fastest algorithm, and the milliseconds of each.

    `device` is a name of `_native.tuning_device`, `problem` a `Problem.text`; `algorithm` is one of
    `milliseconds`.
    """

    device: str
    version: str
    problem: str
    algorithm: str
    milliseconds: Mapping[str, float]

    def line(self) -> str:
        """Return the entry as the planner reads it, without the line feed."""
        times = sorted(self.milliseconds.items(), key=lambda item: item[1])
        listed = ", ".join(f"{name} {_digits(value)}" for name, value in times)
        return " | ".join([self.device, self.version, self.problem, self.algorithm, listed])


def table_path() -> Path:
    """Return where the table is, or will be: $CONVSWAP_TUNING, else a file in the user's cache folder.

    Raises ConvswapError where there is no home folder.
    """
    return Path(_native.tuning_path())


def read_table() -> tuple[list[TuningEntry], str]:
    """Return the sound lines of the table, and in words what is wrong with the others, "" for nothing."""
    lines, damage = _native.read_tuning_table()
    return [TuningEntry(*line) for line in lines], damage


def check_storable() -> None:
    """Raise ConvswapError where nothing could be stored: to be known before the long work starts."""
    with _only_writer():
        pass


def store(entries: Iterable[TuningEntry]) -> Path:
    """Add `entries` to the table, in the place of those about the same problem; return the table's path.

    Another process may do the same at any time: neither loses what the other stores. A damaged table is kept
    beside the new one, with the suffix ".damaged".

    Raises:
        ConvswapError: the file cannot be written.
    """
    with _only_writer() as path:
        present, damage = read_table()
        if damage:
            with contextlib.suppress(OSError):  # it may not even be readable
                shutil.copyfile(path, path.with_name(f"{path.name}.damaged"))
        merged = {(entry.device, entry.version, entry.problem): entry for entry in (*present, *entries)}
        lines = [merged[key].line() for key in sorted(merged)]
        write_text(path, "\n".join([_native.tuning_header, *_COMMENTS, *lines]) + "\n")
    return table_path()


@contextlib.contextmanager
def _only_writer() -> Iterator[Path]:
    """Give the table's path, and hold its lock, which the system releases even if the process is killed."""
    path = resolve_link(table_path())  # what a link leads to is locked, and replaced
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_keep(error) from None
    check_writable(path)
    if path.exists() and not path.is_file():
        raise ConvswapError(f"cannot keep the tuning table at '{path}': it is no regular file; name another")
    try:
        with path.with_name(f"{path.name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path
    except OSError as error:
        raise _cannot_keep(error) from None


def _cannot_keep(error: OSError) -> ConvswapError:
    return ConvswapError(
        f"cannot keep the tuning table at '{table_path()}': {error.strerror}; "
        "set CONVSWAP_TUNING to the path of a file that can be written"
    )


def _digits(milliseconds: float) -> str:
    """Return a time with four significant digits, never in the notation with an exponent."""
    return np.format_float_positional(milliseconds, precision=4, fractional=False, trim="-")
