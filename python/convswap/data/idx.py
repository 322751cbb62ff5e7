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


def read_idx(stream: BinaryIO, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read a gzip-compressed idx file of unsigned bytes of that shape.

    `stream` gives the compressed bytes, `name` is what an error calls it. Returns a uint8 array. Memory is
    taken as the elements arrive and for no more than the shape has, whatever the header or the gzip stream
    promises. Raises ConvswapError if the file is not gzip, is damaged, has another magic number or shape, or
    holds fewer or more elements.
    """
    try:
        with gzip.GzipFile(fileobj=stream) as content:
            _check_shape(content, name, shape)
            elements = _read_elements(content, name, shape)
    except EOFError:
        raise _damaged(name, "its gzip stream is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise _damaged(name, f"its gzip stream cannot be read ({error})") from None
    return np.frombuffer(elements, np.uint8).reshape(shape)


def _damaged(name: str, reason: str) -> ConvswapError:
    return ConvswapError(f"{name} is no intact idx file: {reason}; replace it with the original")


def _check_shape(content: gzip.GzipFile, name: str, shape: tuple[int, ...]) -> None:
    dimensions = len(shape)
    expected = struct.pack(">HBB", 0, UNSIGNED_BYTE, dimensions)
    magic = content.read(4)
    if magic != expected:
        raise _damaged(name, f"its magic number is 0x{magic.hex()}, expected 0x{expected.hex()}")
    sizes = content.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise _damaged(name, f"it ends inside its header of {4 + 4 * dimensions} bytes")
    stated = struct.unpack(f">{dimensions}I", sizes)
    if stated != shape:
        raise _damaged(name, f"its header states {_times(stated)}, expected {_times(shape)}")


def _read_elements(content: gzip.GzipFile, name: str, shape: tuple[int, ...]) -> bytearray:
    stated = math.prod(shape)
    described = f"its header states {_times(shape)} = {stated} bytes"
    elements = bytearray()
    # One byte past the stated end: it shows trailing data, and makes gzip check its own checksum.
    while piece := content.read(min(PIECE_BYTES, stated + 1 - len(elements))):
        elements += piece
        if len(elements) > stated:
            raise _damaged(name, f"{described} and more follow")
    if len(elements) < stated:
        raise _damaged(name, f"{described} but {len(elements)} follow")
    return elements


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
