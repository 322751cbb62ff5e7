"""The plot of the ladder: a bar for each rung, on a scale of powers of ten."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convswap.output.drawing import new_figure, svg_text
from convswap.output.tables import three_digits

_INCHES_PER_RUNG = 0.34


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
