"""Reads a file that a user names as part of a checkpoint, and little-endian numbers from its bytes."""

from __future__ import annotations

import os
import struct
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


class BinaryReader:
    """A place in the file's bytes that moves on with what is taken."""

    def __init__(self, content: bytes, path: str) -> None:
        self._content = memoryview(content)
        self.path = path
        self.offset = 0

    @property
    def left(self) -> int:
        """How many bytes have not been taken."""
        return len(self._content) - self.offset

    def take(self, size: int, what: str) -> memoryview:
        """Return the next `size` bytes, which are `what`; raise ConvswapError where fewer are left."""
        if size > self.left:
            raise ConvswapError(
                f"{self.path!r} is cut off or damaged: {what} at byte {self.offset} takes {size} bytes, "
                f"and the file has {self.left} more; get it again"
            )
        self.offset += size
        return self._content[self.offset - size : self.offset]

    def numbers(self, layout: str, what: str) -> tuple[int, ...]:
        """Return the next whole numbers, by a `layout` of `struct` such as "3i"."""
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}"), what))

    def unsigned_64(self, what: str) -> int:
        """Return the next number, of 64 bits and without a sign."""
        return self.numbers("Q", what)[0]

    def damaged(self, offset: int, found: str, expected: str) -> ConvswapError:
        """Return the error for something at `offset` that cannot be."""
        return ConvswapError(
            f"{self.path!r} is damaged at byte {offset}: found {found}, expected {expected}; get it again"
        )
