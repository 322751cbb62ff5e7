"""A comparison as one page of HTML that needs nothing beside it: verdict, plot, and the terminal's tables."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from convswap.comparison.plot import compare_svg
from convswap.comparison.report import comparison_tables, heading, remarks, verdict
from convswap.comparison.result import Comparison
from convswap.output.pages import html_page, html_table, inline_svg, paragraph


def compare_html(comparison: Comparison) -> str:
    """Return the page.

    Raises:
        ConvswapError: matplotlib is not installed.
    """
    title, *circumstances = heading(comparison).splitlines()
    answer, gain = verdict(comparison).splitlines()
    return html_page(
        title,
        [
            *map(paragraph, circumstances),
            paragraph(answer, "" if comparison.within_tolerance else "wrong"),
            paragraph(gain),
            inline_svg(compare_svg(comparison)),
            *(part for table in comparison_tables(comparison) for part in _parts(table)),
            *(paragraph(f"{remark}.") for remark in remarks(comparison)),
        ],
    )


def _parts(table: Table) -> list[str]:
    """Return a table of the terminal, and what is said below it."""
    columns = [[_text(cell) for cell in column.cells] for column in table.columns]
    ends = [number for number, row in enumerate(table.rows) if row.end_section]
    shown = html_table(
        [_text(column.header) for column in table.columns],
        list(zip(*columns, strict=True)),
        words=[number for number, column in enumerate(table.columns) if column.justify == "left"],
        title=_text(table.title),
        new_parts=[end + 1 for end in ends],
    )
    return [shown, *([paragraph(_text(table.caption))] if table.caption else [])]


def _text(shown: object) -> str:
    return shown.plain if isinstance(shown, Text) else str(shown)
