"""ONNX Runtime's own model format (ORT format): its nodes, and how a full build finds kernels for them.

The format is a FlatBuffers buffer; onnxruntime/core/flatbuffers/schema/ort.fbs names its tables. From version
5 on a file says by which names the kernels of its ops know their types: `T` for ONNX's Conv. ONNX Runtime
asks the file alone, so no kernel of a custom op that overrides an op of the file is found: its types are
`Input0`, `Output0` (KernelTypeStrResolver::ResolveKernelTypeStr). For a file before version 5, which says
nothing of that, a full build from 1.14 on asks the ops as they are registered, custom ops among them
(docs/ORT_Format_Update_in_1.13.md in its repository).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

IDENTIFIER = b"ORTM"
_BEFORE_KERNEL_TYPES = b"4"

# What reading a damaged buffer raises.
DAMAGED = (struct.error, IndexError, UnicodeDecodeError, RecursionError)


class OrtNode(NamedTuple):
    """A node of a model in ORT format, with the provider that it was saved for."""

    name: str
    domain: str
    op_type: str
    ep_name: str


def is_ort_format(source: bytes) -> bool:
    """Return whether `source` begins as a model in ORT format does."""
    return source[4:8] == IDENTIFIER


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
