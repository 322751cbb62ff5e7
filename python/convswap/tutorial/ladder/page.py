"""The ladder as one page of HTML that needs nothing beside it: plot, table, and the page of every rung."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from convswap.output.drawing import new_figure, svg_text
from convswap.output.pages import html_page, html_table, inline_svg, paragraph
from convswap.output.tables import milliseconds, plain_table, three_digits
from convswap.tutorial.ladder.report import card_cells, heading, verdict
from convswap.tutorial.ladder.rows import Ladder, Row

_INCHES_PER_RUNG = 0.34


def ladder_html(ladder: Ladder) -> str:
    """Return the page."""
    return html_page(
        f"The ladder: {ladder.model}",
        [
            *map(paragraph, heading(ladder).strip().splitlines()),
            inline_svg(ladder_svg(ladder.to_json())),
            html_table(_table(ladder)),
            *map(paragraph, verdict(ladder)),
            *(paragraph(f"Note: {note}.") for note in ladder.notes),
            *(_page(row) for row in ladder.rows),
        ],
    )


def _table(ladder: Ladder) -> Table:
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
    speedups = ladder.speedup_over_the_one_before(row), ladder.speedup_over_the_first(row)
    return [
        *first,
        milliseconds(measured.op_ms),
        *("-" if value is None else f"{three_digits(value)}x" for value in speedups),
        "-" if floor is None else three_digits(100 * floor / measured.op_ms),
        *card_cells(measured),
        last,
    ]


def _page(row: Row) -> str:
    page = row.page
    parts = [f"<h2>{page.number}. {html.escape(page.title)}</h2>", *_paragraphs(page.idea)]
    if page.code:
        parts.append(f"<pre><code>{html.escape(page.code)}</code></pre>")
    else:
        parts += _paragraphs(f"The code is in {page.elsewhere}.")
    parts += _paragraphs(f"*What it should gain.* {page.gain}")
    if page.slower:
        parts += _paragraphs(f"*Why it may be slower than the one before.* {page.slower}")
    return "\n".join([*parts, *_paragraphs(f"*In Nsight Compute.* {page.counter}")])


def _paragraphs(text: str) -> Iterable[str]:
    """Yield the paragraphs of a page's field, its `code` and *emphasis* as HTML has them."""
    for part in text.split("\n\n"):
        marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(part))
        # Not between letters and digits: 5*5 is no emphasis.
        yield "<p>" + re.sub(r"(?<![\w*])\*([^*]+)\*(?![\w*])", r"<em>\1</em>", marked) + "</p>"


def ladder_svg(found: Mapping[str, Any]) -> str:
    """Return the plot of what `convswap ladder --json` wrote, as SVG.

    Raises:
        ConvswapError: matplotlib is not installed.
    """
    rungs = [rung for rung in found["rungs"] if rung["why_not"] is None]
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
    axes.set_xlabel(f"ms for {found['images']:,} images, convolutions alone", fontsize=8)
    card = found["environment"]["card"] or found["environment"]["processor"]
    axes.set_title(f"{found['model']} on {card}", fontsize=9, parse_math=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return svg_text(figure)
