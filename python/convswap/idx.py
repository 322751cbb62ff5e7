"""The idx format of MNIST and Fashion-MNIST: a big-endian header, then unsigned bytes, gzip around both.

The format is described at http://yann.lecun.com/exdb/mnist: two zero bytes, the element type (8 is unsigned
byte), the number of dimensions, one 32-bit size per dimension, the elements with the last dimension fastest.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from typing import BinaryIO

import numpy as np

from convswap.errors import ConvswapError

UNSIGNED_BYTE = 8
PIECE_BYTES = 1 << 20


def read_idx(stream: BinaryIO, name: str, dimensions: int) -> np.ndarray:
    """Read a gzip-compressed idx file of unsigned bytes with that many dimensions.

    `stream` gives the compressed bytes, `name` is what an error calls it. Returns a uint8 array of the shape
    that the header states. Memory is taken as the elements arrive, so a header that promises more than the
    stream holds costs nothing. Raises ConvswapError if the file is not gzip, is damaged, has another magic
    number or number of dimensions, or holds fewer or more elements than its header states.
    """
    try:
        with gzip.GzipFile(fileobj=stream) as content:
            shape = _read_shape(content, name, dimensions)
            elements = _read_elements(content, name, shape)
    except EOFError:
        raise _damaged(name, "its gzip stream is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(name, f"its gzip stream cannot be read ({error})") from None
    return np.frombuffer(elements, np.uint8).reshape(shape)


def _damaged(name: str, reason: str) -> ConvswapError:
    return ConvswapError(f"{name} is no intact idx file: {reason}; replace it with the original")


def _read_shape(content: gzip.GzipFile, name: str, dimensions: int) -> tuple[int, ...]:
    expected = struct.pack(">HBB", 0, UNSIGNED_BYTE, dimensions)
    magic = content.read(4)
    if magic != expected:
        raise _damaged(name, f"its magic number is 0x{magic.hex()}, expected 0x{expected.hex()}")
    sizes = content.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise _damaged(name, f"it ends inside its header of {4 + 4 * dimensions} bytes")
    return struct.unpack(f">{dimensions}I", sizes)


def _read_elements(content: gzip.GzipFile, name: str, shape: tuple[int, ...]) -> bytearray:
    stated = math.prod(shape)
    described = f"its header states {' x '.join(map(str, shape))} = {stated} bytes"
    elements = bytearray()
    # One byte past the stated end: it shows trailing data, and makes gzip check its own checksum.
    while piece := content.read(min(PIECE_BYTES, stated + 1 - len(elements))):
        elements += piece
        if len(elements) > stated:
            raise _damaged(name, f"{described} and more follow")
    if len(elements) < stated:
        raise _damaged(name, f"{described} but {len(elements)} follow")
    return elements
