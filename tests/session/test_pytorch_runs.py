"""PyTorch's side of bench computes the layer in every layout, and is left out if PyTorch cannot."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from convswap.bench.pytorch_runs import PyTorchRun, memory_formats, pytorch_runs, tensor_of
from convswap.bench.suite_runs import run_suite
from convswap.reference.operators import reference_conv
from convswap.timing.single_node import single_node, single_node_data, single_node_weights
from convswap.timing.suites import SuiteLayer

pytestmark = pytest.mark.extended

LAYERS = (
    SuiteLayer("one axis", 4, 6, 3, 17, stride=2, padding=1, group=2, rank=1),
    SuiteLayer("two axes", 6, 4, 3, 11, stride=2, padding=2, dilation=2, group=2),
    SuiteLayer("three axes", 3, 5, 2, 6, padding=1, rank=3),
)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32", 1e-6), ("bfloat16", 1e-2)])
def test_every_layout_gives_the_convolution(torch, layer, precision, tolerance):
    x, w = single_node_data(layer, 2, precision), single_node_weights(layer, precision)
    reference = reference_conv(
        x.astype(np.float32), w.astype(np.float32), None, single_node(layer, "tf32", "auto").attributes
    )
    formats = memory_formats(layer)
    assert list(formats) == ["pytorch", "pytorch_channels_last"][: 1 if layer.rank == 1 else 2]
    for memory_format in formats.values():
        run = PyTorchRun(layer, tensor_of(x, precision), tensor_of(w, precision), memory_format)
        run.once()
        y = run.result.to(torch.float32).numpy()
        assert np.linalg.norm(y - reference) / np.linalg.norm(reference) < tolerance


def test_there_is_no_side_without_pytorch_or_without_a_card(torch, monkeypatch):
    layer = LAYERS[1]
    data = single_node_data(layer, 1, "tf32"), single_node_weights(layer, "tf32"), "tf32", None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pytorch_runs(layer, *data) == {}
    monkeypatch.setitem(sys.modules, "torch", None)
    assert pytorch_runs(layer, *data) == {}


def test_what_pytorch_cannot_compute_is_left_out(torch, monkeypatch):
    """The host replaces a card: it has the same calls."""
    layer = LAYERS[1]
    data = single_node_data(layer, 1, "tf32"), single_node_weights(layer, "tf32"), "tf32", None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    assert list(pytorch_runs(layer, *data)) == ["pytorch", "pytorch_channels_last"]
    start = PyTorchRun.start

    def start_of_one_layout(self, runs):
        if self._x.is_contiguous(memory_format=torch.channels_last):
            raise RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")
        start(self, runs)

    monkeypatch.setattr(PyTorchRun, "start", start_of_one_layout)
    assert list(pytorch_runs(layer, *data)) == ["pytorch"]


@pytest.mark.gpu
def test_bench_compares_our_side_with_both_layouts(torch):
    (row,) = run_suite("many-channels", layers="64-64-3x3-80", against="all")
    assert {"pytorch", "pytorch_channels_last"} <= row["others_ms"].keys()
    assert all(0 < each < 10 for each in row["others_ms"].values())
