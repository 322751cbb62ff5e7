"""The build needs no CUDA, and its error messages have one line."""

from __future__ import annotations

import importlib.metadata
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from build_tools import REPOSITORY, TOOLS, cmake, error_of
from convswap import _native
from convswap.models import NETWORKS

pytestmark = pytest.mark.extended


def write_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("system", "processor"), [("FreeBSD", "amd64"), ("Linux", "aarch64")])
def test_another_system_gets_one_clear_line(system: str, processor: str, tmp_path: Path) -> None:
    # CMake runs this file at the end of project(), after it has set the host's system and processor.
    pretend = tmp_path / "pretend.cmake"
    pretend.write_text(
        f"set(CMAKE_HOST_SYSTEM_NAME {system})\nset(CMAKE_HOST_SYSTEM_PROCESSOR {processor})\n"
    )
    result = cmake("-S", REPOSITORY, "-B", tmp_path / "build", f"-DCMAKE_PROJECT_convswap_INCLUDE={pretend}")
    assert result.returncode != 0
    assert error_of(result) == f"convswap builds on Linux x86-64; this system is {system} {processor}"
    assert "compiler" not in result.stdout


def test_a_folder_without_headers_gets_one_clear_line_and_can_be_mended(tmp_path: Path) -> None:
    build = tmp_path / "build"
    arguments = ("-S", REPOSITORY, "-B", build)
    wrong = cmake(*arguments, environment={"ONNXRUNTIME_INCLUDE_DIR": str(tmp_path)})
    assert wrong.returncode != 0
    assert error_of(wrong) == f"ONNXRUNTIME_INCLUDE_DIR is {tmp_path}, which has no onnxruntime_c_api.h"

    mended = cmake(*arguments)
    assert mended.returncode == 0, mended.stderr


def test_a_folder_without_the_header_of_cuda_gets_one_clear_line(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "cuda.h").write_text("#define CUDA_VERSION 11080\n")
    for folder in (tmp_path, old):
        environment = {"CONVSWAP_CUDA_INCLUDE_DIR": str(folder)}
        result = cmake("-S", REPOSITORY, "-B", tmp_path / "build", environment=environment)
        assert result.returncode != 0
        assert error_of(result) == (
            f"CONVSWAP_CUDA_INCLUDE_DIR is {folder}, which has no cuda.h of CUDA 12 or newer"
        )


def test_the_build_needs_no_cuda_and_links_none(tmp_path: Path) -> None:
    hidden = {"PATH": os.defpath, "CUDA_PATH": str(tmp_path), "CUDACXX": str(tmp_path / "no-nvcc")}
    result = cmake("-S", REPOSITORY, "-B", tmp_path / "build", environment=hidden)
    assert result.returncode == 0, result.stderr
    library = Path(_native.__file__).parent / "libconvswap.so"
    needed = subprocess.run(["ldd", library], capture_output=True, text=True, check=True)
    assert "cuda" not in needed.stdout and "nvrtc" not in needed.stdout and "onnxruntime" not in needed.stdout


def test_a_cmake_of_the_system_gathers_the_kernels_sources(tmp_path: Path) -> None:
    """CMake scripts have no policies by default, and distributions have older versions of CMake than pip."""
    program = shutil.which("cmake", path=os.defpath)
    if program is None:
        pytest.skip("there is no cmake but pip's")
    file, script = tmp_path / "sources.cc", REPOSITORY / "cmake" / "KernelSources.cmake"
    command = [program, f"-DSOURCES={REPOSITORY / 'custom_op'}", f"-DOUTPUT={file}", "-P", str(script)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "cuda/sliding_rows/kernel.cuh" in file.read_text()


def test_the_installed_package_is_complete() -> None:
    files = {str(file) for file in importlib.metadata.files("convswap") or ()}
    assert {"convswap/py.typed", "convswap/libconvswap.so", "convswap/_native.pyi"} <= files
    assert any(file.startswith("convswap/_native.") and file.endswith(".so") for file in files)
    assert {f"convswap/models/weights/{network}.trained.npz" for network in NETWORKS} <= files
    # `convswap ladder` and the lab read the rungs' sources. The lab compiles the other sources without a
    # card.
    # No other source is installed.
    sources = {file for file in files if file.endswith((".cc", ".cu", ".cuh", ".h"))}
    assert {file for file in sources if not file.startswith("convswap/rungs/")} == {
        "convswap/emulation/cuda_emulation.h",
        "convswap/include/convswap/lab.h",
        "convswap/tutorial/lab/emulation/run_kernel.cc",
        "convswap/tutorial/lab/templates/conv.cu",
        "convswap/tutorial/lab/templates/course.cu",
    }
    assert "convswap/rungs/cpu/tutorial/ladder/01_loops.h" in sources


def set_up(folder: Path, step: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a step of the set-up in a new folder."""
    return subprocess.run(
        copied_set_up(folder, step),
        env=settings(environment),
        capture_output=True,
        text=True,
        check=False,
    )


def copied_set_up(folder: Path, step: str) -> list[str]:
    """Copy the files that the set-up needs to `folder`, and return the command of a step."""
    (folder / "tools").mkdir()
    for name in ("set_up.sh", "building.sh"):
        shutil.copy(TOOLS / name, folder / "tools")
    shutil.copy(REPOSITORY / "pyproject.toml", folder)
    return ["sh", str(folder / "tools" / "set_up.sh"), step]


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHON": sys.executable, "PYTHON_ENV": "venv", **environment}


def write_python(folder: Path, text: str) -> None:
    """Write a program that replaces the Python of the set-up's environment."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    write_program(folder / ".venv" / "bin" / "python", text)


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    return line


def test_a_python_that_is_too_old_gets_one_clear_line(tmp_path: Path) -> None:
    old = write_program(tmp_path / "python3", '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    line = only_line(set_up(tmp_path, "packages", {"PYTHON": str(old)}))
    assert line.startswith("convswap: Python 3.9.2 is too old; install Python 3.11 or newer")


def test_a_missing_python_gets_one_clear_line(tmp_path: Path) -> None:
    line = only_line(set_up(tmp_path, "packages", {"PYTHON": "python-of-nobody"}))
    assert line.startswith("convswap: python-of-nobody was not found; install Python 3.11 or newer")


def test_a_missing_compiler_gets_one_clear_line(tmp_path: Path) -> None:
    line = only_line(set_up(tmp_path, "packages", {"CXX": "g++-of-nobody"}))
    assert line == "convswap: g++-of-nobody was not found; install g++ 11 or newer"


def test_a_compiler_that_is_too_old_gets_one_clear_line(tmp_path: Path) -> None:
    old = write_program(
        tmp_path / "g++", 'case $1 in -dumpversion) echo 10 ;; *) echo "g++ (Debian) 10.2" ;; esac'
    )
    line = only_line(set_up(tmp_path, "packages", {"CXX": str(old)}))
    assert line.startswith(f"convswap: {old} is version 10; install g++ 11 or newer")


def test_a_missing_venv_module_gets_one_clear_line(tmp_path: Path) -> None:
    bare = write_program(
        tmp_path / "python3", f'case "$2" in *ensurepip*) exit 1 ;; esac\nexec {sys.executable} "$@"'
    )
    line = only_line(set_up(tmp_path, "packages", {"PYTHON": str(bare)}))
    assert line.endswith("install its venv module (Debian: apt install python3-venv)")


def test_no_network_gets_one_clear_line(tmp_path: Path) -> None:
    environment = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_RETRIES": "0",
        "PIP_IGNORE_INSTALLED": "1",
    }
    # Creating an environment takes seconds, and would need no network.
    write_python(tmp_path, f'exec {sys.executable} "$@"')
    write_program(tmp_path / ".venv" / "bin" / "pip", "exit 1")
    line = only_line(set_up(tmp_path, "packages", environment))
    assert line.startswith(
        "convswap: pip could not install convswap's packages; is the network there? pip says: "
    )


@pytest.mark.parametrize("then", ["", "Call Stack (most recent call first):\n  A.txt:3 (include)\n"])
def test_what_cmake_refuses_gets_one_clear_line(then: str, tmp_path: Path) -> None:
    messages = (
        f"CMake Error at cmake/A.cmake:1 (message):\n  ONE is 9; expected\n  90\n{then}\n-- Incomplete\n"
    )
    write_python(tmp_path, f"cat <<'END'\n{messages}END\nexit 1")
    line = only_line(set_up(tmp_path, "build", {}))
    assert line == "convswap: the build failed: ONE is 9; expected 90"


@pytest.mark.parametrize(
    "error",
    [
        "/src/custom_op/a.cc:12:7: error: 'x' was not declared in this scope",
        "/src/custom_op/a.cc:3:10: fatal error: b.h: No such file or directory",
        "/usr/bin/ld: a.o: in function `f': a.cc:(.text+0x5): undefined reference to `g'",
    ],
)
def test_failing_build_shows_the_first_error_of_the_compiler_at_its_end(error: str, tmp_path: Path) -> None:
    progress_lines = [f"  [{number}/99] Building CXX object a.o" for number in range(50)]
    log = [
        "  [1/99] Building CXX object error.o",
        f"  {error}",
        "  its context",
        *progress_lines,
        "  b.cc:1:1: error: later",
    ]
    write_python(tmp_path, "cat <<'END'\n{}\nEND\nexit 1".format("\n".join(log)))
    result = set_up(tmp_path, "build", {})
    assert result.returncode == 1
    first, context, *omitted, last = (line.strip() for line in result.stderr.splitlines())
    assert (first, context) == (error, "its context")
    assert len(omitted) < 10
    assert last == (
        "convswap: the build failed; its first error is above, and the whole log is build/set_up.build.log"
    )


def test_build_shows_in_a_terminal_how_far_it_is(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    wait = f"while ! [ -e {seen} ]; do sleep 0.1; done"
    write_python(tmp_path, f'[ "$1" = -c ] || {{ echo "  [3/7] Building CXX object a.o"; {wait}; }}')
    terminal, other_end = pty.openpty()
    command = copied_set_up(tmp_path, "build")
    with subprocess.Popen(command, env=settings({}), stdout=other_end) as process:
        os.close(other_end)
        shown = b""
        while b"3 of 7 steps" not in shown:
            shown += os.read(terminal, 1000)
        seen.touch()
    os.close(terminal)
    assert process.returncode == 0


def test_where_files_are_compiled_alone_ccache_is_taken_if_it_is_found(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    write_program(programs / "ccache", 'exec "$@"')
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    if shutil.which("ninja", path=os.pathsep.join([str(Path(sys.executable).parent), path])) is None:
        pytest.skip("it takes ninja")
    arguments = ("-G", "Ninja", "-S", REPOSITORY, "-D", "CONVSWAP_FILES_ALONE=ON")
    # In the second round ccache has been removed since the first configuration.
    for is_taken in (True, False):
        if not is_taken:
            (programs / "ccache").unlink()
        result = cmake(*arguments, "-B", tmp_path / "build", environment={"PATH": path})
        assert result.returncode == 0, result.stderr
        steps = (tmp_path / "build" / "build.ninja").read_text()
        assert (f"LAUNCHER = {programs / 'ccache'} " in steps) == is_taken


def test_pytorch_that_cannot_be_had_gets_one_clear_line(tmp_path: Path) -> None:
    write_python(tmp_path, f'exec {sys.executable} "$@"')
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    # pip accepts a PyTorch that is already installed.
    line = only_line(set_up(tmp_path, "torch", {**nowhere, "PIP_IGNORE_INSTALLED": "1"}))
    assert line.startswith("convswap: pip could not install PyTorch; is the network there? pip says: ")
    assert "torch==2.13.0" in line


def test_the_systems_python_must_have_the_packages(tmp_path: Path) -> None:
    bare = write_program(
        tmp_path / "python3", f'case "$2" in "import onnx_ir") exit 1 ;; esac\nexec {sys.executable} "$@"'
    )
    line = only_line(set_up(tmp_path, "packages", {"PYTHON": str(bare), "PYTHON_ENV": "system"}))
    assert line.startswith(f"convswap: {bare} cannot import onnx_ir; install it there")
