"""What `convswap.FusedConv` means, in ONNX's own ops: a fused model is expanded, and anything can run it.

y = pool(activation(conv(X, W) + B + Z)). Attributes that FusedConv should not have, or that contradict each
other, are errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

OPEN = float(np.finfo(np.float32).max)
CONV = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
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


def expand(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which ONNX's ops stand for every `convswap.Conv` and `FusedConv`.

    It needs opset 7 or newer, and the types of weights to be told by constants or declarations.
    """
    expanded = onnx.ModelProto()
    expanded.CopyFrom(model)
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    _expand_graph(expanded.graph, opset, {})
    domains = [entry for entry in expanded.opset_import if entry.domain != "convswap"]
    del expanded.opset_import[:]
    expanded.opset_import.extend(domains)
    return expanded


def _expand_graph(graph: onnx.GraphProto, opset: int, outer_types: dict[str, int]) -> None:
    types = dict(outer_types)
    types |= {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _expand_graph(attribute.g, opset, types)
            elif node.op_type == "Constant" and attribute.name == "value":
                types[node.output[0]] = attribute.t.data_type
        if node.domain != "convswap":
            nodes.append(node)
        else:
            assert node.op_type in ("Conv", "FusedConv")
            nodes += _Expansion(node, opset, types).nodes
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


class _Expansion:
    """The nodes that stand for one; each takes the result of the one before."""

    def __init__(self, node: onnx.NodeProto, opset: int, types: dict[str, int]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._node = node
        self._opset = opset
        self._element_type = types.get(node.input[1], onnx.TensorProto.FLOAT)
        self._count = 0
        attributes = attributes_of(node)
        attributes.pop("algorithm", None)
        attributes.pop("precision", None)
        conv = {name: attributes.pop(name) for name in list(attributes) if name in CONV}
        self._value = self._add("Conv", *node.input[:3], **conv)
        if node.op_type == "FusedConv":
            self._epilogue(attributes)
        assert not attributes, f"left over: {attributes}"
        assert len(node.output) == 1
        self.nodes[-1].output[0] = node.output[0]

    def _epilogue(self, attributes: dict[str, Any]) -> None:
        inputs = self._node.input
        assert len(inputs) in (3, 4) and all(inputs)
        if len(inputs) == 4:
            self._value = self._add("Add", self._value, inputs[3])
        activation = attributes.pop("activation")
        given = {name for name in attributes if name.startswith("activation_")}
        assert given == PARAMETERS[activation], (activation, given)
        alpha, beta = attributes.pop("activation_alpha", None), attributes.pop("activation_beta", None)
        if activation != "None":
            self._value = self._activate(activation, alpha, beta)
        pool = attributes.pop("pool")
        if pool != "None":
            self._pool(pool, attributes)

    def _activate(self, activation: str, alpha: Any, beta: Any) -> str:
        x = self._value
        match activation:
            case "Relu" | "Tanh" | "Sigmoid":
                return self._add(activation, x)
            case "LeakyRelu" | "Elu":
                return self._add(activation, x, alpha=alpha)
            case "HardSigmoid":
                return self._add("HardSigmoid", x, alpha=alpha, beta=beta)
            case "Clip":
                # The ends of float32 stand for no bound.
                if self._opset < 11:
                    bounds = {"min": alpha, "max": beta}
                    return self._add("Clip", x, **{k: v for k, v in bounds.items() if abs(v) != OPEN})
                low = "" if alpha == -OPEN else self._constant(alpha)
                high = "" if beta == OPEN else self._constant(beta)
                return self._add("Clip", x, low, high)
            case "HardSwish":
                return self._add("Mul", x, self._add("HardSigmoid", x, alpha=1 / 6, beta=0.5))
            case "SiLU":
                return self._add("Mul", x, self._add("Sigmoid", x))
            case "Gelu":
                scaled = self._add("Mul", x, self._constant(np.sqrt(0.5)))
                return self._half_of_x_times_1_plus(self._add("Erf", scaled))
            case "GeluTanh":
                cube = self._add("Mul", x, self._add("Mul", x, x))
                inner = self._add("Add", x, self._add("Mul", cube, self._constant(0.044715)))
                scaled = self._add("Mul", inner, self._constant(np.sqrt(2 / np.pi)))
                return self._half_of_x_times_1_plus(self._add("Tanh", scaled))
        raise AssertionError(f"unknown activation {activation!r}")

    def _half_of_x_times_1_plus(self, value: str) -> str:
        half = self._add("Mul", self._value, self._constant(0.5))
        return self._add("Mul", half, self._add("Add", value, self._constant(1.0)))

    def _pool(self, pool: str, attributes: dict[str, Any]) -> None:
        assert pool in ("MaxPool", "AveragePool")
        given = {
            name.removeprefix("pool_"): attributes.pop(name) for name in list(attributes) if name in POOL
        }
        assert len(given) == len(POOL)
        assert (len(given["kernel_shape"]), len(given["strides"]), len(given["pads"])) == (2, 2, 4)
        if pool == "AveragePool":
            given["count_include_pad"] = attributes.pop("pool_count_include_pad")
        if self._opset < 10:
            assert given.pop("ceil_mode") == 0
        self._value = self._add(pool, self._value, **given)

    def _constant(self, number: float) -> str:
        array = np.array(number, helper.tensor_dtype_to_np_dtype(self._element_type))
        return self._add("Constant", value=numpy_helper.from_array(array))

    def _add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._node.output[0]}/expanded_{self._count}"
        self._count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output


def counts(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many nodes of `convswap.Conv` and `convswap.FusedConv` there are, in subgraphs too."""
    found = {"Conv": 0, "FusedConv": 0}
    for node in _all_nodes(model.graph):
        if node.domain == "convswap":
            found[node.op_type] += 1
    return found


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _all_nodes(attribute.g)
