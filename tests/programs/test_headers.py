"""Each header of the library includes what it needs.

The compiler shows it of those that a source file includes first, where ccache is found; elsewhere CMake has
the standard headers compiled once for all of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from build_tools import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.extended]

SOURCES = REPOSITORY / "custom_op"
COMPILER = shutil.which(os.environ.get("CXX", "g++"))


def headers() -> list[Path]:
    """Return the headers that no source file includes first, but for the emulation's lists of instances."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.cc"))
    first = {found[1] for text in texts if (found := re.search(r'^#include "(.+)"', text, re.MULTILINE))}
    return [
        path
        for path in sorted(SOURCES.rglob("*.h"))
        if str(path.relative_to(SOURCES)) not in first and path.parent.name != "instances"
    ]


def error_in(header: Path) -> str:
    assert COMPILER is not None
    command = [COMPILER, "-std=c++20", "-fsyntax-only", f"-I{SOURCES}", "-x", "c++", "-"]
    program = f'#include "{header}"\n'
    return subprocess.run(command, input=program, capture_output=True, text=True, check=False).stderr


@pytest.mark.skipif(COMPILER is None, reason="there is no g++")
def test_a_header_compiles_alone() -> None:
    alone = headers()
    assert len(alone) > 40
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = dict(zip(alone, pool.map(error_in, alone), strict=True))
    assert {str(header): error for header, error in errors.items() if error} == {}
