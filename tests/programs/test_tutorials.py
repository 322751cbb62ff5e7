"""The tutorials' blocks that need more than convswap: a shell, CMake, a Dockerfile."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import convswap
import numpy as np
import onnx
import pytest
from build_tools import REPOSITORY
from comparisons import small_model
from convswap import _native
from convswap.planning.warm import warm
from test_pages import blocks

pytestmark = [pytest.mark.slow, pytest.mark.extended]

CPP = REPOSITORY / "docs/tutorial/cpp.md"
CONTAINER = REPOSITORY / "docs/tutorial/container.md"
WHEEL = "convswap-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


def run_lines(text: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run a block of shell in `folder`, with `programs` first in PATH."""
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a folder with what the tutorial uses of a clone, its environment included."""
    for name in ("examples", "cmake"):
        shutil.copytree(REPOSITORY / name, tmp_path / name)
    # The headers of ONNX Runtime, which are downloaded once for all builds.
    headers = REPOSITORY / "build" / "onnxruntime-headers"
    headers.mkdir(parents=True, exist_ok=True)
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / headers.name).symlink_to(headers)
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH\n")
    onnx.save(small_model(), tmp_path / "model.onnx")
    np.ones((1, 3, 12, 12), np.float32).tofile(tmp_path / "input.bin")
    return tmp_path


def test_the_shell_of_the_cpp_tutorial_builds_and_runs_the_example(clone):
    build, on_a_card = (text for kind, text in blocks(CPP) if kind in ("", "sh"))
    if not _native.cuda_devices():
        on_a_card = on_a_card.replace(" --cuda", "")
    result = run_lines(f"{build}\n{on_a_card}", clone, Path(sys.executable).parent)
    assert result.returncode == 0, result.stdout + result.stderr
    outputs = [line for line in result.stdout.splitlines() if re.match(r"\w+ \[1, .*\] -?\d", line)]
    assert len(outputs) == 2, result.stdout


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return the working folder of the image, after the steps of the Dockerfile with a pip that records."""
    context, folder, programs = (tmp_path / name for name in ("context", "image", "programs"))
    for path in (context / "dist", folder, programs):
        path.mkdir(parents=True)
    page = dict(blocks(CONTAINER))
    (context / "dist" / WHEEL).touch()
    (context / "serve.py").write_text(page["python"])
    model = small_model()
    convswap.swap(model).save(context / "faster.onnx")
    capabilities = None if _native.cuda_devices() else [90]
    warm(model, pack=context / "model.pack", batches=[1], compute_capabilities=capabilities)
    (programs / "pip").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >pip-arguments\n')
    (programs / "pip").chmod(0o755)
    for instruction, arguments in (line.split(" ", 1) for line in page["dockerfile"].splitlines()):
        if instruction == "COPY":
            *sources, target = arguments.split()
            found = [file for source in sources for file in context.glob(source)]
            assert (len(found), target) == (len(sources), "./"), arguments
            for file in found:
                shutil.copy(file, folder)
        elif instruction == "RUN":
            result = run_lines(arguments, folder, programs)
            assert result.returncode == 0, result.stderr
        elif instruction == "CMD":
            (folder / "command").write_text(arguments)
        else:
            assert instruction in ("FROM", "WORKDIR")
    return folder


def test_the_dockerfile_installs_the_wheel_with_an_extra_and_its_command_runs(image):
    *_, requirement = (image / "pip-arguments").read_text().splitlines()
    wheel, _, extra = requirement.rstrip("]").partition("[")
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert (image / wheel).is_file() and extra in extras
    program, *arguments = json.loads((image / "command").read_text())
    assert program == "python"
    result = subprocess.run(
        [sys.executable, *arguments], cwd=image, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "('x', ['n', 3, 12, 12])" in result.stdout
