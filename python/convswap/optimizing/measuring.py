"""Measures every Conv of a model in every way, and which precision it may have."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnxruntime

from convswap import _native
from convswap.graph.fixed_inputs import with_fixed_inputs
from convswap.graph.swap import PRECISIONS, swap
from convswap.optimizing.choice import DEFAULT_WAY, Way, fastest, is_as_accurate
from convswap.optimizing.kept import KeptMeasurements, Measurement
from convswap.optimizing.preparation import MATCH, Prepared
from convswap.optimizing.segments import Segment
from convswap.optimizing.trials import errors_of, times_of
from convswap.progress import Progress
from convswap.runtime.layers import Capture
from convswap.runtime.sessions import CONVSWAP, make_session, on_device, run

Inputs = Sequence[Mapping[str, onnxruntime.OrtValue]]


@dataclass(frozen=True)
class Measured:
    """What was measured of one Conv; `algorithm` is the rule's, with all that it can take in."""

    segment: Segment
    measurement: Measurement
    algorithm: str

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
    def saved(self) -> float:
        """The milliseconds that it saves, over all batches."""
        return sum(self.times[DEFAULT_WAY]) - sum(self.times[self.way])


def measure_convs(prepared: Prepared, kept: KeptMeasurements, report: Progress) -> tuple[Measured, ...]:
    """Return what is measured, or was before, of every Conv that can be measured alone."""
    device = prepared.device
    if not prepared.segments:
        return ()
    capture = Capture(prepared.swapped, [segment.layer for segment in prepared.segments], device)
    feeds = {batch: on_device(source.first(batch), device) for batch, source in prepared.sources.items()}
    if device.name == "cuda":
        report("compiling what our ways need")
        _compile_side_by_side(prepared)
    found = []
    start = time.monotonic()
    for number, segment in enumerate(prepared.segments):
        report(_what_is_left(number, len(prepared.segments), time.monotonic() - start))
        inputs = [capture.inputs(segment.layer, fed) for fed in feeds.values()]
        found.append(_measure(segment, inputs, prepared, kept))
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
    shapes = [{name: tuple(value.shape()) for name, value in own.items()} for own in inputs]
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
    algorithm = _native.choose(segment.layer.problem(shapes[-1]), device.name, "auto")
    return Measured(segment, Measurement(precision, errors, timed.times), algorithm)


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
    digest = hashlib.sha256()
    for name in sorted(segment.layer.constants):
        digest.update(segment.layer.constants[name].SerializeToString(deterministic=True))
    key = f"errors of {problem} ; weights {digest.hexdigest()[:16]}"
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
