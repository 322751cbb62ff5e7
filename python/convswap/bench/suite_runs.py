"""Time the layers of a suite on their own: our side, the default provider and its other options.

Each layer gets seeded random normal data and weights. On a GPU, batches up to 4,096 are timed back to back by
the card's own clock, for the host's time to start a run is not the layer's; all others by the method of
`measure`. The errors are against float64, on at most 100 images, fewer where each is a lot of work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from convswap import _native
from convswap.bench.against_algorithms import algorithms_row
from convswap.bench.pytorch_runs import PyTorchRun, pytorch_runs
from convswap.bench.request import BenchRequest, bench_request
from convswap.errors import unknown_name
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.progress import Progress
from convswap.runtime.device import Device
from convswap.runtime.sessions import AGAINST, DEFAULT, BoundRun, on_device, other_sides, our_side
from convswap.timing.back_to_back import ROUNDS, RUNS, back_to_back, session_sample
from convswap.timing.floor import floor_ms
from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.measure import measure
from convswap.timing.single_node import lone_conv, lone_data, lone_error, lone_sessions, lone_weights
from convswap.timing.suites import SuiteLayer

ALGORITHMS = "algorithms"
# Up to this batch a layer is so short that the host's time to start it and to wait for it shows.
LARGEST_BACK_TO_BACK = 4096


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

    `layers` is a regular expression that keeps the layers in whose name it matches somewhere; `precision` is
    "tf32" or "ieee" for float32 tensors, or the type of all tensors, "float16" or "bfloat16"; `batches`
    defaults to each layer's usual one: 10,000 on the GPU and 100 on the CPU for the course, 256 and 8 for a
    large network, and of the other suites what the layer is usually run with, 1 on the CPU. Times are
    medians in milliseconds. With `against="all"`, the best of the CUDA provider's other options, and of
    PyTorch's convolutions where PyTorch is installed (`convswap.pytorch_runs`), is in
    "best_other_ms" and "best_other"; else, and on CPU, these are None; so is "default_ms" where the provider
    has no Conv of the type. With `against="algorithms"`, every algorithm of the catalog is measured instead
    of the default provider: see `convswap.bench_algorithms`. `progress` is called with a few words before
    every row.

    Raises:
        ConvswapError: a name is not known, no layer matches, a batch is out of range or given twice, the
            device cannot be used, or the algorithm does not support a layer.
    """
    if against not in (*AGAINST, ALGORITHMS):
        raise unknown_name("choice of sides", against, (*AGAINST, ALGORITHMS))
    request = bench_request(suite, layers, batches, precision, algorithm, device)
    short = against != ALGORITHMS and any(batch <= LARGEST_BACK_TO_BACK for _, batch in request.runs)
    timer = _timer(request.device) if short else None
    for layer, batch in request.runs:
        if progress is not None:
            progress(f"{layer.name}, batch {batch:,}")
        if against == ALGORITHMS:
            yield algorithms_row(layer, batch, request)
        else:
            own_timer = timer if batch <= LARGEST_BACK_TO_BACK else None
            yield _row(layer, batch, request, against, own_timer)


def _timer(device: Device) -> GpuTimer | None:
    return GpuTimer() if device.name == "cuda" else None


def _row(
    layer: SuiteLayer, batch: int, request: BenchRequest, against: str, timer: GpuTimer | None
) -> dict[str, Any]:
    device, precision, algorithm = request.device, request.precision, request.algorithm
    x = lone_data(layer, batch, precision)
    alone = lone_conv(layer, precision, algorithm)
    problem = alone.problem({"x": x.shape})
    ours = our_side(device, precision)
    sides = (DEFAULT, ours, *other_sides(device, against))
    feeds = on_device({"x": x}, device)
    options = {} if timer is None else timer.provider_options
    runs: dict[str, BoundRun | PyTorchRun] = {
        side.name: BoundRun(session, feeds, device)
        for side, session in lone_sessions(alone, sides, device, options).items()
    }
    if against == "all" and device.name == "cuda":
        runs.update(pytorch_runs(layer, x, lone_weights(layer, precision), precision, timer))
    timed, method = _time(list(runs.values()), device, timer)
    medians = dict(zip(runs, timed, strict=True))
    others = {name: median for name, median in medians.items() if name not in ("default", "convswap")}
    best_other = min(others, key=lambda name: others[name], default=None)
    chosen = _native.choose(problem, device.name, algorithm)
    return {
        "layer": layer.name,
        "precision": precision,
        "batch": batch,
        "convswap_ms": medians["convswap"],
        "algorithm": chosen,
        "floor_ms": floor_ms(problem, device.card, alone.arithmetic),
        "default_ms": medians.get("default"),
        "best_other_ms": None if best_other is None else others[best_other],
        "best_other": best_other,
        "relative_l2_error": lone_error(alone.with_algorithm(chosen), ours, device, x),
        "others_ms": others,
        "method": method,
    }


def _time(
    runs: Sequence[BoundRun | PyTorchRun], device: Device, timer: GpuTimer | None
) -> tuple[list[float], str]:
    """Return the median milliseconds of each of `runs`, and in words how they were measured."""
    if timer is not None:
        times = back_to_back([session_sample(run, timer) for run in runs])
        return times, f"GPU time of up to {RUNS} runs back to back, alternated {ROUNDS} times"
    measured = measure(runs, bursts=device.name == "cuda")
    few, burst = measured[0].runs, measured[0].burst
    what = "synchronised runs" if burst == 1 else f"bursts of {burst} runs"
    return [times.median for times in measured], f"{few} {what}, alternated"
