"""Measures every Conv of a model in every way, and which precision it may have."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from convswap import _native
from convswap.graph.fusion.fuse import Stage
from convswap.graph.swap import PRECISIONS, NodeChoice
from convswap.optimizing.choice import DEFAULT_WAY, LEAST_TO_TRY, Way, best_of_ours, fastest, is_as_accurate
from convswap.optimizing.compiling import compile_side_by_side
from convswap.optimizing.kept import KeptMeasurements, Measurement
from convswap.optimizing.preparation import MATCH, Prepared
from convswap.optimizing.segment_inputs import SegmentInputs
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import errors_of, times_of
from convswap.progress import Progress
from convswap.runtime.device import Device


@dataclass(frozen=True)
class Measured:
    """What was measured of one Conv, fed inputs of `shapes` at each batch.

    `algorithms` are those that compute `ours`, at each batch; `lines` are what the file is to say of them, in
    the form of a tuning table. `last` is what it takes in, though another way is faster alone.
    """

    segment: Segment
    measurement: Measurement
    shapes: tuple[Shapes, ...]
    algorithms: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    last: Stage | None = None

    @property
    def precision(self) -> str | None:
        """The precision of our ways; None where none of ours is as accurate as the default provider."""
        return self.measurement.precision

    @property
    def times(self) -> Mapping[Way, tuple[float, ...]]:
        """The milliseconds of every way, at each batch."""
        return self.measurement.times

    @property
    def way(self) -> Way:
        """The way that gains most, by itself."""
        return DEFAULT_WAY if self.precision is None else fastest(self.times)

    @property
    def ours(self) -> Stage:
        """Our way that a reader is told of: the one that gains, else the fastest, unless `last` is given."""
        if self.last is not None:
            return self.last
        way = self.way
        best = best_of_ours(self.times) if way is DEFAULT_WAY else way
        assert best is not None
        return best

    @property
    def choice(self) -> NodeChoice:
        """What `ours` is, and what the file is to say of it."""
        return NodeChoice(precision=self.precision or "ieee", last=self.ours, tuned=self.lines)

    @functools.cached_property
    def problems(self) -> list[_native.Problem]:
        """What our op computes there, at each batch."""
        layer = self.segment.our_layer(self.shapes[0], self.choice)
        return [layer.problem({name: own[name] for name in layer.fed}) for own in self.shapes]

    @property
    def saved(self) -> float:
        """The milliseconds that it saves, over all batches."""
        return sum(self.times[DEFAULT_WAY]) - sum(self.times[self.way])

    @property
    def loses_little(self) -> bool:
        """Whether ours is not much slower than the default, at any batch."""
        return self._loses_little(self.times[DEFAULT_WAY], self.ours)

    def deepest(self, device: Device) -> Measured:
        """Return the Conv with as much taken in as is not much slower than `ours`, at any batch."""
        fastest_of_ours = self.times[self.ours]
        ways = (way for way in self.times if way is not None)
        last = max(way for way in ways if self._loses_little(fastest_of_ours, way))
        if last is self.ours:
            return self
        return replace(self, last=last, lines=()).with_rule(device)

    def with_rule(self, device: Device) -> Measured:
        """Return it with the algorithms that the rule chooses."""
        return replace(
            self, algorithms=tuple(_native.choose(problem, device.name) for problem in self.problems)
        )

    def _loses_little(self, times: Sequence[float], way: Stage) -> bool:
        return all(one / own >= LEAST_TO_TRY for one, own in zip(times, self.times[way], strict=True))


def measure_convs(
    prepared: Prepared, inputs: SegmentInputs, kept: KeptMeasurements, report: Progress
) -> tuple[Measured, ...]:
    """Return what is measured, or was before, of every Conv that can be measured alone and is run."""
    fed = [
        (segment, shapes) for segment in prepared.segments if (shapes := inputs.shapes(segment)) is not None
    ]
    first = PRECISIONS[0] if prepared.options.precision == MATCH else prepared.options.precision
    report("compiling what our ways need")
    _compile(prepared, fed, first)
    judged = []
    for number, (segment, shapes) in enumerate(fed):
        report(f"choosing the precision of Conv {number + 1} of {len(fed)}")
        judged.append(_precision(segment, shapes, prepared, inputs, kept))
    others = [own for own, (precision, _) in zip(fed, judged, strict=True) if precision not in (None, first)]
    _compile(prepared, others, "ieee")
    found = []
    start = time.monotonic()
    for number, ((segment, shapes), own) in enumerate(zip(fed, judged, strict=True)):
        report(_what_is_left(number, len(fed), time.monotonic() - start))
        found.append(_measure(segment, shapes, own, prepared, inputs, kept))
    return tuple(found)


def _compile(prepared: Prepared, fed: Sequence[tuple[Segment, Sequence[Shapes]]], precision: str) -> None:
    """Have what computes the segments compiled, alone and with all that they can take in."""
    if prepared.device.name == "cpu":
        return
    problems = [
        layer.problem({name: own[name] for name in layer.fed})
        for segment, by_batch in fed
        for layer in (segment.conv_alone(precision), segment.with_precision(precision))
        for own in by_batch
    ]
    compile_side_by_side((problem, _native.choose(problem, "cuda")) for problem in problems)


def _what_is_left(number: int, count: int, seconds: float) -> str:
    left = f", about {seconds / number * (count - number):.0f} s left" if number else ""
    return f"measuring Conv {number + 1} of {count}{left}"


_Judged = tuple[str | None, Mapping[str, float] | None]


def _measure(
    segment: Segment,
    shapes: tuple[Shapes, ...],
    judged: _Judged,
    prepared: Prepared,
    inputs: SegmentInputs,
    kept: KeptMeasurements,
) -> Measured:
    device = prepared.device
    precision, errors = judged
    # Those that compute the same take the same time, whatever their weights.
    key = f"{_problem(segment, shapes)} ; {precision or 'ieee'}"
    timed = kept.get(key)
    if timed is None:
        fed = inputs.of(segment)
        assert fed is not None  # it has shapes
        by_batch = [times_of(segment, own, precision or "ieee", device) for own in fed]
        timed = Measurement(
            precision, None, {way: tuple(own[way] for own in by_batch) for way in by_batch[0]}
        )
        kept.add(key, timed)
    return Measured(segment, Measurement(precision, errors, timed.times), shapes).with_rule(device)


def _problem(segment: Segment, shapes: Sequence[Shapes]) -> str:
    return " ; ".join(segment.key(own) for own in shapes)


def _precision(
    segment: Segment,
    shapes: Sequence[Shapes],
    prepared: Prepared,
    inputs: SegmentInputs,
    kept: KeptMeasurements,
) -> _Judged:
    """Return the precision for our ways, None where none is as accurate, and the errors that tell."""
    asked, device = prepared.options.precision, prepared.device
    if asked != MATCH:
        return asked, None
    if device.name == "cpu" or segment.layer.type_name != "float32":
        # The CPU computes float32 as such on both sides, and other types have one arithmetic.
        return "ieee", None
    key = f"errors by what the rule chooses of {_problem(segment, shapes)} ; weights {segment.weights_digest}"
    before = kept.get(key)
    if before is not None:
        return before.precision, before.errors
    fed = inputs.of(segment)
    assert fed is not None  # it has shapes
    errors = errors_of(segment, fed, device)
    accurate = [
        precision
        for precision in PRECISIONS
        if precision in errors and is_as_accurate(errors[precision], errors["default"])
    ]
    found = Measurement(accurate[0] if accurate else None, errors, {})
    kept.add(key, found)
    return found.precision, found.errors
