"""Expands fused models to ONNX's own ops, and checks the attributes of FusedConv."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from convswap.graph.plain_model import expand_fused
from onnx import helper

CONV = {"algorithm", "precision", "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
# Attributes of a preceding depthwise convolution. Those of its activation are PARAMETERS with "depthwise_".
DEPTHWISE = {"depthwise_pads", "depthwise_strides", "depthwise_dilations"}
POOL = {"pool_kernel_shape", "pool_strides", "pool_pads", "pool_ceil_mode"}
PARAMETERS: dict[str, set[str]] = {
    "None": set(),
    "Relu": set(),
    "LeakyRelu": {"activation_alpha"},
    "Clip": {"activation_alpha", "activation_beta"},
    "Tanh": set(),
    "Sigmoid": set(),
    "HardSigmoid": {"activation_alpha", "activation_beta"},
    "HardSwish": set(),
    "SiLU": set(),
    "Gelu": set(),
    "GeluTanh": set(),
    "Elu": {"activation_alpha"},
}


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of `node`, strings as str."""
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


def check_fused(node: onnx.NodeProto) -> None:
    """Assert that a FusedConv has exactly the attributes that its inputs and epilogue need."""
    attributes = attributes_of(node)
    assert 3 <= len(node.input) <= 6 and node.input[0] and node.input[1] and len(node.output) == 1
    extra = attributes.keys() - CONV
    if len(node.input) > 4:
        # Bias and residual (inputs 2 and 3) may be empty before the depthwise weights.
        assert node.input[4] and node.input[-1]
        activation = attributes.get("depthwise_activation")
        assert activation != "None"
        in_front = {f"depthwise_{name}" for name in PARAMETERS[activation or "None"]}
        in_front |= {"depthwise_activation"} if activation else set()
        assert in_front <= extra
        extra -= in_front | DEPTHWISE
    else:
        assert all(node.input)
    expected = {"activation", "pool"} | PARAMETERS[attributes["activation"]]
    if attributes["pool"] != "None":
        assert attributes["pool"] in ("MaxPool", "AveragePool")
        expected |= POOL | ({"pool_count_include_pad"} if attributes["pool"] == "AveragePool" else set())
        lengths = [len(attributes[f"pool_{name}"]) for name in ("kernel_shape", "strides", "pads")]
        assert lengths == [2, 2, 4]
    assert extra == expected


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which ONNX's ops stand for every `convswap.Conv` and `FusedConv`.

    The model needs opset 7 or newer, and types of weights from constants or declarations.
    """
    expanded = onnx.ModelProto()
    expanded.CopyFrom(model)
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    _expand_graph(expanded.graph, opset, {}, {})
    domains = [entry for entry in expanded.opset_import if entry.domain != "convswap"]
    del expanded.opset_import[:]
    expanded.opset_import.extend(domains)
    return expanded


def _expand_graph(
    graph: onnx.GraphProto, opset: int, outer_types: dict[str, int], outer_shapes: dict[str, Sequence[int]]
) -> None:
    types, shapes = dict(outer_types), dict(outer_shapes)
    shapes |= {tensor.name: tensor.dims for tensor in graph.initializer if tensor.dims}
    types |= {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _expand_graph(attribute.g, opset, types, shapes)
            elif node.op_type == "Constant" and attribute.name == "value":
                types[node.output[0]] = attribute.t.data_type
                shapes |= {node.output[0]: attribute.t.dims} if attribute.t.dims else {}
        if node.domain != "convswap":
            nodes.append(node)
        else:
            nodes += _plain(node, opset, types.get(node.input[1], onnx.TensorProto.FLOAT), shapes)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _plain(
    node: onnx.NodeProto, opset: int, element_type: int, shapes: dict[str, Sequence[int]]
) -> list[onnx.NodeProto]:
    if node.op_type == "FusedConv":
        check_fused(node)
        return expand_fused(node, opset, element_type, shapes)
    assert node.op_type == "Conv"
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    plain.domain = ""
    standard = [attribute for attribute in node.attribute if attribute.name not in ("algorithm", "precision")]
    del plain.attribute[:]
    plain.attribute.extend(standard)
    return [plain]


def conv_node_counts(model: onnx.ModelProto) -> dict[str, int]:
    """Return the numbers of `convswap.Conv` and `convswap.FusedConv` nodes, including subgraphs."""
    totals = {"Conv": 0, "FusedConv": 0}
    for node in _all_nodes(model.graph):
        if node.domain == "convswap":
            totals[node.op_type] += 1
    return totals


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)
