"""The convolutions of a network as a rung of the ladder computes them, each in a session of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from convswap import _native
from convswap.device import Device
from convswap.domain import DOMAIN
from convswap.expansion import expand_fused
from convswap.fuse import FUSED_OP
from convswap.layers import ConvLayer
from convswap.sessions import CONVSWAP, make_session
from convswap.truth import evaluate
from convswap.truth_ops import reference_conv

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Work:
    """What a layer must move and compute at least: bytes, and multiplications and additions."""

    bytes: int
    operations: int


def rung_layers(swapped: onnx.ModelProto) -> tuple[ConvLayer, ...]:
    """Return the nodes of our domain in the main graph of `swapped`, fused or not, in order.

    The weights of the course's networks are all initializers.
    """
    tensors = {tensor.name: tensor for tensor in swapped.graph.initializer}
    return tuple(
        ConvLayer(
            node=node,
            constants={name: tensors[name] for name in node.input if name in tensors},
            opsets=tuple(swapped.opset_import),
            ir_version=swapped.ir_version,
            element_type=tensors[node.input[1]].data_type,
        )
        for node in swapped.graph.node
        if node.domain == DOMAIN
    )


def is_fused(layer: ConvLayer) -> bool:
    """Whether the layer takes in what follows its convolution."""
    return bool(layer.node.op_type == FUSED_OP)


def followers(layer: ConvLayer) -> tuple[str, ...]:
    """Return the ops of ONNX that the layer takes in."""
    return tuple(node.op_type for node in _expanded(layer)[1:]) if is_fused(layer) else ()


def problem_of(layer: ConvLayer, shapes: Mapping[str, Sequence[int]]) -> _native.Problem:
    """Return the conv problem of the layer, without what it takes in, for inputs of `shapes`."""
    known = {name: tuple(tensor.dims) for name, tensor in layer.constants.items()} | dict(shapes)
    data, weights = layer.node.input[:2]
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return _native.Problem(
        known[data],
        known[weights],
        len(layer.node.input) > 2 and bool(layer.node.input[2]),
        layer.type_name,
        layer.setting("precision", "tf32"),
        **{name: value for name, value in layer.attributes.items() if name in names},
    )


def work_of(layer: ConvLayer, problem: _native.Problem, result_elements: int) -> Work:
    """Return what the layer must do to give so many elements, fewer than the convolution's where it pools."""
    output_elements = int(np.prod(problem.output_shape))
    size = 4 if layer.type_name == "float32" else 2
    return Work(problem.bytes - size * (output_elements - result_elements), problem.operations)


def session_of(
    layer: ConvLayer, ranks: Mapping[str, int], device: Device, options: Mapping[str, str]
) -> onnxruntime.InferenceSession:
    """Return a session of the layer alone; `options` are added to those of the provider."""
    return make_session(
        layer.model(ranks, ours=True), CONVSWAP.with_options(options), device, only_device=True
    )


def apart_session(
    layer: ConvLayer, ranks: Mapping[str, int], device: Device, options: Mapping[str, str], algorithm: str
) -> onnxruntime.InferenceSession:
    """Return a session of what a fused layer takes the place of: our Conv by `algorithm`, and ONNX's ops."""
    conv, *others = _expanded(layer)
    conv.domain = DOMAIN
    conv.attribute.append(helper.make_attribute("algorithm", algorithm))
    conv.attribute.append(helper.make_attribute("precision", layer.setting("precision", "tf32")))
    return make_session(_model(layer, [conv, *others], ranks), CONVSWAP.with_options(options), device)


def truth_of(layer: ConvLayer, fed: Arrays) -> np.ndarray:
    """Return what the layer gives for the inputs `fed`, in float64."""
    if not is_fused(layer):
        x, w, bias = layer.arrays(fed)[:3]
        return reference_conv(x, w, bias, layer.attributes)
    ranks = {name: values.ndim for name, values in fed.items()}
    output: np.ndarray = evaluate(_model(layer, _expanded(layer), ranks), fed).outputs[0]
    return output


def _expanded(layer: ConvLayer) -> list[onnx.NodeProto]:
    opset = next(entry.version for entry in layer.opsets if entry.domain in ("", "ai.onnx"))
    return expand_fused(layer.node, opset, layer.element_type)


def _model(layer: ConvLayer, nodes: Sequence[onnx.NodeProto], ranks: Mapping[str, int]) -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes),
        "layer",
        [helper.make_tensor_value_info(name, layer.element_type, [None] * ranks[name]) for name in layer.fed],
        [helper.make_tensor_value_info(layer.node.output[0], layer.element_type, None)],
        list(layer.constants.values()),
    )
    domains = {"", "ai.onnx", *(node.domain for node in nodes)}
    opsets = [entry for entry in layer.opsets if entry.domain in domains]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = layer.ir_version
    return model
