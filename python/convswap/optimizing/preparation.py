"""What is optimised: the model with all that its Convs could take in, and its data at every batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.branches import Inner, home_of, with_inner_values
from convswap.graph.external_weights import SplitModel, Weights, as_split, moved_apart
from convswap.graph.plain_model import plain_model
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import PRECISIONS, Left, SwapResult, swap, swap_apart
from convswap.inputs.feeds import Feeds, Source, declared_inputs
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.subject import Subject, UserModel, open_subject, source_of
from convswap.optimizing.segments import Segment, Shapes, pairs_of, segments_of
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer
from convswap.runtime.library import OpLibraries
from convswap.runtime.memory import (
    free_memory,
    in_bytes,
    kept_by_session,
    mapped,
    too_large,
    too_much,
    values_of_run,
    while_made,
)
from convswap.runtime.sessions import DEFAULT, BoundRun, make_session, on_device, shapes_of

# "match": for every Conv a precision that is as accurate as the default provider is on that Conv.
MATCH = "match"

# The message of a model, of its large weights apart, is copied for every model that is made of it.
_MESSAGES = 4
# The original and the model with Convs swapped.
_SIDES = 2

Values = Mapping[str, onnxruntime.OrtValue]
Inputs = Sequence[Values]


@dataclass(frozen=True)
class OptimizeOptions:
    """The arguments of `convswap.optimize` beside the model and the file; it tells what each means."""

    batches: tuple[int, ...] | None = None
    device: str | None = None
    precision: str = MATCH
    input_shape: InputShape | None = None
    inputs: Given | None = None
    op_libraries: OpLibraries = ()

    def check(self) -> None:
        """Raise ConvswapError for what can be refused without a model or a device."""
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
    """A model, what a swap of all its Convs would be, and its data at every batch.

    `inlined` is the model without functions that have Convs: the Convs of `segments`, which have each by
    itself, and of `pairs`, depthwise ones with the 1x1 Convs behind them, are fed values of it. `swapped`
    names the Convs that can be swapped, `left` has the others, `notes` are the swap's.
    """

    options: OptimizeOptions
    device: Device
    subject: Subject
    sources: Mapping[int, Source]  # by batch
    inlined: ir.Model
    swapped: tuple[str, ...]
    left: tuple[Left, ...]
    notes: tuple[str, ...]
    segments: tuple[Segment, ...]
    pairs: tuple[Segment, ...] = ()

    @property
    def original(self) -> ir.Model:
        """The model as it was."""
        return self.subject.model

    def capture(self, layers: Sequence[ConvLayer]) -> Capture:
        """Return what gives `layers`, of the main graph, their inputs."""
        return Capture(self.inlined, layers, self.device)

    @property
    def sample(self) -> Feeds:
        """What one run of the answers that are compared is fed."""
        return next(iter(self.sources.values())).first(1)

    @property
    def shaped(self) -> tuple[Any, ...]:
        """What notes and errors about shapes that were made up are told of."""
        source = next(iter(self.sources.values()))
        return declared_inputs(self.subject.model), source.inputs, source.batch


def prepare(model: UserModel, options: OptimizeOptions, device: Device) -> Prepared:
    """Return `model` prepared; the errors are those of `optimize`."""
    subject = open_subject(model, None, options.input_shape, options.inputs)
    if subject.swapped_before:
        raise ConvswapError(
            f"'{subject.title}' has {subject.swapped_before} Conv swapped already; give the model as it was"
        )
    # What a user gave is repeated where it is of fewer samples; of a data set so many are made.
    sources = [
        source_of(subject, None if subject.given is not None else batch, batch, device)
        for batch in options.batches or (None,)
    ]
    # A depthwise Conv and the one behind it stay two here: each is measured by itself, then both together.
    original = as_split(subject.model)
    check_model(original, device)
    swapping = swap_apart(subject.model)
    unfused = unfused_model(subject.model, swapping)
    swapped, before = _swapped_and_before(swapping, unfused, original.weights)
    return Prepared(
        options=options,
        device=device,
        subject=subject,
        sources={source.batch: source for source in sources},
        inlined=swapped.whole() if unfused is None else unfused,
        swapped=swapping.swapped,
        left=swapping.left,
        notes=swapping.notes,
        segments=segments_of(swapped, before),
        pairs=_pairs(subject.model, original.weights),
    )


def _swapped_and_before(
    swapping: SwapResult, unfused: ir.Model | None, weights: Weights
) -> tuple[SplitModel, SplitModel | None]:
    """Return the swapped model, with no other large `weights` than the model had, and `unfused`."""
    swapped = moved_apart(swapping.model)._replace(weights=weights)
    return swapped, None if unfused is None else as_split(unfused)


def _pairs(original: ir.Model, weights: Weights) -> tuple[Segment, ...]:
    swapping = swap(original, fuse=True)
    swapped, before = _swapped_and_before(swapping, unfused_model(original, swapping), weights)
    # No other Conv is taken in.
    fronts = {one.node: one.taken[0][1] for one in swapping.fused if one.taken[0][0] == "Conv"}
    if not fronts:
        return ()
    return pairs_of(swapped, before, fronts)


def check_model(model: SplitModel, device: Device) -> None:
    """Refuse a model that is so large that the system would end the process.

    The most is taken where a session of the original is made; or one with some Convs swapped beside it, which
    may have weights of its own; or for the truth, which widens the largest weight to float64.

    Raises:
        ConvswapError: it is.
    """
    free = free_memory()
    if free is None:
        return
    arrays = list(model.weights.values())
    total = sum(values.nbytes for values in arrays)
    kept = kept_by_session(arrays) if device.name == "cpu" else 0
    widest = max((8 * values.size for values in arrays), default=0)
    *others, largest = sorted(arrays, key=lambda values: values.nbytes) or [np.empty(0)]
    all_swapped = kept + total + kept_by_session(arrays)
    one_swapped = kept + 2 * largest.nbytes + while_made(others)
    most = max(while_made(arrays), all_swapped, one_swapped, widest)
    size = model.message.ByteSize()
    needed = mapped(arrays) + most + _MESSAGES * size
    if too_much(needed, free):
        what = f"a model of {in_bytes(total + size)}"
        advice = "close other programs, or use `convswap compare` and `convswap swap`, which take less"
        raise too_large("optimizing", what, needed, free, advice)


def check_batch(shapes: Iterable[Sequence[int]], batch: int) -> None:
    """Refuse a batch whose values are too large; `shapes` are those of what the Convs are fed, for a sample.

    Raises:
        ConvswapError: they are.
    """
    free, needed = free_memory(), _SIDES * values_of_run(shapes, batch)
    if free is not None and too_much(needed, free):
        advice = "give a smaller batch, or close other programs"
        raise too_large("optimizing", f"batches of {batch}", needed, free, advice)


class SegmentInputs:
    """Gives what each segment is fed, one segment at a time: together they may not fit into memory."""

    def __init__(self, prepared: Prepared) -> None:
        layers = [segment.layer for segment in prepared.segments if not segment.path]
        shapes = prepared.capture(layers).shapes(on_device(prepared.sample, prepared.device))
        check_batch(shapes.values(), max(prepared.sources))
        # A session for each batch: cuDNN chooses anew where the shapes are not those of the run before.
        self._at_batches = [
            _AtBatch(prepared, on_device(source.first(batch), prepared.device))
            for batch, source in prepared.sources.items()
        ]

    def of(self, segment: Segment) -> Inputs | None:
        """Return what `segment` is fed at each batch, in the memory of the device.

        None where it is in a branch that is not run at every batch.
        """
        found = [own.inputs(segment) for own in self._at_batches]
        run = [values for values in found if values is not None]
        return run if len(run) == len(found) else None

    def shapes(self, segment: Segment) -> tuple[Shapes, ...] | None:
        """Return the shapes of these."""
        fed = self.of(segment)
        if fed is None:
            return None
        return tuple(map(shapes_of, fed))


class _AtBatch:
    """What segments are fed when the model is fed `feeds`."""

    def __init__(self, prepared: Prepared, feeds: Values) -> None:
        self._feeds = feeds
        device = prepared.device
        outside = [segment.layer for segment in prepared.segments if not segment.path]
        inside = [segment for segment in prepared.segments if segment.path]
        self._capture = prepared.capture(outside) if outside else None
        self._of_branches = _BranchCapture(prepared.inlined, inside, device) if inside else None

    def inputs(self, segment: Segment) -> Values | None:
        """Return what `segment` is fed; None where it is in a branch that is not run."""
        if segment.path:
            assert self._of_branches is not None
            return self._of_branches.inputs(segment, self._feeds)
        assert self._capture is not None
        return self._capture.inputs(segment.layer, self._feeds)


class _BranchCapture:
    """What `Capture` is for the main graph, for segments in the branches of Ifs."""

    def __init__(self, whole: ir.Model, segments: Sequence[Segment], device: Device) -> None:
        self._graph, self._device = as_split(whole).message.graph, device
        wanted = {
            home: segment.layer.element_type
            for segment in segments
            for home in (_result(segment), *self._homes(segment).values())
            if home is not None
        }
        split = as_split(plain_model(whole))
        message, self._outputs = with_inner_values(split.message, wanted)
        self._session = make_session(split._replace(message=message), DEFAULT, device, optimizes=False)

    def inputs(self, segment: Segment, feeds: Values) -> Values | None:
        """Return what `segment` is fed when the model is fed `feeds`; None where its branch is not run."""
        homes, result = self._homes(segment), self._outputs[_result(segment)]
        captured = {name: self._outputs[home] for name, home in homes.items() if home is not None}
        run = BoundRun(self._session, feeds, self._device, [result, *captured.values()])
        run.once()
        values = dict(zip(run.outputs, run.values(), strict=True))
        # What a Conv computes has three axes at least.
        if len(values[result].shape()) == 1:
            return None
        return {name: values[captured[name]] if name in captured else feeds[name] for name in homes}

    def _homes(self, segment: Segment) -> dict[str, Inner | None]:
        return {name: home_of(self._graph, segment.path, name) for name in segment.layer.fed}


def _result(segment: Segment) -> Inner:
    return Inner(segment.path, str(segment.layer.node.output[0]))
