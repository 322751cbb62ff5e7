"""Ready-made kernels beside the library: a program that loads the library computes without a compiler."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
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
# Makes the pack for the only type that the tests compute.
MAKE_PACK = """
import sys
from convswap.planning import ready_made
ready_made.TYPES = (("float32", "tf32"),)
sys.exit(ready_made.main())
"""
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
        [sys.executable, "-c", MAKE_PACK, "--algorithm", "naive", "--layers", LAYER],
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
    wheel = make_wheel(tmp_path / "dist")
    environment = tmp_path / "environment"
    site = install(wheel, environment)
    check_bill_of_materials(wheel)
    # Machine code for the first card, and PTX for a card that is newer than the wheel.
    for capability in (80, 130):
        settings = {"CONVSWAP_NVRTC": tmp_path / "none", "FAKE_CAPABILITY": capability}
        chosen, _ = choose(site, "64,1,28,28", "50,1,5,5", tmp_path, **settings)
        assert chosen == "naive"
    assert not list((tmp_path / "cache").rglob("*.kernel"))
    # On a host without a card.
    path = command(environment, "python", "-c", "import convswap; print(convswap.library_path())")
    assert Path(path.strip()) == site / "convswap" / "libconvswap.so"
    assert "ok  op library" in command(environment, "convswap", "doctor")
    data = ["--data", "synthetic", "--images", "4", "--device", "cpu", "--no-layers"]
    assert "agree" in command(environment, "convswap", "compare", "ece408-2019sp", *data)


def make_wheel(dist: Path) -> Path:
    make = [REPOSITORY / "tools" / "make_wheel.py", "--compute-capability", "8.0", "--algorithm", "naive"]
    built = subprocess.run(
        [sys.executable, *make, "--dist", dist], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = dist.glob("convswap-*-manylinux_*_x86_64.whl")
    return wheel


def install(wheel: Path, environment: Path) -> Path:
    """Install the wheel into a new virtual environment; return its folder of packages.

    The environment has the packages of this one behind its own, because downloading them takes minutes.
    """
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python3.*/site-packages")
    (site / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    installed = subprocess.run(
        [*pip, "--force-reinstall", wheel], capture_output=True, text=True, check=False
    )
    assert installed.returncode == 0, installed.stderr
    return site


def command(environment: Path, program: str, *arguments: str) -> str:
    """Return the output of a program of the environment, without a card or a compiler on the path."""
    settings = {
        "PATH": environment / "bin",
        "CUDA_VISIBLE_DEVICES": "",
        "CONVSWAP_NVRTC": environment / "none",
    }
    result = subprocess.run(
        [environment / "bin" / program, *arguments],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_bill_of_materials(wheel: Path) -> None:
    """Every compiled file of the wheel is in its bill, with its hash; what others wrote has a licence."""
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    (bill,) = (
        json.loads(text) for name, text in contents.items() if name.endswith("/sboms/convswap.cdx.json")
    )
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    files = {each["name"]: each["hashes"] for each in bill["components"] if each["type"] == "file"}
    compiled = {
        name: data for name, data in contents.items() if data.startswith((b"\x7fELF", b"convswap pack"))
    }
    assert len(compiled) == 3 and files == {
        name: [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]
        for name, data in compiled.items()
    }
    others = [each for each in bill["components"] if each["type"] == "library"]
    assert all(each["licenses"] and each["version"] != "unknown" for each in others)
    # The dependencies refer to components, and every part of others is in a file.
    references = {each["bom-ref"] for each in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {each["ref"] for each in bill["dependencies"]} <= references
    used = {part for each in bill["dependencies"] for part in each["dependsOn"]}
    assert used == {each["bom-ref"] for each in bill["components"]}
    licences = {Path(name).name for name in contents if "/licenses/" in name}
    assert licences == {"LICENSE", "pybind11.txt", "onnxruntime.txt"}


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
