"""The choice of the device that models run on, and facts about the device and its software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from convswap import _native
from convswap.errors import ConvswapError, unknown_name
from convswap.output.tables import versions_line
from convswap.runtime.cards import cuda_cards, driver_of, why_no_card

DEVICES = ("cuda", "cpu")
PROVIDERS = {"cuda": "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


@dataclass(frozen=True)
class Device:
    """The device in use: its name, the reason for the choice, and the attributes of the card if it is one."""

    name: str
    reason: str
    card: Mapping[str, Any] | None = None

    @property
    def provider(self) -> str:
        """The execution provider of ONNX Runtime that runs on this device."""
        return PROVIDERS[self.name]

    @property
    def title(self) -> str:
        """The name of the card or of the processor."""
        return str(self.card["name"]) if self.card is not None else _processor()


def choose_device(name: str | None = None) -> Device:
    """Return the device called `name`; for None the GPU if nothing that it needs is missing, else the CPU.

    Raises:
        ConvswapError: there is no such device, or something that the GPU needs is missing.
    """
    if name is not None and name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    if name == "cpu":
        return Device("cpu", "asked for")
    missing = _missing_for_cuda()
    if missing and name == "cuda":
        raise ConvswapError(
            f"device cuda cannot be used: {missing}; use --device cpu, or see `convswap doctor`"
        )
    if missing:
        return Device("cpu", missing)
    reason = "asked for" if name == "cuda" else "the default where there is a card"
    return Device("cuda", reason, cuda_cards(_native)[0])


def absent_card(compute_capability: int) -> Device:
    """Return a typical card of a compute capability (90 for 9.0), for planning only."""
    name = f"a typical card of compute capability {compute_capability / 10:.1f}"
    return Device("cuda", "planned for, not here", {"name": name, "compute_capability": compute_capability})


def environment(device: Device) -> dict[str, str | None]:
    """Return the card, the driver and the versions for a result; None for those not in use."""
    card = device.card or {}
    return {
        "card": device.title if device.card is not None else None,
        "processor": _processor(),
        "driver": None if device.card is None else driver_of(device.card),
        "cuda": None if device.card is None else _cuda_version(card),
        "onnxruntime": onnxruntime.__version__,
        "convswap": convswap_version(),
    }


def convswap_version() -> str:
    """Return the version of the installed package."""
    try:
        return importlib.metadata.version("convswap")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cuda_version(card: Mapping[str, Any]) -> str | None:
    """Return the version of the CUDA that compiles kernels; the driver's if there is no compiler."""
    return _text(_native.kernel_compiler().get("version") or card.get("driver_cuda"))


def _missing_for_cuda() -> str:
    """Return the first thing that the GPU needs and that is missing; "" if nothing is missing."""
    if PROVIDERS["cuda"] not in onnxruntime.get_available_providers():
        return "onnxruntime has no CUDA provider"
    return why_no_card(_native)


def _processor() -> str:
    cores = os.cpu_count() or 1
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {cores} threads"


def _text(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def device_lines(device: Device) -> str:
    """Return the line of versions and, if the CPU was chosen unasked, a line with the reason."""
    lines = versions_line(environment(device), device.title)
    if device.name == "cpu" and device.reason != "asked for":
        lines += f"\non the CPU, against the default CPU provider: {device.reason}"
    return lines
