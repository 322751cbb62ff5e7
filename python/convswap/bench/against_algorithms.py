"""How far the planner's choice is from the best: every algorithm of the catalog on a layer of a suite.

The method is that of `convswap.trials`: what is hopeless is measured once and no further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.bench.request import BenchRequest
from convswap.errors import ConvswapError
from convswap.graph.algorithms import able_algorithms
from convswap.output.tables import error, milliseconds, plain_table
from convswap.runtime.sessions import our_side
from convswap.timing.floor import floor_ms
from convswap.timing.single_node import lone_conv, lone_data, lone_error, samples_of
from convswap.timing.suites import SuiteLayer
from convswap.timing.trials import Trial, explain_stars, race, trial_lines
from convswap.truth.closeness import TRUTH_IMAGES


def algorithms_row(layer: SuiteLayer, batch: int, request: BenchRequest) -> dict[str, Any]:
    """Return the row of a layer with the times of every algorithm that takes the problem.

    "algorithm" is what the planner chose where the request's was asked for, "convswap_ms" its time, and
    "distance_percent" how much more than the best's that is. "best_other" is the fastest of the others; the
    default provider is not measured.

    Raises:
        ConvswapError: the device cannot run the layer, or its memory does not suffice.
    """
    device, precision, algorithm = request.device, request.precision, request.algorithm
    conv = lone_conv(layer, precision, algorithm)
    shapes = {"x": layer.input_shape(batch)}
    problem = conv.problem(shapes)
    chosen = _native.choose(problem, device.name, algorithm)
    # A rung of the ladder is not among those that are able, unless it was asked for.
    names = dict.fromkeys([*able_algorithms(problem, device.name), chosen])
    try:
        trials = race(samples_of(conv, shapes, list(names), device))
    except RuntimeError as failure:
        raise ConvswapError(
            f"layer {layer.name} cannot be measured at batch {batch}: {failure}; "
            "if memory is short, give a smaller batch"
        ) from failure
    fastest_first = sorted(trials, key=lambda name: trials[name].median)
    other = next((name for name in fastest_first if name != chosen), None)
    few = lone_data(layer, min(batch, TRUTH_IMAGES), precision)
    return {
        "layer": layer.name,
        "precision": precision,
        "batch": batch,
        "convswap_ms": trials[chosen].median,
        "algorithm": chosen,
        "floor_ms": floor_ms(problem, device.card, conv.arithmetic),
        "default_ms": None,
        "best_other_ms": None if other is None else trials[other].median,
        "best_other": other,
        "relative_l2_error": lone_error(
            conv.with_algorithm(chosen), our_side(device, precision), device, few
        ),
        "distance_percent": 100 * (trials[chosen].median / trials[fastest_first[0]].median - 1),
        "algorithms": {name: trial.to_json() for name, trial in trials.items()},
    }


def print_algorithms(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print the rows of `algorithms_row` as a table, and the worst distance below it."""
    table = plain_table("Every algorithm on each convolution (median ms)")
    for heading in ("layer", "precision"):
        table.add_column(heading, overflow="fold")
    table.add_column("batch", justify="right")
    for heading in ("ms of each", "chosen"):
        table.add_column(heading, overflow="fold")
    for heading in ("from the best", "floor", "rel. L2"):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            row["layer"],
            row["precision"],
            f"{row['batch']:,}",
            Text("\n".join(trial_lines(_trials(row)))),
            row["algorithm"],
            f"{row['distance_percent']:.1f} %",
            milliseconds(row["floor_ms"]),
            error(row["relative_l2_error"]),
        )
    explain_stars(table, map(_trials, rows))
    console.print(table)
    worst = max(rows, key=lambda row: row["distance_percent"])
    where = f"{worst['layer']}, batch {worst['batch']:,}"
    if worst["distance_percent"] > 0:
        where += f": {worst['algorithm']}, {worst['best_other']} is faster"
    distance = f"{worst['distance_percent']:.1f} %"
    console.print(Text(f"Worst distance from the best algorithm: {distance} ({where})."))


def _trials(row: Mapping[str, Any]) -> dict[str, Trial]:
    return {
        name: Trial(found["median_ms"], found["runs"], found["stopped_early"])
        for name, found in row["algorithms"].items()
    }
