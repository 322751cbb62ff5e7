"""Reads a file that a user names as part of a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from convswap.errors import ConvswapError


def read_checkpoint_file(path: str | os.PathLike[str], expected: str, largest: int | None = None) -> bytes:
    """Return the content of the file at `path`.

    `expected` says what it should be, as in "an MXNet .params file". Raises ConvswapError where there is no
    such file, it is not a regular file (a pipe could keep us waiting for ever), has more than `largest`
    bytes, or cannot be read.
    """
    file = Path(path)
    try:
        if not file.exists():
            raise ConvswapError(f"no such file: {str(path)!r}; expected {expected}")
        if not file.is_file():
            kind = "a directory" if file.is_dir() else "not a regular file"
            raise ConvswapError(f"{str(path)!r} is {kind}; expected {expected}")
        size = file.stat().st_size
        if largest is not None and size > largest:
            raise ConvswapError(
                f"{str(path)!r} has {size} bytes; expected {expected} of at most {largest}; "
                "check which file you named"
            )
        return file.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConvswapError(f"cannot read {str(path)!r}: {reason}; expected {expected}") from error
    except MemoryError as error:
        raise ConvswapError(f"{str(path)!r} does not fit in memory; expected {expected}") from error
