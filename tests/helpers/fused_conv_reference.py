"""Expands fused models to ONNX's own ops, and checks the attributes of FusedConv."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir
from convswap.graph.plain_model import plain_model
from convswap.graph.serialisation import graphs_of_proto
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
    """Return `model` in ONNX's ops, after `check_fused` of every FusedConv; see `plain_model`."""
    for node in all_nodes(model.graph):
        if node.domain == "convswap" and node.op_type == "FusedConv":
            check_fused(node)
    return ir.to_proto(plain_model(ir.from_proto(model)))


def conv_node_counts(model: onnx.ModelProto) -> dict[str, int]:
    """Return the numbers of `convswap.Conv` and `convswap.FusedConv` nodes, including subgraphs."""
    totals = {"Conv": 0, "FusedConv": 0}
    for node in all_nodes(model.graph):
        if node.domain == "convswap":
            totals[node.op_type] += 1
    return totals


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graph and of its subgraphs."""
    return (node for inner in graphs_of_proto(graph) for node in inner.node)
