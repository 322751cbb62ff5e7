"""The whole model with some of its Convs swapped or fused, compared with the original: times and outputs."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnxruntime

from convswap.errors import ConvswapError
from convswap.graph.external_weights import SplitModel
from convswap.graph.fusion.fuse import Fused
from convswap.graph.layout.choose import LayoutChange
from convswap.graph.swap import DEFAULT_LAYOUT, QUANTISED_LAYOUT, NodeChoice, SwapResult
from convswap.optimizing.choice import MIN_MEAN_SPEEDUP
from convswap.optimizing.measuring import MeasuredSegment
from convswap.optimizing.pairs import MeasuredPair
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.result import WholeModelTimes, is_faster, mean_speedup
from convswap.optimizing.segments import Segment, swapped_model
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

# The reason that reports give for a Conv that is not selected.
NOT_SELECTED = "it does not gain here"

# On the CPU the whole model is tried with these shares of the Convs that are faster as a segment, those that
# save most time first. A swapped Conv can slow its neighbours (it breaks a blocked layout that they pass on),
# which only the whole model shows.
_SHARES = (1.0, 0.5, 0.25, 0.1)
_REPEATS = 2
# The maximum of multiplications and additions for which the whole model is evaluated in float64: seconds.
_REFERENCE_OPERATIONS = 20e9
# The maximum error of the optimized model against float64, as a multiple of the original's.
_MAX_OUTPUT_ERROR_RATIO = 1.25
# The same, and the tolerance, with QuantConv nodes. A number between two steps goes to either on each side,
# and later codes follow it, so that the errors of both sides differ by chance.
_MAX_QUANTISED_ERROR_RATIO = 2.0
_QUANTISED_TOLERANCE = TOLERANCES["float16"]
# The maximum difference of outputs that depend on random numbers, as a multiple of the difference between two
# runs of the original.
_MAX_RANDOM_RATIO = 2.0


@dataclass(frozen=True)
class Candidate:
    """The model with the Convs in `choices` swapped or fused, compared with the original.

    `choices` is None if no selection of Convs was tried. It is also None if no Conv is faster as a segment,
    the best candidate has no pair, and the model gains less than 2 %. `wrong_convs` has the Convs that were
    left as they are because each changes the outputs too much by itself, with a sentence that says how much.
    `layout` has the tensors between Convs that are NHWC, if any are. `layout_option` is the layout that was
    asked for.
    """

    choices: Mapping[str, NodeChoice] | None = None
    fused: tuple[Fused, ...] = ()
    convs: Mapping[str, MeasuredSegment] = field(default_factory=dict)  # by name, those in `choices`
    pairs: tuple[MeasuredPair, ...] = ()  # each computed by one node
    times: tuple[WholeModelTimes, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""
    outputs_agree: bool = False
    wrong_convs: Mapping[str, str] = field(default_factory=dict)
    layout: LayoutChange | None = None
    layout_option: str = DEFAULT_LAYOUT
    quantised: tuple[Fused, ...] = ()  # the QuantConv nodes

    @property
    def differs(self) -> bool:
        """Whether outputs were compared and differ."""
        return bool(self.errors) and not self.outputs_agree and not math.isnan(self.errors["between"])

    @property
    def is_faster(self) -> bool:
        """Whether the model is faster in the mean over the batches, and more than 2 % slower at none."""
        return is_faster(self.times)


def best_end_to_end(
    prepared: Prepared, measured: Sequence[MeasuredSegment], pairs: Sequence[MeasuredPair] = ()
) -> Candidate:
    """Return the fastest candidate whose outputs agree; a candidate has a selection of the Convs swapped.

    If no candidate is faster with outputs that agree, return the best of the others; see `_best`. Selections
    are made of the Convs that are faster as a segment or, on a GPU, nearly as fast. On a GPU a further
    candidate fuses more nodes into the Convs of the best. The next candidate adds the `pairs` to the best
    candidate before, or to the original if that is not faster or its outputs differ. The last ones, on a GPU,
    make tensors between Convs NHWC: with the Convs of the best candidate, and with all Convs that are as
    accurate as the default provider's, each fused as far as possible, because a Conv alone is timed in NCHW.
    The last candidate has NHWC also where it is not estimated to gain.
    A model with quantised Convs is also tried with QuantConv nodes in NHWC, as `swap --fuse` makes them.

    If the outputs of a candidate without pairs differ, the Convs of the first such candidate that change them
    by themselves are left out, and the others are tried again. If no Conv is faster as a segment, and the
    best candidate has no pair and gains less than 2 %, return a `Candidate` without choices.
    """
    original = _Original(prepared, measured)
    best, differing = _best_of(original, measured, pairs)
    wrong_convs = {} if differing is None else _wrong_convs(original, differing)
    if not wrong_convs:
        return best
    others = [conv for conv in measured if conv.segment.name not in wrong_convs]
    pairs = [pair for pair in pairs if wrong_convs.keys().isdisjoint(pair.names)]
    best, _ = _best_of(original, others, pairs)
    return replace(best, wrong_convs=wrong_convs)


def _best_of(
    original: _Original, measured: Sequence[MeasuredSegment], pairs: Sequence[MeasuredPair]
) -> tuple[Candidate, Candidate | None]:
    """Return the best candidate, and the first candidate without pairs whose outputs differ."""
    prepared = original.prepared
    faster = sorted((conv for conv in measured if conv.is_faster), key=lambda conv: -conv.saved_ms)
    candidates = [_run_end_to_end(original, convs) for convs in _selections(prepared, measured, faster)]
    best = _best(candidates)
    if prepared.device.name == "cuda":
        # If the GPU waits for the host, one node with more fused into it costs the host less than two nodes.
        deepest = {name: conv.fused_deepest(prepared.device) for name, conv in best.convs.items()}
        if any(deepest[name] is not conv for name, conv in best.convs.items()):
            candidates.append(_run_end_to_end(original, list(deepest.values())))
            best = _best(candidates)
    differing = next((candidate for candidate in candidates if candidate.differs), None)
    if pairs:
        before = best.choices or {} if best.is_faster and best.outputs_agree else {}
        selected = {*before, *(name for pair in pairs for name in pair.names)}
        convs = {conv.segment.name: conv for conv in measured} | dict(best.convs)
        with_pairs = [convs[name] for name in convs if name in selected]
        best = _best([best, _run_end_to_end(original, with_pairs, pairs)])
    if prepared.device.name == "cuda":
        accurate = [conv.fused_as_far_as_possible() for conv in measured if conv.precision is not None]
        of_best = list(best.convs.values())
        in_nhwc = (of_best, best.pairs, "auto"), (accurate, (), "auto"), (accurate, (), "nhwc")
        for tried, its_pairs, layout in in_nhwc:
            if tried:
                best = _best([best, _run_end_to_end(original, tried, its_pairs, layout)])
    if prepared.quantised:
        others = best.convs.values() if best.is_faster and best.outputs_agree else ()
        best = _best([best, _run_quantised(original, list(others))])
    # If no Conv is faster as a segment, a speedup of the whole model must be more than noise.
    is_significant = faster or best.pairs or (best.times and mean_speedup(best.times) >= MIN_MEAN_SPEEDUP)
    return best if is_significant else Candidate(), differing


def swapped_elsewhere(prepared: Prepared, swapped: SplitModel, *, quantised: bool) -> Candidate:
    """Return times and errors of a model that was swapped on another device, perhaps with QuantConv nodes."""
    original = _Original(prepared, ())
    # The reference takes much memory, so it is made before the sessions.
    _, default = original.reference_outputs, original.session
    sessions = default, make_session(swapped, CONVSWAP, prepared.device)
    errors, reference, agree = original.compare_outputs(sessions, prepared.segments, quantised=quantised)
    times = original.times(sessions)
    return Candidate(times=times, errors=errors, reference=reference, outputs_agree=agree)


def _wrong_convs(original: _Original, differing: Candidate) -> Mapping[str, str]:
    """Return a sentence for each Conv of `differing` that changes the outputs too much by itself."""
    sentences = {}
    for name, conv in differing.convs.items():
        assert differing.choices is not None
        _, sessions = original.swap_and_open({name: differing.choices[name]})
        errors, _, agree = original.compare_outputs(sessions, [conv.segment])
        if not agree:
            difference = error(errors.get("optimized", errors["between"]))
            tolerance = _tolerance([conv.segment], original.prepared.device)
            sentences[name] = (
                f"it changes the model's outputs: relative L2 error {difference} (tolerance {tolerance:g})"
            )
    return sentences


def _best(candidates: Sequence[Candidate]) -> Candidate:
    # A candidate that is not faster, or whose outputs differ, is reported only if no candidate is better.
    return max(
        (candidate for candidate in candidates if candidate.times),
        key=lambda candidate: (
            candidate.is_faster and candidate.outputs_agree,
            candidate.is_faster,
            mean_speedup(candidate.times),
        ),
        default=Candidate(),
    )


def _selections(
    prepared: Prepared, measured: Sequence[MeasuredSegment], faster: Sequence[MeasuredSegment]
) -> Iterator[Sequence[MeasuredSegment]]:
    """Yield the Convs that each candidate swaps."""
    if prepared.device.name == "cuda":
        if faster:
            yield faster
        # On CUDA a swapped Conv does not slow its neighbours, so shares of the Convs need not be tried. But
        # if the GPU waits for the host, convswap's node costs the host less than the default provider's,
        # which the time of a segment does not show.
        near = [conv for conv in measured if conv.precision is not None and conv.is_nearly_as_fast]
        if len(near) > len(faster):
            yield near
        return
    if not faster:
        return
    counts = dict.fromkeys(max(1, round(share * len(faster))) for share in _SHARES)
    yield from (faster[:count] for count in counts)


class _Original:
    """The original model with its session and reference outputs, each made once, when first needed."""

    def __init__(self, prepared: Prepared, measured: Sequence[MeasuredSegment]) -> None:
        self.prepared, self._measured = prepared, measured

    @functools.cached_property
    def reference_outputs(self) -> Arrays | None:
        """The outputs in float64; None if they cannot be computed, or would take more than seconds."""
        prepared = self.prepared
        layers = [segment.layer for segment in prepared.segments if not segment.path]
        shapes = prepared.capture(layers).shapes(on_device(prepared.sample, prepared.device))
        problems = [layer.problem(shapes) for layer in layers]
        # For Convs in branches the shapes of one sample are not known, so problems of the first batch count.
        problems += [conv.problems[0] for conv in self._measured if conv.segment.path]
        if sum(problem.operations for problem in problems) > _REFERENCE_OPERATIONS:
            return None
        names = [str(value.name) for value in prepared.original.graph.outputs]
        try:
            return named_arrays(names, evaluate(prepared.original, prepared.sample).outputs)
        except (ConvswapError, ValueError, IndexError):
            return None

    @functools.cached_property
    def session(self) -> onnxruntime.InferenceSession:
        """A session of the original model, whose creation takes several times the memory of the weights."""
        return make_session(self.prepared.original, DEFAULT, self.prepared.device)

    def swap_and_open(
        self, choices: Mapping[str, NodeChoice], layout: str = DEFAULT_LAYOUT, *, quantise: bool = False
    ) -> tuple[SwapResult, Sequence[onnxruntime.InferenceSession]]:
        """Return the model swapped by `choices`, and sessions of the original and the swapped model.

        There are no sessions if another `layout` than NCHW was asked for and changes nothing, unless
        quantised Convs became QuantConv.
        """
        # The reference and the session take much memory, so each is made before folding makes new weights.
        _, default = self.reference_outputs, self.session
        optimized, swapping = swapped_model(
            self.prepared.original, choices, NOT_SELECTED, layout, max(self.prepared.sources), quantise
        )
        if (
            layout != DEFAULT_LAYOUT
            and not quantise
            and (swapping.layout is None or not swapping.layout.nodes)
        ):
            return swapping, ()
        return swapping, (default, make_session(optimized, CONVSWAP, self.prepared.device))

    def compare_outputs(
        self,
        sessions: Sequence[onnxruntime.InferenceSession],
        swapped: Sequence[Segment],
        *,
        quantised: bool = False,
    ) -> tuple[dict[str, float], str, bool]:
        """Return `_compare_outputs` for both `sessions`; in the second the Convs `swapped` are swapped.

        With `quantised` it also has QuantConv nodes.
        """
        sample = self.prepared.sample
        default, optimized = (run_named(session, sample) for session in sessions)
        tolerance = _QUANTISED_TOLERANCE if quantised else _tolerance(swapped, self.prepared.device)
        return _compare_outputs(
            self.reference_outputs,
            default,
            optimized,
            tolerance,
            lambda: run_named(sessions[0], sample),
            _MAX_QUANTISED_ERROR_RATIO if quantised else _MAX_OUTPUT_ERROR_RATIO,
        )

    def times(self, sessions: Sequence[onnxruntime.InferenceSession]) -> tuple[WholeModelTimes, ...]:
        """Return the times of both `sessions` at every batch."""
        device, times = self.prepared.device, []
        for batch, source in self.prepared.sources.items():
            feeds = on_device(source.first(batch), device)
            # The smaller speedup of two measurements counts, since other work on the machine may favour a
            # side.
            repeats = [end_to_end_times(sessions, feeds, device) for _ in range(_REPEATS)]
            default, optimized = max(repeats, key=lambda times: times[1] / times[0])
            times.append(WholeModelTimes(batch, default, optimized))
        return tuple(times)


def _run_end_to_end(
    original: _Original,
    convs: Sequence[MeasuredSegment],
    pairs: Sequence[MeasuredPair] = (),
    layout: str = DEFAULT_LAYOUT,
) -> Candidate:
    """Return the candidate that swaps `convs` and `pairs`; one without times if `layout` changes nothing."""
    choices = {conv.segment.name: conv.choice for conv in convs}
    for pair in pairs:
        choices |= pair.choices
    swapping, sessions = original.swap_and_open(choices, layout)
    if not sessions:
        return Candidate()
    times = original.times(sessions)
    errors, reference, agree = original.compare_outputs(sessions, [conv.segment for conv in convs])
    by_name = {conv.segment.name: conv for conv in convs}
    return Candidate(
        choices=choices,
        fused=swapping.fused,
        convs=by_name,
        pairs=tuple(pairs),
        times=times,
        errors=errors,
        reference=reference,
        outputs_agree=agree,
        layout=swapping.layout,
        layout_option=layout,
    )


def _run_quantised(original: _Original, convs: Sequence[MeasuredSegment]) -> Candidate:
    """Return the candidate with QuantConv nodes in NHWC, and with the Convs of `convs` that remain."""
    quantised = original.prepared.quantised
    names = {record.node for record in quantised}
    others = [conv for conv in convs if conv.segment.name not in names]
    choices = {conv.segment.name: conv.choice for conv in others}
    swapping, sessions = original.swap_and_open(choices, QUANTISED_LAYOUT, quantise=True)
    times = original.times(sessions)
    segments = [conv.segment for conv in others]
    errors, reference, agree = original.compare_outputs(sessions, segments, quantised=True)
    return Candidate(
        choices=choices,
        fused=swapping.fused,
        convs={conv.segment.name: conv for conv in others},
        times=times,
        errors=errors,
        reference=reference,
        outputs_agree=agree,
        layout=swapping.layout,
        layout_option=QUANTISED_LAYOUT,
        quantised=quantised,
    )


def _tolerance(segments: Sequence[Segment], device: Device) -> float:
    return max(TOLERANCES[_arithmetic(segment, device)] for segment in segments)


def _compare_outputs(
    reference: Arrays | None,
    default: Arrays,
    optimized: Arrays,
    tolerance: float,
    run_again: Callable[[], Arrays],
    max_ratio: float = _MAX_OUTPUT_ERROR_RATIO,
) -> tuple[dict[str, float], str, bool]:
    """Return the errors of the outputs, the name of the reference, and whether all outputs agree.

    The outputs are compared with each other and, if it is given, with the `reference`. `run_again` runs the
    original once more. Outputs without a finite element on either side are left out. If no output is left,
    the errors are NaN, and the outputs agree only if all are empty.
    """
    if reference is not None and not _same_outputs(reference, default):
        # A reference with other names or shapes is useless: the original's outputs are the reference then.
        reference = None
    sides = {"between": (optimized, default)}
    if reference is not None:
        # Elements that overflow in the original must overflow in the optimized model too.
        expected = {name: _with_non_finite_of(default[name], values) for name, values in reference.items()}
        sides |= {"default": (default, expected), "optimized": (optimized, expected)}
    names = comparable_names({**default, **optimized}, default, optimized)
    differences = {
        side: {name: difference_by_name(name, values, others).relative for name in names}
        for side, (values, others) in sides.items()
    }
    limits = {
        name: tolerance if name in default and is_floating(default[name]) else MAX_DIFFERING_SHARE
        for name in names
    }
    wrong = [
        name
        for name in names
        if not _agrees(
            {side: by_name[name] for side, by_name in differences.items()}, limits[name], max_ratio
        )
    ]
    # Empty outputs agree, such as those of a detector that detects nothing.
    is_known = bool(names) or not any(values.size for values in default.values())
    agree = is_known and (
        not wrong or _are_random(wrong, differences["between"], limits, default, run_again())
    )
    # Errors are of floating-point outputs: a class or an index may change if two values tie.
    floating = [name for name in names if name in default and is_floating(default[name])] or names
    errors = {
        side: max((by_name[name] for name in floating), default=math.nan)
        for side, by_name in differences.items()
    }
    return errors, "the original's outputs" if reference is None else "float64", agree


def _are_random(
    names: Sequence[str],
    between: Mapping[str, float],
    limits: Mapping[str, float],
    default: Arrays,
    second_run: Arrays,
) -> bool:
    """Return whether two runs of the original differ too, by about as much as the optimized model."""
    changes = {name: difference_by_name(name, second_run, default).relative for name in names}
    return all(
        changes[name] > limits[name] and between[name] <= _MAX_RANDOM_RATIO * changes[name] for name in names
    )


def _same_outputs(reference: Arrays, default: Arrays) -> bool:
    return reference.keys() == default.keys() and all(
        values.shape == default[name].shape or values.size == default[name].size == 0
        for name, values in reference.items()
    )


def _with_non_finite_of(default: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Return `reference` with the elements replaced that are infinite or NaN in `default`."""
    if not is_floating(default) or not is_floating(reference) or default.shape != reference.shape:
        return reference
    return np.where(np.isfinite(default), reference, default)


def _arithmetic(segment: Segment, device: Device) -> str:
    """Return the key of TOLERANCES for the coarser arithmetic of the two sides of a Conv."""
    layer = segment.layer
    if layer.type_name in TOLERANCES:
        return layer.type_name
    # On a card the default provider computes float32 in TF32 if it can, whatever precision convswap uses.
    return "tf32" if device.name == "cuda" and layer.type_name == "float32" else "ieee"


def _agrees(errors: Mapping[str, float], limit: float, max_ratio: float) -> bool:
    """Return whether an output agrees with the original's.

    It does if it differs from the original's by at most the tolerance of its arithmetic, or if its error
    against float64 is at most that tolerance or `max_ratio` times the original's error.
    """
    if errors["between"] <= limit:
        return True
    if "optimized" not in errors or not math.isfinite(errors["optimized"]):
        return False
    # Each side may differ from float64 by its rounding, the optimized model by little more than the original.
    return errors["optimized"] <= max(limit, max_ratio * errors["default"])
