"""Depthwise Convs and the 1x1 Convs behind them, computed by one node: where that is measured to be faster.

Each of the two is measured by itself before. Together they are set against both as they were found best then,
apart, the default provider's way included.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.swap import NodeChoice
from convswap.optimizing.choice import DEFAULT_WAY, LEAST_GAIN, LEAST_SPEEDUP, speedup
from convswap.optimizing.measuring import Measured, Measuring, compile_side_by_side
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import times_of_choices

_Value = TypeVar("_Value")

_APART, _TOGETHER = "apart", "together"


@dataclass(frozen=True)
class MeasuredPair:
    """Two Convs and the milliseconds that they take at each batch, in two nodes and in one.

    `segment` is what both of them can take in.
    """

    segment: Segment
    depthwise: Measured
    pointwise: Measured
    apart: tuple[float, ...] = ()
    together: tuple[float, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The names of both Convs."""
        return self.depthwise.segment.name, self.pointwise.segment.name

    @property
    def shapes(self) -> list[Shapes]:
        """The shapes of what both are fed, at each batch."""
        both = zip(self.depthwise.shapes, self.pointwise.shapes, strict=True)
        return [self.of_both(front, behind) for front, behind in both]

    def of_both(self, front: Mapping[str, _Value], behind: Mapping[str, _Value]) -> dict[str, _Value]:
        """Return what both are fed, of what each is, without what the one gives the other."""
        return {name: value for name, value in {**front, **behind}.items() if name in self.segment.layer.fed}

    @property
    def choices(self) -> dict[str, NodeChoice]:
        """What makes them one node."""
        # What was measured of either alone says nothing of both.
        choice = NodeChoice(precision=self.pointwise.precision or "ieee", may_pair=True)
        return dict.fromkeys(self.names, choice)

    @property
    def choices_apart(self) -> dict[str, NodeChoice]:
        """What each is by itself; one that is best as it was has none."""
        both = zip(self.names, (self.depthwise, self.pointwise), strict=True)
        return {name: one.choice for name, one in both if one.way is not DEFAULT_WAY}

    @property
    def gain(self) -> float:
        """How many times as fast one node is as two."""
        return speedup(self.apart, self.together)

    @property
    def gains(self) -> bool:
        """Whether that is more than noise, and no loss at any batch."""
        by_batch = zip(self.apart, self.together, strict=True)
        return self.gain >= LEAST_GAIN and all(one / other >= LEAST_SPEEDUP for one, other in by_batch)


def gaining_pairs(measured: Sequence[Measured], measuring: Measuring) -> tuple[MeasuredPair, ...]:
    """Return the pairs of the Convs in `measured` that one node computes faster than two."""
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
            # As with algorithms that are tried: nobody knows before how much memory is free, and what this
            # ONNX Runtime lends of it.
            continue
    return tuple(pair for pair in found if pair.gains)


def _pairs(prepared: Prepared, measured: Sequence[Measured]) -> Iterator[MeasuredPair]:
    by_name = {one.segment.name: one for one in measured if not one.segment.path}
    for segment in prepared.pairs:
        depthwise, pointwise = by_name.get(segment.depthwise), by_name.get(segment.name)
        if depthwise is None or pointwise is None:
            continue
        # A node has one precision, and each Conv one that is accurate enough.
        if depthwise.precision is not None and depthwise.precision == pointwise.precision:
            yield MeasuredPair(segment, depthwise, pointwise)


def _problems(pairs: Sequence[MeasuredPair]) -> Iterator[tuple[_native.Problem, str]]:
    for pair in pairs:
        layer = pair.segment.layer.with_setting("precision", pair.pointwise.precision or "ieee")
        for shapes in pair.shapes:
            problem = layer.problem(shapes)
            yield problem, _native.choose(problem, "cuda")


def _measured(pair: MeasuredPair, measuring: Measuring) -> MeasuredPair:
    """Return `pair` with its times: what was kept, or is measured now."""
    keys = [_key(pair, number) for number in range(len(pair.shapes))]
    times = [measuring.kept.numbers(key) for key in keys]
    if any(own is None or own.keys() != {_APART, _TOGETHER} for own in times):
        # What both are fed, without what the one gives the other.
        fed = (measuring.fed(one.segment) for one in (pair.depthwise, pair.pointwise))
        for number, values in enumerate(zip(*fed, strict=True)):
            ways = [pair.choices_apart, pair.choices]
            own = times_of_choices(pair.segment, pair.of_both(*values), ways, measuring.prepared.device)
            times[number] = found = dict(zip((_APART, _TOGETHER), own, strict=True))
            measuring.kept.add(keys[number], found)
    return replace(
        pair,
        apart=tuple(own[_APART] for own in times if own is not None),
        together=tuple(own[_TOGETHER] for own in times if own is not None),
    )


def _key(pair: MeasuredPair, number: int) -> str:
    """Return what pairs share that take the same times, in two nodes as in one."""
    ways = [
        f"{one.ours.name} by {one.algorithms[number] if one.algorithms else 'rule'}"
        if one.segment.name in pair.choices_apart
        else "default"
        for one in (pair.depthwise, pair.pointwise)
    ]
    precision = pair.pointwise.precision
    return f"pair ; {pair.segment.key(pair.shapes[number])} ; {precision} ; apart {', '.join(ways)}"
