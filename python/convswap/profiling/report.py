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
    most_of_the_time,
    nvprof_time,
    percent,
)

# So many nodes of one kernel are named beside it; the table of nodes has them all.
_NAMED_NODES = 3
# Set-up calls hundreds of functions once; those below this share of it are counted only.
_LEAST_SHARE = 0.01


def print_profile(profile: Profile, console: Console) -> None:
    """Print each side's two tables, what takes more than 90 %, the time by node, and the set-up apart.

    A console that is no terminal should be made 120 columns wide; long names are folded, never cut.
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
        _print_tables(f"{name}, set-up", side.set_up, console, least_share=_LEAST_SHARE)
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


def _print_tables(title: str, tables: Tables, console: Console, least_share: float = 0.0) -> None:
    console.print(_entries_table(f"{title}: Profiling result", tables.activities, least_share))
    console.print(_entries_table(f"{title}: API calls", tables.calls, least_share))
    console.print(_most_line("Profiling result", tables.activities))
    console.print(_most_line("API calls", tables.calls))
    console.print()


def _entries_table(title: str, entries: Sequence[Entry], least_share: float) -> Table:
    table = plain_table(title)
    for heading in ("Time(%)", "Time", "Calls", "Avg", "Min", "Max"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Name", overflow="fold")
    with_nodes = any(entry.nodes for entry in entries)
    if with_nodes:
        table.add_column("Node", overflow="fold")
    shown = [entry for entry in entries if entry.share >= least_share]
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
        table.caption = Text(f"and {len(entries) - len(shown)} more below {least_share:.0%}; --json has them")
    table.caption_justify = "left"
    return table


def _nodes_cell(nodes: Sequence[str]) -> str:
    named = ", ".join(nodes[:_NAMED_NODES])
    rest = len(nodes) - _NAMED_NODES
    return f"{named} and {rest} more" if rest > 0 else named


def _most_line(title: str, entries: Sequence[Entry]) -> Text:
    """Return the answer to ECE 408's question."""
    most = most_of_the_time(entries)
    if not most:
        return Text(f"{title}: nothing took any time.")
    named = ", ".join(f"{short_name(entry.name)} ({percent(entry.share)})" for entry in most)
    together = sum(entry.share for entry in most)
    return Text(f"{title}: more than 90 % of the time is in {named}: together {percent(together)}.")


def _nodes_table(profile: Profile) -> Table:
    """Return the card's time by node in milliseconds of one run, all sides beside each other."""
    compared = len(profile.sides) > 1
    table = plain_table(
        "The card's time by node (mean ms of one run)",
        *("node", "op", *(heading for name in profile.sides for heading in (f">{name}", ">%"))),
        *([">speedup"] if compared else []),
    )
    by_side = {name: {row.node: row for row in side.nodes} for name, side in profile.sides.items()}
    # In the order of our side, which is sorted by time, and what only others have behind it.
    for node in dict.fromkeys([*by_side["convswap"], *(node for own in by_side.values() for node in own)]):
        rows = {name: own.get(node) for name, own in by_side.items()}
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
    default, ours = rows.get("default"), rows.get("convswap")
    if default is None or ours is None or not ours.total:
        return ""
    counts = profile.sides["default"].run_count, profile.sides["convswap"].run_count
    return times_faster(default.total / counts[0] / (ours.total / counts[1]))
