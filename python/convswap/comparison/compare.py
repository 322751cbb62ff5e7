"""Compare a model as ONNX Runtime runs it by default with the same model with its Convs swapped."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from convswap import _native
from convswap.comparison.outputs import Agreement, OutputComparison, agreement, errors_against_reference
from convswap.comparison.preparation import (
    Compared,
    CompareOptions,
    MemoryPlan,
    check_memory,
    plan_memory,
    prepare,
)
from convswap.comparison.result import Comparison, LayerResult, SideResult
from convswap.comparison.verdict import ConvAlone, ConvsAlone, Verdict, judge, with_codes
from convswap.graph.swap import DEFAULT_LAYOUT, DEFAULT_PRECISION, FLOAT16_ON_CPU, QUANTISED_LAYOUT
from convswap.inputs.feeds import Feeds, Source, input_shapes
from convswap.inputs.model_with_data import UserModel
from convswap.inputs.predictions import predicted_classes
from convswap.inputs.sample_shapes import InputShape, shape_notes, shape_notes_on_error
from convswap.inputs.user_inputs import UserInputs
from convswap.progress import Progress, silent
from convswap.reference.evaluation import evaluate
from convswap.reference.metrics import (
    REFERENCE_IMAGES,
    CodeDifference,
    code_difference,
    has_finite,
    relative_l2_error,
)
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.layers import Capture, ConvLayer
from convswap.runtime.library import OpLibraries, using_op_libraries
from convswap.runtime.sessions import (
    DEFAULT,
    NO_OTHER_SIDE_ON_CPU,
    STOP_SPINNING,
    BoundRun,
    Side,
    host_array,
    make_session,
    on_device,
    run,
    run_named,
    shapes_of,
)
from convswap.runtime.values import Arrays
from convswap.timing.floor import floor_ms
from convswap.timing.sampler import SINGLE_RUNS, Times, measure, sample_of, single_runs

# The maximum number of input elements that are evaluated in float64: eight images of 3x227x227. Memory holds
# the float64 values of all layers of a deep network at once, and they grow with its input.
_REFERENCE_ELEMENTS = 1_250_000
# The maximum number of multiplications and additions that are evaluated in float64. The plain loops of
# `reference` do about 1e9 of them per second and core, and the model is evaluated twice: end to end, and
# layer by layer.
_REFERENCE_OPERATIONS = 20e9

_Sessions = Mapping[Side, onnxruntime.InferenceSession]


def compare(
    model: UserModel,
    *,
    data: str | None = None,
    images: int | None = None,
    batch: int | None = None,
    device: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    only: str | None = None,
    fuse: bool = False,
    layout: str | None = None,
    tolerance: float | None = None,
    against: str = "default",
    labelled: bool = False,
    time_layers: bool = True,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    progress: Progress | None = None,
) -> Comparison:
    """Run `model` with the default provider and with its Convs swapped; return how they compare.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        data: "fashion-mnist", "synthetic" or "random"; by default the data set that the network was made
            for, if that needs no download, and random values for any other model.
        images: how many samples to run; by default 10,000 of Fashion-MNIST, 2,000 synthetic ones, one random
            batch.
        batch: how many samples a run takes; by default up to 10,000 on the GPU, 100 on the CPU, 1 of random
            values (256 on the GPU, 8 on the CPU for the large networks), or what the model is fixed to.
        device: "cuda" or "cpu"; by default the GPU if there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "tf32" or "ieee", for the swapped Convs.
        algorithm: the name of an algorithm of the catalog, "auto", or "tuned" (see `convswap tune`).
        only: a regular expression; only Convs whose name contains a match are swapped, or fused.
        fuse: whether to fuse Convs with the nodes behind them; see `convswap.swap`.
        layout: "nchw", "nhwc" or "auto", for the tensors between swapped Convs; for the default see
            `convswap.swap`.
        tolerance: the largest relative L2 error against float64; by default that of `TOLERANCES`.
        against: "default", or "all" for the CUDA provider's other options for Conv too.
        labelled: refuse data without labels, for which there is no accuracy.
        time_layers: time every Conv alone too, on both sides with the nodes that are fused with it. This
            takes seconds for each Conv, since the default provider searches for its algorithm anew.
        input_shape: the shape of one sample of the model's input, or of inputs by name, if the model leaves
            it open; by default images are 224x224, and all other extents are 1.
        inputs: the values of the model's inputs, instead of `data`: arrays by name, or the path of a file or
            folder that has them; see `inputs.user_inputs.InputData`. Their number of samples is the batch.
        op_libraries: files with custom ops of others that the model needs.
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
        layout=layout,
        tolerance=tolerance,
        against=against,
        labelled=labelled,
        time_layers=time_layers,
        input_shape=input_shape,
        inputs=inputs,
        op_libraries=op_libraries,
    )
    return compare_with(model, options, progress)


def compare_with(model: UserModel, options: CompareOptions, progress: Progress | None = None) -> Comparison:
    """Do the same as `compare`, with the arguments in `options`."""
    with using_op_libraries(options.op_libraries):
        return _compare_with(model, options, progress or silent)


def _compare_with(model: UserModel, options: CompareOptions, report: Progress) -> Comparison:
    options.check()
    device = choose_device(options.device)
    report("reading the model and the data")
    compared = prepare(model, options, device)
    plan = plan_memory(compared)
    # The first run of a process loads libraries, which must not count for either side.
    sample = compared.source.first(1)
    with shape_notes_on_error(*compared.shape_arguments):
        shapes = compared.capture().shapes(on_device(sample, device))
    check_memory(compared, plan, shapes)

    def truth_images() -> int:
        return _truth_images(compared.layers, shapes, compared.source, sample)

    runs = _runs(compared, plan, truth_images, report)
    reference_feeds = compared.source.first(runs.truth_images)
    report(f"evaluating {runs.truth_images} images in float64")
    compared_outputs = errors_against_reference(compared, reference_feeds, runs.outputs, report)
    rows = _layer_rows(compared, reference_feeds, report) if options.time_layers else ()

    @functools.cache
    def check_convs() -> ConvsAlone:
        return _check_convs(compared, rows, reference_feeds, report)

    verdict = judge(
        compared_outputs.outputs,
        compared.tolerances,
        quantises=compared.quantises,
        check_convs=check_convs,
    )
    if any(layer.has_code_results for layer in compared.layers):
        verdict = with_codes(verdict, check_convs())
    return _comparison(compared, runs, (plan, compared_outputs, verdict), rows)


@dataclass(frozen=True)
class _Runs:
    """The results of runs of the whole model, for each side.

    `classes` has the class of each sample, `outputs` the outputs for the first `truth_images` samples.
    """

    times: Mapping[Side, Times]
    classes: Mapping[Side, np.ndarray]
    outputs: Mapping[Side, Arrays]
    truth_images: int


def _runs(compared: Compared, plan: MemoryPlan, truth_images: Callable[[], int], report: Progress) -> _Runs:
    """Run the whole model, all sides in turn or one side at a time, and return the results.

    `truth_images` is called after the first run of the model, so that ONNX Runtime reports a faulty model
    first.
    """
    device, source = compared.device, compared.source
    times: dict[Side, Times] = {}
    classes: dict[Side, np.ndarray] = {}
    outputs: dict[Side, Arrays] = {}
    for sides in [[side] for side in compared.sides] if plan.one_side_at_a_time else [compared.sides]:
        report("loading both sides" if len(sides) > 1 else f"loading the {sides[0].name} side")
        with shape_notes_on_error(*compared.shape_arguments):
            sessions = {side: compared.session(side) for side in sides}
            report(f"timing batches of {source.batch}")
            times.update(_measure(sessions, on_device(source.first(source.batch), device), device))
        images = truth_images()
        report(f"running {source.images} images on each side")
        for side, session in sessions.items():
            classes[side] = predicted_classes(session, source)
            outputs[side] = run_named(session, source.first(images))
        # Free the memory of these sessions before the next are made.
        del sessions, session
    return _Runs(times, classes, outputs, images)


def _layer_rows(compared: Compared, reference_feeds: Feeds, report: Progress) -> tuple[LayerResult, ...]:
    first_batch = on_device(compared.source.first(compared.source.batch), compared.device)
    reference_inputs = _reference_inputs(compared, reference_feeds, first_batch)
    capture = compared.capture()
    rows = []
    for number, layer in enumerate(compared.layers, start=1):
        report(f"timing Conv {number} of {len(compared.layers)}")
        rows.append(_compare_layer(compared, layer, capture, first_batch, reference_inputs))
    return tuple(rows)


def _reference_inputs(
    compared: Compared, reference_feeds: Feeds, first_batch: Mapping[str, onnxruntime.OrtValue]
) -> Mapping[str, onnxruntime.OrtValue]:
    """Return `reference_feeds` on the device; the first batch itself if it has the same shapes."""
    if shapes_of(first_batch) == {name: values.shape for name, values in reference_feeds.items()}:
        return first_batch
    return on_device(reference_feeds, compared.device)


def _check_convs(
    compared: Compared, rows: Sequence[LayerResult], reference_feeds: Feeds, report: Progress
) -> ConvsAlone:
    """Return which Convs are right alone, from the rows if there are any; otherwise run each Conv now."""
    if rows or not compared.layers:
        alone = {row.node: _conv_alone(row.relative_l2_error, row.codes) for row in rows}
    else:
        capture, feeds = compared.capture(), on_device(reference_feeds, compared.device)
        alone = {}
        for number, layer in enumerate(compared.layers, start=1):
            report(f"checking Conv {number} of {len(compared.layers)} alone")
            inputs = capture.inputs(layer, feeds)
            sessions = _layer_sessions(compared, layer, _ranks(inputs), (DEFAULT, compared.convswap_side))
            alone[layer.name] = _conv_alone(*_layer_errors(compared, layer, sessions, inputs))
    alone = {name: conv for name, conv in alone.items() if not np.isnan(conv.convswap)}
    wrong = (name for name, conv in alone.items() if not conv.is_right(compared.tolerances.requested))
    codes = {name: conv.codes[1] for name, conv in alone.items() if conv.codes is not None}
    return ConvsAlone(len(alone), tuple(wrong), codes)


def _conv_alone(errors: Mapping[str, float], codes: Mapping[str, CodeDifference] | None) -> ConvAlone:
    both = None if codes is None else (codes["default"], codes["convswap"])
    return ConvAlone(errors["default"], errors["convswap"], both)


def _comparison(
    compared: Compared,
    runs: _Runs,
    findings: tuple[MemoryPlan, OutputComparison, Verdict],
    rows: tuple[LayerResult, ...],
) -> Comparison:
    options, tested, source = compared.options, compared.tested, compared.source
    swapping, device = compared.swapping, compared.device
    plan, compared_outputs, verdict = findings
    top1 = agreement(runs.classes[DEFAULT], runs.classes[compared.convswap_side])
    return Comparison(
        model=tested.title,
        device=device,
        precision=options.precision,
        options=_options_json(compared),
        environment=environment(device),
        images=source.images,
        batch=source.batch,
        truth_images=runs.truth_images,
        dataset=tested.dataset,
        sides={
            side.name: SideResult(
                runs.times[side],
                _accuracy(runs.classes[side], source.labels),
                *compared_outputs.errors[side],
                provider_options=side.provider_options,
            )
            for side in compared.sides
        },
        top1_agreement=top1.share,
        without_class=top1.without_class,
        swapped=compared.swapped_convs,
        left=swapping.not_swapped,
        fused=swapping.fused,
        not_fused=swapping.not_fused,
        layout=swapping.layout,
        layers=rows,
        tolerance=compared.tolerances.requested,
        notes=(*plan.notes, *_notes(compared, runs.times, compared_outputs, top1), *verdict.notes),
        verdict=verdict,
        elements_that_differ=_elements_that_differ(compared_outputs),
    )


def _elements_that_differ(compared_outputs: OutputComparison) -> Mapping[str, Mapping[str, float]]:
    """Return, for each output that is not floating-point, the share of elements that differ on each side."""
    return {
        output.name: {"default": output.default.relative, "convswap": output.convswap.relative}
        for output in compared_outputs.outputs
        if not output.is_floating
    }


def _options_json(compared: Compared) -> dict[str, Any]:
    options, source, swapping = compared.options, compared.source, compared.swapping
    shapes = input_shapes(source.inputs, source.batch)
    return {
        "data": compared.tested.dataset,
        "algorithm": options.algorithm,
        "precision": options.precision,
        "only": options.only,
        "fuse": options.fuse,
        "layout": options.layout or (DEFAULT_LAYOUT if swapping.layout is None else QUANTISED_LAYOUT),
        "against": options.against,
        "time_layers": options.time_layers,
        "input_shapes": {name: list(shape) for name, shape in shapes.items()},
        "device": compared.device.name,
        "session": {STOP_SPINNING: "1"} if compared.device.name == "cpu" else {},
        "convswap_provider": dict(compared.convswap_side.provider_options),
    }


def _notes(
    compared: Compared, times: Mapping[Side, Times], compared_outputs: OutputComparison, top1: Agreement
) -> Iterator[str]:
    """Yield the notes below the tables."""
    device, options, tested = compared.device, compared.options, compared.tested
    if device.name == "cpu" and device.reason != "asked for":
        yield f"on the CPU, against the default CPU provider: {device.reason}"
    if device.name == "cpu":
        yield f"both sides run with {STOP_SPINNING}=1, so that idle threads do not slow the other side"
    if options.against == "all" and device.name == "cpu":
        yield NO_OTHER_SIDE_ON_CPU
    if any(side_times.burst > 1 for side_times in times.values()):
        yield "runs below 0.1 ms: each timed run is a burst of back-to-back runs of some 2 ms"
    runs = times[DEFAULT].runs
    if runs < SINGLE_RUNS.samples:
        yield f"a run takes seconds, so only {runs} were timed"
    if compared_outputs.in_float32:
        operators = ", ".join(compared_outputs.in_float32)
        yield f"computed in float32 for the reference, having no float64 form: {operators}"
    in_subgraphs = compared.swapped_convs - sum(layer.convolutions for layer in compared.layers)
    if in_subgraphs > 0:
        yield f"{in_subgraphs} swapped Conv in subgraphs: timed as part of the whole model only"
    if compared_outputs.reference_note:
        yield compared_outputs.reference_note
    if not options.time_layers:
        yield "the Convs were not timed alone, as asked"
    yield from (note for note in compared.swapping.notes_on(compared.device.name) if note != FLOAT16_ON_CPU)
    change = compared.swapping.layout
    if change is not None:
        yield from change.lines()
        if change.nodes and options.time_layers:
            if any(layer.is_quantised for layer in compared.layers):
                yield "each QuantConv alone was timed in its own layout, the nodes that it replaces in NCHW"
            if not all(layer.is_quantised for layer in compared.layers):
                yield "each Conv alone was timed in NCHW on both sides"
    yield from shape_notes(*compared.shape_arguments)
    if compared_outputs.without_elements:
        yield (
            "outputs without an element that is finite, of which nothing was compared: "
            f"{compared_outputs.without_elements}"
        )
    if compared.rounds_to_float16_on_cpu:
        yield FLOAT16_ON_CPU
    if tested.swapped_before:
        yield (
            f"{tested.swapped_before} Conv swapped before: on the convswap side with the algorithm and "
            "precision that the file gives, on the default side turned back into ONNX's"
        )
    if tested.missing_dataset is not None:
        yield (
            f"the model was made for {tested.missing_dataset}, which is not here: "
            f"--data {tested.missing_dataset} downloads it"
        )
    if top1.without_class:
        yield (
            f"samples without a class on either side: {top1.without_class}; their outputs are empty, or the "
            "largest value is not finite"
        )


def _measure(
    sessions: _Sessions, feeds: Mapping[str, onnxruntime.OrtValue], device: Device
) -> dict[Side, Times]:
    samples = {side: sample_of(BoundRun(session, feeds, device)) for side, session in sessions.items()}
    return measure(samples, single_runs(device))


def _accuracy(classes: np.ndarray, labels: np.ndarray | None) -> float | None:
    return None if labels is None else float(np.mean(classes == labels))


def _truth_images(
    layers: Sequence[ConvLayer], shapes: Mapping[str, Sequence[int]], source: Source, sample: Feeds
) -> int:
    """Return how many images to evaluate in float64: at most 100, fewer if each is large or takes long.

    `shapes` are those of the layers' inputs in a run of `sample`.
    """
    samples = _samples(sample)
    operations = sum(layer.problem(shapes).operations for layer in layers)
    within_time = int(_REFERENCE_OPERATIONS // max(operations / samples, 1))
    elements = sum(values.size for values in sample.values())
    within_memory = int(_REFERENCE_ELEMENTS // max(elements / samples, 1))
    return max(samples, min(REFERENCE_IMAGES, source.images, within_time, within_memory))


def _samples(feeds: Feeds) -> int:
    """Return the number of samples in `feeds`, which is more than one if the model's batch is fixed."""
    return next((max(values.shape[0], 1) for values in feeds.values() if values.ndim), 1)


def _compare_layer(
    compared: Compared,
    layer: ConvLayer,
    capture: Capture,
    first_batch: Mapping[str, onnxruntime.OrtValue],
    reference_inputs: Mapping[str, onnxruntime.OrtValue],
) -> LayerResult:
    """Return the times and errors of one layer on each side, with the inputs of the default side's run."""
    device = compared.device
    timed = capture.inputs(layer, first_batch)
    sessions = _layer_sessions(compared, layer, _ranks(timed), compared.sides)
    converted = _swapped_inputs(layer, timed, device)
    samples = {
        side: sample_of(BoundRun(session, converted if side.uses_convswap else timed, device))
        for side, session in sessions.items()
    }
    times = measure(samples, single_runs(device))
    problem = layer.problem(shapes_of(timed))
    captured = timed if reference_inputs is first_batch else capture.inputs(layer, reference_inputs)
    errors, codes = _layer_errors(compared, layer, sessions, captured)
    return LayerResult(
        node=layer.name,
        fused=layer.fused,
        algorithm=_native.choose(problem, device.name, **layer.planner_arguments),
        milliseconds={side.name: times[side].median for side in compared.sides},
        floor_ms=floor_ms(problem, device.card, layer.arithmetic),
        relative_l2_error=errors,
        precision=layer.arithmetic,
        codes=codes,
    )


def _swapped_inputs(
    layer: ConvLayer, inputs: Mapping[str, onnxruntime.OrtValue], device: Device
) -> Mapping[str, onnxruntime.OrtValue]:
    """Return the inputs of the swapped node of `layer`, given those of the nodes that it replaces."""
    if not layer.nhwc:
        return inputs
    arrays = {name: host_array(value, device) for name, value in inputs.items()}
    return on_device(layer.swapped_inputs(arrays), device)


def _layer_sessions(
    compared: Compared, layer: ConvLayer, ranks: Mapping[str, int], sides: Sequence[Side]
) -> dict[Side, onnxruntime.InferenceSession]:
    # Operators beside the Conv, such as QLinearConv, may have no kernel on the device.
    is_conv_alone = not layer.fused and not layer.is_quantised
    return {
        side: make_session(
            layer.model(ranks, swapped=side.uses_convswap),
            side,
            compared.device,
            only_device=side.uses_convswap or is_conv_alone,
        )
        for side in sides
    }


def _layer_errors(
    compared: Compared,
    layer: ConvLayer,
    sessions: _Sessions,
    inputs: Mapping[str, onnxruntime.OrtValue],
) -> tuple[dict[str, float], dict[str, CodeDifference] | None]:
    """Return the relative L2 error of one layer on each side against float64, and the differing codes.

    If the results are no codes, None stands for the differences of codes.
    """
    checked = {name: host_array(value, compared.device) for name, value in inputs.items()}
    reference = evaluate(layer.model(_ranks(inputs), swapped=False), checked).outputs[0]
    results = {
        side.name: layer.result_in_nchw(run(session, layer.swapped_inputs(checked))[0])
        if side.uses_convswap
        else run(session, checked)[0]
        for side, session in sessions.items()
    }
    codes = None
    if layer.has_code_results:
        codes = {name: code_difference(result, reference) for name, result in results.items()}
        zero_point = layer.y_zero_point
        results = {name: result.astype(np.float64) - zero_point for name, result in results.items()}
        reference = reference.astype(np.float64) - zero_point
    errors = {name: relative_l2_error(result, reference) for name, result in results.items()}
    # An error of 0 means nothing if the reference has no finite element.
    is_known = has_finite(reference)
    return {name: error if error > 0 or is_known else float("nan") for name, error in errors.items()}, codes


def _ranks(values: Mapping[str, onnxruntime.OrtValue]) -> dict[str, int]:
    return {name: len(value.shape()) for name, value in values.items()}
