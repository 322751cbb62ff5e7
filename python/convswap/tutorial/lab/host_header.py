"""The emulation's header, compiled once: each kernel then takes less than half the time of g++.

It is kept beside the compiled kernels. Where it cannot be kept, or does not fit, g++ reads the header itself.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from convswap import _native
from convswap.runtime import library

_HEADER = library.INSTALLED / "emulation" / "cuda_emulation.h"
_MOST_SECONDS = 60


def precompiled_header(compiler: str, options: Sequence[str]) -> Path | None:
    """Return a folder to look for headers in first, or None where there is none."""
    kept = _native.kernel_store()["folder"]
    # Another compiler has another format, and none of its own name.
    if not kept or Path(compiler).name != "g++":
        return None
    folder = Path(kept).parent / "emulation" / _key(compiler, options)
    compiled = folder / f"{_HEADER.name}.gch"
    try:
        if not compiled.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _compile(compiler, options, compiled)
    except (OSError, subprocess.SubprocessError):
        return None
    return folder


def _key(compiler: str, options: Sequence[str]) -> str:
    facts = Path(compiler).resolve().stat()
    parts = [
        compiler,
        str(facts.st_size),
        str(facts.st_mtime_ns),
        *options,
        _HEADER.read_text(encoding="utf-8"),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, options: Sequence[str], target: Path) -> None:
    # Whole or not at all, also where several do so at once.
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        part = Path(name) / target.name
        command = [compiler, *options, "-x", "c++-header", str(_HEADER), "-o", str(part)]
        subprocess.run(
            command, check=True, capture_output=True, timeout=_MOST_SECONDS, stdin=subprocess.DEVNULL
        )
        part.replace(target)
