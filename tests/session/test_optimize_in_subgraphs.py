"""`optimize` on a model whose Convs are all in subgraphs, where none can be measured alone."""

from __future__ import annotations

import json

import onnx
from convswap.cli.main import main
from convswap.optimizing.optimize import optimize
from convswap.optimizing.page import optimize_html
from convswap.optimizing.report import verdict
from swap_models import conv_in_if

WHY = "it is in a subgraph, where it cannot be measured alone"


def test_it_says_that_no_conv_can_be_measured_and_writes_no_model(tmp_path, device):
    output = tmp_path / "optimized.onnx"
    found = optimize(conv_in_if(), output, device=device)
    assert [(node.taken, node.why) for node in found.nodes] == [("default", WHY)] * len(found.nodes)
    assert (found.whole, found.written, found.speedup, output.exists()) == ((), None, None, False)
    first, second = verdict(found)
    assert first == f"No Conv can be measured alone: the table says why of each of the {len(found.nodes)}."
    assert second == "No file is written; use the model as it is."
    page = optimize_html(found)
    assert first in page and WHY in page


def test_the_command_ends_with_status_1(tmp_path, capsys):
    model, output, result = (tmp_path / name for name in ("in.onnx", "out.onnx", "result.json"))
    onnx.save_model(conv_in_if(), model)
    assert main(["optimize", str(model), "-o", str(output), "--device", "cpu", "--json", str(result)]) == 1
    assert "No Conv can be measured alone" in capsys.readouterr().out
    assert not output.exists() and json.loads(result.read_text())["written"] is None
