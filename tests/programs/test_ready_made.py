"""Ready-made kernels beside the library: a program that loads the library computes without a compiler."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import convswap
import pytest
from build_tools import REPOSITORY
from convswap import _native
from convswap.errors import ConvswapError
from convswap.planning.ready_made import capabilities_from, make_for_wheel
from fake_card import needs_compiler, run_beside_card

pytestmark = pytest.mark.extended

# 64 images of 28 x 28, 50 filters of 5 x 5.
LAYER = "2017-conv1"
CHOOSE = """
import sys
import numpy as np
from convswap import _native
x_shape, w_shape = (tuple(map(int, text.split(","))) for text in sys.argv[1:3])
problem = _native.Problem(x_shape, w_shape)
x, w = (_native.DeviceArray.from_numpy(np.ones(shape, np.float32)) for shape in (x_shape, w_shape))
y = _native.DeviceArray(problem.output_shape)
_native.conv_device(x, w, None, y)
print(_native.choose(problem, "cuda"))
print(_native.why_not(problem, "few_channels", "cuda"))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package and ready-made kernels for compute capability 8.0.

    The kernels are those of one generic algorithm and one layer: all take two cores a minute.
    """
    base = tmp_path_factory.getbasetemp()
    # pytest-xdist gives each process a folder within the folder of the run. The first process makes the
    # package.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "packages"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make_package(folder)
    return folder


def make_package(folder: Path) -> None:
    shutil.copytree(Path(convswap.__file__).parent, folder / "convswap")
    shutil.copy(_native.__file__, folder / "convswap")
    result = subprocess.run(
        [sys.executable, "-m", "convswap.planning.ready_made", "--algorithm", "naive", "--layers", LAYER],
        env={**os.environ, "PYTHONPATH": str(folder), "CONVSWAP_READY_MADE": "8.0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith(" MB, beside the library\n")


def choose(package: Path, x: str, w: str, tmp_path: Path, **settings: object) -> list[str]:
    variables = {"FAKE_CAPABILITY": 80, "PYTHONPATH": package} | settings
    result = run_beside_card(CHOOSE, x, w, cache=tmp_path / "cache", **variables)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@needs_compiler
@pytest.mark.slow
def test_without_a_compiler_everything_is_computed(package: Path, tmp_path: Path) -> None:
    no_compiler = {"CONVSWAP_NVRTC": tmp_path / "none"}
    # A layer of the course by its specialised kernel, and another layer by a generic one.
    algorithm, no_reason = choose(package, "64,1,28,28", "50,1,5,5", tmp_path, **no_compiler)
    assert (algorithm, no_reason) == ("few_channels", "")
    other_algorithm, reason = choose(package, "64,3,60,60", "32,3,3,3", tmp_path, **no_compiler)
    assert other_algorithm == "naive"
    assert reason.startswith("its kernel few_channels::kernel<ScaledFloat16Pairs, ")
    assert "is not among the ready-made kernels, and CONVSWAP_NVRTC is " in reason
    assert not list((tmp_path / "cache").rglob("*.kernel"))


@needs_compiler
@pytest.mark.slow
def test_with_a_compiler_the_choice_is_what_it_always_is(package: Path, tmp_path: Path) -> None:
    chosen, _ = choose(package, "64,3,60,60", "32,3,3,3", tmp_path)
    problem = _native.Problem((64, 3, 60, 60), (32, 3, 3, 3))
    assert chosen == _native.choose(problem, "cuda", compute_capability=80) == "few_channels"
    (compiled,) = (tmp_path / "cache").rglob("*.kernel")
    assert compiled.name.startswith("sm_80_few_channels_kernel_ScaledFloat16Pairs_")


@needs_compiler
@pytest.mark.slow
def test_ready_made_kernels_of_another_version_are_ignored(package: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other"
    shutil.copytree(package, copy)
    pack = copy / "convswap" / "ready_made.pack"
    data = pack.read_bytes()
    pack.write_bytes(data[:16] + b"0123456789abcdef" + data[32:])
    chosen, _ = choose(copy, "64,1,28,28", "50,1,5,5", tmp_path)
    assert chosen == "few_channels" and list((tmp_path / "cache").rglob("*.kernel"))


@needs_compiler
@pytest.mark.slow
def test_the_wheel_is_installed_and_computes_without_a_compiler(tmp_path: Path) -> None:
    """The wheel of `make wheel`, with one algorithm for one compute capability to save time."""
    dist, site = tmp_path / "dist", tmp_path / "site"
    make = [REPOSITORY / "tools" / "make_wheel.py", "--compute-capability", "8.0", "--algorithm", "naive"]
    make += ["--dist", dist]
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", site]
    built = subprocess.run([sys.executable, *make], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = dist.glob("convswap-*-manylinux_*_x86_64.whl")
    installed = subprocess.run([sys.executable, *pip, wheel], capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    # Machine code for the first card, and PTX for a card that is newer than the wheel.
    for capability in (80, 130):
        settings = {"CONVSWAP_NVRTC": tmp_path / "none", "FAKE_CAPABILITY": capability}
        chosen, _ = choose(site, "64,1,28,28", "50,1,5,5", tmp_path, **settings)
        assert chosen == "naive"
    assert not list((tmp_path / "cache").rglob("*.kernel"))


def test_an_algorithm_without_generic_kernels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConvswapError, match=r"toeplitz has no generic kernels: expected one of .*naive"):
        make_for_wheel(tmp_path / "none.pack", [80], "toeplitz")
    assert not list(tmp_path.iterdir())


def test_cards_are_selected_by_their_compute_capabilities() -> None:
    assert capabilities_from("9.0;8.0;9.0") == [90, 80]
    assert capabilities_from("none") == []
    assert (
        capabilities_from(None)
        == capabilities_from("")
        == [card["compute_capability"] for card in _native.cuda_devices()][:1]
    )
    for text in ("x", "9.0;", "90", "6.1", "9.0,8.0"):
        with pytest.raises(ConvswapError, match="CONVSWAP_READY_MADE is "):
            capabilities_from(text)
