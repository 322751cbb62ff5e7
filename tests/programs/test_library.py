"""The op library as a file: its exports, its dependencies, and its status in an old ONNX Runtime."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import convswap
import onnxruntime
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime import library
from convswap.runtime.library import library_path, register

# Libraries of every Linux system that runs C++ programs. No CUDA, cuDNN, cuBLAS, driver or ONNX Runtime.
SYSTEM_LIBRARIES = {
    "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libpthread.so.0", "librt.so.1",
    "libdl.so.2", "ld-linux-x86-64.so.2",
}  # fmt: skip

API_VERSION = 17


def output_of(program: str, *arguments: object) -> str:
    """Return the output of one of the binutils; skip the test if it is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; it comes with binutils")
    command = [program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_library_lies_inside_the_installed_package():
    path = library_path()
    assert path.name == "libconvswap.so"
    assert path.is_file()
    assert path.parent == Path(convswap.__file__).parent


def test_library_exports_register_custom_ops_and_nothing_else():
    lines = output_of("nm", "-D", "--defined-only", library_path()).splitlines()
    assert [line.split()[-1] for line in lines] == ["RegisterCustomOps"]


@pytest.mark.parametrize("path", [library_path(), Path(_native.__file__)], ids=lambda path: path.name)
def test_library_needs_nothing_but_the_system(path):
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "-d", path)))
    assert "libc.so.6" in needed
    assert needed <= SYSTEM_LIBRARIES


@pytest.mark.parametrize("path", [library_path(), Path(_native.__file__)], ids=lambda path: path.name)
def test_library_takes_no_symbol_from_onnx_runtime_or_cuda(path):
    undefined_symbols = output_of("nm", "-D", "--undefined-only", path)
    assert not re.search(r"\b(Ort|cuda|cudnn|cublas|cu[A-Z])\w*", undefined_symbols)


@pytest.mark.parametrize("path", [library_path(), Path(_native.__file__)], ids=lambda path: path.name)
def test_library_carries_no_path_of_the_machine_that_built_it(path):
    assert "RUNPATH" not in output_of("readelf", "-d", path)
    assert "RPATH" not in output_of("readelf", "-d", path)


def test_library_loads_on_its_own_with_every_symbol_resolved_and_no_card():
    """In a process without ONNX Runtime and without a visible card."""
    program = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW).RegisterCustomOps"
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    environment["CUDA_VISIBLE_DEVICES"] = ""
    ended = subprocess.run(
        [sys.executable, "-c", program, str(library_path())],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


def test_package_imports_and_computes_with_no_card():
    program = (
        "import numpy; from convswap import _native; assert _native.cuda_devices() == []; "
        "y = _native.conv(numpy.ones((1, 1, 3), 'f'), numpy.ones((1, 1, 2), 'f')); "
        "assert y.tolist() == [[[2, 2]]]"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr


class OrtApiBase(ctypes.Structure):
    """The table that ONNX Runtime passes to `RegisterCustomOps`."""

    get_api_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    get_version_type = ctypes.CFUNCTYPE(ctypes.c_void_p)
    _fields_ = (("GetApi", get_api_type), ("GetVersionString", get_version_type))


def test_too_old_onnx_runtime_is_refused_with_both_versions():
    """An ONNX Runtime without API 17 returns null for it; version 1 of the API begins with CreateStatus."""
    create_status_type = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    requested_versions: list[int] = []
    statuses: list[tuple[int, str]] = []
    token = 0x5A5A

    @create_status_type
    def create_status(code: int, message: bytes) -> int:
        statuses.append((code, message.decode()))
        return token

    oldest = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))

    @OrtApiBase.get_api_type
    def get_api(version: int) -> int | None:
        requested_versions.append(version)
        return ctypes.addressof(oldest) if version <= 16 else None

    version_text = ctypes.create_string_buffer(b"1.16.3")
    base = OrtApiBase(get_api, OrtApiBase.get_version_type(lambda: ctypes.addressof(version_text)))
    register_custom_ops = ctypes.CDLL(str(library_path())).RegisterCustomOps
    register_custom_ops.restype = ctypes.c_void_p
    register_custom_ops.argtypes = (ctypes.c_void_p, ctypes.POINTER(OrtApiBase))
    assert register_custom_ops(None, ctypes.byref(base)) == token
    assert requested_versions[0] == API_VERSION
    [(code, message)] = statuses
    assert code != 0
    assert "\n" not in message
    assert "1.17 or newer" in message
    assert "1.16.3" in message
    assert "install a newer onnxruntime" in message


def test_registering_twice_in_one_options_object_is_safe():
    options = onnxruntime.SessionOptions()
    register(options)
    register(options)


def test_missing_library_is_named_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "INSTALLED", tmp_path)
    with pytest.raises(ConvswapError) as raised:
        register(onnxruntime.SessionOptions())
    assert str(tmp_path / "libconvswap.so") in str(raised.value)
    assert "pip install ." in str(raised.value)


def test_library_that_cannot_be_loaded_is_one_clear_line(monkeypatch, tmp_path):
    (tmp_path / "libconvswap.so").write_bytes(b"not a library")
    monkeypatch.setattr(library, "INSTALLED", tmp_path)
    with pytest.raises(ConvswapError, match=r"^ONNX Runtime did not load libconvswap.so: .*") as raised:
        register(onnxruntime.SessionOptions())
    assert len(str(raised.value).splitlines()) == 1


def test_module_says_how_it_was_built():
    module = importlib.import_module("convswap._native")
    assert re.fullmatch(r"\d+\.\d+\.\d+", module.__version__)
    assert {"direct", "reference"} <= {entry.name for entry in module.catalog()}
    assert {entry.device for entry in module.catalog()} == {"cpu", "cuda"}
    assert module.direct_instruction_sets()[-1] == "baseline"
