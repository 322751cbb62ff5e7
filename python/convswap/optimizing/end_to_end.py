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
from convswap.optimizing.choice import DEFAULT_WAY, MIN_MEAN_SPEEDUP
from convswap.optimizing.measuring import MeasuredSegment
from convswap.optimizing.pairs import MeasuredPair
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.result import EndToEndResult, gains, mean_speedup
from convswap.optimizing.segments import swapped_model
from convswap.optimizing.trials import end_to_end_times
from convswap.output.tables import error
from convswap.reference.evaluation import evaluate
from convswap.reference.metrics import (
    MAX_DIFFERING_SHARE,
    TOLERANCES,
    comparable_names,
    difference_by_name,
)
from convswap.runtime.device import Device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session, on_device, run_named
from convswap.runtime.values import Arrays, is_floating, named_arrays

# The reason that reports give for a Conv that is not taken.
NOT_TAKEN = "it does not gain here"

# The shares of the Convs that gain alone which are tried in the whole model, those that gain most first. A
# swapped Conv can cost its neighbours time (a blocked layout that they pass on), which only the whole model
# shows.
_SHARES = (1.0, 0.5, 0.25, 0.1)
_REPEATS = 2
# The most multiplications and additions for which the whole model is evaluated in float64: some seconds.
_REFERENCE_OPERATIONS = 20e9
# The most that our error against float64 may be, as a multiple of the default side's.
_MAX_OUTPUT_ERROR_RATIO = 1.25
# Outputs that depend on random numbers: the most that ours may differ, as a multiple of two runs of the
# original.
_MAX_RANDOM_RATIO = 2.0


@dataclass(frozen=True)
class EndToEnd:
    """The model with the Convs in `taken` swapped or fused, against the original; None where none gains.

    `changes` has the Convs that were left because each of them alone changes the answers, and says how.
    """

    taken: Mapping[str, NodeChoice] | None = None
    fused: tuple[Fused, ...] = ()
    convs: Mapping[str, MeasuredSegment] = field(default_factory=dict)  # by name, those in `taken`
    pairs: tuple[MeasuredPair, ...] = ()  # each computed by one node
    times: tuple[EndToEndResult, ...] = ()
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
        """Whether the model is faster in the mean over the batches, and slower at none."""
        return gains(self.times)


def best_end_to_end(
    prepared: Prepared, measured: Sequence[MeasuredSegment], pairs: Sequence[MeasuredPair] = ()
) -> EndToEnd:
    """Return the fastest of several candidates, each with some of the Convs that gain, or lose little, alone.

    The last candidate adds the `pairs` that gain to the best one before. Where the answers of a candidate
    differ, the Convs that change them alone are left out, and the others are tried again.
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
    original: _Original, measured: Sequence[MeasuredSegment], pairs: Sequence[MeasuredPair]
) -> tuple[EndToEnd, EndToEnd | None]:
    """Return the best candidate, and the first one without pairs whose answers differ."""
    prepared = original.prepared
    faster = sorted((one for one in measured if one.way is not DEFAULT_WAY), key=lambda one: -one.saved)
    candidates = [_run_end_to_end(original, taken) for taken in _to_try(prepared, measured, faster)]
    best = _best(candidates)
    if prepared.device.name == "cuda":
        # Where the GPU waits for the host, one node with more fused into it costs the host less than two.
        deepest = {name: one.deepest(prepared.device) for name, one in best.convs.items()}
        if any(deepest[name] is not one for name, one in best.convs.items()):
            candidates.append(_run_end_to_end(original, list(deepest.values())))
            best = _best(candidates)
    differing = next((one for one in candidates if one.differs), None)
    if pairs:
        before = best.taken or {} if best.gains and best.answers_agree else {}
        taken = {*before, *(name for pair in pairs for name in pair.names)}
        convs = {one.segment.name: one for one in measured} | dict(best.convs)
        with_pairs = [convs[name] for name in convs if name in taken]
        best = _best([best, _run_end_to_end(original, with_pairs, pairs)])
    # Where no Conv gains alone, a speedup of the whole model must be more than noise.
    is_faster = faster or best.pairs or (best.times and mean_speedup(best.times) >= MIN_MEAN_SPEEDUP)
    return best if is_faster else EndToEnd(), differing


def _changes(original: _Original, differing: EndToEnd) -> Mapping[str, str]:
    """Return how the answers change for each Conv of `differing` that changes them alone."""
    found = {}
    for name, one in differing.convs.items():
        assert differing.taken is not None
        _, sessions = original.swapped({name: differing.taken[name]})
        errors, _, agree = original.compare_outputs(sessions, [one])
        if not agree:
            off = error(errors.get("optimized", errors["between"]))
            most = _tolerance([one], original.prepared.device)
            found[name] = (
                f"it changes the model's answers: relative L2 error {off}, and the limit is {most:g}"
            )
    return found


def _best(candidates: Sequence[EndToEnd]) -> EndToEnd:
    # A candidate that is slower at a batch, or whose answers differ, is reported only where there is no
    # better one.
    ran = [one for one in candidates if one.times]
    return max(
        ran,
        key=lambda one: (one.gains and one.answers_agree, one.gains, mean_speedup(one.times)),
        default=EndToEnd(),
    )


def _to_try(
    prepared: Prepared, measured: Sequence[MeasuredSegment], faster: Sequence[MeasuredSegment]
) -> Iterator[Sequence[MeasuredSegment]]:
    """Yield the Convs that each candidate takes."""
    if prepared.device.name == "cuda":
        if faster:
            yield faster
        # On CUDA a swapped Conv costs its neighbours nothing, so shares of the Convs need not be tried. But
        # where the GPU waits for the host, our node costs the host less than the default provider's, which a
        # Conv timed alone does not show.
        near = [one for one in measured if one.precision is not None and one.loses_little]
        if len(near) > len(faster):
            yield near
        return
    if not faster:
        return
    counts = dict.fromkeys(max(1, round(share * len(faster))) for share in _SHARES)
    yield from (faster[:count] for count in counts)


class _Original:
    """The original model with its session and reference outputs, each computed once, when first needed."""

    def __init__(self, prepared: Prepared, measured: Sequence[MeasuredSegment]) -> None:
        self.prepared, self._measured = prepared, measured

    @functools.cached_property
    def reference_outputs(self) -> Arrays | None:
        """The outputs in float64; None where they cannot be computed, or not in seconds."""
        prepared = self.prepared
        layers = [one.layer for one in prepared.segments if not one.path]
        shapes = prepared.capture(layers).shapes(on_device(prepared.sample, prepared.device))
        problems = [layer.problem(shapes) for layer in layers]
        # For Convs in branches the shapes of one sample are not known, so these are of the first batch.
        problems += [one.problems[0] for one in self._measured if one.segment.path]
        if sum(problem.operations for problem in problems) > _REFERENCE_OPERATIONS:
            return None
        names = [str(value.name) for value in prepared.original.graph.outputs]
        try:
            return named_arrays(names, evaluate(prepared.original, prepared.sample).outputs)
        except (ConvswapError, ValueError, IndexError):
            return None

    @functools.cached_property
    def session(self) -> onnxruntime.InferenceSession:
        """A session of the original model. Its creation takes several times the memory of the weights."""
        return make_session(self.prepared.original, DEFAULT, self.prepared.device)

    def swapped(
        self, choices: Mapping[str, NodeChoice]
    ) -> tuple[SwapResult, Sequence[onnxruntime.InferenceSession]]:
        """Return the model with Convs swapped as `choices` say, and sessions of the original and of that."""
        # These take much memory, so they come one after the other, before folding makes new weights.
        _, default = self.reference_outputs, self.session
        optimized, swapping = swapped_model(self.prepared.original, choices, NOT_TAKEN)
        return swapping, (default, make_session(optimized, CONVSWAP, self.prepared.device))

    def compare_outputs(
        self, sessions: Sequence[onnxruntime.InferenceSession], taken: Sequence[MeasuredSegment]
    ) -> tuple[dict[str, float], str, bool]:
        """Return `_compare_outputs` for both `sessions`; the second has the Convs `taken` swapped."""
        sample = self.prepared.sample
        default, ours = (run_named(session, sample) for session in sessions)
        tolerance = _tolerance(taken, self.prepared.device)
        return _compare_outputs(
            self.reference_outputs, default, ours, tolerance, lambda: run_named(sessions[0], sample)
        )


def _run_end_to_end(
    original: _Original, taken: Sequence[MeasuredSegment], pairs: Sequence[MeasuredPair] = ()
) -> EndToEnd:
    prepared, device = original.prepared, original.prepared.device
    choices = {one.segment.name: one.choice for one in taken}
    for pair in pairs:
        choices |= pair.choices
    swapping, sessions = original.swapped(choices)
    times = []
    for batch, source in prepared.sources.items():
        feeds = on_device(source.first(batch), device)
        # The smaller speedup of two measurements counts: other work on the machine may favour a side.
        both = [end_to_end_times(sessions, feeds, device) for _ in range(_REPEATS)]
        default, ours = max(both, key=lambda own: own[1] / own[0])
        times.append(EndToEndResult(batch, default, ours))
    errors, reference, agree = original.compare_outputs(sessions, taken)
    convs = {one.segment.name: one for one in taken}
    return EndToEnd(choices, swapping.fused, convs, tuple(pairs), tuple(times), errors, reference, agree)


def _tolerance(taken: Sequence[MeasuredSegment], device: Device) -> float:
    return max(TOLERANCES[_arithmetic(one, device)] for one in taken)


def _compare_outputs(
    reference: Arrays | None, default: Arrays, ours: Arrays, tolerance: float, again: Callable[[], Arrays]
) -> tuple[dict[str, float], str, bool]:
    """Return the errors of the outputs, the name of the reference, and whether all outputs agree.

    They are compared with each other and, where there is one, with the `reference`. `again` runs the original
    once more. Outputs without a finite element on either side show nothing; where there are no others the
    answers do not agree, and the errors are NaN.
    """
    if reference is not None and not _look_alike(reference, default):
        # The reference has other outputs than the model, so the original model is what ours is compared with.
        reference = None
    sides = {"between": (ours, default)}
    if reference is not None:
        # Where the original overflows, ours must overflow too.
        right = {name: _with_non_finite_of(default[name], values) for name, values in reference.items()}
        sides |= {"default": (default, right), "optimized": (ours, right)}
    names = comparable_names({**default, **ours}, default, ours)
    found = {
        side: {name: difference_by_name(name, values, others).relative for name in names}
        for side, (values, others) in sides.items()
    }
    most = {
        name: tolerance if name in default and is_floating(default[name]) else MAX_DIFFERING_SHARE
        for name in names
    }
    wrong = [
        name
        for name in names
        if not _agrees({side: of_name[name] for side, of_name in found.items()}, most[name])
    ]
    # Outputs may be empty, as of a detector that finds nothing: each Conv was compared with float64 alone.
    is_known = bool(names) or not any(values.size for values in default.values())
    agree = is_known and (not wrong or _are_random(wrong, found["between"], most, default, again()))
    # Errors are of floating-point outputs: a class or an index may change where two values tie.
    floating = [name for name in names if name in default and is_floating(default[name])] or names
    errors = {
        side: max((of_name[name] for name in floating), default=math.nan) for side, of_name in found.items()
    }
    return errors, "the original's outputs" if reference is None else "float64", agree


def _are_random(
    names: Sequence[str],
    between: Mapping[str, float],
    most: Mapping[str, float],
    default: Arrays,
    again: Arrays,
) -> bool:
    """Return whether two runs of the original differ too, and ours differs by about as much."""
    off = {name: difference_by_name(name, again, default).relative for name in names}
    return all(off[name] > most[name] and between[name] <= _MAX_RANDOM_RATIO * off[name] for name in names)


def _look_alike(reference: Arrays, default: Arrays) -> bool:
    return reference.keys() == default.keys() and all(
        values.shape == default[name].shape or values.size == default[name].size == 0
        for name, values in reference.items()
    )


def _with_non_finite_of(default: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return `reference` with the elements replaced that are infinite or NaN in `default`."""
    if not is_floating(default) or not is_floating(reference) or default.shape != reference.shape:
        return reference
    return np.where(np.isfinite(default), reference, default)


def _arithmetic(one: MeasuredSegment, device: Device) -> str:
    """Return the key of TOLERANCES for the coarser side of a Conv."""
    layer = one.segment.layer
    if layer.type_name in TOLERANCES:
        return layer.type_name
    # On a card the default provider computes float32 in TF32 where it can, whatever precision ours has.
    return "tf32" if device.name == "cuda" and layer.type_name == "float32" else "ieee"


def _agrees(errors: Mapping[str, float], most: float) -> bool:
    """Return whether an output agrees with the original's, within the tolerance of its arithmetic."""
    if errors["between"] <= most:
        return True
    if "optimized" not in errors or not math.isfinite(errors["optimized"]):
        return False
    # Each side may differ from float64 by its rounding, and ours by little more than the default.
    return errors["optimized"] <= max(most, _MAX_OUTPUT_ERROR_RATIO * errors["default"])
