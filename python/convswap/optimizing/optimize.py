"""Optimise a model for this device: swap or fuse the Convs that get faster, and check the whole model.

To swap a Conv is to replace it by convswap's op, with or without fusing other nodes into it. In results,
"swapped" means that nothing is fused, or only biases, scales and batch normalisations; "fused" means more.
"""

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
from convswap.optimizing.choice import DEFAULT_VARIANT, speedup
from convswap.optimizing.end_to_end import NOT_SELECTED, Candidate, best_end_to_end
from convswap.optimizing.measurement_cache import MeasurementCache
from convswap.optimizing.measuring import (
    MeasuredSegment,
    MeasurementContext,
    measure_convs,
    with_fastest_algorithms,
)
from convswap.optimizing.pairs import MeasuredPair, faster_pairs
from convswap.optimizing.preparation import MATCH, OptimizeOptions, Prepared, SegmentInputs, prepare
from convswap.optimizing.result import NodeResult, Optimization
from convswap.output.files import check_writable
from convswap.progress import Progress, silent
from convswap.runtime.device import choose_device, environment
from convswap.runtime.layers import INT8
from convswap.runtime.library import OpLibraries, using_op_libraries
from convswap.runtime.memory import released_at_once

# Reasons that reports give for Convs that are left as they are.
_NOT_RUN = "the branch that it is in is not run with this input"
_QUANTISED_TRIED = "with QuantConv nodes the whole model is not faster, or its outputs differ"
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
    """Time each Conv of `model` by the default provider, swapped and fused; save the fastest combination.

    Each Conv and the nodes that can be fused with it are timed as one segment, on its real inputs. The
    fastest variant is selected if it is at least 2 % faster in the mean, and more than 2 % slower at no
    batch. A depthwise Conv and the 1x1 Conv that follows, of equal precision, become one node if that is
    faster, by the same rule, than the two in their fastest variants, and all such pairs together make the
    model faster. On a GPU several algorithms are timed for each faster Conv that takes at least 2 % of the
    time of all Convs, and the file names the fastest on this device.

    Then the whole model is timed against the original, and the outputs are compared. On a GPU a
    swapped Conv whose segment takes up to 1.18 times the default provider's time is tried too. The model is
    written only if it is faster and its outputs agree. If the outputs differ even without depthwise Convs
    fused with 1x1 Convs, the Convs that change them by themselves are left as they are. On a GPU the whole
    model is also tried with tensors between Convs in NHWC, see `swap`, and with QuantConv nodes in place of
    its quantised Convs. On the CPU these are left as they are.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        output: the file to write; None writes no file.
        batches: the batch sizes, by default that of `compare`. With several the geometric mean counts.
        device: "cuda" or "cpu"; by default the GPU if there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "match" chooses for each Conv a precision that is as accurate as the default provider;
            "tf32" or "ieee" is for all Convs.
        input_shape: the shape of one sample if the model leaves it open, as for `compare`.
        inputs: the values of the model's inputs, as for `compare`.
        op_libraries: files with custom ops of others that the model needs.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read, swapped or run, the
            device cannot be used, or the file cannot be written.
    """
    if output is not None and not isinstance(model, onnx.ModelProto):
        with released_at_once():
            check_writable(output, {"a file of the model that is read": model_files(model)}, "output")
    sizes = None if batches is None else batch_sizes(batches)
    options = OptimizeOptions(sizes, device, precision, input_shape, inputs, op_libraries)
    optimization = optimize_with(model, output, options, progress)
    if optimization.not_written is not None:
        raise ConvswapError(optimization.not_written)
    return optimization


def optimize_with(
    model: UserModel,
    output: str | os.PathLike[str] | None,
    options: OptimizeOptions,
    progress: Progress | None = None,
) -> Optimization:
    """Do the same as `optimize`, but set `not_written` instead of raising if saving fails at the end.

    Unlike `optimize`, do not check beforehand that `output` is not a file of `model`.
    """
    options.check()
    if output is not None:
        check_model_target(output)
    with using_op_libraries(options.op_libraries):
        optimization, swapping = optimize_unwritten(model, options, progress or silent)
    if output is None or swapping is None:
        return optimization
    # Free the sessions first: saving copies the model twice.
    gc.collect()
    try:
        swapping.save(output)
    except ConvswapError as error:  # the measurements are still worth reporting
        return replace(optimization, not_written=str(error))
    return replace(optimization, written=Path(output))


def optimize_unwritten(
    model: UserModel, options: OptimizeOptions, progress: Progress
) -> tuple[Optimization, SwapResult | None]:
    """Return the result, with nothing written yet, and the model to write.

    The model is None if it is not faster, or its outputs differ.
    """
    device = choose_device(options.device)
    progress("reading the model")
    with released_at_once():
        prepared = prepare(model, options, device)
    cache = MeasurementCache(environment(device))
    with shape_notes_on_error(*prepared.shape_arguments):
        measured, pairs = _measure(prepared, cache, progress)
        progress("running the whole model")
        best = best_end_to_end(prepared, measured, pairs)
    optimization = Optimization(
        model=prepared.tested.title,
        device=device,
        environment=environment(device),
        options=_options(prepared),
        nodes=tuple(node_results(prepared, measured, best)),
        whole=best.times,
        errors=best.errors,
        reference=best.reference,
        answers_agree=best.outputs_agree,
        written=None,
        notes=(*_notes(prepared, cache), *([] if best.layout is None else best.layout.lines()[:1])),
    )
    return optimization, _swap_best(best, prepared, model)


def _measure(
    prepared: Prepared, cache: MeasurementCache, progress: Progress
) -> tuple[tuple[MeasuredSegment, ...], tuple[MeasuredPair, ...]]:
    """Return the measurements of each Conv, and the pairs that one node computes faster."""
    if not prepared.segments:
        return (), ()
    context = MeasurementContext(prepared, SegmentInputs(prepared), cache, progress)
    measured = with_fastest_algorithms(measure_convs(context), context)
    return measured, faster_pairs(measured, context)


def _swap_best(best: Candidate, prepared: Prepared, model: UserModel) -> SwapResult | None:
    """Return the user's model swapped as in `best`, if that is faster and the outputs agree."""
    if not (best.is_faster and best.outputs_agree and best.choices is not None):
        return None
    # For user inputs the measured model may have tensors in place of sequences, optionals and defaults.
    user_model = prepared.original if prepared.options.inputs is None else open_model(model)[1]
    return swap_selected(
        user_model,
        best.choices,
        NOT_SELECTED,
        layout=best.layout_option,
        batch=max(prepared.sources),
        quantise=bool(best.quantised),
    )


def _options(prepared: Prepared) -> dict[str, Any]:
    return {
        "batches": list(prepared.sources),
        "precision": prepared.options.precision,
        "data": prepared.tested.dataset,
    }


def _notes(prepared: Prepared, cache: MeasurementCache) -> list[str]:
    notes = []
    if cache.hits:
        notes.append(
            f"measurements of an earlier call: {cache.hits}, from {cache.path}; delete it to repeat them"
        )
    device = prepared.device
    if device.name == "cpu" and device.reason != "asked for":
        notes.append(f"measured on the CPU: {device.reason}")
    if device.name == "cpu":
        notes += prepared.notes
    notes += shape_notes(*prepared.shape_arguments)
    return notes


def node_results(
    prepared: Prepared, measured: Sequence[MeasuredSegment], best: Candidate
) -> list[NodeResult]:
    """Return a result for every Conv: the measured Convs first, then the others."""
    selected = best.choices or {}
    fused = {fusion.node: fusion for fusion in best.fused}
    batches = list(prepared.sources)
    pairs = {name: pair for pair in best.pairs for name in pair.names}
    convs = [best.convs.get(conv.segment.name, conv) for conv in measured]
    rows = [
        _node_result(conv, conv.segment.name in selected, fused, batches, pairs.get(conv.segment.name))
        for conv in convs
    ]
    rows = [
        replace(row, why=best.wrong_convs[row.node], changes_answers=True)
        if row.node in best.wrong_convs
        else row
        for row in rows
    ]
    rows += [NodeResult(left.node, "default", left.reason) for left in prepared.left]
    if best.quantised:
        quantised = {record.node: _quantised_result(record) for record in best.quantised}
        rows = [quantised.get(row.node, row) for row in rows]
    else:
        tried = {record.node for record in prepared.quantised} & {left.node for left in prepared.left}
        rows = [replace(row, why=_QUANTISED_TRIED) if row.node in tried else row for row in rows]
    known = {row.node for row in rows}
    not_run = {segment.name for segment in prepared.segments}
    return rows + [
        NodeResult(name, "default", _NOT_RUN if name in not_run else _INNER)
        for name in prepared.swappable
        if name not in known
    ]


def _quantised_result(record: Fused) -> NodeResult:
    """Return the result for a QuantConv, which is not timed alone."""
    return NodeResult(
        node=record.node,
        taken="fused",
        why="the whole model is tried with QuantConv nodes",
        takes_in=tuple(op for op, _ in record.fused_nodes),
        precision=INT8,
    )


def _node_result(
    conv: MeasuredSegment,
    is_selected: bool,
    fused: Mapping[str, Fused],
    batches: Sequence[int],
    pair: MeasuredPair | None,
) -> NodeResult:
    name, variant = conv.segment.name, conv.convswap_variant
    default = conv.times[DEFAULT_VARIANT]
    ratio = speedup(default, conv.times[variant])
    ops = tuple(op for op, _ in fused[name].fused_nodes) if name in fused else ()
    is_fused = variant is not Stage.FOLDED or pair is not None
    return NodeResult(
        node=name,
        taken="fused" if is_selected and is_fused else "swapped" if is_selected else "default",
        why=_reason(conv, is_selected, ratio) if pair is None else _pair_reason(conv, pair),
        takes_in=ops if is_selected else (),
        precision=conv.precision,
        algorithm=", ".join(dict.fromkeys(conv.algorithms)) if pair is None else "",
        default_ms=dict(zip(batches, default, strict=True)),
        best_ms=dict(zip(batches, conv.times[variant], strict=True)),
        errors=conv.measurement.errors,
    )


def _reason(conv: MeasuredSegment, is_selected: bool, ratio: float) -> str:
    errors = conv.measurement.errors
    if conv.precision is None and errors is not None:
        error = min(error for name, error in errors.items() if name != "default")
        return f"convswap is less accurate here: {error:.1e}, the default {errors['default']:.1e}"
    if is_selected and conv.last_stage is not None:
        return f"{ratio:.2f}x as fast alone; fused this far it makes the whole model faster"
    if is_selected and not conv.is_faster:
        return f"{ratio:.2f}x as fast alone, but the whole model is faster with it"
    if is_selected:
        return f"{ratio:.2f}x as fast"
    if conv.is_faster:
        return f"{ratio:.2f}x as fast alone, but the whole model is faster without"
    return f"convswap is not faster: {ratio:.2f}x"


def _pair_reason(conv: MeasuredSegment, pair: MeasuredPair) -> str:
    (other,) = (name for name in pair.names if name != conv.segment.name)
    return f"in one node with {other}: {pair.speedup:.2f}x as fast as two nodes"
