"""Time the layers of a suite on their own: our side, the default provider and its other options.

Each layer gets seeded random normal data and weights. The method is `measure`'s; the errors are against
float64, on at most 100 images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from onnxruntime import InferenceSession
from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.algorithms import check_algorithm
from convswap.bench_algorithms import algorithms_row, print_algorithms
from convswap.compare import AGAINST
from convswap.device import Device, choose_device, environment
from convswap.errors import ConvswapError, unknown_name
from convswap.floor import floor_ms
from convswap.layers import ConvLayer
from convswap.lone_conv import LONE_PRECISIONS, lone_conv, lone_data, lone_error
from convswap.measure import measure
from convswap.report import error, milliseconds, plain_table, times_faster, versions_line
from convswap.sessions import DEFAULT, BoundRun, Side, make_session, on_device, other_sides, our_side
from convswap.suites import SuiteLayer, suite_layers
from convswap.swap import DEFAULT_PRECISION

ALGORITHMS = "algorithms"
_DEFAULT_BATCH = {"cuda": 10_000, "cpu": 100}


def run_suite(
    suite: str = "course",
    *,
    layers: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    batches: Sequence[int] | None = None,
    device: str | None = None,
    against: str = "default",
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for every layer of `suite` and every batch, with the keys of `convswap bench --json`.

    `layers` is a regular expression that keeps the layers in whose name it matches somewhere; `precision` is
    "tf32" or "ieee" for float32 tensors, or the type of all tensors, "float16" or "bfloat16"; `batches`
    defaults to 10,000 on the GPU, 100 on the CPU. Times are medians in milliseconds. With `against="all"`,
    the best of the CUDA provider's other options is in "best_other_ms" and "best_other"; else, and on CPU,
    these are None; so is "default_ms" where the provider has no Conv of the type. With
    `against="algorithms"`, every algorithm of the catalog is measured instead of the default provider: see
    `convswap.bench_algorithms`. `progress` is called with a few words before every row.

    Raises:
        ConvswapError: a name is not known, no layer matches, a batch is below 1, the device cannot be used,
            or the algorithm does not support a layer.
    """
    if against not in (*AGAINST, ALGORITHMS):
        raise unknown_name("choice of sides", against, (*AGAINST, ALGORITHMS))
    if precision not in LONE_PRECISIONS:
        raise unknown_name("precision", precision, LONE_PRECISIONS)
    check_algorithm(algorithm)
    chosen = choose_device(device)
    wanted = suite_layers(suite, layers)
    sizes = [_DEFAULT_BATCH[chosen.name]] if batches is None else list(batches)
    for batch in sizes:
        if batch < 1:
            raise ConvswapError(f"batch must be at least 1, but {batch} was given")
    rows = []
    for batch in sizes:
        for layer in wanted:
            if progress is not None:
                progress(f"{layer.name}, batch {batch:,}")
            if against == ALGORITHMS:
                rows.append(algorithms_row(layer, batch, precision, algorithm, chosen))
            else:
                rows.append(_row(layer, batch, precision, algorithm, chosen, against))
    return rows


def print_suite(rows: Sequence[Mapping[str, Any]], console: Console, device: str | None = None) -> None:
    """Print the rows of `run_suite` as a table, with the device and versions they were measured on."""
    chosen = choose_device(device)
    console.print(Text(versions_line(environment(chosen), chosen.title)))
    if chosen.name == "cpu" and chosen.reason != "asked for":
        console.print(Text(f"on the CPU, against the default CPU provider: {chosen.reason}"))
    if any("algorithms" in row for row in rows):
        print_algorithms(rows, console)
        return
    table = plain_table("Convolutions alone (median ms)")
    table.add_column("layer", overflow="fold")
    table.add_column("precision")
    headings = ["batch", "default", "best other", "convswap", "speedup", "floor", "rel. L2"]
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("algorithm", overflow="fold")
    for row in rows:
        default, other = row["default_ms"], row["best_other_ms"]
        table.add_row(
            row["layer"],
            row["precision"],
            f"{row['batch']:,}",
            milliseconds(default),
            "-" if other is None else f"{milliseconds(other)} {row['best_other']}",
            milliseconds(row["convswap_ms"]),
            "-" if default is None else times_faster(default / row["convswap_ms"]),
            milliseconds(row["floor_ms"]),
            error(row["relative_l2_error"]),
            row["algorithm"],
        )
    console.print(table)
    for precision in sorted({row["precision"] for row in rows if row["default_ms"] is None}):
        console.print(Text(f"Note: the default provider has no Conv in {precision} here."))


def _row(
    layer: SuiteLayer, batch: int, precision: str, algorithm: str, device: Device, against: str
) -> dict[str, Any]:
    x = lone_data(layer, batch, precision)
    alone = lone_conv(layer, precision, algorithm)
    problem = alone.problem({"x": x.shape})
    ours = our_side(device, precision)
    sides = (DEFAULT, ours, *other_sides(device, against))
    feeds = on_device({"x": x}, device)
    sessions = _sessions(alone, sides, device)
    runs = [BoundRun(session, feeds, device) for session in sessions.values()]
    timed = measure(runs, bursts=device.name == "cuda")
    medians = {side.name: times.median for side, times in zip(sessions, timed, strict=True)}
    others = {name: median for name, median in medians.items() if name not in ("default", "convswap")}
    best_other = min(others, key=lambda name: others[name], default=None)
    return {
        "layer": layer.name,
        "precision": precision,
        "batch": batch,
        "convswap_ms": medians["convswap"],
        "algorithm": _native.choose(problem, device.name, algorithm),
        "floor_ms": floor_ms(problem, device.card, alone.arithmetic),
        "default_ms": medians.get("default"),
        "best_other_ms": None if best_other is None else others[best_other],
        "best_other": best_other,
        "relative_l2_error": lone_error(sessions[ours], alone, x),
    }


def _sessions(conv: ConvLayer, sides: Sequence[Side], device: Device) -> dict[Side, InferenceSession]:
    """Return a session of each side, but of those whose provider has no Conv of the layer's type."""
    sessions = {}
    for side in sides:
        model = conv.model({"x": 4}, ours=side.ours)
        try:
            sessions[side] = make_session(model, side, device, only_device=True)
        except ConvswapError:
            # float32 they all have.
            if side.ours or conv.element_type == onnx.TensorProto.FLOAT:
                raise
    return sessions
