"""Self-contained HTML pages: a page of given parts, and a page with one large number, bars and tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jinja2 import Environment
from markupsafe import Markup
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
    """Return a page with the heading `title`, a text, and the body `parts`, which are HTML."""
    escaped = html.escape(title)
    body = "\n".join([f"<h1>{escaped}</h1>", *parts])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escaped}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def paragraph(text: str, kind: str = "") -> str:
    """Return text as an HTML paragraph of the CSS class `kind`."""
    return f"<p{_class(kind)}>{html.escape(text)}</p>"


def inline_svg(svg: str) -> str:
    """Return the svg element of an SVG file, without the XML declaration and document type."""
    return svg[svg.index("<svg") :]


def html_table(table: Table) -> str:
    """Return a terminal table and its caption as HTML; the caption becomes a paragraph below."""
    kinds = [_class("words" if column.justify == "left" else "") for column in table.columns]

    def row(tag: str, texts: Iterable[str], kind: str = "") -> str:
        cells = (
            f"<{tag}{attribute}>{html.escape(text)}</{tag}>"
            for attribute, text in zip(kinds, texts, strict=True)
        )
        return f"<tr{_class(kind)}>{''.join(cells)}</tr>"

    title = _text(table.title or "")
    lines = [f"<caption>{html.escape(title)}</caption>"] if title else []
    lines.append(row("th", (_text(column.header) for column in table.columns)))
    columns = [map(_text, column.cells) for column in table.columns]
    begins_section = [False, *(row.end_section for row in table.rows)]
    for texts, is_first in zip(zip(*columns, strict=True), begins_section, strict=False):
        lines.append(row("td", texts, "new-part" if is_first else ""))
    content = "<table>\n" + "\n".join(lines) + "\n</table>"
    return f"{content}\n{paragraph(_text(table.caption), 'quiet')}" if table.caption else content


def _text(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


@dataclass(frozen=True)
class Bar:
    """A bar of a side ("default", "convswap" or "other"). `share` is its length over that of the longest."""

    side: str
    share: float
    text: str


@dataclass(frozen=True)
class BarRow:
    """The bars of one timed model or layer; `floor` is relative to the longest bar, too."""

    title: str
    subtitle: str
    bars: tuple[Bar, ...]
    floor: float | None = None


@dataclass(frozen=True)
class BarPage:
    """Content of a page from top to bottom; strings are plain text.

    `speedup` is the large number. `agreement` says whether the outputs agree; `is_wrong` shows it in red.
    """

    title: str
    speedup: str
    agreement: str
    is_wrong: bool
    gain: str
    circumstances: Sequence[str]
    end_to_end: Sequence[BarRow]
    layers: Sequence[BarRow]
    layers_note: str
    tables: Iterable[Table]
    remarks: Iterable[str]
    footer: str


def bar_html(page: BarPage) -> str:
    """Return the page as HTML."""
    template = Environment(autoescape=True).from_string(ROWS + PAGE)
    return template.render(
        vars(page)
        | {
            "has_floor": any(row.floor is not None for row in page.layers),
            "tables": Markup("\n").join(map(Markup, map(html_table, page.tables))),
        }
    )


PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
:root {
  color-scheme: light dark;
  --paper: #fff; --ink: #1c1c1a; --quiet: #62625c; --line: #d8d8d2; --wrong: #b00020;
  --default: #a9a9a0; --convswap: #2f6f9f; --other: #c9b27a; --floor: #b04030;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #161614; --ink: #ececE6; --quiet: #a4a49c; --line: #3a3a36; --wrong: #ff8a80;
    --default: #77776f; --convswap: #6fb1e0; --other: #a8925c; --floor: #ff9580;
  }
}
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem }
h1 { font-size: 1.15rem; overflow-wrap: anywhere; margin: 0 0 1rem }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .4rem }
p { margin: .3rem 0; overflow-wrap: anywhere }
.gain { display: flex; flex-wrap: wrap; align-items: baseline; gap: .2rem .8rem }
.gain b { font-size: 4rem; line-height: 1.05; font-weight: 700; letter-spacing: -.02em }
.quiet, .note { color: var(--quiet); font-size: .88rem }
.wrong { color: var(--wrong); font-weight: 700 }
.bars { margin: .9rem 0; break-inside: avoid }
.name { font-size: .88rem; overflow-wrap: anywhere }
.name i { color: var(--quiet); font-style: normal }
.bar { display: grid; grid-template-columns: 1fr 5.2rem; align-items: center; gap: .5rem; height: 1.15rem }
.rail { position: relative; height: .8rem; border-left: 1px solid var(--quiet) }
.fill { height: 100%; min-width: 1px; width: calc(var(--share) * 100%); background: var(--other) }
.fill.default { background: var(--default) }
.fill.convswap { background: var(--convswap) }
.floor { position: absolute; top: -.15rem; bottom: -.15rem; width: 2px; background: var(--floor);
  left: calc(var(--share) * 100%) }
.ms { font-size: .82rem; font-variant-numeric: tabular-nums; white-space: nowrap }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .82rem; color: var(--quiet) }
.legend span::before { content: ""; display: inline-block; width: .8em; height: .8em; margin-right: .4em;
  background: var(--mark) }
table { border-collapse: collapse; font-size: .82rem; display: block; overflow-x: auto;
  margin: 1.2rem 0 .3rem }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums }
.words { text-align: left; overflow-wrap: anywhere; min-width: 7rem }
.new-part td { border-top: 2px solid var(--quiet) }
@media print {
  :root { --paper: #fff; --ink: #000; --quiet: #444; --line: #ccc; --default: #a9a9a0; --convswap: #2f6f9f;
    --other: #c9b27a; --floor: #b04030; --wrong: #b00020 }
  body { max-width: none; padding: 0 }
  .fill, .floor, .legend span::before { print-color-adjust: exact; -webkit-print-color-adjust: exact }
  table { display: table; font-size: .7rem }
}
</style>
</head>
<body>
<h1>{{ title }}</h1>
<div class="gain"><b>{{ speedup }}</b><span>as fast as the default provider</span></div>
<p{% if is_wrong %} class="wrong"{% endif %}>{{ agreement }}</p>
<p>{{ gain }}</p>
{% for line in circumstances %}<p class="quiet">{{ line }}</p>
{% endfor %}
<h2>The whole model</h2>
<div class="note">Median milliseconds of a run; bars begin at zero.</div>
{{ rows(end_to_end) }}
{% if layers %}
<h2>Each convolution alone</h2>
<div class="note">{{ layers_note }}</div>
<div class="legend"><span style="--mark: var(--default)">default</span>\
<span style="--mark: var(--convswap)">convswap</span>\
{% if has_floor %}\
<span style="--mark: var(--floor)">floor: the least time that the card can take</span>\
{% endif %}</div>
{{ rows(layers) }}
{% endif %}
<h2>All figures</h2>
{{ tables }}
{% for remark in remarks %}<p class="quiet">{{ remark }}</p>
{% endfor %}
{% if footer %}<p class="quiet">{{ footer }}</p>{% endif %}
</body>
</html>
"""

# Macro for the bar groups: each row has a title, a subtitle beside it, and a bar per side.
ROWS = """\
{% macro rows(all) %}{% for row in all %}<div class="bars">
<div class="name"><span class="title">{{ row.title }}</span>\
{% if row.subtitle %} <i>{{ row.subtitle }}</i>{% endif %}</div>
{% for bar in row.bars %}<div class="bar"><div class="rail">\
<div class="fill {{ bar.side }}" style="--share: {{ bar.share }}"></div>\
{% if row.floor is not none %}<div class="floor" style="--share: {{ row.floor }}"></div>{% endif %}</div>\
<span class="ms">{{ bar.text }}</span></div>
{% endfor %}</div>
{% endfor %}{% endmacro %}"""
