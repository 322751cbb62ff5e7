"""What came of a kernel, and the ranking, on a terminal and as a page; a class's kernels as CSV."""

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
from convswap.tutorial.lab.ranking import Ranked
from convswap.tutorial.lab.result import LabResult

NOTHING_YET = "no kernel has been timed yet: convswap lab run FILE.cu on a machine with a card"
# Of a class's table.
_CSV = ("file", "right", "fault", "ms", "percent_of_floor", "gigabytes_per_second", "passed", "text")


def print_result(result: LabResult, console: Console) -> None:
    """Print what was checked, the times beside those of others, what the card says, and one hint.

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
    where = result.card or "the processor, thread by thread"
    if not result.is_right:
        yield f"{result.kernel} compiles. It was not checked: there is no card, and {result.not_emulated}."
        return
    worst = (
        "" if result.relative_l2_error is None else f", relative L2 error {error(result.relative_l2_error)}"
    )
    yield f"{result.kernel} is right: {result.cases} convolutions on {where}{worst}."
    if result.network_error is not None:
        yield (
            f"In the place of the Convs of {result.target}, inside an ONNX Runtime session, its outputs are "
            f"{error(result.network_error)} from the default provider's."
        )


def _print_times(result: LabResult, console: Console) -> None:
    environment = {key: value for key, value in result.environment.items() if value is not None}
    console.print(Text(versions_line(environment, result.card or "")))
    table = plain_table(
        f"{result.target}, {result.batch:,} images: milliseconds of its convolutions",
        *("computed by", ">ms", ">% of floor", ">GB/s", f">{result.kernel} is"),
    )
    own = result.milliseconds
    assert own is not None
    rows = [(result.kernel, own), *result.marks.items()]
    moved = sum(layer.bytes for layer in result.layers)
    for name, time in sorted(rows, key=lambda row: -row[1]):
        is_own = name == result.kernel
        beside = "" if is_own else times_faster(time / own)
        shown = _shown(name)
        table.add_row(
            Text(f"> {shown}" if is_own else shown),
            milliseconds(time),
            _percent(result.floor_ms, time),
            three_digits(moved / time / 1e6),
            beside,
        )
    set_caption(
        table,
        "the last column: how many times as fast. The default provider and the rungs are timed once for a "
        "card and these versions, our best and the kernel in this run",
    )
    console.print(table)


def _print_counters(result: LabResult, console: Console) -> None:
    title = "What the card counted, by CUPTI; the names are Nsight Compute's"
    table = plain_table(title, ">value", "what", "counter")
    for name, meaning in MEANINGS.items():
        table.add_row(three_digits(result.counters.get(name)), meaning, Text(name))
    console.print(table)


def _print_card(result: LabResult, console: Console) -> None:
    table = plain_table(
        f"What the card says of {result.kernel}",
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


def print_ranking(rows: Sequence[Ranked], console: Console) -> None:
    """Print a table for each card, network and batch, the fastest first, marks without a place."""
    for table in _ranking_tables(rows):
        console.print(table)
    if not rows:
        console.print(Text(NOTHING_YET))


def ranking_html(rows: Sequence[Ranked]) -> str:
    """Return the same as a page."""
    return html_page(
        "The lab's ranking", map(html_table, _ranking_tables(rows)) if rows else [paragraph(NOTHING_YET)]
    )


def class_csv(results: Sequence[LabResult]) -> str:
    """Return a class's kernels as CSV, the fastest first, then those that are not right."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for result in in_order(results):
        time, floor = result.milliseconds, result.floor_ms
        writer.writerow(
            [
                result.kernel,
                "yes" if result.is_right else "no",
                "" if result.fault is None else result.fault.kind,
                "" if time is None else f"{time:.6g}",
                "" if time is None or floor is None else f"{100 * floor / time:.4g}",
                "" if result.gigabytes_per_second is None else f"{result.gigabytes_per_second:.6g}",
                passed(result),
                "" if result.fault is None else " ".join(result.fault.text.split()),
            ]
        )
    return text.getvalue()


def print_class(results: Sequence[LabResult], console: Console) -> None:
    """Print a class's kernels, the fastest first, and below what is wrong with the others."""
    table = plain_table("The class", "file", "right", "passed", ">ms", ">% of floor", ">GB/s")
    for result in in_order(results):
        verdict = (
            "yes"
            if result.is_right
            else f"no ({'not checked' if result.fault is None else result.fault.kind})"
        )
        table.add_row(
            Text(result.kernel),
            verdict,
            passed(result),
            milliseconds(result.milliseconds),
            _percent(result.floor_ms, result.milliseconds),
            three_digits(result.gigabytes_per_second),
        )
    console.print(table)
    for result in in_order(results):
        if result.fault is not None:
            console.print(Text(f"{result.kernel}: {result.fault.text}\n"))


def in_order(results: Sequence[LabResult]) -> list[LabResult]:
    """Return the fastest first, then what was not timed, then what is not right, each by name."""
    return sorted(
        results,
        key=lambda result: (
            result.fault is not None,
            float("inf") if result.milliseconds is None else result.milliseconds,
            result.kernel,
        ),
    )


def passed(result: LabResult) -> str:
    """Return the fastest mark that a kernel is faster than; "" where there is none."""
    own = result.milliseconds
    if own is None or result.fault is not None:
        return ""
    slower = {name: time for name, time in result.marks.items() if time > own}
    fastest = min(slower, key=lambda name: slower[name], default="")
    return _shown(fastest)


def _ranking_tables(rows: Sequence[Ranked]) -> Iterator[Table]:
    for (card, network, batch), group in itertools.groupby(
        rows, key=lambda row: (row.card, row.network, row.batch)
    ):
        table = plain_table(
            f"{network}, {batch:,} images, on {card}",
            *(">place", "kernel", ">ms", ">% of floor", ">GB/s", "text", "taken at"),
        )
        place = 0
        for row in group:
            place += not row.is_mark
            table.add_row(
                "" if row.is_mark else str(place),
                Text(f"- {_shown(row.name)}" if row.is_mark else row.name),
                milliseconds(row.milliseconds),
                _percent(row.floor_ms, row.milliseconds),
                three_digits(row.gigabytes_per_second),
                "" if row.is_mark else row.digest[:8],
                row.taken_at[:16].replace("T", " "),
            )
        yield table


def _percent(floor_ms: float | None, time: float | None) -> str:
    return "-" if floor_ms is None or time is None else f"{100 * floor_ms / time:.1f}"


def _shown(name: str) -> str:
    return "our best" if name == "auto" else name
