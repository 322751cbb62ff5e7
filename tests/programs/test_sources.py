"""Headers include what they need, and no name is defined twice in a target.

Builds other than `make dev` precompile the standard headers and compile ten files as one, which hides both
errors. The compiler of `make dev` checks only headers that a source file includes first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from build_tools import REPOSITORY

SOURCES = REPOSITORY / "custom_op"
COMPILER = shutil.which(os.environ.get("CXX", "g++"))
BUILD = (REPOSITORY / "CMakeLists.txt").read_text(encoding="utf-8")
# Sources with compile options of their own, never compiled together with others.
ALONE = {
    REPOSITORY / name
    for sources in re.findall(r"^set_source_files_properties\(([^)]*)COMPILE_OPTIONS", BUILD, re.MULTILINE)
    for name in re.findall(r"custom_op/\S+\.cc", sources)
}
ROOMS = {"core": ("conv", "plan", "cpu", "cuda"), "convswap": ("onnx",)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extended,
    pytest.mark.skipif(COMPILER is None, reason="there is no g++"),
]


def error_in(files: Iterable[Path]) -> str:
    """Return the compiler's errors for a program that includes the files."""
    fetched = {path.parent for path in (REPOSITORY / "build").rglob("onnxruntime_c_api.h")}
    folders = [SOURCES, *fetched, *(REPOSITORY / "build").glob("cp3*/cuda_header")]
    options = ["-std=c++20", "-fsyntax-only", '-DCONVSWAP_VERSION=""', *(f"-I{folder}" for folder in folders)]
    program = "".join(f'#include "{file}"\n' for file in files)
    command = [str(COMPILER), *options, "-x", "c++", "-"]
    return subprocess.run(command, input=program, capture_output=True, text=True, check=False).stderr


def test_a_header_compiles_alone() -> None:
    texts = (path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.cc"))
    included_first = {
        match[1] for text in texts if (match := re.search(r'^#include "(.+)"', text, re.MULTILINE))
    }
    # The emulation's lists of instances are no headers.
    headers = [path for path in sorted(SOURCES.rglob("*.h")) if path.parent.name != "instances"]
    unchecked = [path for path in headers if str(path.relative_to(SOURCES)) not in included_first]
    assert len(unchecked) > 40
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = dict(zip(unchecked, pool.map(lambda header: error_in([header]), unchecked), strict=True))
    assert {str(header): error for header, error in errors.items() if error} == {}


@pytest.mark.parametrize("target", ROOMS)
def test_files_of_a_target_have_no_name_for_two_things(target: str) -> None:
    files = [path for room in ROOMS[target] for path in sorted((SOURCES / room).rglob("*.cc"))]
    together = [path for path in files if path not in ALONE and path.parent.name != "ladder"]
    assert len(together) > 5
    assert error_in(together) == ""
