"""`convswap explain` for Convs whose shapes come from a run of the model."""

from __future__ import annotations

import convswap
import numpy as np
from convswap.planning import problems
from onnx import helper, numpy_helper
from swap_models import conv_and_activation, make_model, weights


def test_every_conv_of_a_network_has_the_shapes_that_a_run_gives_it(monkeypatch):
    with monkeypatch.context() as without_runs:
        without_runs.setattr(problems, "Capture", None)
        inferred = convswap.explain("ece408-2019fa", device="cpu", batch=3)
    monkeypatch.setattr(problems, "_inferred", lambda model, shapes, names: {})
    run = convswap.explain("ece408-2019fa", device="cpu", batch=3)
    assert [conv.problem for conv in inferred.convs] == [conv.problem for conv in run.convs]
    assert [conv.node for conv in run.convs] == ["conv1", "conv2"]
    assert "x=3x12x33x33" in run.convs[1].problem


def test_shapes_that_depend_on_values_come_from_a_run():
    """The end of the slice is the largest extent of x, which shape inference does not follow."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ReduceMax", ["shape"], ["end"], keepdims=1),
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["cut"]),
        helper.make_node("Conv", ["cut", "w"], ["y"], name="conv"),
    ]
    constants = [
        numpy_helper.from_array(np.array([value]), name) for name, value in (("start", 1), ("axis", 3))
    ]
    model = make_model(nodes, [*constants, weights("w", 4, 3, 3, 3)])
    (conv,) = convswap.explain(model, device="cpu").convs
    assert "x=2x3x9x7 w=4x3x3x3" in conv.problem


def test_shapes_of_fused_convs_come_from_a_run_where_inference_finds_none(monkeypatch):
    fused = convswap.swap(conv_and_activation(), fuse=True).to_proto()
    inferred = convswap.explain(fused, device="cpu", batch=3)
    monkeypatch.setattr(problems, "_inferred", lambda model, shapes, names: {})
    run = convswap.explain(fused, device="cpu", batch=3)
    assert [conv.problem for conv in run.convs] == [conv.problem for conv in inferred.convs]
    assert "x=3x2x3x4" in run.convs[1].problem
