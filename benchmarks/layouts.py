"""Time networks by default, fused, and fused with tensors between Convs in NHWC, as CUDA graphs.

    python benchmarks/layouts.py                                        # every network below, 1 and 64 images
    python benchmarks/layouts.py resnet50 --precision float16 --batch 64 --pytorch

The networks have random weights and one random batch. Those that convswap has not are torchvision's, exported
by PyTorch, which both have to be there. *nhwc* is `swap(fuse=True, layout="auto")`. A time is the median of
runs in turn, in milliseconds; an error is the relative L2 error against the default side. With --pytorch the
same architecture of torchvision, compiled by `torch.compile`, runs in channels last in a CUDA graph. In
precision ieee none of them uses TF32.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from convswap.cli.arguments import whole_numbers
from convswap.errors import ConvswapError
from convswap.graph.external_weights import as_split
from convswap.graph.swap import swap
from convswap.inputs.model_with_data import open_model_with_data
from convswap.models.networks import ALL_NETWORKS
from convswap.reference.metrics import relative_l2_error
from convswap.runtime.device import choose_device, environment
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, make_session, on_device
from onnx import TensorProto, numpy_helper

from models import captured_runs, medians

NETWORKS = ("resnet50", "vgg16", "mobilenet-v2", "efficientnet-b0", "convnext-tiny", "yolov8n")
PRECISIONS = ("float16", "tf32", "ieee")
RUNS, REPLAYS = 20, 10


def in_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with float16 in place of float32, but for the scales of Resize."""
    kept = {node.input[2] for node in model.graph.node if node.op_type == "Resize"}
    tensors = [tensor for tensor in model.graph.initializer if tensor.name not in kept]
    tensors += [
        attribute.t
        for node in model.graph.node
        if node.op_type == "Constant" and node.output[0] not in kept
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            halves = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(halves, tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def of_torchvision(name: str) -> Any:
    """Return torchvision's network in evaluation mode, with random weights.

    Its BatchNormalizations have the statistics of a random batch. With those of a new network, values of
    EfficientNet shrink from layer to layer, and only the last bias is left of them.
    """
    import torch
    import torchvision

    torch.manual_seed(0)
    network = getattr(torchvision.models, name.replace("-", "_"))()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        network.train()(torch.randn(8, 3, 224, 224))
    return network.eval()


def model_of(name: str, batch: int) -> onnx.ModelProto:
    """Return the network in float32; one of torchvision takes `batch` images."""
    if name in ALL_NETWORKS:
        return ir.to_proto(open_model_with_data(name, "random").model)
    import torch

    images = (torch.zeros(batch, 3, 224, 224),)
    program = torch.onnx.export(of_torchvision(name), images, input_names=["image"], verbose=False)
    return program.model_proto


def row(name: str, precision: str, batch: int, with_pytorch: bool) -> str:
    """Return the row of the table for a network."""
    device = choose_device("cuda")
    model = model_of(name, batch)
    if precision == "float16":
        model = in_float16(model)
    arithmetic = "ieee" if precision == "ieee" else "tf32"
    sides = {
        "default": model,
        "fused": swap(model, fuse=True, precision=arithmetic).model,
        "nhwc": swap(model, fuse=True, precision=arithmetic, layout="auto", batch=batch).model,
    }
    cuda_options = {"use_tf32": "0"} if precision == "ieee" else {}
    (value,) = model.graph.input
    sample = [axis.dim_value for axis in value.type.tensor_type.shape.dim[1:]]
    images = np.random.default_rng(0).standard_normal((batch, *sample), np.float32)
    images = images.astype(np.float16 if precision == "float16" else np.float32)
    feeds = on_device({value.name: onnxruntime.OrtValue.ortvalue_from_numpy(images)}, device)
    outputs = {}
    runs = {}
    for side, its_model in sides.items():
        provider = (DEFAULT if side == "default" else CONVSWAP).with_options(cuda_options)
        session = make_session(as_split(its_model), provider, device)
        runs[side] = BoundRun(session, feeds, device)
        runs[side].once()
        outputs[side] = [output.numpy() for output in runs[side].values()]
    error = max(
        relative_l2_error(own, default)
        for own, default in zip(outputs["nhwc"], outputs["default"], strict=True)
    )
    captured = captured_runs(
        {side: as_split(each) for side, each in sides.items()},
        feeds,
        runs["default"],
        device,
        cuda_options,
    )
    if not captured:
        raise ConvswapError(f"{name} cannot be captured as a CUDA graph")
    ms = medians(captured, device)
    in_torchvision = with_pytorch and name != "yolov8n"
    pytorch = f"{compiled_ms(name, precision, images):.3f}" if in_torchvision else "-"
    times = " | ".join(f"{ms[side]:.3f}" for side in sides)
    gain = f"{ms['fused'] / ms['nhwc']:.2f}x"
    return f"| {name} | {precision} | {batch} | {times} | {pytorch} | {gain} | {error:.1e} |"


def compiled_ms(name: str, precision: str, images: np.ndarray) -> float:
    """Return the median milliseconds of torchvision's network, compiled, in channels last."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision != "ieee"
    dtype = torch.float16 if precision == "float16" else torch.float32
    network = of_torchvision(name).to("cuda", dtype).to(memory_format=torch.channels_last)
    x = torch.from_numpy(images).to("cuda", memory_format=torch.channels_last)
    compiled = torch.compile(network)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            compiled(x)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(RUNS):
        begin.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / REPLAYS)
    return statistics.median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--precision", default="float16,tf32", metavar="P,...")
    parser.add_argument("--batch", default="1,64", metavar="B,...")
    parser.add_argument("--pytorch", action="store_true", help="also compile torchvision's networks")
    options = parser.parse_intermixed_args(arguments)
    try:
        batches = whole_numbers("--batch", options.batch, "1,64")
        precisions = options.precision.split(",")
        if unknown := [each for each in precisions if each not in PRECISIONS]:
            raise ConvswapError(f"--precision {','.join(unknown)}: expected some of {', '.join(PRECISIONS)}")
        print(environment(choose_device("cuda")))
        print("| network | precision | images | default | fused | nhwc | PyTorch | nhwc over fused | error |")
        print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
        for name in options.names:
            for precision in precisions:
                for batch in batches:
                    print(row(name, precision, batch, options.pytorch), flush=True)
    except ConvswapError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
