"""A suite's layer as a quantised convolution: QuantConv for us, the QDQ nodes for the default provider.

Data, weights and results are int8 codes with zero point 0; weights have a scale for each filter. The codes
are rounded normal values, and the scales keep results within the range. QuantConv reads and writes NHWC if
that suits its kernels, the QDQ nodes NCHW.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from convswap.errors import ConvswapError
from convswap.graph.serialisation import from_proto
from convswap.graph.swap import swap
from convswap.runtime.layers import ConvLayer, conv_layers
from convswap.timing.suites import SuiteLayer

# Steps in the standard deviation of data and weights.
_STEPS = 32
# NHWC suits QuantConv if channels and filters are multiples of this.
_CHANNELS_AT_ONCE = 16
# Opset 13 is the first with a scale for each filter.
_OPSET, _IR_VERSION = 20, 9


def quantised_node(layer: SuiteLayer, algorithm: str) -> ConvLayer:
    """Return `layer` as a QuantConv, with the DequantizeLinear, Conv and QuantizeLinear that it replaces.

    Raises:
        ConvswapError: the sums of the layer do not fit into int32.
    """
    model = _qdq_model(layer)
    swapping = swap(model, fuse=True, layout="nchw")
    (conv,) = conv_layers(swapping.model, from_proto(model))
    if not conv.is_quantised:
        (left,) = swapping.not_quantised
        raise ConvswapError(f"layer {layer.name} cannot be quantised: {left.reason}")
    if algorithm != "auto":
        conv = conv.with_algorithm(algorithm)
    return replace(conv, nhwc=_nhwc_tensors(layer))


def normal_codes(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return int8 codes of seeded normal values."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return np.clip(np.rint(_STEPS * values), -127, 127).astype(np.int8)


def _nhwc_tensors(layer: SuiteLayer) -> tuple[str, ...]:
    if layer.group not in (1, layer.channels):
        return ()
    extents = {"input": layer.channels, "output": layer.filters}
    return tuple(tensor for tensor, extent in extents.items() if extent % _CHANNELS_AT_ONCE == 0)


def _qdq_model(layer: SuiteLayer) -> onnx.ModelProto:
    rank = layer.rank + 2
    w = normal_codes(layer.weight_shape, seed=0)
    step = np.float32(1 / _STEPS)
    # Of a sum of products of unit variance.
    deviation = math.sqrt(math.prod(layer.weight_shape[1:]))
    constants = {
        "w": w,
        "x_scale": step,
        "w_scale": np.full(layer.filters, step, np.float32),
        "y_scale": np.float32(step * deviation),
        "zero": np.int8(0),
        "zeros": np.zeros(layer.filters, np.int8),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "zero"], ["data"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "zeros"], ["weights"], axis=0),
        helper.make_node(
            "Conv",
            ["data", "weights"],
            ["sums"],
            name=layer.name,
            kernel_shape=[layer.kernel] * layer.rank,
            **layer.attributes,
        ),
        *_activation_nodes(layer.activation),
        helper.make_node("QuantizeLinear", [_result(layer), "y_scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.INT8, [None, *layer.input_shape(1)[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [None] * rank)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def _result(layer: SuiteLayer) -> str:
    return "sums" if layer.activation is None else "activated"


def _activation_nodes(activation: str | None) -> list[onnx.NodeProto]:
    """Return the nodes from "sums" to "activated"."""
    match activation:
        case None:
            return []
        case "SiLU":
            inner = helper.make_node("Sigmoid", ["sums"], ["factor"])
        case "HardSwish":
            inner = helper.make_node("HardSigmoid", ["sums"], ["factor"], alpha=1 / 6, beta=0.5)
        case _:
            return [helper.make_node(activation, ["sums"], ["activated"])]
    return [inner, helper.make_node("Mul", ["sums", "factor"], ["activated"])]
