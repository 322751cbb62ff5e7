"""Measure the Convs of a model: choose the precision of each, time its variants, and try algorithms."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Stage
from convswap.graph.swap import PRECISIONS, NodeChoice
from convswap.optimizing.choice import (
    DEFAULT_VARIANT,
    MIN_SPEEDUP_TO_TRY,
    Variant,
    fastest_convswap_variant,
    is_as_accurate,
    reaches_speedup,
    select_variant,
)
from convswap.optimizing.measurement_cache import Measurement, MeasurementCache
from convswap.optimizing.preparation import MATCH, InputsByBatch, Prepared, SegmentInputs
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import algorithm_error, conv_errors, times_by_algorithm, variant_times
from convswap.progress import Progress, silent
from convswap.runtime.device import Device
from convswap.runtime.tuning import TuningEntry

# The minimum speedup of an algorithm over the planner's choice. A smaller speedup may be noise.
_MIN_ALGORITHM_SPEEDUP = 1.03
# The algorithms that are compiled and timed are the planner's choice and the _MAX_TRIED with the lowest
# estimates, unless an estimate exceeds _MAX_ESTIMATE_RATIO times the lowest.
_MAX_ESTIMATE_RATIO = 2.0
_MAX_TRIED = 3
# Algorithms are tried only for Convs that take this share of the time of all Convs, at one batch or more.
_MIN_SHARE = 0.02


@dataclass(frozen=True)
class MeasuredSegment:
    """The measurements of one Conv, whose inputs have `shapes` at each batch.

    `algorithms` names the algorithm of `convswap_variant` for each batch, and `tuning_lines` has the
    measurements behind them in the form of a tuning table, for the file. `last_stage`, if set, is a deeper
    stage that is tried in the whole model instead of `convswap_variant`.
    """

    segment: Segment
    measurement: Measurement
    shapes: tuple[Shapes, ...]
    algorithms: tuple[str, ...] = ()
    tuning_lines: tuple[str, ...] = ()
    last_stage: Stage | None = None

    @property
    def precision(self) -> str | None:
        """The precision of convswap's variants; None if none is as accurate as the default provider."""
        return self.measurement.precision

    @property
    def times(self) -> Mapping[Variant, tuple[float, ...]]:
        """The milliseconds of every variant, at each batch."""
        return self.measurement.times

    @property
    def selected_variant(self) -> Variant:
        """The variant that `select_variant` selects for the segment; the default if none is accurate."""
        return DEFAULT_VARIANT if self.precision is None else select_variant(self.times)

    @property
    def is_faster(self) -> bool:
        """Whether a variant of convswap is selected for the segment."""
        return self.selected_variant is not DEFAULT_VARIANT

    @property
    def convswap_variant(self) -> Stage:
        """The variant of convswap to use if this Conv is swapped; it may be slower than the default."""
        if self.last_stage is not None:
            return self.last_stage
        variant = self.selected_variant if self.is_faster else fastest_convswap_variant(self.times)
        assert variant is not None
        return variant

    @property
    def choice(self) -> NodeChoice:
        """The swap that turns the Conv into `convswap_variant`."""
        return NodeChoice(
            precision=self.precision or "ieee", max_stage=self.convswap_variant, tuned=self.tuning_lines
        )

    @functools.cached_property
    def problems(self) -> list[_native.Problem]:
        """The problem that convswap's op computes, at each batch."""
        layer = self.segment.convswap_layer(self.shapes[0], self.choice)
        return [layer.problem(shapes) for shapes in self.shapes]

    @property
    def saved_ms(self) -> float:
        """The milliseconds that the selected variant saves, summed over the batches."""
        return sum(self.times[DEFAULT_VARIANT]) - sum(self.times[self.selected_variant])

    @property
    def is_nearly_as_fast(self) -> bool:
        """Whether `convswap_variant` has a speedup of MIN_SPEEDUP_TO_TRY over the default, at every batch."""
        return self._is_nearly_as_fast(self.times[DEFAULT_VARIANT], self.convswap_variant)

    def fused_deepest(self, device: Device) -> MeasuredSegment:
        """Return the Conv fused up to the last stage that is fast enough to try.

        That is a speedup of MIN_SPEEDUP_TO_TRY over `convswap_variant`, at every batch.
        """
        baseline = self.times[self.convswap_variant]
        stages = (variant for variant in self.times if variant is not None)
        last_stage = max(stage for stage in stages if self._is_nearly_as_fast(baseline, stage))
        if last_stage is self.convswap_variant:
            return self
        deepest = replace(self, last_stage=last_stage, tuning_lines=())
        return deepest.with_planned_algorithms(device)

    def fused_as_far_as_possible(self) -> MeasuredSegment:
        """Return the Conv fused up to the last stage that was timed, with no measured algorithm."""
        last_stage = max(variant for variant in self.times if variant is not None)
        return replace(self, last_stage=last_stage, tuning_lines=())

    def with_planned_algorithms(self, device: Device) -> MeasuredSegment:
        """Return the same measurements with the algorithms that the planner chooses."""
        return replace(
            self, algorithms=tuple(_native.choose(problem, device.name) for problem in self.problems)
        )

    def _is_nearly_as_fast(self, baseline: Sequence[float], stage: Stage) -> bool:
        return reaches_speedup(baseline, self.times[stage], MIN_SPEEDUP_TO_TRY)


@dataclass(frozen=True)
class MeasurementContext:
    """A model whose Convs are measured, the inputs of its segments, and the cache of measurements."""

    prepared: Prepared
    segment_inputs: SegmentInputs
    cache: MeasurementCache
    progress: Progress = silent

    def inputs(self, segment: Segment) -> InputsByBatch:
        """Return the inputs of `segment`, which runs at every batch."""
        inputs = self.segment_inputs.of(segment)
        assert inputs is not None
        return inputs


def measure_convs(context: MeasurementContext) -> tuple[MeasuredSegment, ...]:
    """Return new or cached measurements of the segments that run at every batch."""
    prepared, progress = context.prepared, context.progress
    shapes_by_segment = ((segment, context.segment_inputs.shapes(segment)) for segment in prepared.segments)
    segments = [(segment, shapes) for segment, shapes in shapes_by_segment if shapes is not None]
    first = PRECISIONS[0] if prepared.options.precision == MATCH else prepared.options.precision
    progress("compiling the kernels to measure")
    _compile(prepared, segments, first)
    accuracies = []
    for number, (segment, shapes) in enumerate(segments):
        progress(f"choosing the precision of Conv {number + 1} of {len(segments)}")
        accuracies.append(_precision(segment, shapes, context))
    in_ieee = [
        entry
        for entry, (precision, _) in zip(segments, accuracies, strict=True)
        if precision not in (None, first)
    ]
    _compile(prepared, in_ieee, "ieee")
    measured = []
    start = time.monotonic()
    for number, ((segment, shapes), accuracy) in enumerate(zip(segments, accuracies, strict=True)):
        progress(_progress_text(number, len(segments), time.monotonic() - start))
        measured.append(_measure(segment, shapes, accuracy, context))
    return tuple(measured)


def _compile(
    prepared: Prepared, segments: Sequence[tuple[Segment, Sequence[Shapes]]], precision: str
) -> None:
    """Compile the kernels of each Conv without its followers, and fused with all of its segment."""
    if prepared.device.name == "cpu":
        return
    problems = [
        layer.problem(shapes)
        for segment, by_batch in segments
        for layer in (segment.bare_conv(precision), segment.layer.with_setting("precision", precision))
        for shapes in by_batch
    ]
    compile_in_parallel((problem, _native.choose(problem, "cuda")) for problem in problems)


def _progress_text(number: int, count: int, seconds: float) -> str:
    remaining = f", about {seconds / number * (count - number):.0f} s left" if number else ""
    return f"measuring Conv {number + 1} of {count}{remaining}"


# The precision of convswap's variants, and the errors that it follows from; see `Measurement`.
_Accuracy = tuple[str | None, Mapping[str, float] | None]


def _measure(
    segment: Segment,
    shapes: tuple[Shapes, ...],
    accuracy: _Accuracy,
    context: MeasurementContext,
) -> MeasuredSegment:
    cache, device = context.cache, context.prepared.device
    precision, errors = accuracy
    # The time does not depend on the values of the weights, so the key does not have them.
    key = f"{_cache_key_part(segment, shapes)} ; {precision or 'ieee'}"
    timed = cache.get(key)
    if timed is None:
        by_batch = [
            variant_times(segment, inputs, precision or "ieee", device) for inputs in context.inputs(segment)
        ]
        timed = Measurement(
            precision,
            None,
            {variant: tuple(times[variant] for times in by_batch) for variant in by_batch[0]},
        )
        cache.add(key, timed)
    measured = MeasuredSegment(segment, Measurement(precision, errors, timed.times), shapes)
    return measured.with_planned_algorithms(device)


def _cache_key_part(segment: Segment, shapes: Sequence[Shapes]) -> str:
    return " ; ".join(segment.key(shapes_at_batch) for shapes_at_batch in shapes)


def _precision(segment: Segment, shapes: Sequence[Shapes], context: MeasurementContext) -> _Accuracy:
    """Return the precision of convswap's variants, and the errors that it follows from.

    The precision is None if none is accurate enough.
    """
    requested, device, cache = context.prepared.options.precision, context.prepared.device, context.cache
    if requested != MATCH:
        return requested, None
    if device.name == "cpu" or segment.layer.type_name != "float32":
        # On the CPU both sides compute float32 in float32, and other types have only one precision.
        return "ieee", None
    part = _cache_key_part(segment, shapes)
    key = f"errors by what the rule chooses of {part} ; weights {segment.weights_digest}"
    cached = cache.get(key)
    if cached is not None:
        return cached.precision, cached.errors
    errors = conv_errors(segment, context.inputs(segment), device)
    accurate = [
        precision
        for precision in PRECISIONS
        if precision in errors and is_as_accurate(errors[precision], errors["default"])
    ]
    measured = Measurement(accurate[0] if accurate else None, errors, {})
    cache.add(key, measured)
    return measured.precision, measured.errors


def compile_in_parallel(wanted: Iterable[tuple[_native.Problem, str]]) -> None:
    """Compile the kernels of each problem with its algorithm for the card, on one thread per core.

    Callers time these problems afterwards, so that their timed runs need not compile.
    """

    def plan(problem: _native.Problem, algorithm: str) -> None:
        # `describe_plan` compiles the kernels as a side effect. An error is reported when the problem is run.
        with contextlib.suppress(ConvswapError, RuntimeError):
            _native.describe_plan(problem, "cuda", algorithm)

    distinct = {(problem.text, algorithm): problem for problem, algorithm in wanted}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, algorithm), problem in distinct.items():
            pool.submit(plan, problem, algorithm)


def candidate_algorithms(problem: _native.Problem, device: str) -> list[str]:
    """Return the planner's choice for `problem`, then the other algorithms with the lowest estimates.

    Algorithms of the CPU have no estimates, so the planner's choice is the only one there.
    """
    estimates = {
        name: estimate
        for name, estimate in _native.estimates(problem, device).items()
        if estimate is not None
    }
    lowest = min(estimates.values(), default=0.0)
    near = sorted(
        (estimate, name) for name, estimate in estimates.items() if estimate <= _MAX_ESTIMATE_RATIO * lowest
    )
    return list(dict.fromkeys([_native.choose(problem, device), *(name for _, name in near[:_MAX_TRIED])]))


def with_fastest_algorithms(
    measured: Sequence[MeasuredSegment], context: MeasurementContext
) -> tuple[MeasuredSegment, ...]:
    """Return `measured` with the fastest algorithms of those Convs that are faster and take enough time.

    "Enough" is a share of _MIN_SHARE of the time of all Convs. The other Convs are returned as they are.
    """
    device, progress = context.prepared.device, context.progress
    tried = [
        [candidate_algorithms(problem, device.name) for problem in conv.problems]
        if conv.is_faster and _share_of_time(conv, measured) >= _MIN_SHARE
        else []
        for conv in measured
    ]
    tried = [by_batch if any(len(names) > 1 for names in by_batch) else [] for by_batch in tried]
    if device.name == "cuda" and any(tried):
        progress("compiling the algorithms to try")
        compile_in_parallel(
            (problem, name)
            for conv, by_batch in zip(measured, tried, strict=True)
            # `by_batch` is empty for Convs that are not tried.
            for problem, names in zip(conv.problems if by_batch else (), by_batch, strict=True)
            for name in names
        )
    tuned = []
    for conv, by_batch in zip(measured, tried, strict=True):
        if by_batch:
            progress(f"trying algorithms for {conv.segment.name}")
            conv = _AlgorithmTrial(conv, context).best(by_batch)
        tuned.append(conv)
    return tuple(tuned)


def _share_of_time(conv: MeasuredSegment, measured: Sequence[MeasuredSegment]) -> float:
    """Return the share of the time of all Convs that `conv` takes, the largest over the batches."""
    totals = [
        sum(times) for times in zip(*(other.times[other.selected_variant] for other in measured), strict=True)
    ]
    return max(spent / total for spent, total in zip(conv.times[conv.selected_variant], totals, strict=True))


class _AlgorithmTrial:
    """Times algorithms on one Conv."""

    def __init__(self, conv: MeasuredSegment, context: MeasurementContext) -> None:
        self._conv, self._cache, self._device = conv, context.cache, context.prepared.device
        self._context = context

    def best(self, names: Sequence[Sequence[str]]) -> MeasuredSegment:
        """Return the Conv with the fastest of `names` at each batch, and with its tuning lines."""
        conv = self._conv
        times = list(conv.times[conv.convswap_variant])
        selected, tuning_lines = list(conv.algorithms), []
        for number, names_at_batch in enumerate(names):
            if len(names_at_batch) < 2:
                continue
            measured = self._times(number, names_at_batch)
            selected[number] = self._fastest(measured, planned=names_at_batch[0])
            if selected[number] != names_at_batch[0]:
                times[number] = measured[selected[number]]
            problem = conv.problems[number].text
            entry = TuningEntry.measured(self._device.name, problem, selected[number], measured)
            tuning_lines.append(entry.line())
        all_times = {**conv.times, conv.convswap_variant: tuple(times)}
        measurement = Measurement(conv.measurement.precision, conv.measurement.errors, all_times)
        return replace(
            conv, measurement=measurement, algorithms=tuple(selected), tuning_lines=tuple(tuning_lines)
        )

    def _times(self, number: int, names: Sequence[str]) -> Mapping[str, float]:
        conv = self._conv
        key = f"times of {' '.join(names)} ; {self._key(number)} ; up to {conv.convswap_variant.name}"
        cached = self._cache.numbers(key)
        if cached is not None and names[0] in cached:
            return cached
        times = times_by_algorithm(conv.segment, self._inputs[number], conv.choice, names, self._device)
        self._cache.add(key, times)
        return times

    def _fastest(self, times: Mapping[str, float], planned: str) -> str:
        """Return the fastest accurate algorithm that is faster than the planner's, else the planner's."""
        faster = [name for name in times if times[planned] / times[name] > _MIN_ALGORITHM_SPEEDUP]
        accurate = (name for name in sorted(faster, key=lambda name: times[name]) if self._is_accurate(name))
        return next(accurate, planned)

    def _is_accurate(self, name: str) -> bool:
        """Return whether an algorithm is about as accurate as the default."""
        errors = self._conv.measurement.errors
        if errors is None:
            # Nothing is compared if the user chose the precision, on the CPU, and for other types than
            # float32.
            return True
        key = f"error of {name} ; {self._key(0)} ; weights {self._conv.segment.weights_digest}"
        cached = self._cache.numbers(key)
        if cached is None or name not in cached:
            precision = self._conv.choice.precision
            error = algorithm_error(self._conv.segment, self._inputs[0], precision, name, self._device)
            if error is None or not math.isfinite(error):
                return False
            cached = {name: error}
            self._cache.add(key, cached)
        return is_as_accurate(cached[name], errors["default"])

    def _key(self, number: int) -> str:
        return f"{self._conv.segment.key(self._conv.shapes[number])} ; {self._conv.choice.precision}"

    @functools.cached_property
    def _inputs(self) -> InputsByBatch:
        return self._context.inputs(self._conv.segment)
