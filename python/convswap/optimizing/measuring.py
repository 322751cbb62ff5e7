"""Measure every Conv in every way: its time, its error in each precision, and its fastest algorithm."""

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
    DEFAULT_WAY,
    MIN_SPEEDUP_TO_TRY,
    Way,
    best_of_ours,
    fastest,
    is_as_accurate,
)
from convswap.optimizing.measurement_cache import Measurement, MeasurementCache
from convswap.optimizing.preparation import MATCH, Inputs, Prepared, SegmentInputs
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import error_by, errors_of, times_by_algorithm, times_of
from convswap.progress import Progress, silent
from convswap.runtime.device import Device
from convswap.runtime.tuning import TuningEntry

# The least speedup of an algorithm over the one that the rule chooses; a smaller one may be noise.
_MIN_ALGORITHM_SPEEDUP = 1.03
# Only algorithms with an estimate of at most so many times the best one are compiled and timed, and so many
# of them.
_MAX_ESTIMATE_RATIO = 2.0
_MAX_TRIED = 3
# Algorithms are tried only for Convs that take this share of the time of all Convs, at one batch or more.
_MIN_SHARE = 0.02


@dataclass(frozen=True)
class MeasuredSegment:
    """The measurements of one Conv, whose inputs have `shapes` at each batch.

    `algorithms` computes `ours`, one for each batch. `lines` says so for the file, in the form of a tuning
    table. `last` is the last stage to fuse where the whole model needs another one than is fastest alone.
    """

    segment: Segment
    measurement: Measurement
    shapes: tuple[Shapes, ...]
    algorithms: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    last: Stage | None = None

    @property
    def precision(self) -> str | None:
        """The precision of our ways; None where no precision is as accurate as the default provider."""
        return self.measurement.precision

    @property
    def times(self) -> Mapping[Way, tuple[float, ...]]:
        """The milliseconds of every way, at each batch."""
        return self.measurement.times

    @property
    def way(self) -> Way:
        """The fastest way for the Conv alone."""
        return DEFAULT_WAY if self.precision is None else fastest(self.times)

    @property
    def ours(self) -> Stage:
        """Our way that reports show: `last` where that is given, else `way`, else the fastest of ours."""
        if self.last is not None:
            return self.last
        way = self.way
        best = best_of_ours(self.times) if way is DEFAULT_WAY else way
        assert best is not None
        return best

    @property
    def choice(self) -> NodeChoice:
        """The swap that makes the Conv `ours`."""
        return NodeChoice(precision=self.precision or "ieee", max_stage=self.ours, tuned=self.lines)

    @functools.cached_property
    def problems(self) -> list[_native.Problem]:
        """The problem that our op computes, at each batch."""
        layer = self.segment.our_layer(self.shapes[0], self.choice)
        return [layer.problem(own) for own in self.shapes]

    @property
    def saved(self) -> float:
        """The milliseconds that `way` saves, summed over the batches."""
        return sum(self.times[DEFAULT_WAY]) - sum(self.times[self.way])

    @property
    def loses_little(self) -> bool:
        """Whether ours is not much slower than the default, at any batch."""
        return self._loses_little(self.times[DEFAULT_WAY], self.ours)

    def deepest(self, device: Device) -> MeasuredSegment:
        """Return the Conv fused up to the last stage that is not much slower than `ours` at any batch."""
        fastest_of_ours = self.times[self.ours]
        ways = (way for way in self.times if way is not None)
        last = max(way for way in ways if self._loses_little(fastest_of_ours, way))
        if last is self.ours:
            return self
        return replace(self, last=last, lines=()).with_rule(device)

    def with_rule(self, device: Device) -> MeasuredSegment:
        """Return the same with the algorithms that the rule chooses."""
        return replace(
            self, algorithms=tuple(_native.choose(problem, device.name) for problem in self.problems)
        )

    def _loses_little(self, times: Sequence[float], way: Stage) -> bool:
        return all(one / own >= MIN_SPEEDUP_TO_TRY for one, own in zip(times, self.times[way], strict=True))


@dataclass(frozen=True)
class Measuring:
    """A model whose Convs are measured, their inputs, and the cache of earlier measurements."""

    prepared: Prepared
    inputs: SegmentInputs
    cache: MeasurementCache
    report: Progress = silent

    def fed(self, segment: Segment) -> Inputs:
        """Return the inputs of `segment`, which runs at every batch."""
        fed = self.inputs.of(segment)
        assert fed is not None
        return fed


def measure_convs(measuring: Measuring) -> tuple[MeasuredSegment, ...]:
    """Return new or cached measurements of the Convs that can be measured alone and run at every batch."""
    prepared, report = measuring.prepared, measuring.report
    by_segment = ((segment, measuring.inputs.shapes(segment)) for segment in prepared.segments)
    fed = [(segment, shapes) for segment, shapes in by_segment if shapes is not None]
    first = PRECISIONS[0] if prepared.options.precision == MATCH else prepared.options.precision
    report("compiling what our ways need")
    _compile(prepared, fed, first)
    accuracies = []
    for number, (segment, shapes) in enumerate(fed):
        report(f"choosing the precision of Conv {number + 1} of {len(fed)}")
        accuracies.append(_precision(segment, shapes, measuring))
    others = [
        own for own, (precision, _) in zip(fed, accuracies, strict=True) if precision not in (None, first)
    ]
    _compile(prepared, others, "ieee")
    found = []
    start = time.monotonic()
    for number, ((segment, shapes), own) in enumerate(zip(fed, accuracies, strict=True)):
        report(_what_is_left(number, len(fed), time.monotonic() - start))
        found.append(_measure(segment, shapes, own, measuring))
    return tuple(found)


def _compile(prepared: Prepared, fed: Sequence[tuple[Segment, Sequence[Shapes]]], precision: str) -> None:
    """Compile the kernels of the segments, of the Convs alone and of all that they can be fused with."""
    if prepared.device.name == "cpu":
        return
    problems = [
        layer.problem(own)
        for segment, by_batch in fed
        for layer in (segment.conv_alone(precision), segment.layer.with_setting("precision", precision))
        for own in by_batch
    ]
    compile_side_by_side((problem, _native.choose(problem, "cuda")) for problem in problems)


def _what_is_left(number: int, count: int, seconds: float) -> str:
    left = f", about {seconds / number * (count - number):.0f} s left" if number else ""
    return f"measuring Conv {number + 1} of {count}{left}"


# The precision for our ways, and the errors that show it; see `Measurement`.
_Accuracy = tuple[str | None, Mapping[str, float] | None]


def _measure(
    segment: Segment,
    shapes: tuple[Shapes, ...],
    accuracy: _Accuracy,
    measuring: Measuring,
) -> MeasuredSegment:
    cache, device = measuring.cache, measuring.prepared.device
    precision, errors = accuracy
    # The time does not depend on the values of the weights.
    key = f"{_problem(segment, shapes)} ; {precision or 'ieee'}"
    timed = cache.get(key)
    if timed is None:
        by_batch = [times_of(segment, own, precision or "ieee", device) for own in measuring.fed(segment)]
        timed = Measurement(
            precision, None, {way: tuple(own[way] for own in by_batch) for way in by_batch[0]}
        )
        cache.add(key, timed)
    return MeasuredSegment(segment, Measurement(precision, errors, timed.times), shapes).with_rule(device)


def _problem(segment: Segment, shapes: Sequence[Shapes]) -> str:
    return " ; ".join(segment.key(own) for own in shapes)


def _precision(segment: Segment, shapes: Sequence[Shapes], measuring: Measuring) -> _Accuracy:
    """Return the precision for our ways, None where none is accurate enough, and the errors that show it."""
    asked, device, cache = measuring.prepared.options.precision, measuring.prepared.device, measuring.cache
    if asked != MATCH:
        return asked, None
    if device.name == "cpu" or segment.layer.type_name != "float32":
        # On the CPU both sides compute float32 in float32, and other types have only one precision.
        return "ieee", None
    key = f"errors by what the rule chooses of {_problem(segment, shapes)} ; weights {segment.weights_digest}"
    before = cache.get(key)
    if before is not None:
        return before.precision, before.errors
    errors = errors_of(segment, measuring.fed(segment), device)
    accurate = [
        precision
        for precision in PRECISIONS
        if precision in errors and is_as_accurate(errors[precision], errors["default"])
    ]
    found = Measurement(accurate[0] if accurate else None, errors, {})
    cache.add(key, found)
    return found.precision, found.errors


def compile_side_by_side(wanted: Iterable[tuple[_native.Problem, str]]) -> None:
    """Compile the kernels of the problems, each by its algorithm, for the card.

    There are as many threads as cores. All is compiled before the first run is timed, so that the timed run
    has the host to itself.
    """

    def plan(problem: _native.Problem, algorithm: str) -> None:
        # The error is reported where the problem is run.
        with contextlib.suppress(ConvswapError, RuntimeError):
            _native.describe_plan(problem, "cuda", algorithm)

    once = {(problem.text, algorithm): problem for problem, algorithm in wanted}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, algorithm), problem in once.items():
            pool.submit(plan, problem, algorithm)


def candidates(problem: _native.Problem, device: str) -> list[str]:
    """Return the algorithms with the lowest estimates for `problem`, after the one that the rule chooses.

    Algorithms of the CPU have no estimates; there the rule's is the only one.
    """
    estimated = _native.estimates(problem, device)
    known = {name: own for name, own in estimated.items() if own is not None}
    least = min(known.values(), default=0.0)
    near = sorted((own, name) for name, own in known.items() if own <= _MAX_ESTIMATE_RATIO * least)
    return list(dict.fromkeys([_native.choose(problem, device), *(name for _, name in near[:_MAX_TRIED])]))


def with_fastest_algorithms(
    measured: Sequence[MeasuredSegment], measuring: Measuring
) -> tuple[MeasuredSegment, ...]:
    """Return `measured` with the fastest algorithm for each Conv that gains and takes a share of the time."""
    device, report = measuring.prepared.device, measuring.report
    tried = [
        [candidates(problem, device.name) for problem in one.problems]
        if one.way is not DEFAULT_WAY and _share(one, measured) >= _MIN_SHARE
        else []
        for one in measured
    ]
    tried = [names if any(len(own) > 1 for own in names) else [] for names in tried]
    if device.name == "cuda" and any(tried):
        report("compiling the algorithms to try")
        compile_side_by_side(
            (problem, name)
            for one, by_batch in zip(measured, tried, strict=True)
            # `by_batch` is empty for Convs that are not tried.
            for problem, names in zip(one.problems if by_batch else (), by_batch, strict=True)
            for name in names
        )
    found = []
    for one, names in zip(measured, tried, strict=True):
        if names:
            report(f"trying algorithms for {one.segment.name}")
            one = _Trial(one, measuring).best(names)
        found.append(one)
    return tuple(found)


def _share(one: MeasuredSegment, measured: Sequence[MeasuredSegment]) -> float:
    """Return the share of the time of all Convs that `one` takes, the largest over the batches."""
    totals = [sum(times) for times in zip(*(other.times[other.way] for other in measured), strict=True)]
    return max(own / total for own, total in zip(one.times[one.way], totals, strict=True))


class _Trial:
    """Times algorithms on one Conv."""

    def __init__(self, one: MeasuredSegment, measuring: Measuring) -> None:
        self._one, self._cache, self._device = one, measuring.cache, measuring.prepared.device
        self._measuring = measuring

    def best(self, names: Sequence[Sequence[str]]) -> MeasuredSegment:
        """Return the Conv with the fastest of `names` at each batch, and with its tuning lines."""
        one = self._one
        times = list(one.times[one.ours])
        taken, lines = list(one.algorithms), []
        for number, own in enumerate(names):
            if len(own) < 2:
                continue
            measured = self._times(number, own)
            taken[number] = self._fastest(measured, rule=own[0])
            if taken[number] != own[0]:
                times[number] = measured[taken[number]]
            lines.append(self._entry(number, taken[number], measured).line())
        all_times = {**one.times, one.ours: tuple(times)}
        measurement = Measurement(one.measurement.precision, one.measurement.errors, all_times)
        return replace(one, measurement=measurement, algorithms=tuple(taken), lines=tuple(lines))

    def _times(self, number: int, names: Sequence[str]) -> Mapping[str, float]:
        one = self._one
        key = f"times of {' '.join(names)} ; {self._key(number)} ; up to {one.ours.name}"
        before = self._cache.numbers(key)
        if before is not None and names[0] in before:
            return before
        found = times_by_algorithm(one.segment, self._fed[number], one.choice, names, self._device)
        self._cache.add(key, found)
        return found

    def _fastest(self, times: Mapping[str, float], rule: str) -> str:
        """Return the fastest algorithm that is faster than the rule's and accurate enough."""
        faster = [name for name in times if times[rule] / times[name] > _MIN_ALGORITHM_SPEEDUP]
        accurate = (name for name in sorted(faster, key=lambda name: times[name]) if self._is_accurate(name))
        return next(accurate, rule)

    def _is_accurate(self, name: str) -> bool:
        """Return whether an algorithm is as accurate as the default, or the user chose the precision."""
        errors = self._one.measurement.errors
        if errors is None:
            return True
        key = f"error of {name} ; {self._key(0)} ; weights {self._one.segment.weights_digest}"
        cached = self._cache.numbers(key)
        if cached is None or name not in cached:
            precision = self._one.choice.precision
            error = error_by(self._one.segment, self._fed[0], precision, name, self._device)
            if error is None or not math.isfinite(error):
                return False
            cached = {name: error}
            self._cache.add(key, cached)
        return is_as_accurate(cached[name], errors["default"])

    def _key(self, number: int) -> str:
        return f"{self._one.segment.key(self._one.shapes[number])} ; {self._one.choice.precision}"

    @functools.cached_property
    def _fed(self) -> Inputs:
        return self._measuring.fed(self._one.segment)

    def _entry(self, number: int, taken: str, times: Mapping[str, float]) -> TuningEntry:
        return TuningEntry(
            device=_native.tuning_device(self._device.name),
            version=_native.__version__,
            problem=self._one.problems[number].text,
            algorithm=taken,
            milliseconds=times,
        )
