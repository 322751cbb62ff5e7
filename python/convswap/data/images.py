"""Read image files of the idx format, and resize images as the course did.

The idx format of MNIST and Fashion-MNIST is described at http://yann.lecun.com/exdb/mnist: two zero bytes,
the element type (8 is unsigned byte), the number of dimensions, one big-endian 32-bit size per dimension, the
elements with the last dimension fastest. The file is compressed by gzip.

The course used scikit-image 0.14: `transform.resize(image / 256.0, shape, mode="constant", cval=0) * 256`,
truncated to uint8. This is bilinear interpolation with zeros outside the image, clipped to the image's range.
For M source and N output pixels, output pixel i samples the source coordinate `M/N * (i + 0.5) - 0.5`. Times
2N, this coordinate is the integer `M * (2i + 1) - N`, so both weights of a pixel are integers divided by 2N.
Integer weights make every sum exact, so truncation gives the same pixel on every machine. Rounded weights
would turn some integer results into the next lower integer (0.06 % of the pixels at 48x48).
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
READ_BYTES = 1 << 20

MAX_CHUNK_BYTES = 16 << 20


def read_idx(stream: BinaryIO, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Read a gzip-compressed idx file of unsigned bytes of the given shape as a uint8 array.

    `stream` has the compressed bytes; `name` is the file's name in errors. Memory grows as elements arrive,
    up to the size of `shape`, whatever the header or the gzip stream promises. Raises ConvswapError if the
    file is not gzip, is damaged, has another magic number or shape, or has fewer or more elements.
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
    description = f"its header states {_times(shape)} = {stated} bytes"
    elements = bytearray()
    # Reading one byte past the stated end detects trailing data, and makes gzip verify its checksum.
    while block := content.read(min(READ_BYTES, stated + 1 - len(elements))):
        elements += block
        if len(elements) > stated:
            raise _damaged(name, f"{description} and more follow")
    if len(elements) < stated:
        raise _damaged(name, f"{description} but {len(elements)} follow")
    return elements


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def interpolation_weights(source_size: int, target_size: int) -> np.ndarray:
    """Return the weights (target_size, source_size) of one axis, integers in float64.

    Row i has at most two weights, to be divided by `2 * target_size`. A weight of a pixel outside the image
    is left out, since these pixels are zero.
    """
    denominator = 2 * target_size
    positions = source_size * (2 * np.arange(target_size) + 1) - target_size
    first = positions // denominator
    toward_second = positions - first * denominator
    weights = np.zeros((target_size, source_size))
    for source, weight in ((first, denominator - toward_second), (first + 1, toward_second)):
        inside = (source >= 0) & (source < source_size)
        weights[np.flatnonzero(inside), source[inside]] = weight[inside]
    return weights


def resize_as_the_course(originals: np.ndarray, image_size: int) -> np.ndarray:
    """Resize uint8 images (n, M, M) to float32 images (n, image_size, image_size) with integer values 0..255.

    Temporary memory is bounded for any n.
    """
    count, source_size, _ = originals.shape
    resized = np.empty((count, image_size, image_size), np.float32)
    if image_size == source_size:
        resized[...] = originals
        return resized
    # Sums of at most 255 * (2 * image_size)**2, far below 2**53, are exact, so matmul may sum in any order.
    weights = interpolation_weights(source_size, image_size)
    chunk = max(1, MAX_CHUNK_BYTES // (8 * image_size**2))
    for start in range(0, count, chunk):
        pixels = originals[start : start + chunk].astype(np.float64)
        sampled = weights @ pixels @ weights.T
        sampled /= 4 * image_size**2
        lowest = pixels.min(axis=(1, 2), keepdims=True)
        highest = pixels.max(axis=(1, 2), keepdims=True)
        np.trunc(np.clip(sampled, lowest, highest, out=sampled), out=sampled)
        resized[start : start + chunk] = sampled
    return resized
