"""Time the layers of a suite on their own: our side, the default provider and its other options.

Each layer gets seeded random normal data and weights. The method is `measure`'s; the errors are against
float64, on at most 100 images, fewer where each is a lot of work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.algorithms import check_algorithm
from convswap.closeness import relative_l2_error
from convswap.compare import AGAINST, TRUTH_IMAGES
from convswap.device import Device, choose_device, environment
from convswap.errors import ConvswapError, unknown_name
from convswap.floor import floor_ms
from convswap.layers import ConvLayer
from convswap.measure import measure
from convswap.name_pattern import name_pattern
from convswap.report import error, milliseconds, plain_table, times_faster, versions_line
from convswap.sessions import DEFAULT, BoundRun, make_session, on_device, other_sides, our_side, run
from convswap.suites import SUITES, SuiteLayer, usual_batch
from convswap.swap import DEFAULT_PRECISION, DOMAIN, DOMAIN_VERSION, PRECISIONS
from convswap.truth_ops import reference_conv

# What the plain loops of `reference` do in seconds.
_TRUTH_OPERATIONS = 5e9
_OPSET, _IR_VERSION = 20, 9


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

    `layers` is a regular expression that keeps the layers in whose name it matches somewhere; `batches`
    defaults to 10,000 on the GPU and 100 on the CPU, to 256 and 8 for a large network's suite. Times are
    medians in milliseconds. With `against="all"`, the best of the CUDA provider's other options is in
    "best_other_ms" and "best_other"; else, and on CPU, these are None. `progress` is called with a few words
    before every row.

    Raises:
        ConvswapError: a name is not known, no layer matches, a batch is below 1, the device cannot be used,
            or the algorithm does not support a layer.
    """
    if against not in AGAINST:
        raise unknown_name("choice of sides", against, AGAINST)
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    check_algorithm(algorithm)
    chosen = choose_device(device)
    wanted = _layers(suite, layers)
    sizes = [usual_batch(suite, chosen.name)] if batches is None else list(batches)
    for batch in sizes:
        if batch < 1:
            raise ConvswapError(f"batch must be at least 1, but {batch} was given")
    rows = []
    for batch in sizes:
        for layer in wanted:
            if progress is not None:
                progress(f"{layer.name}, batch {batch:,}")
            rows.append(_row(layer, batch, precision, algorithm, chosen, against))
    return rows


def print_suite(rows: Sequence[Mapping[str, Any]], console: Console, device: str | None = None) -> None:
    """Print the rows of `run_suite` as a table, with the device and versions they were measured on."""
    chosen = choose_device(device)
    console.print(Text(versions_line(environment(chosen), chosen.title)))
    if chosen.name == "cpu" and chosen.reason != "asked for":
        console.print(Text(f"on the CPU, against the default CPU provider: {chosen.reason}"))
    table = plain_table("Convolutions alone (median ms)")
    table.add_column("layer", overflow="fold")
    table.add_column("precision")
    headings = ["batch", "default", "best other", "convswap", "speedup", "floor", "rel. L2"]
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("algorithm", overflow="fold")
    for row in rows:
        other = row["best_other_ms"]
        table.add_row(
            row["layer"],
            row["precision"],
            f"{row['batch']:,}",
            milliseconds(row["default_ms"]),
            "-" if other is None else f"{milliseconds(other)} {row['best_other']}",
            milliseconds(row["convswap_ms"]),
            times_faster(row["default_ms"] / row["convswap_ms"]),
            milliseconds(row["floor_ms"]),
            error(row["relative_l2_error"]),
            row["algorithm"],
        )
    console.print(table)


def _layers(suite: str, pattern: str | None) -> list[SuiteLayer]:
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    expression = name_pattern(pattern, "layer names", "conv1")
    wanted = [layer for layer in SUITES[suite] if expression.search(layer.name)]
    if not wanted:
        names = ", ".join(layer.name for layer in SUITES[suite])
        raise ConvswapError(f"no layer of suite {suite} matches {pattern!r}; it has {names}")
    return wanted


def _row(
    layer: SuiteLayer, batch: int, precision: str, algorithm: str, device: Device, against: str
) -> dict[str, Any]:
    generator = np.random.default_rng(seed=batch)
    x = generator.standard_normal(layer.input_shape(batch), dtype=np.float32)
    alone = _one_conv(layer, generator, precision, algorithm)
    problem = alone.problem({"x": x.shape})
    ours = our_side(device, precision)
    sides = (DEFAULT, ours, *other_sides(device, against))
    sessions = {
        side: make_session(alone.model({"x": x.ndim}, ours=side.ours), side, device, only_device=True)
        for side in sides
    }
    feeds = on_device({"x": x}, device)
    runs = [BoundRun(session, feeds, device) for session in sessions.values()]
    timed = measure(runs, bursts=device.name == "cuda")
    medians = {side.name: times.median for side, times in zip(sides, timed, strict=True)}
    others = {name: median for name, median in medians.items() if name not in ("default", "convswap")}
    best_other = min(others, key=lambda name: others[name], default=None)

    affordable = max(1, int(_TRUTH_OPERATIONS // (problem.operations / batch)))
    few = np.ascontiguousarray(x[: min(TRUTH_IMAGES, affordable)])
    data, weights, bias = alone.arrays({"x": few})
    truth = reference_conv(data, weights, bias, alone.attributes)
    return {
        "layer": layer.name,
        "precision": precision,
        "batch": batch,
        "convswap_ms": medians["convswap"],
        "algorithm": _native.choose(problem, device.name, algorithm),
        "floor_ms": floor_ms(problem, device.card, precision),
        "default_ms": medians["default"],
        "best_other_ms": None if best_other is None else others[best_other],
        "best_other": best_other,
        "relative_l2_error": relative_l2_error(run(sessions[ours], {"x": few})[0], truth),
    }


def _one_conv(layer: SuiteLayer, generator: np.random.Generator, precision: str, algorithm: str) -> ConvLayer:
    weights = generator.standard_normal(layer.weight_shape, dtype=np.float32)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        name=layer.name,
        domain=DOMAIN,
        kernel_shape=[layer.kernel] * 2,
        strides=[layer.stride] * 2,
        pads=[layer.padding] * 4,
        group=layer.group,
        algorithm=algorithm,
        precision=precision,
    )
    return ConvLayer(
        node=node,
        constants={"w": numpy_helper.from_array(weights, "w")},
        opsets=(helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)),
        ir_version=_IR_VERSION,
        element_type=onnx.TensorProto.FLOAT,
    )
