"""What the segments of a model are fed in real runs, at every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime

from convswap.optimizing.preparation import Prepared
from convswap.optimizing.segments import Segment
from convswap.runtime.layers import Capture
from convswap.runtime.sessions import on_device

Inputs = Sequence[Mapping[str, onnxruntime.OrtValue]]


class SegmentInputs:
    """Gives what each segment is fed, one segment at a time: together they may not fit into memory."""

    def __init__(self, prepared: Prepared) -> None:
        device = prepared.device
        self._capture = Capture(prepared.swapped, [segment.layer for segment in prepared.segments], device)
        self._feeds = [on_device(source.first(batch), device) for batch, source in prepared.sources.items()]

    def of(self, segment: Segment) -> Inputs:
        """Return what `segment` is fed at each batch, in the memory of the device."""
        return [self._capture.inputs(segment.layer, feeds) for feeds in self._feeds]
