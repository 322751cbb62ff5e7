"""The chosen device, the reason for not using a card, and the version of its driver."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import onnxruntime
import pytest
from convswap.runtime import cards, device
from convswap.runtime.device import Device, choose_device, environment
from refused import refused

CARD = {"name": "NVIDIA H200", "compute_capability": 90, "driver_cuda": "13.0"}
NVIDIA_SMI = "#!/bin/sh\necho '580.65.06'\n"
OPEN_MODULE = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@x)\n"
CLOSED_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Return a function that creates the driver's program and file; without a call there are none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cards, "DRIVER_FILE", tmp_path / "version")

    def pretend(*, nvidia_smi: str | None = None, file: str | None = None) -> None:
        if nvidia_smi is not None:
            program = tmp_path / "nvidia-smi"
            program.write_text(nvidia_smi)
            program.chmod(0o755)
        if file is not None:
            Path(cards.DRIVER_FILE).write_text(file)

    return pretend


def pretend_cuda(monkeypatch, devices) -> None:
    """Pretend an onnxruntime with the CUDA provider, and a driver with these devices."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(device.PROVIDERS.values()))
    native = SimpleNamespace(cuda_devices=devices, kernel_compiler=lambda: {"version": "13.0"})
    monkeypatch.setattr(device, "_native", native)


def refusal() -> str:
    with refused("^device cuda cannot be used: ") as raised:
        choose_device("cuda")
    return str(raised.value)


def test_the_driver_is_what_nvidia_smi_says(driver):
    driver(nvidia_smi=NVIDIA_SMI, file=CLOSED_MODULE)
    assert environment(Device("cuda", "asked for", CARD))["driver"] == "580.65.06"


@pytest.mark.parametrize(
    ("file", "version"), [(OPEN_MODULE, "580.65.06"), (CLOSED_MODULE, "535.104.05")], ids=["open", "closed"]
)
@pytest.mark.parametrize("nvidia_smi", [None, "#!/bin/sh\nexit 9\n", "#!/bin/sh\necho '[N/A]'\n"])
def test_without_nvidia_smi_the_driver_is_what_its_own_file_says(driver, nvidia_smi, file, version):
    driver(nvidia_smi=nvidia_smi, file=file)
    assert environment(Device("cuda", "asked for", CARD))["driver"] == version


def test_with_neither_it_is_the_cuda_that_the_driver_is_for(driver):
    assert environment(Device("cuda", "asked for", CARD))["driver"] == "for CUDA 13.0"
    assert environment(Device("cpu", "asked for"))["driver"] is None


def test_the_first_card_is_chosen(driver, monkeypatch):
    pretend_cuda(monkeypatch, lambda: [CARD, {"name": "another"}])
    assert choose_device().card == CARD


def test_without_a_driver_there_is_no_card(driver, monkeypatch):
    pretend_cuda(monkeypatch, lambda: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "no NVIDIA card or driver was found" in refusal()


def test_a_hidden_card_is_not_called_missing(driver, monkeypatch):
    driver(file=OPEN_MODULE)
    pretend_cuda(monkeypatch, lambda: [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES='' hides every card: unset it" in refusal()
    assert choose_device() == Device("cpu", "CUDA_VISIBLE_DEVICES='' hides every card: unset it")


def test_a_driver_that_is_too_old_is_not_called_missing(driver, monkeypatch):
    driver(nvidia_smi=NVIDIA_SMI)
    pretend_cuda(monkeypatch, lambda: [])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert "the driver is older than CUDA 12; install a newer driver" in refusal()


def test_a_card_that_cuda_cannot_read_is_one_line(driver, monkeypatch):
    def fails():
        raise RuntimeError("cudaGetDeviceProperties(&properties, index):\n unknown error")

    pretend_cuda(monkeypatch, fails)
    reason = "cudaGetDeviceProperties(&properties, index): unknown error"
    assert refusal().startswith(f"device cuda cannot be used: {reason}; use --device cpu")
    assert choose_device() == Device("cpu", reason)
