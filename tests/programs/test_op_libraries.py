"""Models with custom ops of other libraries run in every command that gets the library."""

from __future__ import annotations

from pathlib import Path

import convswap
import onnx
import pytest
from build_tools import REPOSITORY, cmake
from command_line import refusal
from convswap.bench.first_run import first_run
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.runtime.device import Device
from convswap.runtime.library import op_libraries_in_use, using_op_libraries
from convswap.runtime.sessions import DEFAULT, make_session
from onnx import helper
from swap_models import make_model, tensor_info, weights

CPU = Device("cpu", "asked for")


def model_of_twice() -> onnx.ModelProto:
    """Return test.Twice before and after a 3x3 Conv of x [n, 3, 8, 8]; only a run tells the shapes."""
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], name="before", domain="test"),
        helper.make_node("Conv", ["t", "w"], ["c"], name="conv"),
        helper.make_node("Twice", ["c"], ["y"], name="behind", domain="test"),
    ]
    model = make_model(nodes, [weights("w", 4, 3, 3, 3)], inputs=[tensor_info("x", "n", 3, 8, 8)])
    model.opset_import.append(helper.make_opsetid("test", 1))
    return model


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with libtwice.so and two libraries that cannot be registered."""
    folder = tmp_path_factory.mktemp("op_library")
    for arguments in (("-S", REPOSITORY / "tests" / "op_library", "-B", folder), ("--build", folder)):
        result = cmake(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def twice(libraries: Path) -> Path:
    return libraries / "libtwice.so"


@pytest.fixture
def work_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of_twice(), "model.onnx")
    return tmp_path


def test_compare_has_the_library_on_both_sides_and_for_the_reference(twice):
    result = convswap.compare(model_of_twice(), device="cpu", batch=2, op_libraries=[twice])
    assert result.within_tolerance and result.swapped == 1
    assert any(
        "float32 for the reference, having no float64 form: test.Twice" in note for note in result.notes
    )
    assert op_libraries_in_use() == ()


def test_one_path_and_the_same_one_twice_will_do(twice, monkeypatch):
    monkeypatch.chdir(twice.parent)
    for libraries in (str(twice), twice, [twice, twice], ["libtwice.so", twice]):
        with using_op_libraries(libraries):
            assert op_libraries_in_use() == (str(twice.resolve()),)
            make_session(model_of_twice(), DEFAULT, CPU)


def test_commands_plan_and_measure_what_the_library_passes_on(work_folder, twice, capsys, table):
    options = ["--device", "cpu", "--op-library", str(twice)]
    assert main(["explain", "model.onnx", *options]) == 0
    assert "x=1x3x8x8" in capsys.readouterr().out
    assert main(["tune", "model.onnx", "--runs", "1", *options]) == 0
    assert main(["optimize", "model.onnx", "-o", "out.onnx", *options]) in (0, 1)
    assert main(["compare", "model.onnx", "--no-layers", *options]) == 0


@pytest.mark.extended
def test_first_run_has_the_library_in_its_processes(twice):
    result = first_run(model_of_twice(), device="cpu", processes=1, op_libraries=[twice])
    assert result["convswap_ms"] > 0


def test_without_the_library_the_option_is_named(work_folder, capsys):
    for command in (["compare"], ["explain"], ["tune"], ["bench", "--first-run"]):
        line = refusal(capsys, *command, "model.onnx", "--device", "cpu")
        assert "test:Twice(-1) is not a registered function/op; if that is a custom op, --op-library" in line


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nowhere.so", "there is no op library '{path}'; give the file of one"),
        ("CMakeCache.txt", "cannot register the op library '{path}': "),
        ("libno_registration.so", "cannot register the op library '{path}': "),
        ("libfails.so", "this library takes no sessions; give a library of custom ops"),
        ("", "there is no op library '{path}'"),
    ],
)
def test_what_is_no_library_of_ops_is_refused_in_one_line(work_folder, libraries, capsys, name, expected):
    path = (libraries / name).resolve()
    line = refusal(capsys, "explain", "model.onnx", "--device", "cpu", "--op-library", str(path))
    assert expected.format(path=path) in line


def test_our_own_library_needs_not_be_named():
    with pytest.raises(ConvswapError, match="is convswap's own, which is loaded anyway; leave it out"):
        convswap.explain(model_of_twice(), device="cpu", op_libraries=[convswap.library_path()])


def test_a_suite_accepts_no_library(work_folder, capsys):
    line = refusal(capsys, "bench", "course", "--op-library", "libtwice.so")
    assert "--op-library has no meaning beside a suite" in line
