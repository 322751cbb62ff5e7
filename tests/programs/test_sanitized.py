"""tools/sanitize.sh tests the sanitized build: a release build would pass the tests and detect nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import onnxruntime
import pytest
from convswap import _native, register

# Variable with the folder of the sanitized package.
FOLDER = "CONVSWAP_SANITIZED"


@pytest.mark.skipif(FOLDER not in os.environ, reason="only tools/sanitize.sh runs it, on its build")
def test_the_sanitizers_are_in_this_process_and_in_the_tested_package():
    options = onnxruntime.SessionOptions()
    register(options)  # loads the op library
    maps = Path("/proc/self/maps").read_text()
    assert "/libasan.so" in maps and "/libubsan.so" in maps
    package = Path(os.environ[FOLDER]).resolve() / "convswap"
    ours = set(re.findall(r"(/\S*/convswap/(?:libconvswap|_native\.[^/\s]*)\.so)$", maps, re.MULTILINE))
    assert {Path(name).name for name in ours} == {"libconvswap.so", Path(_native.__file__).name}
    for name in ours:
        assert Path(name).parent == package
        assert b"__asan_" in Path(name).read_bytes() and b"__ubsan_" in Path(name).read_bytes()
