"""The tables of `convswap bench`, on a terminal of any width or in 120 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.bench.pytorch_runs import CHANNELS_LAST, CONTIGUOUS
from convswap.output.tables import error, milliseconds, plain_table, times_faster
from convswap.runtime.device import choose_device, device_lines
from convswap.runtime.sessions import NO_OTHER_SIDE_ON_CPU
from convswap.timing.algorithm_times import algorithm_lines, explain_stars

Row = Mapping[str, Any]


def print_suite(
    rows: Sequence[Row], console: Console, device: str | None = None, against: str = "default"
) -> None:
    """Print the rows of `run_suite` as a table, with the device and versions they were measured on.

    `device` and `against` are the arguments of `run_suite`.
    """
    chosen = choose_device(device)
    console.print(Text(device_lines(chosen)))
    if any("algorithms" in row for row in rows):
        _print_algorithms(rows, console)
        return
    console.print(_layers_table(rows))
    for method in dict.fromkeys(row["method"] for row in rows):
        batches = dict.fromkeys(row["batch"] for row in rows if row["method"] == method)
        console.print(Text(f"Batch {', '.join(f'{batch:,}' for batch in batches)}: {method}."))
    print_missing_default(rows, console)
    if against == "all" and chosen.name == "cpu":
        console.print(Text(f"Note: {NO_OTHER_SIDE_ON_CPU}."))
    if chosen.name == "cuda" and any(row["precision"] == "ieee" for row in rows):
        console.print(Text("Note: convswap and no_tf32 (--against all) compute in ieee, all others in tf32."))
    if any({CONTIGUOUS, CHANNELS_LAST} & row["others_ms"].keys() for row in rows):
        console.print(
            Text(f"Note: {CONTIGUOUS} and {CHANNELS_LAST} are PyTorch's own, without ONNX Runtime.")
        )
    if any(row["others_ms"] for row in rows):
        console.print(_speedups_table(rows))


def _layers_table(rows: Sequence[Row]) -> Table:
    precisions = ", ".join(dict.fromkeys(row["precision"] for row in rows))
    table = plain_table(
        f"Convolutions alone, precision {precisions} (median ms)",
        *("layer", ">batch", ">default", ">best other", ">convswap", ">speedup", ">floor", ">% of floor"),
        *(">rel. L2", "algorithm"),
    )
    for row in rows:
        default, other, floor = row["default_ms"], row["best_other_ms"], row["floor_ms"]
        table.add_row(
            row["layer"],
            f"{row['batch']:,}",
            milliseconds(default),
            "-" if other is None else f"{milliseconds(other)} {row['best_other']}",
            milliseconds(row["convswap_ms"]),
            "-" if default is None else times_faster(default / row["convswap_ms"]),
            milliseconds(floor),
            "-" if floor is None else f"{100 * floor / row['convswap_ms']:.0f} %",
            error(row["relative_l2_error"]),
            row["algorithm"],
        )
    return table


def _speedups_table(rows: Sequence[Row]) -> Table:
    """Return the table of mean and worst speedups over each side, and over the fastest side of each row."""
    table = plain_table(
        "Speedup, all layers together", ">batch", "against", ">geometric mean", ">worst", "worst layer"
    )
    for batch in dict.fromkeys(row["batch"] for row in rows):
        table.add_section()
        batch_rows = [row for row in rows if row["batch"] == batch]
        sides = dict.fromkeys(name for row in batch_rows for name in _times(row))
        for side in (*sides, _FASTEST):
            speedups = {
                row["layer"]: _time(row, side) / row["convswap_ms"]
                for row in batch_rows
                if side in _times(row) or (side == _FASTEST and _times(row))
            }
            worst = min(speedups, key=lambda name: speedups[name])
            mean = float(np.exp(np.mean(np.log(list(speedups.values())))))
            table.add_row(f"{batch:,}", side, times_faster(mean), times_faster(speedups[worst]), worst)
    return table


def _print_algorithms(rows: Sequence[Row], console: Console) -> None:
    """Print the times of every algorithm on each layer, and the worst distance from the best below them."""
    table = plain_table(
        "Every algorithm on each convolution (median ms)",
        *("layer", "precision", ">batch", "ms of each", "chosen", ">from the best", ">floor", ">rel. L2"),
    )
    for row in rows:
        table.add_row(
            row["layer"],
            row["precision"],
            f"{row['batch']:,}",
            Text("\n".join(algorithm_lines(row["algorithms"]))),
            row["algorithm"],
            f"{row['distance_percent']:.1f} %",
            milliseconds(row["floor_ms"]),
            error(row["relative_l2_error"]),
        )
    explain_stars(table, (row["algorithms"] for row in rows))
    console.print(table)
    worst = max(rows, key=lambda row: row["distance_percent"])
    where = f"{worst['layer']}, batch {worst['batch']:,}"
    if worst["distance_percent"] > 0:
        where += f": {worst['algorithm']}, {worst['best_other']} is faster"
    distance = f"{worst['distance_percent']:.1f} %"
    console.print(Text(f"Worst distance from the best algorithm: {distance} ({where})."))


_FASTEST = "the fastest of these"


def _time(row: Row, side: str) -> float:
    times = _times(row)
    return min(times.values()) if side == _FASTEST else times[side]


def _times(row: Row) -> dict[str, float]:
    """Return the times of the default provider, if it supports the layer, and of the other sides."""
    default = {} if row["default_ms"] is None else {"default": row["default_ms"]}
    return {**default, **row["others_ms"]}


def print_missing_default(rows: Iterable[Mapping[str, Any]], console: Console) -> None:
    """Print a note under the rows of `bench` about rows without a "default_ms"."""
    for precision in sorted({row["precision"] for row in rows if row["default_ms"] is None}):
        console.print(Text(f"Note: the default provider has no Conv in {precision} here."))
