"""One page of HTML that needs nothing beside it, and tables for it."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

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


def html_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words: Collection[int],
    title: str = "",
    new_parts: Collection[int] = (),
) -> str:
    """Return a table of text.

    The columns numbered in `words` hold words and the others numbers; the rows numbered in `new_parts` have
    a line above. A row may be shorter than the headings.
    """
    lines = [f"<caption>{html.escape(title)}</caption>"] if title else []
    lines.append(f"<tr>{_cells('th', headings, words)}</tr>")
    for number, row in enumerate(rows):
        kind = "new-part" if number in new_parts else ""
        lines.append(f"<tr{_class(kind)}>{_cells('td', row, words)}</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _cells(tag: str, texts: Sequence[str], words: Collection[int]) -> str:
    return "".join(
        f"<{tag}{_class('words' if column in words else '')}>{html.escape(text)}</{tag}>"
        for column, text in enumerate(texts)
    )


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
