"""What `optimize` found as one page of HTML that needs nothing beside it."""

from __future__ import annotations

from convswap.optimizing.report import optimization_tables, verdict
from convswap.optimizing.result import NodeResult, Optimization, WholeResult
from convswap.output.bar_page import Bar, BarPage, BarRow, bar_html
from convswap.output.tables import three_digits, times_faster, versions_line

# More would be bars that nobody reads; the tables have them all.
MOST_NODES = 40


def optimize_html(found: Optimization, made: str = "") -> str:
    """Return the page; `made` says by what command and when, at its end."""
    answer, gain, *rest = verdict(found)
    measured = [node for node in found.nodes if node.default_ms]
    shown = sorted(measured, key=lambda node: -_time(node))[:MOST_NODES]
    longest = max((_time(node) for node in shown), default=0.0)
    note = "Median milliseconds at the first batch, with what each can take in; bars begin at zero."
    if len(shown) < len(measured):
        note += f" Of {len(measured)} the {len(shown)} that take the default longest."
    return bar_html(
        BarPage(
            title=f"{found.model}, optimized",
            speedup=times_faster(1.0 if found.speedup is None else found.speedup),
            answer=answer,
            is_wrong=bool(found.whole) and not found.answers_agree,
            gain=gain,
            circumstances=[versions_line(dict(found.environment), found.device.title), *rest],
            whole=[_whole_row(one) for one in found.whole],
            layers=[_node_row(node, longest) for node in found.nodes if node in shown],
            layers_note=note,
            tables=optimization_tables(found),
            remarks=[f"{note}." for note in found.notes],
            made=made,
        )
    )


def _whole_row(one: WholeResult) -> BarRow:
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
