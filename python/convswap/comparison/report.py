"""The tables of a comparison, on a terminal or in 120 columns, and on one page of HTML with bars."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.comparison.result import Comparison, LayerResult, SideResult
from convswap.graph.domain import QUANT_OP
from convswap.graph.fusion.fuse import fusion_counts, fusion_remarks
from convswap.output.pages import Bar, BarPage, BarRow, bar_html
from convswap.output.tables import error, milliseconds, plain_table, three_digits, times_faster, versions_line
from convswap.runtime.layers import INT8

# A speedup from here on is not called slower: two measurements of the same model differ by as much.
_NO_SLOWER = 0.98

# The maximum number of Convs with bars on the page; the tables have all Convs.
MAX_LAYERS = 40


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the comparison: each side's figures, a row per Conv, and the Convs that were not swapped.

    A console that is not a terminal should be 120 columns wide; long names are wrapped, never cut.
    """
    console.print(Text(f"{heading(comparison)}\n"))
    for table in comparison_tables(comparison):
        console.print(table)
    for remark in remarks(comparison):
        console.print(Text(f"{remark}."))
    console.print(Text(comparison_verdict(comparison)))


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the tables: each side's figures, a row per Conv, and the Convs that were not swapped."""
    tables = [_sides_table(comparison)]
    if comparison.layers:
        tables.append(_layers_table(comparison))
        others = [name for name in comparison.sides if name not in ("default", "convswap")]
        if others:
            tables.append(_others_table(comparison, others))
        if any(layer.codes is not None for layer in comparison.layers):
            tables.append(_codes_table(comparison))
    if comparison.left:
        tables.append(_left_table(comparison))
    return tables


def remarks(comparison: Comparison) -> list[str]:
    """Return what was fused and what was not, and the notes, each without its full stop."""
    return [
        *fusion_remarks(comparison.fused, comparison.not_fused),
        *(f"Note: {note}" for note in comparison.notes),
    ]


def print_course_lines(comparison: Comparison, console: Console) -> None:
    """Print, for each side, the two lines that the programs of ECE 408 print for one network.

    `Op Time` has the seconds of the Convs alone for all images, as in the course for its 10,000 images.
    Accuracies are written as Python writes them, as in the course. The lines are never folded. Notes say if
    the time includes more than the convolutions, or leaves some out.
    """
    for name, side in comparison.sides.items():
        correctness = "unknown" if side.accuracy is None else str(round(side.accuracy, 4))
        for line in (
            f"{side_title(name, side)}:",
            f"Op Time: {comparison.op_seconds(name):.6f}",
            f"Correctness: {correctness} Model: {comparison.model}",
        ):
            console.print(Text(line), soft_wrap=True)
    if any(layer.fused for layer in comparison.layers):
        console.print(Text("Note: Op Time is that of what is fused with the convolutions too, on each side."))
    # A row with a fused depthwise Conv has two Convs.
    timed = sum(1 + layer.fused.count("Conv") for layer in _conv_layers(comparison))
    untimed = comparison.swapped - timed + len(comparison.left)
    if untimed:
        console.print(Text(f"Note: Op Time leaves out {untimed} convolutions that were not timed alone."))


def heading(comparison: Comparison) -> str:
    """Return the lines about the model, the machine and the options."""
    options = comparison.options
    provider = comparison.device.provider
    return (
        f"{comparison.model}: {provider} by default, and with convswap's Conv\n"
        f"{versions_line(dict(comparison.environment), comparison.device.title)}\n"
        f"{comparison.images:,} images of {comparison.dataset}, batch {comparison.batch:,}, "
        f"precision {_precisions(comparison)}, algorithm {options['algorithm']}"
        f"{', fused' if options.get('fuse') else ''}"
    )


def _precisions(comparison: Comparison) -> str:
    # Without layers, only the records of this swap tell.
    of_layers = sum(layer.precision == INT8 for layer in _conv_layers(comparison))
    of_records = sum(record.op == QUANT_OP and record.is_conv for record in comparison.fused)
    quantised = max(of_layers, of_records)
    if not quantised:
        return comparison.precision
    return INT8 if quantised == comparison.swapped else f"{comparison.precision}, {INT8} of QuantConv"


def _conv_layers(comparison: Comparison) -> list[LayerResult]:
    """Return the layers that are swapped Convs.

    A QuantConv may also be a mean, a fully connected layer or a rounding. In a model that had all its
    QuantConv nodes before, each counts as a swapped Conv.
    """
    records = {record.node: record.is_conv for record in comparison.fused if record.op == QUANT_OP}
    return [
        layer
        for layer in comparison.layers
        if not records or layer.precision != INT8 or records.get(layer.node, False)
    ]


def _sides_table(comparison: Comparison) -> Table:
    table = plain_table(f"The whole model (times in ms for a batch of {comparison.batch:,})")
    table.add_column("side", overflow="fold")
    for heading in ("median", "95th pct.", "first run", "runs", "speedup", "top-1", "max. error", "rel. L2"):
        table.add_column(heading, justify="right", overflow="fold")
    for name, side in comparison.sides.items():
        faster = (
            times_faster(comparison.default.times.median / side.times.median) if name != "default" else ""
        )
        table.add_row(side_title(name, side), *_side_cells(side, faster))
    table.caption = Text(
        f"errors against float64 on {comparison.truth_images} images; {_agreement(comparison)}"
    )
    table.caption_justify = "left"
    return table


def side_title(name: str, side: SideResult) -> str:
    """Return the name of a side, with its options if it has some."""
    if name == "convswap":
        return name
    return ", ".join(f"{key}={value}" for key, value in side.provider_options.items()) or name


def _side_cells(side: SideResult, faster: str) -> list[str]:
    return [
        milliseconds(side.times.median),
        milliseconds(side.times.p95),
        milliseconds(side.times.first),
        str(side.times.runs),
        faster,
        "-" if side.accuracy is None else f"{side.accuracy:.4f}",
        error(side.max_abs_error),
        error(side.relative_l2_error),
    ]


def _layers_table(comparison: Comparison) -> Table:
    is_fused = any(layer.fused for layer in comparison.layers)
    title = "Each Conv alone, with what is fused with it on both sides" if is_fused else "Each Conv alone"
    table = plain_table(f"{title}, on its real input (median ms, batch {comparison.batch:,})")
    table.add_column("node", overflow="fold")
    table.add_column("algorithm", overflow="fold")
    floors = any(layer.floor_ms is not None for layer in comparison.layers)
    headings = ["default", "convswap", "speedup", *(["floor", "% of floor"] if floors else [])]
    for heading in (*headings, "L2 default", "L2 convswap"):
        table.add_column(heading, justify="right", overflow="fold")
    for layer in comparison.layers:
        table.add_row(*_layer_cells(layer, floors))
    default, convswap = comparison.layers_sum("default"), comparison.layers_sum("convswap")
    table.add_section()
    table.add_row(
        _sum_title(comparison),
        "",
        milliseconds(default),
        milliseconds(convswap),
        times_faster(default / convswap),
    )
    table.add_row(
        "whole model",
        "",
        milliseconds(comparison.default.times.median),
        milliseconds(comparison.convswap.times.median),
        times_faster(comparison.speedup),
    )
    return table


def _layer_cells(layer: LayerResult, floors: bool) -> list[Text | str]:
    default, convswap = layer.milliseconds["default"], layer.milliseconds["convswap"]
    cells: list[Text | str] = [
        Text(layer.title),
        layer.algorithm,
        milliseconds(default),
        milliseconds(convswap),
        times_faster(default / convswap),
    ]
    if floors:
        share = "-" if layer.floor_ms is None else f"{100 * layer.floor_ms / convswap:.0f} %"
        cells += [milliseconds(layer.floor_ms), share]
    return [*cells, error(layer.relative_l2_error["default"]), error(layer.relative_l2_error["convswap"])]


def _others_table(comparison: Comparison, others: list[str]) -> Table:
    """Return the table of the sides with other options, which the first table has no room for."""
    table = plain_table("Each Conv alone with other options of the provider (median ms)")
    table.add_column("node", overflow="fold")
    sides = ["default", *others, "convswap"]
    for name in sides:
        table.add_column(side_title(name, comparison.sides[name]), justify="right", overflow="fold")
    for layer in comparison.layers:
        table.add_row(Text(layer.title), *(milliseconds(layer.milliseconds[name]) for name in sides))
    table.add_section()
    table.add_row(_sum_title(comparison), *(milliseconds(comparison.layers_sum(name)) for name in sides))
    return table


def _codes_table(comparison: Comparison) -> Table:
    table = plain_table("Codes of each QuantConv alone, for equal input codes, against float64")
    table.add_column("node", overflow="fold")
    for heading in ("equal by default", "equal convswap", "largest step by default", "convswap"):
        table.add_column(heading, justify="right", overflow="fold")
    for layer in comparison.layers:
        if layer.codes is not None:
            both = [layer.codes[name] for name in ("default", "convswap")]
            shares = (_share(difference.equal) for difference in both)
            table.add_row(Text(layer.title), *shares, *(str(difference.steps) for difference in both))
    return table


def _sum_title(comparison: Comparison) -> str:
    is_fused = any(layer.fused for layer in comparison.layers)
    return "sum of all rows" if is_fused else "sum of all Conv"


def _left_table(comparison: Comparison) -> Table:
    table = plain_table("Convolutions left as they were")
    table.add_column("node", overflow="fold")
    table.add_column("why", overflow="fold")
    for left in comparison.left:
        table.add_row(Text(left.node), Text(left.reason))
    return table


def _agreement(comparison: Comparison) -> str:
    if comparison.top1_agreement is None:
        return "no image has a class on either side"
    images = "of the images that have a class" if comparison.without_class else "of all images"
    return f"top-1 agreement on {_share(comparison.top1_agreement)} {images}"


def _share(value: float) -> str:
    """Return a share in per cent, which is 100 only if it is the whole."""
    return "100 %" if value == 1 else f"{math.floor(value * 1e4) / 1e2:.2f} %"


def comparison_verdict(comparison: Comparison) -> str:
    """Return whether the outputs agree and, in a second line, the speedup."""
    convswap, tolerance = comparison.convswap.relative_l2_error, comparison.tolerance
    evidence = f"relative L2 error {error(convswap)}, at most {tolerance:g} asked for."
    if comparison.verdict is not None:
        evidence = comparison.verdict.evidence
    answer = f"{_outcome(comparison)}: {evidence}"
    swapped = f"{comparison.swapped} Conv swapped, {len(comparison.left)} left"
    if comparison.options.get("fuse"):
        swapped += f", {fusion_counts(comparison.fused)}"
    return f"{answer}\n{swapped}; {_gain(comparison)}"


def _outcome(comparison: Comparison) -> str:
    if comparison.verdict is not None and comparison.verdict.nothing_compared:
        return "NOTHING COULD BE COMPARED"
    return "The outputs agree" if comparison.within_tolerance else "THE OUTPUTS DIFFER"


def _gain(comparison: Comparison) -> str:
    gain = f"{times_faster(comparison.speedup)} as fast as the default provider."
    if comparison.speedup < _NO_SLOWER:
        gain = f"SLOWER, {times_faster(1 / comparison.speedup)} the default provider's time."
    slower = sum(
        layer.milliseconds["default"] < _NO_SLOWER * layer.milliseconds["convswap"]
        for layer in comparison.layers
    )
    if comparison.speedup < _NO_SLOWER or slower:
        of_convs = f"{slower} Conv slower alone: " if slower else ""
        gain += f" {of_convs}`convswap optimize` swaps only what gains."
    return gain


def compare_html(comparison: Comparison, made: str = "") -> str:
    """Return the page; `made` is the command and the date at its end."""
    title, *circumstances = heading(comparison).splitlines()
    answer, gain = comparison_verdict(comparison).splitlines()
    shown = _longest(comparison)
    return bar_html(
        BarPage(
            title=title,
            speedup=times_faster(comparison.speedup),
            agreement=answer,
            is_wrong=not comparison.within_tolerance,
            gain=gain,
            circumstances=circumstances,
            end_to_end=_end_to_end_rows(comparison),
            layers=_layer_rows(shown),
            layers_note=_layers_note(comparison, shown),
            tables=comparison_tables(comparison),
            remarks=[f"{remark}." for remark in remarks(comparison)],
            footer=made,
        )
    )


def _end_to_end_rows(comparison: Comparison) -> list[BarRow]:
    times = {name: side.times.median for name, side in comparison.sides.items()}
    longest = max(times.values())
    return [
        BarRow(side_title(name, comparison.sides[name]), "", (_bar(name, time, longest),))
        for name, time in times.items()
    ]


def _longest(comparison: Comparison) -> list[LayerResult]:
    """Return the layers to show, in the model's order: if there are too many, the slowest by default."""
    by_time = sorted(comparison.layers, key=lambda layer: -layer.milliseconds["default"])[:MAX_LAYERS]
    return [layer for layer in comparison.layers if layer in by_time]


def _layer_rows(layers: list[LayerResult]) -> list[BarRow]:
    longest = max((time for layer in layers for time in _both(layer).values()), default=0.0)
    return [
        BarRow(
            layer.title,
            _bar_text(layer),
            tuple(_bar(name, time, longest) for name, time in _both(layer).items()),
            None if layer.floor_ms is None else layer.floor_ms / longest,
        )
        for layer in layers
    ]


def _bar_text(layer: LayerResult) -> str:
    faster = times_faster(layer.milliseconds["default"] / layer.milliseconds["convswap"])
    default, convswap = (error(layer.relative_l2_error[side]) for side in ("default", "convswap"))
    return f"{layer.algorithm}, {faster}; error {default} by default, {convswap} with convswap"


def _layers_note(comparison: Comparison, shown: list[LayerResult]) -> str:
    note = f"Median milliseconds for a batch of {comparison.batch:,}; bars begin at zero, all on one scale."
    if len(shown) < len(comparison.layers):
        note += f" The {len(shown)} of {len(comparison.layers)} layers that take the default longest."
    return note


def _both(layer: LayerResult) -> Mapping[str, float]:
    return {name: layer.milliseconds[name] for name in ("default", "convswap")}


def _bar(side: str, time: float, longest: float) -> Bar:
    return Bar(side if side in ("default", "convswap") else "other", time / longest, three_digits(time))
