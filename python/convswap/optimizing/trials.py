"""Times and errors of the ways to compute a segment, on the device and with the input that it really gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime
from onnx import helper

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.swap import NodeChoice
from convswap.optimizing.choice import DEFAULT_WAY, Way, is_as_accurate
from convswap.optimizing.segments import Segment, side_by_side
from convswap.runtime.device import Device
from convswap.runtime.layers import ConvLayer
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, run
from convswap.timing.back_to_back import back_to_back, session_sample
from convswap.timing.measure import measure
from convswap.truth.closeness import relative_l2_error
from convswap.truth.operators import reference_conv

Values = Mapping[str, onnxruntime.OrtValue]

# What a run of a way should move at least, so that the host's time for a run does not hide the card's: so
# many bytes take some 20 us.
_BYTES_OF_RUN = 64 << 20
_MOST_COPIES = 8
# What the runs of a round of one way may take together; there are five rounds.
_ROUND_MS = 10.0
# Multiplications and additions for the float64 truth of a Conv: half a second on two cores.
_TRUTH_OPERATIONS = 1e9


def times_of(segment: Segment, inputs: Values, precision: str, device: Device) -> dict[Way, float]:
    """Return the milliseconds that the segment takes in each way, in a longer model; the sides take turns."""
    shapes = {name: tuple(value.shape()) for name, value in inputs.items()}
    models = {DEFAULT_WAY: segment.default_model(shapes)}
    for stage in segment.stages:
        models[stage] = segment.our_model(shapes, NodeChoice(precision=precision, last=stage))
    copies = _copies(segment.layer, shapes, device)
    runs = []
    for way, model in models.items():
        side = DEFAULT if way is DEFAULT_WAY else CONVSWAP
        session = make_session(side_by_side(model, copies), side, device, merges_equal_nodes=False)
        runs.append(BoundRun(session, inputs, device))
    samples = [session_sample(own, None) for own in runs]
    times = back_to_back(samples, round_ms=_ROUND_MS)
    return {way: time / copies for way, time in zip(models, times, strict=True)}


def _copies(layer: ConvLayer, shapes: Mapping[str, Sequence[int]], device: Device) -> int:
    """Return how many copies of a segment a run computes: on the CPU one, since its runs wait for each."""
    if device.name == "cpu":
        return 1
    problem = layer.problem(shapes)
    size = helper.tensor_dtype_to_np_dtype(layer.element_type).itemsize
    elements = sum(math.prod(shape) for shape in shapes.values()) + math.prod(problem.output_shape)
    return max(1, min(_MOST_COPIES, _BYTES_OF_RUN // max(1, elements * size)))


def errors_of(segment: Segment, inputs: Values, device: Device) -> dict[str, float]:
    """Return the relative L2 errors of the Conv alone: of the default side, and of ours in each precision.

    They are against float64, of as much of the input as the truth can be had of in half a second.
    """
    shapes = {name: tuple(value.shape()) for name, value in inputs.items()}
    alone = segment.conv_alone("ieee")
    fed = {name: inputs[name].numpy() for name in alone.fed}
    data_name = str(alone.node.input[0])
    operations = alone.problem({name: shapes[name] for name in alone.fed}).operations
    fed[data_name] = _part(fed[data_name], operations, alone)
    data, weights, bias, _ = alone.arrays(fed)
    truth = reference_conv(data, weights, bias, alone.attributes)

    def error(layer: ConvLayer, side: Side) -> float:
        model = layer.model({name: values.ndim for name, values in fed.items()}, ours=side.ours)
        session = make_session(model, side, device)
        return relative_l2_error(run(session, fed)[0], truth)

    found = {"default": error(alone, DEFAULT)}
    for precision in ("tf32", "ieee"):
        layer = segment.conv_alone(precision)
        found[precision] = error(_as_planned(layer, shapes, fed, device), CONVSWAP)
        if is_as_accurate(found[precision], found["default"]):
            break
    return found


def _part(data: np.ndarray, operations: int, layer: ConvLayer) -> np.ndarray:
    """Return as many images of `data` as are affordable, or of one image the upper rows."""
    share = _TRUTH_OPERATIONS / max(operations, 1)
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


def _as_planned(
    layer: ConvLayer, shapes: Mapping[str, Sequence[int]], fed: Mapping[str, np.ndarray], device: Device
) -> ConvLayer:
    """Return `layer` with the algorithm that the whole input has it computed by, where it takes the part."""
    own = {name: shapes[name] for name in layer.fed}
    algorithm = _native.choose(layer.problem(own), device.name, "auto")
    try:
        _native.choose(layer.problem({name: fed[name].shape for name in layer.fed}), device.name, algorithm)
    except ConvswapError:
        return layer
    return layer.with_algorithm(algorithm)


def whole_times(
    sessions: Sequence[onnxruntime.InferenceSession], feeds: Values, device: Device
) -> list[float]:
    """Return the median milliseconds of a run of each session, in turn."""
    runs = [BoundRun(session, feeds, device) for session in sessions]
    return [times.median for times in measure(runs, bursts=device.name == "cuda")]
