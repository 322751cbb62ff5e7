"""What was taken for each Conv, and why, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convswap.graph.fusion.fuse import Fused, Stage
from convswap.graph.swap import Left
from convswap.optimizing.choice import DEFAULT_WAY, speedup
from convswap.optimizing.measuring import Measured
from convswap.optimizing.pairs import MeasuredPair
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.result import NodeResult
from convswap.optimizing.whole import Whole

_NOT_RUN = "the branch that it is in is not run with this input"
_INNER = "it is in a subgraph, where it cannot be measured alone"


def node_results(prepared: Prepared, measured: Sequence[Measured], whole: Whole) -> list[NodeResult]:
    """Return what was taken for every Conv: those that were measured, then the others."""
    taken = whole.taken or {}
    fused = {one.node: one for one in whole.fused}
    batches = list(prepared.sources)
    together = {name: pair for pair in whole.pairs for name in pair.names}
    convs = [whole.convs.get(one.segment.name, one) for one in measured]
    rows = [
        _node_result(one, one.segment.name in taken, fused, batches, together.get(one.segment.name))
        for one in convs
    ]
    rows = [
        replace(row, why=whole.changes[row.node], changes_answers=True) if row.node in whole.changes else row
        for row in rows
    ]
    rows += [_left_result(left) for left in prepared.left]
    known = {row.node for row in rows}
    not_run = {segment.name for segment in prepared.segments}
    return rows + [
        NodeResult(name, "default", _NOT_RUN if name in not_run else _INNER)
        for name in prepared.swapped
        if name not in known
    ]


def _node_result(
    one: Measured,
    is_taken: bool,
    fused: Mapping[str, Fused],
    batches: Sequence[int],
    pair: MeasuredPair | None,
) -> NodeResult:
    default = one.times[DEFAULT_WAY]
    best = one.ours
    gain = speedup(default, one.times[best])
    ops = tuple(op for op, _ in fused[one.segment.name].taken) if one.segment.name in fused else ()
    is_fused = best is not Stage.FOLDED or pair is not None
    words = "fused" if is_taken and is_fused else "swapped" if is_taken else "default"
    return NodeResult(
        node=one.segment.name,
        taken=words,
        why=_why(one, is_taken, gain) if pair is None else _why_together(one, pair),
        takes_in=ops if is_taken else (),
        precision=one.precision,
        algorithm=", ".join(dict.fromkeys(one.algorithms)) if pair is None else "",
        default_ms=dict(zip(batches, default, strict=True)),
        best_ms=dict(zip(batches, one.times[best], strict=True)),
        errors=one.measurement.errors,
    )


def _why(one: Measured, is_taken: bool, gain: float) -> str:
    if one.precision is None and one.measurement.errors is not None:
        ours = min(error for name, error in one.measurement.errors.items() if name != "default")
        return f"ours is less accurate here: {ours:.1e}, the default {one.measurement.errors['default']:.1e}"
    if is_taken and one.last is not None:
        return f"{gain:.2f}x as fast alone; with as much taken in the whole model is faster"
    if is_taken and one.way is DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster with it"
    if is_taken:
        return f"{gain:.2f}x as fast"
    if one.way is not DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster without"
    return f"the default is as fast: ours {gain:.2f}x"


def _why_together(one: Measured, pair: MeasuredPair) -> str:
    front, behind = pair.names
    other = behind if one.segment.name == front else front
    return f"in one node with {other}: {pair.gain:.2f}x as fast as the two apart"


def _left_result(left: Left) -> NodeResult:
    return NodeResult(left.node, "default", left.reason)
