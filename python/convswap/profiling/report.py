"""The tables of a profile on a terminal of any width or in 120 columns, as nvprof prints them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.output.tables import milliseconds, plain_table, print_notes, times_faster, versions_line
from convswap.profiling.result import (
    Entry,
    NodeTime,
    Profile,
    SideProfile,
    Tables,
    entries_over_90_percent,
    nvprof_time,
    percent,
)

# The number of nodes that a kernel's row names; the table of nodes has all of them.
_NAMED_NODES = 3
# Set-up calls hundreds of functions once. Functions below this share of its time are only counted.
_MIN_SHARE = 0.01


def print_profile(profile: Profile, console: Console) -> None:
    """Print each side's two tables, the entries that take more than 90 %, the time by node, and the set-up.

    A console that is not a terminal should be 120 columns wide; long names are wrapped, never cut.
    """
    console.print(_heading(profile))
    for name, side in profile.sides.items():
        console.print(_run_line(name, side))
        _print_tables(name, side.runs, console)
    console.print(_nodes_table(profile))
    for name, side in profile.sides.items():
        console.print(
            Text(
                f"{name}, set-up, apart from the runs: session {milliseconds(side.host.session)} ms, "
                f"first run {milliseconds(side.host.first_run)} ms"
            )
        )
        _print_tables(f"{name}, set-up", side.set_up, console, min_share=_MIN_SHARE)
    if len(profile.sides) > 1:
        console.print(
            Text(
                "Note: the sides were set up one after the other in one process, where the second finds what "
                "the first has loaded; `convswap bench --first-run` gives each a process of its own."
            )
        )
    print_notes(profile.notes, console)


def short_name(name: str) -> str:
    """Return a kernel's name without its template arguments, parameters and return type."""
    if name.startswith("["):
        return name
    outside, depth = [], 0
    for letter in name.replace("(anonymous namespace)::", ""):
        depth += letter == "<"
        if not depth:
            outside.append(letter)
        depth -= letter == ">" and depth > 0
    without_parameters = "".join(outside).partition("(")[0]
    return without_parameters.rpartition(" ")[2] or name


def _heading(profile: Profile) -> Text:
    versions = versions_line(dict(profile.environment), profile.device.title)
    if profile.environment.get("cupti"):
        versions += f", CUPTI {profile.environment['cupti']}"
    data = "stay on the card" if profile.options["resident"] else "are copied in and out by each run"
    return Text(
        f"{profile.model}: profile of {' and '.join(profile.sides)}\n"
        f"{versions}\n"
        f"batch {profile.batch:,} of {profile.dataset}, precision {profile.precision}, "
        f"algorithm {profile.options['algorithm']}; inputs and outputs {data}\n"
    )


def _run_line(name: str, side: SideProfile) -> Text:
    return Text(
        f"{name}: {side.run_count} runs of {milliseconds(side.mean_run_ms)} ms by the host's clock, with the "
        f"profiler on, of which the card works {milliseconds(side.card_ms)} ms (means); the median run takes "
        f"{milliseconds(side.run_ms)} ms"
    )


def _print_tables(title: str, tables: Tables, console: Console, min_share: float = 0.0) -> None:
    console.print(_entries_table(f"{title}: Profiling result", tables.activities, min_share))
    console.print(_entries_table(f"{title}: API calls", tables.calls, min_share))
    console.print(_over_90_percent_line("Profiling result", tables.activities))
    console.print(_over_90_percent_line("API calls", tables.calls))
    console.print()


def _entries_table(title: str, entries: Sequence[Entry], min_share: float) -> Table:
    table = plain_table(title)
    for heading in ("Time(%)", "Time", "Calls", "Avg", "Min", "Max"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Name", overflow="fold")
    with_nodes = any(entry.nodes for entry in entries)
    if with_nodes:
        table.add_column("Node", overflow="fold")
    shown = [entry for entry in entries if entry.share >= min_share]
    for entry in shown:
        cells: list[str | Text] = [
            percent(entry.share),
            nvprof_time(entry.total),
            str(entry.calls),
            nvprof_time(entry.average),
            nvprof_time(entry.shortest),
            nvprof_time(entry.longest),
            Text(entry.name),
        ]
        table.add_row(*cells, *([Text(_nodes_cell(entry.nodes))] if with_nodes else []))
    if not entries:
        table.caption = Text("nothing was recorded")
    elif len(shown) < len(entries):
        table.caption = Text(f"and {len(entries) - len(shown)} more below {min_share:.0%}; --json has them")
    table.caption_justify = "left"
    return table


def _nodes_cell(nodes: Sequence[str]) -> str:
    named = ", ".join(nodes[:_NAMED_NODES])
    unnamed = len(nodes) - _NAMED_NODES
    return f"{named} and {unnamed} more" if unnamed > 0 else named


def _over_90_percent_line(title: str, entries: Sequence[Entry]) -> Text:
    """Return the line that answers ECE 408's question: which entries take more than 90 % of the time."""
    longest = entries_over_90_percent(entries)
    if not longest:
        return Text(f"{title}: nothing took any time.")
    named = ", ".join(f"{short_name(entry.name)} ({percent(entry.share)})" for entry in longest)
    together = sum(entry.share for entry in longest)
    return Text(f"{title}: more than 90 % of the time is in {named}: together {percent(together)}.")


def _nodes_table(profile: Profile) -> Table:
    """Return the table of the card's time by node in milliseconds of one run, with a column for each side."""
    compared = len(profile.sides) > 1
    table = plain_table(
        "The card's time by node (mean ms of one run)",
        *("node", "op", *(heading for name in profile.sides for heading in (f">{name}", ">%"))),
        *([">speedup"] if compared else []),
    )
    by_side = {name: {row.node: row for row in side.nodes} for name, side in profile.sides.items()}
    # Nodes come in the order of the convswap side, which is sorted by time; nodes of other sides follow.
    others = (node for nodes in by_side.values() for node in nodes)
    for node in dict.fromkeys([*by_side["convswap"], *others]):
        rows = {name: nodes.get(node) for name, nodes in by_side.items()}
        op = next(row.op for row in rows.values() if row is not None)
        cells = []
        for name, row in rows.items():
            count = profile.sides[name].run_count
            cells += [
                milliseconds(None if row is None else row.total / 1e6 / count),
                "" if row is None else percent(row.share),
            ]
        table.add_row(Text(node), op, *cells, *([_faster(rows, profile)] if compared else []))
    table.add_section()
    sums = []
    for side in profile.sides.values():
        sums += [milliseconds(side.card_ms), percent(1.0)]
    faster = []
    if compared and "default" in profile.sides and profile.sides["convswap"].card_ms:
        ratio = profile.sides["default"].card_ms / profile.sides["convswap"].card_ms
        faster = [times_faster(ratio)]
    table.add_row("all", "", *sums, *faster)
    return table


def _faster(rows: dict[str, NodeTime | None], profile: Profile) -> str:
    default, convswap = rows.get("default"), rows.get("convswap")
    if default is None or convswap is None or not convswap.total:
        return ""
    counts = profile.sides["default"].run_count, profile.sides["convswap"].run_count
    return times_faster(default.total / counts[0] / (convswap.total / counts[1]))
