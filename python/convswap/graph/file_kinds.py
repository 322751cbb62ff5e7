"""What a file is that is no ONNX model, by the signature that it begins with, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

from convswap.graph.ort_format import IDENTIFIER

# As many bytes as the signatures need: that of a tar archive lies at 257.
HEAD_BYTES = 512


class _Signature(NamedTuple):
    at: int
    begins: bytes
    kind: str
    advice: str


_UNPACK = "unpack it and give the .onnx file in it"
_EXPORT = "export the model to ONNX"
_DOWNLOAD = "download the model itself"
_SIGNATURES = (
    _Signature(4, IDENTIFIER, "a model in ORT format", "give the .onnx file that it was made from"),
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
