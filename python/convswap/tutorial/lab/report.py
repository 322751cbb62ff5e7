"""Reports a kernel's result and the ranking on a terminal and as HTML, and a class's results as CSV."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.output.pages import html_page, html_table, paragraph
from convswap.output.tables import (
    error,
    milliseconds,
    plain_table,
    print_notes,
    set_caption,
    three_digits,
    times_faster,
    versions_line,
)
from convswap.tutorial.lab.counters import MEANINGS
from convswap.tutorial.lab.ranking import RankedRun
from convswap.tutorial.lab.result import LabResult

NO_RESULTS = "no kernel has been timed yet: convswap lab run FILE.cu on a machine with a card"
# Columns of a class's CSV file.
_CSV_COLUMNS = ("file", "right", "fault", "ms", "percent_of_floor", "gigabytes_per_second", "passed", "text")


def print_result(result: LabResult, console: Console) -> None:
    """Print the checks, the times of the kernel and its baselines, its launch on the card, and one hint.

    A console that is no terminal should be made 120 columns wide; long names are folded, never cut.
    """
    if result.fault is not None:
        console.print(Text(f"NOT RIGHT ({result.fault.kind}): {result.fault.text}"))
    else:
        for line in _checked(result):
            console.print(Text(line))
    if result.layers:
        _print_times(result, console)
        _print_card(result, console)
    if result.counters:
        _print_counters(result, console)
    print_notes(result.notes, console)
    if result.not_emulated and result.fault is None:
        console.print(Text(f"Note: not checked thread by thread: {result.not_emulated}."))
    if result.hint:
        console.print(Text(f"Hint: {result.hint}"))


def _checked(result: LabResult) -> Iterator[str]:
    where = result.card or "the CPU, thread by thread"
    if not result.is_right:
        yield f"{result.kernel} compiles. It was not checked: there is no card, and {result.not_emulated}."
        return
    worst = (
        "" if result.relative_l2_error is None else f", relative L2 error {error(result.relative_l2_error)}"
    )
    yield f"{result.kernel} is correct: {result.cases} convolutions on {where}{worst}."
    if result.network_error is not None:
        yield (
            f"With it in the place of the Convs of {result.target}, in an ONNX Runtime session, the outputs "
            f"differ from the default provider's by a relative L2 distance of {error(result.network_error)}."
        )


def _print_times(result: LabResult, console: Console) -> None:
    environment = {key: value for key, value in result.environment.items() if value is not None}
    console.print(Text(versions_line(environment, result.card or "")))
    table = plain_table(
        f"{result.target}, {result.batch:,} images: milliseconds of its convolutions",
        *("computed by", ">ms", ">% of floor", ">GB/s", f">{result.kernel} is"),
    )
    kernel_ms = result.milliseconds
    assert kernel_ms is not None
    rows = [(result.kernel, kernel_ms), *result.baselines.items()]
    bytes_moved = sum(layer.bytes for layer in result.layers)
    for name, time in sorted(rows, key=lambda row: -row[1]):
        is_kernel = name == result.kernel
        speedup = "" if is_kernel else times_faster(time / kernel_ms)
        displayed = _display_name(name)
        table.add_row(
            Text(f"> {displayed}" if is_kernel else displayed),
            milliseconds(time),
            _percent(result.floor_ms, time),
            three_digits(bytes_moved / time / 1e6),
            speedup,
        )
    set_caption(
        table,
        "last column: how many times as fast the kernel is. The times of the default provider and the rungs "
        "are cached for this card and these versions; our best and the kernel were timed in this run",
    )
    console.print(table)


def _print_counters(result: LabResult, console: Console) -> None:
    title = "Hardware counters, by CUPTI; the names are Nsight Compute's"
    table = plain_table(title, ">value", "meaning", "counter")
    for name, meaning in MEANINGS.items():
        table.add_row(three_digits(result.counters.get(name)), meaning, Text(name))
    console.print(table)


def _print_card(result: LabResult, console: Console) -> None:
    table = plain_table(
        f"{result.kernel} on the card",
        *("layer", ">ms", ">blocks", ">threads", ">registers", ">spilled bytes", ">shared bytes"),
        ">occupancy %",
    )
    for layer in result.layers:
        facts = layer.facts
        table.add_row(
            Text(layer.node),
            milliseconds(layer.milliseconds),
            f"{facts['blocks']:,}",
            f"{facts['threads']:,}",
            str(facts["registers"]),
            f"{facts['spilled_bytes']:,}",
            f"{facts['shared_bytes']:,}",
            f"{100 * layer.occupancy:.0f}",
        )
    console.print(table)


def print_ranking(rows: Sequence[RankedRun], console: Console) -> None:
    """Print a table for each card, network and batch, the fastest first; baselines have no place."""
    for table in _ranking_tables(rows):
        console.print(table)
    if not rows:
        console.print(Text(NO_RESULTS))


def ranking_html(rows: Sequence[RankedRun]) -> str:
    """Return the tables of `print_ranking` as an HTML page."""
    return html_page(
        "The lab's ranking", map(html_table, _ranking_tables(rows)) if rows else [paragraph(NO_RESULTS)]
    )


def class_csv(results: Sequence[LabResult]) -> str:
    """Return a class's results as CSV, the fastest first, then those with a fault."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for result in fastest_first(results):
        time, floor = result.milliseconds, result.floor_ms
        writer.writerow(
            [
                result.kernel,
                "yes" if result.is_right else "no",
                "" if result.fault is None else result.fault.kind,
                "" if time is None else f"{time:.6g}",
                "" if time is None or floor is None else f"{100 * floor / time:.4g}",
                "" if result.gigabytes_per_second is None else f"{result.gigabytes_per_second:.6g}",
                fastest_slower_baseline(result),
                "" if result.fault is None else " ".join(result.fault.text.split()),
            ]
        )
    return text.getvalue()


def print_class(results: Sequence[LabResult], console: Console) -> None:
    """Print a class's results, the fastest first, and the faults below the table."""
    table = plain_table("The class", "file", "right", "passed", ">ms", ">% of floor", ">GB/s")
    for result in fastest_first(results):
        verdict = (
            "yes"
            if result.is_right
            else f"no ({'not checked' if result.fault is None else result.fault.kind})"
        )
        table.add_row(
            Text(result.kernel),
            verdict,
            fastest_slower_baseline(result),
            milliseconds(result.milliseconds),
            _percent(result.floor_ms, result.milliseconds),
            three_digits(result.gigabytes_per_second),
        )
    console.print(table)
    for result in fastest_first(results):
        if result.fault is not None:
            console.print(Text(f"{result.kernel}: {result.fault.text}\n"))


def fastest_first(results: Sequence[LabResult]) -> list[LabResult]:
    """Return `results` sorted by time, then those that were not timed, then those with a fault, by name."""
    return sorted(
        results,
        key=lambda result: (
            result.fault is not None,
            float("inf") if result.milliseconds is None else result.milliseconds,
            result.kernel,
        ),
    )


def fastest_slower_baseline(result: LabResult) -> str:
    """Return the fastest baseline that the kernel beats, or ""."""
    kernel_ms = result.milliseconds
    if kernel_ms is None or result.fault is not None:
        return ""
    slower = {name: time for name, time in result.baselines.items() if time > kernel_ms}
    fastest = min(slower, key=lambda name: slower[name], default="")
    return _display_name(fastest)


def _ranking_tables(rows: Sequence[RankedRun]) -> Iterator[Table]:
    for (card, network, batch), group in itertools.groupby(
        rows, key=lambda row: (row.card, row.network, row.batch)
    ):
        table = plain_table(
            f"{network}, {batch:,} images, on {card}",
            *(">place", "kernel", ">ms", ">% of floor", ">GB/s", "text", "taken at"),
        )
        place = 0
        for row in group:
            place += not row.is_baseline
            table.add_row(
                "" if row.is_baseline else str(place),
                Text(f"- {_display_name(row.name)}" if row.is_baseline else row.name),
                milliseconds(row.milliseconds),
                _percent(row.floor_ms, row.milliseconds),
                three_digits(row.gigabytes_per_second),
                "" if row.is_baseline else row.digest[:8],
                row.taken_at[:16].replace("T", " "),
            )
        yield table


def _percent(floor_ms: float | None, time: float | None) -> str:
    return "-" if floor_ms is None or time is None else f"{100 * floor_ms / time:.1f}"


def _display_name(name: str) -> str:
    return "our best" if name == "auto" else name
