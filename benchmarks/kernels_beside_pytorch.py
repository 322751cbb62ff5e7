"""Times an algorithm, or what the rule chooses, on a suite's layers beside PyTorch, by the card's clock.

    python benchmarks/kernels_beside_pytorch.py many_channels many-channels [--layers REGEX] [--batch B]
        [--precision tf32,float16] [--rounds 5] [--json FILE]
    python benchmarks/kernels_beside_pytorch.py auto one-image

Each time is of a run among many back to back, without ONNX Runtime: the median of rounds in which the sides
take turns. PyTorch's are of its best layout, contiguous or channels-last, whose input already lies so, with
`cudnn.benchmark`, captured in a graph. Prints for each layer the two, the floor, and the relative L2 error of
some outputs against float64. Where the algorithm does not take a layer it says why. Ends with the geometric
mean of ours in times of PyTorch's, for each precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from convswap import _native
from convswap.bench.pytorch_runs import convolution, memory_formats, tensor_of
from convswap.errors import ConvswapError
from convswap.timing.floor import floor_ms
from convswap.timing.measure import in_turn
from convswap.timing.suites import SuiteLayer, suite_layers, usual_batch

try:
    import torch
except ImportError:
    sys.exit("PyTorch is not installed: pip install torch, and run this on a machine with a card")

RUNS = 20
# Outputs whose sums are compared with float64's.
COMPARED = 2000
PRECISIONS = ("tf32", "float16", "bfloat16")


def main() -> int:
    """Print a row for each layer and precision; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("algorithm")
    parser.add_argument("suite")
    parser.add_argument("--layers", metavar="REGEX")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--precision", default="tf32,float16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    names = [each.name for each in _native.catalog() if each.device == "cuda" and not each.by_name_alone]
    if options.algorithm not in (*names, "auto"):
        parser.error(f"{options.algorithm!r} is no algorithm of a card: expected auto or {', '.join(names)}")
    if unknown := [each for each in options.precision.split(",") if each not in PRECISIONS]:
        parser.error(f"--precision {','.join(unknown)}: expected some of {', '.join(PRECISIONS)}")
    if not _native.cuda_devices() or not torch.cuda.is_available():
        parser.error("no NVIDIA card was found by convswap and PyTorch: kernels are timed on a card")
    try:
        layers = suite_layers(options.suite, options.layers)
    except ConvswapError as error:
        parser.error(str(error))
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    (card, *_) = _native.cuda_devices()
    print(f"{card['name']}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    heads = f"{'layer':24} {'batch':>5} {'type':8} {'ms':>8} {'PyTorch':>8} {'times':>6} {'floor':>8}"
    print(f"{heads} {'of it':>5}  error")
    rows = []
    for precision in options.precision.split(","):
        for layer in layers:
            batch = options.batch or usual_batch(options.suite, layer, "cuda")
            row = measured(layer, batch, precision, options.algorithm, options.rounds, card)
            rows.append(row)
            print(told(row), flush=True)
    for precision in options.precision.split(","):
        print(f"{precision}: {gains(rows, precision)}")
    if options.json:
        found = {"card": card["name"], "rows": rows}
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def gains(rows: list[dict[str, Any]], precision: str) -> str:
    """Return the geometric mean of ours over PyTorch's, and how many layers are slower than PyTorch's."""
    of_precision = [row for row in rows if row["precision"] == precision and row["ms"] is not None]
    if not of_precision:
        return "no layer was timed"
    shares = [row["ms"] / row["pytorch_ms"] for row in of_precision]
    slower = sum(share > 1 for share in shares)
    mean = statistics.geometric_mean(shares)
    return f"{mean:.3f} of PyTorch's time, {slower} of {len(shares)} layers slower"


def measured(
    layer: SuiteLayer, batch: int, precision: str, algorithm: str, rounds: int, card: dict[str, Any]
) -> dict[str, Any]:
    """Return a row: what was measured of a layer, or why not."""
    element_type = "float32" if precision == "tf32" else precision
    attributes = layer.attributes
    problem = _native.Problem(
        layer.input_shape(batch), layer.weight_shape, False, element_type, "tf32", **attributes
    )
    row: dict[str, Any] = {"layer": layer.name, "batch": batch, "precision": precision}
    random = np.random.default_rng(0)
    x = random.standard_normal(layer.input_shape(batch), np.float32)
    w = random.standard_normal(layer.weight_shape, np.float32)
    theirs = pytorch_runs(tensor_of(x, precision).cuda(), tensor_of(w, precision).cuda(), layer)
    if algorithm == "auto":
        algorithm = _native.choose(problem, "cuda", "auto")
    row["algorithm"] = algorithm
    why_not = _native.why_not(problem, algorithm, "cuda")
    ours: list[Callable[[], float]] = []
    if why_not:
        row["why_not"] = why_not
    else:
        own_x, own_w = (_native.DeviceArray.from_numpy(as_stored(each, precision)) for each in (x, w))
        y = _native.DeviceArray(problem.output_shape, element_type)
        y.poison()

        def run() -> float:
            return _native.conv_device(own_x, own_w, None, y, algorithm=algorithm, runs=RUNS, **attributes)

        run()
        ours.append(run)
        row["error"] = error_of(y.to_numpy(), own_x.to_numpy(), own_w.to_numpy(), layer)
        row["plan"] = _native.describe_plan(problem, "cuda", algorithm)
    medians = [statistics.median(times) for times in in_turn([*theirs, *ours], rounds)]
    row["pytorch_ms"] = min(medians[: len(theirs)], default=None)
    row["ms"] = medians[-1] if ours else None
    row["floor_ms"] = floor_ms(problem, card, precision)
    return row


def as_stored(values: np.ndarray, precision: str) -> np.ndarray:
    """Return the values in the precision's element type."""
    if precision == "bfloat16":
        import ml_dtypes

        return values.astype(ml_dtypes.bfloat16)
    return values.astype(np.float16) if precision == "float16" else values


def pytorch_runs(x: torch.Tensor, w: torch.Tensor, layer: SuiteLayer) -> list[Callable[[], float]]:
    """Return for each way the tensors may lie a call that gives the milliseconds of a run."""
    return [
        graph_run(x.to(memory_format=each), w.to(memory_format=each), layer)
        for each in memory_formats(layer).values()
    ]


def graph_run(x: torch.Tensor, w: torch.Tensor, layer: SuiteLayer) -> Callable[[], float]:
    """Return a call that replays a graph of some runs and gives the milliseconds of one."""
    convolve = convolution(layer)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            convolve(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RUNS):
            convolve(x, w)

    def replay() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / RUNS

    return replay


def error_of(y: np.ndarray, x: np.ndarray, w: np.ndarray, layer: SuiteLayer) -> float:
    """Return the relative L2 error of some outputs against the float64 sums of what was given."""
    random = np.random.default_rng(1)
    filters_of_group, channels = layer.filters // layer.group, layer.channels // layer.group
    differences, references = [], []
    for _ in range(COMPARED):
        n, k = random.integers(y.shape[0]), random.integers(y.shape[1])
        place = [int(random.integers(extent)) for extent in y.shape[2:]]
        group = k // filters_of_group
        image = x[n, group * channels : (group + 1) * channels].astype(np.float64)
        windows, kept = [slice(None)], [slice(None)]
        for at, extent in zip(place, x.shape[2:], strict=True):
            taps = np.arange(layer.kernel) * layer.dilation + at * layer.stride - layer.padding
            inside = (taps >= 0) & (taps < extent)
            windows.append(taps[inside])
            kept.append(np.flatnonzero(inside))
        window = image[np.ix_(np.arange(channels), *windows[1:])]
        weights = w[k].astype(np.float64)[np.ix_(np.arange(channels), *kept[1:])]
        reference = float((window * weights).sum())
        references.append(reference)
        differences.append(float(y[(n, k, *place)]) - reference)
    return float(np.linalg.norm(differences) / np.linalg.norm(references))


def told(row: dict[str, Any]) -> str:
    """Return the line of a row."""
    head = f"{row['layer']:24} {row['batch']:5} {row['precision']:8} "
    if row["ms"] is None:
        return f"{head}{'-':>8} {row['pytorch_ms']:8.4f}  {row['why_not']}"
    floor = row["floor_ms"]
    of_floor = "-" if floor is None else f"{100 * floor / row['ms']:.0f} %"
    return (
        f"{head}{row['ms']:8.4f} {row['pytorch_ms']:8.4f} {row['pytorch_ms'] / row['ms']:6.2f} "
        f"{floor or float('nan'):8.4f} {of_floor:>5}  {row['error']:.1e} {row['algorithm']}"
    )


if __name__ == "__main__":
    sys.exit(main())
