"""What is optimised: the model with all that its Convs could take in, and its data at every batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnxruntime

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.model_file import files_of, is_there, model_from_proto
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import PRECISIONS, SwapResult, swap, swap_apart
from convswap.graph.weights_apart import Weights, put_together, taken_apart
from convswap.inputs.feeds import Feeds, Source, declared_inputs
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.subject import Subject, open_subject, source_of
from convswap.optimizing.segments import Segment, pairs_of, segments_of
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer
from convswap.runtime.memory import free_memory, in_bytes
from convswap.runtime.op_libraries import OpLibraries
from convswap.runtime.sessions import Side, make_session

Model = str | os.PathLike[str] | onnx.ModelProto

# What the process takes at most, of the model's own size: the model as it was read, the weights that sessions
# share and a copy with all Convs swapped, and on the CPU each session's weights in the order of its kernels.
# 7.0 were measured of a fully connected layer of 0.63 GB.
_TIMES_ITS_SIZE = {"cpu": 7.5, "cuda": 4.5}
# Of what is free, the rest is for the others on the machine.
_SHARE_OF_FREE = 0.9

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
class Apart:
    """A model without its large weights, and those, as `convswap.graph.weights_apart` has them."""

    model: onnx.ModelProto
    weights: Weights

    def session(self, side: Side, device: Device) -> onnxruntime.InferenceSession:
        """Return a session of the whole model; its errors are those of `make_session`."""
        return make_session(self.model, side, device, weights=self.weights)


@dataclass(frozen=True)
class Prepared:
    """A model, the same with all Convs fused as far as they go, and its data at every batch.

    `original` is the former, `swapped` the latter. `segments` has each Conv by itself, `pairs` depthwise ones
    with the 1x1 Convs behind them.
    """

    options: OptimizeOptions
    device: Device
    subject: Subject
    sources: Mapping[int, Source]  # by batch
    original: Apart
    swapping: SwapResult
    swapped: Apart
    segments: tuple[Segment, ...]
    pairs: tuple[Segment, ...] = ()

    def capture(self, layers: Sequence[ConvLayer]) -> Capture:
        """Return what gives `layers`, of the main graph, their inputs."""
        return Capture(self.swapped.model, layers, self.device, self.swapped.weights)

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
    _check_memory(model, device)
    subject = open_subject(model, None, options.input_shape, options.inputs, tensor_inputs=True)
    if subject.swapped_before:
        raise ConvswapError(
            f"'{subject.title}' has {subject.swapped_before} Conv swapped already; give the model as it was"
        )
    sources = [_source(subject, batch, device) for batch in options.batches or (None,)]
    # A depthwise Conv and the one behind it stay two here: each is measured by itself, then both together.
    original = Apart(*taken_apart(model_from_proto(subject.plain)))
    swapping = swap_apart(put_together(original.model, original.weights))
    return Prepared(
        options=options,
        device=device,
        subject=subject,
        sources={source.batch: source for source in sources},
        original=original,
        swapping=swapping,
        swapped=Apart(*taken_apart(swapping.model)),
        segments=segments_of(swapping.to_proto(), unfused_model(subject.plain, swapping)),
        pairs=_pairs(subject.plain),
    )


def _check_memory(model: Model, device: Device) -> None:
    """Refuse a model that is so large that the system would end the process.

    Raises:
        ConvswapError: it is.
    """
    free, size = free_memory(), _size(model)
    needed = round(_TIMES_ITS_SIZE[device.name] * size)
    if free is not None and needed > _SHARE_OF_FREE * free:
        raise ConvswapError(
            f"the memory does not suffice: optimizing takes about {in_bytes(needed)}, for a model of "
            f"{in_bytes(size)}, and {in_bytes(free)} are free; close other programs, or use "
            "`convswap compare` and `convswap swap`, which take less"
        )


def _size(model: Model) -> int:
    if isinstance(model, onnx.ModelProto):
        return model.ByteSize()
    # A network's name is no file, and no network is that large.
    return sum(file.stat().st_size for file in files_of(model) if is_there(file))


def _pairs(plain: onnx.ModelProto) -> tuple[Segment, ...]:
    swapping = swap(plain, fuse=True)
    # No other Conv is taken in.
    fronts = {one.node: one.taken[0][1] for one in swapping.fused if one.taken[0][0] == "Conv"}
    return pairs_of(swapping.to_proto(), unfused_model(plain, swapping), fronts) if fronts else ()


def _source(subject: Subject, batch: int | None, device: Device) -> Source:
    # What a user gave is repeated where it is of fewer samples; of a data set so many are made.
    return source_of(subject, None if subject.given is not None else batch, batch, device)
