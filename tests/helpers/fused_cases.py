"""Epilogues of FusedConv, and their reference in ONNX's own operators, in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

# Activations with their parameters, and their nodes in ONNX for a value h.
ACTIVATIONS = {
    "None": ({}, lambda h: []),
    "Relu": ({}, lambda h: [node("Relu", [h], "a")]),
    "LeakyRelu": ({"alpha": 0.125}, lambda h: [node("LeakyRelu", [h], "a", alpha=0.125)]),
    "Clip": ({"alpha": -0.75, "beta": 1.5}, lambda h: [node("Clip", [h, "low", "high"], "a")]),
    "Tanh": ({}, lambda h: [node("Tanh", [h], "a")]),
    "Sigmoid": ({}, lambda h: [node("Sigmoid", [h], "a")]),
    "HardSigmoid": (
        {"alpha": 0.25, "beta": 0.375},
        lambda h: [node("HardSigmoid", [h], "a", alpha=0.25, beta=0.375)],
    ),
    "HardSwish": ({}, lambda h: [node("HardSwish", [h], "a")]),
    "SiLU": ({}, lambda h: [node("Sigmoid", [h], "s"), node("Mul", [h, "s"], "a")]),
    "Gelu": ({}, lambda h: [node("Gelu", [h], "a")]),
    "GeluTanh": ({}, lambda h: [node("Gelu", [h], "a", approximate="tanh")]),
    "Elu": ({"alpha": 1.25}, lambda h: [node("Elu", [h], "a", alpha=1.25)]),
}
POOLS = {
    "none": {},
    "max": {"pool": "MaxPool", "kernel_shape": [2, 2], "strides": [2, 2]},
    "max overlapping, padded": {
        "pool": "MaxPool",
        "kernel_shape": [3, 2],
        "strides": [2, 1],
        "pads": [1, 0, 1, 1],
    },
    "max, rounded up": {"pool": "MaxPool", "kernel_shape": [4, 4], "strides": [4, 4], "ceil_mode": 1},
    "average": {"pool": "AveragePool", "kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 1]},
    "average with its padding": {
        "pool": "AveragePool",
        "kernel_shape": [2, 3],
        "strides": [1, 2],
        "pads": [1, 1, 1, 1],
        "count_include_pad": 1,
    },
}
TYPES = {
    "float32": (np.float32, onnx.TensorProto.FLOAT, 2.0**-24),
    "float64": (np.float64, onnx.TensorProto.DOUBLE, 2.0**-53),
    "float16": (np.float16, onnx.TensorProto.FLOAT16, 2.0**-11),
    "bfloat16": (ml_dtypes.bfloat16, onnx.TensorProto.BFLOAT16, 2.0**-8),
}
# Error of a float32 sum of 28 products of numbers about 1; no activation here has a slope above 1.2.
SUM_ERROR = 28 * 1.2 * 8 * 2.0**-24
X, W = (2, 3, 11, 13), (6, 3, 3, 3)


def node(op: str, inputs: list[str], output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


def fused_attributes(activation: str, pool: dict) -> dict:
    parameters = {f"activation_{key}": value for key, value in ACTIVATIONS[activation][0].items()}
    pooling = {f"pool_{key}": value for key, value in pool.items() if key != "pool"}
    return {"activation": activation, "pool": pool.get("pool", "None"), **parameters, **pooling}


def reference(arrays: dict[str, np.ndarray], activation: str, pool: dict, conv: dict) -> np.ndarray:
    """Return the result of ONNX's operators, one after the other, in float64."""
    values = {name: array.astype(np.float64) for name, array in arrays.items()}
    values |= {
        "low": np.float64(ACTIVATIONS["Clip"][0]["alpha"]),
        "high": np.float64(ACTIVATIONS["Clip"][0]["beta"]),
    }
    nodes = [node("Conv", [name for name in "xwb" if name in arrays], "c", **conv)]
    last = "c"
    if "z" in arrays:
        nodes.append(node("Add", ["c", "z"], "h"))
        last = "h"
    activation_nodes = ACTIVATIONS[activation][1](last)
    nodes += activation_nodes
    last = "a" if activation_nodes else last
    if pool:
        attributes = {key: value for key, value in pool.items() if key != "pool"}
        nodes.append(node(pool["pool"], [last], "p", **attributes))
        last = "p"
    used = {name for each in nodes for name in each.input}
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, None)
            for name in values
            if name in used
        ],
        [helper.make_tensor_value_info(last, onnx.TensorProto.DOUBLE, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return ReferenceEvaluator(model).run(None, {name: values[name] for name in values if name in used})[0]


def draw(element_type: str, *, residual: bool, bias: bool = True) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    dtype = TYPES[element_type][0]
    arrays = {"x": random.standard_normal(X).astype(dtype)}
    arrays["w"] = (random.standard_normal(W) / 4).astype(dtype)
    if bias:
        arrays["b"] = random.standard_normal(W[0]).astype(dtype)
    if residual:
        arrays["z"] = random.standard_normal((2, 6, 9, 11)).astype(dtype)
    return arrays


def check(y: np.ndarray, expected: np.ndarray, element_type: str) -> None:
    rounding = TYPES[element_type][2]
    sum_error = 0 if element_type == "float64" else SUM_ERROR
    bound = rounding * np.abs(expected) * 1.01 + sum_error + 100 * 2.0**-53
    assert y.shape == expected.shape
    assert np.all(np.abs(y.astype(np.float64) - expected) <= bound)
