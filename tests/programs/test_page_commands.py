"""Every command and every block of Python in README and docs/ runs."""

from __future__ import annotations

import re
import shlex
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from comparisons import small_model
from convswap import _native, lab
from convswap.bench import first_run
from convswap.cli.main import main
from convswap.planning.warm import warm
from mini_dnn_files import random_layers, weights_bytes
from mxnet_files import course_arrays, course_symbol, write_checkpoint
from PIL import Image
from test_pages import PAGES, blocks, commands

pytestmark = [pytest.mark.slow, pytest.mark.extended]

# Additional arguments that shorten a command of the pages. The first matching beginning counts.
SHORTENED = {
    "bench --batch 1,64,512 --against all": "--batch 2 --layers 2017 --device cpu --against default",
    "bench --batch 1,64 --against algorithms": "--batch 1 --layers 2017 --device cpu",
    "bench --batch 62,63,64 --alternate": "--batch 1,2 --layers 2017 --device cpu",
    "bench --first-run": "--device cpu --batch 1 --first-run model.onnx",
    "bench many-channels": "--batch 1 --layers 512-512-3x3-7 --device cpu",
    "bench resnet50": "--batch 1 --layers conv49 --device cpu",
    "bench --precision float16": "--batch 1 --layers 2017 --device cpu",
    "optimize": "--device cpu",
    "compare mobilenet-v2": "--images 1 --device cpu --no-layers",
    "compare ece408": "--images 4 --data synthetic --device cpu",
    "evaluate ece408": "--images 4 --data synthetic --device cpu",
    "compare model.onnx --inputs": "--no-layers --device cpu",
    "compare faster.onnx": "--no-layers --device cpu",
    "compare model.onnx": "--batch 2 --device cpu",
    "ladder": "--images 2 --data synthetic --device cpu",
    "warm faster.onnx": "--batch 1",
    "export --mxnet-symbol": "--image-size 12",
    "export ece408-2020 -o": "-o network.onnx",
    "study": "--runs 1 --batches 1",
}
# Tables from CUPTI, kernels compiled for the present card, or its measurements.
NEED_A_CARD = ("profile", "study", "warm faster.onnx", "calibrate")
# test_alexnet.py, test_torch_module.py and test_training.py run these: they take long or need PyTorch.
RUN_ELSEWHERE = re.compile(r"train |export --(alexnet|torch) |.*\.trained\.npz")
# test_quantised_page.py runs this page, whose commands need files of its Python.
QUANTISED_PAGE = "quantise.md"
# The algorithm of the page on adding one; test_pages.py compiles and runs it.
NOT_BUILT = "pixel_rows"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the pages name."""
    path = tmp_path_factory.mktemp("reader")
    model = small_model()
    model.graph.node[0].name = "layer3"  # as one of the commands has it
    onnx.save(model, path / "model.onnx")
    convswap.swap(model).save(path / "faster.onnx")
    capabilities = None if _native.cuda_devices() else [90]
    warm(model, pack=path / "model.pack", batches=[1, 2], compute_capabilities=capabilities)
    np.savez(path / "inputs.npz", x=np.random.default_rng(0).standard_normal((2, 3, 12, 12)))
    (path / "photos").mkdir()
    Image.new("RGB", (20, 30), (90, 60, 30)).save(path / "photos" / "one.png")
    (path / "weights-86.bin").write_bytes(weights_bytes(random_layers()))
    (path / "class").mkdir()
    lab.new(path / "class" / "ada.cu")
    symbol, parameters = write_checkpoint(path, course_symbol(), course_arrays())
    symbol.rename(path / "S.json")
    parameters.rename(path / "P.params")
    return path


def shortened(command: str) -> list[str]:
    """Return the arguments of a command of the pages, with those that shorten it."""
    words = shlex.split(command)[1:]
    text = " ".join(words)
    extra = next((extra for start, extra in SHORTENED.items() if text.startswith(start)), "")
    return [*words, *shlex.split(extra)]


@pytest.fixture
def short_programs(monkeypatch):
    """Shorten the work of commands that have no option for that."""
    monkeypatch.setattr(first_run, "first_run", partial(first_run.first_run, processes=1))


@pytest.mark.usefixtures("short_programs")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if commands(page) and page.name != QUANTISED_PAGE],
    ids=lambda page: page.name,
)
def test_the_commands_of_a_page_run_in_its_order(page, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CONVSWAP_CACHE", str(folder / "cache"))
    for command in commands(page):
        text = command.removeprefix("convswap ")
        if RUN_ELSEWHERE.match(text) or ("--ray" in text and find_spec("ray") is None):
            continue
        status = main(shortened(command))
        captured = capsys.readouterr()
        if NOT_BUILT in command:
            assert (status, NOT_BUILT in captured.err) == (2, True), command
        elif (text in NEED_A_CARD or text.split()[0] in NEED_A_CARD) and not _native.cuda_devices():
            (line,) = captured.err.splitlines()
            assert (status, "no " in line) == (2, True), line
        elif text.startswith("optimize"):
            # No Conv of such a small model may get faster.
            assert (status, "Convs" in captured.out) in ((0, True), (1, True)), captured.err
        else:
            assert status == 0, captured.err
            assert captured.out, command


def test_every_shortened_command_is_one_of_the_pages():
    texts = [command.removeprefix("convswap ") for page in PAGES for command in commands(page)]
    assert [start for start in SHORTENED if not any(text.startswith(start) for text in texts)] == []


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "python" in dict(blocks(page)) and page.name != QUANTISED_PAGE],
    ids=lambda page: page.name,
)
def test_a_block_of_python_runs(page, folder, monkeypatch):
    monkeypatch.chdir(folder)
    convswap.swap("model.onnx").save("faster.onnx")
    for kind, text in blocks(page):
        if kind != "python":
            continue
        names: dict = {}
        exec(compile(text, page.name, "exec"), names)
        x = np.ones((2, 3, 12, 12), np.float32)
        (y,) = names["session"].run(None, {"x": x})
        (expected,) = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"]).run(
            None, {"x": x}
        )
        np.testing.assert_allclose(y, expected, rtol=2e-2, atol=2e-2)
