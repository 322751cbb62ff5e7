"""The table of a study, and its two plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.errors import ConvswapError
from convswap.output.drawing import new_figure
from convswap.output.tables import milliseconds, plain_table, versions_line
from convswap.tutorial.study.study import NETWORK, PARTS, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#bbbbbb", "#66ccee")
_BAR_WIDTH = 0.4


def print_study(study: Study, console: Console) -> None:
    """Print the options and the card, and a row for each batch and side."""
    versions = versions_line(dict(study.environment), study.device.title)
    fused = ", fused" if study.fuse else ""
    console.print(
        Text(
            f"{NETWORK} by batch, precision {study.precision}, algorithm {study.algorithm}{fused}\n"
            f"{versions}, CUPTI {study.environment.get('cupti')}\n"
        )
    )
    console.print(_table(study))
    for row in study.rows:
        if row.failure:
            console.print(Text(f"Note: batch {row.batch:,}, {row.side}: {row.failure}."))
    console.print(
        Text(
            "The parts are the card's time in a run, medians over all runs, and `card` is their sum. `run` "
            "is the host's time from inputs to outputs in its memory, with the profiler on. `set-up` is "
            "session creation and first run. `other` is activations and local response normalisation."
        )
    )


def draw_study(study: Study) -> Figure:
    """Return two plots side by side: the card's time over the batch, and the shares of its parts.

    Raises:
        ConvswapError: matplotlib is not installed, or no batch has times.
    """
    if all(row.failure for row in study.rows):
        raise ConvswapError("no batch could be run, so there is nothing to draw; give smaller batches")
    figure = new_figure(figsize=(14, 5.5), dpi=100, layout="constrained")
    total, distribution = figure.subplots(1, 2)
    _draw_totals(total, study)
    _draw_distribution(distribution, study)
    figure.suptitle(f"AlexNet on {study.device.title}, precision {study.precision}", parse_math=False)
    return figure


def _table(study: Study) -> Table:
    table = plain_table("A run by its parts (ms)")
    table.add_column("batch", justify="right")
    table.add_column("side")
    for heading in (*PARTS, "card", "run", "set-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    previous = None
    for row in study.rows:
        if previous not in (None, row.batch):
            table.add_section()
        batch = "" if row.batch == previous else f"{row.batch:,}"
        previous = row.batch
        if row.failure:
            table.add_row(batch, row.side, *("-" for _ in range(len(PARTS) + 3)))
            continue
        times = [*(row.parts[part] for part in PARTS), row.total_ms, row.run_ms, row.set_up_ms]
        table.add_row(batch, row.side, *(milliseconds(time) for time in times))
    return table


def _draw_totals(axes: Axes, study: Study) -> None:
    for side, marker in zip(study.sides, "os", strict=False):
        rows = study.of_side(side)
        axes.plot([row.batch for row in rows], [row.total_ms for row in rows], marker=marker, label=side)
    axes.set(title="Total time over batch", xlabel="batch", ylabel="the card's time for a run (ms)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    batches = list(dict.fromkeys(row.batch for row in study.rows))
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.grid(True, which="major", alpha=0.3)
    axes.legend()


def _draw_distribution(axes: Axes, study: Study) -> None:
    """Draw a bar for each batch and side with each part's share of the card's time; one side is hatched."""
    batches = list(dict.fromkeys(row.batch for row in study.rows))
    for number, side in enumerate(study.sides):
        rows = [row for row in study.of_side(side) if row.total_ms > 0]
        positions = [batches.index(row.batch) + (number - 0.5) * _BAR_WIDTH for row in rows]
        bottoms = [0.0] * len(rows)
        for part, colour in zip(PARTS, _COLOURS, strict=True):
            heights = [100 * row.parts[part] / row.total_ms for row in rows]
            axes.bar(
                positions,
                heights,
                _BAR_WIDTH,
                bottom=bottoms,
                color=colour,
                edgecolor="white",
                hatch="//" if number else None,
                label=None if number else part,
            )
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    names = " and, hatched, ".join(study.sides)
    axes.set(
        title=f"Distribution of time: {names}", xlabel="batch", ylabel="% of the card's time", ylim=(0, 100)
    )
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
