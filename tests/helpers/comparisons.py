"""Small models for `compare` and `bench`, an example of a comparison, and the schema of its JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from convswap.comparison.result import Comparison, LayerResult, SideResult
from convswap.graph.swap import NotSwapped
from convswap.runtime.device import Device
from convswap.timing.sampler import Times
from onnx import helper
from swap_models import make_model, tensor_info, weights

jsonschema = pytest.importorskip("jsonschema")
SCHEMA = json.loads(Path(__file__).with_name("compare_schema.json").read_text(encoding="utf-8"))


def checked(comparison: Comparison) -> dict:
    """Return the JSON of `comparison` after checking it against the schema; NaN is not allowed."""
    written = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    jsonschema.validate(written, SCHEMA)
    return written


def small_model(*, batch: int | str = "n", side: int | str = 12) -> onnx.ModelProto:
    """Return Conv, Relu and Conv, from x [batch, 3, side, side]."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "w2"], ["y"], name="second", strides=[2, 2]),
    ]
    tensors = [weights("w1", 8, 3, 3, 3), weights("b1", 8), weights("w2", 4, 8, 3, 3)]
    return make_model(nodes, tensors, inputs=[tensor_info("x", batch, 3, side, side)])


def saved(model: onnx.ModelProto, folder: Path, **options) -> str:
    path = folder / "model.onnx"
    onnx.save_model(model, path, **options)
    return str(path)


LONG_NODE = (
    "/backbone/stage_3/block_17/branch_a/depthwise/conv_with_a_name_that_is_longer_than_any_column/Conv"
)
REASON = (
    "ConvTranspose is a transposed convolution, which the library does not compute, whatever its attributes"
)


def example(**changes) -> Comparison:
    layers = (
        LayerResult(
            "conv1",
            "few_channels",
            {"default": 47.8, "convswap": 0.885},
            0.532,
            {"default": 3.1e-4, "convswap": 2.9e-4},
        ),
        LayerResult(
            LONG_NODE,
            "naive",
            {"default": 9.22, "convswap": 1.05},
            None,
            {"default": 3e-4, "convswap": 3.1e-4},
        ),
    )
    comparison = Comparison(
        model="net.onnx",
        device=Device("cuda", "asked for", {"name": "NVIDIA H200"}),
        precision="tf32",
        options={"algorithm": "auto"},
        environment={
            "card": "NVIDIA H200",
            "driver": "580.159",
            "cuda": "13.0",
            "onnxruntime": "1.31.1",
            "convswap": "0.1.0",
        },
        images=10_000,
        batch=10_000,
        truth_images=100,
        dataset="fashion-mnist",
        sides={
            "default": SideResult(Times(59.2, 60.1, 812.0, 20), 0.7653, 1.2e-3, 4.1e-4),
            "convswap": SideResult(Times(4.47, 4.6, 9.8, 20), 0.7654, 1.1e-3, 4.0e-4),
        },
        top1_agreement=0.99985,
        swapped=2,
        left=(NotSwapped("deconvolution", "ConvTranspose", REASON),),
        layers=layers,
        tolerance=2e-3,
        notes=("both sides ran the same data",),
    )
    return replace(comparison, **changes)


ROW_KEYS = {
    "layer", "precision", "batch", "convswap_ms", "algorithm", "floor_ms", "default_ms", "best_other_ms",
    "best_other", "relative_l2_error",
}  # fmt: skip
