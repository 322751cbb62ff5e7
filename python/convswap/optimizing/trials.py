"""Times and errors of the variants of a segment, on its real inputs and the user's device."""

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
from convswap.optimizing.choice import DEFAULT_VARIANT, Variant, is_as_accurate
from convswap.optimizing.segments import Segment, replicated, swapped_model
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

NamedValues = Mapping[str, onnxruntime.OrtValue]
_Key = TypeVar("_Key")

# Several copies of a segment share the fixed cost of starting one run; the cost of launching each node is
# still included. A run has as many copies as move this many bytes, which takes a card some 20 us, but at most
# _MAX_COPIES.
_BYTES_OF_RUN = 64 << 20
_MAX_COPIES = 4
# The runs of each variant in a round take a twentieth of the usual time, since a model has many segments.
_TIMING_RULE = replace(BACK_TO_BACK, burst_ms=10.0)
# The maximum of multiplications and additions for the float64 reference of a Conv: a tenth of a second on two
# cores.
_REFERENCE_OPERATIONS = 2e8


def variant_times(
    segment: Segment, inputs: NamedValues, precision: str, device: Device
) -> dict[Variant, float]:
    """Return the milliseconds of each variant of the segment.

    A variant is timed in a model of several copies of the segment, and its time is divided by the number of
    copies; on the CPU there is one copy. The runs of the variants alternate.
    """
    shapes = shapes_of(inputs)
    copies = _copies(segment.layer, shapes, device)
    runs: dict[Variant, BoundRun] = {
        DEFAULT_VARIANT: _copies_run(segment.default_model(shapes), copies, DEFAULT, inputs, device)
    }
    folded: Weights = {}
    for stage in segment.stages:
        model = segment.convswap_model(shapes, NodeChoice(precision=precision, max_stage=stage))
        # All stages share the folded weights.
        folded = folded or model.weights
        runs[stage] = _copies_run(model._replace(weights=folded), copies, CONVSWAP, inputs, device)
    return _time_alternately(runs, copies)


def times_by_algorithm(
    segment: Segment, inputs: NamedValues, choice: NodeChoice, algorithms: Sequence[str], device: Device
) -> dict[str, float]:
    """Return the milliseconds of the segment, as in `variant_times`, with each algorithm for its Conv.

    The first algorithm must run; others that do not run are left out.
    """
    shapes = shapes_of(inputs)
    copies = _copies(segment.layer, shapes, device)
    runs: dict[str, BoundRun] = {}
    for name in algorithms:
        try:
            model = segment.convswap_model(shapes, replace(choice, algorithm=name))
            run_of_name = _copies_run(model, copies, CONVSWAP, inputs, device)
            run_of_name.once()
        except ConvswapError:
            # The algorithm may need more memory than is free, or than this ONNX Runtime gives to a node.
            if not runs:
                raise
            continue
        runs[name] = run_of_name
    return _time_alternately(runs, copies)


def choices_times(
    segment: Segment, inputs: NamedValues, alternatives: Sequence[Mapping[str, NodeChoice]], device: Device
) -> list[float]:
    """Return the milliseconds of the segment, as in `variant_times`, for each of several swaps of its Convs.

    An alternative without choices is the original segment.
    """
    shapes = shapes_of(inputs)
    copies = _copies(segment.layer, shapes, device)
    runs = {}
    for number, choices in enumerate(alternatives):
        model = segment.default_model(shapes)
        if choices:
            model, _ = swapped_model(model.to_model(), choices, "this alternative does not swap it")
        runs[number] = _copies_run(model, copies, CONVSWAP if choices else DEFAULT, inputs, device)
    return list(_time_alternately(runs, copies).values())


def _copies_run(model: SplitModel, copies: int, side: Side, inputs: NamedValues, device: Device) -> BoundRun:
    several = model._replace(message=replicated(model.message, copies))
    session = make_session(several, side, device, merges_equal_nodes=False)
    return BoundRun(session, inputs, device)


def _time_alternately(runs: Mapping[_Key, BoundRun], copies: int) -> dict[_Key, float]:
    """Return the milliseconds of each of `runs`, which alternate, divided by `copies`."""
    times = measure({key: sample_of(run) for key, run in runs.items()}, _TIMING_RULE)
    return {key: each.median / copies for key, each in times.items()}


def _copies(layer: ConvLayer, shapes: Mapping[str, Sequence[int]], device: Device) -> int:
    """Return the number of copies of a segment in a run: one on the CPU, where the host is the device."""
    if device.name == "cpu":
        return 1
    problem = layer.problem(shapes)
    size = helper.tensor_dtype_to_np_dtype(layer.element_type).itemsize
    elements = sum(math.prod(shape) for shape in shapes.values()) + math.prod(problem.output_shape)
    return max(1, min(_MAX_COPIES, _BYTES_OF_RUN // max(1, elements * size)))


def conv_errors(segment: Segment, by_batch: Sequence[NamedValues], device: Device) -> dict[str, float]:
    """Return the relative L2 errors of the Conv without its followers, "default" and by precision.

    The precisions are "tf32" and, unless "tf32" is accurate enough, "ieee". The errors are against float64,
    on a part of the first batch that _REFERENCE_OPERATIONS limit. The error of a precision is the largest of
    the algorithms that the planner chooses at any batch, since algorithms round differently.
    Algorithms that do not support the sample are left out.
    """
    sample = _ErrorSample(segment, by_batch[0], device)
    errors = {"default": sample.error(segment.bare_conv("ieee"), DEFAULT)}
    shapes = [shapes_of(inputs) for inputs in by_batch]
    for precision in ("tf32", "ieee"):
        layers = sample.layers_to_check(segment, precision, shapes)
        errors[precision] = max(sample.error(layer, CONVSWAP) for layer in layers)
        if is_as_accurate(errors[precision], errors["default"]):
            break
    return errors


def algorithm_error(
    segment: Segment, inputs: NamedValues, precision: str, algorithm: str, device: Device
) -> float | None:
    """Return the error of an algorithm, as in `conv_errors`; None if it does not support the sample."""
    sample = _ErrorSample(segment, inputs, device)
    layer = sample.with_algorithm(segment.bare_conv(precision), algorithm)
    return None if layer is None else sample.error(layer, CONVSWAP)


class _ErrorSample:
    """A segment's Conv without its followers, a sample of its input, and the sample's reference output."""

    def __init__(self, segment: Segment, inputs: NamedValues, device: Device) -> None:
        self._device = device
        self._weights = segment.bare_conv_weights(shapes_of(inputs))
        conv = segment.bare_conv("ieee")
        self._inputs = {name: host_array(inputs[name], device) for name in conv.input_names}
        data_name = str(conv.node.input[0])
        operations = conv.problem(self._shapes()).operations
        self._inputs[data_name] = _reference_part(self._inputs[data_name], operations, conv)
        arrays = replace(conv, weights=self._weights).arrays(self._inputs)
        self._reference = reference_conv(arrays.x, arrays.w, arrays.bias, conv.attributes)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: values.shape for name, values in self._inputs.items()}

    def error(self, layer: ConvLayer, side: Side) -> float:
        """Return the relative L2 error of `layer` on the sample."""
        ranks = {name: values.ndim for name, values in self._inputs.items()}
        model = replace(layer, weights=self._weights).model(ranks, swapped=side.uses_convswap)
        session = make_session(model, side, self._device)
        return relative_l2_error(run(session, self._inputs)[0], self._reference)

    def layers_to_check(
        self, segment: Segment, precision: str, by_batch: Sequence[Mapping[str, tuple[int, ...]]]
    ) -> list[ConvLayer]:
        """Return the Conv without its followers, with each algorithm that the planner chooses at any batch.

        The planner chooses for the Conv without its followers and for the Conv fused with all of them.
        Algorithms that do not support the sample are left out. If no algorithm is left, the planner chooses
        for the sample.
        """
        conv = segment.bare_conv(precision)
        names = dict.fromkeys(
            _native.choose(layer.problem(shapes), self._device.name)
            for shapes in by_batch
            for layer in (conv, segment.layer.with_setting("precision", precision))
        )
        layers = (self.with_algorithm(conv, name) for name in names)
        return [layer for layer in layers if layer is not None] or [conv]

    def with_algorithm(self, layer: ConvLayer, name: str) -> ConvLayer | None:
        """Return `layer` with an algorithm; None if the algorithm does not support the sample."""
        problem = layer.problem(self._shapes())
        return None if _native.why_not(problem, name, self._device.name) else layer.with_algorithm(name)


def _reference_part(data: np.ndarray, operations: int, layer: ConvLayer) -> np.ndarray:
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
    min_rows = min(rows, 4 * (dilation * (int(kernel[0]) - 1) + 1))
    return np.ascontiguousarray(data[:1, :, : max(min_rows, int(share * len(data) * rows))])


def end_to_end_times(
    sessions: Sequence[onnxruntime.InferenceSession], feeds: NamedValues, device: Device
) -> list[float]:
    """Return the median milliseconds of a run of each session; the runs of the sessions alternate."""
    samples = {i: sample_of(BoundRun(session, feeds, device)) for i, session in enumerate(sessions)}
    return [times.median for times in measure(samples, single_runs(device)).values()]
