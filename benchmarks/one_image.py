"""Time networks on one image: by default, swapped and fused, with and without a CUDA graph.

    python benchmarks/one_image.py --json FILE
    python benchmarks/one_image.py --json FILE resnet50 vgg16 alexnet
    python benchmarks/readme_tables.py

A run is what a program waits for that answers one image at a time: ONNX Runtime's own call, with input and
output on the device, until the output is there. The three models take turns in bursts; a time is the median
of the bursts, of the host's clock, in microseconds. On the CPU there are no CUDA graphs.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from convswap.inputs.model_with_data import open_model_with_data, source_of
from convswap.models import NETWORKS, find
from convswap.output.files import check_writable, write_json
from convswap.reference.metrics import TOLERANCES, relative_l2_error
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session, on_device
from convswap.timing.measure import in_turn

BURSTS, RUNS, WARM_UPS = 15, 100, 20
# What compare allows a network in TF32.
TOLERANCE = TOLERANCES["tf32"]


class OneImage:
    """A session that is run on one image, always from and to the same memory, as a CUDA graph needs it."""

    def __init__(self, model: ir.Model, ours: bool, graph: bool, feeds, device: Device) -> None:
        side = CONVSWAP if ours else DEFAULT
        self._session = make_session(
            model, side.with_options({"enable_cuda_graph": "1"}) if graph else side, device
        )
        self._options = onnxruntime.RunOptions()
        # Without this entry ONNX Runtime's Python takes 40 us to find that it is not there.
        self._options.add_run_config_entry("gpu_graph_id", "0")
        self._binding = self._session.io_binding()
        for name, value in feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        output = self._session.get_outputs()[0]
        shape = [size if isinstance(size, int) else 1 for size in output.shape]
        self._y = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, device.name, 0)
        self._binding.bind_ortvalue_output(output.name, self._y)

    def burst(self, runs: int) -> float:
        """Run so often, each time until the output is there; return the microseconds of a run."""
        begin = time.perf_counter()
        for _ in range(runs):
            self._session.run_with_iobinding(self._binding, self._options)
        self._binding.synchronize_outputs()
        return (time.perf_counter() - begin) * 1e6 / runs

    def output(self) -> np.ndarray:
        """Return the output of the last run."""
        return self._y.numpy()


def times_of(network: str, device: Device, data: str | None, bursts: int, runs: int) -> list[dict]:
    """Return a row for `network` without a CUDA graph and, on a GPU, one with it."""
    tested = open_model_with_data(network, data)
    feeds = on_device(source_of(tested, 1, 1, device).first(1), device)
    models = {
        "default": tested.plain,
        "swapped": swap(tested.model).model,
        "fused": swap(tested.model, fuse=True).model,
    }
    rows = []
    for graph in (False, True) if device.name == "cuda" else (False,):
        runners = {
            name: OneImage(model, name != "default", graph, feeds, device) for name, model in models.items()
        }
        with plain_errors("ONNX Runtime cannot run the model"):
            for runner in runners.values():
                runner.burst(WARM_UPS)
            times = in_turn([partial(runner.burst, runs) for runner in runners.values()], bursts)
        expected = runners["default"].output()
        errors = {name: float(relative_l2_error(runners[name].output(), expected)) for name in runners}
        if max(errors.values()) > TOLERANCE:
            raise ConvswapError(f"{network}: the answers differ by {errors}, more than {TOLERANCE:g}")
        microseconds = {name: float(np.median(own)) for name, own in zip(runners, times, strict=True)}
        rows.append({"network": network, "cuda_graph": graph, "us": microseconds, "relative_l2": errors})
    return rows


def main() -> int:
    """Time the networks and write the file; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where the results go")
    parser.add_argument(
        "networks", nargs="*", default=[], metavar="NETWORK", help="default: all of the course"
    )
    parser.add_argument("--device", metavar="D", help="cuda or cpu; default: the GPU where there is one")
    parser.add_argument("--data", default=None, metavar="NAME", help="fashion-mnist or synthetic")
    parser.add_argument("--bursts", type=int, default=BURSTS, metavar="N", help=f"default: {BURSTS}")
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"of a burst; default: {RUNS}")
    options = parser.parse_intermixed_args()  # networks may follow options
    try:
        if min(options.bursts, options.runs) < 1:
            raise ConvswapError("--bursts and --runs must be at least 1")
        names = [find(name).name for name in options.networks] or list(NETWORKS)
        device = choose_device(options.device)
        options.json.parent.mkdir(parents=True, exist_ok=True)
        check_writable(options.json)
        rows = []
        for number, name in enumerate(names, start=1):
            print(f"{name}, {number} of {len(names)}", file=sys.stderr, flush=True)
            rows += times_of(name, device, options.data, options.bursts, options.runs)
        found = {"environment": environment(device), "bursts": options.bursts, "runs": options.runs}
        write_json(options.json, found | {"rows": rows})
    except (ConvswapError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
