"""Depthwise Convs fused with the 1x1 Convs behind them, where one node is measured to be faster than two.

The Convs were measured separately before. The one node is compared with both in their fastest ways, which may
be the default provider's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.swap import NodeChoice
from convswap.optimizing.choice import DEFAULT_WAY, MIN_MEAN_SPEEDUP, MIN_SPEEDUP_AT_A_BATCH, speedup
from convswap.optimizing.measuring import MeasuredSegment, Measuring, compile_side_by_side
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import times_of_choices

_Value = TypeVar("_Value")

_SEPARATE, _FUSED = "separate", "fused"


@dataclass(frozen=True)
class MeasuredPair:
    """A depthwise and a 1x1 Conv, with their milliseconds at each batch as two nodes and fused into one.

    `segment` has both Convs and the nodes that can be fused with them.
    """

    segment: Segment
    depthwise: MeasuredSegment
    pointwise: MeasuredSegment
    separate: tuple[float, ...] = ()
    fused: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The names of both Convs."""
        return self.depthwise.segment.name, self.pointwise.segment.name

    @property
    def shapes(self) -> list[Shapes]:
        """The shapes of the inputs of the pair, at each batch."""
        both = zip(self.depthwise.shapes, self.pointwise.shapes, strict=True)
        return [self.of_both(front, behind) for front, behind in both]

    def of_both(self, front: Mapping[str, _Value], behind: Mapping[str, _Value]) -> dict[str, _Value]:
        """Return the inputs of the pair: those of both Convs, without the value that passes between them."""
        return {name: value for name, value in {**front, **behind}.items() if name in self.segment.layer.fed}

    @property
    def choices(self) -> dict[str, NodeChoice]:
        """The swap that makes them one node."""
        # The tuning lines of each Conv alone do not apply to the pair.
        choice = NodeChoice(precision=self.pointwise.precision or "ieee", may_pair=True)
        return dict.fromkeys(self.names, choice)

    @property
    def separate_choices(self) -> dict[str, NodeChoice]:
        """The swap of each Conv alone; a Conv that the default provider computes fastest has none."""
        both = zip(self.names, (self.depthwise, self.pointwise), strict=True)
        return {name: one.choice for name, one in both if one.way is not DEFAULT_WAY}

    @property
    def gain(self) -> float:
        """The mean speedup of one node over two."""
        return speedup(self.separate, self.fused)

    @property
    def gains(self) -> bool:
        """Whether the speedup is more than noise, and no batch is slower."""
        by_batch = zip(self.separate, self.fused, strict=True)
        return self.gain >= MIN_MEAN_SPEEDUP and all(
            one / other >= MIN_SPEEDUP_AT_A_BATCH for one, other in by_batch
        )


def faster_pairs(measured: Sequence[MeasuredSegment], measuring: Measuring) -> tuple[MeasuredPair, ...]:
    """Return the pairs of Convs in `measured` that one node computes faster than two."""
    prepared, report = measuring.prepared, measuring.report
    pairs = list(_pairs(prepared, measured))
    if pairs and prepared.device.name == "cuda":
        report("compiling depthwise Convs with the Convs behind them")
        compile_side_by_side(_problems(pairs))
    found = []
    for number, pair in enumerate(pairs):
        report(f"measuring depthwise Conv {number + 1} of {len(pairs)} with the Conv behind it")
        try:
            found.append(_measured(pair, measuring))
        except ConvswapError:
            # The pair may need more memory than is free, or than this ONNX Runtime gives to a node.
            continue
    return tuple(pair for pair in found if pair.gains)


def _pairs(prepared: Prepared, measured: Sequence[MeasuredSegment]) -> Iterator[MeasuredPair]:
    by_name = {one.segment.name: one for one in measured if not one.segment.path}
    for segment in prepared.pairs:
        depthwise, pointwise = by_name.get(segment.depthwise), by_name.get(segment.name)
        if depthwise is None or pointwise is None:
            continue
        # One node has one precision, which must be accurate enough for both Convs.
        if depthwise.precision is not None and depthwise.precision == pointwise.precision:
            yield MeasuredPair(segment, depthwise, pointwise)


def _problems(pairs: Sequence[MeasuredPair]) -> Iterator[tuple[_native.Problem, str]]:
    for pair in pairs:
        layer = pair.segment.layer.with_setting("precision", pair.pointwise.precision or "ieee")
        for shapes in pair.shapes:
            problem = layer.problem(shapes)
            yield problem, _native.choose(problem, "cuda")


def _measured(pair: MeasuredPair, measuring: Measuring) -> MeasuredPair:
    """Return `pair` with its times, cached or measured now."""
    keys = [_key(pair, number) for number in range(len(pair.shapes))]
    times = [measuring.cache.numbers(key) for key in keys]
    if any(own is None or own.keys() != {_SEPARATE, _FUSED} for own in times):
        fed = (measuring.fed(one.segment) for one in (pair.depthwise, pair.pointwise))
        for number, values in enumerate(zip(*fed, strict=True)):
            ways = [pair.separate_choices, pair.choices]
            own = times_of_choices(pair.segment, pair.of_both(*values), ways, measuring.prepared.device)
            times[number] = found = dict(zip((_SEPARATE, _FUSED), own, strict=True))
            measuring.cache.add(keys[number], found)
    return replace(
        pair,
        separate=tuple(own[_SEPARATE] for own in times if own is not None),
        fused=tuple(own[_FUSED] for own in times if own is not None),
    )


def _key(pair: MeasuredPair, number: int) -> str:
    """Return the cache key; pairs with the same key take the same times, as two nodes and as one."""
    ways = [
        f"{one.ours.name} by {one.algorithms[number] if one.algorithms else 'rule'}"
        if one.segment.name in pair.separate_choices
        else "default"
        for one in (pair.depthwise, pair.pointwise)
    ]
    precision = pair.pointwise.precision
    return f"pair ; {pair.segment.key(pair.shapes[number])} ; {precision} ; separate {', '.join(ways)}"
