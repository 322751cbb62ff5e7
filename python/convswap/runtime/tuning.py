"""The user's tuning table: measurements of `convswap tune` for nodes whose algorithm is "tuned".

The planner reads the table itself; custom_op/plan/tuning.h describes the format. This module writes it, one
writer at a time, and never leaves a partial file.
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
    '# Measurements of `convswap tune`, for nodes whose algorithm is "tuned". Delete a line to forget it.',
    "# device | convswap version | problem | fastest algorithm | milliseconds of each",
)


@dataclass(frozen=True)
class TuningEntry:
    """A line of the table: a problem on a device, the fastest algorithm, and the milliseconds of each.

    `device` is a name of `_native.tuning_device`, `problem` a `Problem.text`; `algorithm` is a key of
    `milliseconds`.
    """

    device: str
    version: str
    problem: str
    algorithm: str
    milliseconds: Mapping[str, float]

    @classmethod
    def measured(
        cls, device: str, problem: str, algorithm: str, milliseconds: Mapping[str, float]
    ) -> TuningEntry:
        """Return the entry of a measurement by this version on "cpu" or "cuda"."""
        return cls(_native.tuning_device(device), _native.__version__, problem, algorithm, milliseconds)

    def line(self) -> str:
        """Return the entry as the planner reads it, without the line feed."""
        times = sorted(self.milliseconds.items(), key=lambda item: item[1])
        listed = ", ".join(f"{name} {_digits(value)}" for name, value in times)
        return " | ".join([self.device, self.version, self.problem, self.algorithm, listed])


def table_path() -> Path:
    """Return the path of the table, which may not exist: $CONVSWAP_TUNING, else in the user's cache folder.

    Raises ConvswapError if there is no home folder.
    """
    return Path(_native.tuning_path())


def read_table() -> tuple[list[TuningEntry], str]:
    """Return the valid lines of the table, and a description of the damage, "" if there is none."""
    lines, damage = _native.read_tuning_table()
    return [TuningEntry(*line) for line in lines], damage


def check_storable() -> None:
    """Raise ConvswapError if nothing can be stored; for a check before long measurements."""
    with _exclusive_writer():
        pass


def store(entries: Iterable[TuningEntry]) -> Path:
    """Add `entries` to the table, replacing entries of the same problem; return the table's path.

    Another process may store entries at the same time without loss. A damaged table is copied to a file with
    the suffix ".damaged".

    Raises:
        ConvswapError: the file cannot be written.
    """
    with _exclusive_writer() as path:
        present, damage = read_table()
        if damage:
            with contextlib.suppress(OSError):  # it may not even be readable
                shutil.copyfile(path, path.with_name(f"{path.name}.damaged"))
        merged = {(entry.device, entry.version, entry.problem): entry for entry in (*present, *entries)}
        lines = [merged[key].line() for key in sorted(merged)]
        write_text(path, "\n".join([_native.tuning_header, *_COMMENTS, *lines]) + "\n")
    return table_path()


@contextlib.contextmanager
def _exclusive_writer() -> Iterator[Path]:
    """Yield the table's path while its lock is held, which the system releases if the process is killed."""
    path = resolve_link(table_path())  # the target of a link is locked and replaced, not the link
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
    """Return a time with four significant digits, without an exponent."""
    return np.format_float_positional(milliseconds, precision=4, fractional=False, trim="-")
