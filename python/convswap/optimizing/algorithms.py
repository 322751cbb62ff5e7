"""Which algorithm computes a Conv that is swapped: the rule's, or another that is measured to be faster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from convswap import _native
from convswap.optimizing.choice import DEFAULT_WAY, is_as_accurate
from convswap.optimizing.compiling import compile_side_by_side
from convswap.optimizing.kept import ByAlgorithm, KeptMeasurements, Measurement
from convswap.optimizing.measuring import Measured
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.segment_inputs import Inputs, SegmentInputs
from convswap.optimizing.trials import Values, error_by, times_by_algorithm
from convswap.progress import Progress
from convswap.runtime.tuning import TuningEntry

# What another than the rule's must gain, so that it is more than noise.
_LEAST_GAIN = 1.03
# An algorithm whose estimate is so many times the best is not worth compiling, nor are more than so many.
_MOST_ESTIMATE = 2.0
_MOST_TRIED = 3
# Nor is any for a Conv that takes less than this share of the time of all Convs, at every batch.
_LEAST_SHARE = 0.02


def candidates(problem: _native.Problem, device: str) -> list[str]:
    """Return the algorithms that could be the fastest for `problem` by their estimates, the rule's first.

    Where algorithms have no estimates, as on the CPU, there is only the rule's.
    """
    estimated = _native.estimates(problem, device)
    known = {name: own for name, own in estimated.items() if own is not None}
    least = min(known.values(), default=0.0)
    near = sorted((own, name) for name, own in known.items() if own <= _MOST_ESTIMATE * least)
    return list(dict.fromkeys([_native.choose(problem, device), *(name for _, name in near[:_MOST_TRIED])]))


def with_fastest_algorithms(
    measured: Sequence[Measured],
    prepared: Prepared,
    inputs: SegmentInputs,
    kept: KeptMeasurements,
    report: Progress,
) -> tuple[Measured, ...]:
    """Return `measured` with other algorithms than the rule's tried for what gains and takes its time."""
    tried = [
        [candidates(problem, prepared.device.name) for problem in one.problems]
        if one.way is not DEFAULT_WAY and _share(one, measured) >= _LEAST_SHARE
        else []
        for one in measured
    ]
    tried = [names if any(len(own) > 1 for own in names) else [] for names in tried]
    if prepared.device.name == "cuda" and any(tried):
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
            one = _Trial(one, prepared, inputs, kept).best(names)
        found.append(one)
    return tuple(found)


def _share(one: Measured, measured: Sequence[Measured]) -> float:
    """Return the share of the time of all Convs that `one` takes, at the batch where that is most."""
    totals = [sum(times) for times in zip(*(other.times[other.way] for other in measured), strict=True)]
    return max(own / total for own, total in zip(one.times[one.way], totals, strict=True))


class _Trial:
    """Tries algorithms on one Conv."""

    def __init__(
        self, one: Measured, prepared: Prepared, inputs: SegmentInputs, kept: KeptMeasurements
    ) -> None:
        self._one, self._kept, self._inputs = one, kept, inputs
        self._device = prepared.device
        self._values: Inputs | None = None

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
        before = self._kept.by_algorithm(key)
        if before is not None and names[0] in before.numbers:
            return before.numbers
        found = times_by_algorithm(one.segment, self._fed(number), one.choice, names, self._device)
        self._kept.add(key, ByAlgorithm(found))
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
        kept = self._kept.by_algorithm(key)
        if kept is None or name not in kept.numbers:
            precision = self._one.choice.precision
            error = error_by(self._one.segment, self._fed(0), precision, name, self._device)
            if error is None or not math.isfinite(error):
                return False
            kept = ByAlgorithm({name: error})
            self._kept.add(key, kept)
        return is_as_accurate(kept.numbers[name], errors["default"])

    def _key(self, number: int) -> str:
        return f"{self._one.segment.key(self._one.shapes[number])} ; {self._one.choice.precision}"

    def _fed(self, number: int) -> Values:
        if self._values is None:
            self._values = self._inputs.of(self._one.segment)
            assert self._values is not None  # it was measured
        return self._values[number]

    def _entry(self, number: int, taken: str, times: Mapping[str, float]) -> TuningEntry:
        return TuningEntry(
            device=_native.tuning_device(self._device.name),
            version=_native.__version__,
            problem=self._one.problems[number].text,
            algorithm=taken,
            milliseconds=times,
        )
