"""That tools/sanitize.sh tests what it built: a release build would pass its tests, and find nothing."""

from __future__ import annotations

import os
import re
from pathlib import Path

import onnxruntime
import pytest
from convswap import _native, register

# Where the package is whose compiled parts have the sanitizers.
FOLDER = "CONVSWAP_SANITIZED"


@pytest.mark.skipif(FOLDER not in os.environ, reason="tools/sanitize.sh runs it, on what it built")
def test_the_sanitizers_are_in_this_process_and_in_what_it_tests():
    options = onnxruntime.SessionOptions()
    register(options)  # which loads the op library
    maps = Path("/proc/self/maps").read_text()
    assert "/libasan.so" in maps and "/libubsan.so" in maps
    package = Path(os.environ[FOLDER]).resolve() / "convswap"
    ours = set(re.findall(r"(/\S*/convswap/(?:libconvswap|_native\.[^/\s]*)\.so)$", maps, re.MULTILINE))
    assert {Path(name).name for name in ours} == {"libconvswap.so", Path(_native.__file__).name}
    for name in ours:
        assert Path(name).parent == package
        assert b"__asan_" in Path(name).read_bytes() and b"__ubsan_" in Path(name).read_bytes()
