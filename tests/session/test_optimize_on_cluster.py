"""`optimize --ray` writes one model that is faster on a card of each kind, with the tuning lines of all."""

from __future__ import annotations

import onnx
import pytest
from convswap.graph.fusion.fuse import Stage
from convswap.optimizing import on_cluster
from convswap.optimizing.choice import DEFAULT_VARIANT
from convswap.optimizing.preparation import OptimizeOptions
from pretend_cluster import PretendCluster
from test_optimize import FASTEST_FUSED, network, set_times

__all__ = ["set_times"]

# Only the first Conv is faster.
FASTEST_STEM = {name: {DEFAULT_VARIANT: 1.0} for name in FASTEST_FUSED} | {
    "stem": {DEFAULT_VARIANT: 1.0, Stage.FOLDED: 0.5}
}


@pytest.fixture
def run(set_times, monkeypatch, tmp_path):
    """Return a function that optimises on cards with these times of Convs, and of the whole model."""

    def optimize(cards):
        def enter(name):
            monkeypatch.setenv("CONVSWAP_TUNING", str(tmp_path / name / "tuning.txt"))
            set_times(*cards[name])

        PretendCluster(list(cards), enter).connect(monkeypatch, on_cluster)
        onnx.save(network(), tmp_path / "model.onnx")
        options = OptimizeOptions(device="cpu")
        model, output = str(tmp_path / "model.onnx"), tmp_path / "faster.onnx"
        return on_cluster.optimize_on_cluster("local", model, output, options)

    return optimize


def test_the_model_with_the_best_mean_speedup_is_written(run, tmp_path):
    result = run({"A": (FASTEST_STEM, (2.0, 1.0)), "B": (FASTEST_FUSED, (3.0, 1.0))})
    assert result.written == tmp_path / "faster.onnx" and result.model.endswith("model.onnx")
    assert list(result.notes[-2:]) == [
        f"the model selected on A (9.0) is {speedup}x as fast as the original on {card} (9.0), and its "
        "outputs agree"
        for card, speedup in (("A", "2.00"), ("B", "3.00"))
    ]
    nodes = onnx.load(result.written).graph.node
    assert [node.op_type for node in nodes if node.domain == "convswap"] == ["Conv"]


def test_nothing_is_written_if_the_model_is_slower_on_one_kind(run, tmp_path):
    result = run({"A": (FASTEST_STEM, (2.0, 1.0)), "B": (FASTEST_FUSED, (1.0, 1.1))})
    assert (result.written, result.gains) == (None, False)
    assert not (tmp_path / "faster.onnx").exists() and "0.91x" in result.notes[-1]


def test_nodes_get_the_tuning_lines_of_all_cards():
    def model(*lines):
        nodes = [
            onnx.helper.make_node(
                "Conv", ["x"], ["y"], name=name, domain="convswap", tuned=text, algorithm="auto"
            )
            for name, text in zip("ab", lines, strict=True)
        ]
        return onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], []))

    models = [model("1", "2\n3"), model("4", "2\n5")]
    on_cluster._share_tuning_lines(models)
    for each in models:
        tuned = [next(a.s for a in node.attribute if a.name == "tuned") for node in each.graph.node]
        assert tuned == [b"1\n4", b"2\n3\n5"] and all(len(node.attribute) == 2 for node in each.graph.node)
