"""Depthwise Convs fused with the 1x1 Convs that follow, if the fused node is measured to be faster.

Both Convs were measured separately before. The fused node is compared with the fastest variant of each, which
may be the default provider's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.swap import NodeChoice
from convswap.optimizing.choice import MIN_MEAN_SPEEDUP, MIN_SPEEDUP_AT_A_BATCH, reaches_speedup, speedup
from convswap.optimizing.measuring import MeasuredSegment, MeasurementContext, compile_in_parallel
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import choices_times

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
        return [self.merge_inputs(depthwise, pointwise) for depthwise, pointwise in both]

    def merge_inputs(
        self, depthwise: Mapping[str, _Value], pointwise: Mapping[str, _Value]
    ) -> dict[str, _Value]:
        """Return the inputs of the pair, given those of both Convs.

        The value that passes between the Convs is left out.
        """
        names = self.segment.layer.input_names
        return {name: value for name, value in {**depthwise, **pointwise}.items() if name in names}

    @property
    def choices(self) -> dict[str, NodeChoice]:
        """The swap that fuses both Convs into one node."""
        # The tuning lines of the separate Convs do not apply to the pair.
        choice = NodeChoice(precision=self.pointwise.precision or "ieee", may_pair=True)
        return dict.fromkeys(self.names, choice)

    @property
    def separate_choices(self) -> dict[str, NodeChoice]:
        """The swap of each separate Conv; a Conv that the default provider computes fastest has none."""
        convs = zip(self.names, (self.depthwise, self.pointwise), strict=True)
        return {name: conv.choice for name, conv in convs if conv.is_faster}

    @property
    def speedup(self) -> float:
        """The mean speedup of one node over two."""
        return speedup(self.separate, self.fused)

    @property
    def is_faster(self) -> bool:
        """Whether the mean speedup is more than noise, and no batch is more than 2 % slower."""
        is_no_slower = reaches_speedup(self.separate, self.fused, MIN_SPEEDUP_AT_A_BATCH)
        return self.speedup >= MIN_MEAN_SPEEDUP and is_no_slower


def faster_pairs(
    measured: Sequence[MeasuredSegment], context: MeasurementContext
) -> tuple[MeasuredPair, ...]:
    """Return the pairs of Convs in `measured` that one node computes faster than two."""
    prepared, progress = context.prepared, context.progress
    pairs = list(_pairs(prepared, measured))
    if pairs and prepared.device.name == "cuda":
        progress("compiling depthwise Convs fused with the Convs that follow")
        compile_in_parallel(_problems(pairs))
    measured_pairs = []
    for number, pair in enumerate(pairs):
        progress(f"measuring depthwise Conv {number + 1} of {len(pairs)} fused with the Conv that follows")
        try:
            measured_pairs.append(_measured(pair, context))
        except ConvswapError:
            # The pair may need more memory than is free, or than this ONNX Runtime gives to a node.
            continue
    return tuple(pair for pair in measured_pairs if pair.is_faster)


def _pairs(prepared: Prepared, measured: Sequence[MeasuredSegment]) -> Iterator[MeasuredPair]:
    by_name = {conv.segment.name: conv for conv in measured if not conv.segment.path}
    for segment in prepared.pair_segments:
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


def _measured(pair: MeasuredPair, context: MeasurementContext) -> MeasuredPair:
    """Return `pair` with its times, cached or measured now."""
    keys = [_key(pair, number) for number in range(len(pair.shapes))]
    by_batch = [context.cache.numbers(key) for key in keys]
    if any(times is None or times.keys() != {_SEPARATE, _FUSED} for times in by_batch):
        inputs = (context.inputs(conv.segment) for conv in (pair.depthwise, pair.pointwise))
        for number, values in enumerate(zip(*inputs, strict=True)):
            separate, fused = choices_times(
                pair.segment,
                pair.merge_inputs(*values),
                [pair.separate_choices, pair.choices],
                context.prepared.device,
            )
            by_batch[number] = measured = {_SEPARATE: separate, _FUSED: fused}
            context.cache.add(keys[number], measured)
    return replace(
        pair,
        separate=tuple(times[_SEPARATE] for times in by_batch if times is not None),
        fused=tuple(times[_FUSED] for times in by_batch if times is not None),
    )


def _key(pair: MeasuredPair, number: int) -> str:
    """Return the cache key; pairs with the same key take the same times, as two nodes and as one."""
    variants = [
        f"{conv.convswap_variant.name} by {conv.algorithms[number] if conv.algorithms else 'rule'}"
        if conv.segment.name in pair.separate_choices
        else "default"
        for conv in (pair.depthwise, pair.pointwise)
    ]
    precision = pair.pointwise.precision
    return f"pair ; {pair.segment.key(pair.shapes[number])} ; {precision} ; separate {', '.join(variants)}"
