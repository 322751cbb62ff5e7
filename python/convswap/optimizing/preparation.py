"""What is optimised: the model with all that its Convs could take in, and its data at every batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import PRECISIONS, Left, swap, swap_apart
from convswap.graph.weights_apart import moved_apart, put_together
from convswap.inputs.feeds import Feeds, Source, declared_inputs
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.subject import Subject, open_subject, source_of
from convswap.optimizing.apart import Apart
from convswap.optimizing.memory import check_model
from convswap.optimizing.segments import Segment, pairs_of, segments_of
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer
from convswap.runtime.op_libraries import OpLibraries

Model = str | os.PathLike[str] | onnx.ModelProto

# "match": for every Conv a precision that is as accurate as the default provider is on that Conv.
MATCH = "match"


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

    `original` is the model, `inlined` the same without functions that have Convs: the Convs of `segments`,
    which have each by itself, and of `pairs`, depthwise ones with the 1x1 Convs behind them, are fed values
    of it. `swapped` names the Convs that can be swapped, `left` has the others, `notes` are the swap's.
    """

    options: OptimizeOptions
    device: Device
    subject: Subject
    sources: Mapping[int, Source]  # by batch
    original: Apart
    inlined: onnx.ModelProto
    swapped: tuple[str, ...]
    left: tuple[Left, ...]
    notes: tuple[str, ...]
    segments: tuple[Segment, ...]
    pairs: tuple[Segment, ...] = ()

    def capture(self, layers: Sequence[ConvLayer]) -> Capture:
        """Return what gives `layers`, of the main graph, their inputs."""
        return Capture(self.inlined, layers, self.device, self.original.weights)

    @property
    def sample(self) -> Feeds:
        """What one run of the answers that are compared is fed."""
        return next(iter(self.sources.values())).first(1)

    @property
    def shaped(self) -> tuple[Any, ...]:
        """What notes and errors about shapes that were made up are told of."""
        source = next(iter(self.sources.values()))
        return declared_inputs(self.subject.model), source.inputs, source.batch


def prepare(model: Model, options: OptimizeOptions, device: Device) -> Prepared:
    """Return `model` prepared; the errors are those of `optimize`."""
    subject = open_subject(
        model, None, options.input_shape, options.inputs, weights_apart=True, tensor_inputs=True
    )
    if subject.swapped_before:
        raise ConvswapError(
            f"'{subject.title}' has {subject.swapped_before} Conv swapped already; give the model as it was"
        )
    check_model(subject.plain, subject.weights, device)
    sources = [_source(subject, batch, device) for batch in options.batches or (None,)]
    # A depthwise Conv and the one behind it stay two here: each is measured by itself, then both together.
    original = Apart(subject.plain, subject.weights)
    swapping = swap_apart(put_together(original.model, original.weights))
    swapped = moved_apart(swapping.model)[0]
    unfused = unfused_model(original.model, swapping)
    return Prepared(
        options=options,
        device=device,
        subject=subject,
        sources={source.batch: source for source in sources},
        original=original,
        inlined=swapped if unfused is None else unfused,
        swapped=swapping.swapped,
        left=swapping.left,
        notes=swapping.notes,
        segments=segments_of(swapped, unfused, original.weights),
        pairs=_pairs(original),
    )


def _pairs(original: Apart) -> tuple[Segment, ...]:
    swapping = swap(put_together(original.model, original.weights), fuse=True)
    swapped = moved_apart(swapping.model)[0]
    # No other Conv is taken in.
    fronts = {one.node: one.taken[0][1] for one in swapping.fused if one.taken[0][0] == "Conv"}
    if not fronts:
        return ()
    return pairs_of(swapped, unfused_model(original.model, swapping), fronts, original.weights)


def _source(subject: Subject, batch: int | None, device: Device) -> Source:
    # What a user gave is repeated where it is of fewer samples; of a data set so many are made.
    return source_of(subject, None if subject.given is not None else batch, batch, device)
