"""The whole model with some of its Convs swapped or fused, against the original: times and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from convswap.errors import ConvswapError
from convswap.graph.swap import NodeChoice, SwapResult, swap_chosen
from convswap.optimizing.choice import DEFAULT_WAY, LEAST_GAIN, speedup
from convswap.optimizing.measuring import Measured
from convswap.optimizing.pairs import MeasuredPair
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.result import WholeResult, gains
from convswap.optimizing.trials import whole_times
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session, on_device, run
from convswap.truth.closeness import ELEMENTS_THAT_MAY_DIFFER, TOLERANCES, apart, worst_output
from convswap.truth.evaluation import evaluate

# How many of the Convs that gain are taken, those that gain most first, until the whole model gains: what a
# Conv loses its neighbours (a blocked layout that they pass on) shows only there.
_SHARES = (1.0, 0.5, 0.25, 0.1)
_REPEATS = 2
# The float64 truth of the whole model is had where it takes some seconds.
_TRUTH_OPERATIONS = 20e9
# Both sides round, and not alike: ours may be off by so much more than the default is.
_MOST_OF_DEFAULT_ERROR = 1.25


@dataclass(frozen=True)
class Whole:
    """The model with the Convs in `taken` swapped or fused, against the original; None where none gains."""

    swapping: SwapResult | None = None
    taken: Mapping[str, NodeChoice] | None = None
    convs: Mapping[str, Measured] = field(default_factory=dict)  # what was taken, by their names
    pairs: tuple[MeasuredPair, ...] = ()  # of which one node computes both Convs
    times: tuple[WholeResult, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""
    answers_agree: bool = False

    @property
    def gains(self) -> bool:
        """Whether the model is faster in the mean over the batches, and at none slower."""
        return gains(self.times)


def best_whole(prepared: Prepared, measured: Sequence[Measured], pairs: Sequence[MeasuredPair] = ()) -> Whole:
    """Return the model that gains most of those that take some of the Convs which gain, or lose little.

    The last to be tried has, beside the Convs of the best before, the `pairs` that gain.
    """
    gaining = sorted((one for one in measured if one.way is not DEFAULT_WAY), key=lambda one: -one.saved)
    wholes = [_run_whole(prepared, measured, taken) for taken in _to_try(prepared, measured, gaining)]
    best = _best(wholes)
    if prepared.device.name == "cuda":
        # The host that a model waits for has less to do for one node that takes in more than for two.
        deepest = {name: one.deepest(prepared.device) for name, one in best.convs.items()}
        if any(deepest[name] is not one for name, one in best.convs.items()):
            best = _best([best, _run_whole(prepared, measured, list(deepest.values()))])
    if pairs:
        before = best.taken or {} if best.gains and best.answers_agree else {}
        taken = {*before, *(name for pair in pairs for name in pair.names)}
        convs = {one.segment.name: one for one in measured} | dict(best.convs)
        with_pairs = [convs[name] for name in convs if name in taken]
        best = _best([best, _run_whole(prepared, measured, with_pairs, pairs)])
    # Where no Conv gains alone, the whole must by more than the noise of two equal models.
    return best if gaining or best.pairs or (best.times and _mean(best) >= LEAST_GAIN) else Whole()


def _best(wholes: Sequence[Whole]) -> Whole:
    # One that loses at a batch, or whose answers differ, is told of where none is better.
    ran = [one for one in wholes if one.times]
    return max(ran, key=lambda one: (one.gains and one.answers_agree, one.gains, _mean(one)), default=Whole())


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


def _mean(whole: Whole) -> float:
    return speedup([one.default_ms for one in whole.times], [one.optimized_ms for one in whole.times])


def _run_whole(
    prepared: Prepared,
    measured: Sequence[Measured],
    taken: Sequence[Measured],
    pairs: Sequence[MeasuredPair] = (),
) -> Whole:
    device = prepared.device
    choices = {one.segment.name: one.choice for one in taken}
    for pair in pairs:
        choices |= pair.choices
    swapping = swap_chosen(prepared.subject.plain, choices, "it does not gain here")
    optimized = swapping.to_proto()
    sessions = [
        make_session(prepared.subject.plain, DEFAULT, device),
        make_session(optimized, CONVSWAP, device),
    ]
    times = []
    for batch, source in prepared.sources.items():
        feeds = on_device(source.first(batch), device)
        # Of two measurements the one in which it gains less: what else runs on the machine may favour a side.
        both = [whole_times(sessions, feeds, device) for _ in range(_REPEATS)]
        default, ours = max(both, key=lambda own: own[1] / own[0])
        times.append(WholeResult(batch, default, ours))
    answers = [run(session, next(iter(prepared.sources.values())).first(1)) for session in sessions]
    errors, reference = _errors(prepared, measured, *answers)
    tolerance = max(TOLERANCES[_arithmetic(one, device)] for one in taken)
    if not any(values.dtype.kind == "f" for values in answers[0]):
        tolerance = ELEMENTS_THAT_MAY_DIFFER
    agree = _agree(errors, tolerance)
    convs = {one.segment.name: one for one in taken}
    return Whole(swapping, choices, convs, tuple(pairs), tuple(times), errors, reference, agree)


def _errors(
    prepared: Prepared,
    measured: Sequence[Measured],
    default: Sequence[np.ndarray],
    ours: Sequence[np.ndarray],
) -> tuple[dict[str, float], str]:
    """Return the errors of the outputs, between the sides and, where it takes seconds, against float64."""
    feeds = next(iter(prepared.sources.values())).first(1)
    errors = {"between": worst_output(_apart, ours, default)}
    layers = [one.layer for one in prepared.segments if not one.path]
    capture = Capture(prepared.swapped, layers, prepared.device)
    shapes = capture.shapes(on_device(feeds, prepared.device))
    problems = [layer.problem({name: shapes[name] for name in layer.fed}) for layer in layers]
    # Of those in branches at the first batch: more than in one sample, and known.
    problems += [one.problems[0] for one in measured if one.segment.path]
    operations = sum(problem.operations for problem in problems)
    if operations > _TRUTH_OPERATIONS:
        return errors, "the original's outputs"
    try:
        truth = [np.asarray(values) for values in evaluate(prepared.subject.plain, feeds).outputs]
        errors["default"] = worst_output(_apart, default, truth)
        errors["optimized"] = worst_output(_apart, ours, truth)
    except (ConvswapError, ValueError, IndexError):
        # A model without a float64 form is judged by the original.
        return {"between": errors["between"]}, "the original's outputs"
    return errors, "float64"


def _apart(values: np.ndarray, others: np.ndarray) -> float:
    # Of whole numbers the share that differs.
    return apart(values, others).relative


def _arithmetic(one: Measured, device: Device) -> str:
    """Return what the coarser side of a Conv computes in, by its name in TOLERANCES."""
    layer = one.segment.layer
    if layer.type_name in TOLERANCES:
        return layer.type_name
    # On a card the default provider takes TF32 for float32 where it can, whatever ours does.
    return "tf32" if device.name == "cuda" and layer.type_name == "float32" else "ieee"


def _agree(errors: Mapping[str, float], tolerance: float) -> bool:
    """Return whether the outputs are the original's, within what its own arithmetic loses."""
    if errors["between"] <= tolerance:
        return True
    # Each side may be off by its own rounding; ours by no more than the default's.
    return "optimized" in errors and errors["optimized"] <= max(
        tolerance, _MOST_OF_DEFAULT_ERROR * errors["default"]
    )
