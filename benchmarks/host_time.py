"""Time what a node costs the host: chains of tiny nodes, by ONNX Runtime's provider and by convswap.

    python benchmarks/host_time.py benchmarks/h200/host-time.json

A chain's run is started again and again, and waited for each time when the clock has stopped. A node's time
is the difference between a long chain and a short one, so that what a run costs however many nodes it has is
not in it. On a card that is ONNX Runtime's own work, the op's, and the driver's calls that start kernels: one
of Relu and of ours. On the CPU it is the computation too, of 8 channels of 8x8.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from convswap.output.files import check_writable, write_json
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, on_device
from onnx import TensorProto, helper, numpy_helper

CHANNELS, SIZE = 8, 8
SHORT, LONG = 20, 120
RUNS, WARM_UPS = 200, 30


def chain(op: str, nodes: int) -> onnx.ModelProto:
    """Return so many nodes in a row: `Relu`, a `depthwise` Conv of 3x3 taps or a `pointwise` one."""
    shape = ["batch", CHANNELS, SIZE, SIZE]
    names = ["x", *(f"t{number}" for number in range(1, nodes)), "y"]
    rng = np.random.default_rng(0)
    row, weights = [], []
    for number, (before, after) in enumerate(itertools.pairwise(names)):
        if op == "Relu":
            row.append(helper.make_node("Relu", [before], [after]))
            continue
        group, kernel = (CHANNELS, 3) if op == "depthwise" else (1, 1)
        taps = rng.standard_normal((CHANNELS, CHANNELS // group, kernel, kernel), dtype=np.float32)
        # Values keep their size from node to node.
        taps /= np.sqrt(np.square(taps).sum(axis=(1, 2, 3), keepdims=True))
        weights.append(numpy_helper.from_array(taps, f"w{number}"))
        padding = [kernel // 2] * 4
        row.append(helper.make_node("Conv", [before, f"w{number}"], [after], group=group, pads=padding))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y"))
    graph = helper.make_graph(row, op, [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def microseconds_of_run(model: onnx.ModelProto, side: Side, device: Device) -> float:
    """Return the median of what it takes to start a run."""
    x = np.random.default_rng(1).standard_normal((1, CHANNELS, SIZE, SIZE), dtype=np.float32)
    run = BoundRun(make_session(model, side, device), on_device({"x": x}, device), device)
    times = []
    for _ in range(WARM_UPS + RUNS):
        begin = time.perf_counter()
        run.start(1)
        times.append(1e6 * (time.perf_counter() - begin))
        run.wait()
    return statistics.median(times[WARM_UPS:])


def microseconds_of_node(op: str, side: Side, device: Device) -> float:
    """Return what one node more adds to a run."""
    whole = {}
    for nodes in (SHORT, LONG):
        model = chain(op, nodes)
        whole[nodes] = microseconds_of_run(
            swap(model).to_proto() if side is CONVSWAP else model, side, device
        )
    return (whole[LONG] - whole[SHORT]) / (LONG - SHORT)


def main() -> int:
    """Time the chains and write the file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="where the results go")
    parser.add_argument("--device", metavar="D", help="cuda or cpu; default: the GPU where there is one")
    options = parser.parse_args()
    try:
        device = choose_device(options.device)
        options.file.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.file)
        rows = []
        for op, sides in (
            ("Relu", {"default": DEFAULT}),
            ("depthwise", {"default": DEFAULT, "convswap": CONVSWAP}),
            ("pointwise", {"default": DEFAULT, "convswap": CONVSWAP}),
        ):
            us = {name: microseconds_of_node(op, side, device) for name, side in sides.items()}
            rows.append({"op": op, "us": us})
            print(f"{op:10}", *(f"{name} {each:.2f} us a node" for name, each in us.items()), flush=True)
        write_json(options.file, {"environment": environment(device), "device": device.name, "rows": rows})
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
