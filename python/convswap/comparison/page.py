"""A comparison as one page of HTML that needs nothing beside it: verdict, bars, and the terminal's tables."""

from __future__ import annotations

from collections.abc import Mapping

from convswap.comparison.report import comparison_tables, heading, remarks, side_title, verdict
from convswap.comparison.result import Comparison, LayerResult
from convswap.output.bar_page import Bar, BarPage, BarRow, bar_html
from convswap.output.tables import error, three_digits, times_faster

# More would be bars that nobody reads; the tables have them all.
MOST_LAYERS = 40


def compare_html(comparison: Comparison, made: str = "") -> str:
    """Return the page; `made` says by what command and when, at its end."""
    title, *circumstances = heading(comparison).splitlines()
    answer, gain = verdict(comparison).splitlines()
    shown = _longest(comparison)
    return bar_html(
        BarPage(
            title=title,
            speedup=times_faster(comparison.speedup),
            answer=answer,
            is_wrong=not comparison.within_tolerance,
            gain=gain,
            circumstances=circumstances,
            whole=_whole_rows(comparison),
            layers=_layer_rows(shown),
            layers_note=_layers_note(comparison, shown),
            tables=comparison_tables(comparison),
            remarks=[f"{remark}." for remark in remarks(comparison)],
            made=made,
        )
    )


def _whole_rows(comparison: Comparison) -> list[BarRow]:
    times = {name: side.times.median for name, side in comparison.sides.items()}
    longest = max(times.values())
    return [
        BarRow(side_title(name, comparison.sides[name]), "", (_bar(name, time, longest),))
        for name, time in times.items()
    ]


def _longest(comparison: Comparison) -> list[LayerResult]:
    """Return the layers to show, in the model's order: of too many those that take the default longest."""
    by_time = sorted(comparison.layers, key=lambda layer: -layer.milliseconds["default"])[:MOST_LAYERS]
    return [layer for layer in comparison.layers if layer in by_time]


def _layer_rows(layers: list[LayerResult]) -> list[BarRow]:
    longest = max((time for layer in layers for time in _both(layer).values()), default=0.0)
    return [
        BarRow(
            layer.title,
            _told(layer),
            tuple(_bar(name, time, longest) for name, time in _both(layer).items()),
            None if layer.floor_ms is None else layer.floor_ms / longest,
        )
        for layer in layers
    ]


def _told(layer: LayerResult) -> str:
    faster = times_faster(layer.milliseconds["default"] / layer.milliseconds["convswap"])
    default, ours = (error(layer.relative_l2_error[side]) for side in ("default", "convswap"))
    return f"{layer.algorithm}, {faster}; error {default} by default, {ours} ours"


def _layers_note(comparison: Comparison, shown: list[LayerResult]) -> str:
    note = f"Median milliseconds for a batch of {comparison.batch:,}; bars begin at zero, all on one scale."
    if len(shown) < len(comparison.layers):
        note += f" Of {len(comparison.layers)} layers the {len(shown)} that take the default longest."
    return note


def _both(layer: LayerResult) -> Mapping[str, float]:
    return {name: layer.milliseconds[name] for name in ("default", "convswap")}


def _bar(side: str, time: float, longest: float) -> Bar:
    return Bar(side if side in ("default", "convswap") else "other", time / longest, three_digits(time))
