"""What is optimised: the model with all that its Convs could take in, and its data at every batch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.model_file import files_of, is_there
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import PRECISIONS, SwapResult, swap, swap_apart
from convswap.inputs.feeds import Source, declared_inputs
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.subject import Subject, open_subject, source_of
from convswap.optimizing.segments import Segment, pairs_of, segments_of
from convswap.runtime.device import Device
from convswap.runtime.memory import free_memory, in_bytes
from convswap.runtime.op_libraries import OpLibraries

Model = str | os.PathLike[str] | onnx.ModelProto

# What the process takes at most, of the model's own size: the model before and after, twice over where ONNX
# Runtime loads it, and on the CPU its weights again in the order of each session's kernels. 9.0 were measured
# of a fully connected layer of 0.63 GB.
_TIMES_ITS_SIZE = {"cpu": 9, "cuda": 6}
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
class Prepared:
    """A model, the same with all Convs fused as far as they go, and its data at every batch.

    `segments` has each Conv by itself, `pairs` depthwise ones with the 1x1 Convs behind them.
    """

    options: OptimizeOptions
    device: Device
    subject: Subject
    sources: Mapping[int, Source]  # by batch
    swapping: SwapResult
    swapped: onnx.ModelProto
    segments: tuple[Segment, ...]
    pairs: tuple[Segment, ...] = ()

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
    swapping = swap_apart(subject.plain)
    swapped = swapping.to_proto()
    return Prepared(
        options=options,
        device=device,
        subject=subject,
        sources={source.batch: source for source in sources},
        swapping=swapping,
        swapped=swapped,
        segments=segments_of(swapped, unfused_model(subject.plain, swapping)),
        pairs=_pairs(subject.plain),
    )


def _check_memory(model: Model, device: Device) -> None:
    """Refuse a model that is so large that the system would end the process.

    Raises:
        ConvswapError: it is.
    """
    free, size = free_memory(), _size(model)
    needed = _TIMES_ITS_SIZE[device.name] * size
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
