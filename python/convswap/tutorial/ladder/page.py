"""The ladder as one page of HTML that needs nothing beside it: plot, table, and the page of every rung."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from convswap.output.pages import html_page, html_table, inline_svg, paragraph
from convswap.output.tables import error, milliseconds, three_digits
from convswap.tutorial.ladder.plot import ladder_svg
from convswap.tutorial.ladder.report import heading, registers, shared_memory, verdict
from convswap.tutorial.ladder.rows import Ladder, Row

_HEADINGS = (
    *("rung", "", "op ms", "than before", "than first", "% of floor", "GB/s", "registers", "shared KB"),
    *("network ms", "top-1", "rel. L2", "the report, on its card"),
)
_WORDS = (1, len(_HEADINGS) - 1)


def ladder_html(ladder: Ladder) -> str:
    """Return the page."""
    return html_page(
        f"The ladder: {ladder.model}",
        [
            *map(paragraph, heading(ladder).strip().splitlines()),
            inline_svg(ladder_svg(ladder.to_json())),
            html_table(_HEADINGS, [_cells(ladder, row) for row in ladder.rows], words=_WORDS),
            *map(paragraph, verdict(ladder)),
            *(paragraph(f"Note: {note}.") for note in ladder.notes),
            *(_page(row) for row in ladder.rows),
        ],
    )


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
        three_digits(measured.gigabytes_per_second),
        registers(measured),
        shared_memory(measured),
        milliseconds(measured.network_ms),
        "-" if measured.accuracy is None else f"{measured.accuracy:.4f}",
        error(measured.relative_l2_error),
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
