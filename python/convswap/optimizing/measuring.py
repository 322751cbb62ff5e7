"""Measures every Conv of a model in every way, and which precision it may have."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnxruntime

from convswap import _native
from convswap.graph.fixed_inputs import with_fixed_inputs
from convswap.graph.fusion.fuse import Stage
from convswap.graph.swap import PRECISIONS, NodeChoice, swap
from convswap.optimizing.choice import DEFAULT_WAY, Way, best_of_ours, fastest, is_as_accurate
from convswap.optimizing.kept import KeptMeasurements, Measurement
from convswap.optimizing.preparation import MATCH, Prepared
from convswap.optimizing.segment_inputs import Inputs, SegmentInputs
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import errors_of, times_of
from convswap.progress import Progress
from convswap.runtime.sessions import CONVSWAP, make_session, run


@dataclass(frozen=True)
class Measured:
    """What was measured of one Conv, fed inputs of `shapes` at each batch.

    `algorithms` are those that compute `ours`, at each batch; `lines` are what the file is to say of them, in
    the form of a tuning table.
    """

    segment: Segment
    measurement: Measurement
    shapes: tuple[Shapes, ...]
    algorithms: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()

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
        """Our way that a reader is told of: the one that gains, else the fastest."""
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


def measure_convs(
    prepared: Prepared, inputs: SegmentInputs, kept: KeptMeasurements, report: Progress
) -> tuple[Measured, ...]:
    """Return what is measured, or was before, of every Conv that can be measured alone and is run."""
    if prepared.device.name == "cuda":
        report("compiling what our ways need")
        _compile_side_by_side(prepared)
    found = []
    start = time.monotonic()
    for number, segment in enumerate(prepared.segments):
        report(_what_is_left(number, len(prepared.segments), time.monotonic() - start))
        fed = inputs.of(segment)
        if fed is not None:
            found.append(_measure(segment, fed, prepared, kept))
    return tuple(found)


def _compile_side_by_side(prepared: Prepared) -> None:
    """Have kernels compiled by as many threads as there are cores: a Conv alone would wait for its own."""
    asked = prepared.options.precision
    for source in prepared.sources.values():
        feeds = source.first(source.batch)
        shapes = {name: values.shape for name, values in feeds.items()}
        model = with_fixed_inputs(prepared.subject.plain, shapes)
        for precision in PRECISIONS if asked == MATCH else (asked,):
            fused = swap(model, precision=precision, fuse=True).to_proto()
            run(make_session(fused, CONVSWAP, prepared.device), feeds)


def _what_is_left(number: int, count: int, seconds: float) -> str:
    left = f", about {seconds / number * (count - number):.0f} s left" if number else ""
    return f"measuring Conv {number + 1} of {count}{left}"


def _measure(segment: Segment, inputs: Inputs, prepared: Prepared, kept: KeptMeasurements) -> Measured:
    device = prepared.device
    shapes = tuple({name: tuple(value.shape()) for name, value in own.items()} for own in inputs)
    problem = " ; ".join(segment.key(own) for own in shapes)
    precision, errors = _precision(segment, inputs[0], problem, prepared, kept)
    # Those that compute the same take the same time, whatever their weights.
    key = f"{problem} ; {precision or 'ieee'}"
    timed = kept.get(key)
    if timed is None:
        by_batch = [times_of(segment, own, precision or "ieee", device) for own in inputs]
        timed = Measurement(
            precision, None, {way: tuple(own[way] for own in by_batch) for way in by_batch[0]}
        )
        kept.add(key, timed)
    found = Measured(segment, Measurement(precision, errors, timed.times), shapes)
    by_rule = tuple(_native.choose(problem, device.name) for problem in found.problems)
    return replace(found, algorithms=by_rule)


def _precision(
    segment: Segment,
    inputs: Mapping[str, onnxruntime.OrtValue],
    problem: str,
    prepared: Prepared,
    kept: KeptMeasurements,
) -> tuple[str | None, Mapping[str, float] | None]:
    """Return the precision for our ways, None where none is as accurate, and the errors that tell."""
    asked, device = prepared.options.precision, prepared.device
    if asked != MATCH:
        return asked, None
    if device.name == "cpu" or segment.layer.type_name != "float32":
        # The CPU computes float32 as such on both sides, and other types have one arithmetic.
        return "ieee", None
    key = f"errors of {problem} ; weights {segment.weights_digest}"
    before = kept.get(key)
    if before is not None:
        return before.precision, before.errors
    errors = errors_of(segment, inputs, device)
    accurate = [
        precision
        for precision in PRECISIONS
        if precision in errors and is_as_accurate(errors[precision], errors["default"])
    ]
    found = Measurement(accurate[0] if accurate else None, errors, {})
    kept.add(key, found)
    return found.precision, found.errors
