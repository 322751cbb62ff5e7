"""The examples build, run, and print the outputs that ONNX Runtime computes without convswap."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from build_tools import REPOSITORY, cmake
from convswap.export import export_network
from convswap.planning.warm import warm
from op_sessions import onnx_outputs

NETWORK = "ece408-2018sp"
MAPS = Path("/proc/self/maps")
# Six printed digits, and float32 sums in another order. TF32 on a card drops 13 of the inputs' 23 mantissa
# bits.
RELATIVE_TOLERANCE = 1e-4 if "CUDAExecutionProvider" not in onnxruntime.get_available_providers() else 2e-2


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return export_network(NETWORK)


@pytest.fixture(scope="module")
def model_file(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "network.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def swapped_file(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("swapped") / "swapped.onnx"
    convswap.swap(model).save(path)
    return path


@pytest.fixture(scope="module")
def load_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    libraries = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.1*"))
    if not libraries:
        pytest.skip("this onnxruntime package has no libonnxruntime.so")
    folder = tmp_path_factory.mktemp("load")
    configured = cmake(
        "-S",
        REPOSITORY / "examples",
        "-B",
        folder,
        f"-DONNXRUNTIME_LIBRARY={libraries[0]}",
        "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
    )
    assert configured.returncode == 0, configured.stderr
    built = cmake("--build", folder)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "warning" not in (built.stdout + built.stderr).lower()
    # ONNX Runtime looks for the libraries of its providers beside itself.
    assert (folder / "libonnxruntime_providers_shared.so").is_file()
    return folder / "load"


def expected_of(model: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    """Return the output of the model before the swap, computed without the op library."""
    return onnx_outputs(model, {"image": images})[0]


def counting_up(shape: tuple[int, ...]) -> np.ndarray:
    return np.resize(np.arange(256, dtype=np.float32), shape)


def run(
    *command: str | Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], env=environment, capture_output=True, text=True, check=False
    )


def assert_prints(line: str, expected: np.ndarray, tolerance: float) -> None:
    name, _, remainder = line.partition(" [")
    shape, _, values = remainder.partition("] ")
    assert name == "probabilities"
    assert [int(extent) for extent in shape.split(", ")] == list(expected.shape)
    np.testing.assert_allclose(
        [float(value) for value in values.split()], expected.ravel()[:10], rtol=tolerance, atol=1e-6
    )


def test_python_example_prints_what_the_unswapped_model_computes(
    model: onnx.ModelProto, model_file: Path
) -> None:
    result = run(sys.executable, REPOSITORY / "examples/load.py", model_file)
    assert result.returncode == 0, result.stderr
    head, line = result.stdout.splitlines()
    assert head.startswith("2 Conv nodes swapped, running on ")
    assert_prints(line, expected_of(model, counting_up((1, 1, 64, 64))), RELATIVE_TOLERANCE)


def test_python_example_needs_no_argument() -> None:
    result = run(sys.executable, REPOSITORY / "examples/load.py")
    assert result.returncode == 0, result.stderr
    assert "probabilities [1, 10] " in result.stdout


def test_cpp_example_prints_what_the_unswapped_model_computes(
    model: onnx.ModelProto, swapped_file: Path, load_program: Path
) -> None:
    result = run(load_program, convswap.library_path(), swapped_file)
    assert result.returncode == 0, result.stderr
    assert_prints(result.stdout.rstrip("\n"), expected_of(model, counting_up((1, 1, 64, 64))), 1e-4)


def test_cpp_example_takes_its_input_from_a_file(
    model: onnx.ModelProto, swapped_file: Path, load_program: Path, tmp_path: Path
) -> None:
    images = np.random.default_rng(3).uniform(0, 255, (1, 1, 64, 64)).astype(np.float32)
    images.tofile(tmp_path / "input.bin")
    result = run(load_program, convswap.library_path(), swapped_file, tmp_path / "input.bin")
    assert result.returncode == 0, result.stderr
    assert_prints(result.stdout.rstrip("\n"), expected_of(model, images), 1e-4)


@pytest.mark.parametrize("wrong", ["library", "model", "input", "missing input"])
def test_cpp_example_says_in_one_line_what_is_wrong(
    wrong: str, swapped_file: Path, load_program: Path, tmp_path: Path
) -> None:
    short = tmp_path / "short.bin"
    short.write_bytes(b"four")
    library = tmp_path / "none.so" if wrong == "library" else convswap.library_path()
    model = tmp_path / "none.onnx" if wrong == "model" else swapped_file
    arguments = [short] if wrong == "input" else [tmp_path / "none.bin"] if wrong == "missing input" else []
    result = run(load_program, library, model, *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    expected = {"library": "none.so", "model": "none.onnx", "input": "16384", "missing input": "none.bin"}
    assert line.startswith("load: ") and expected[wrong] in line


def test_cpp_example_gives_entries_to_the_session(
    model: onnx.ModelProto, swapped_file: Path, load_program: Path, tmp_path: Path
) -> None:
    command = (load_program, convswap.library_path(), swapped_file)
    result = run(*command, "convswap.compile=never")
    assert result.returncode == 0, result.stderr
    assert_prints(result.stdout.rstrip("\n"), expected_of(model, counting_up((1, 1, 64, 64))), 1e-4)
    for entry, named in (
        (f"convswap.pack={tmp_path / 'none.pack'}", "none.pack"),
        ("convswap.compile=later", "later"),
    ):
        result = run(*command, entry)
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith("load: ") and named in line


def test_cpp_example_prints_its_usage(load_program: Path) -> None:
    result = run(load_program)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("load: usage: load LIBCONVSWAP.SO ")


@pytest.mark.gpu
def test_cpp_example_runs_on_a_card_from_a_pack_alone(
    model: onnx.ModelProto, swapped_file: Path, load_program: Path, tmp_path: Path, cuda: str
) -> None:
    """Without a compiler and with an empty kernel store."""
    pack = tmp_path / "network.pack"
    warm(model, pack=pack, batches=[1])
    # Folders of the CUDA libraries that ONNX Runtime's Python package has loaded.
    mapped = re.findall(r"(/\S+)/lib(?:cudart|cudnn|cublas|cufft|curand)\S*$", MAPS.read_text(), re.MULTILINE)
    environment = {
        **os.environ,
        "CONVSWAP_NVRTC": str(tmp_path / "none.so"),
        "CONVSWAP_CACHE": str(tmp_path / "cache"),
        "LD_LIBRARY_PATH": os.pathsep.join([*dict.fromkeys(mapped), os.environ.get("LD_LIBRARY_PATH", "")]),
    }
    entries = (f"convswap.pack={pack}", "convswap.compile=never")
    result = run(
        load_program, convswap.library_path(), swapped_file, "--cuda", *entries, environment=environment
    )
    assert result.returncode == 0, result.stderr
    assert_prints(
        result.stdout.rstrip("\n"), expected_of(model, counting_up((1, 1, 64, 64))), RELATIVE_TOLERANCE
    )
    assert not list((tmp_path / "cache").glob("**/*.kernel"))


def test_a_swapped_model_does_not_load_without_the_library(swapped_file: Path) -> None:
    """Only the call that the examples show registers the op."""
    with pytest.raises(Exception, match="convswap"):
        onnxruntime.InferenceSession(swapped_file, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/cpp.md"])
def test_the_lines_of_a_page_are_a_program(page, load_program, tmp_path):
    text = (REPOSITORY / page).read_text()
    (lines,) = re.findall(r"^```cpp\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    program = tmp_path / "page.cc"
    program.write_text(f"#include <onnxruntime_cxx_api.h>\nvoid load(Ort::Env& environment) {{\n{lines}}}\n")
    (command,) = json.loads((load_program.parent / "compile_commands.json").read_text())
    words = shlex.split(command["command"])
    folders = [Path(folder) for folder in words if Path(folder, "onnxruntime_c_api.h").exists()]
    if not any((folder / "onnxruntime_cxx_api.h").exists() for folder in folders):
        pytest.skip("the headers found here are those of the C API alone")
    words[words.index("-o") + 1] = str(tmp_path / "page.o")
    words[words.index(command["file"])] = str(program)
    compiled = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (compiled.returncode, compiled.stderr) == (0, "")
