"""Model formats other than ONNX: identification of a file by its first bytes, and ONNX Runtime's ORT format.

An ORT format model is a FlatBuffers buffer; onnxruntime/core/flatbuffers/schema/ort.fbs defines its tables.
From version 5 on, a file contains the names of the type constraints of its ops' kernels: `T` for ONNX's Conv.
ONNX Runtime reads only these, so it finds no kernel of a custom op that overrides an op of the file: the
type constraints of a custom op are `Input0` and `Output0` (KernelTypeStrResolver::ResolveKernelTypeStr).
Files before version 5 lack these names. For them a full build of ONNX Runtime, from 1.14 on, uses the
registered ops, custom ops included (docs/ORT_Format_Update_in_1.13.md in its repository).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# Enough bytes for all signatures; that of a tar archive is at offset 257.
_HEAD_BYTES = 512

_ORT_IDENTIFIER = b"ORTM"
_VERSION_WITHOUT_KERNEL_TYPES = b"4"

# Errors that reading a damaged buffer raises.
DAMAGED_ERRORS = (struct.error, IndexError, UnicodeDecodeError, RecursionError)


class _Signature(NamedTuple):
    offset: int
    signature: bytes
    kind: str
    advice: str


_UNPACK = "unpack it and give the .onnx file in it"
_EXPORT = "export the model to ONNX"
_DOWNLOAD = "download the model itself"
_SIGNATURES = (
    _Signature(4, _ORT_IDENTIFIER, "a model in ORT format", "give the .onnx file that it was made from"),
    _Signature(4, b"TFL3", "a TensorFlow Lite model", _EXPORT),
    _Signature(0, b"ftrt", "a TensorRT engine", "give the .onnx file that it was built from"),
    _Signature(0, b"ptrt", "a TensorRT engine", "give the .onnx file that it was built from"),
    _Signature(0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", _EXPORT),
    _Signature(0, b"\x93NUMPY", "a NumPy array", "give the .onnx file of a model"),
    _Signature(0, b"GGUF", "a GGUF file", _EXPORT),
    _Signature(8, b'{"', "a safetensors file, which has weights only", _EXPORT),
    _Signature(0, b"PK\x03\x04", "a zip archive, as PyTorch writes too", f"{_EXPORT}, or {_UNPACK}"),
    _Signature(0, b"\x80\x02", "a Python pickle, as PyTorch writes", _EXPORT),
    _Signature(0, b"\x1f\x8b", "a gzip file", _UNPACK),
    _Signature(0, b"BZh", "a bzip2 file", _UNPACK),
    _Signature(0, b"\xfd7zXZ\x00", "an xz file", _UNPACK),
    _Signature(0, b"\x28\xb5\x2f\xfd", "a zstd file", _UNPACK),
    _Signature(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    _Signature(257, b"ustar", "a tar archive", _UNPACK),
    _Signature(0, b"version https://git-lfs", "a Git LFS pointer", f"{_DOWNLOAD}: git lfs pull"),
    _Signature(0, b"<!doctype html", "an HTML page", _DOWNLOAD),
    _Signature(0, b"<html", "an HTML page", _DOWNLOAD),
    _Signature(0, b"<?xml", "an XML file", _EXPORT),
)
# Byte order mark and white space that may precede the signature of a text format.
_TEXT_PREFIX = b"\xef\xbb\xbf \t\r\n"


def read_head(source: str | os.PathLike[str] | bytes) -> bytes:
    """Return the first bytes of a model; no bytes if the file cannot be read."""
    if isinstance(source, bytes):
        return source[:_HEAD_BYTES]
    try:
        with Path(source).open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def identify_format(head: bytes) -> str | None:
    """Return the format of a file that begins with `head` and advice, as text to follow "it is".

    Return None if no signature matches. Call this only for a file that cannot be read as an ONNX model: an
    ONNX model may by chance match a signature that is not at offset 0.
    """
    if not head:
        return "empty; check that it was copied completely"
    text = head.lstrip(_TEXT_PREFIX).lower()
    for offset, signature, kind, advice in _SIGNATURES:
        if head[offset:].startswith(signature) or (signature.startswith(b"<") and text.startswith(signature)):
            return f"{kind}; {advice}"
    return None


class OrtNode(NamedTuple):
    """A node of an ORT format model; `ep_name` is the execution provider that the node was saved for."""

    name: str
    domain: str
    op_type: str
    ep_name: str


def is_ort_format(source: bytes) -> bool:
    """Return whether `source` has the signature of an ORT format model."""
    return source[4:8] == _ORT_IDENTIFIER


def nodes_of_ort_model(source: bytes) -> Iterator[OrtNode]:
    """Yield the nodes of the ORT format model `source`, also of subgraphs.

    Raises one of `DAMAGED_ERRORS` if the buffer is damaged.
    """
    model = _root(source).table(1)
    graph = None if model is None else model.table(7)
    pending = [] if graph is None else [graph]
    while pending:
        for node in pending.pop().tables(2):
            yield OrtNode(node.text(0), node.text(2), node.text(5), node.text(7))
            for attribute in node.tables(10):
                inner = attribute.table(7)
                pending += [] if inner is None else [inner]
                pending += attribute.tables(12)


def without_kernel_types(source: bytes) -> bytes:
    """Return `source` as a file before version 5, so that kernels of overriding custom ops are found.

    Raises one of `DAMAGED_ERRORS` if the buffer is damaged.
    """
    root = _root(source)
    if root.field(3) is None:
        return source
    converted = bytearray(source)
    converted += bytes(-len(converted) % 4)
    # Tables and strings may be shared, so a new vtable for the root and a new version string are appended.
    # The vtable has the fields up to the model and leaves out the type names.
    vtable = len(converted)
    converted += struct.pack("<4H", 8, *struct.unpack_from("<3H", source, root.vtable + 2))
    version = len(converted)
    converted += struct.pack("<I4s", len(_VERSION_WITHOUT_KERNEL_TYPES), _VERSION_WITHOUT_KERNEL_TYPES)
    struct.pack_into("<i", converted, root.start, root.start - vtable)
    version_field = root.field(0)
    if version_field is not None:
        struct.pack_into("<I", converted, version_field, version - version_field)
    return bytes(converted)


@dataclass(frozen=True)
class _Table:
    """A table of a FlatBuffers buffer; fields have the numbers of the schema."""

    buffer: bytes
    start: int

    @property
    def vtable(self) -> int:
        return self.start - int(struct.unpack_from("<i", self.buffer, self.start)[0])

    def field(self, number: int) -> int | None:
        """Return the position of the field; None if it is absent."""
        entry = 4 + 2 * number
        if entry >= struct.unpack_from("<H", self.buffer, self.vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self.buffer, self.vtable + entry)[0]
        return self.start + int(offset) if offset else None

    def table(self, number: int) -> _Table | None:
        position = self.field(number)
        return None if position is None else _Table(self.buffer, _dereference(self.buffer, position))

    def tables(self, number: int) -> Iterator[_Table]:
        position = self.field(number)
        if position is not None:
            vector = _dereference(self.buffer, position)
            for index in range(struct.unpack_from("<I", self.buffer, vector)[0]):
                yield _Table(self.buffer, _dereference(self.buffer, vector + 4 + 4 * index))

    def text(self, number: int) -> str:
        position = self.field(number)
        if position is None:
            return ""
        start = _dereference(self.buffer, position)
        length = struct.unpack_from("<I", self.buffer, start)[0]
        return self.buffer[start + 4 : start + 4 + length].decode()


def _root(source: bytes) -> _Table:
    return _Table(source, _dereference(source, 0))


def _dereference(buffer: bytes, position: int) -> int:
    """Return the position that the offset at `position` points to."""
    return position + int(struct.unpack_from("<I", buffer, position)[0])
