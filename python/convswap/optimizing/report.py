"""The result of `optimize` on a terminal, and as one self-contained page of HTML."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.optimizing.result import EndToEndResult, NodeResult, Optimization
from convswap.output.pages import Bar, BarPage, BarRow, bar_html
from convswap.output.tables import error, plain_table, three_digits, times_faster, versions_line

# The most Convs with bars on the page; its tables have all of them.
MOST_NODES = 40


def print_optimization(found: Optimization, console: Console) -> None:
    """Print the way of every Conv, the speedup of the whole model, and how to use the file.

    A console that is not a terminal should be 120 columns wide; long names are wrapped, never cut.
    """
    console.print(
        Text(
            f"{found.model}: every Conv both ways, precision {found.options['precision']}\n"
            f"{versions_line(dict(found.environment), found.device.title)}\n"
        )
    )
    for table in optimization_tables(found):
        console.print(table)
    for note in found.notes:
        console.print(Text(f"Note: {note}."))
    for line in verdict(found):
        console.print(Text(line))


def optimization_tables(found: Optimization) -> Iterator[Table]:
    """Yield the table of the Convs, and that of the whole model where one was tried."""
    batches = list(found.options["batches"])
    table = plain_table(f"Median ms of each Conv with the nodes that can be fused, batch {_listed(batches)}")
    table.add_column("node", overflow="fold")
    for heading in ("default", "best of ours"):
        table.add_column(heading, justify="right")
    table.add_column("taken", overflow="fold")
    for heading in ("precision", "algorithm"):
        table.add_column(heading, overflow="fold")
    table.add_column("why", overflow="fold")
    for node in found.nodes:
        measured = (node.default_ms or {}), (node.best_ms or {})
        times = ("\n".join(three_digits(own[batch]) for batch in batches if batch in own) for own in measured)
        how = node.precision or "-", node.algorithm or "-"
        table.add_row(Text(node.node), *times, Text(_taken(node)), *how, Text(node.why))
    yield table
    if found.whole:
        whole = plain_table("The whole model, median ms")
        for heading in ("batch", "default", "optimized", "speedup"):
            whole.add_column(heading, justify="right")
        for one in found.whole:
            whole.add_row(
                f"{one.batch:,}",
                three_digits(one.default_ms),
                three_digits(one.optimized_ms),
                times_faster(one.speedup),
            )
        yield whole


def verdict(found: Optimization) -> Iterator[str]:
    """Yield how many Convs were taken, the speedup, and how to use the file or why there is none."""
    taken = sum(node.taken != "default" for node in found.nodes)
    measured = sum(node.default_ms is not None for node in found.nodes)
    if found.speedup is None:
        changing = sum(node.changes_answers for node in found.nodes)
        if changing:
            yield f"No Conv is taken: {changing} of {measured} change the answers, and no other gains."
        elif measured:
            yield f"Nothing gains: ours is not faster for any of the {measured} Convs measured."
        else:
            yield f"No Conv can be measured alone: the table has the reasons for all {len(found.nodes)}."
        yield "No file is written; use the model as it is."
        return
    against = f"relative L2 error {error(found.errors['between'])} between the two"
    if "optimized" in found.errors:
        errors = (error(found.errors[side]) for side in ("optimized", "default"))
        against = "relative L2 error against float64 {}, the original's {}".format(*errors)
    if found.nothing_compared and found.answers_agree:
        yield "Every output is empty, on both sides; each Conv taken agrees with float64 by itself."
    elif found.nothing_compared:
        yield "NOTHING COULD BE COMPARED: no output has an element that is finite, on either side."
    else:
        yield f"The answers {'agree' if found.answers_agree else 'DIFFER'}: {against}."
    yield f"{taken} of {len(found.nodes)} Convs taken; {times_faster(found.speedup)} as fast as the original."
    if found.written is not None:
        yield (
            f"To use {found.written}: convswap.register(options) before InferenceSession(..., options), or "
            "register the library at convswap.library_path()."
        )
    elif found.nothing_compared and not found.answers_agree:
        yield "No file is written; give inputs for which the outputs are finite, with --inputs."
    elif not found.answers_agree:
        yield "No file is written; use the model as it is."
    elif not found.gains:
        slowest = min(found.whole, key=lambda one: one.speedup)
        of = f"{times_faster(slowest.speedup)} as fast at batch {slowest.batch:,}"
        yield f"No file is written, since the whole model does not gain: {of}; use the model as it is."


def _taken(node: NodeResult) -> str:
    return node.taken + (f" with {', '.join(node.takes_in)}" if node.takes_in else "")


def _listed(batches: list[int]) -> str:
    return ", ".join(f"{batch:,}" for batch in batches)


def optimize_html(found: Optimization, made: str = "") -> str:
    """Return the page; `made` is the command and the date at its end."""
    answer, gain, *rest = verdict(found)
    measured = [node for node in found.nodes if node.default_ms]
    shown = sorted(measured, key=lambda node: -_time(node))[:MOST_NODES]
    longest = max((_time(node) for node in shown), default=0.0)
    note = "Median milliseconds at the first batch, with the nodes that can be fused; bars begin at zero."
    if len(shown) < len(measured):
        note += f" Of {len(measured)} the {len(shown)} that take the default longest."
    return bar_html(
        BarPage(
            title=f"{found.model}, optimized",
            speedup=times_faster(1.0 if found.speedup is None else found.speedup),
            agreement=answer,
            is_wrong=bool(found.whole) and not found.answers_agree,
            gain=gain,
            circumstances=[versions_line(dict(found.environment), found.device.title), *rest],
            end_to_end=[_end_to_end_row(one) for one in found.whole],
            layers=[_node_row(node, longest) for node in found.nodes if node in shown],
            layers_note=note,
            tables=optimization_tables(found),
            remarks=[f"{note}." for note in found.notes],
            footer=made,
        )
    )


def _end_to_end_row(one: EndToEndResult) -> BarRow:
    longest = max(one.default_ms, one.optimized_ms)
    times = {"default": one.default_ms, "convswap": one.optimized_ms}
    bars = tuple(Bar(side, time / longest, three_digits(time)) for side, time in times.items())
    return BarRow(f"batch {one.batch:,}", times_faster(one.speedup), bars)


def _node_row(node: NodeResult, longest: float) -> BarRow:
    assert node.default_ms is not None and node.best_ms is not None
    batch = next(iter(node.default_ms))
    times = {"default": node.default_ms[batch], "convswap": node.best_ms[batch]}
    bars = tuple(Bar(side, time / longest, three_digits(time)) for side, time in times.items())
    return BarRow(node.node, f"{node.taken}: {node.why}", bars)


def _time(node: NodeResult) -> float:
    return max(*(node.default_ms or {0: 0.0}).values(), *(node.best_ms or {0: 0.0}).values(), 0.0)
