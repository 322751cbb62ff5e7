"""`convswap doctor` finds missing parts and says how to install them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import onnxruntime
import pytest
from convswap import _native
from convswap.doctor import diagnosis as doctor
from convswap.doctor.diagnosis import Finding, all_needed_ok, diagnose, print_doctor
from printed import printed

HAS_CUDA_PROVIDER = "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def finding_of(findings: Sequence[Finding], name: str) -> Finding:
    (finding,) = [finding for finding in findings if finding.name == name]
    return finding


def pretend_cards(folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: str) -> None:
    """Put an nvidia-smi that lists these cards first in PATH."""
    program = folder / "nvidia-smi"
    program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def no_cards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cards(folder, monkeypatch)


OWN_TABLE = "fitted to an NVIDIA H200 on 2026-11-29"
STORE = {"folder": "/cache/kernels", "unused": "", "kernels": 3, "bytes": 420_000}


def native_with(*, why_no_compiler: str = "", store: dict | None = None) -> SimpleNamespace:
    """Return a stand-in for `_native` with this compiler and this kernel store."""
    compiler = {"version": "13.0", "path": "/somewhere/libnvrtc.so.13"}
    return SimpleNamespace(
        kernel_compiler=lambda: {"why_not": why_no_compiler, **({} if why_no_compiler else compiler)},
        kernel_store=lambda: {**STORE, **(store or {})},
        ready_made_kernels=lambda: [("naive::kernel<float>", 90), ("naive::kernel<float>", 80)],
        Problem=_native.Problem,
        why_not=lambda problem, algorithm, device, *, compute_capability: (
            f"too old: {compute_capability}"
            if algorithm == "few_channels" and compute_capability < 80
            else ""
        ),
        cuda_devices=lambda: [{"name": "NVIDIA H200", "cost_table": OWN_TABLE}],
        choose=lambda problem, device, *, compute_capability: "naive",
    )


def test_the_op_library_is_registered_and_computes() -> None:
    finding = finding_of(diagnose(), "op library")
    assert finding.ok is True
    assert "libconvswap.so computes on the CPU" in finding.found


def test_a_machine_with_no_card_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cards(tmp_path, monkeypatch)
    monkeypatch.delenv("CONVSWAP_DATA", raising=False)
    findings = diagnose()
    assert finding_of(findings, "card").ok is None
    assert all_needed_ok(findings)


def test_a_missing_onnxruntime_is_named_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cards(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    findings = diagnose()
    assert finding_of(findings, "onnxruntime").ok is False
    assert finding_of(findings, "onnxruntime").advice == "pip install onnxruntime"
    assert not all_needed_ok(findings)


@pytest.mark.parametrize("remnant", ["an empty folder", "a library that does not load"])
def test_an_onnxruntime_installed_halfway_is_broken_and_no_traceback(
    remnant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cards(tmp_path, monkeypatch)
    module = tmp_path / "onnxruntime"
    module.mkdir()
    if remnant == "an empty folder":
        empty = ModuleType("onnxruntime")
        empty.__path__ = [str(module)]  # as Python imports an empty folder
        monkeypatch.setitem(sys.modules, "onnxruntime", empty)
        reason = f"{module} does not hold all of it"
    else:
        reason = "libonnxruntime.so: no such file"
        (module / "__init__.py").write_text(f"raise ImportError('{reason}')")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "onnxruntime")
    findings = diagnose()
    finding = finding_of(findings, "onnxruntime")
    assert (finding.ok, finding.found) == (False, f"broken: {reason}")
    assert finding.advice.endswith("pip install onnxruntime")
    assert finding_of(findings, "op library").found.endswith("not tried without onnxruntime")


def test_a_card_that_nvidia_smi_cannot_ask_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ("NVIDIA A10, 8.6, 550.1", "[Unknown Error], [N/A], 550.1")
    pretend_cards(tmp_path, monkeypatch, *rows)
    assert finding_of(diagnose(), "card").found == "NVIDIA A10, compute capability 8.6, driver 550.1"


def test_a_card_that_cuda_cannot_read_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> list[dict[str, object]]:
        raise RuntimeError("cudaGetDeviceProperties(&properties, index): unknown error")

    native = native_with()
    native.cuda_devices = fails
    monkeypatch.setattr(doctor, "_import_native", lambda: native)
    no_cards(tmp_path, monkeypatch)
    finding = finding_of(diagnose(), "card")
    assert finding.ok is False
    assert finding.found == "cudaGetDeviceProperties(&properties, index): unknown error"
    assert "nvidia-smi" in finding.advice


def test_a_card_asks_for_the_gpu_package_of_onnxruntime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cards(tmp_path, monkeypatch, "NVIDIA H200, 9.0, 580.1")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert '"onnxruntime-gpu[cuda,cudnn]" nvidia-cublas' in finding_of(diagnose(), "onnxruntime").advice


@pytest.mark.skipif(HAS_CUDA_PROVIDER, reason="this onnxruntime has the CUDA provider")
def test_a_card_without_the_cuda_provider_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_cards(tmp_path, monkeypatch, "NVIDIA H200, 9.0, 580.1")
    finding = finding_of(diagnose(), "providers")
    assert finding.ok is False
    assert finding.advice.startswith("pip uninstall --yes onnxruntime")


def test_an_old_onnxruntime_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cards(tmp_path, monkeypatch)
    monkeypatch.setattr(onnxruntime, "__version__", "1.16.3")
    finding = finding_of(diagnose(), "onnxruntime")
    assert finding.ok is False
    assert "1.17 is needed" in finding.advice


@pytest.mark.parametrize(("in_one_folder", "ok"), [(True, False), (False, None)])
def test_two_onnxruntime_packages_are_a_finding(
    in_one_folder: bool, ok: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ONNXRUNTIME_PACKAGES", ("ort-of-test-one", "ort-of-test-two"))
    for number, package in enumerate(("ort_of_test_one", "ort_of_test_two")):
        site = tmp_path / ("site" if in_one_folder else f"site{number}")
        metadata = site / f"{package}-1.0.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        monkeypatch.syspath_prepend(site)
    finding = finding_of(diagnose(), "onnxruntime packages")
    assert finding.ok is ok
    assert "pip uninstall --yes ort-of-test-one ort-of-test-two" in finding.advice


def test_a_library_that_does_not_load_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libconvswap.so"
    broken.write_text("no library")
    monkeypatch.setattr("convswap.runtime.library.library_path", lambda: broken)
    finding = finding_of(diagnose(), "op library")
    assert finding.ok is False
    assert "ONNX Runtime did not load libconvswap.so" in finding.found
    assert "make" in finding.advice


def test_a_card_older_than_8_0_runs_naive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cards(tmp_path, monkeypatch, "Tesla T4, 7.5, 550.1", "NVIDIA A10, 8.6, 550.1")
    monkeypatch.setattr(doctor, "_import_native", lambda: native_with())
    finding = finding_of(diagnose(), "algorithms")
    assert finding.ok is None
    assert finding.found == "few_channels cannot be used: too old: 75; naive is used instead"


def test_a_card_needs_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_import_native", lambda: native_with(why_no_compiler="NVRTC was not found"))
    pretend_cards(tmp_path, monkeypatch, "NVIDIA H200, 9.0, 580.1")
    finding = finding_of(diagnose(), "kernel compiler")
    assert (finding.ok, finding.found) == (False, "NVRTC was not found")
    no_cards(tmp_path, monkeypatch)
    assert finding_of(diagnose(), "kernel compiler").ok is None
    monkeypatch.setattr(doctor, "_import_native", native_with)
    finding = finding_of(diagnose(), "kernel compiler")
    assert (finding.ok, finding.found) == (True, "NVRTC 13.0, /somewhere/libnvrtc.so.13")


def test_ready_made_kernels_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cards(tmp_path, monkeypatch)
    monkeypatch.setattr(doctor, "_import_native", native_with)
    finding = finding_of(diagnose(), "ready-made kernels")
    assert (finding.ok, finding.found) == (
        True,
        "2 beside the library, for compute capability 8.0, 9.0",
    )


@pytest.mark.parametrize(
    ("store", "ok", "expected"),
    [
        ({}, True, "/cache/kernels has 3 kernels, 0.4 MB"),
        (
            {"unused": "it is another user's"},
            None,
            "/cache/kernels is not used: it is another user's; kernels are compiled by each process",
        ),
        (
            {"folder": "", "unused": "there is no home folder"},
            None,
            "there is no home folder; kernels are compiled by each process",
        ),
    ],
    ids=["used", "not ours", "none"],
)
def test_the_kernel_store_is_reported(
    store, ok, expected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_cards(tmp_path, monkeypatch)
    monkeypatch.setattr(doctor, "_import_native", lambda: native_with(store=store))
    finding = finding_of(diagnose(), "kernel store")
    assert (finding.ok, finding.found) == (ok, expected)


def test_a_data_folder_that_is_not_there_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVSWAP_DATA", str(tmp_path / "none"))
    finding = finding_of(diagnose(), "CONVSWAP_DATA")
    assert finding.ok is False
    assert "unset CONVSWAP_DATA" in finding.advice


def test_damaged_data_are_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    for file in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (folder / file).write_bytes(b"damaged")
    monkeypatch.setenv("CONVSWAP_DATA", str(tmp_path))
    finding = finding_of(diagnose(), "fashion-mnist")
    assert finding.ok is False
    assert "truncated or altered" in finding.found


def test_data_that_are_not_here_say_where_to_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVSWAP_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    finding = finding_of(diagnose(), "fashion-mnist")
    assert finding.ok is None
    assert "t10k-images-idx3-ubyte.gz" in finding.advice and "$CONVSWAP_DATA/fashion-mnist" in finding.advice


def test_nothing_is_cut_off_in_120_columns() -> None:
    long = "a/long/path/" * 20
    findings = [
        Finding("one", False, long, "type this"),
        Finding("two", None, "short"),
        Finding("three", True, "x"),
    ]
    text = printed(print_doctor, findings)
    assert long in "".join(line.strip().removeprefix("MISSING  one").strip() for line in text.splitlines())
    assert "→ type this" in text and "To be fixed: one." in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_command_exits_with_1_where_something_needed_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "convswap.cli", "doctor"]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    missing = subprocess.run(
        command,
        env={**environment, "CONVSWAP_DATA": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert missing.returncode == 1, missing.stderr
    assert missing.stderr == ""
    assert "To be fixed: " in missing.stdout and "CONVSWAP_DATA" in missing.stdout


def pretend_driver(monkeypatch: pytest.MonkeyPatch, cuda: str) -> None:
    card = {"name": "NVIDIA H200", "compute_capability": 90, "driver_cuda": cuda, "cost_table": OWN_TABLE}
    native = native_with()
    native.cuda_devices = lambda: [card]
    monkeypatch.setattr(doctor, "_import_native", lambda: native)


def pretend_cupti(monkeypatch: pytest.MonkeyPatch, version: str | None, wrong: str = "") -> None:
    monkeypatch.setattr(doctor, "cupti_version", lambda: version)
    monkeypatch.setattr(doctor, "why_cupti_not_importable", lambda: wrong)


INSTALL_CUPTI = 'pip install "cupti-python~=13.0.1" "nvidia-cuda-cupti~=13.0.0"'


def test_a_missing_cupti_is_nothing_to_mend_but_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cupti(monkeypatch, None)
    finding = finding_of(diagnose(), "CUPTI")
    assert finding.ok is None
    assert "not installed" in finding.found
    assert finding.advice == INSTALL_CUPTI


def test_an_installed_cupti_is_reported_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_driver(monkeypatch, "13.0")
    pretend_cupti(monkeypatch, "13.0.1")
    finding = finding_of(diagnose(), "CUPTI")
    assert (finding.ok, finding.advice) == (True, "")
    assert "cupti-python 13.0.1" in finding.found


def test_a_cupti_newer_than_the_driver_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_driver(monkeypatch, "13.0")
    pretend_cupti(monkeypatch, "13.4.0")
    finding = finding_of(diagnose(), "CUPTI")
    assert (finding.ok, finding.advice) == (None, INSTALL_CUPTI)
    assert "13.4.0 is newer than the driver's CUDA 13.0" in finding.found


def test_a_driver_of_cuda_12_has_no_cupti_for_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_driver(monkeypatch, "12.8")
    pretend_cupti(monkeypatch, "12.8.0")
    finding = finding_of(diagnose(), "CUPTI")
    assert finding.ok is None
    assert "this one is for CUDA 12.8" in finding.found


def test_a_cupti_that_cannot_be_imported_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cupti(monkeypatch, "13.0.1", wrong="No module named 'cuda'")
    finding = finding_of(diagnose(), "CUPTI")
    assert (finding.ok, finding.advice) == (None, INSTALL_CUPTI)
    assert "No module named 'cuda'" in finding.found


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "table", "ok", "advice"),
    [
        ("NVIDIA H200", "fitted to an NVIDIA H200 on 2026-11-29", True, ""),
        ("NVIDIA L4", "fitted to an NVIDIA H200 on 2026-11-29, scaled", None, "run `convswap calibrate`"),
        ("NVIDIA L4", "calibrated on this card; fitted to an NVIDIA H200 on 2026-11-29", True, ""),
    ],
)
def test_the_origin_of_estimates_is_reported(tmp_path, monkeypatch, name, table, ok, advice):
    native = native_with()
    native.cuda_devices = lambda: [
        {"name": name, "cost_table": table, "compute_capability": 89, "driver_cuda": ""}
    ]
    pretend_cards(tmp_path, monkeypatch, f"{name}, 8.9, 580.1")
    monkeypatch.setattr(doctor, "_import_native", lambda: native)
    finding = finding_of(diagnose(), "estimates")
    assert (finding.ok, finding.found) == (ok, table) and finding.advice.startswith(advice)
    assert bool(finding.advice) == bool(advice)


@pytest.mark.skipif(not _native.cuda_devices(), reason="there is no NVIDIA card")
def test_both_ops_compute_on_the_card() -> None:
    findings = diagnose()
    assert finding_of(findings, "convswap on CUDA").found == "computes on the card"
    assert finding_of(findings, "default on CUDA").ok is True
