"""Preparation for `optimize`: the segments of the model that are measured, and its data at every batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.branches import SubgraphValue, locate_value, with_values_as_outputs
from convswap.graph.external_weights import SplitModel, Weights, as_split, split_model_in_place
from convswap.graph.fusion.fuse import Fused
from convswap.graph.plain_model import plain_model
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import (
    PRECISIONS,
    NotSwapped,
    SwapResult,
    quantised_convs,
    swap,
    swap_without_pairs,
)
from convswap.inputs.feeds import Feeds, Source, declared_inputs
from convswap.inputs.model_with_data import ModelWithData, UserModel, open_model_with_data, source_of
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.user_inputs import UserInputs
from convswap.optimizing.segments import Segment, Shapes, pairs_of, segments_of
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer
from convswap.runtime.library import OpLibraries
from convswap.runtime.memory import (
    exceeds_free_memory,
    file_backed_bytes,
    free_memory,
    memory_error,
    run_value_bytes,
    session_creation_bytes,
    session_weight_bytes,
    size_text,
)
from convswap.runtime.sessions import DEFAULT, BoundRun, make_session, on_device, shapes_of

# "match" chooses for every Conv a precision that is as accurate as the default provider.
MATCH = "match"

# The reason that a report gives for a quantised Conv on the CPU.
LEFT_QUANTISED = "it is quantised, and ONNX Runtime's own kernels for codes are faster on the CPU"

# Copies of the model's protobuf message, without the large weights, that exist at the same time.
_PROTO_COPIES = 4
# The original and the model with Convs swapped.
_SIDES = 2

NamedValues = Mapping[str, onnxruntime.OrtValue]
InputsByBatch = Sequence[NamedValues]


@dataclass(frozen=True)
class OptimizeOptions:
    """The arguments of `convswap.optimize` other than the model and the file."""

    batches: tuple[int, ...] | None = None
    device: str | None = None
    precision: str = MATCH
    input_shape: InputShape | None = None
    inputs: UserInputs | None = None
    op_libraries: OpLibraries = ()

    def check(self) -> None:
        """Raise ConvswapError for an option that is wrong for every model and device."""
        if self.precision not in (MATCH, *PRECISIONS):
            raise unknown_name("precision", self.precision, (MATCH, *PRECISIONS))
        for batch in self.batches or ():
            require_count("batch", batch)
        if self.batches is not None and (not self.batches or len(set(self.batches)) < len(self.batches)):
            raise ConvswapError(
                f"batches were given as {list(self.batches)}; expected each once, and one at least"
            )


@dataclass(frozen=True)
class Prepared:
    """A model with the segments to measure, and its data at every batch.

    `segments` has a segment for each Conv of the main graph that can be swapped, and for each such Conv with
    constant weights in the branches of Ifs. `pair_segments` has a segment for each depthwise Conv of the main
    graph that can be fused with the 1x1 Conv that follows. The inputs of segments are values of `inlined`:
    the model before fusing, with the functions that contain Convs inlined. Its Convs are ONNX's or
    convswap's, with the same names of values. `swappable` names the Convs that can be swapped, `left` has the
    others, and `notes` are those of the swap. `quantised` has the QuantConv nodes that can be made on a card.
    """

    options: OptimizeOptions
    device: Device
    tested: ModelWithData
    sources: Mapping[int, Source]  # by batch
    inlined: ir.Model
    swappable: tuple[str, ...]
    left: tuple[NotSwapped, ...]
    notes: tuple[str, ...]
    segments: tuple[Segment, ...]
    pair_segments: tuple[Segment, ...] = ()
    quantised: tuple[Fused, ...] = ()

    @property
    def original(self) -> ir.Model:
        """The user's model; for user inputs, tensors may replace its sequences, optionals and defaults."""
        return self.tested.model

    def capture(self, layers: Sequence[ConvLayer]) -> Capture:
        """Return the capture of the inputs of `layers`, which are in the main graph."""
        return Capture(self.inlined, layers, self.device)

    @property
    def sample(self) -> Feeds:
        """The inputs of the run whose outputs are compared: one sample, or one batch if its size is fixed."""
        return next(iter(self.sources.values())).first(1)

    @property
    def shape_arguments(self) -> tuple[Any, ...]:
        """The arguments of `shape_notes` and `shape_notes_on_error`."""
        source = next(iter(self.sources.values()))
        return declared_inputs(self.tested.model), source.inputs, source.batch


def prepare(model: UserModel, options: OptimizeOptions, device: Device) -> Prepared:
    """Return `model` prepared for `optimize`, which documents the errors."""
    tested = open_model_with_data(model, None, options.input_shape, options.inputs)
    if tested.swapped_before:
        raise ConvswapError(
            f"'{tested.title}' has {tested.swapped_before} Conv swapped already; give the model as it was"
        )
    # User inputs with fewer samples than the batch are repeated; a data set has as many as are asked for.
    sources = [
        source_of(tested, None if tested.user_inputs is not None else batch, batch, device)
        for batch in options.batches or (None,)
    ]
    # A depthwise Conv and the 1x1 Conv that follows are two segments here, and one segment in
    # `pair_segments`.
    original = as_split(tested.model)
    check_model(original, device)
    quantised = quantised_convs(tested.model)
    left = {record.node: LEFT_QUANTISED for record in quantised} if device.name == "cpu" else {}
    swapping = swap_without_pairs(tested.model, left, may_be_empty=bool(quantised))
    unfused = unfused_model(tested.model, swapping)
    swapped, unfused_split = _as_split(swapping, unfused, original.weights)
    return Prepared(
        options=options,
        device=device,
        tested=tested,
        sources={source.batch: source for source in sources},
        inlined=swapped.to_model() if unfused is None else unfused,
        swappable=swapping.swapped,
        left=swapping.not_swapped,
        notes=swapping.notes,
        segments=segments_of(swapped, unfused_split),
        pair_segments=_pair_segments(tested.model, original.weights, left),
        quantised=quantised if device.name == "cuda" else (),
    )


def _as_split(
    swapping: SwapResult, unfused: ir.Model | None, weights: Weights
) -> tuple[SplitModel, SplitModel | None]:
    """Return the swapped model, with the large `weights` of the original, and `unfused` as split models."""
    swapped = split_model_in_place(swapping.model)._replace(weights=weights)
    return swapped, None if unfused is None else as_split(unfused)


def _pair_segments(original: ir.Model, weights: Weights, left: Collection[str]) -> tuple[Segment, ...]:
    """Return the segments of the pairs in which no Conv is named in `left`."""
    try:
        swapping = swap(original, fuse=True, quantise=False)
    except ConvswapError:
        # Every convolution is a QLinearConv or ConvInteger.
        return ()
    swapped, unfused = _as_split(swapping, unfused_model(original, swapping), weights)
    # The only Conv that another Conv can be fused with is the depthwise Conv in front.
    depthwise_names = {
        fusion.node: fusion.fused_nodes[0][1]
        for fusion in swapping.fused
        if fusion.fused_nodes[0][0] == "Conv" and not {fusion.node, fusion.fused_nodes[0][1]} & set(left)
    }
    if not depthwise_names:
        return ()
    return pairs_of(swapped, unfused, depthwise_names)


def check_model(model: SplitModel, device: Device) -> None:
    """Refuse a model for which there is too little memory, before the system kills the process.

    The peak is the largest of four: the creation of the original's session; the session with all Convs
    swapped, which may have folded weights, besides the original's session; the creation of a session with one
    Conv swapped, besides the original's session; and the reference, which widens the largest weight to
    float64.

    Raises:
        ConvswapError: there is too little memory.
    """
    free = free_memory()
    if free is None:
        return
    arrays = list(model.weights.values())
    total = sum(values.nbytes for values in arrays)
    original = session_weight_bytes(arrays) if device.name == "cpu" else 0
    widest = max((8 * values.size for values in arrays), default=0)
    *others, largest = sorted(arrays, key=lambda values: values.nbytes) or [np.empty(0)]
    all_swapped = original + total + session_weight_bytes(arrays)
    one_swapped = original + 2 * largest.nbytes + session_creation_bytes(others)
    peak = max(session_creation_bytes(arrays), all_swapped, one_swapped, widest)
    size = model.message.ByteSize()
    needed = file_backed_bytes(arrays) + peak + _PROTO_COPIES * size
    if exceeds_free_memory(needed, free):
        what = f"a model of {size_text(total + size)}"
        advice = "close other programs, or use `convswap compare` and `convswap swap`, which take less"
        raise memory_error("optimizing", what, needed, free, advice)


def check_batch(shapes: Iterable[Sequence[int]], batch: int) -> None:
    """Refuse a batch for whose values there is too little memory; `shapes` are of the Convs' inputs.

    Raises:
        ConvswapError: there is too little memory.
    """
    free, needed = free_memory(), _SIDES * run_value_bytes(shapes, batch)
    if free is not None and exceeds_free_memory(needed, free):
        advice = "give a smaller batch, or close other programs"
        raise memory_error("optimizing", f"batches of {batch}", needed, free, advice)


class SegmentInputs:
    """The inputs of the segments, computed for one segment at a time, since all might not fit into memory."""

    def __init__(self, prepared: Prepared) -> None:
        layers = [segment.layer for segment in prepared.segments if not segment.path]
        shapes = prepared.capture(layers).shapes(on_device(prepared.sample, prepared.device))
        check_batch(shapes.values(), max(prepared.sources))
        # There is a session for each batch, since cuDNN chooses algorithms anew when shapes change.
        self._by_batch = [
            _BatchInputs(prepared, on_device(source.first(batch), prepared.device))
            for batch, source in prepared.sources.items()
        ]

    def of(self, segment: Segment) -> InputsByBatch | None:
        """Return the inputs of `segment` at each batch, in the memory of the device.

        None if the segment is in a branch that does not run at every batch.
        """
        inputs = [batch_inputs.inputs(segment) for batch_inputs in self._by_batch]
        present = [values for values in inputs if values is not None]
        return present if len(present) == len(inputs) else None

    def shapes(self, segment: Segment) -> tuple[Shapes, ...] | None:
        """Return the shapes of the inputs of `segment` at each batch; None as for `of`."""
        inputs = self.of(segment)
        if inputs is None:
            return None
        return tuple(map(shapes_of, inputs))


class _BatchInputs:
    """The inputs of segments when the model's inputs are `feeds`."""

    def __init__(self, prepared: Prepared, feeds: NamedValues) -> None:
        self._feeds = feeds
        device = prepared.device
        outside = [segment.layer for segment in prepared.segments if not segment.path]
        inside = [segment for segment in prepared.segments if segment.path]
        self._capture = prepared.capture(outside) if outside else None
        self._branch_capture = _BranchCapture(prepared.inlined, inside, device) if inside else None

    def inputs(self, segment: Segment) -> NamedValues | None:
        """Return the inputs of `segment`; None if it is in a branch that does not run."""
        if segment.path:
            assert self._branch_capture is not None
            return self._branch_capture.inputs(segment, self._feeds)
        assert self._capture is not None
        return self._capture.inputs(segment.layer, self._feeds)


class _BranchCapture:
    """Computes the inputs of segments in the branches of Ifs, as `Capture` does for the main graph.

    The location of an input is the graph that computes it and the value's name there; None for an input of
    the model.
    """

    def __init__(self, model: ir.Model, segments: Sequence[Segment], device: Device) -> None:
        self._graph, self._device = as_split(model).message.graph, device
        wanted = {
            location: segment.layer.element_type
            for segment in segments
            for location in (_result(segment), *self._locations(segment).values())
            if location is not None
        }
        split = as_split(plain_model(model))
        message, self._outputs = with_values_as_outputs(split.message, wanted)
        self._session = make_session(split._replace(message=message), DEFAULT, device, optimizes=False)

    def inputs(self, segment: Segment, feeds: NamedValues) -> NamedValues | None:
        """Return the inputs of `segment` when the model's are `feeds`; None if its branch does not run."""
        locations, result = self._locations(segment), self._outputs[_result(segment)]
        captured = {
            name: self._outputs[location] for name, location in locations.items() if location is not None
        }
        run = BoundRun(self._session, feeds, self._device, [result, *captured.values()])
        run.once()
        values = dict(zip(run.outputs, run.values(), strict=True))
        # A branch that does not run leaves a placeholder of one axis; a Conv's output has at least three.
        if len(values[result].shape()) == 1:
            return None
        return {name: values[captured[name]] if name in captured else feeds[name] for name in locations}

    def _locations(self, segment: Segment) -> dict[str, SubgraphValue | None]:
        return {name: locate_value(self._graph, segment.path, name) for name in segment.layer.input_names}


def _result(segment: Segment) -> SubgraphValue:
    return SubgraphValue(segment.path, str(segment.layer.node.output[0]))
