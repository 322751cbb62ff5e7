"""What the segments of a model are fed in real runs, at every batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime

from convswap.graph.branches import Inner, home_of, with_inner_values
from convswap.graph.plain_model import plain_model
from convswap.optimizing.apart import Apart
from convswap.optimizing.memory import check_batch
from convswap.optimizing.preparation import Prepared
from convswap.optimizing.segments import Segment, Shapes
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, BoundRun, make_session, on_device

Values = Mapping[str, onnxruntime.OrtValue]
Inputs = Sequence[Values]


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
        return tuple({name: tuple(value.shape()) for name, value in own.items()} for own in fed)


class _AtBatch:
    """What segments are fed when the model is fed `feeds`."""

    def __init__(self, prepared: Prepared, feeds: Values) -> None:
        self._feeds = feeds
        device = prepared.device
        outside = [segment.layer for segment in prepared.segments if not segment.path]
        inside = [segment for segment in prepared.segments if segment.path]
        self._capture = prepared.capture(outside) if outside else None
        whole = Apart(prepared.inlined, prepared.original.weights)
        self._of_branches = _BranchCapture(whole, inside, device) if inside else None

    def inputs(self, segment: Segment) -> Values | None:
        """Return what `segment` is fed; None where it is in a branch that is not run."""
        if segment.path:
            assert self._of_branches is not None
            return self._of_branches.inputs(segment, self._feeds)
        assert self._capture is not None
        return self._capture.inputs(segment.layer, self._feeds)


class _BranchCapture:
    """What `Capture` is for the main graph, for segments in the branches of Ifs."""

    def __init__(self, whole: Apart, segments: Sequence[Segment], device: Device) -> None:
        self._graph, self._device = whole.model.graph, device
        wanted = {
            home: segment.layer.element_type
            for segment in segments
            for home in (_result(segment), *self._homes(segment).values())
            if home is not None
        }
        model, self._outputs = with_inner_values(plain_model(whole.model), wanted)
        self._session = make_session(model, DEFAULT, device, optimizes=False, weights=whole.weights)

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
