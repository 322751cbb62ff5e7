"""Writes tuning tables as text, independently of the library's own writer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from convswap import _native

# For each device, the algorithm that computes every problem and that "auto" chooses last.
FALLBACK = {"cpu": "reference", "cuda": "naive"}


def line(
    problem: str,
    algorithm: str,
    device: str,
    *,
    version: str = _native.__version__,
    device_name: str | None = None,
    milliseconds: Mapping[str, float] | None = None,
) -> str:
    """Return a line with `algorithm` as the fastest for `problem` on this machine's `device`."""
    times = ", ".join(f"{name} {value}" for name, value in (milliseconds or {algorithm: 0.5}).items())
    return " | ".join([device_name or _native.tuning_device(device), version, problem, algorithm, times])


def write(path: Path, *lines: str) -> None:
    """Write a table of `lines`."""
    path.write_text("\n".join([_native.tuning_header, *lines]) + "\n")
