"""Time the layers of a suite alone: convswap, the default provider and its other options.

Each layer gets seeded random normal data and weights. On a GPU, batches up to 4,096 are timed back to back by
the card's clock, since the host's time to launch a run does not belong to the layer. All others are timed by
the method of `measure`. The errors are against float64, on at most 100 images, fewer if each takes long. If
`against` is "algorithms", the times of all algorithms show how far the planner's choice is from the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convswap import _native
from convswap.bench.pytorch_runs import PyTorchRun, pytorch_runs
from convswap.errors import ConvswapError, batch_sizes, unknown_name
from convswap.graph.algorithms import able_algorithms, check_algorithm
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.progress import Progress
from convswap.reference.metrics import REFERENCE_IMAGES
from convswap.runtime.device import Device, choose_device
from convswap.runtime.layers import INT8, ConvLayer
from convswap.runtime.sessions import AGAINST, DEFAULT, BoundRun, convswap_side, other_sides
from convswap.timing.algorithm_times import algorithm_rows
from convswap.timing.floor import floor_ms
from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.sampler import BACK_TO_BACK, FIND_FASTEST, measure, sample_of, single_runs
from convswap.timing.single_node import (
    BENCH_PRECISIONS,
    samples_of,
    single_node,
    single_node_data,
    single_node_error,
    single_node_feeds,
    single_node_sessions,
    single_node_weights,
)
from convswap.timing.suites import SuiteLayer, suite_layers, usual_batch

ALGORITHMS = "algorithms"
# The largest batch that is timed back to back. Up to it a layer is so short that the host's time to launch a
# run and to wait for it shows.
MAX_BACK_TO_BACK_BATCH = 4096


@dataclass(frozen=True)
class BenchRequest:
    """Layers and batches to time on a device; `precision` is one of `BENCH_PRECISIONS`.

    `batches` has the requested batches. If it is empty, `runs` has the usual batch of each layer.
    """

    layers: tuple[SuiteLayer, ...]
    batches: tuple[int, ...]
    runs: tuple[tuple[SuiteLayer, int], ...]
    precision: str
    algorithm: str
    device: Device


def bench_request(
    suite: str,
    layers: str | None,
    batches: int | Sequence[int] | None,
    precision: str,
    algorithm: str,
    device: str | None,
) -> BenchRequest:
    """Return the request, with the arguments of `run_suite`.

    Raises:
        ConvswapError: a name is not known, no layer matches, a batch is out of range or given twice, or the
            device cannot be used or has no such algorithm.
    """
    if suite == INT8 and precision == DEFAULT_PRECISION:
        precision = INT8
    if precision not in BENCH_PRECISIONS:
        raise unknown_name("precision", precision, BENCH_PRECISIONS)
    check_algorithm(algorithm)
    chosen = choose_device(device)
    sizes = () if batches is None else batch_sizes(batches)
    check_algorithm(algorithm, chosen.name)
    for batch in sizes:
        if sizes.count(batch) > 1:
            raise ConvswapError(f"batch {batch} was given more than once; give each size once")
    wanted = tuple(suite_layers(suite, layers))
    runs = (
        tuple((layer, usual_batch(suite, layer, chosen.name)) for layer in wanted)
        if batches is None
        else tuple((layer, batch) for batch in sizes for layer in wanted)
    )
    return BenchRequest(wanted, sizes, runs, precision, algorithm, chosen)


def run_suite(
    suite: str = "course",
    *,
    layers: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    batches: int | Sequence[int] | None = None,
    device: str | None = None,
    against: str = "default",
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a row for every layer of `suite` and every batch, with the keys of `convswap bench --json`.

    `layers` is a regular expression; only layers whose name contains a match are timed. `precision` is "tf32"
    or "ieee" for float32 tensors, the type of all tensors, "float16" or "bfloat16", or "int8" for a QuantConv
    against the QDQ nodes that it replaces, which the suite "int8" has in place of "tf32". `batches` defaults
    to each layer's usual batch: 10,000 on the GPU and 100 on the CPU for the course, 256 and 8 for a large
    network, and for other suites a batch of the suite on the GPU and 1 on the CPU. Times are medians in
    milliseconds. With `against="all"`, "best_other_ms" and "best_other" have the best of the CUDA provider's
    other options, and of PyTorch's convolutions if PyTorch is installed; otherwise, and on the CPU, both are
    None. "default_ms" is None if the provider has no Conv of the type. With `against="algorithms"`, every
    algorithm of the catalog is measured instead of the default provider. `progress` is called with a few
    words before every row.

    Raises:
        ConvswapError: a name is not known, no layer matches, a batch is out of range or given twice, the
            device cannot be used, or the algorithm does not support a layer.
    """
    if against not in (*AGAINST, ALGORITHMS):
        raise unknown_name("choice of sides", against, (*AGAINST, ALGORITHMS))
    request = bench_request(suite, layers, batches, precision, algorithm, device)
    short = against != ALGORITHMS and any(batch <= MAX_BACK_TO_BACK_BATCH for _, batch in request.runs)
    timer = _timer(request.device) if short else None
    for layer, batch in request.runs:
        if progress is not None:
            progress(f"{layer.name}, batch {batch:,}")
        if against == ALGORITHMS:
            yield _algorithms_row(layer, batch, request)
        else:
            back_to_back_timer = timer if batch <= MAX_BACK_TO_BACK_BATCH else None
            yield _row(layer, batch, request, against, back_to_back_timer)


def _timer(device: Device) -> GpuTimer | None:
    return GpuTimer() if device.name == "cuda" else None


def _row(
    layer: SuiteLayer, batch: int, request: BenchRequest, against: str, timer: GpuTimer | None
) -> dict[str, Any]:
    device, precision = request.device, request.precision
    x = single_node_data(layer, batch, precision)
    alone = single_node(layer, precision, request.algorithm)
    sides = (DEFAULT, convswap_side(device, precision), *other_sides(device, against))
    feeds = single_node_feeds(alone, x, sides, device)
    options = {} if timer is None else timer.provider_options
    runs: dict[str, BoundRun | PyTorchRun] = {
        side.name: BoundRun(session, feeds[side], device)
        for side, session in single_node_sessions(alone, sides, device, options).items()
    }
    if against == "all" and device.name == "cuda" and precision != INT8:
        runs.update(pytorch_runs(layer, x, single_node_weights(layer, precision), precision, timer))
    medians, method = _time(runs, device, timer)
    others = {name: median for name, median in medians.items() if name not in ("default", "convswap")}
    return {**_common(alone, x, batch, request, medians), "others_ms": others, "method": method}


def _common(
    alone: ConvLayer, x: np.ndarray, batch: int, request: BenchRequest, medians: Mapping[str, float]
) -> dict[str, Any]:
    """Return the keys that all rows have in common.

    `x` has data for the layer, for all images of the batch or some of them. `medians` has the milliseconds of
    "convswap", of "default" if it supports the layer, and of others.
    """
    device, precision = request.device, request.precision
    problem = alone.problem({"x": (batch, *x.shape[1:])})
    chosen = _native.choose(problem, device.name, request.algorithm)
    others = [name for name in medians if name not in ("default", "convswap")]
    best_other = min(others, key=lambda name: medians[name], default=None)
    return {
        "layer": alone.name,
        "precision": precision,
        "batch": batch,
        "convswap_ms": medians["convswap"],
        "algorithm": chosen,
        "floor_ms": floor_ms(problem, device.card, alone.arithmetic),
        "default_ms": medians.get("default"),
        "best_other_ms": None if best_other is None else medians[best_other],
        "best_other": best_other,
        "relative_l2_error": single_node_error(
            alone.with_algorithm(chosen), convswap_side(device, precision), device, x
        ),
    }


def _time(
    runs: Mapping[str, BoundRun | PyTorchRun], device: Device, timer: GpuTimer | None
) -> tuple[dict[str, float], str]:
    """Return the median milliseconds of each of `runs`, and a description of the method."""
    samples = {name: sample_of(run, timer) for name, run in runs.items()}
    times = measure(samples, single_runs(device) if timer is None else BACK_TO_BACK)
    medians = {name: each.median for name, each in times.items()}
    if timer is not None:
        max_burst, rounds = BACK_TO_BACK.max_burst, BACK_TO_BACK.samples
        return medians, f"GPU time of up to {max_burst} runs back to back, alternated {rounds} times"
    any_side = next(iter(times.values()))
    kind = "synchronised runs" if any_side.burst == 1 else "bursts of runs"
    return medians, f"{any_side.runs} {kind}, alternated"


def _algorithms_row(layer: SuiteLayer, batch: int, request: BenchRequest) -> dict[str, Any]:
    """Return the row of a layer with the times of every algorithm that supports the problem.

    "algorithm" is the planner's choice for the request's `algorithm`, "convswap_ms" its time, and
    "distance_percent" the percentage by which that time exceeds the best. "best_other" is the fastest of the
    other algorithms. The default provider is not measured.

    Raises:
        ConvswapError: the device cannot run the layer, or its memory does not suffice.
    """
    device, precision, algorithm = request.device, request.precision, request.algorithm
    alone = single_node(layer, precision, algorithm)
    shapes = {"x": layer.input_shape(batch)}
    problem = alone.problem(shapes)
    chosen = _native.choose(problem, device.name, algorithm)
    # `able_algorithms` leaves out the rungs of the ladder, so a rung that was asked for is added.
    names = dict.fromkeys([*able_algorithms(problem, device.name), chosen])
    try:
        times = measure(samples_of(alone, shapes, list(names), device), FIND_FASTEST)
    except RuntimeError as failure:
        raise ConvswapError(
            f"layer {layer.name} cannot be measured at batch {batch}: {failure}; "
            "if memory is short, give a smaller batch"
        ) from failure
    median = times[chosen].median
    others = {name: each.median for name, each in times.items() if name != chosen}
    x = single_node_data(layer, min(batch, REFERENCE_IMAGES), precision)
    return {
        **_common(alone, x, batch, request, {"convswap": median, **others}),
        "distance_percent": 100 * (median / min([median, *others.values()]) - 1),
        "algorithms": algorithm_rows(times),
    }
