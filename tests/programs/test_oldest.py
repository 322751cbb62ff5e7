"""The library on the oldest supported ONNX Runtime, in an environment of its own, and on the version before.

The oldest version needs a NumPy that the onnx package does not support. So this test writes the models, the
inputs and the reference, and tests/oldest/check_oldest.py compares there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import convswap
import ml_dtypes
import numpy as np
import pytest
from build_tools import REPOSITORY
from conv_cases import CASES, ConvCase, convolve, sum_of_magnitudes
from onnx import TensorProto, helper
from op_sessions import (
    CREATION_ERRORS,
    RUN_ERRORS,
    WRONG_TYPES,
    B,
    W,
    X,
    case_model,
    conv_model,
    graph_model,
    undeclared_model,
)

pytestmark = pytest.mark.extended

OLDEST = "1.17.3"
TOO_OLD = "1.16.3"
ENVIRONMENT = REPOSITORY / ".venv-oldest"
# ONNX type, NumPy type, and the relative errors of an addition and of rounding the output.
ELEMENT_TYPES = {
    "float16": (TensorProto.FLOAT16, np.float16, 2.0**-24, 2.0**-11),
    "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16, 2.0**-24, 2.0**-8),
    # The model's output is float32.
    "float64": (TensorProto.DOUBLE, np.float64, 2.0**-53, 2.0**-24),
}


@pytest.fixture(scope="module")
def oldest_python() -> Path:
    python = ENVIRONMENT / "bin/python"
    if not python.is_file():
        pytest.skip(
            f"there is no environment of onnxruntime {OLDEST}; `make test-all` makes it, with Python 3.11 or "
            "3.12"
        )
    return python


def write_arrays(path: Path, inputs: dict[str, np.ndarray | None], reference=0.0, bound=0.0) -> None:
    arrays = {name: array for name, array in inputs.items() if array is not None}
    np.savez(path, **arrays, reference=reference, bound=bound)


def write_case(path: Path, case: ConvCase) -> None:
    """Write the input, the reference and the error bound of a float32 case with constant weights."""
    # The bound of conv_cases.assert_within_rounding for float32.
    bound = 1.01 * (case.terms + 2) * 2.0**-24 * case.magnitude
    write_arrays(path, {"x": case.arrays()[0]}, case.reference, bound)


def cast_model(case: ConvCase, element_type: int) -> bytes:
    """Return a model with float32 inputs and outputs that computes the case in `element_type`."""
    names = ["x", "w", "b"] if case.has_bias else ["x", "w"]
    shapes = [case.x_shape, case.w_shape, case.w_shape[:1]]
    nodes = [helper.make_node("Cast", [name], [f"{name}_cast"], to=element_type) for name in names]
    inputs = [f"{name}_cast" for name in names]
    nodes.append(helper.make_node("Conv", inputs, ["h"], name="conv1", domain="convswap", **case.attributes))
    nodes.append(helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT))
    return graph_model(nodes, dict(zip(names, shapes, strict=False))).SerializeToString()


def write_fused_case(
    folder: Path, name: str, inputs: list[str], constants: dict[str, np.ndarray], reference: np.ndarray
) -> None:
    """Write a model of a FusedConv with these inputs, and its reference for the input X."""
    node = helper.make_node("FusedConv", inputs, ["y"], name="conv1", domain="convswap")
    model = graph_model([node], {"x": X.shape}, constants)
    (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    # Sums of some dozen float32 products, rounded in any order.
    write_arrays(folder / f"{name}.npz", {"x": X}, reference, 1e-5 * np.abs(reference).max())


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Return a folder with all files that check_oldest.py reads."""
    folder = tmp_path_factory.mktemp("oldest")

    def write(name: str, model: bytes) -> str:
        (folder / name).write_bytes(model)
        return name

    cases = [f"case{i}" for i in range(len(CASES))]
    for name, case in zip(cases, CASES, strict=True):
        write(f"{name}.onnx", case_model(case))
        write_case(folder / f"{name}.npz", case)

    element_types = []
    for type_name, (element_type, dtype, unit, output_unit) in ELEMENT_TYPES.items():
        for i, case in enumerate(CASES[::4]):
            name = f"{type_name}_{i}"
            element_types.append(name)
            write(f"{name}.onnx", cast_model(case, element_type))
            arrays = case.arrays()
            rounded = [None if array is None else array.astype(dtype).astype(np.float64) for array in arrays]
            reference = convolve(*rounded, **case.attributes)
            sizes = sum_of_magnitudes(*rounded, **case.attributes)
            bound = 1.01 * ((case.terms + 2) * unit * sizes + output_unit * (np.abs(reference) + 2.0**-13))
            write_arrays(folder / f"{name}.npz", dict(zip("xwb", arrays, strict=True)), reference, bound)

    write("symbolic.onnx", conv_model(x=["N", 3, "S", "S"], pads=[1, 1, 1, 1]))
    symbolic = []
    for i, shape in enumerate([(1, 3, 9, 8), (4, 3, 30, 17), (0, 3, 5, 5), (1, 3, 9, 8)]):
        symbolic.append(f"symbolic{i}")
        x = np.random.default_rng(i).normal(size=shape).astype(np.float32)
        reference = convolve(x, W, pads=[1, 1, 1, 1])
        bound = 1.01 * 30 * 2.0**-24 * sum_of_magnitudes(x, W, pads=[1, 1, 1, 1])
        write_arrays(folder / f"symbolic{i}.npz", {"x": x}, reference, bound)

    creation_errors = [
        (write(f"creation{i}.onnx", conv_model(**options)), message)
        for i, (options, message) in enumerate(CREATION_ERRORS)
    ]
    creation_errors += [
        (write(f"type{i}.onnx", conv_model(**{name: value})), f"attribute {name} has another type")
        for i, (name, value, _) in enumerate(WRONG_TYPES)
    ]
    creation_errors.append((write("algorithm.onnx", conv_model(algorithm="direkt")), "unknown algorithm"))
    creation_errors.append((write("precision.onnx", conv_model(precision="fast")), "unknown precision"))

    write("undeclared.onnx", undeclared_model())
    bound = 1.01 * 30 * 2.0**-24 * sum_of_magnitudes(X, W, B)
    write_arrays(folder / "undeclared.npz", {"x": X, "w": W, "b": B}, convolve(X, W, B), bound)
    run_errors = []
    for i, (x, w, b, message) in enumerate(RUN_ERRORS):
        shapes = {"x": x, "w": w, "b": b}
        arrays = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
        write_arrays(folder / f"run{i}.npz", arrays)
        run_errors.append((f"run{i}.npz", message))

    # Inputs without a name in front of present ones: ONNX Runtime up to 1.23 infers no shapes of such nodes.
    generator = np.random.default_rng(0)
    residual = generator.normal(size=convolve(X, W).shape).astype(np.float32)
    write_fused_case(
        folder, "residual", ["x", "w", "", "z"], {"w": W, "z": residual}, convolve(X, W) + residual
    )
    channels = X.shape[1]
    depthwise = generator.normal(size=(channels, 1, 3, 3)).astype(np.float32)
    filters = generator.normal(size=(4, channels, 1, 1)).astype(np.float32)
    both = convolve(convolve(X, depthwise, group=channels), filters)
    write_fused_case(folder, "depthwise", ["x", "w", "", "", "d"], {"w": filters, "d": depthwise}, both)

    index = {
        "onnxruntime": OLDEST,
        "fused": ["residual", "depthwise"],
        "cases": cases,
        "element_types": element_types,
        "symbolic": symbolic,
        "creation_errors": creation_errors,
        "run_errors": run_errors,
    }
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def run_there(python: Path, *arguments: str | Path, **variables: str | Path) -> subprocess.CompletedProcess:
    """Run the Python of the oldest environment, without this process's Python and pytest variables."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))
    }
    return subprocess.run(
        [str(python), *map(str, arguments)],
        env={**environment, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_library_computes_on_the_oldest_onnx_runtime(oldest_python, files):
    script = REPOSITORY / "tests/oldest/check_oldest.py"
    # Without this project's pytest settings and conftest.py, which imports convswap.
    isolation = ["--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", script.parent]
    ended = run_there(
        oldest_python,
        *("-m", "pytest", "-q", "-ra", *isolation, script),
        CONVSWAP_LIBRARY=convswap.library_path(),
        CONVSWAP_OLDEST_FILES=files,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    index = json.loads((files / "index.json").read_text())
    parametrized = ("cases", "element_types", "fused", "creation_errors", "run_errors")
    (passed,) = re.findall(r"^(\d+) passed in", ended.stdout, re.MULTILINE)
    assert int(passed) == sum(len(index[name]) for name in parametrized) + 7


def test_an_older_onnx_runtime_gets_a_status_that_names_both_versions(oldest_python):
    too_old = ENVIRONMENT / "too-old"
    if not (too_old / "onnxruntime").is_dir():
        pytest.skip(
            f"onnxruntime {TOO_OLD} is not in {too_old}; `make test-all` installs it, with Python 3.11"
        )
    program = (
        "import onnxruntime, sys\n"
        "print(onnxruntime.__version__)\n"
        "try: onnxruntime.SessionOptions().register_custom_ops_library(sys.argv[1])\n"
        "except Exception as error: print(error)\n"
    )
    ended = run_there(oldest_python, "-c", program, convswap.library_path(), PYTHONPATH=too_old)
    assert ended.returncode == 0, ended.stderr
    version, message = ended.stdout.splitlines()
    assert version == TOO_OLD
    assert f"convswap needs ONNX Runtime 1.17 or newer and this is {TOO_OLD}: install a newer" in message
