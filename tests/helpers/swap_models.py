"""Small ONNX models that the swap tests are made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 10
INPUT_SHAPE = (2, 3, 9, 8)
ANY_SHAPE = (None, None, None, None)


def weights(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    """Return a tensor of values that depend only on its shape and name."""
    seed = sum(name.encode()) + sum(shape)
    return numpy_helper.from_array(np.random.default_rng(seed).normal(size=shape).astype(dtype), name)


def input_array(*shape: int) -> np.ndarray:
    """Return float32 values for a graph input of `shape`."""
    return np.random.default_rng(7).normal(size=shape or INPUT_SHAPE).astype(np.float32)


def tensor_info(
    name: str, *shape: int | str | None, element_type: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    """Return the declaration of a tensor; without dimensions, a scalar."""
    return helper.make_tensor_value_info(name, element_type, list(shape))


def make_model(
    nodes: Sequence[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto],
    *,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[onnx.ValueInfoProto] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
    **graph: Any,
) -> onnx.ModelProto:
    """Return a model from `x` (2 x 3 x 9 x 8 by default) to `y`."""
    made = helper.make_graph(
        nodes,
        "net",
        list(inputs) if inputs is not None else [tensor_info("x", *INPUT_SHAPE)],
        list(outputs) if outputs is not None else [tensor_info("y", *ANY_SHAPE)],
        list(initializers),
        **graph,
    )
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(
        made, functions=list(functions), opset_imports=opsets, ir_version=IR_VERSION, producer_name="tests"
    )


def two_convs() -> onnx.ModelProto:
    """conv1 with bias and every attribute, Relu, then conv2 without bias."""
    model = make_model(
        [
            helper.make_node(
                "Conv",
                ["x", "w1", "b1"],
                ["h1"],
                name="conv1",
                doc_string="the first",
                kernel_shape=[3, 3],
                pads=[1, 0, 2, 1],
                strides=[2, 1],
                dilations=[1, 2],
                group=1,
            ),
            helper.make_node("Relu", ["h1"], ["h2"], name="relu"),
            helper.make_node("Conv", ["h2", "w2"], ["y"], name="conv2", auto_pad="SAME_UPPER"),
        ],
        [weights("w1", 6, 3, 3, 3), weights("b1", 6), weights("w2", 4, 6, 2, 2)],
        value_info=[tensor_info("h1", 2, 6, 5, 5)],
    )
    helper.set_model_props(model, {"owner": "the tests"})
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "origin", "layer 1"
    return model


def empty_bias() -> onnx.ModelProto:
    """A Conv whose third input is written, and empty."""
    return make_model(
        [helper.make_node("Conv", ["x", "w", ""], ["y"], name="conv")], [weights("w", 4, 3, 3, 3)]
    )


def unnamed_convs() -> onnx.ModelProto:
    """Two Convs without names; the name that the first would get is taken by another node."""
    return make_model(
        [
            helper.make_node("Conv", ["x", "w1"], ["h"]),
            helper.make_node("Conv", ["h", "w2"], ["g"]),
            helper.make_node("Relu", ["g"], ["y"], name="Conv_h"),
        ],
        [weights("w1", 4, 3, 3, 3), weights("w2", 2, 4, 1, 1)],
    )


def conv_in_if() -> onnx.ModelProto:
    """A Conv in each branch, one with weights of the outer graph, one with its own; input `flag` chooses."""
    branches = {
        "then_branch": helper.make_graph(
            [helper.make_node("Conv", ["x", "w"], ["t"], name="conv_then")],
            "then",
            [],
            [tensor_info("t", *ANY_SHAPE)],
        ),
        "else_branch": helper.make_graph(
            [helper.make_node("Conv", ["x", "we"], ["e"], name="conv_else", pads=[1, 1, 1, 1])],
            "else",
            [],
            [tensor_info("e", *ANY_SHAPE)],
            [weights("we", 4, 3, 3, 3)],
        ),
    }
    return make_model(
        [helper.make_node("If", ["flag"], ["y"], name="choice", **branches)],
        [weights("w", 4, 3, 3, 3)],
        inputs=[tensor_info("x", *INPUT_SHAPE), tensor_info("flag", element_type=TensorProto.BOOL)],
    )


def conv_in_loop() -> onnx.ModelProto:
    """A Conv that keeps the shape, applied three times to the loop's state."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["going_out"]),
            helper.make_node("Conv", ["state", "w"], ["state_out"], name="conv_loop", pads=[1, 1, 1, 1]),
        ],
        "body",
        [
            tensor_info("step", element_type=TensorProto.INT64),
            tensor_info("going", element_type=TensorProto.BOOL),
            tensor_info("state", *ANY_SHAPE),
        ],
        [tensor_info("going_out", element_type=TensorProto.BOOL), tensor_info("state_out", *ANY_SHAPE)],
    )
    return make_model(
        [helper.make_node("Loop", ["trips", "always", "x"], ["y"], name="loop", body=body)],
        [
            weights("w", 3, 3, 3, 3),
            numpy_helper.from_array(np.array(3, np.int64), "trips"),
            numpy_helper.from_array(np.array(True), "always"),
        ],
    )


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[onnx.NodeProto],
    opset: int = OPSET,
) -> onnx.FunctionProto:
    """Return a model-local function of domain `local`."""
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, list(inputs), list(outputs), list(nodes), opsets)


def conv_in_nested_functions(opset: int = OPSET) -> onnx.ModelProto:
    """`Block` is called twice and calls `Layer`, which has the Conv; `Double` has none.

    The functions' inner value `h` has the name of a value in an If branch, their node `conv` that of a node
    in the main graph.
    """
    layer = function(
        "Layer",
        ["a", "f"],
        ["c"],
        [helper.make_node("Conv", ["a", "f"], ["c"], name="conv", pads=[1] * 4)],
        opset,
    )
    block = function(
        "Block",
        ["a", "f"],
        ["r"],
        [
            helper.make_node("Layer", ["a", "f"], ["h"], domain="local", name="layer"),
            helper.make_node("Relu", ["h"], ["r"], name="relu"),
        ],
        opset,
    )
    double = function("Double", ["a"], ["d"], [helper.make_node("Add", ["a", "a"], ["d"], name="add")])
    branches = {
        key: helper.make_graph(
            [
                helper.make_node(op, ["g"], ["h"], name=f"{key}_op"),
                helper.make_node("Neg", ["h"], [key], name=f"{key}_neg"),
            ],
            key,
            [],
            [tensor_info(key, *ANY_SHAPE)],
        )
        for key, op in (("then_branch", "Tanh"), ("else_branch", "Abs"))
    }
    return make_model(
        [
            helper.make_node("Block", ["x", "w"], ["y1"], domain="local", name="first"),
            helper.make_node("Block", ["y1", "w"], ["y2"], domain="local", name="second"),
            helper.make_node("Double", ["y2"], ["g"], domain="local", name="double"),
            helper.make_node("If", ["flag"], ["y3"], name="choice", **branches),
            helper.make_node("Conv", ["y3", "w"], ["y"], name="conv"),
        ],
        [weights("w", 3, 3, 3, 3)],
        inputs=[tensor_info("x", *INPUT_SHAPE), tensor_info("flag", element_type=TensorProto.BOOL)],
        functions=[layer, block, double],
        domains=["local"],
    )


def functions_that_double(depth: int, operator: str) -> onnx.ModelProto:
    """Functions that each call the next one twice, so 2**depth ops `operator` in all, and a Conv after them.

    With Relu, the Conv's element type is known only to shape inference.
    """
    inputs = ["a", "w"] if operator == "Conv" else ["a"]
    functions = []
    for level in range(depth):
        op, domain = (operator, None) if level == depth - 1 else (f"F{level + 1}", "local")
        nodes = [
            helper.make_node(op, inputs, ["b"], domain=domain),
            helper.make_node(op, ["b", *inputs[1:]], ["c"], domain=domain),
        ]
        functions.append(function(f"F{level}", inputs, ["c"], nodes))
    weight = "w" if operator == "Conv" else "v"
    return make_model(
        [
            helper.make_node("F0", ["x", "w"][: len(inputs)], ["h"], domain="local"),
            helper.make_node("Identity", ["w"], ["v"]),
            helper.make_node("Conv", ["h", weight], ["g"], name="conv"),
            helper.make_node("Neg", ["g"], ["y"]),
        ],
        [weights("w", 3, 3, 1, 1)],
        functions=functions,
        domains=["local"],
    )


def weights_in_a_function() -> onnx.ModelProto:
    """A function, called twice, with a Conv in a branch that has its own `w`, as the main graph has."""
    then_branch = helper.make_graph(
        [helper.make_node("Conv", ["a", "w"], ["t"], name="conv", pads=[1] * 4)],
        "then",
        [],
        [tensor_info("t", *ANY_SHAPE)],
        [weights("w", 3, 3, 3, 3)],
    )
    else_branch = helper.make_graph(
        [helper.make_node("Abs", ["a"], ["e"], name="abs")], "else", [], [tensor_info("e", *ANY_SHAPE)]
    )
    choose = helper.make_node(
        "If", ["f"], ["c"], name="choice", then_branch=then_branch, else_branch=else_branch
    )
    return make_model(
        [
            helper.make_node("Choose", ["x", "flag"], ["c1"], domain="local", name="first"),
            helper.make_node("Mul", ["c1", "w"], ["c2"], name="scale"),
            helper.make_node("Choose", ["c2", "flag"], ["y"], domain="local", name="second"),
        ],
        [weights("w", 1)],
        inputs=[tensor_info("x", *INPUT_SHAPE), tensor_info("flag", element_type=TensorProto.BOOL)],
        functions=[function("Choose", ["a", "f"], ["c"], [choose])],
        domains=["local"],
    )


def function_that_returns_its_input() -> onnx.ModelProto:
    """A function whose second output is its first input, given a graph input."""
    both = function(
        "Both",
        ["a", "f"],
        ["c", "a"],
        [helper.make_node("Conv", ["a", "f"], ["c"], name="conv", pads=[1] * 4)],
    )
    return make_model(
        [
            helper.make_node("Both", ["x", "w"], ["c", "same"], domain="local", name="both"),
            helper.make_node("Add", ["c", "same"], ["y"], name="add"),
        ],
        [weights("w", 3, 3, 3, 3)],
        functions=[both],
        domains=["local"],
    )


def every_other_convolution() -> onnx.ModelProto:
    """One Conv, and every convolution that is not swapped, each on inputs of its own; not meant to be run."""
    others = [
        ("", "ConvTranspose"),
        ("", "QLinearConv"),
        ("", "ConvInteger"),
        ("", "DeformConv"),
        ("com.microsoft", "FusedConv"),
        ("com.microsoft", "NhwcConv"),
        ("com.microsoft", "NhwcFusedConv"),
        ("com.microsoft", "QLinearConv"),
        ("com.microsoft", "ConvTransposeWithDynamicPads"),
        ("elsewhere", "MyConv3d"),
    ]
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")]
    for domain, op in others:
        name = f"{domain}.{op}" if domain else op
        nodes.append(helper.make_node(op, ["x", "w"], [f"{name}_out"], name=name, domain=domain or None))
    nodes.append(helper.make_node("ConvertTokens", ["x"], ["tokens"], name="convert", domain="elsewhere"))
    return make_model(nodes, [weights("w", 4, 3, 3, 3)], domains=["com.microsoft", "elsewhere"])


def conv_of(element_type: int, *shape: int | str | None, weight_shape: Sequence[int]) -> onnx.ModelProto:
    """A single Conv named `conv` of an element type and rank."""
    output_shape = [None] * len(weight_shape)
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    return make_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="conv")],
        [weights("w", *weight_shape, dtype=dtype)],
        inputs=[tensor_info("x", *shape, element_type=element_type)],
        outputs=[tensor_info("y", *output_shape, element_type=element_type)],
    )


def mixed_types() -> onnx.ModelProto:
    """`conv32` in float32, then a Cast and `conv16` in float16, whose types no declaration tells."""
    return make_model(
        [
            helper.make_node("Conv", ["x", "w32"], ["h"], name="conv32"),
            helper.make_node("Cast", ["h"], ["h16"], name="cast", to=TensorProto.FLOAT16),
            helper.make_node("Cast", ["w4"], ["w16"], name="cast_weight", to=TensorProto.FLOAT16),
            helper.make_node("Conv", ["h16", "w16"], ["g16"], name="conv16"),
            helper.make_node("Cast", ["g16"], ["y"], name="cast_back", to=TensorProto.FLOAT),
        ],
        [weights("w32", 4, 3, 3, 3), weights("w4", 4, 4, 3, 3)],
    )


def fusable() -> onnx.ModelProto:
    """Three Convs that each take something in when they are fused: one op of every kind."""
    statistics = [weights(f"n{number}", 4) for number in range(3)]
    variance = numpy_helper.from_array(np.array([0.5, 1, 2, 3], np.float32), "n3")
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    return make_model(
        [
            helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1] * 4),
            helper.make_node("BatchNormalization", ["c1", "n0", "n1", "n2", "n3"], ["b1"], name="norm"),
            helper.make_node("Clip", ["b1", "half"], ["a1"], name="clip"),
            helper.make_node("Conv", ["a1", "w2", "n0"], ["c2"], name="conv2", pads=[1] * 4),
            helper.make_node("Add", ["bias", "c2"], ["b2"], name="bias"),
            helper.make_node("Add", ["a1", "b2"], ["r2"], name="residual"),
            helper.make_node("Sigmoid", ["r2"], ["s2"], name="sigmoid"),
            helper.make_node("Mul", ["r2", "s2"], ["a2"], name="mul"),
            helper.make_node("MaxPool", ["a2"], ["p2"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["p2", "w2"], ["c3"], name="conv3"),
            helper.make_node("LeakyRelu", ["c3"], ["y"], name="leaky", alpha=0.25),
        ],
        [
            weights("w1", 4, 3, 3, 3),
            weights("w2", 4, 4, 3, 3),
            weights("bias", 1, 4, 1, 1),
            *statistics,
            variance,
            half,
        ],
    )


def no_conv() -> onnx.ModelProto:
    """A model of a single Relu."""
    return make_model([helper.make_node("Relu", ["x"], ["y"], name="relu")], [])


def three_convs(data_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return a model of symbolic batch: Convs a, b and c, of which a and c compute the same problem."""
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    constants = [
        numpy_helper.from_array(np.ones((2, 2, 3, 3), dtype), "w"),
        numpy_helper.from_array(np.ones((2, 2, 1, 1), dtype), "v"),
    ]
    pads = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["p"], name="a", **pads),
        helper.make_node("Conv", ["p", "v"], ["q"], name="b"),
        helper.make_node("Conv", ["q", "w"], ["y"], name="c", **pads),
    ]
    return make_model(
        nodes,
        constants,
        inputs=[tensor_info("x", "n", 2, 6, 7, element_type=data_type)],
        outputs=[tensor_info("y", None, None, None, None, element_type=data_type)],
    )


def conv_and_activation() -> onnx.ModelProto:
    """Return Conv, an open Clip and MaxPool, then Conv, a residual and HardSwish."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="a", pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["c", "", "six"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w"], ["d"], name="b", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["d", "p"], ["e"]),
        helper.make_node("HardSwish", ["e"], ["y"]),
    ]
    six = numpy_helper.from_array(np.array(6, np.float32), "six")
    declared = [tensor_info("x", "n", 2, 6, 8)]
    return make_model(nodes, [weights("w", 2, 2, 3, 3), six], inputs=declared)


def save_with_external_data(folder: Path, name: str = "model.onnx", data: str = "weights.bin") -> Path:
    """Write `two_convs` to `folder` with its weights in a file of their own, and return the model's path."""
    onnx.save(two_convs(), folder / name, save_as_external_data=True, location=data, size_threshold=64)
    return folder / name
