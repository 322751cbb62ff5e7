"""The result of `optimize` on a terminal, and as one self-contained page of HTML."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from convswap.optimizing.result import NodeResult, Optimization, WholeModelTimes
from convswap.output.pages import Bar, BarPage, BarRow, bar_html
from convswap.output.tables import error, plain_table, three_digits, times_faster, versions_line

# The maximum number of Convs with bars on the page; the tables have all Convs.
MAX_NODES = 40


def print_optimization(optimization: Optimization, console: Console) -> None:
    """Print the variant of every Conv, the speedup of the whole model, and how to use the file.

    A console that is not a terminal should be 120 columns wide; long names are wrapped, never cut.
    """
    console.print(
        Text(
            f"{optimization.model}: each Conv by the default provider, swapped and fused, "
            f"precision {optimization.options['precision']}\n"
            f"{versions_line(dict(optimization.environment), optimization.device.title)}\n"
        )
    )
    for table in optimization_tables(optimization):
        console.print(table)
    for note in optimization.notes:
        console.print(Text(f"Note: {note}."))
    for line in optimization_verdict(optimization):
        console.print(Text(line))


def optimization_tables(optimization: Optimization) -> Iterator[Table]:
    """Yield the table of the Convs, and the table of the whole model if it was tried."""
    batches = list(optimization.options["batches"])
    table = plain_table(f"Median ms of each Conv with the nodes that can be fused, batch {_listed(batches)}")
    table.add_column("node", overflow="fold")
    for heading in ("default", "convswap"):
        table.add_column(heading, justify="right")
    table.add_column("selected", overflow="fold")
    for heading in ("precision", "algorithm"):
        table.add_column(heading, overflow="fold")
    table.add_column("why", overflow="fold")
    for node in optimization.nodes:
        times = (
            "\n".join(three_digits(by_batch[batch]) for batch in batches if batch in by_batch)
            for by_batch in ((node.default_ms or {}), (node.best_ms or {}))
        )
        table.add_row(
            Text(node.node),
            *times,
            Text(_variant_text(node)),
            node.precision or "-",
            node.algorithm or "-",
            Text(node.why),
        )
    yield table
    if optimization.whole:
        end_to_end = plain_table("The whole model, median ms")
        for heading in ("batch", "default", "optimized", "speedup"):
            end_to_end.add_column(heading, justify="right")
        for result in optimization.whole:
            end_to_end.add_row(
                f"{result.batch:,}",
                three_digits(result.default_ms),
                three_digits(result.optimized_ms),
                times_faster(result.speedup),
            )
        yield end_to_end


def optimization_verdict(optimization: Optimization) -> Iterator[str]:
    """Yield lines: whether the outputs agree, the speedup, and how to use the file or why none is worthwhile.

    If `speedup` is None, say why no Conv is swapped instead, and that no file is written.
    """
    swapped = sum(node.taken != "default" for node in optimization.nodes)
    measured = sum(node.default_ms is not None for node in optimization.nodes)
    if optimization.speedup is None:
        changing = sum(node.changes_answers for node in optimization.nodes)
        if changing:
            yield f"No Conv is swapped: {changing} of {measured} change the outputs, and no other is faster."
        elif measured:
            yield f"Nothing gains: convswap is not faster for any of the {measured} Convs measured."
        else:
            count = len(optimization.nodes)
            yield f"No Conv can be measured alone: the table has the reasons for all {count}."
        yield "No file is written; use the model as it is."
        return
    errors = optimization.errors
    comparison = f"relative L2 error {error(errors['between'])} between the two"
    if "optimized" in errors:
        comparison = (
            f"relative L2 error against float64 {error(errors['optimized'])}, the original's "
            f"{error(errors['default'])}"
        )
    if optimization.nothing_compared and optimization.answers_agree:
        yield "Every output is empty, on both sides, so the outputs agree."
    elif optimization.nothing_compared:
        yield "NOTHING COULD BE COMPARED: no output has an element that is finite, on either side."
    else:
        yield f"The outputs {'agree' if optimization.answers_agree else 'DIFFER'}: {comparison}."
    faster = times_faster(optimization.speedup)
    yield f"{swapped} of {len(optimization.nodes)} Convs swapped; {faster} as fast as the original."
    if optimization.written is not None:
        yield (
            f"To use {optimization.written}: convswap.register(options) before "
            "InferenceSession(..., options), or register the library at convswap.library_path()."
        )
    elif optimization.nothing_compared and not optimization.answers_agree:
        yield "No file is written; give inputs for which the outputs are finite, with --inputs."
    elif not optimization.answers_agree:
        yield "No file is written; use the model as it is."
    elif not optimization.gains:
        slowest = min(optimization.whole, key=lambda result: result.speedup)
        ratio = f"{times_faster(slowest.speedup)} as fast at batch {slowest.batch:,}"
        yield f"No file is written, since the whole model is not faster: {ratio}; use the model as it is."


def _variant_text(node: NodeResult) -> str:
    return node.taken + (f" with {', '.join(node.takes_in)}" if node.takes_in else "")


def _listed(batches: list[int]) -> str:
    return ", ".join(f"{batch:,}" for batch in batches)


def optimize_html(optimization: Optimization, made: str = "") -> str:
    """Return the page; `made` is the command and the date at its end."""
    answer, gain, *other_lines = optimization_verdict(optimization)
    measured = [node for node in optimization.nodes if node.default_ms]
    shown = sorted(measured, key=lambda node: -_time(node))[:MAX_NODES]
    longest = max((_time(node) for node in shown), default=0.0)
    note = "Median milliseconds at the first batch, with the nodes that can be fused; bars begin at zero."
    if len(shown) < len(measured):
        note += f" The {len(shown)} slowest of {len(measured)} Convs are shown."
    return bar_html(
        BarPage(
            title=f"{optimization.model}, optimized",
            speedup=times_faster(1.0 if optimization.speedup is None else optimization.speedup),
            agreement=answer,
            is_wrong=bool(optimization.whole) and not optimization.answers_agree,
            gain=gain,
            circumstances=[
                versions_line(dict(optimization.environment), optimization.device.title),
                *other_lines,
            ],
            end_to_end=[_end_to_end_row(result) for result in optimization.whole],
            layers=[_node_row(node, longest) for node in optimization.nodes if node in shown],
            layers_note=note,
            tables=optimization_tables(optimization),
            remarks=[f"{note}." for note in optimization.notes],
            footer=made,
        )
    )


def _end_to_end_row(result: WholeModelTimes) -> BarRow:
    longest = max(result.default_ms, result.optimized_ms)
    times = {"default": result.default_ms, "convswap": result.optimized_ms}
    bars = tuple(Bar(side, time / longest, three_digits(time)) for side, time in times.items())
    return BarRow(f"batch {result.batch:,}", times_faster(result.speedup), bars)


def _node_row(node: NodeResult, longest: float) -> BarRow:
    assert node.default_ms is not None and node.best_ms is not None
    batch = next(iter(node.default_ms))
    times = {"default": node.default_ms[batch], "convswap": node.best_ms[batch]}
    bars = tuple(Bar(side, time / longest, three_digits(time)) for side, time in times.items())
    return BarRow(node.node, f"{node.taken}: {node.why}", bars)


def _time(node: NodeResult) -> float:
    return max(*(node.default_ms or {0: 0.0}).values(), *(node.best_ms or {0: 0.0}).values(), 0.0)
