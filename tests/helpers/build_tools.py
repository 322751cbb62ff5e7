"""Paths of the checkout, and functions that run its programs and CMake."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
BENCHMARKS = REPOSITORY / "benchmarks"
TOOLS = REPOSITORY / "tools"


def environment_with_helpers() -> dict[str, str]:
    """Return this process's environment with the helpers and tools on PYTHONPATH.

    pytest's setting of the paths applies to its own processes only.
    """
    paths = [str(Path(__file__).parent), str(TOOLS), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def cmake(
    *arguments: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run CMake, of this Python environment or the system, with `environment` added to the process's."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("cmake", path=path)
    if program is None:
        pytest.skip("there is no cmake")
    return subprocess.run(
        [program, *map(str, arguments)],
        env={**os.environ, "PATH": path, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )


def error_of(completed: subprocess.CompletedProcess[str]) -> str:
    """Return the message of CMake's first error, on one line."""
    _, _, after = completed.stderr.partition("CMake Error at ")
    _, _, message = after.partition("\n")
    lines = message.strip("\n").splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("  ")), len(lines))
    return " ".join(line.strip() for line in lines[:end])


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run benchmarks/<name>.py as a user does."""
    return subprocess.run(
        [sys.executable, REPOSITORY / "benchmarks" / f"{name}.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def write_results(file, **results):
    """Write results in the format of benchmarks/results.py: each section with the JSON of its command."""
    known = {"commit": "abcdef01", "date": "2026-11-29", "card": "a card", "driver": "1.2", "command": "c"}
    file.write_text(json.dumps({name: known | {"found": each} for name, each in results.items()}))
    return file


def script(name):
    """Return benchmarks/<name>.py as a module."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
