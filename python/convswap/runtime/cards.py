"""Facts about the machine's cards from CUDA and the driver, either of which may be missing or fail."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from convswap.errors import ConvswapError

# The version file of the driver's kernel module, for machines without nvidia-smi, such as many containers.
DRIVER_FILE = Path("/proc/driver/nvidia/version")
# Compute capabilities that kernels are compiled for: 7.5, the oldest, up to what a card may have one day.
_CAPABILITIES = range(75, 200)


def as_capability(value: int | float | str, name: str = "compute capability") -> int:
    """Return 90 for 90, 9.0, "9.0" and "90"; raise ConvswapError if it is none from 7.5 on."""
    match = re.fullmatch(r"(\d{1,2})\.?(\d)", str(value))
    if match is None:
        raise ConvswapError(f"{name} {value!r}: expected one such as 8.0 or 9.0")
    capability = int(match[1] + match[2])
    if capability not in _CAPABILITIES:
        raise ConvswapError(f"{name} {capability / 10:.1f}: expected one from 7.5 on, such as 9.0")
    return capability


def cuda_cards(native: ModuleType | None) -> list[Mapping[str, Any]]:
    """Return `convswap._native.cuda_devices()`; an empty list without `native`.

    Raises ConvswapError if CUDA fails.
    """
    if native is None:
        return []
    try:
        return list(native.cuda_devices())
    except RuntimeError as error:
        raise ConvswapError(" ".join(str(error).split())) from error


def why_no_card(native: ModuleType) -> str:
    """Return why CUDA can use no card; "" if it can use one."""
    try:
        if cuda_cards(native):
            return ""
    except ConvswapError as error:
        return str(error)
    if driver_version() is None:
        return "no NVIDIA card or driver was found"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES={hidden!r} hides every card: unset it"
    return "CUDA sees no card: the driver is older than CUDA 12; install a newer driver"


def driver_of(card: Mapping[str, Any]) -> str | None:
    """Return the driver's version, else its CUDA version in `card`; None if neither is known."""
    return driver_version() or (f"for CUDA {card['driver_cuda']}" if card.get("driver_cuda") else None)


def driver_version() -> str | None:
    """Return the driver's version, such as "580.65.06"; None if it cannot be found."""
    return _first_version(nvidia_smi("driver_version") or "") or _first_version(_driver_file())


def nvidia_smi(query: str) -> str | None:
    """Return nvidia-smi's answer to `query`, a line of CSV for each card; None if nvidia-smi fails."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _driver_file() -> str:
    try:
        return DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _first_version(text: str) -> str | None:
    # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", or the number alone.
    match = re.search(r"\b\d+(\.\d+)+\b", text)
    return None if match is None else match[0]
