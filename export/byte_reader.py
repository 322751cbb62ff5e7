"""Reads the files of a checkpoint, and little-endian numbers from their bytes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

from convswap.errors import ConvswapError


def read_checkpoint_file(path: str | os.PathLike[str], expected: str, largest: int) -> bytes:
    """Return the content of the file at `path`.

    `expected` describes the file for messages, as in "an MXNet .params file". Raises ConvswapError if the
    file is missing, is not a regular file (reading a pipe could wait forever), has more than `largest` bytes,
    or cannot be read.
    """
    file = Path(path)
    try:
        if not file.exists():
            raise ConvswapError(f"no such file: {str(path)!r}; expected {expected}")
        if not file.is_file():
            kind = "a directory" if file.is_dir() else "not a regular file"
            raise ConvswapError(f"{str(path)!r} is {kind}; expected {expected}")
        size = file.stat().st_size
        if size > largest:
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


class BinaryReader:
    """Reads a file's bytes in order, from an offset that advances."""

    def __init__(self, content: bytes, path: str) -> None:
        self._content = memoryview(content)
        self.path = path
        self.offset = 0

    @property
    def remaining(self) -> int:
        """The number of bytes that have not been read."""
        return len(self._content) - self.offset

    def take(self, size: int, description: str) -> memoryview:
        """Return the next `size` bytes. `description` names them in errors."""
        if size > self.remaining:
            raise ConvswapError(
                f"{self.path!r} is cut off or damaged: {description} at byte {self.offset} takes {size} "
                f"bytes, and the file has {self.remaining} more; get it again"
            )
        self.offset += size
        return self._content[self.offset - size : self.offset]

    def numbers(self, layout: str, description: str) -> tuple[int, ...]:
        """Return the next integers, by a `layout` of the module `struct` such as "3i"."""
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}"), description))

    def unsigned_64(self, description: str) -> int:
        """Return the next unsigned 64-bit integer."""
        return self.numbers("Q", description)[0]

    def damaged(self, offset: int, found: str, expected: str) -> ConvswapError:
        """Return the error for an invalid value at `offset`."""
        return ConvswapError(
            f"{self.path!r} is damaged at byte {offset}: found {found}, expected {expected}; get it again"
        )
