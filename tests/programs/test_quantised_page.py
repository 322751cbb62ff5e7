"""The blocks of the tutorial on quantised models quantise a model, swap, compare and optimise it."""

from __future__ import annotations

import shlex

import numpy as np
import onnx
import quantised_models as models
from build_tools import REPOSITORY
from convswap.cli.main import main
from test_pages import blocks, commands

PAGE = REPOSITORY / "docs/tutorial/quantise.md"


def test_lines_of_the_page_quantise_a_model_and_its_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    original = models.residual_net(projected=True, normalised=True)
    onnx.save(original, "model.onnx")
    x = np.random.default_rng(3).standard_normal((4, 3, 30, 34)).astype(np.float32)
    np.savez("inputs.npz", x=x)
    (lines,) = [text for kind, text in blocks(PAGE) if kind == "python"]
    assert len([line for line in lines.splitlines() if line.strip()]) <= 12
    exec(compile(lines, PAGE.name, "exec"), {"__name__": "page"})
    swap, compare, optimize = commands(PAGE)
    assert main(shlex.split(swap)[1:]) == 0
    convs = [node for node in original.graph.node if node.op_type == "Conv"]
    assert f"{len(convs)} Conv swapped, 0 left" in capsys.readouterr().out
    fast = onnx.load("fast.onnx")
    assert len(models.quant_convs(fast)) == len(convs) + 1  # and the MatMul
    expected, actual = models.run_plain(original, {"x": x})[0], models.run_swapped(fast, {"x": x})[0]
    # The error of quantised data and weights.
    assert np.linalg.norm(actual - expected) < 0.1 * np.linalg.norm(expected)
    assert main([*shlex.split(compare)[1:], "--device", "cpu", "--no-layers"]) == 0
    # On the CPU quantised Convs are left, so the model need not get faster.
    assert main([*shlex.split(optimize)[1:], "--device", "cpu"]) in (0, 1)
