"""The plot of a comparison: the whole model and each Conv, a bar for each side, with the floor."""

from __future__ import annotations

from typing import NamedTuple

from convswap.comparison.result import Comparison
from convswap.output.drawing import new_figure, svg_text
from convswap.output.tables import three_digits

# More would be a picture that nobody reads; the tables have them all.
MOST_LAYERS = 40
_MOST_LETTERS = 44
_INCHES_PER_ROW = 0.5
_BAR_WIDTH = 0.38
_COLOURS = {"default": "#b8b8b0", "convswap": "#4878a8"}
_FLOOR_COLOUR = "#b04030"


class _Row(NamedTuple):
    title: str
    milliseconds: dict[str, float]
    floor_ms: float | None


def compare_svg(comparison: Comparison) -> str:
    """Return the plot as SVG, times on a scale of powers of ten.

    Of more than `MOST_LAYERS` layers it has those that take the default longest, in the model's order, and
    says so.

    Raises:
        ConvswapError: matplotlib is not installed.
    """
    rows = _rows(comparison)
    figure = new_figure(figsize=(9, 1.5 + _INCHES_PER_ROW * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for side, offset in (("default", -_BAR_WIDTH / 2), ("convswap", _BAR_WIDTH / 2)):
        times = [row.milliseconds[side] for row in rows]
        places = [number + offset for number in range(len(rows))]
        bars = axes.barh(places, times, height=_BAR_WIDTH, color=_COLOURS[side], label=side)
        axes.bar_label(bars, [three_digits(time) for time in times], padding=3, fontsize=8)
    floors = [(number, row.floor_ms) for number, row in enumerate(rows) if row.floor_ms is not None]
    if floors:
        places = [number for number, _ in floors]
        begins, ends = ([place + half * _BAR_WIDTH for place in places] for half in (-1, 1))
        axes.vlines([floor for _, floor in floors], begins, ends, color=_FLOOR_COLOUR, label="floor")
    axes.set_yticks(range(len(rows)), [row.title for row in rows], fontsize=8, parse_math=False)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.01)
    axes.tick_params(axis="x", labelsize=8)
    label = f"median ms for a batch of {comparison.batch:,}, in powers of ten"
    if len(comparison.layers) > MOST_LAYERS:
        label += f"; of {len(comparison.layers)} layers the {MOST_LAYERS} that take the default longest"
    axes.set_xlabel(label, fontsize=8)
    axes.legend(fontsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return svg_text(figure)


def _rows(comparison: Comparison) -> list[_Row]:
    whole = {name: side.times.median for name, side in comparison.sides.items()}
    longest = sorted(comparison.layers, key=lambda layer: -layer.milliseconds["default"])[:MOST_LAYERS]
    return [
        _Row("whole model", whole, None),
        *(
            _Row(_shortened(layer.title), dict(layer.milliseconds), layer.floor_ms)
            for layer in comparison.layers
            if layer in longest
        ),
    ]


def _shortened(title: str) -> str:
    """Return a title with its end, which tells nodes apart, where it is too long to stand beside a bar."""
    return title if len(title) <= _MOST_LETTERS else f"…{title[1 - _MOST_LETTERS :]}"
