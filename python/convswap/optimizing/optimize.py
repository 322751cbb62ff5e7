"""Optimise a model for this device: swap or fuse the Convs that gain, and prove it on the whole model."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from convswap import _native
from convswap.errors import ConvswapError, unknown_name
from convswap.graph.fixed_inputs import with_fixed_inputs
from convswap.graph.fusion.fuse import Fused, Stage
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import PRECISIONS, Left, NodeChoice, SwapResult, swap, swap_chosen
from convswap.inputs.feeds import Source, declared_inputs
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape, shape_notes, telling_shapes
from convswap.inputs.subject import Subject, open_subject, source_of
from convswap.optimizing.choice import (
    DEFAULT_WAY,
    LEAST_SPEEDUP,
    Way,
    best_of_ours,
    fastest,
    is_as_accurate,
    speedup,
)
from convswap.optimizing.result import NodeResult, Optimization, WholeResult
from convswap.optimizing.segments import Segment
from convswap.optimizing.trials import errors_of, times_of, whole_times
from convswap.progress import Progress, silent
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.layers import Capture, conv_layers
from convswap.runtime.sessions import CONVSWAP, DEFAULT, make_session, on_device, run
from convswap.truth.closeness import TOLERANCES, relative_l2_error, worst_output
from convswap.truth.evaluation import evaluate

Model = str | os.PathLike[str] | onnx.ModelProto

# "match": for every Conv a precision that is as accurate as the default provider is on that Conv.
MATCH = "match"
# How many of the Convs that gain are taken, those that gain most first, until the whole model gains: what a
# Conv loses its neighbours (a blocked layout that they pass on) shows only there.
_SHARES = (1.0, 0.5, 0.25, 0.1)
# The float64 truth of the whole model is had where it takes some seconds.
_TRUTH_OPERATIONS = 20e9


@dataclass(frozen=True)
class OptimizeOptions:
    """The arguments of `convswap.optimize` beside the model and the file; it tells what each means."""

    batches: tuple[int, ...] | None = None
    device: str | None = None
    precision: str = MATCH
    input_shape: InputShape | None = None
    inputs: Given | None = None

    def check(self) -> None:
        """Raise ConvswapError for what can be refused without a model or a device."""
        if self.precision not in (MATCH, *PRECISIONS):
            raise unknown_name("precision", self.precision, (MATCH, *PRECISIONS))
        if self.batches is not None and (not self.batches or len(set(self.batches)) < len(self.batches)):
            raise ConvswapError(
                f"batches were given as {list(self.batches)}; expected each once, and one at least"
            )


def optimize(
    model: Model,
    output: str | os.PathLike[str] | None = None,
    *,
    batches: Sequence[int] | None = None,
    device: str | None = None,
    precision: str = MATCH,
    input_shape: InputShape | None = None,
    inputs: Given | None = None,
    progress: Progress | None = None,
) -> Optimization:
    """Measure every Conv of `model` both ways on this device; save it with those swapped or fused that gain.

    Each Conv is timed with all that it can take in, as the default provider computes them, swapped, and fused
    up to each stage, with the input that it really gets, in turn. The fastest is taken where it gains more
    than the noise, and at no batch loses. Then the whole model is timed against the original, and the outputs
    are compared: only a model that gains and whose answers agree is written.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        output: the file to write; None for none.
        batches: how many samples runs take; by default what `compare` takes. With several, what counts is the
            geometric mean.
        device: "cuda" or "cpu"; by default the GPU where there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "match" for one that is as accurate on each Conv as the default provider is there; "tf32"
            or "ieee" for one for all.
        input_shape: the shape of one sample where the model leaves it open, as for `compare`.
        inputs: what the model is fed, as for `compare`.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read, swapped or run, the
            device cannot be used, or the file cannot be written.
    """
    options = OptimizeOptions(
        None if batches is None else tuple(batches), device, precision, input_shape, inputs
    )
    return optimize_with(model, output, options, progress)


def optimize_with(
    model: Model,
    output: str | os.PathLike[str] | None,
    options: OptimizeOptions,
    progress: Progress | None = None,
) -> Optimization:
    """Do what `optimize` does, with its errors."""
    options.check()
    report = progress or silent
    device = choose_device(options.device)
    report("reading the model")
    prepared = _prepared(model, options, device)
    with telling_shapes(*prepared.shaped):
        measured = _measured(prepared, report)
        report("running the whole model")
        whole = _whole(prepared, measured)
    written = _save(whole, output, prepared)
    return Optimization(
        model=prepared.subject.title,
        device=device,
        environment=environment(device),
        options=_told_options(prepared),
        nodes=tuple(_node_results(prepared, measured, whole)),
        whole=whole.times,
        errors=whole.errors,
        reference=whole.reference,
        answers_agree=whole.answers_agree,
        written=written,
        notes=tuple(_notes(prepared, measured, whole)),
    )


@dataclass(frozen=True)
class _Prepared:
    """The model with all Convs fused as far as they go, and its data at every batch."""

    options: OptimizeOptions
    device: Device
    subject: Subject
    sources: Mapping[int, Source]  # by batch
    swapping: SwapResult
    swapped: onnx.ModelProto
    segments: tuple[Segment, ...]

    @property
    def shaped(self) -> tuple[Any, ...]:
        """What notes and errors about shapes that were made up are told of."""
        source = next(iter(self.sources.values()))
        return declared_inputs(self.subject.model), source.inputs, source.batch


@dataclass(frozen=True)
class _Measured:
    """What was measured of one Conv: the milliseconds of every way at each batch, and the errors.

    `precision` is that of our ways; None where no precision of ours is as accurate as the default provider.
    """

    segment: Segment
    precision: str | None
    errors: Mapping[str, float] | None
    times: Mapping[Way, tuple[float, ...]]
    algorithm: str

    @property
    def way(self) -> Way:
        """The way that gains most, by itself."""
        return DEFAULT_WAY if self.precision is None else fastest(self.times)

    @property
    def saved(self) -> float:
        """The milliseconds that it saves, over all batches."""
        return sum(self.times[DEFAULT_WAY]) - sum(self.times[self.way])


@dataclass(frozen=True)
class _Whole:
    """The model with the Convs in `taken` swapped or fused, against the original; None where none gains."""

    swapping: SwapResult | None = None
    taken: Mapping[str, NodeChoice] | None = None
    times: tuple[WholeResult, ...] = ()
    errors: Mapping[str, float] = field(default_factory=dict)
    reference: str = ""
    answers_agree: bool = False

    @property
    def gains(self) -> bool:
        """Whether the model is faster, and at no batch slower."""
        ratios = [one.speedup for one in self.times]
        return bool(ratios) and min(ratios) >= LEAST_SPEEDUP and float(np.prod(ratios)) > 1


def _prepared(model: Model, options: OptimizeOptions, device: Device) -> _Prepared:
    subject = open_subject(model, None, options.input_shape, options.inputs)
    if subject.swapped_before:
        raise ConvswapError(
            f"'{subject.title}' has {subject.swapped_before} Conv swapped already; give the model as it was"
        )
    sources = [source_of(subject, batch, batch, device) for batch in options.batches or (None,)]
    swapping = swap(subject.plain, fuse=True)
    swapped = swapping.to_proto()
    layers = conv_layers(swapped, unfused_model(subject.plain, swapping))
    return _Prepared(
        options=options,
        device=device,
        subject=subject,
        sources={source.batch: source for source in sources},
        swapping=swapping,
        swapped=swapped,
        segments=tuple(Segment(layer) for layer in layers),
    )


def _measured(prepared: _Prepared, report: Progress) -> tuple[_Measured, ...]:
    device = prepared.device
    capture = Capture(prepared.swapped, [segment.layer for segment in prepared.segments], device)
    feeds = {batch: on_device(source.first(batch), device) for batch, source in prepared.sources.items()}
    if device.name == "cuda":
        report("compiling what our ways need")
        _compile_side_by_side(prepared)
    known: dict[tuple[object, ...], _Measured] = {}
    found = []
    start = time.monotonic()
    for number, segment in enumerate(prepared.segments):
        report(_what_is_left(number, len(prepared.segments), time.monotonic() - start))
        inputs = {batch: capture.inputs(segment.layer, fed) for batch, fed in feeds.items()}
        shapes = [{name: tuple(value.shape()) for name, value in own.items()} for own in inputs.values()]
        key = tuple(segment.key(own) for own in shapes)
        if key not in known:
            known[key] = _measure(segment, list(inputs.values()), prepared)
        same = known[key]
        found.append(_Measured(segment, same.precision, same.errors, same.times, same.algorithm))
    return tuple(found)


def _compile_side_by_side(prepared: _Prepared) -> None:
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


def _measure(
    segment: Segment, inputs: Sequence[Mapping[str, onnxruntime.OrtValue]], prepared: _Prepared
) -> _Measured:
    device, asked = prepared.device, prepared.options.precision
    precision, errors = _precision(segment, inputs[0], device, asked)
    by_batch = [times_of(segment, own, precision or "ieee", device) for own in inputs]
    times = {way: tuple(own[way] for own in by_batch) for way in by_batch[0]}
    shapes = {name: tuple(value.shape()) for name, value in inputs[-1].items()}
    algorithm = _native.choose(segment.layer.problem(shapes), device.name, "auto")
    return _Measured(segment, precision, errors, times, algorithm)


def _precision(
    segment: Segment, inputs: Mapping[str, onnxruntime.OrtValue], device: Device, asked: str
) -> tuple[str | None, Mapping[str, float] | None]:
    """Return the precision for our ways, None where none is as accurate, and the errors that tell."""
    if asked != MATCH:
        return asked, None
    if device.name == "cpu" or segment.layer.type_name != "float32":
        # The CPU computes float32 as such on both sides, and other types have one arithmetic.
        return "ieee", None
    errors = errors_of(segment, inputs, device)
    accurate = [
        precision
        for precision in PRECISIONS
        if precision in errors and is_as_accurate(errors[precision], errors["default"])
    ]
    return (accurate[0] if accurate else None), errors


def _whole(prepared: _Prepared, measured: Sequence[_Measured]) -> _Whole:
    """Return the model that gains most of those that take some of the Convs which gain."""
    gaining = sorted((one for one in measured if one.way is not DEFAULT_WAY), key=lambda one: -one.saved)
    best = _Whole()
    tried: set[int] = set()
    for share in _SHARES if gaining else ():
        count = max(1, round(share * len(gaining)))
        if count in tried:
            continue
        tried.add(count)
        whole = _run_whole(prepared, gaining[:count])
        if not best.gains or (whole.gains and _mean(whole) > _mean(best)):
            best = whole
        if prepared.device.name == "cuda" and best.gains:
            # There Convs do not depend on their neighbours.
            break
    return best


def _mean(whole: _Whole) -> float:
    return speedup([one.default_ms for one in whole.times], [one.optimized_ms for one in whole.times])


def _run_whole(prepared: _Prepared, taken: Sequence[_Measured]) -> _Whole:
    device = prepared.device
    choices = {one.segment.name: _choice(one) for one in taken}
    swapping = swap_chosen(prepared.subject.plain, choices, "it does not gain here")
    optimized = swapping.to_proto()
    sessions = [
        make_session(prepared.subject.plain, DEFAULT, device),
        make_session(optimized, CONVSWAP, device),
    ]
    times = []
    for batch, source in prepared.sources.items():
        default, ours = whole_times(sessions, on_device(source.first(batch), device), device)
        times.append(WholeResult(batch, default, ours))
    errors, reference = _errors(prepared, sessions)
    return _Whole(swapping, choices, tuple(times), errors, reference, _agree(errors, choices))


def _choice(one: _Measured) -> NodeChoice:
    assert one.precision is not None and one.way is not None
    return NodeChoice(precision=one.precision, last=one.way)


def _errors(
    prepared: _Prepared, sessions: Sequence[onnxruntime.InferenceSession]
) -> tuple[dict[str, float], str]:
    """Return the errors of the outputs, between the sides and, where it takes seconds, against float64."""
    source = next(iter(prepared.sources.values()))
    feeds = source.first(1)
    default, ours = (run(session, feeds) for session in sessions)
    errors = {"between": worst_output(relative_l2_error, ours, default)}
    capture = Capture(prepared.swapped, [one.layer for one in prepared.segments], prepared.device)
    shapes = capture.shapes(on_device(feeds, prepared.device))
    operations = sum(
        one.layer.problem({name: shapes[name] for name in one.layer.fed}).operations
        for one in prepared.segments
    )
    if operations > _TRUTH_OPERATIONS:
        return errors, "the original's outputs"
    try:
        truth = [np.asarray(values) for values in evaluate(prepared.subject.plain, feeds).outputs]
        errors["default"] = worst_output(relative_l2_error, default, truth)
        errors["optimized"] = worst_output(relative_l2_error, ours, truth)
    except (ConvswapError, ValueError, IndexError):
        # A model without a float64 form is judged by the original.
        return {"between": errors["between"]}, "the original's outputs"
    return errors, "float64"


def _agree(errors: Mapping[str, float], choices: Mapping[str, NodeChoice]) -> bool:
    """Return whether the outputs are the original's, within what its own arithmetic loses."""
    kinds = {choice.precision for choice in choices.values()}
    tolerance = max(TOLERANCES[kind] for kind in kinds)
    if errors["between"] <= tolerance:
        return True
    # Each side may be off by its own rounding; ours by no more than the default's.
    return "optimized" in errors and errors["optimized"] <= max(tolerance, 1.25 * errors["default"])


def _save(whole: _Whole, output: str | os.PathLike[str] | None, prepared: _Prepared) -> Path | None:
    if output is None or not (whole.gains and whole.answers_agree and whole.swapping is not None):
        return None
    whole.swapping.save(output)
    return Path(output)


def _node_results(prepared: _Prepared, measured: Sequence[_Measured], whole: _Whole) -> list[NodeResult]:
    taken = whole.taken or {}
    fused = {} if whole.swapping is None else {one.node: one for one in whole.swapping.fused}
    batches = list(prepared.sources)
    rows = [_node_result(one, one.segment.name in taken, fused, batches) for one in measured]
    rows += [_left_result(left) for left in prepared.swapping.left]
    known = {row.node for row in rows}
    inner = "it is in a subgraph, where it cannot be measured alone"
    return rows + [
        NodeResult(name, "default", inner) for name in prepared.swapping.swapped if name not in known
    ]


def _node_result(
    one: _Measured, is_taken: bool, fused: Mapping[str, Fused], batches: Sequence[int]
) -> NodeResult:
    default = one.times[DEFAULT_WAY]
    best = one.way if is_taken else best_of_ours(one.times)
    assert best is not None
    gain = speedup(default, one.times[best])
    ops = tuple(op for op, _ in fused[one.segment.name].taken) if one.segment.name in fused else ()
    words = "fused" if is_taken and best is not Stage.FOLDED else "swapped" if is_taken else "default"
    return NodeResult(
        node=one.segment.name,
        taken=words,
        why=_why(one, is_taken, gain),
        takes_in=ops if is_taken else (),
        precision=one.precision,
        algorithm=one.algorithm,
        default_ms=dict(zip(batches, default, strict=True)),
        best_ms=dict(zip(batches, one.times[best], strict=True)),
        errors=one.errors,
    )


def _why(one: _Measured, is_taken: bool, gain: float) -> str:
    if one.precision is None and one.errors is not None:
        ours = min(error for name, error in one.errors.items() if name != "default")
        return f"ours is less accurate here: {ours:.1e}, the default {one.errors['default']:.1e}"
    if is_taken:
        return f"{gain:.2f}x as fast"
    if one.way is not DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster without"
    return f"the default is as fast: ours {gain:.2f}x"


def _left_result(left: Left) -> NodeResult:
    return NodeResult(left.node, "default", left.reason)


def _told_options(prepared: _Prepared) -> dict[str, Any]:
    return {
        "batches": list(prepared.sources),
        "precision": prepared.options.precision,
        "data": prepared.subject.dataset,
    }


def _notes(prepared: _Prepared, measured: Sequence[_Measured], whole: _Whole) -> list[str]:
    notes = []
    device = prepared.device
    if device.name == "cpu" and device.reason != "asked for":
        notes.append(f"measured on the CPU: {device.reason}")
    notes += shape_notes(*prepared.shaped)
    return notes
