"""A suite's layer as a one-node model: its sessions, data, error, and samples of its time.

Weights and data are seeded normal values. The precision is "tf32" or "ieee" for float32 tensors, "int8" for a
quantised convolution, else the type of all tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import overload

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from convswap import _native
from convswap.graph.domain import DOMAIN, DOMAIN_VERSION, FUSED_OP
from convswap.graph.swap import DEFAULT_PRECISION, PRECISIONS
from convswap.reference.evaluation import evaluate
from convswap.reference.metrics import REFERENCE_IMAGES, relative_l2_error
from convswap.reference.operators import reference_conv
from convswap.runtime.device import Device
from convswap.runtime.layers import CODE_TYPES, INT8, ConvLayer
from convswap.runtime.onnxruntime_errors import NoKernelError, plain_errors
from convswap.runtime.sessions import CONVSWAP, BoundRun, Side, make_session, on_device, run, value_on
from convswap.timing.quantised_node import normal_codes, quantised_node
from convswap.timing.sampler import Sample, sample_of
from convswap.timing.suites import SuiteLayer

_STORAGE_TYPES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
SINGLE_NODE_PRECISIONS = (*PRECISIONS, *_STORAGE_TYPES)
# Precisions of `bench`, with that of QuantConv.
BENCH_PRECISIONS = (*SINGLE_NODE_PRECISIONS, INT8)
# The plain loops of `reference` take seconds for this many.
_REFERENCE_OPERATIONS = 5e9
_OPSET, _IR_VERSION = 20, 9
# The first opset whose Conv takes bfloat16. Older ONNX Runtimes do not know the opset.
_BFLOAT16_OPSET = 22

# Larger tensors repeat their values. Values do not affect the time, as long as they are not zeros.
_DISTINCT_VALUES = 1 << 22

Shapes = Mapping[str, Sequence[int]]


def single_node(layer: SuiteLayer, precision: str, algorithm: str) -> ConvLayer:
    """Return `layer` as a convswap.Conv, FusedConv or QuantConv, with seeded normal weights."""
    if precision == INT8:
        return quantised_node(layer, algorithm)
    opset = _BFLOAT16_OPSET if precision == "bfloat16" else _OPSET
    stored = {} if precision in _STORAGE_TYPES else {"precision": precision}
    node = helper.make_node(
        FUSED_OP if layer.epilogue else "Conv",
        ["x", "w"],
        ["y"],
        name=layer.name,
        domain=DOMAIN,
        kernel_shape=[layer.kernel] * layer.rank,
        algorithm=algorithm,
        **layer.attributes,
        **layer.epilogue,
        **stored,
    )
    return ConvLayer(
        node=node,
        constants={"w": numpy_helper.from_array(single_node_weights(layer, precision), "w")},
        opsets=(helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)),
        ir_version=_IR_VERSION,
        element_type=_element_type(precision),
    )


def single_node_sessions(
    conv: ConvLayer, sides: Sequence[Side], device: Device, provider_options: Mapping[str, str] | None = None
) -> dict[Side, onnxruntime.InferenceSession]:
    """Return a session for each side whose provider has a Conv of the layer's type.

    `provider_options` are added to those of each side.

    Raises:
        ConvswapError: a session cannot be made for any other reason.
    """
    sessions = {}
    for side in sides:
        try:
            model = conv.model({"x": _rank(conv)}, swapped=side.uses_convswap)
            optioned = side.with_options(provider_options or {})
            sessions[side] = make_session(model, optioned, device, only_device=True)
        except NoKernelError:
            # Every provider has a Conv of float32.
            if side.uses_convswap or conv.element_type == onnx.TensorProto.FLOAT:
                raise
    return sessions


def single_node_weights(layer: SuiteLayer, precision: str) -> np.ndarray:
    """Return the seeded normal weights of `layer`, of shape (k, c / group, kernel...)."""
    return _normal(layer.weight_shape, precision, seed=0)


def single_node_data(layer: SuiteLayer, batch: int, precision: str) -> np.ndarray:
    """Return a seeded normal input of `layer`, of shape (batch, c, spatial...); codes for "int8"."""
    if precision == INT8:
        return normal_codes(layer.input_shape(batch), seed=batch)
    return _normal(layer.input_shape(batch), precision, seed=batch)


def single_node_error(conv: ConvLayer, side: Side, device: Device, x: np.ndarray) -> float:
    """Return the relative L2 error of `conv` on our `side`, on at most 100 images of `x`.

    Fewer images are taken if the reference would take seconds. For another batch the planner may choose
    another algorithm, so `conv` should name one. The reference is the float64 convolution of the session's
    inputs, rounded to their type; for a quantised convolution the float64 evaluation of its QDQ nodes.
    """
    session = make_session(conv.model({"x": _rank(conv)}, swapped=True), side, device, only_device=True)
    affordable = int(_REFERENCE_OPERATIONS // (conv.problem({"x": x.shape}).operations / len(x)))
    few = np.ascontiguousarray(x[: max(1, min(REFERENCE_IMAGES, affordable))])
    if conv.is_quantised:
        reference = evaluate(conv.model({"x": _rank(conv)}, swapped=False), {"x": few}).outputs[0]
        (codes,) = run(session, conv.swapped_inputs({"x": few}))
        # The zero points are 0, so that codes are proportional to numbers.
        return relative_l2_error(conv.result_in_nchw(codes).astype(np.float64), reference.astype(np.float64))
    arrays = conv.arrays({"x": few})
    reference = reference_conv(arrays.x, arrays.w, arrays.bias, conv.attributes)
    y = np.empty(reference.shape, few.dtype)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value_on(few))
    binding.bind_ortvalue_output("y", value_on(y))
    with plain_errors("ONNX Runtime cannot run the model"):
        session.run_with_iobinding(binding)
    return relative_l2_error(y, reference)


def single_node_feeds(
    conv: ConvLayer, x: np.ndarray, sides: Iterable[Side], device: Device
) -> dict[Side, dict[str, onnxruntime.OrtValue]]:
    """Return the input `x` on the device for each side, in the layout that its node reads."""
    default = on_device({"x": x}, device)
    swapped = on_device(conv.swapped_inputs({"x": x}), device) if conv.nhwc else default
    return {side: swapped if side.uses_convswap else default for side in sides}


def _rank(conv: ConvLayer) -> int:
    return len(conv.constants[conv.node.input[1]].dims)


def _element_type(precision: str) -> int:
    return int(_STORAGE_TYPES.get(precision, onnx.TensorProto.FLOAT))


def _normal(shape: tuple[int, ...], precision: str, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values.astype(helper.tensor_dtype_to_np_dtype(_element_type(precision)), copy=False)


def samples_of(
    layer: ConvLayer, shapes: Shapes, algorithms: Sequence[str], device: Device
) -> dict[str, Sample]:
    """Return a sample of `layer` on `device` for each of the `algorithms`.

    `shapes` has the shapes of the inputs that are not constant, in NCHW; they get seeded normal values, or
    codes, shared by all samples. On a card a sample is GPU time by events, on the CPU the time of a session's
    run.

    Raises:
        ConvswapError: ONNX Runtime cannot load the one-node model.
        RuntimeError: the card has too little memory.
    """
    wanted = {name: shapes[name] for name in layer.input_names}
    fed = {
        name: spread_values(shape, layer.element_type) for name, shape in layer.swapped_shapes(wanted).items()
    }
    if device.name == "cuda":
        return _on_card(layer, fed, layer.problem(wanted).output_shape, algorithms)
    return {name: _in_session(layer.with_algorithm(name), fed, device) for name in algorithms}


def spread_values(shape: Sequence[int], element_type: int) -> np.ndarray:
    """Return seeded normal values, or codes of the whole range, of `shape`; repeated in large tensors."""
    count = math.prod(shape)
    generator = np.random.default_rng(seed=0)
    if element_type in CODE_TYPES:
        dtype = helper.tensor_dtype_to_np_dtype(element_type)
        limits = np.iinfo(dtype)
        codes = generator.integers(limits.min, limits.max + 1, min(count, _DISTINCT_VALUES)).astype(dtype)
        return np.resize(codes, shape)
    distinct = generator.standard_normal(min(count, _DISTINCT_VALUES), dtype=np.float32)
    return np.resize(distinct.astype(helper.tensor_dtype_to_np_dtype(element_type)), shape)


def _on_card(
    layer: ConvLayer, fed: Mapping[str, np.ndarray], shape: Sequence[int], algorithms: Sequence[str]
) -> dict[str, Sample]:
    arrays = layer.arrays(fed)
    x, w, bias = _to_card(arrays.x), _to_card(arrays.w), _to_card(arrays.bias)
    names = ("residual", "depthwise", "depthwise_bias", "scale", "offset", "sum_values")
    others = {name: _to_card(getattr(arrays, name)) for name in names}
    y = _native.DeviceArray(shape, layer.output_type_name)

    def sample_of(algorithm: str) -> Sample:
        return lambda runs: _native.conv_device(
            x,
            w,
            bias,
            y,
            **others,
            algorithm=algorithm,
            precision=layer.setting("precision", DEFAULT_PRECISION),
            runs=runs,
            **layer.codes_arguments,
            **layer.attributes,
        )

    return {name: sample_of(name) for name in algorithms}


@overload
def _to_card(array: np.ndarray) -> _native.DeviceArray: ...
@overload
def _to_card(array: None) -> None: ...
def _to_card(array: np.ndarray | None) -> _native.DeviceArray | None:
    return None if array is None else _native.DeviceArray.from_numpy(np.ascontiguousarray(array))


def _in_session(layer: ConvLayer, fed: Mapping[str, np.ndarray], device: Device) -> Sample:
    ranks = {name: array.ndim for name, array in fed.items()}
    session = make_session(layer.model(ranks, swapped=True), CONVSWAP, device, only_device=True)
    return sample_of(BoundRun(session, on_device(fed, device), device))
