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
from convswap.graph.model_file import check_model_target, files_of
from convswap.graph.swap import SwapResult, swap_chosen
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape, shape_notes, telling_shapes
from convswap.inputs.subject import UserModel, open_model
from convswap.optimizing.choice import DEFAULT_WAY, speedup
from convswap.optimizing.kept import KeptMeasurements
from convswap.optimizing.measuring import Measured, Measuring, measure_convs, with_fastest_algorithms
from convswap.optimizing.pairs import MeasuredPair, gaining_pairs
from convswap.optimizing.preparation import MATCH, OptimizeOptions, Prepared, SegmentInputs, prepare
from convswap.optimizing.result import NodeResult, Optimization
from convswap.optimizing.whole import NOT_TAKEN, Whole, best_whole
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
    inputs: Given | None = None,
    op_libraries: OpLibraries = (),
    progress: Progress | None = None,
) -> Optimization:
    """Measure every Conv of `model` both ways on this device; save it with those swapped or fused that gain.

    Each Conv is timed with all that it can take in, as the default provider computes them, swapped, and fused
    up to each stage, with the input that it really gets, in turn. The fastest is taken where it gains more
    than the noise, and at no batch loses, and so is one node for a depthwise Conv and the 1x1 Conv behind it
    where that is faster than both as they are best apart; for those that take most of the time several
    algorithms are tried, and the file tells which was the fastest on this device. Then the whole model is
    timed against the original, and the outputs are compared: only a model that gains and whose answers agree
    is written. Where they differ, Convs that change them by themselves are left.

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
        op_libraries: files with custom ops of others that the model needs.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read, swapped or run, the
            device cannot be used, or the file cannot be written.
    """
    if output is not None and not isinstance(model, onnx.ModelProto):
        with freed_at_once():
            check_writable(output, {"a file of the model that is read": files_of(model)}, "output")
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
    """Do what `optimize` does, with its errors, but for a model that could not be saved in the end."""
    options.check()
    if output is not None:
        check_model_target(output)
    with sessions_with(options.op_libraries):
        found, swapping = _found(model, options, progress or silent)
    if output is None or swapping is None:
        return found
    # What was measured with is gone by now: to be written, a model is copied twice.
    gc.collect()
    try:
        swapping.save(output)
    except ConvswapError as error:  # what was measured is worth telling
        return replace(found, not_written=str(error))
    return replace(found, written=Path(output))


def _found(
    model: UserModel, options: OptimizeOptions, report: Progress
) -> tuple[Optimization, SwapResult | None]:
    """Return what is found, nothing written, and the model to write; None where it does not gain."""
    device = choose_device(options.device)
    report("reading the model")
    with freed_at_once():
        prepared = prepare(model, options, device)
    kept = KeptMeasurements(environment(device))
    with telling_shapes(*prepared.shaped):
        measured, pairs = _measure(prepared, kept, report)
        report("running the whole model")
        whole = best_whole(prepared, measured, pairs)
    found = Optimization(
        model=prepared.subject.title,
        device=device,
        environment=environment(device),
        options=_told_options(prepared),
        nodes=tuple(node_results(prepared, measured, whole)),
        whole=whole.times,
        errors=whole.errors,
        reference=whole.reference,
        answers_agree=whole.answers_agree,
        written=None,
        notes=tuple(_notes(prepared, kept)),
    )
    return found, _to_write(whole, prepared, model)


def _measure(
    prepared: Prepared, kept: KeptMeasurements, report: Progress
) -> tuple[tuple[Measured, ...], tuple[MeasuredPair, ...]]:
    """Return what was measured of each Conv, and the pairs of them that one node computes faster."""
    if not prepared.segments:
        return (), ()
    measuring = Measuring(prepared, SegmentInputs(prepared), kept, report)
    measured = with_fastest_algorithms(measure_convs(measuring), measuring)
    return measured, gaining_pairs(measured, measuring)


def _to_write(whole: Whole, prepared: Prepared, model: UserModel) -> SwapResult | None:
    """Return the model with what was taken, if it gains."""
    if not (whole.gains and whole.answers_agree and whole.taken is not None):
        return None
    # With inputs, what ran may have had tensors in the place of its sequences, optionals and defaults.
    as_given = prepared.original if prepared.options.inputs is None else open_model(model)[1]
    return swap_chosen(as_given, whole.taken, NOT_TAKEN)


def _told_options(prepared: Prepared) -> dict[str, Any]:
    return {
        "batches": list(prepared.sources),
        "precision": prepared.options.precision,
        "data": prepared.subject.dataset,
    }


def _notes(prepared: Prepared, kept: KeptMeasurements) -> list[str]:
    notes = []
    if kept.found:
        notes.append(
            f"measurements of an earlier call: {kept.found}, kept in {kept.path}; delete it to repeat them"
        )
    device = prepared.device
    if device.name == "cpu" and device.reason != "asked for":
        notes.append(f"measured on the CPU: {device.reason}")
    if device.name == "cpu":
        notes += prepared.notes
    notes += shape_notes(*prepared.shaped)
    return notes


def node_results(prepared: Prepared, measured: Sequence[Measured], whole: Whole) -> list[NodeResult]:
    """Return what was taken for every Conv: those that were measured, then the others."""
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
    one: Measured,
    is_taken: bool,
    fused: Mapping[str, Fused],
    batches: Sequence[int],
    pair: MeasuredPair | None,
) -> NodeResult:
    default = one.times[DEFAULT_WAY]
    best = one.ours
    gain = speedup(default, one.times[best])
    ops = tuple(op for op, _ in fused[one.segment.name].taken) if one.segment.name in fused else ()
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


def _why(one: Measured, is_taken: bool, gain: float) -> str:
    if one.precision is None and one.measurement.errors is not None:
        ours = min(error for name, error in one.measurement.errors.items() if name != "default")
        return f"ours is less accurate here: {ours:.1e}, the default {one.measurement.errors['default']:.1e}"
    if is_taken and one.last is not None:
        return f"{gain:.2f}x as fast alone; with as much taken in the whole model is faster"
    if is_taken and one.way is DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster with it"
    if is_taken:
        return f"{gain:.2f}x as fast"
    if one.way is not DEFAULT_WAY:
        return f"{gain:.2f}x as fast alone, but the whole model is faster without"
    return f"the default is as fast: ours {gain:.2f}x"


def _why_together(one: Measured, pair: MeasuredPair) -> str:
    front, behind = pair.names
    other = behind if one.segment.name == front else front
    return f"in one node with {other}: {pair.gain:.2f}x as fast as the two apart"
