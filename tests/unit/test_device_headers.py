"""Kernels include our own headers only: NVRTC gets no others."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from build_tools import REPOSITORY

SOURCES = REPOSITORY / "custom_op"
HEADERS = sorted((SOURCES / "cuda").rglob("*.cuh"))
# Least target of a header's kernels, and the words of its error for other targets.
NEEDS = {
    "few_channels/kernel.cuh": (800, "compute capability 8.0 or newer"),
    "implicit_gemm/kernel.cuh": (900, "compute capability 9.0 alone"),
    "separable/kernel.cuh": (800, "compute capability 8.0 or newer"),
    "sliced_k/kernel.cuh": (800, "compute capability 8.0 or newer"),
    "toeplitz/kernel.cuh": (900, "compute capability 9.0 alone"),
    "tutorial/ladder/14_tensor_cores.cuh": (800, "compute capability 8.0"),
}


def name_of(header: Path) -> str:
    return str(header.relative_to(SOURCES / "cuda"))


each_header = pytest.mark.parametrize("header", HEADERS, ids=name_of)


def preprocess(header: Path, target: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Preprocess a header as NVRTC does, without any library; target 900 is compute capability 9.0."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    defined = ["-D__CUDACC__", "-D__CUDACC_RTC__", f"-D__CUDA_ARCH__={target}"]
    command = [compiler, "-std=c++20", "-nostdinc", "-nostdinc++", *defined, *options, f"-I{SOURCES}"]
    return subprocess.run([*command, "-x", "c++", str(header)], capture_output=True, text=True, check=False)


@each_header
def test_kernel_includes_headers_of_ours_alone(header: Path) -> None:
    done = preprocess(header, 900, "-D__CUDA_ARCH_FEAT_SM90_ALL", "-M")
    assert done.returncode == 0, done.stderr
    _, _, included = done.stdout.replace("\\\n", " ").partition(":")
    assert all(Path(path).is_relative_to(SOURCES) for path in included.split())


@each_header
def test_kernel_is_compiled_for_no_target_that_it_has_no_code_for(header: Path) -> None:
    first_target, words = NEEDS.get(name_of(header), (750, ""))
    assert preprocess(header, first_target, "-D__CUDA_ARCH_FEAT_SM90_ALL", "-E").returncode == 0
    if first_target > 750:
        assert words in preprocess(header, 750, "-E").stderr
    if "alone" in words:
        for target in (900, 1000):
            assert words in preprocess(header, target, "-E").stderr


def test_headers_with_needs_are_there() -> None:
    assert NEEDS.keys() <= {name_of(header) for header in HEADERS}
