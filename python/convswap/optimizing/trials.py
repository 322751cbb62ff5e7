"""Times and errors of the ways to compute a segment, on its real inputs and the user's device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import onnxruntime
from onnx import helper

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.external_weights import SplitModel, Weights
from convswap.graph.swap import NodeChoice
from convswap.optimizing.choice import DEFAULT_WAY, Way, is_as_accurate
from convswap.optimizing.segments import Segment, side_by_side, swapped_model
from convswap.reference.metrics import relative_l2_error
from convswap.reference.operators import reference_conv
from convswap.runtime.device import Device
from convswap.runtime.layers import ConvLayer
from convswap.runtime.sessions import (
    CONVSWAP,
    DEFAULT,
    BoundRun,
    Side,
    host_array,
    make_session,
    run,
    shapes_of,
)
from convswap.timing.sampler import BACK_TO_BACK, measure, sample_of, single_runs

Values = Mapping[str, onnxruntime.OrtValue]
_Key = TypeVar("_Key")

# A run computes copies of a segment until it moves so many bytes, which takes a card some 20 us: less would
# be hidden by the host's time for a run.
_BYTES_OF_RUN = 64 << 20
_MOST_COPIES = 4
# Each way's runs of a round take a twentieth of the usual time, since a model has many segments.
_RULE = replace(BACK_TO_BACK, burst_ms=10.0)
# The most multiplications and additions for the float64 reference of a Conv: a tenth of a second on two
# cores.
_REFERENCE_OPERATIONS = 2e8


def times_of(segment: Segment, inputs: Values, precision: str, device: Device) -> dict[Way, float]:
    """Return the milliseconds that the segment takes in each way, in a longer model; the sides take turns."""
    shapes = shapes_of(inputs)
    copies = _copies(segment.layer, shapes, device)
    runs: dict[Way, BoundRun] = {
        DEFAULT_WAY: _copies_run(segment.default_model(shapes), copies, DEFAULT, inputs, device)
    }
    folded: Weights = {}
    for stage in segment.stages:
        model = segment.our_model(shapes, NodeChoice(precision=precision, max_stage=stage))
        # All stages share the folded weights.
        folded = folded or model.weights
        runs[stage] = _copies_run(model._replace(weights=folded), copies, CONVSWAP, inputs, device)
    return _in_turn(runs, copies)


def times_by_algorithm(
    segment: Segment, inputs: Values, choice: NodeChoice, algorithms: Sequence[str], device: Device
) -> dict[str, float]:
    """Return the milliseconds of the segment, as in `times_of`, with its Conv computed by each algorithm.

    The first algorithm must run; others that do not run are left out.
    """
    shapes = shapes_of(inputs)
    copies = _copies(segment.layer, shapes, device)
    runs: dict[str, BoundRun] = {}
    for name in algorithms:
        try:
            model = segment.our_model(shapes, replace(choice, algorithm=name))
            run_of_name = _copies_run(model, copies, CONVSWAP, inputs, device)
            run_of_name.once()
        except ConvswapError:
            # It may need more memory than is free, or than this ONNX Runtime gives to a node.
            if not runs:
                raise
            continue
        runs[name] = run_of_name
    return _in_turn(runs, copies)


def times_of_choices(
    segment: Segment, inputs: Values, ways: Sequence[Mapping[str, NodeChoice]], device: Device
) -> list[float]:
    """Return the milliseconds of the segment, as in `times_of`, with its Convs swapped as each way says."""
    shapes = shapes_of(inputs)
    copies = _copies(segment.layer, shapes, device)
    runs = {}
    for number, choices in enumerate(ways):
        model = segment.default_model(shapes)
        if choices:
            model, _ = swapped_model(model.to_model(), choices, "it is as fast as it was")
        runs[number] = _copies_run(model, copies, CONVSWAP if choices else DEFAULT, inputs, device)
    return list(_in_turn(runs, copies).values())


def _copies_run(model: SplitModel, copies: int, side: Side, inputs: Values, device: Device) -> BoundRun:
    several = model._replace(message=side_by_side(model.message, copies))
    session = make_session(several, side, device, merges_equal_nodes=False)
    return BoundRun(session, inputs, device)


def _in_turn(runs: Mapping[_Key, BoundRun], copies: int) -> dict[_Key, float]:
    """Return the milliseconds of one of the copies in each run."""
    times = measure({key: sample_of(run) for key, run in runs.items()}, _RULE)
    return {key: each.median / copies for key, each in times.items()}


def _copies(layer: ConvLayer, shapes: Mapping[str, Sequence[int]], device: Device) -> int:
    """Return how many copies of a segment a run computes; one on the CPU, where the host is the device."""
    if device.name == "cpu":
        return 1
    problem = layer.problem(shapes)
    size = helper.tensor_dtype_to_np_dtype(layer.element_type).itemsize
    elements = sum(math.prod(shape) for shape in shapes.values()) + math.prod(problem.output_shape)
    return max(1, min(_MOST_COPIES, _BYTES_OF_RUN // max(1, elements * size)))


def errors_of(segment: Segment, by_batch: Sequence[Values], device: Device) -> dict[str, float]:
    """Return the relative L2 errors of the Conv alone: of the default side, and of ours in each precision.

    The reference is in float64, of as many samples of the first batch as it can be computed for at once. Our
    error is that of the worst algorithm that the rule chooses at any batch: one may round where another does
    not.
    """
    sample = _ErrorSample(segment, by_batch[0], device)
    found = {"default": sample.error(segment.conv_alone("ieee"), DEFAULT)}
    shapes = [shapes_of(inputs) for inputs in by_batch]
    for precision in ("tf32", "ieee"):
        layers = sample.by_rule(segment, precision, shapes)
        found[precision] = max(sample.error(layer, CONVSWAP) for layer in layers)
        if is_as_accurate(found[precision], found["default"]):
            break
    return found


def error_by(
    segment: Segment, inputs: Values, precision: str, algorithm: str, device: Device
) -> float | None:
    """Return our error with an algorithm, as in `errors_of`; None where it does not support the sample."""
    sample = _ErrorSample(segment, inputs, device)
    layer = sample.by_algorithm(segment.conv_alone(precision), algorithm)
    return None if layer is None else sample.error(layer, CONVSWAP)


class _ErrorSample:
    """A segment's Conv alone, with a sample of its input and the reference output of that sample."""

    def __init__(self, segment: Segment, inputs: Values, device: Device) -> None:
        self._device = device
        self._weights = segment.weights_alone(shapes_of(inputs))
        alone = segment.conv_alone("ieee")
        self._fed = {name: host_array(inputs[name], device) for name in alone.fed}
        data_name = str(alone.node.input[0])
        operations = alone.problem({name: values.shape for name, values in self._fed.items()}).operations
        self._fed[data_name] = _first_part(self._fed[data_name], operations, alone)
        arrays = replace(alone, weights=self._weights).arrays(self._fed)
        self._reference = reference_conv(arrays.x, arrays.w, arrays.bias, alone.attributes)

    def error(self, layer: ConvLayer, side: Side) -> float:
        """Return the relative L2 error of `layer` on the sample."""
        ranks = {name: values.ndim for name, values in self._fed.items()}
        model = replace(layer, weights=self._weights).model(ranks, ours=side.ours)
        session = make_session(model, side, self._device)
        return relative_l2_error(run(session, self._fed)[0], self._reference)

    def by_rule(
        self, segment: Segment, precision: str, by_batch: Sequence[Mapping[str, tuple[int, ...]]]
    ) -> list[ConvLayer]:
        """Return the Conv alone with each algorithm that the rule chooses for inputs of these shapes.

        The rule chooses for the Conv alone and for all that it can be fused with. Algorithms that do not
        support the sample are left out; where none does, the rule chooses for the sample.
        """
        alone = segment.conv_alone(precision)
        names = dict.fromkeys(
            _native.choose(layer.problem(shapes), self._device.name)
            for shapes in by_batch
            for layer in (alone, segment.layer.with_setting("precision", precision))
        )
        return [own for name in names if (own := self.by_algorithm(alone, name)) is not None] or [alone]

    def by_algorithm(self, layer: ConvLayer, name: str) -> ConvLayer | None:
        """Return `layer` with an algorithm; None where it does not support the sample."""
        part = layer.problem({fed: values.shape for fed, values in self._fed.items()})
        return None if _native.why_not(part, name, self._device.name) else layer.with_algorithm(name)


def _first_part(data: np.ndarray, operations: int, layer: ConvLayer) -> np.ndarray:
    """Return as many images of `data` as _REFERENCE_OPERATIONS allow, or the upper rows of one image."""
    share = _REFERENCE_OPERATIONS / max(operations, 1)
    if share >= 1:
        return data
    images = int(share * len(data))
    if images >= 1:
        return np.ascontiguousarray(data[:images])
    rows = data.shape[2]
    kernel = layer.attributes.get("kernel_shape") or [rows]
    dilation = (layer.attributes.get("dilations") or [1])[0]
    least = min(rows, 4 * (dilation * (int(kernel[0]) - 1) + 1))
    return np.ascontiguousarray(data[:1, :, : max(least, int(share * len(data) * rows))])


def end_to_end_times(
    sessions: Sequence[onnxruntime.InferenceSession], feeds: Values, device: Device
) -> list[float]:
    """Return the median milliseconds of a run of each session; the sessions take turns."""
    samples = {i: sample_of(BoundRun(session, feeds, device)) for i, session in enumerate(sessions)}
    return [times.median for times in measure(samples, single_runs(device)).values()]
