"""Files of other formats are named by their format; ONNX models are never mistaken for them."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile

import convswap
import numpy as np
import onnx
import pytest
from convswap.comparison.compare import compare
from convswap.errors import ConvswapError
from convswap.graph.model_file import load_model
from onnx import TensorProto, helper
from refused import refused


def model(**fields: str) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 4, 4]) for name in "xwy"]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", values[:2], values[2:])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)], **fields)


def archive() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        entry = tarfile.TarInfo("m.onnx")
        entry.size = 4
        tar.addfile(entry, io.BytesIO(b"1234"))
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as opened:
        opened.writestr("archive/data.pkl", b"1234")
    return file.getvalue()


def array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


OTHER_FORMATS = {
    "a model in ORT format; give the .onnx file that it was made from": b"\x20\0\0\0ORTM\0\0\0\0",
    "a TensorFlow Lite model; export": b"\x20\0\0\0TFL3\0\0\0\0",
    "a TensorRT engine; give the .onnx": b"ftrt\0\0\0\0\x01",
    "a safetensors file": b'\x10\0\0\0\0\0\0\0{"w":{"dtype":"F32"}}',
    "a zip archive": zipped(),
    "a Python pickle": pickle.dumps([1.0], protocol=2),
    "a gzip file; unpack it": gzip.compress(b"1234"),
    "a tar archive": archive(),
    "a NumPy array": array(),
    "an HDF5 file": b"\x89HDF\r\n\x1a\n\0\0",
    "an HTML page; download the model": b"\n\n<!DOCTYPE html>\n<html><body>404</body></html>",
    "a Git LFS pointer; download the model itself: git lfs pull": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 5\n"
    ),
    "empty; check that it was copied completely": b"",
}


@pytest.mark.parametrize("kind", OTHER_FORMATS)
def test_another_format_is_named_whatever_the_file_is_called(kind, tmp_path):
    (tmp_path / "m.onnx").write_bytes(OTHER_FORMATS[kind])
    with refused(rf"m\.onnx' is not an ONNX model: it is {kind}"):
        load_model(tmp_path / "m.onnx")


@pytest.mark.parametrize("identifier", ["ORTM", "TFL3"])
def test_onnx_model_with_an_identifier_at_its_place_is_read(identifier, tmp_path):
    content = model(producer_name=identifier).SerializeToString()
    assert content[4:8] == identifier.encode()
    (tmp_path / "m.ort").write_bytes(content)
    assert load_model(tmp_path / "m.ort").producer_name == identifier


@pytest.mark.parametrize("function", [convswap.swap, compare])
def test_model_of_another_type_is_refused_and_bytes_say_what_they_are(function):
    with pytest.raises(ConvswapError, match=r"they are a model in ORT format; .* expected a path"):
        function(b"\x20\0\0\0ORTM\0\0\0\0")
    for argument in (model().SerializeToString(), 3, io.BytesIO()):
        with pytest.raises(ConvswapError, match=f"type {type(argument).__name__} was given; expected a path"):
            function(argument)
