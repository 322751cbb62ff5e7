"""Runs programs with the CUDA driver of tests/fake_driver, which pretends a card and computes nothing."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from build_tools import REPOSITORY, environment_with_helpers
from convswap import _native

# 2017's first layer, which every rung of the ladder computes: the extents of x and w.
LAYER = ("2,1,28,28", "50,1,5,5")

_WHY_NO_COMPILER = _native.kernel_compiler()["why_not"]
needs_compiler = pytest.mark.skipif(bool(_WHY_NO_COMPILER), reason=_WHY_NO_COMPILER or "NVRTC is there")

SOURCE = REPOSITORY / "tests" / "fake_driver" / "driver.cc"
FOLDER = REPOSITORY / "build" / "fake_driver"


def fake_driver() -> Path:
    """Return the folder of the driver, which is built if it is missing or older than its source."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    headers = sorted((REPOSITORY / "build").glob("cp3*/cuda_header"))
    if compiler is None or not headers:
        pytest.skip("it takes g++ and the cuda.h that a build here has found")
    FOLDER.mkdir(parents=True, exist_ok=True)
    library = FOLDER / "libcuda.so.1"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
            options = ["-std=c++20", "-shared", "-fPIC", "-O1", "-I", headers[0], "-o", library, SOURCE]
            subprocess.run([compiler, *options], check=True)
    return FOLDER


def run_beside_card(
    program: str, *arguments: object, cache: Path | None = None, **settings: object
) -> subprocess.CompletedProcess[str]:
    """Run a Python program, given as text, in a process that sees the fake card.

    `cache` is the folder of its kernel store, by default the tests' store. `settings` are environment
    variables, such as FAKE_CARDS=2.
    """
    environment = environment_with_helpers()
    paths = os.pathsep.join(filter(None, [str(fake_driver()), environment.get("LD_LIBRARY_PATH", "")]))
    environment["LD_LIBRARY_PATH"] = paths
    if cache is not None:
        environment["CONVSWAP_CACHE"] = str(cache)
    environment |= {name: str(value) for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
