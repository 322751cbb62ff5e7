"""Measures every Conv in every way: which precision it may have, and which algorithm computes it."""

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
from convswap.optimizing.choice import DEFAULT_WAY, LEAST_TO_TRY, Way, best_of_ours, fastest, is_as_accurate
from convswap.optimizing.kept import KeptMeasurements, Measurement
from convswap.optimizing.preparation import MATCH, Inputs, Prepared, SegmentInputs
from convswap.optimizing.segments import Segment, Shapes
from convswap.optimizing.trials import error_by, errors_of, times_by_algorithm, times_of
from convswap.progress import Progress, silent
from convswap.runtime.device import Device
from convswap.runtime.tuning import TuningEntry

# What another than the rule's must gain, so that it is more than noise.
_LEAST_GAIN = 1.03
# An algorithm whose estimate is so many times the best is not worth compiling, nor are more than so many.
_MOST_ESTIMATE = 2.0
_MOST_TRIED = 3
# Nor is any for a Conv that takes less than this share of the time of all Convs, at every batch.
_LEAST_SHARE = 0.02


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
        return [layer.problem(own) for own in self.shapes]

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


@dataclass(frozen=True)
class Measuring:
    """A model whose Convs are measured, with what they are fed and what was measured before."""

    prepared: Prepared
    inputs: SegmentInputs
    kept: KeptMeasurements
    report: Progress = silent

    def fed(self, segment: Segment) -> Inputs:
        """Return what `segment`, which is run at every batch, is fed."""
        fed = self.inputs.of(segment)
        assert fed is not None
        return fed


def measure_convs(measuring: Measuring) -> tuple[Measured, ...]:
    """Return what is measured, or was before, of every Conv that can be measured alone and is run."""
    prepared, report = measuring.prepared, measuring.report
    by_segment = ((segment, measuring.inputs.shapes(segment)) for segment in prepared.segments)
    fed = [(segment, shapes) for segment, shapes in by_segment if shapes is not None]
    first = PRECISIONS[0] if prepared.options.precision == MATCH else prepared.options.precision
    report("compiling what our ways need")
    _compile(prepared, fed, first)
    judged = []
    for number, (segment, shapes) in enumerate(fed):
        report(f"choosing the precision of Conv {number + 1} of {len(fed)}")
        judged.append(_precision(segment, shapes, measuring))
    others = [own for own, (precision, _) in zip(fed, judged, strict=True) if precision not in (None, first)]
    _compile(prepared, others, "ieee")
    found = []
    start = time.monotonic()
    for number, ((segment, shapes), own) in enumerate(zip(fed, judged, strict=True)):
        report(_what_is_left(number, len(fed), time.monotonic() - start))
        found.append(_measure(segment, shapes, own, measuring))
    return tuple(found)


def _compile(prepared: Prepared, fed: Sequence[tuple[Segment, Sequence[Shapes]]], precision: str) -> None:
    """Have what computes the segments compiled, alone and with all that they can take in."""
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


_Judged = tuple[str | None, Mapping[str, float] | None]


def _measure(
    segment: Segment,
    shapes: tuple[Shapes, ...],
    judged: _Judged,
    measuring: Measuring,
) -> Measured:
    kept, device = measuring.kept, measuring.prepared.device
    precision, errors = judged
    # Those that compute the same take the same time, whatever their weights.
    key = f"{_problem(segment, shapes)} ; {precision or 'ieee'}"
    timed = kept.get(key)
    if timed is None:
        by_batch = [times_of(segment, own, precision or "ieee", device) for own in measuring.fed(segment)]
        timed = Measurement(
            precision, None, {way: tuple(own[way] for own in by_batch) for way in by_batch[0]}
        )
        kept.add(key, timed)
    return Measured(segment, Measurement(precision, errors, timed.times), shapes).with_rule(device)


def _problem(segment: Segment, shapes: Sequence[Shapes]) -> str:
    return " ; ".join(segment.key(own) for own in shapes)


def _precision(segment: Segment, shapes: Sequence[Shapes], measuring: Measuring) -> _Judged:
    """Return the precision for our ways, None where none is as accurate, and the errors that tell."""
    asked, device, kept = measuring.prepared.options.precision, measuring.prepared.device, measuring.kept
    if asked != MATCH:
        return asked, None
    if device.name == "cpu" or segment.layer.type_name != "float32":
        # The CPU computes float32 as such on both sides, and other types have one arithmetic.
        return "ieee", None
    key = f"errors by what the rule chooses of {_problem(segment, shapes)} ; weights {segment.weights_digest}"
    before = kept.get(key)
    if before is not None:
        return before.precision, before.errors
    errors = errors_of(segment, measuring.fed(segment), device)
    accurate = [
        precision
        for precision in PRECISIONS
        if precision in errors and is_as_accurate(errors[precision], errors["default"])
    ]
    found = Measurement(accurate[0] if accurate else None, errors, {})
    kept.add(key, found)
    return found.precision, found.errors


def compile_side_by_side(wanted: Iterable[tuple[_native.Problem, str]]) -> None:
    """Have the kernels of problems, each by an algorithm, compiled for the card, each once.

    By as many threads as there are cores: a Conv alone would wait for its own. And before the first is timed,
    which has the host for itself then.
    """

    def plan(problem: _native.Problem, algorithm: str) -> None:
        # Who runs it is told what is wrong with it.
        with contextlib.suppress(ConvswapError, RuntimeError):
            _native.describe_plan(problem, "cuda", algorithm)

    once = {(problem.text, algorithm): problem for problem, algorithm in wanted}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, algorithm), problem in once.items():
            pool.submit(plan, problem, algorithm)


def candidates(problem: _native.Problem, device: str) -> list[str]:
    """Return the algorithms that could be the fastest for `problem` by their estimates, the rule's first.

    Where algorithms have no estimates, as on the CPU, there is only the rule's.
    """
    estimated = _native.estimates(problem, device)
    known = {name: own for name, own in estimated.items() if own is not None}
    least = min(known.values(), default=0.0)
    near = sorted((own, name) for name, own in known.items() if own <= _MOST_ESTIMATE * least)
    return list(dict.fromkeys([_native.choose(problem, device), *(name for _, name in near[:_MOST_TRIED])]))


def with_fastest_algorithms(measured: Sequence[Measured], measuring: Measuring) -> tuple[Measured, ...]:
    """Return `measured` with other algorithms than the rule's tried for what gains and takes its time."""
    device, report = measuring.prepared.device, measuring.report
    tried = [
        [candidates(problem, device.name) for problem in one.problems]
        if one.way is not DEFAULT_WAY and _share(one, measured) >= _LEAST_SHARE
        else []
        for one in measured
    ]
    tried = [names if any(len(own) > 1 for own in names) else [] for names in tried]
    if device.name == "cuda" and any(tried):
        report("compiling the algorithms to try")
        compile_side_by_side(
            (problem, name)
            for one, by_batch in zip(measured, tried, strict=True)
            # Of those that are not tried there is none.
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


def _share(one: Measured, measured: Sequence[Measured]) -> float:
    """Return the share of the time of all Convs that `one` takes, at the batch where that is most."""
    totals = [sum(times) for times in zip(*(other.times[other.way] for other in measured), strict=True)]
    return max(own / total for own, total in zip(one.times[one.way], totals, strict=True))


class _Trial:
    """Tries algorithms on one Conv."""

    def __init__(self, one: Measured, measuring: Measuring) -> None:
        self._one, self._kept, self._device = one, measuring.kept, measuring.prepared.device
        self._measuring = measuring

    def best(self, names: Sequence[Sequence[str]]) -> Measured:
        """Return the Conv with the fastest of `names` at each batch, and the lines that tell of them."""
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
        before = self._kept.numbers(key)
        if before is not None and names[0] in before:
            return before
        found = times_by_algorithm(one.segment, self._fed[number], one.choice, names, self._device)
        self._kept.add(key, found)
        return found

    def _fastest(self, times: Mapping[str, float], rule: str) -> str:
        """Return the fastest of those that gain over the rule's and are as accurate as it has to be."""
        gaining = [name for name in times if times[rule] / times[name] > _LEAST_GAIN]
        accurate = (name for name in sorted(gaining, key=lambda name: times[name]) if self._is_accurate(name))
        return next(accurate, rule)

    def _is_accurate(self, name: str) -> bool:
        """Return whether an algorithm is as accurate as `errors` allow, if precisions were chosen by them."""
        errors = self._one.measurement.errors
        if errors is None:
            return True
        key = f"error of {name} ; {self._key(0)} ; weights {self._one.segment.weights_digest}"
        kept = self._kept.numbers(key)
        if kept is None or name not in kept:
            precision = self._one.choice.precision
            error = error_by(self._one.segment, self._fed[0], precision, name, self._device)
            if error is None or not math.isfinite(error):
                return False
            kept = {name: error}
            self._kept.add(key, kept)
        return is_as_accurate(kept[name], errors["default"])

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
