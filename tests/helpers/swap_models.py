"""Small ONNX models for the tests of `swap`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from convswap.graph.model_file import model_from_proto
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 10
INPUT_SHAPE = (2, 3, 9, 8)
ANY_SHAPE = (None, None, None, None)


def weights(name: str, *shape: int, dtype: Any = np.float32) -> onnx.TensorProto:
    """Return a tensor whose values depend only on its shape and name."""
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
    graph_proto = helper.make_graph(
        nodes,
        "net",
        list(inputs) if inputs is not None else [tensor_info("x", *INPUT_SHAPE)],
        list(outputs) if outputs is not None else [tensor_info("y", *ANY_SHAPE)],
        list(initializers),
        **graph,
    )
    opsets = [helper.make_opsetid("", OPSET), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(
        graph_proto,
        functions=list(functions),
        opset_imports=opsets,
        ir_version=IR_VERSION,
        producer_name="tests",
    )


# INPUT_SHAPE and ANY_SHAPE in ONNX's text format.
IMAGE, ANY = "float[2, 3, 9, 8]", "float[?, ?, ?, ?]"


def text_model(
    nodes: str,
    *initializers: onnx.TensorProto,
    inputs: str = f"{IMAGE} x",
    outputs: str = f"{ANY} y",
    functions: str = "",
    opset: int = OPSET,
    domains: str = "",
) -> onnx.ModelProto:
    """Return a model from ONNX's text of its nodes, and of functions of domain local.

    `domains` are other domains, separated by blanks, such as "com.microsoft ai.onnx.ml:3".
    """
    versions = [each.partition(":") for each in [*domains.split(), *(["local"] if functions else [])]]
    imports = ", ".join([f'"": {opset}', *(f'"{name}": {version or 1}' for name, _, version in versions)])
    model = onnx.parser.parse_model(
        f'<ir_version: {IR_VERSION}, opset_import: [{imports}], producer_name: "tests">'
        f"net ({inputs}) => ({outputs}) {{ {nodes} }} {functions}"
    )
    model.graph.initializer.extend(initializers)
    # Exporters omit the domain of ONNX's own ops; the parser sets it to "".
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        if not node.domain:
            node.ClearField("domain")
    return model


def model_with_inputs(
    *inputs: onnx.ValueInfoProto, initializers: Sequence[onnx.TensorProto] = ()
) -> ir.Model:
    """Return a model with these inputs whose output is the first of them."""
    nodes = [helper.make_node("Identity", [inputs[0].name], ["answer"])]
    outputs = [onnx.ValueInfoProto(name="answer")]
    return model_from_proto(make_model(nodes, initializers, inputs=inputs, outputs=outputs))


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
    """A Conv whose third input is present with an empty name."""
    return make_model(
        [helper.make_node("Conv", ["x", "w", ""], ["y"], name="conv")], [weights("w", 4, 3, 3, 3)]
    )


def unnamed_convs() -> onnx.ModelProto:
    """Two Convs without names; another node already has the name that the first would get."""
    nodes = "h = Conv(x, w1)  g = Conv(h, w2)  [Conv_h] y = Relu(g)"
    return text_model(nodes, weights("w1", 4, 3, 3, 3), weights("w2", 2, 4, 1, 1))


def conv_in_if() -> onnx.ModelProto:
    """A Conv in each branch, with weights of the outer graph and of the branch; input `flag` selects one."""
    nodes = f"""
      [choice] y = If(flag) <
        else_branch = else () => ({ANY} e) {{ [conv_else] e = Conv <pads = [1, 1, 1, 1]> (x, we) }},
        then_branch = then () => ({ANY} t) {{ [conv_then] t = Conv(x, w) }}
      >"""
    model = text_model(nodes, weights("w", 4, 3, 3, 3), inputs=f"{IMAGE} x, bool flag")
    model.graph.node[0].attribute[0].g.initializer.append(weights("we", 4, 3, 3, 3))
    return model


def conv_in_loop() -> onnx.ModelProto:
    """A Conv that keeps the shape, applied three times to the loop's state."""
    nodes = f"""
      [loop] y = Loop(trips, always, x) <
        body = body (int64 step, bool going, {ANY} state) => (bool going_out, {ANY} state_out) {{
          going_out = Identity(going)
          [conv_loop] state_out = Conv <pads = [1, 1, 1, 1]> (state, w)
        }}
      >"""
    trips = numpy_helper.from_array(np.array(3, np.int64), "trips")
    always = numpy_helper.from_array(np.array(True), "always")
    return text_model(nodes, weights("w", 3, 3, 3, 3), trips, always)


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

    The functions' inner value `h` has the name of a value in an If branch, and their node `conv` has the name
    of a node in the main graph.
    """
    nodes = f"""
      [first] y1 = local.Block(x, w)
      [second] y2 = local.Block(y1, w)
      [double] g = local.Double(y2)
      [choice] y3 = If(flag) <
        else_branch = else () => ({ANY} else_branch) {{
          [else_branch_op] h = Abs(g)
          [else_branch_neg] else_branch = Neg(h)
        }},
        then_branch = then () => ({ANY} then_branch) {{
          [then_branch_op] h = Tanh(g)
          [then_branch_neg] then_branch = Neg(h)
        }}
      >
      [conv] y = Conv(y3, w)"""
    functions = f"""
      <domain: "local", opset_import: ["": {opset}, "local": 1]>
      Layer (a, f) => (c) {{ [conv] c = Conv <pads = [1, 1, 1, 1]> (a, f) }}
      <domain: "local", opset_import: ["": {opset}, "local": 1]>
      Block (a, f) => (r) {{ [layer] h = local.Layer(a, f)  [relu] r = Relu(h) }}
      <domain: "local", opset_import: ["": {OPSET}, "local": 1]>
      Double (a) => (d) {{ [add] d = Add(a, a) }}"""
    inputs = f"{IMAGE} x, bool flag"
    return text_model(nodes, weights("w", 3, 3, 3, 3), inputs=inputs, functions=functions)


def functions_that_double(depth: int, operator: str) -> onnx.ModelProto:
    """Functions that each call the next twice, 2**depth ops `operator` in all, and a Conv after them.

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
    nodes = """
      [first] c1 = local.Choose(x, flag)
      [scale] c2 = Mul(c1, w)
      [second] y = local.Choose(c2, flag)"""
    functions = f"""
      <domain: "local", opset_import: ["": {OPSET}, "local": 1]>
      Choose (a, f) => (c) {{
        [choice] c = If(f) <
          else_branch = else () => ({ANY} e) {{ [abs] e = Abs(a) }},
          then_branch = then () => ({ANY} t) {{ [conv] t = Conv <pads = [1, 1, 1, 1]> (a, w) }}
        >
      }}"""
    model = text_model(nodes, weights("w", 1), inputs=f"{IMAGE} x, bool flag", functions=functions)
    model.functions[0].node[0].attribute[1].g.initializer.append(weights("w", 3, 3, 3, 3))
    return model


def function_that_returns_its_input() -> onnx.ModelProto:
    """A function whose second output is its first input, given a graph input."""
    nodes = "[both] c, same = local.Both(x, w)  [add] y = Add(c, same)"
    functions = f"""
      <domain: "local", opset_import: ["": {OPSET}, "local": 1]>
      Both (a, f) => (c, a) {{ [conv] c = Conv <pads = [1, 1, 1, 1]> (a, f) }}"""
    return text_model(nodes, weights("w", 3, 3, 3, 3), functions=functions)


def unsupported_convolutions() -> onnx.ModelProto:
    """One Conv and every convolution op that is not swapped; the model cannot run."""
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
    """`conv32` in float32, then a Cast and `conv16` in float16, without declared types."""
    nodes = """
      [conv32] h = Conv(x, w32)
      [cast] h16 = Cast <to = 10> (h)
      [cast_weight] w16 = Cast <to = 10> (w4)
      [conv16] g16 = Conv(h16, w16)
      [cast_back] y = Cast <to = 1> (g16)"""
    return text_model(nodes, weights("w32", 4, 3, 3, 3), weights("w4", 4, 4, 3, 3))


def fusable() -> onnx.ModelProto:
    """Three Convs with followers that fuse, one of every kind."""
    nodes = """
      [conv1] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1)
      [norm] b1 = BatchNormalization(c1, n0, n1, n2, n3)
      [clip] a1 = Clip(b1, half)
      [conv2] c2 = Conv <pads = [1, 1, 1, 1]> (a1, w2, n0)
      [bias] b2 = Add(bias, c2)
      [residual] r2 = Add(a1, b2)
      [sigmoid] s2 = Sigmoid(r2)
      [mul] a2 = Mul(r2, s2)
      [pool] p2 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a2)
      [conv3] c3 = Conv(p2, w2)
      [leaky] y = LeakyRelu <alpha = 0.25> (c3)"""
    return text_model(
        nodes,
        *(weights("w1", 4, 3, 3, 3), weights("w2", 4, 4, 3, 3), weights("bias", 1, 4, 1, 1)),
        *(weights(f"n{number}", 4) for number in range(3)),
        numpy_helper.from_array(np.array([0.5, 1, 2, 3], np.float32), "n3"),
        numpy_helper.from_array(np.array(0.5, np.float32), "half"),
    )


def no_conv() -> onnx.ModelProto:
    """A model of a single Relu."""
    return text_model("[relu] y = Relu(x)")


def three_convs(data_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """Return a model with a symbolic batch and Convs a, b and c; a and c are the same problem."""
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
    nodes = """
      [a] c = Conv <pads = [1, 1, 1, 1]> (x, w)
      r = Clip(c, , six)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
      [b] d = Conv <pads = [1, 1, 1, 1]> (p, w)
      e = Add(d, p)
      y = HardSwish(e)"""
    six = numpy_helper.from_array(np.array(6, np.float32), "six")
    return text_model(nodes, weights("w", 2, 2, 3, 3), six, inputs="float[n, 2, 6, 8] x")


def save_with_external_data(folder: Path, data: str = "weights.bin") -> Path:
    """Write `two_convs` to `folder` with external weights, and return the model's path."""
    path = folder / "model.onnx"
    onnx.save(two_convs(), path, save_as_external_data=True, location=data, size_threshold=64)
    return path
