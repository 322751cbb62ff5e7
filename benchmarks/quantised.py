"""Time quantised networks by default and with QuantConv nodes, beside the same networks in float32.

    python benchmarks/quantised.py                                 # every network below, 1 and 64 images
    python benchmarks/quantised.py resnet50 --batch 64

The networks have random weights. ONNX Runtime quantises them to QDQ models with uint8 activations and int8
weights per channel, calibrated on two random images. *default* is the CUDA provider on the QDQ model,
*float* the float32 network after `swap(fuse=True)`, *int8* the QDQ model after `swap(fuse=True)`. Times are
those of sessions without a CUDA graph, the medians of runs in turn, in milliseconds; *graph* is *int8* as a
CUDA graph. *equal* is the share of images whose largest output is the same for *int8* and *default*,
*difference* the largest difference of outputs over the largest output.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from convswap.cli.arguments import whole_numbers
from convswap.errors import ConvswapError
from convswap.graph.external_weights import as_split
from convswap.graph.swap import swap
from convswap.inputs.model_with_data import open_model_with_data
from convswap.runtime.device import choose_device, environment
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, make_session, on_device
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from models import captured_runs, medians

NETWORKS = ("resnet50", "mobilenet-v2", "yolov8n")


class RandomImages(CalibrationDataReader):
    """Two random images."""

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        generator = np.random.default_rng(0)
        self._feeds = [{name: generator.standard_normal((1, *shape), np.float32)} for _ in range(2)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next feeds; None at the end."""
        return self._feeds.pop() if self._feeds else None


def quantised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the network as a QDQ model, its batch normalisations folded before."""
    (value,) = model.graph.input
    shape = [axis.dim_value for axis in value.type.tensor_type.shape.dim[1:]]
    with tempfile.TemporaryDirectory() as folder:
        plain, folded, result = (str(Path(folder, f"{name}.onnx")) for name in ("plain", "folded", "result"))
        onnx.save(model, plain)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = folded
        onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
        quantize_static(
            folded,
            result,
            RandomImages(value.name, shape),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(result)


def row(name: str, batch: int, model: onnx.ModelProto, codes: onnx.ModelProto) -> str:
    """Return the row of the table for a network."""
    device = choose_device("cuda")
    sides = {
        "default": codes,
        "float": swap(model, fuse=True).model,
        "int8": swap(codes, fuse=True).model,
    }
    (value,) = model.graph.input
    sample = [axis.dim_value for axis in value.type.tensor_type.shape.dim[1:]]
    images = np.random.default_rng(1).standard_normal((batch, *sample), np.float32)
    feeds = on_device({value.name: onnxruntime.OrtValue.ortvalue_from_numpy(images)}, device)
    runs, outputs = {}, {}
    for side, its_model in sides.items():
        session = make_session(as_split(its_model), DEFAULT if side == "default" else CONVSWAP, device)
        runs[side] = BoundRun(session, feeds, device)
        runs[side].once()
        outputs[side] = runs[side].values()[0].numpy()
    ms = medians(runs, device)
    captured = captured_runs({"int8": as_split(sides["int8"])}, feeds, runs["int8"], device)
    graph = f"{medians(captured, device)['int8']:.3f}" if captured else "-"
    default, int8 = (outputs[side].reshape(batch, -1) for side in ("default", "int8"))
    same = float((default.argmax(-1) == int8.argmax(-1)).mean())
    difference = float(np.abs(default - int8).max() / np.abs(default).max())
    times = " | ".join(f"{ms[side]:.3f}" for side in sides)
    gain = f"{ms['default'] / ms['int8']:.1f}x"
    return f"| {name} | {batch} | {times} | {graph} | {gain} | {same:.1%} | {difference:.1e} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--batch", default="1,64", metavar="B,...")
    options = parser.parse_intermixed_args(arguments)
    try:
        batches = whole_numbers("--batch", options.batch, "1,64")
        print(environment(choose_device("cuda")))
        print(
            "| network | images | default | float | int8 | graph | int8 over default | equal | difference |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for name in options.names:
            model = ir.to_proto(open_model_with_data(name, "random").model)
            codes = quantised(model)
            for batch in batches:
                print(row(name, batch, model, codes), flush=True)
    except ConvswapError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
