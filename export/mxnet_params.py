"""Reads the arrays of an MXNet `.params` file.

The format, little-endian: u64 0x112, u64 0, u64 number of arrays; the arrays; u64 number of names; for each
name u64 length and the bytes. An array in the newest of three layouts: u32 0xF993FAC9, i32 storage type (0,
dense), u32 number of dimensions, i64 per dimension, i32 device type, i32 device, i32 element type, the
elements. The second layout has the magic number 0xF993FAC8 and no storage type. The oldest layout has no
magic number, and u32 dimensions. In all layouts an array with 0 dimensions ends after their number.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

import numpy as np
from convswap.errors import ConvswapError
from convswap.export.byte_reader import BinaryReader, read_checkpoint_file
from numpy.typing import NDArray

# The arrays become part of one ONNX file, and protobuf's limit is 2 GiB.
LARGEST_FILE = 2_000_000_000
FILE_MAGIC = 0x112
MAGIC_WITH_STORAGE_TYPE = 0xF993FAC9
MAGIC_WITH_WIDE_DIMENSIONS = 0xF993FAC8
# MXNet's limit. The oldest layout begins with the number of dimensions; a larger number means damage.
MOST_DIMENSIONS = 32
ELEMENT_TYPES: dict[int, np.dtype[Any]] = {
    0: np.dtype("<f4"),
    1: np.dtype("<f8"),
    2: np.dtype("<f2"),
    3: np.dtype("u1"),
    4: np.dtype("<i4"),
    5: np.dtype("i1"),
    6: np.dtype("<i8"),
}


def read_params(path: str | os.PathLike[str]) -> dict[str, NDArray[np.float32]]:
    """Return the arrays in the file at `path` by name, without `arg:` and `aux:`, converted to float32.

    Sizes are checked against the rest of the file before memory is allocated.
    Raises ConvswapError if the file cannot be read, is cut off (with the byte), or has another format.
    """
    reader = BinaryReader(read_checkpoint_file(path, "an MXNet .params file", LARGEST_FILE), str(path))
    magic = reader.unsigned_64("the file's magic number")
    if magic != FILE_MAGIC:
        raise ConvswapError(
            f"{str(path)!r} is not an MXNet .params file: it begins with {magic:#x}, expected {FILE_MAGIC:#x}"
        )
    reader.take(8, "the reserved field")
    count = reader.unsigned_64("the number of arrays")
    arrays: list[NDArray[np.float32]] = []
    # A damaged count is harmless: the smallest array has 4 bytes, so the loop ends with the file.
    while len(arrays) < count:
        arrays.append(_read_array(reader, len(arrays) + 1))
    names = _read_names(reader, count)
    if reader.remaining:
        raise ConvswapError(
            f"{str(path)!r} goes on for {reader.remaining} bytes after its last name, at byte "
            f"{reader.offset}; expected the end: it is damaged, get it again"
        )
    return dict(zip(names, arrays, strict=True))


def _read_array(reader: BinaryReader, number: int) -> NDArray[np.float32]:
    shape = _read_shape(reader, number)
    if not shape:
        return np.zeros(0, np.float32)
    _, _, element_type = reader.numbers("3i", f"the type of array {number}")
    if element_type not in ELEMENT_TYPES:
        known = ", ".join(f"{key} ({kind.name})" for key, kind in ELEMENT_TYPES.items())
        raise reader.damaged(
            reader.offset - 4, f"element type {element_type} in array {number}", f"one of {known}"
        )
    kind = ELEMENT_TYPES[element_type]
    data = reader.take(math.prod(shape) * kind.itemsize, f"the data of array {number}")
    try:
        with np.errstate(over="raise"):
            return np.frombuffer(data, kind).astype(np.float32).reshape(shape)
    except FloatingPointError as error:
        raise ConvswapError(
            f"array {number} of {reader.path!r} holds values beyond the range of float32; expected weights "
            "of a network that runs in float32"
        ) from error


def _read_shape(reader: BinaryReader, number: int) -> tuple[int, ...]:
    start = reader.offset
    (first,) = reader.numbers("I", f"the beginning of array {number}")
    dimension = "q"
    if first == MAGIC_WITH_STORAGE_TYPE:
        (storage,) = reader.numbers("i", f"the storage type of array {number}")
        if storage != 0:
            raise reader.damaged(
                reader.offset - 4, f"storage type {storage} in array {number}", "0, a dense array"
            )
        (dimensions,) = reader.numbers("I", f"the dimensions of array {number}")
    elif first == MAGIC_WITH_WIDE_DIMENSIONS:
        (dimensions,) = reader.numbers("I", f"the dimensions of array {number}")
    else:
        dimensions, dimension = first, "I"
        if dimensions > MOST_DIMENSIONS:
            raise reader.damaged(
                start,
                f"{first:#x} where array {number} begins",
                f"{MAGIC_WITH_STORAGE_TYPE:#x}, {MAGIC_WITH_WIDE_DIMENSIONS:#x} or a number of dimensions",
            )
    if dimensions > MOST_DIMENSIONS:
        raise reader.damaged(
            reader.offset - 4, f"{dimensions} dimensions in array {number}", f"at most {MOST_DIMENSIONS}"
        )
    shape = reader.numbers(f"{dimensions}{dimension}", f"the shape of array {number}")
    if shape and min(shape) < 1:
        raise reader.damaged(start, f"the shape {shape} in array {number}", "positive sizes")
    return shape


def _read_names(reader: BinaryReader, arrays: int) -> list[str]:
    count = reader.unsigned_64("the number of names")
    if count != arrays:
        raise reader.damaged(reader.offset - 8, f"{count} names", f"{arrays}, one for each array")
    names: list[str] = []
    for number in range(1, count + 1):
        length = reader.unsigned_64(f"the length of name {number}")
        start = reader.offset
        content = bytes(reader.take(length, f"name {number}"))
        try:
            name = content.decode()
        except UnicodeDecodeError as error:
            raise reader.damaged(start, f"{content[:40]!r} as name {number}", "text in UTF-8") from error
        names.append(name.removeprefix("arg:").removeprefix("aux:"))
    if len(set(names)) < count:
        twice = Counter(names).most_common(1)[0][0]
        raise ConvswapError(f"{reader.path!r} holds two arrays named {twice!r}; expected one of each name")
    return names
