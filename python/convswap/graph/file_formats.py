"""Formats of models other than ONNX: what a file is by its first bytes, and ONNX Runtime's own format.

ORT format is a FlatBuffers buffer; onnxruntime/core/flatbuffers/schema/ort.fbs names its tables. From version
5 on a file says by which names the kernels of its ops know their types: `T` for ONNX's Conv. ONNX Runtime
asks the file alone, so no kernel of a custom op that overrides an op of the file is found: its types are
`Input0`, `Output0` (KernelTypeStrResolver::ResolveKernelTypeStr). For a file before version 5, which says
nothing of that, a full build from 1.14 on asks the ops as they are registered, custom ops among them
(docs/ORT_Format_Update_in_1.13.md in its repository).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# As many bytes as the signatures need: that of a tar archive lies at 257.
_HEAD_BYTES = 512

_ORT_IDENTIFIER = b"ORTM"
_BEFORE_KERNEL_TYPES = b"4"

# What reading a damaged buffer raises.
DAMAGED = (struct.error, IndexError, UnicodeDecodeError, RecursionError)


class _Signature(NamedTuple):
    at: int
    begins: bytes
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
# Of text, which may begin with a mark or with spaces, and in capitals.
_TEXT_BEGINS = b"\xef\xbb\xbf \t\r\n"


def head_of(source: str | os.PathLike[str] | bytes) -> bytes:
    """Return the first bytes of a model; none of a file that cannot be read."""
    if isinstance(source, bytes):
        return source[:_HEAD_BYTES]
    try:
        with Path(source).open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""


def what_else(head: bytes) -> str | None:
    """Return what a file that begins with `head` is, and what to do, in words that follow "it is".

    None where no signature tells. An ONNX model may by chance have one of those that are not at its
    beginning, so ask only of a file that could not be read as one.
    """
    if not head:
        return "empty; check that it was copied completely"
    text = head.lstrip(_TEXT_BEGINS).lower()
    for at, begins, kind, advice in _SIGNATURES:
        if head[at:].startswith(begins) or (begins.startswith(b"<") and text.startswith(begins)):
            return f"{kind}; {advice}"
    return None


class OrtNode(NamedTuple):
    """A node of a model in ORT format, with the provider that it was saved for."""

    name: str
    domain: str
    op_type: str
    ep_name: str


def is_ort_format(source: bytes) -> bool:
    """Return whether `source` begins as a model in ORT format does."""
    return source[4:8] == _ORT_IDENTIFIER


def nodes_of(source: bytes) -> Iterator[OrtNode]:
    """Yield the nodes of the model in ORT format `source`, those of subgraphs too; raise one of `DAMAGED`."""
    model = _root(source).table(1)
    graph = None if model is None else model.table(7)
    waiting = [] if graph is None else [graph]
    while waiting:
        for node in waiting.pop().tables(2):
            yield OrtNode(node.text(0), node.text(2), node.text(5), node.text(7))
            for attribute in node.tables(10):
                inner = attribute.table(7)
                waiting += [] if inner is None else [inner]
                waiting += attribute.tables(12)


def with_types_of_registered_ops(source: bytes) -> bytes:
    """Return `source` as a file before version 5, so that kernels of overriding custom ops are found.

    Raise one of `DAMAGED`.
    """
    root = _root(source)
    if root.field(3) is None:
        return source
    changed = bytearray(source)
    changed += bytes(-len(changed) % 4)
    # Tables and strings may be shared, so the root gets its own: fields up to the model, and a version.
    vtable = len(changed)
    changed += struct.pack("<4H", 8, *struct.unpack_from("<3H", source, root.vtable + 2))
    version = len(changed)
    changed += struct.pack("<I4s", len(_BEFORE_KERNEL_TYPES), _BEFORE_KERNEL_TYPES)
    struct.pack_into("<i", changed, root.start, root.start - vtable)
    held = root.field(0)
    if held is not None:
        struct.pack_into("<I", changed, held, version - held)
    return bytes(changed)


@dataclass(frozen=True)
class _Table:
    """A table of a FlatBuffers buffer, with its fields by their number in the schema."""

    buffer: bytes
    start: int

    @property
    def vtable(self) -> int:
        return self.start - int(struct.unpack_from("<i", self.buffer, self.start)[0])

    def field(self, number: int) -> int | None:
        """Return where the field is; None where it is absent."""
        entry = 4 + 2 * number
        if entry >= struct.unpack_from("<H", self.buffer, self.vtable)[0]:
            return None
        offset = struct.unpack_from("<H", self.buffer, self.vtable + entry)[0]
        return self.start + int(offset) if offset else None

    def table(self, number: int) -> _Table | None:
        place = self.field(number)
        return None if place is None else _Table(self.buffer, _target(self.buffer, place))

    def tables(self, number: int) -> Iterator[_Table]:
        place = self.field(number)
        if place is not None:
            vector = _target(self.buffer, place)
            for index in range(struct.unpack_from("<I", self.buffer, vector)[0]):
                yield _Table(self.buffer, _target(self.buffer, vector + 4 + 4 * index))

    def text(self, number: int) -> str:
        place = self.field(number)
        if place is None:
            return ""
        start = _target(self.buffer, place)
        length = struct.unpack_from("<I", self.buffer, start)[0]
        return self.buffer[start + 4 : start + 4 + length].decode()


def _root(source: bytes) -> _Table:
    return _Table(source, _target(source, 0))


def _target(buffer: bytes, place: int) -> int:
    """Return what the offset at `place` leads to."""
    return place + int(struct.unpack_from("<I", buffer, place)[0])
