"""Time kernels by the card's clock, without ONNX Runtime: four routines on one harness.

    python benchmarks/kernels.py heuristic SUITE...           # the planner's choice beside other algorithms
    python benchmarks/kernels.py tilings ALGORITHM SUITE...   # the tilings of an algorithm, and estimates
    python benchmarks/kernels.py pytorch ALGORITHM SUITE...   # an algorithm, or auto, beside PyTorch
    python benchmarks/kernels.py separable                    # depthwise and 1x1 Convs in one kernel and two

    [--layers REGEX] [--layout NHWC] [--output-layout NHWC] [--batch 1,64] [--precision tf32,float16]
    [--json FILE]; more with --help

The sides of a problem take turns; a sample is the mean of runs back to back. Tensors have normal values, and
weights are prepared before the runs. Each routine prints a row for a problem, or for a tiling, and a summary.

- `heuristic` times the algorithms whose estimates are within --within times the shortest, and prints the
  problems on which the planner's choice takes more than MISSED times as long as the fastest.
- `tilings` prints how far estimates are off, and how much longer the first tiling takes than the fastest.
- `pytorch` takes PyTorch's faster layout, contiguous or channels last, with `cudnn.benchmark`, in a CUDA
  graph. It prints errors against float64, and the geometric mean of our times over PyTorch's.
- `separable` times pairs of MobileNetV2, of PP-OCRv4's detector and of large images (these at batch 1 only).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from convswap import _native
from convswap.bench.pytorch_runs import convolution, memory_formats, tensor_of
from convswap.cli.arguments import whole_numbers
from convswap.errors import ConvswapError
from convswap.output.files import check_writable, write_json
from convswap.reference.metrics import relative_l2_error
from convswap.reference.operators import reference_conv
from convswap.timing.floor import floor_ms
from convswap.timing.sampler import Sample, StoppingRule, measure
from convswap.timing.single_node import SINGLE_NODE_PRECISIONS, single_node_data, single_node_weights
from convswap.timing.suites import SuiteLayer, suite_layers, usual_batch
from convswap.timing.timed_conv import Tensors, TimedConv

RULE = StoppingRule(samples=5, seconds=60, burst_ms=4, max_burst=20)
# The planner's choice misses if it takes longer than this times the fastest.
MISSED = 1.05
# Problems with a larger tensor, in bytes, are left out.
LARGEST = 6e9

Row = dict[str, Any]
Options = argparse.Namespace


@dataclass(frozen=True)
class Case:
    """A suite's layer with a batch, a precision, and the layouts of x and y."""

    layer: SuiteLayer
    batch: int
    precision: str
    layout: str = "NCHW"
    output_layout: str = "NCHW"

    @property
    def layouts(self) -> dict[str, str]:
        """The attributes of a LayoutConv; none for NCHW."""
        layouts = {"input_layout": self.layout, "output_layout": self.output_layout}
        return {name: layout for name, layout in layouts.items() if layout != "NCHW"}

    @property
    def conv(self) -> TimedConv:
        """The Conv with the activation after it."""
        n, c, *spatial = self.layer.input_shape(self.batch)
        x_shape = (n, c, *spatial) if self.layout == "NCHW" else (n, *spatial, c)
        attributes = {**self.layer.attributes, **self.layer.epilogue, **self.layouts}
        return TimedConv(x_shape, self.layer.weight_shape, self.precision, attributes=attributes)

    @cached_property
    def problem(self) -> _native.Problem:
        """The planner's problem."""
        return self.conv.problem()

    @property
    def bytes(self) -> int:
        """The size of the larger of input and output."""
        elements = max(map(math.prod, (self.layer.input_shape(self.batch), self.problem.output_shape)))
        return elements * (4 if self.conv.tensor_type == "float32" else 2)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return input and weights; four samples are drawn and repeated, since drawing takes longest."""
        samples = single_node_data(self.layer, min(self.batch, 4), self.precision)
        x = np.resize(samples, (self.batch, *samples.shape[1:]))
        return x, single_node_weights(self.layer, self.precision)

    def on_card(self) -> Tensors:
        """Return input, weights and output on the card."""
        x, w = self.arrays()
        if self.layout == "NHWC":
            x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
        x, w = map(_native.DeviceArray.from_numpy, (x, w))
        y = _native.DeviceArray(self.problem.output_shape, self.conv.tensor_type)
        return {"x": x, "w": w, "b": None, "y": y}

    @property
    def named(self) -> Row:
        """The columns of a row that name the problem."""
        return {
            "layer": self.layer.name,
            "batch": self.batch,
            "precision": self.precision,
            "layout": self.layout,
            "output_layout": self.output_layout,
        }

    def row(self, **measured: Any) -> Row:
        """Return the row of what was measured."""
        return {**self.named, **measured, "floor_ms": floor_ms(self.problem, card(), self.precision)}


def card() -> Mapping[str, Any]:
    """Return the facts of the first card."""
    return _native.cuda_devices()[0]


def cases(options: Options, default_batches: Callable[[str, SuiteLayer], Sequence[int]]) -> list[Case]:
    """Return the cases of the suites, layer by layer; those with too large tensors are left out with a line.

    Raises:
        ConvswapError: a suite is unknown, no layer matches, or every case is too large.
    """
    every = [
        Case(layer, batch, precision, options.layout, options.output_layout or options.layout)
        for suite in options.suites
        for layer in suite_layers(suite, options.layers)
        for precision in options.precision
        for batch in options.batch or default_batches(suite, layer)
    ]
    fitting = [case for case in every if case.bytes <= LARGEST]
    if len(fitting) < len(every):
        print(f"{len(every) - len(fitting)} problems are left out: a tensor of more than {LARGEST:.0e} bytes")
    if not fitting:
        raise ConvswapError("every problem has too large a tensor; give a smaller --batch")
    return fitting


def medians(sides: Mapping[Any, Sample], options: Options) -> dict[Any, float]:
    """Return the median milliseconds of each side."""
    times = measure(sides, replace(RULE, samples=options.rounds))
    return {side: each.median for side, each in times.items()}


def usual(suite: str, layer: SuiteLayer) -> list[int]:
    """Return the batch that a layer of the suite usually runs with."""
    return [usual_batch(suite, layer, "cuda")]


# heuristic


def heuristic(options: Options) -> Iterator[Row]:
    """Yield a row for each problem: the estimates and times of the algorithms that could be the fastest."""
    found = cases(options, lambda *_: [1, 8, 64, 256])
    kernels = {
        kernel
        for case in found
        for algorithm in candidates(case.problem, options.within)
        for kernel in _native.kernels_of(case.problem, "cuda", algorithm)
    }
    print(f"{card()['name']}: compiling those of {len(kernels)} kernels that the store lacks", flush=True)
    _native.compile_ahead(sorted(kernels), card()["compute_capability"])
    rows = []
    for case in found:
        estimates = candidates(case.problem, options.within)
        tensors = case.on_card()
        times = medians({name: case.conv.sample(tensors, name) for name in estimates}, options)
        chosen = next(iter(times))
        ratio = times[chosen] / min(times.values())
        rows.append(case.row(rule=chosen, ms=times, estimates_ms=estimates, rule_over_best=ratio))
        if ratio > MISSED:
            print(heuristic_line(rows[-1]), flush=True)
        yield rows[-1]
    missed = sum(row["rule_over_best"] > MISSED for row in rows)
    print(f"{card()['name']}: {len(rows)} problems; the choice is above {MISSED} in {missed}")
    print(f"worst: {heuristic_line(max(rows, key=lambda row: row['rule_over_best']))}")


def candidates(problem: _native.Problem, within: float) -> dict[str, float | None]:
    """Return the estimated ms of the algorithms that could be the fastest, the planner's choice first."""
    estimates: dict[str, float] = {}
    for entry in _native.catalog():
        if entry.device != "cuda" or entry.by_name_alone or _native.why_not(problem, entry.name, "cuda"):
            continue
        estimate = _native.alternatives(problem, entry.name, 1)[0]["milliseconds"]
        if estimate:
            estimates[entry.name] = estimate
    chosen = _native.choose(problem, "cuda")
    limit = within * min(estimates.values(), default=0.0)
    near = {name: estimate for name, estimate in estimates.items() if estimate <= limit}
    return {chosen: estimates.get(chosen)} | near


def heuristic_line(row: Row) -> str:
    """Return the line of a row."""
    times = ", ".join(
        f"{name} {ms:.4f} (estimated {row['estimates_ms'][name] or math.nan:.4f})"
        for name, ms in row["ms"].items()
    )
    return f"{row['layer']:24} {row['batch']:4} {row['precision']:8} {row['rule_over_best']:5.2f}: {times}"


# tilings


def tilings(options: Options) -> Iterator[Row]:
    """Yield a row for each tiling of each problem, in the order of the estimates."""
    rows: list[Row] = []
    for case in cases(options, usual):
        for following in [{"activation": name} for name in options.activation] or [case.layer.epilogue]:
            variant = replace(case, layer=replace(case.layer, **following)) if following else case
            try:
                offers = _native.alternatives(variant.problem, options.algorithm, options.most)
            except ConvswapError as error:
                print(f"{case.layer.name}: {error}")
                continue
            tensors, count = variant.on_card(), len(offers)
            sides = {i: variant.conv.sample(tensors, options.algorithm, i) for i in range(count)}
            times = medians(sides, options)
            name = " ".join([case.layer.name, *map(str, following.values())])
            for tiling, offer in enumerate(offers):
                measured = {"tiling": offer["tiling"], "ms": times[tiling]}
                measured["estimate_ms"] = offer["milliseconds"] or math.nan
                rows.append({**case.named, "layer": name, **measured})
                ratio = times[tiling] / rows[-1]["estimate_ms"]
                print(
                    f"{name:24} {tiling:2} {rows[-1]['estimate_ms']:8.4f} {times[tiling]:8.4f} {ratio:6.2f}"
                )
                yield rows[-1]
    ratios = [row["ms"] / row["estimate_ms"] for row in rows]
    if not ratios:
        raise ConvswapError(f"{options.algorithm} takes none of the layers")
    off = math.exp(math.sqrt(statistics.fmean(math.log(ratio) ** 2 for ratio in ratios))) - 1
    print(f"took {min(ratios):.2f} to {max(ratios):.2f} times the estimate, {off:.0%} off on average")
    for key in dict.fromkeys((row["layer"], row["batch"], row["precision"]) for row in rows):
        times_of_key = [row["ms"] for row in rows if (row["layer"], row["batch"], row["precision"]) == key]
        print(f"{' '.join(map(str, key)):40} takes {times_of_key[0] / min(times_of_key):.2f} times its best")


# pytorch


def pytorch(options: Options) -> Iterator[Row]:
    """Yield a row for each problem: our time, PyTorch's, and our error against float64."""
    import torch

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    print(f"{card()['name']}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    head = f"{'layer':24} {'batch':>5} {'type':8} {'ms':>8} {'PyTorch':>8} {'times':>6} {'floor':>8}"
    print(f"{head} {'of it':>5}  error")
    ratios: dict[str, list[float]] = {}
    for case in cases(options, usual):
        auto = options.algorithm == "auto"
        algorithm = _native.choose(case.problem, "cuda") if auto else options.algorithm
        x, w = (tensor_of(each, case.precision).cuda() for each in case.arrays())
        sides: dict[str, Sample] = {
            name: graph_sample(x.to(memory_format=layout), w.to(memory_format=layout), case.layer)
            for name, layout in memory_formats(case.layer).items()
        }
        row = case.row(algorithm=algorithm, ms=None)
        row["why_not"] = _native.why_not(case.problem, algorithm, "cuda")
        if not row["why_not"]:
            tensors = case.on_card()
            sides["convswap"] = case.conv.sample(tensors, algorithm)
            row["error"] = error_of(case, tensors, algorithm)
            row["plan"] = _native.describe_plan(case.problem, "cuda", algorithm)
        times = medians(sides, options)
        row["ms"] = times.pop("convswap", None)
        row["pytorch_ms"] = min(times.values())
        if row["ms"] is not None:
            ratios.setdefault(case.precision, []).append(row["ms"] / row["pytorch_ms"])
        print(pytorch_line(row), flush=True)
        yield row
    for precision, own in ratios.items():
        slower, mean = sum(ratio > 1 for ratio in own), statistics.geometric_mean(own)
        print(f"{precision}: {mean:.3f} of PyTorch's time, {slower} of {len(own)} layers slower")


def graph_sample(x: Any, w: Any, layer: SuiteLayer) -> Sample:
    """Return a sample of PyTorch's Conv of two CUDA tensors: a graph of some runs, replayed."""
    import torch

    convolve = convolution(layer)
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            convolve(x, w)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(RULE.max_burst):
            convolve(x, w)

    def replay(_runs: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end) / RULE.max_burst)

    return replay


def error_of(case: Case, tensors: Tensors, algorithm: str) -> float:
    """Return the relative L2 error of the convolution of the first sample, without the activation."""
    tensors["y"].poison()
    attributes = case.layer.attributes
    _native.conv_device(
        **tensors, algorithm=algorithm, precision=case.conv.arithmetic, **attributes, **case.layouts
    )
    x, w = case.arrays()
    first = tensors["y"].to_numpy()[:1]
    if case.output_layout == "NHWC":
        first = np.moveaxis(first, -1, 1)
    return float(relative_l2_error(first, reference_conv(x[:1], w, None, attributes)))


def pytorch_line(row: Row) -> str:
    """Return the line of a row."""
    head = f"{row['layer']:24} {row['batch']:5} {row['precision']:8} "
    if row["ms"] is None:
        return f"{head}{'-':>8} {row['pytorch_ms']:8.4f}  {row['why_not']}"
    floor = row["floor_ms"] or math.nan
    return (
        f"{head}{row['ms']:8.4f} {row['pytorch_ms']:8.4f} {row['pytorch_ms'] / row['ms']:6.2f} {floor:8.4f} "
        f"{floor / row['ms']:5.0%}  {row['error']:.1e} {row['algorithm']}"
    )


# separable


@dataclass(frozen=True)
class Pair:
    """A depthwise 3x3 Conv with ReLU6, and the 1x1 Conv after it.

    `channels` and `size` (height and width) are those of the input, `outputs` the 1x1 Conv's channels.
    """

    channels: int
    outputs: int
    size: int
    stride: int = 1

    def __str__(self) -> str:
        """Return "32>16 112", "96>24 112 s2"."""
        return f"{self.channels}>{self.outputs} {self.size}" + (f" s{self.stride}" if self.stride > 1 else "")


PAIRS = (
    *(Pair(32, 16, 112), Pair(96, 24, 112, 2), Pair(144, 24, 56), Pair(144, 32, 56, 2), Pair(192, 32, 28)),
    *(Pair(16, 32, 368), Pair(32, 32, 184, 2), Pair(32, 16, 512), Pair(96, 24, 512, 2)),
)
# One image of this height fills a card.
LARGE_IMAGE = 180


def separable(options: Options) -> Iterator[Row]:
    """Yield a row for each pair: the time of two nodes, and of every tiling of one `separable` kernel."""
    head = f"{'pair':14} {'batch':>5} {'type':8} {'two nodes':>9} {'separable':>9} {'best':>9}"
    print(f"{head} {'gain':>6} floor error")
    for precision in options.precision:
        for batch in options.batch or [64, 1]:
            for pair in PAIRS:
                if batch == 1 or pair.size < LARGE_IMAGE:
                    row = separable_row(pair, batch, precision, options)
                    print(separable_line(row), flush=True)
                    yield row


def separable_row(pair: Pair, batch: int, precision: str, options: Options) -> Row:
    """Return what was measured of a pair."""
    element_type = "float32" if precision == "tf32" else precision
    random = np.random.default_rng(0)
    x, d, db, w, b = (
        _native.DeviceArray.from_numpy(random.standard_normal(shape, np.float32).astype(element_type))
        for shape in (
            (batch, pair.channels, pair.size, pair.size),
            *((pair.channels, 1, 3, 3), (pair.channels,)),
            *((pair.outputs, pair.channels, 1, 1), (pair.outputs,)),
        )
    )
    relu6 = {"activation": "Clip", "activation_alpha": 0.0, "activation_beta": 6.0}
    first = {"pads": [1] * 4, "strides": [pair.stride] * 2, "group": pair.channels, **relu6}
    joined = {f"depthwise_{name}": value for name, value in first.items() if name != "group"}
    depthwise = _native.Problem(x.shape, d.shape, True, element_type, **first)
    both = _native.Problem(
        x.shape, w.shape, True, element_type, depthwise_shape=d.shape, has_depthwise_bias=True, **joined
    )
    between = _native.DeviceArray(depthwise.output_shape, element_type)
    y, y_of_two = (_native.DeviceArray(both.output_shape, element_type) for _ in range(2))

    def two_nodes(runs: int) -> float:
        return _native.conv_device(x, d, db, between, runs=runs, **first) + _native.conv_device(
            between, w, b, y_of_two, runs=runs
        )

    def one_kernel(tiling: int, runs: int) -> float:
        extra = {"depthwise": d, "depthwise_bias": db, "algorithm": "separable", "alternative": tiling}
        return _native.conv_device(x, w, b, y, runs=runs, **extra, **joined)

    why_not = _native.why_not(both, "separable", "cuda")
    offers = [] if why_not else _native.alternatives(both, "separable", 20)
    estimates = [offer["milliseconds"] for offer in offers]
    sides = {-1: two_nodes, **{tiling: partial(one_kernel, tiling) for tiling in range(len(estimates))}}
    times = medians(sides, options)
    row = {
        "pair": str(pair),
        "batch": batch,
        "precision": precision,
        "chosen": _native.choose(both, "cuda"),
        "why_not": why_not,
        "two_nodes_ms": times.pop(-1),
        "separable_ms": list(times.values()),
        "estimates_ms": estimates,
        "floor_ms": floor_ms(both, card(), precision),
    }
    if estimates:
        one_kernel(0, 1)
        outputs = (each.to_numpy().astype(np.float64) for each in (y, y_of_two))
        row["relative_l2"] = float(relative_l2_error(*outputs))
    return row


def separable_line(row: Row) -> str:
    """Return the line of a row."""
    head = f"{row['pair']:14} {row['batch']:5} {row['precision']:8} {row['two_nodes_ms']:9.4f}"
    if row["why_not"]:
        return f"{head}  {row['why_not']}"
    first, best = row["separable_ms"][0], min(row["separable_ms"])
    return (
        f"{head} {first:9.4f} {best:9.4f} {row['two_nodes_ms'] / first:5.2f}x "
        f"{(row['floor_ms'] or math.nan) / first:5.0%} {row['relative_l2']:.0e} {row['chosen']}"
    )


def parsed(arguments: Sequence[str] | None) -> Options:
    """Return the options of the command line; ends the program with one line where they are wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    routines = parser.add_subparsers(dest="routine", required=True, metavar="ROUTINE")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--batch", metavar="B,...")
    shared.add_argument("--precision", default="tf32,float16", metavar="P,...")
    shared.add_argument("--rounds", type=int, default=RULE.samples, metavar="N")
    shared.add_argument("--json", type=Path, metavar="FILE")
    on_suites = argparse.ArgumentParser(add_help=False)
    on_suites.add_argument("suites", nargs="+", metavar="SUITE")
    on_suites.add_argument("--layers", metavar="REGEX")
    layouts = ("NCHW", "NHWC")
    on_suites.add_argument("--layout", choices=layouts, default="NCHW", help="of input and output")
    on_suites.add_argument("--output-layout", choices=layouts, help="of the output, if it differs")
    of_algorithm = argparse.ArgumentParser(add_help=False)
    of_algorithm.add_argument("algorithm")
    add = routines.add_parser("heuristic", parents=[on_suites, shared])
    add.add_argument("--within", type=float, default=3.0, metavar="TIMES", help="of the shortest estimate")
    add = routines.add_parser("tilings", parents=[of_algorithm, on_suites, shared])
    add.add_argument("--most", type=int, default=8, metavar="N", help="tilings of a problem")
    add.add_argument("--activation", default="", metavar="A,...", help="in place of the suite's")
    routines.add_parser("pytorch", parents=[of_algorithm, on_suites, shared])
    routines.add_parser("separable", parents=[shared])
    options = parser.parse_args(arguments)
    try:
        options.batch = options.batch and whole_numbers("--batch", options.batch, "1,64")
    except ConvswapError as error:
        parser.error(str(error))
    options.precision = options.precision.split(",")
    known = SINGLE_NODE_PRECISIONS if options.routine != "separable" else ("tf32", "float16")
    if unknown := [each for each in options.precision if each not in known]:
        parser.error(f"--precision {','.join(unknown)}: expected some of {', '.join(known)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected a number above 0")
    if options.routine == "tilings":
        options.activation = [name for name in options.activation.split(",") if name]
    names = [each.name for each in _native.catalog() if each.device == "cuda" and not each.by_name_alone]
    if options.routine == "pytorch":
        names.append("auto")
    if getattr(options, "algorithm", names[0]) not in names:
        parser.error(f"{options.algorithm!r} is no algorithm for a card: expected one of {', '.join(names)}")
    if not _native.cuda_devices():
        parser.error("no NVIDIA card was found: kernels are timed on a card")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a routine; return the exit status."""
    options = parsed(arguments)
    routine: Callable[[Options], Iterable[Row]] = {
        "heuristic": heuristic,
        "tilings": tilings,
        "pytorch": pytorch,
        "separable": separable,
    }[options.routine]
    try:
        if options.json:
            check_writable(options.json)
        rows = list(routine(options))
        if options.json:
            write_json(options.json, {"card": card()["name"], "rows": rows})
    except ConvswapError as error:
        print(f"kernels.py: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"kernels.py: {error}; install PyTorch, on a machine with a card", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
