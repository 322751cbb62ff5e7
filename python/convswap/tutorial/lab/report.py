"""What came of a kernel, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from convswap.output.tables import error, milliseconds, plain_table, three_digits, times_faster, versions_line
from convswap.tutorial.lab.counter_names import MEANINGS
from convswap.tutorial.lab.result import LabResult


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
    for note in result.notes:
        console.print(Text(f"Note: {note}."))
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
    table = plain_table(f"{result.target}, {result.batch:,} images: milliseconds of its convolutions")
    table.add_column("computed by", overflow="fold")
    for heading in ("ms", "% of floor", "GB/s", f"{result.kernel} is"):
        table.add_column(heading, justify="right", overflow="fold")
    own = result.milliseconds
    assert own is not None
    rows = [(result.kernel, own), *((name, _known(result.mark(name))) for name in result.mark_names)]
    moved = sum(layer.bytes for layer in result.layers)
    for name, time in sorted(rows, key=lambda row: -row[1]):
        share = "-" if result.floor_ms is None else f"{100 * result.floor_ms / time:.1f}"
        is_own = name == result.kernel
        beside = "" if is_own else times_faster(time / own)
        shown = {"auto": "our best"}.get(name, name)
        table.add_row(
            Text(f"> {shown}" if is_own else shown),
            milliseconds(time),
            share,
            three_digits(moved / time / 1e6),
            beside,
        )
    table.caption = Text(
        "the last column: how many times as fast. The default provider and the rungs are timed once for a "
        "card and these versions, our best and the kernel in this run"
    )
    table.caption_justify = "left"
    console.print(table)


def _print_counters(result: LabResult, console: Console) -> None:
    table = plain_table("What the card counted, by CUPTI; the names are Nsight Compute's")
    table.add_column("value", justify="right")
    for heading in ("what", "counter"):
        table.add_column(heading, overflow="fold")
    for name, meaning in MEANINGS.items():
        table.add_row(three_digits(result.counters.get(name)), meaning, Text(name))
    console.print(table)


def _known(value: float | None) -> float:
    assert value is not None  # `mark_names` has no other
    return value


def _print_card(result: LabResult, console: Console) -> None:
    table = plain_table(f"What the card says of {result.kernel}")
    table.add_column("layer", overflow="fold")
    for heading in ("ms", "blocks", "threads", "registers", "spilled bytes", "shared bytes", "occupancy %"):
        table.add_column(heading, justify="right", overflow="fold")
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
