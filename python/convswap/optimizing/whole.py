"""The whole model with some of its Convs swapped or fused, against the original: times and answers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnxruntime

from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Fused
from convswap.graph.swap import NodeChoice, SwapResult
from convswap.optimizing.choice import DEFAULT_WAY, LEAST_GAIN
from convswap.optimizing.measuring import Measured
from convswap.optimizing.pairs import MeasuredPair
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.result import WholeResult, gains, mean_speedup
from convswap.optimizing.segments import swapped_model
from convswap.optimizing.trials import whole_times
from convswap.output.tables import error
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session, on_device, run_named
from convswap.runtime.values import Arrays, is_floating, named_arrays
from convswap.truth.closeness import (
    ELEMENTS_THAT_MAY_DIFFER,
    TOLERANCES,
    apart_by_name,
    comparable_names,
)
from convswap.truth.evaluation import evaluate

# Why a Conv is left as it was.
NOT_TAKEN = "it does not gain here"

# How many of the Convs that gain are taken, those that gain most first, until the whole model gains: what a
# Conv loses its neighbours (a blocked layout that they pass on) shows only there.
_SHARES = (1.0, 0.5, 0.25, 0.1)
_REPEATS = 2
# The float64 truth of the whole model is had where it takes some seconds.
_TRUTH_OPERATIONS = 20e9
# Both sides round, and not alike: ours may be off by so much more than the default is.
_MOST_OF_DEFAULT_ERROR = 1.25
# Of random numbers two draws are apart by more or less.
_NOT_MUCH_FURTHER = 2.0


@dataclass(frozen=True)
class Whole:
    """The model with the Convs in `taken` swapped or fused, against the original; None where none gains.

    `changes` says of Convs that were left how each changes the answers by itself.
    """

    taken: Mapping[str, NodeChoice] | None = None
    fused: tuple[Fused, ...] = ()
    convs: Mapping[str, Measured] = field(default_factory=dict)  # what was taken, by their names
    pairs: tuple[MeasuredPair, ...] = ()  # of which one node computes both Convs
    times: tuple[WholeResult, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""
    answers_agree: bool = False
    changes: Mapping[str, str] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """Whether answers were compared and differ."""
        return bool(self.errors) and not self.answers_agree and not math.isnan(self.errors["between"])

    @property
    def gains(self) -> bool:
        """Whether the model is faster in the mean over the batches, and at none slower."""
        return gains(self.times)


def best_whole(prepared: Prepared, measured: Sequence[Measured], pairs: Sequence[MeasuredPair] = ()) -> Whole:
    """Return the model that gains most of those that take some of the Convs which gain, or lose little.

    The last to be tried has, beside the Convs of the best before, the `pairs` that gain. Where the answers
    differ, the Convs that change them by themselves are left, and the others are tried again.
    """
    original = _Original(prepared, measured)
    best, differing = _best_of(original, measured, pairs)
    changes = {} if differing is None else _changes(original, differing)
    if not changes:
        return best
    others = [one for one in measured if one.segment.name not in changes]
    pairs = [pair for pair in pairs if changes.keys().isdisjoint(pair.names)]
    best, _ = _best_of(original, others, pairs)
    return replace(best, changes=changes)


def _best_of(
    original: _Original, measured: Sequence[Measured], pairs: Sequence[MeasuredPair]
) -> tuple[Whole, Whole | None]:
    """Return the best model, and the first that was tried, without pairs, whose answers differ."""
    prepared = original.prepared
    gaining = sorted((one for one in measured if one.way is not DEFAULT_WAY), key=lambda one: -one.saved)
    wholes = [_run_whole(original, taken) for taken in _to_try(prepared, measured, gaining)]
    best = _best(wholes)
    if prepared.device.name == "cuda":
        # The host that a model waits for has less to do for one node that takes in more than for two.
        deepest = {name: one.deepest(prepared.device) for name, one in best.convs.items()}
        if any(deepest[name] is not one for name, one in best.convs.items()):
            wholes.append(_run_whole(original, list(deepest.values())))
            best = _best(wholes)
    differing = next((one for one in wholes if one.differs), None)
    if pairs:
        before = best.taken or {} if best.gains and best.answers_agree else {}
        taken = {*before, *(name for pair in pairs for name in pair.names)}
        convs = {one.segment.name: one for one in measured} | dict(best.convs)
        with_pairs = [convs[name] for name in convs if name in taken]
        best = _best([best, _run_whole(original, with_pairs, pairs)])
    # Where no Conv gains alone, the whole must by more than the noise of two equal models.
    is_told = gaining or best.pairs or (best.times and mean_speedup(best.times) >= LEAST_GAIN)
    return best if is_told else Whole(), differing


def _changes(original: _Original, differing: Whole) -> Mapping[str, str]:
    """Return, for each Conv of `differing` that changes the answers by itself, how."""
    found = {}
    for name, one in differing.convs.items():
        assert differing.taken is not None
        _, sessions = original.swapped({name: differing.taken[name]})
        errors, _, agree = original.held(sessions, [one])
        if not agree:
            off = error(errors.get("optimized", errors["between"]))
            most = _tolerance([one], original.prepared.device)
            found[name] = f"it changes the model's answers: relative L2 error {off}, at most {most:g} may be"
    return found


def _best(wholes: Sequence[Whole]) -> Whole:
    # One that loses at a batch, or whose answers differ, is told of where none is better.
    ran = [one for one in wholes if one.times]
    return max(
        ran,
        key=lambda one: (one.gains and one.answers_agree, one.gains, mean_speedup(one.times)),
        default=Whole(),
    )


def _to_try(
    prepared: Prepared, measured: Sequence[Measured], gaining: Sequence[Measured]
) -> Iterator[Sequence[Measured]]:
    """Give the Convs to take in each model that is run."""
    if prepared.device.name == "cuda":
        if gaining:
            yield gaining
        # There Convs do not depend on their neighbours. But where the host is what a model waits for, a node
        # of ours takes less of it than one of the default provider, which shows where many runs follow each
        # other and not in a Conv alone.
        near = [one for one in measured if one.precision is not None and one.loses_little]
        if len(near) > len(gaining):
            yield near
        return
    if not gaining:
        return
    counts = dict.fromkeys(max(1, round(share * len(gaining))) for share in _SHARES)
    yield from (gaining[:count] for count in counts)


class _Original:
    """The model as it was, with what all others are held against, each had once."""

    def __init__(self, prepared: Prepared, measured: Sequence[Measured]) -> None:
        self.prepared, self._measured = prepared, measured

    @functools.cached_property
    def truth(self) -> Arrays | None:
        """The outputs by float64; None where there are none, or they take more than seconds."""
        prepared = self.prepared
        layers = [one.layer for one in prepared.segments if not one.path]
        shapes = prepared.capture(layers).shapes(on_device(prepared.sample, prepared.device))
        problems = [layer.problem(shapes) for layer in layers]
        # Of those in branches at the first batch: more than in one sample, and known.
        problems += [one.problems[0] for one in self._measured if one.segment.path]
        if sum(problem.operations for problem in problems) > _TRUTH_OPERATIONS:
            return None
        names = [str(value.name) for value in prepared.original.graph.outputs]
        try:
            return named_arrays(names, evaluate(prepared.original, prepared.sample).outputs)
        except (ConvswapError, ValueError, IndexError):
            return None

    @functools.cached_property
    def session(self) -> onnxruntime.InferenceSession:
        """The model as it was; while it is made, it takes several times the memory of its weights."""
        return make_session(self.prepared.original, DEFAULT, self.prepared.device)

    def swapped(
        self, choices: Mapping[str, NodeChoice]
    ) -> tuple[SwapResult, Sequence[onnxruntime.InferenceSession]]:
        """Return the model with Convs swapped as `choices` say, and sessions of the original and of that."""
        # One after the other, and before there are weights that something was folded into.
        _, default = self.truth, self.session
        optimized, swapping = swapped_model(self.prepared.original, choices, NOT_TAKEN)
        return swapping, (default, make_session(optimized, CONVSWAP, self.prepared.device))

    def held(
        self, sessions: Sequence[onnxruntime.InferenceSession], taken: Sequence[Measured]
    ) -> tuple[dict[str, float], str, bool]:
        """Return what `_held` finds of the answers of both `sessions`, the second with the Convs `taken`."""
        sample = self.prepared.sample
        default, ours = (run_named(session, sample) for session in sessions)
        tolerance = _tolerance(taken, self.prepared.device)
        return _held(self.truth, default, ours, tolerance, lambda: run_named(sessions[0], sample))


def _run_whole(original: _Original, taken: Sequence[Measured], pairs: Sequence[MeasuredPair] = ()) -> Whole:
    prepared, device = original.prepared, original.prepared.device
    choices = {one.segment.name: one.choice for one in taken}
    for pair in pairs:
        choices |= pair.choices
    swapping, sessions = original.swapped(choices)
    times = []
    for batch, source in prepared.sources.items():
        feeds = on_device(source.first(batch), device)
        # Of two measurements the one in which it gains less: what else runs on the machine may favour a side.
        both = [whole_times(sessions, feeds, device) for _ in range(_REPEATS)]
        default, ours = max(both, key=lambda own: own[1] / own[0])
        times.append(WholeResult(batch, default, ours))
    errors, reference, agree = original.held(sessions, taken)
    convs = {one.segment.name: one for one in taken}
    return Whole(choices, swapping.fused, convs, tuple(pairs), tuple(times), errors, reference, agree)


def _tolerance(taken: Sequence[Measured], device: Device) -> float:
    return max(TOLERANCES[_arithmetic(one, device)] for one in taken)


def _held(
    truth: Arrays | None, default: Arrays, ours: Arrays, tolerance: float, again: Callable[[], Arrays]
) -> tuple[dict[str, float], str, bool]:
    """Return the errors of the outputs, what they are held against, and whether all of them agree.

    They are held against each other and against the `truth`, where there is one. `again` runs the original
    once more. Outputs that have no finite element on either side show nothing; where there are no others the
    answers do not agree, and the errors are NaN.
    """
    if truth is not None and not _look_alike(truth, default):
        # Of what has no such form, or another one there, the original is the judge.
        truth = None
    sides = {"between": (ours, default)}
    if truth is not None:
        # Where the original overflows, ours has to as well.
        right = {name: _where_finite(default[name], values) for name, values in truth.items()}
        sides |= {"default": (default, right), "optimized": (ours, right)}
    names = comparable_names({**default, **ours}, default, ours)
    found = {
        side: {name: apart_by_name(name, values, others).relative for name in names}
        for side, (values, others) in sides.items()
    }
    most = {
        name: tolerance if name in default and is_floating(default[name]) else ELEMENTS_THAT_MAY_DIFFER
        for name in names
    }
    wrong = [
        name
        for name in names
        if not _agrees({side: of_name[name] for side, of_name in found.items()}, most[name])
    ]
    # A detector that finds nothing gives no element; each Conv was held against float64 by itself.
    is_told = bool(names) or not any(values.size for values in default.values())
    agree = is_told and (not wrong or _are_random(wrong, found["between"], most, default, again()))
    # A class or an index that goes to the other of two that tie is no error of the numbers.
    told = [name for name in names if name in default and is_floating(default[name])] or names
    errors = {
        side: max((of_name[name] for name in told), default=math.nan) for side, of_name in found.items()
    }
    return errors, "the original's outputs" if truth is None else "float64", agree


def _are_random(
    names: Sequence[str],
    between: Mapping[str, float],
    most: Mapping[str, float],
    default: Arrays,
    again: Arrays,
) -> bool:
    """Return whether the original does not answer twice alike either, and ours is about as far off."""
    off = {name: apart_by_name(name, again, default).relative for name in names}
    return all(off[name] > most[name] and between[name] <= _NOT_MUCH_FURTHER * off[name] for name in names)


def _look_alike(truth: Arrays, default: Arrays) -> bool:
    return truth.keys() == default.keys() and all(
        values.shape == default[name].shape or values.size == default[name].size == 0
        for name, values in truth.items()
    )


def _where_finite(default: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return `truth`, but for elements that are infinite or NaN in `default`: they are as they are there."""
    if not is_floating(default) or not is_floating(truth) or default.shape != truth.shape:
        return truth
    return np.where(np.isfinite(default), truth, default)


def _arithmetic(one: Measured, device: Device) -> str:
    """Return what the coarser side of a Conv computes in, by its name in TOLERANCES."""
    layer = one.segment.layer
    if layer.type_name in TOLERANCES:
        return layer.type_name
    # On a card the default provider takes TF32 for float32 where it can, whatever ours does.
    return "tf32" if device.name == "cuda" and layer.type_name == "float32" else "ieee"


def _agrees(errors: Mapping[str, float], most: float) -> bool:
    """Return whether an output is the original's, within what its own arithmetic loses."""
    if errors["between"] <= most:
        return True
    if "optimized" not in errors or not math.isfinite(errors["optimized"]):
        return False
    # Each side may be off by its own rounding; ours by no more than the default's.
    return errors["optimized"] <= max(most, _MOST_OF_DEFAULT_ERROR * errors["default"])
