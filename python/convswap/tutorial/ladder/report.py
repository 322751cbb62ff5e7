"""Reports the ladder as tables on a terminal, with a bar for each rung, and as a page with the texts."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap import _native
from convswap.output.drawing import new_figure, svg_text
from convswap.output.pages import html_page, html_table, inline_svg, paragraph
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
from convswap.tutorial.ladder.rows import Ladder, MeasuredRung, Row

_BAR_COLUMNS = 24
_INCHES_PER_RUNG = 0.34


def print_ladder(ladder: Ladder, console: Console) -> None:
    """Print a row and a bar for each rung, the notes, and whether all rungs are correct.

    A console that is not a terminal should be made 120 columns wide; long titles are folded, never cut.
    """
    console.print(Text(heading(ladder)))
    console.print(_times_table(ladder))
    console.print(_card_table(ladder))
    print_notes(ladder.notes, console)
    for line in verdict(ladder):
        console.print(Text(line))


def heading(ladder: Ladder) -> str:
    """Return two lines: the network and the data, then the card and the versions."""
    return (
        f"{ladder.model}: the ladder, {ladder.images:,} images of {ladder.dataset}\n"
        f"{versions_line(dict(ladder.environment), ladder.device.title)}\n"
    )


def verdict(ladder: Ladder) -> Iterable[str]:
    """Yield the speedup from the first rung on the card to the last, and whether all rungs are correct."""
    measured = [row for row in ladder.rows if row.measured is not None]
    if measured and (gain := ladder.speedup_over_first_on_card(measured[-1])):
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
        yield f"Every rung that ran is correct: {len(measured)} of {len(ladder.rows)}."


def registers(measured: MeasuredRung) -> str:
    """Return the registers per thread of each layer's largest kernel, as in "80/40"; spills after a plus."""
    return _each_layer(
        measured,
        lambda facts: (
            str(facts["registers"]) + (f"+{facts['spilled_bytes']} B" if facts["spilled_bytes"] else "")
        ),
        lambda facts: facts["registers"],
    )


def shared_memory(measured: MeasuredRung) -> str:
    """Return the KB of shared memory per block of each layer's largest kernel, as in "8.1/53.3"."""
    return _each_layer(
        measured, lambda facts: f"{facts['shared_bytes'] / 1e3:.1f}", lambda facts: facts["shared_bytes"]
    )


def _each_layer(
    measured: MeasuredRung,
    text: Callable[[_native.KernelFacts], str],
    size: Callable[[_native.KernelFacts], int],
) -> str:
    cells = [text(max(layer.kernels, key=size)) if layer.kernels else "-" for layer in measured.layers]
    return "-" if set(cells) == {"-"} else "/".join(cells)


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
                _faster(ladder.speedup_over_previous(row)),
                _faster(ladder.speedup_over_first(row)),
                _bar(ladder, op_ms),
                Text(ladder.reported(row) or "-"),
            )
    set_caption(table, "before, first: speedup over the rung before, and over the first rung")
    return table


def _faster(value: float | None) -> str:
    return "-" if value is None else f"{three_digits(value)}x"


def _bar(ladder: Ladder, op_ms: float) -> str:
    """Return a bar on a logarithmic scale, one block long for the shortest time."""
    times = [row.measured.op_ms for row in ladder.rows if row.measured is not None]
    span = math.log10(max(times) / min(times))
    if span == 0:
        return ""
    return "█" * (1 + round((_BAR_COLUMNS - 1) * math.log10(op_ms / min(times)) / span))


def _card_table(ladder: Ladder) -> Table:
    table = plain_table(
        "Hardware use",
        *(">rung", ">% of floor", ">GB/s", ">registers", ">shared KB", ">network ms", ">top-1", ">rel. L2"),
        ">precision",
    )
    for row in ladder.rows:
        if row.measured is not None:
            floor = row.measured.floor_ms
            share = "-" if floor is None else f"{three_digits(100 * floor / row.measured.op_ms)} %"
            table.add_row(str(row.page.number), share, *_card_cells(row.measured), row.page.precision)
    set_caption(
        table,
        "floor: the least time that memory or arithmetic takes; GB/s: the bytes that must move, divided by "
        "the time; registers per thread and shared memory per block, layer by layer",
    )
    return table


def _card_cells(measured: MeasuredRung) -> list[str]:
    """Return the cells from GB/s to the largest error."""
    return [
        three_digits(measured.gigabytes_per_second),
        registers(measured),
        shared_memory(measured),
        milliseconds(measured.network_ms),
        "-" if measured.accuracy is None else f"{measured.accuracy:.4f}",
        error(measured.relative_l2_error),
    ]


def ladder_html(ladder: Ladder) -> str:
    """Return the ladder as a page: plot, table, and the page of every rung."""
    return html_page(
        f"The ladder: {ladder.model}",
        [
            *map(paragraph, heading(ladder).strip().splitlines()),
            inline_svg(ladder_svg(ladder.to_json())),
            html_table(_page_table(ladder)),
            *map(paragraph, verdict(ladder)),
            *(paragraph(f"Note: {note}.") for note in ladder.notes),
            *(_rung_html(row) for row in ladder.rows),
        ],
    )


def _page_table(ladder: Ladder) -> Table:
    table = plain_table(
        "",
        *(">rung", "", ">op ms", ">than before", ">than first", ">% of floor", ">GB/s", ">registers"),
        *(">shared KB", ">network ms", ">top-1", ">rel. L2", "the report, on its card"),
    )
    for row in ladder.rows:
        table.add_row(*map(Text, _cells(ladder, row)))
    return table


def _cells(ladder: Ladder, row: Row) -> list[str]:
    first = [str(row.page.number), row.page.title]
    last = ladder.reported(row) or "-"
    measured = row.measured
    if measured is None:
        return [*first, *["-"] * 10, f"{last}; left out: {row.why_not}" if row.why_not else last]
    floor = measured.floor_ms
    speedups = ladder.speedup_over_previous(row), ladder.speedup_over_first(row)
    return [
        *first,
        milliseconds(measured.op_ms),
        *map(_faster, speedups),
        "-" if floor is None else three_digits(100 * floor / measured.op_ms),
        *_card_cells(measured),
        last,
    ]


def _rung_html(row: Row) -> str:
    page = row.page
    parts = [f"<h2>{page.number}. {html.escape(page.title)}</h2>", *_paragraphs(page.idea)]
    if page.code:
        parts.append(f"<pre><code>{html.escape(page.code)}</code></pre>")
    else:
        parts += _paragraphs(f"The code is in {page.code_location}.")
    parts += _paragraphs(f"*What it should gain.* {page.gain}")
    if page.slower:
        parts += _paragraphs(f"*Why it may be slower than the one before.* {page.slower}")
    return "\n".join([*parts, *_paragraphs(f"*In Nsight Compute.* {page.counter}")])


def _paragraphs(text: str) -> Iterable[str]:
    """Yield the paragraphs of a page's field as HTML, with `code` and *emphasis* converted."""
    for part in text.split("\n\n"):
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(part))
        # An asterisk between letters or digits, as in 5*5, is no emphasis.
        yield "<p>" + re.sub(r"(?<![\w*])\*([^*]+)\*(?![\w*])", r"<em>\1</em>", marked) + "</p>"


def ladder_svg(ladder_json: Mapping[str, Any]) -> str:
    """Return a plot of the JSON of `convswap ladder`, as SVG.

    Raises:
        ConvswapError: matplotlib is not installed.
    """
    rungs = [rung for rung in ladder_json["rungs"] if rung["why_not"] is None]
    figure = new_figure(figsize=(9, 1.3 + _INCHES_PER_RUNG * len(rungs)), layout="constrained")
    axes = figure.add_subplot()
    names = [f"{rung['number']}  {rung['title']}" for rung in rungs]
    bars = axes.barh(names, [rung["op_ms"] for rung in rungs], color="#4878a8")
    axes.bar_label(bars, [three_digits(rung["op_ms"]) for rung in rungs], padding=3, fontsize=8)
    floors = {
        name: rung["floor_ms"]
        for name, rung in zip(names, rungs, strict=True)
        if rung["floor_ms"] is not None
    }
    if floors:
        axes.plot(list(floors.values()), list(floors), color="#b04030", linewidth=1, label="floor")
        axes.legend(loc="lower right", fontsize=8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.tick_params(labelsize=8)
    axes.set_xlabel(f"ms for {ladder_json['images']:,} images, convolutions alone", fontsize=8)
    card = ladder_json["environment"]["card"] or ladder_json["environment"]["processor"]
    axes.set_title(f"{ladder_json['model']} on {card}", fontsize=9, parse_math=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return svg_text(figure)
