"""One page of HTML that needs nothing beside it, and tables for it."""

from __future__ import annotations

import html
from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-size: 0.85rem; display: block; overflow-x: auto; margin: 1rem 0 }
caption { text-align: left; font-weight: bold; padding-bottom: 0.3rem }
th, td { padding: 0.2rem 0.6rem; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
.words { text-align: left; overflow-wrap: anywhere }
.new-part td { border-top: 2px solid #999 }
.wrong { color: #b00020; font-weight: bold }
pre { background: #f6f6f4; padding: 0.8rem; overflow-x: auto; font-size: 0.8rem; line-height: 1.35 }
svg { max-width: 100%; height: auto }
"""


def html_page(title: str, parts: Iterable[str]) -> str:
    """Return the page; `title` is text and stands above, `parts` are HTML."""
    shown = html.escape(title)
    body = "\n".join([f"<h1>{shown}</h1>", *parts])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{shown}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return text as a paragraph, of the style's class `kind` where one is given."""
    return f"<p{_class(kind)}>{html.escape(text)}</p>"


def inline_svg(svg: str) -> str:
    """Return what of an SVG file a page may hold."""
    return svg[svg.index("<svg") :]


def html_table(table: Table) -> str:
    """Return a table of the terminal, and what is said below it."""
    kinds = [_class("words" if column.justify == "left" else "") for column in table.columns]

    def row(tag: str, texts: Iterable[str], kind: str = "") -> str:
        cells = (f"<{tag}{own}>{html.escape(text)}</{tag}>" for own, text in zip(kinds, texts, strict=True))
        return f"<tr{_class(kind)}>{''.join(cells)}</tr>"

    title = _text(table.title or "")
    lines = [f"<caption>{html.escape(title)}</caption>"] if title else []
    lines.append(row("th", (_text(column.header) for column in table.columns)))
    columns = [map(_text, column.cells) for column in table.columns]
    ends_part = [False, *(row.end_section for row in table.rows)]
    for texts, after_part in zip(zip(*columns, strict=True), ends_part, strict=False):
        lines.append(row("td", texts, "new-part" if after_part else ""))
    shown = "<table>\n" + "\n".join(lines) + "\n</table>"
    return f"{shown}\n{paragraph(_text(table.caption), 'quiet')}" if table.caption else shown


def _text(shown: object) -> str:
    return shown.plain if isinstance(shown, Text) else str(shown)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
