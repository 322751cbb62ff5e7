"""Reads little-endian numbers from the bytes of a checkpoint, and says where one is cut off or damaged."""

from __future__ import annotations

import struct

from convswap.errors import ConvswapError


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
