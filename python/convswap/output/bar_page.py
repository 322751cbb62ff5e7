"""A page of HTML that needs nothing beside it: one large number, bars from zero, and a terminal's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jinja2 import Environment
from markupsafe import Markup
from rich.table import Table
from rich.text import Text

from convswap.output.page_template import PAGE, ROWS
from convswap.output.pages import html_table, paragraph


@dataclass(frozen=True)
class Bar:
    """A bar of one side, "default", "convswap" or "other": `share` of the longest one, from zero."""

    side: str
    share: float
    text: str


@dataclass(frozen=True)
class BarRow:
    """The bars of one thing that was timed; `floor` is a share as well."""

    title: str
    told: str
    bars: tuple[Bar, ...]
    floor: float | None = None


@dataclass(frozen=True)
class BarPage:
    """What a page shows, from the top down; all of it is text.

    `speedup` is the large number, `answer` says whether the answers agree, and `is_wrong` has it in red.
    """

    title: str
    speedup: str
    answer: str
    is_wrong: bool
    gain: str
    circumstances: Sequence[str]
    whole: Sequence[BarRow]
    layers: Sequence[BarRow]
    layers_note: str
    tables: Iterable[Table]
    remarks: Iterable[str]
    made: str


def bar_html(page: BarPage) -> str:
    """Return the page as HTML."""
    template = Environment(autoescape=True).from_string(ROWS + PAGE)
    return template.render(
        title=page.title,
        speedup=page.speedup,
        answer=page.answer,
        is_wrong=page.is_wrong,
        gain=page.gain,
        circumstances=page.circumstances,
        whole=page.whole,
        layers=page.layers,
        layers_note=page.layers_note,
        has_floor=any(row.floor is not None for row in page.layers),
        tables=Markup("\n").join(Markup(part) for table in page.tables for part in _parts(table)),
        remarks=page.remarks,
        made=page.made,
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
    return [shown, *([paragraph(_text(table.caption), "quiet")] if table.caption else [])]


def _text(shown: object) -> str:
    return shown.plain if isinstance(shown, Text) else str(shown)
