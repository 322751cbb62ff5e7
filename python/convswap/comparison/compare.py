"""Compare a model as ONNX Runtime runs it by default with the same model on convswap's convolutions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto

from convswap import _native
from convswap.comparison.options import CompareOptions
from convswap.comparison.result import Comparison, LayerResult, SideResult
from convswap.errors import ConvswapError
from convswap.graph.algorithms import check_algorithm
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import DEFAULT_PRECISION, SwapResult, swap
from convswap.inputs.feeds import Feeds, Source, declared_inputs, input_shapes
from convswap.inputs.given import Given
from convswap.inputs.predictions import predicted_classes
from convswap.inputs.sample_shapes import InputShape, shape_notes, telling_shapes
from convswap.inputs.subject import Subject, no_labels, open_subject, source_of
from convswap.progress import Progress, silent
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.floor import floor_ms
from convswap.runtime.layers import Capture, ConvLayer, conv_layers
from convswap.runtime.sessions import (
    DEFAULT,
    NO_OTHER_SIDE_ON_CPU,
    STOP_SPINNING,
    BoundRun,
    Side,
    make_session,
    numeric_arrays,
    on_device,
    other_sides,
    our_side,
    run,
)
from convswap.timing.measure import RUNS, Times, measure
from convswap.truth.closeness import (
    TOLERANCES,
    TRUTH_IMAGES,
    counted_outputs,
    max_abs_error,
    relative_l2_error,
    worst_output,
)
from convswap.truth.evaluation import evaluate

# Eight images of 3x227x227: the float64 values of all layers of a deep network lie in memory together, and
# grow with its input.
_TRUTH_ELEMENTS = 1_250_000
# The plain loops of `reference` do about 1e9 operations per second and core, once for the whole model and
# once for its layers; deep models get fewer images, so that nobody waits for minutes.
_TRUTH_OPERATIONS = 20e9

_Sessions = Mapping[Side, onnxruntime.InferenceSession]
Model = str | os.PathLike[str] | onnx.ModelProto


def compare(
    model: Model,
    *,
    data: str | None = None,
    images: int | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    only: str | None = None,
    fuse: bool = False,
    tolerance: float | None = None,
    against: str = "default",
    labelled: bool = False,
    time_layers: bool = True,
    input_shape: InputShape | None = None,
    inputs: Given | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run `model` with the default provider and with its Convs swapped; return how they compare.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        data: "fashion-mnist", "synthetic" or "random"; by default what the network was made for, where it is
            to be had without the network, and random values for any other model.
        images: how many samples to run; by default 10,000 of Fashion-MNIST, 2,000 synthetic ones, one random
            batch.
        batch: how many samples a run takes; by default up to 10,000 on the GPU, 100 on the CPU, 1 of random
            values (256 on the GPU, 8 on the CPU for the large networks), or what the model is fixed to.
        device: "cuda" or "cpu"; by default the GPU where there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "tf32" or "ieee", for our side.
        algorithm: the name of an algorithm of the catalog, "auto", or "tuned" (see `convswap tune`).
        only: a regular expression; only Convs whose name contains a match are swapped, or fused.
        fuse: whether Convs take in what follows them; see `convswap.swap`.
        tolerance: the largest relative L2 error against float64; by default that of `TOLERANCES`.
        against: "default", or "all" for the CUDA provider's other options for Conv too.
        labelled: refuse data without labels, of which no accuracy is known.
        time_layers: time every Conv alone too, with what is fused with it on both sides. It takes seconds
            for each: the default provider searches for its algorithm anew.
        input_shape: the shape of one sample of the model's input, or of inputs by name, where the model
            leaves it open; by default images are 224x224, and anything else is 1.
        inputs: what the model is fed in the place of `data`: arrays by the names of its inputs, or the path
            of a file or folder that has them; see `inputs.given.GivenInputs`. The batch is theirs.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read, swapped or run, the
            data do not fit it, or the device cannot be used.
    """
    options = CompareOptions(
        data=data,
        images=images,
        batch=batch,
        device=device,
        precision=precision,
        algorithm=algorithm,
        only=only,
        fuse=fuse,
        tolerance=tolerance,
        against=against,
        labelled=labelled,
        time_layers=time_layers,
        input_shape=input_shape,
        inputs=inputs,
    )
    return compare_with(model, options, progress)


def compare_with(model: Model, options: CompareOptions, progress: Progress | None = None) -> Comparison:
    """Do what `compare` does, with its errors."""
    report = progress or silent
    options.check()
    device = choose_device(options.device)
    report("reading the model and the data")
    compared = _prepared(model, options, device)
    with telling_shapes(*compared.shaped):
        times = _timed(compared, report)
    report(f"running {compared.source.images} images on each side")
    answers = _answers(compared, times, report)
    times.sessions.clear()
    rows = _layer_rows(compared, times, answers, report) if options.time_layers else ()
    return _comparison(compared, times, answers, rows)


@dataclass(frozen=True)
class _Compared:
    """What is compared: the model with its data, on both sides."""

    options: CompareOptions
    device: Device
    subject: Subject
    source: Source
    swapping: SwapResult
    swapped: onnx.ModelProto
    layers: Sequence[ConvLayer]
    sides: tuple[Side, ...]

    @property
    def ours(self) -> Side:
        """The side of our op."""
        return next(side for side in self.sides if side.ours)

    @property
    def shaped(self) -> tuple[Any, ...]:
        """What notes and errors about shapes that were made up are told of."""
        return declared_inputs(self.subject.model), self.source.inputs, self.source.batch


@dataclass(frozen=True)
class _Timed:
    """The times of whole runs, and what they were measured with."""

    sessions: dict[Side, onnxruntime.InferenceSession]
    of_side: Mapping[Side, Times]
    capture: Capture
    shapes: Mapping[str, Sequence[int]]  # of the layers' inputs in a run of one sample
    one: Feeds
    first_batch: Mapping[str, onnxruntime.OrtValue]


@dataclass(frozen=True)
class _Answers:
    """What both sides answered, against each other and against float64."""

    classes: Mapping[Side, np.ndarray]
    truth_images: int
    truth_inputs: Mapping[str, onnxruntime.OrtValue]
    errors: Mapping[Side, tuple[float, float]]
    between_sides: float
    in_float32: Sequence[str]
    without_elements: int


def _prepared(model: Model, options: CompareOptions, device: Device) -> _Compared:
    subject = open_subject(model, options.data, options.input_shape, options.inputs)
    source = source_of(subject, options.images, options.batch, device)
    if options.labelled and source.labels is None:
        raise no_labels(subject.dataset)
    swapping = swap(
        subject.model,
        algorithm=options.algorithm,
        precision=options.precision,
        only=options.only,
        fuse=options.fuse,
    )
    check_algorithm(options.algorithm, device.name)
    swapped = ir.to_proto(swapping.model)
    sides = (DEFAULT, our_side(device, options.precision), *other_sides(device, options.against))
    layers = conv_layers(swapped, unfused_model(subject.model, swapping))
    return _Compared(options, device, subject, source, swapping, swapped, layers, sides)


def _timed(compared: _Compared, report: Progress) -> _Timed:
    """Return the times of whole runs of all sides, in turn."""
    device, source = compared.device, compared.source
    # The first run of a process loads libraries; that must count as the first run of neither side.
    one = source.first(1)
    capture = Capture(compared.swapped, compared.layers, device)
    shapes = capture.shapes(on_device(one, device))
    report("loading both sides")
    models = {side: compared.swapped if side.ours else compared.subject.plain for side in compared.sides}
    sessions = {side: make_session(own, side, device) for side, own in models.items()}
    report(f"timing batches of {source.batch}")
    first_batch = on_device(source.first(source.batch), device)
    return _Timed(sessions, _measure(sessions, first_batch, device), capture, shapes, one, first_batch)


def _answers(compared: _Compared, times: _Timed, report: Progress) -> _Answers:
    source = compared.source
    classes = {side: predicted_classes(session, source) for side, session in times.sessions.items()}
    truth_images = _truth_images(compared.layers, times.shapes, source, times.one)
    truth_feeds = source.first(truth_images)
    report(f"evaluating {truth_images} images in float64")
    truth = evaluate(compared.subject.plain, truth_feeds)
    expected = numeric_arrays(truth.outputs)
    counted = [expected[index] for index in counted_outputs(expected)]
    empty = sum(values.size == 0 for values in counted)
    if empty == len(counted):
        with telling_shapes(*compared.shaped):
            raise ConvswapError("no output of the model has an element, so that there is nothing to compare")
    outputs = {side: run(session, truth_feeds) for side, session in times.sessions.items()}
    is_whole_batch = truth_images == source.batch
    return _Answers(
        classes=classes,
        truth_images=truth_images,
        truth_inputs=times.first_batch if is_whole_batch else on_device(truth_feeds, compared.device),
        errors={side: _errors(values, expected) for side, values in outputs.items()},
        between_sides=worst_output(relative_l2_error, outputs[compared.ours], outputs[DEFAULT]),
        in_float32=truth.in_float32,
        without_elements=empty,
    )


def _layer_rows(
    compared: _Compared, times: _Timed, answers: _Answers, report: Progress
) -> tuple[LayerResult, ...]:
    rows = []
    for number, layer in enumerate(compared.layers, start=1):
        report(f"timing Conv {number} of {len(compared.layers)}")
        rows.append(
            _compare_layer(
                layer,
                times.capture,
                times.first_batch,
                answers.truth_inputs,
                compared.sides,
                compared.device,
            )
        )
    return tuple(rows)


def _comparison(
    compared: _Compared, times: _Timed, answers: _Answers, rows: tuple[LayerResult, ...]
) -> Comparison:
    options, subject, source = compared.options, compared.subject, compared.source
    swapping, device = compared.swapping, compared.device
    newly = (options.precision,) if swapping.swapped else ()
    tolerance = _default_tolerance(newly, compared.layers) if options.tolerance is None else options.tolerance
    classes = answers.classes
    return Comparison(
        model=subject.title,
        device=device,
        precision=options.precision,
        options=_told_options(compared),
        environment=environment(device),
        images=source.images,
        batch=source.batch,
        truth_images=answers.truth_images,
        dataset=subject.dataset,
        sides={
            side.name: SideResult(
                times.of_side[side],
                _accuracy(classes[side], source.labels),
                *answers.errors[side],
                provider_options=side.provider_options,
            )
            for side in compared.sides
        },
        top1_agreement=float(np.mean(classes[DEFAULT] == classes[compared.ours])),
        swapped=subject.swapped_before + len(swapping.swapped),
        left=swapping.left,
        fused=swapping.fused,
        not_fused=swapping.not_fused,
        layers=rows,
        tolerance=tolerance,
        notes=_all_notes(compared, times, answers, tolerance),
    )


def _told_options(compared: _Compared) -> dict[str, Any]:
    options, source = compared.options, compared.source
    shapes = input_shapes(source.inputs, source.batch)
    return {
        "data": compared.subject.dataset,
        "algorithm": options.algorithm,
        "precision": options.precision,
        "only": options.only,
        "fuse": options.fuse,
        "against": options.against,
        "time_layers": options.time_layers,
        "input_shapes": {name: list(shape) for name, shape in shapes.items()},
        "device": compared.device.name,
        "session": {STOP_SPINNING: "1"} if compared.device.name == "cpu" else {},
        "convswap_provider": dict(compared.ours.provider_options),
    }


def _all_notes(compared: _Compared, times: _Timed, answers: _Answers, tolerance: float) -> tuple[str, ...]:
    subject, empty = compared.subject, answers.without_elements
    in_subgraphs = subject.swapped_before + len(compared.swapping.swapped) - len(compared.layers)
    against = compared.options.against
    errors = answers.errors
    return (
        *_notes(compared.device, against, times.of_side, answers.in_float32, in_subgraphs),
        *(() if compared.options.time_layers else ("the Convs were not timed alone, as asked",)),
        *shape_notes(*compared.shaped),
        *([f"outputs without an element, of which nothing was compared: {empty}"] if empty else []),
        *_swapped_before(subject.swapped_before),
        *_unreliable_truth(errors[DEFAULT][1], errors[compared.ours][1], answers.between_sides, tolerance),
        *_missing_data(subject.missing),
    )


def _default_tolerance(precisions: Sequence[str], layers: Sequence[ConvLayer]) -> float:
    """Return the tolerance of the coarsest arithmetic among the layers and `precisions`, of other Convs."""
    names = {int(TensorProto.FLOAT16): "float16", int(TensorProto.BFLOAT16): "bfloat16"}
    kinds = {names.get(layer.element_type, layer.setting("precision", DEFAULT_PRECISION)) for layer in layers}
    return max((TOLERANCES[kind] for kind in (*kinds, *precisions)), default=TOLERANCES[DEFAULT_PRECISION])


def _measure(
    sessions: _Sessions, feeds: Mapping[str, onnxruntime.OrtValue], device: Device
) -> dict[Side, Times]:
    runs = [BoundRun(session, feeds, device) for session in sessions.values()]
    return dict(zip(sessions, measure(runs, bursts=device.name == "cuda"), strict=True))


def _accuracy(classes: np.ndarray, labels: np.ndarray | None) -> float | None:
    return None if labels is None else float(np.mean(classes == labels))


def _truth_images(
    layers: Sequence[ConvLayer], shapes: Mapping[str, Sequence[int]], source: Source, one: Feeds
) -> int:
    """Return how many images to evaluate in float64: at most 100, fewer where each is large or much work.

    `shapes` are those of the layers' inputs in a run of `one`.
    """
    samples = _samples(one)
    operations = sum(layer.problem({name: shapes[name] for name in layer.fed}).operations for layer in layers)
    affordable = int(_TRUTH_OPERATIONS // max(operations / samples, 1))
    elements = sum(values.size for values in one.values())
    held = int(_TRUTH_ELEMENTS // max(elements / samples, 1))
    return max(samples, min(TRUTH_IMAGES, source.images, affordable, held))


def _samples(feeds: Feeds) -> int:
    """Return how many samples `feeds`, asked for one, hold: more where the model's batch is fixed."""
    return next((max(values.shape[0], 1) for values in feeds.values() if values.ndim), 1)


def _errors(outputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return the largest absolute and the relative L2 error of `outputs`."""
    shapes = [values.shape for values in outputs], [values.shape for values in expected]
    if shapes[0] != shapes[1]:
        raise ConvswapError(
            f"the outputs have shapes {shapes[0]}, but evaluated in float64 {shapes[1]}; "
            "a model whose output shapes depend on the values of its data cannot be compared"
        )
    return (
        worst_output(max_abs_error, outputs, expected),
        worst_output(relative_l2_error, outputs, expected),
    )


def _compare_layer(
    layer: ConvLayer,
    capture: Capture,
    first_batch: Mapping[str, onnxruntime.OrtValue],
    truth_inputs: Mapping[str, onnxruntime.OrtValue],
    sides: Sequence[Side],
    device: Device,
) -> LayerResult:
    """Return the times and errors of one layer of each side, fed what the default side feeds it."""
    timed = capture.inputs(layer, first_batch)
    shapes = _shapes(timed)
    ranks = {name: len(shape) for name, shape in shapes.items()}
    sessions = {
        side: make_session(
            layer.model(ranks, ours=side.ours), side, device, only_device=side.ours or not layer.fused
        )
        for side in sides
    }
    times = _measure(sessions, timed, device)
    problem = layer.problem(shapes)

    captured = timed if truth_inputs is first_batch else capture.inputs(layer, truth_inputs)
    checked = {name: value.numpy() for name, value in captured.items()}
    truth = evaluate(layer.model(ranks, ours=False), checked).outputs[0]
    return LayerResult(
        node=layer.name,
        fused=layer.fused,
        algorithm=_native.choose(problem, device.name, layer.setting("algorithm", "auto")),
        milliseconds={side.name: times[side].median for side in sides},
        floor_ms=floor_ms(problem, device.card, layer.arithmetic),
        relative_l2_error={
            side.name: relative_l2_error(run(session, checked)[0], truth)
            for side, session in sessions.items()
        },
    )


def _shapes(values: Mapping[str, onnxruntime.OrtValue]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape()) for name, value in values.items()}


def _swapped_before(count: int) -> list[str]:
    if not count:
        return []
    return [
        f"{count} Conv swapped before: on our side with the algorithm and precision that the file gives, "
        "on the default side turned back into ONNX's"
    ]


def _unreliable_truth(default: float, ours: float, between: float, tolerance: float) -> list[str]:
    """Return a note where both sides agree with each other, but neither with float64."""
    if default <= tolerance or ours <= tolerance or not between <= tolerance:
        return []
    return [
        f"the float64 truth is unreliable for this model: the default side is off by {default:.1e} as well, "
        f"and the sides differ from each other by {between:.1e} only; random operators or ones that quantise "
        "can be why"
    ]


def _missing_data(dataset: str | None) -> list[str]:
    if dataset is None:
        return []
    return [f"the model was made for {dataset}, which is not here: --data {dataset} downloads it"]


def _notes(
    device: Device, against: str, times: Mapping[Side, Times], in_float32: Sequence[str], in_subgraphs: int
) -> list[str]:
    """Return what a reader has to know besides the numbers."""
    notes = []
    if device.name == "cpu" and device.reason != "asked for":
        notes.append(f"on the CPU, against the default CPU provider: {device.reason}")
    if device.name == "cpu":
        notes.append(
            f"both sides run with {STOP_SPINNING}=1, so that idle threads do not slow the other side"
        )
    if against == "all" and device.name == "cpu":
        notes.append(NO_OTHER_SIDE_ON_CPU)
    timed = times[DEFAULT]
    if timed.burst > 1:
        notes.append(f"runs below 0.1 ms: each timed run is a burst of {timed.burst} back-to-back runs")
    if timed.runs < RUNS:
        notes.append(f"a run takes seconds, so only {timed.runs} were timed")
    if in_float32:
        notes.append(f"computed in float32 for the truth, having no float64 form: {', '.join(in_float32)}")
    if in_subgraphs > 0:
        notes.append(f"{in_subgraphs} swapped Conv in subgraphs: timed as part of the whole model only")
    return notes
