"""The table of the ladder on a terminal, with a bar for each rung."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap import _native
from convswap.output.tables import (
    error,
    milliseconds,
    plain_table,
    print_notes,
    say_below,
    three_digits,
    times_faster,
    versions_line,
)
from convswap.tutorial.ladder.rows import Ladder, Measured

_BAR_COLUMNS = 24


def print_ladder(ladder: Ladder, console: Console) -> None:
    """Print a row for each rung, a bar for its time, and what the reader has to know.

    A console that is no terminal should be made 120 columns wide; long titles are folded, never cut.
    """
    console.print(Text(heading(ladder)))
    console.print(_times_table(ladder))
    console.print(_card_table(ladder))
    print_notes(ladder.notes, console)
    for line in verdict(ladder):
        console.print(Text(line))


def heading(ladder: Ladder) -> str:
    """Return what was climbed, and on what, in two lines."""
    return (
        f"{ladder.model}: the ladder, {ladder.images:,} images of {ladder.dataset}\n"
        f"{versions_line(dict(ladder.environment), ladder.device.title)}\n"
    )


def verdict(ladder: Ladder) -> Iterable[str]:
    """Yield what came of it: the gain from the first rung on the card to the last; whether all are right."""
    measured = [row for row in ladder.rows if row.measured is not None]
    if measured and (gain := ladder.speedup_over_the_first_on_the_card(measured[-1])):
        first = next(row for row in measured if row.page.device == "cuda")
        yield (
            f"From rung {first.page.number} to rung {measured[-1].page.number}: {times_faster(gain)} as fast."
        )
    wrong = [row for row in ladder.rows if not row.is_right]
    for row in wrong:
        assert row.measured is not None
        yield (
            f"RUNG {row.page.number} IS WRONG: relative L2 error {error(row.measured.relative_l2_error)}, "
            f"at most {row.tolerance:g} in {row.page.precision}."
        )
    if not wrong:
        yield f"Every rung that ran is right: {len(measured)} of {len(ladder.rows)}."


def registers(measured: Measured) -> str:
    """Return the registers of a thread, of each layer's largest kernel: "80/40"; spills after a plus."""
    return _of_layers(
        measured,
        lambda facts: (
            str(facts["registers"]) + (f"+{facts['spilled_bytes']} B" if facts["spilled_bytes"] else "")
        ),
        lambda facts: facts["registers"],
    )


def shared_memory(measured: Measured) -> str:
    """Return the shared memory of a block in KB, of each layer's largest kernel: "8.1/53.3"."""
    return _of_layers(
        measured, lambda facts: f"{facts['shared_bytes'] / 1e3:.1f}", lambda facts: facts["shared_bytes"]
    )


def _of_layers(
    measured: Measured, text: Callable[[_native.KernelFacts], str], size: Callable[[_native.KernelFacts], int]
) -> str:
    found = [text(max(layer.kernels, key=size)) if layer.kernels else "-" for layer in measured.layers]
    return "-" if set(found) == {"-"} else "/".join(found)


def _times_table(ladder: Ladder) -> Table:
    table = plain_table(
        f"Time of the convolutions (ms for {ladder.images:,} images)",
        *(">rung", "step", ">op time", ">before", ">first"),
    )
    table.add_column("")
    table.add_column("the report, on its card", overflow="fold", max_width=26)
    for row in ladder.rows:
        if row.measured is not None:
            op_ms = row.measured.op_ms
            table.add_row(
                str(row.page.number),
                row.page.title,
                milliseconds(op_ms),
                _faster(ladder.speedup_over_the_one_before(row)),
                _faster(ladder.speedup_over_the_first(row)),
                _bar(ladder, op_ms),
                Text(ladder.reported(row) or "-"),
            )
    say_below(table, "before, first: how many times faster than the rung before, and than the first")
    return table


def _faster(value: float | None) -> str:
    return "-" if value is None else f"{three_digits(value)}x"


def _bar(ladder: Ladder, op_ms: float) -> str:
    """Return a bar on a scale of powers of ten, one block for the shortest time."""
    times = [row.measured.op_ms for row in ladder.rows if row.measured is not None]
    span = math.log10(max(times) / min(times))
    if span == 0:
        return ""
    return "█" * (1 + round((_BAR_COLUMNS - 1) * math.log10(op_ms / min(times)) / span))


def _card_table(ladder: Ladder) -> Table:
    table = plain_table(
        "What the hardware did",
        *(">rung", ">% of floor", ">GB/s", ">registers", ">shared KB", ">network ms", ">top-1", ">rel. L2"),
        ">precision",
    )
    for row in ladder.rows:
        if row.measured is not None:
            floor = row.measured.floor_ms
            share = "-" if floor is None else f"{three_digits(100 * floor / row.measured.op_ms)} %"
            table.add_row(str(row.page.number), share, *card_cells(row.measured), row.page.precision)
    say_below(
        table,
        "floor: what memory or arithmetic takes at least; GB/s: bytes that must move, by the time; "
        "registers of a thread and shared memory of a block, layer by layer",
    )
    return table


def card_cells(measured: Measured) -> list[str]:
    """Return what the card did, from the bytes that it moved in a second to the worst error."""
    return [
        three_digits(measured.gigabytes_per_second),
        registers(measured),
        shared_memory(measured),
        milliseconds(measured.network_ms),
        "-" if measured.accuracy is None else f"{measured.accuracy:.4f}",
        error(measured.relative_l2_error),
    ]
