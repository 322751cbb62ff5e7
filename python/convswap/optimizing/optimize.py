"""Optimise a model for this device: swap or fuse the Convs that gain, and prove it on the whole model."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from convswap.errors import ConvswapError, batch_sizes
from convswap.graph.fusion.fuse import Fused, Stage
from convswap.graph.model_file import check_model_target, model_files
from convswap.graph.swap import SwapResult, swap_selected
from convswap.inputs.model_with_data import UserModel, open_model
from convswap.inputs.sample_shapes import InputShape, shape_notes, shape_notes_on_error
from convswap.inputs.user_inputs import UserInputs
from convswap.optimizing.choice import DEFAULT_WAY, speedup
from convswap.optimizing.end_to_end import NOT_TAKEN, EndToEnd, best_end_to_end
from convswap.optimizing.measurement_cache import MeasurementCache
from convswap.optimizing.measuring import MeasuredSegment, Measuring, measure_convs, with_fastest_algorithms
from convswap.optimizing.pairs import MeasuredPair, faster_pairs
from convswap.optimizing.preparation import MATCH, OptimizeOptions, Prepared, SegmentInputs, prepare
from convswap.optimizing.result import NodeResult, Optimization
from convswap.output.files import check_writable
from convswap.progress import Progress, silent
from convswap.runtime.device import choose_device, environment
from convswap.runtime.library import OpLibraries, sessions_with
from convswap.runtime.memory import freed_at_once

_NOT_RUN = "the branch that it is in is not run with this input"
_INNER = "it is in a subgraph, where it cannot be measured alone"


def optimize(
    model: UserModel,
    output: str | os.PathLike[str] | None = None,
    *,
    batches: int | Sequence[int] | None = None,
    device: str | None = None,
    precision: str = MATCH,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    progress: Progress | None = None,
) -> Optimization:
    """Measure every Conv of `model` both ways on this device; save the model with the faster ones swapped.

    Each Conv is timed together with the nodes that can be fused with it, on the inputs that the model gives
    it: computed by the default provider, swapped, and fused up to each stage. The fastest way is taken where
    it gains more than noise and is slower at no batch. A depthwise Conv and the 1x1 Conv behind it become one
    node where that is faster than the fastest two. For the Convs that take most of the time several
    algorithms are timed, and the file names the fastest on this device.

    Then the whole model is timed against the original, and the outputs are compared. The model is written
    only if it is faster and its answers agree. Where they differ, the Convs that change them alone are left
    out.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        output: the file to write; None for none.
        batches: the batch sizes, by default that of `compare`. With several the geometric mean counts.
        device: "cuda" or "cpu"; by default the GPU where there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "match" chooses for each Conv a precision that is as accurate as the default provider;
            "tf32" or "ieee" is for all Convs.
        input_shape: the shape of one sample where the model leaves it open, as for `compare`.
        inputs: the values of the model's inputs, as for `compare`.
        op_libraries: files with custom ops of others that the model needs.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read, swapped or run, the
            device cannot be used, or the file cannot be written.
    """
    if output is not None and not isinstance(model, onnx.ModelProto):
        with freed_at_once():
            check_writable(output, {"a file of the model that is read": model_files(model)}, "output")
    sizes = None if batches is None else batch_sizes(batches)
    options = OptimizeOptions(sizes, device, precision, input_shape, inputs, op_libraries)
    found = optimize_with(model, output, options, progress)
    if found.not_written is not None:
        raise ConvswapError(found.not_written)
    return found


def optimize_with(
    model: UserModel,
    output: str | os.PathLike[str] | None,
    options: OptimizeOptions,
    progress: Progress | None = None,
) -> Optimization:
    """Do the same as `optimize`, but set `not_written` instead of raising where saving fails at the end."""
    options.check()
    if output is not None:
        check_model_target(output)
    with sessions_with(options.op_libraries):
        found, swapping = _found(model, options, progress or silent)
    if output is None or swapping is None:
        return found
    # Free the sessions first: saving copies the model twice.
    gc.collect()
    try:
        swapping.save(output)
    except ConvswapError as error:  # the measurements are still worth reporting
        return replace(found, not_written=str(error))
    return replace(found, written=Path(output))


def _found(
    model: UserModel, options: OptimizeOptions, report: Progress
) -> tuple[Optimization, SwapResult | None]:
    """Return the result, with nothing written yet, and the model to write; None where it is not faster."""
    device = choose_device(options.device)
    report("reading the model")
    with freed_at_once():
        prepared = prepare(model, options, device)
    cache = MeasurementCache(environment(device))
    with shape_notes_on_error(*prepared.shaped):
        measured, pairs = _measure(prepared, cache, report)
        report("running the whole model")
        whole = best_end_to_end(prepared, measured, pairs)
    found = Optimization(
        model=prepared.tested.title,
        device=device,
        environment=environment(device),
        options=_options(prepared),
        nodes=tuple(node_results(prepared, measured, whole)),
        whole=whole.times,
        errors=whole.errors,
        reference=whole.reference,
        answers_agree=whole.answers_agree,
        written=None,
        notes=tuple(_notes(prepared, cache)),
    )
    return found, _to_write(whole, prepared, model)


def _measure(
    prepared: Prepared, cache: MeasurementCache, report: Progress
) -> tuple[tuple[MeasuredSegment, ...], tuple[MeasuredPair, ...]]:
    """Return the measurements of each Conv, and the pairs that one node computes faster."""
    if not prepared.segments:
        return (), ()
    measuring = Measuring(prepared, SegmentInputs(prepared), cache, report)
    measured = with_fastest_algorithms(measure_convs(measuring), measuring)
    return measured, faster_pairs(measured, measuring)


def _to_write(whole: EndToEnd, prepared: Prepared, model: UserModel) -> SwapResult | None:
    """Return the model with the Convs that were taken, if it is faster and the answers agree."""
    if not (whole.gains and whole.answers_agree and whole.taken is not None):
        return None
    # For user inputs the measured model may have tensors in place of sequences, optionals and defaults.
    as_given = prepared.original if prepared.options.inputs is None else open_model(model)[1]
    return swap_selected(as_given, whole.taken, NOT_TAKEN)


def _options(prepared: Prepared) -> dict[str, Any]:
    return {
        "batches": list(prepared.sources),
        "precision": prepared.options.precision,
        "data": prepared.tested.dataset,
    }


def _notes(prepared: Prepared, cache: MeasurementCache) -> list[str]:
    notes = []
    if cache.found:
        notes.append(
            f"measurements of an earlier call: {cache.found}, from {cache.path}; delete it to repeat them"
        )
    device = prepared.device
    if device.name == "cpu" and device.reason != "asked for":
        notes.append(f"measured on the CPU: {device.reason}")
    if device.name == "cpu":
        notes += prepared.notes
    notes += shape_notes(*prepared.shaped)
    return notes


def node_results(
    prepared: Prepared, measured: Sequence[MeasuredSegment], whole: EndToEnd
) -> list[NodeResult]:
    """Return a result for every Conv: those that were measured, then the others."""
    taken = whole.taken or {}
    fused = {one.node: one for one in whole.fused}
    batches = list(prepared.sources)
    together = {name: pair for pair in whole.pairs for name in pair.names}
    convs = [whole.convs.get(one.segment.name, one) for one in measured]
    rows = [
        _node_result(one, one.segment.name in taken, fused, batches, together.get(one.segment.name))
        for one in convs
    ]
    rows = [
        replace(row, why=whole.changes[row.node], changes_answers=True) if row.node in whole.changes else row
        for row in rows
    ]
    rows += [NodeResult(left.node, "default", left.reason) for left in prepared.left]
    known = {row.node for row in rows}
    not_run = {segment.name for segment in prepared.segments}
    return rows + [
        NodeResult(name, "default", _NOT_RUN if name in not_run else _INNER)
        for name in prepared.swapped
        if name not in known
    ]


def _node_result(
    one: MeasuredSegment,
    is_taken: bool,
    fused: Mapping[str, Fused],
    batches: Sequence[int],
    pair: MeasuredPair | None,
) -> NodeResult:
    default = one.times[DEFAULT_WAY]
    best = one.ours
    gain = speedup(default, one.times[best])
    ops = tuple(op for op, _ in fused[one.segment.name].fused_nodes) if one.segment.name in fused else ()
    is_fused = best is not Stage.FOLDED or pair is not None
    words = "fused" if is_taken and is_fused else "swapped" if is_taken else "default"
    return NodeResult(
        node=one.segment.name,
        taken=words,
        why=_why(one, is_taken, gain) if pair is None else _why_together(one, pair),
        takes_in=ops if is_taken else (),
        precision=one.precision,
        algorithm=", ".join(dict.fromkeys(one.algorithms)) if pair is None else "",
        default_ms=dict(zip(batches, default, strict=True)),
        best_ms=dict(zip(batches, one.times[best], strict=True)),
        errors=one.measurement.errors,
    )


def _why(one: MeasuredSegment, is_taken: bool, gain: float) -> str:
    if one.precision is None and one.measurement.errors is not None:
        ours = min(error for name, error in one.measurement.errors.items() if name != "default")
        return f"ours is less accurate here: {ours:.1e}, the default {one.measurement.errors['default']:.1e}"
    if is_taken and one.last is not None:
        return f"{gain:.2f}x as fast alone; fused this far it makes the whole model faster"
    if is_taken and one.way is DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster with it"
    if is_taken:
        return f"{gain:.2f}x as fast"
    if one.way is not DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster without"
    return f"ours is not faster: {gain:.2f}x"


def _why_together(one: MeasuredSegment, pair: MeasuredPair) -> str:
    front, behind = pair.names
    other = behind if one.segment.name == front else front
    return f"in one node with {other}: {pair.gain:.2f}x as fast as the two apart"
