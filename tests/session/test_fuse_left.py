"""Nodes that are not fused into a Conv, with the reason; the nodes before them are fused nevertheless."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import swap_models
from convswap.graph.swap import swap
from fuse_models import (
    FILTERS,
    UNIT,
    array,
    assert_same,
    conv,
    declare,
    fuse,
    model,
    node,
    reasons,
    taken,
    tensor,
)
from fused_conv_reference import conv_node_counts
from onnx import TensorProto, helper

K = FILTERS
IMAGE = (2, 3, 9, 8)


def assert_not_fused(result, follower: str, words: str, fused: list[str] | None = None) -> None:
    """Assert that `follower` was not fused, for a reason with `words`, and that `fused` were fused."""
    reason_of = reasons(result)
    assert list(reason_of) == [follower]
    assert words in reason_of[follower]
    assert taken(result).get("conv", ["Conv"])[1:] == (fused or [])


def statistics() -> dict[str, np.ndarray]:
    return {
        "scale": array("s", K, low=0.5, high=2),
        "bias": array("b", K),
        "mean": array("m", K),
        "variance": array("v", K, low=0.1, high=3),
    }


def normalise(value="c", output="y", **attributes) -> onnx.NodeProto:
    return node("BatchNormalization", f"{value} scale bias mean variance", output, "norm", **attributes)


# Other readers


def test_value_that_is_an_output_of_the_graph_stays():
    original = model(
        [conv(), node("Relu", "c", "h"), node("MaxPool", "h", "y", "pool", kernel_shape=[2, 2])],
        outputs=("y", "h"),
    )
    assert_not_fused(fuse(original), "pool", "its input 'h' is an output of the graph", ["Relu"])


def test_value_that_another_node_reads_stays():
    original = model(
        [conv(), node("Relu", "c", "h"), node("Tanh", "h", "t", "tanh"), node("Mul", "h t", "y")]
    )
    assert_not_fused(fuse(original), "tanh", "2 nodes read 'h'", ["Relu"])


def test_intermediate_value_of_a_decomposed_activation_that_is_read_elsewhere_stays():
    nodes = [
        conv(),
        node("Sigmoid", "c", "s", "sigmoid"),
        node("Mul", "c s", "h"),
        node("Concat", "h s", "y", axis=1),
    ]
    assert_not_fused(fuse(model(nodes)), "sigmoid", "2 nodes read 'c'")


def test_intermediate_value_of_a_decomposed_activation_that_is_an_output_stays():
    nodes = [conv(), node("Sigmoid", "c", "s", "sigmoid"), node("Mul", "c s", "y")]
    assert_not_fused(fuse(model(nodes, outputs=("y", "s"))), "sigmoid", "2 nodes read 'c'")


def test_value_that_a_subgraph_reads_stays():
    branches = {
        key: helper.make_graph([node(op, "c", key)], key, [], [declare(key, None)])
        for key, op in (("then_branch", "Relu"), ("else_branch", "Tanh"))
    }
    original = model(
        [conv(), helper.make_node("If", ["flag"], ["y"], name="choice", **branches)],
        inputs=[declare("x", IMAGE), declare("flag", (), TensorProto.BOOL)],
    )
    assert_not_fused(swap(original, fuse=True), "tanh_else_branch", "read inside a subgraph")


def test_value_that_a_subgraph_and_another_node_read_stays():
    branches = {
        key: helper.make_graph([node(op, "c", key)], key, [], [declare(key, None)])
        for key, op in (("then_branch", "Neg"), ("else_branch", "Tanh"))
    }
    original = model(
        [
            conv(),
            helper.make_node("If", ["flag"], ["i"], name="choice", **branches),
            node("Relu", "c", "r"),
            node("Add", "r i", "y"),
        ],
        inputs=[declare("x", IMAGE), declare("flag", (), TensorProto.BOOL)],
    )
    assert swap(original, fuse=True).fused == ()


def test_value_that_only_convolutions_read_is_not_listed():
    original = model([conv("c", name="conv"), conv("y", "c w2", "conv2")], {"w2": array("w2", K, K, 3, 3)})
    result = fuse(original)
    assert (result.fused, result.not_fused) == ((), ())


# Order


@pytest.mark.parametrize(
    ("nodes", "follower", "words", "fused"),
    [
        (
            [node("Relu", "c", "h"), node("Add", "h x", "y", "add")],
            "add",
            "a residual comes after an activation",
            ["Relu"],
        ),
        (
            [node("Relu", "c", "h"), node("Add", "h a", "y", "add")],
            "add",
            "a bias, scale or batch normalisation comes after an activation",
            ["Relu"],
        ),
        (
            [node("Add", "c x", "h"), node("Add", "h x", "y", "add")],
            "add",
            "a residual comes after a residual",
            ["Add"],
        ),
        (
            [node("Add", "c x", "h"), node("BatchNormalization", "h a1 a1 a1 a1", "y", "norm")],
            "norm",
            "a bias, scale or batch normalisation comes after a residual",
            ["Add"],
        ),
        (
            [node("Relu", "c", "h"), node("Tanh", "h", "y", "tanh")],
            "tanh",
            "an activation comes after an activation",
            ["Relu"],
        ),
        (
            [node("MaxPool", "c", "h", kernel_shape=[2, 2]), node("Relu", "h", "y", "relu")],
            "relu",
            "an activation comes after a pooling",
            ["MaxPool"],
        ),
        (
            [
                node("MaxPool", "c", "h", kernel_shape=[2, 2]),
                node("MaxPool", "h", "y", "pool", kernel_shape=[2, 2]),
            ],
            "pool",
            "a pooling comes after a pooling",
            ["MaxPool"],
        ),
    ],
)
def test_order_is_bias_residual_activation_pooling_and_each_but_biases_once(nodes, follower, words, fused):
    constants = {
        "w3": array("w3", 3, 3, 3, 3),
        "a": array("a", 3, 1, 1),
        "a1": array("a1", 3, low=0.5),
    }
    assert_not_fused(fuse(model([conv(inputs="x w3"), *nodes], constants)), follower, words, fused)


# Biases and batch normalisation


def test_vector_as_long_as_the_filters_is_added_along_the_width_and_no_bias():
    # With four filters and a width of four, so that the vector's shape alone would fit both.
    original = model([conv(), node("Add", "c a", "y", "add")], {"a": array("a", K)}, x_shape=(2, 3, 9, K))
    assert_not_fused(fuse(original), "add", "'a', is not known to have the shape of the convolution's result")


@pytest.mark.parametrize("shape", [(2, K, 1, 1), (1, K, 9, 1), (1, 1, 1, 1, 1)])
def test_constant_that_is_no_bias_is_not_fused(shape):
    result = fuse(model([conv(), node("Add", "c a", "y", "add")], {"a": array("a", *shape)}))
    assert_not_fused(
        result, "add", "nor is it a constant of one number, or of one number for each output channel"
    )


def test_bias_is_not_folded_where_the_convs_bias_is_not_constant():
    original = model(
        [conv(inputs="x w b"), node("Add", "c a", "y", "add")],
        {"a": array("a", K, 1, 1)},
        inputs=[declare("x", IMAGE), declare("b", (K,))],
    )
    original.graph.initializer.append(tensor("w", array("w", K, 3, 3, 3)))
    assert_not_fused(fuse(original), "add", "the bias of the convolution is not constant")


def test_batch_normalisation_is_not_folded_where_the_convs_bias_is_no_vector_of_its_filters():
    original = model([conv(inputs="x w b"), normalise()], statistics() | {"b": array("b", K, 1)})
    result = swap(original, fuse=True)
    assert_not_fused(
        result, "norm", "the bias of the convolution does not have one number for each output channel"
    )


def test_bias_that_an_input_may_replace_is_not_folded():
    original = model(
        [conv(), node("Add", "c a", "y", "add")],
        {"a": array("a", K, 1, 1), "w": array("w", K, 3, 3, 3)},
        inputs=[declare("x", IMAGE), declare("a", (K, 1, 1))],
    )
    assert_not_fused(fuse(original), "add", "'a', is not known to have the shape")


@pytest.mark.parametrize(
    ("opset", "outputs"),
    [(7, "y m2 v2 m3 v3"), (13, "y m2 v2 m3 v3"), (14, "y m2 v2"), (20, "y m2 v2"), (20, "y")],
)
def test_batch_normalisation_in_training_mode_is_not_folded(opset, outputs):
    attributes = {"training_mode": 1} if opset >= 14 else {}
    nodes = [conv(), node("BatchNormalization", "c scale bias mean variance", outputs, "norm", **attributes)]
    result = swap(model(nodes, statistics(), opset=opset), fuse=True)
    assert_not_fused(result, "norm", "training mode")


def test_batch_normalisation_for_each_pixel_is_not_folded():
    values = {name: np.ones((K, 9, 8)) for name in statistics()}
    result = swap(model([conv(), normalise(spatial=0)], values, opset=7), fuse=True)
    assert_not_fused(result, "norm", "statistics for each pixel")


@pytest.mark.parametrize("changing", ["scale", "bias", "mean", "variance"])
def test_batch_normalisation_of_what_is_not_constant_is_not_folded(changing):
    constants = {name: values for name, values in statistics().items() if name != changing}
    original = model(
        [conv(), normalise()],
        constants | {"w": array("w", K, 3, 3, 3)},
        inputs=[declare("x", IMAGE), declare(changing, (K,))],
    )
    assert_not_fused(swap(original, fuse=True), "norm", "its scale, bias, mean or variance is not constant")


def test_batch_normalisation_is_not_folded_where_the_weights_are_not_constant():
    original = model(
        [conv(), normalise()], statistics(), inputs=[declare("x", IMAGE), declare("w", (K, 3, 3, 3))]
    )
    assert_not_fused(fuse(original), "norm", "the weights of the convolution are not constant")


def test_activation_of_a_conv_whose_weights_are_not_constant_is_fused():
    original = model(
        [conv(), node("Relu", "c", "y")], inputs=[declare("x", IMAGE), declare("w", (K, 3, 3, 3))]
    )
    assert taken(fuse(original)) == {"conv": ["FusedConv", "Relu"]}


@pytest.mark.parametrize("filters", ["k", None, -4, 2**40])
def test_nothing_is_fused_where_the_number_of_filters_is_not_known(filters):
    original = model(
        [conv(), node("Relu", "c", "y", "relu")],
        inputs=[declare("x", IMAGE), declare("w", (filters, 3, 3, 3))],
    )
    assert_not_fused(
        swap(original, fuse=True), "relu", "the convolution's number of output channels is not known"
    )


@pytest.mark.parametrize(
    ("variance", "words"), [(1e-9, "would not be finite"), (6e9, "would be too small for float16")]
)
def test_weights_that_float16_cannot_represent_once_folded_are_not_folded(variance, words):
    tensors = [
        tensor("scale", np.full(K, 60000 if variance < 1 else 0.001), TensorProto.FLOAT16),
        tensor("bias", np.zeros(K), TensorProto.FLOAT16),
        # From opset 15 on statistics may have a type of their own.
        tensor("mean", np.zeros(K)),
        tensor("variance", np.full(K, variance)),
    ]
    original = model([conv(), normalise()], tensors=tensors, element_type=TensorProto.FLOAT16)
    result = swap(original, fuse=True)
    assert_not_fused(result, "norm", words)
    assert conv_node_counts(result.to_proto()) == {"Conv": 1, "FusedConv": 0}


def test_statistics_that_are_no_numbers_are_not_folded():
    strings = helper.make_tensor("mean", TensorProto.STRING, [K], [b"one"] * K)
    original = model([conv(), normalise()], {k: v for k, v in statistics().items() if k != "mean"})
    original.graph.initializer.append(strings)
    assert_not_fused(swap(original, fuse=True), "norm", "the constant 'mean' is of no floating-point type")


def test_batch_normalisation_whose_parameter_is_of_strings_without_values_is_not_folded():
    """A constant of a damaged file, without a number for each filter."""
    original = model([conv(), normalise()], statistics())
    (mean,) = (each for each in original.graph.initializer if each.name == "mean")
    mean.ClearField("raw_data")
    mean.data_type = TensorProto.STRING
    assert_not_fused(swap(original, fuse=True), "norm", "the constant 'mean' is of no floating-point type")


def test_negative_variance_is_not_folded():
    values = statistics() | {"variance": np.full(K, -1.0)}
    assert_not_fused(swap(model([conv(), normalise()], values), fuse=True), "norm", "would not be finite")


@pytest.mark.parametrize("shape", [(K,), (2, K, 1, 1), (1, K, 9, 1), (1, K, 9, 8)])
def test_factor_that_is_not_one_for_each_filter_is_not_folded(shape):
    original = model(
        [conv(), node("Mul", "a c", "y", "mul")],
        {"a": array("a", *shape)},
        x_shape=(2, 3, 9, K if shape == (K,) else 8),
    )
    assert_not_fused(
        fuse(original), "mul", "'a', is no constant of one number, or of one number for each output channel"
    )


@pytest.mark.parametrize("axes", [[0, 1], [1, 1], [7, 2]])
def test_vector_that_unsqueeze_does_not_turn_to_the_filters_is_not_folded(axes):
    nodes = [conv(), node("Unsqueeze", "a_", "a", axes=axes), node("Mul", "c a", "y", "mul")]
    result = swap(model(nodes, {"a_": array("a", K)}, opset=9, y_shape=(2, K, 9, 8)), fuse=True)
    assert_not_fused(
        result, "mul", "'a', is no constant of one number, or of one number for each output channel"
    )


def test_scale_is_not_folded_where_the_weights_are_not_constant():
    original = model(
        [conv(), node("Mul", "c a", "y", "mul")],
        {"a": array("a", K, 1, 1)},
        inputs=[declare("x", IMAGE), declare("w", (K, 3, 3, 3))],
    )
    assert_not_fused(fuse(original), "mul", "the weights of the convolution are not constant")


# The residual


def test_adding_the_result_to_itself_is_not_fused():
    words = "it does not combine the result of the convolution with one other value"
    assert_not_fused(fuse(model([conv(), node("Add", "c c", "y", "add")])), "add", words)
    assert_not_fused(
        fuse(model([conv(), node("Sum", "c x2 x2", "y", "sum")], {"x2": array("a", 2, K, 9, 8)})),
        "sum",
        words,
    )


@pytest.mark.parametrize("shape", [(2, K, 9, 1), (1, K, 9, 8), (K, 9, 8), (2, 1, 9, 8), (1, 2, K, 9, 8)])
def test_operand_that_is_broadcast_is_no_residual(shape):
    original = model(
        [conv(), node("Add", "r c", "y", "add")],
        {"w": array("w", K, 3, 3, 3)},
        inputs=[declare("x", IMAGE), declare("r", shape)],
    )
    assert_not_fused(fuse(original), "add", "'r', is not known to have the shape of the convolution's result")


@pytest.mark.parametrize("shape", [None, ("n", K, 9, 8), (None, K, 9, 8), ("batch", K, "h", 8)])
def test_operand_that_may_be_broadcast_is_no_residual(shape):
    original = model(
        [conv(), node("Add", "c r", "y", "add")],
        {"w": array("w", K, 3, 3, 3)},
        inputs=[declare("x", ("batch", 3, 9, 8)), declare("r", shape)],
    )
    result = swap(original, fuse=True)
    assert_not_fused(result, "add", "'r', is not known to have the shape of the convolution's result")


# Activations


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "words"),
    [
        ("com.microsoft.QuickGelu", "c", {}, "its alpha is 1.702"),
        ("com.microsoft.FastGelu", "c v", {}, "a bias of its own"),
        ("Clip", "c high low", {}, "nothing is between its minimum, 1, and its maximum, 0"),
        ("Clip", "c not_a_number", {}, "nothing is between"),
        ("Clip", "c from_outside", {}, "its bounds are not one constant number"),
        ("Clip", "low c", {}, "it does not take 'c' as its data"),
        ("com.microsoft.FastGelu", "v c", {}, "it does not take 'c' as its data"),
        ("Max", "c from_outside", {}, "its bounds are not one constant number"),
        ("Max", "c v", {}, "its bounds are not one constant number"),
        ("Max", "c low high", {}, "two operands, one of them constant"),
        ("Max", "c c", {}, "two operands, one of them constant"),
        ("Max", "c many_axes", {}, "its bounds are not one constant number"),
        ("PRelu", "c low", {}, "does not have this op"),
        ("Softplus", "c", {}, "does not have this op"),
        ("LeakyRelu", "c", {"alpha": 1}, "its attribute 'alpha' is not of the type"),
        ("Gelu", "c", {"approximate": "other"}, "its approximation 'other' is not known"),
    ],
)
def test_activation_that_the_op_does_not_have_is_not_fused(op, inputs, attributes, words):
    constants = {
        "w": array("w", K, 3, 3, 3),
        "low": 0.0,
        "high": 1.0,
        "v": array("v", 8),
        "not_a_number": math.nan,
        "many_axes": np.zeros((1, 1, 1, 1, 1)),
    }
    original = model(
        [conv(), node(op, inputs, "y", "follower", **attributes)],
        constants,
        inputs=[declare("x", IMAGE), declare("from_outside", ())],
        domains=["com.microsoft"],
    )
    assert_not_fused(swap(original, fuse=True), "follower", words)


@pytest.mark.parametrize("bounds", [{"high": 0.1}, {"low": -1e300}])
def test_float64_bounds_that_float32_does_not_represent_are_not_fused(bounds):
    inputs = " ".join(["c", *(name if name in bounds else "-" for name in ("low", "high"))])
    original = model([conv(), node("Clip", inputs, "y", "clip")], bounds, element_type=TensorProto.DOUBLE)
    assert_not_fused(fuse(original), "clip", "is no float32")


# Forms of test_fuse.py with one mistake each.
ALMOST_ACTIVATIONS = {
    "quick gelu": ("q=Mul(c,k) s=Sigmoid(q) y=Mul(c,s)", {"k": 1.702}),
    "another root": (
        "d=Div(c,r) e=Erf(d) p=Add(e,one) m=Mul(c,p) y=Mul(m,half)",
        {"r": 1.4143, "one": 1, "half": 0.5},
    ),
    "another half": (
        "d=Div(c,r) e=Erf(d) p=Add(e,one) m=Mul(c,p) y=Mul(m,half)",
        {"r": math.sqrt(2), "one": 1, "half": 0.5001},
    ),
    "minus": (
        "d=Div(c,r) e=Erf(d) p=Sub(e,one) m=Mul(c,p) y=Mul(m,half)",
        {"r": math.sqrt(2), "one": 1, "half": 0.5},
    ),
    "half of a vector": (
        "d=Div(c,r) e=Erf(d) p=Add(e,one) m=Mul(c,p) y=Mul(m,half)",
        {"r": math.sqrt(2), "one": 1, "half": [0.5] * 8},
    ),
    "half of five axes": (
        "d=Div(c,r) e=Erf(d) p=Add(e,one) m=Mul(c,p) y=Mul(m,half)",
        {"r": math.sqrt(2), "one": 1, "half": [[[[[0.5]]]]]},
    ),
    "a fourth power": (
        "q=Pow(c,four) k=Mul(q,a) s=Add(c,k) i=Mul(s,root) t=Tanh(i) p=Add(t,one) h=Mul(c,half) y=Mul(h,p)",
        {"four": 4, "a": 0.044715, "root": math.sqrt(2 / math.pi), "one": 1, "half": 0.5},
    ),
    "squared": ("s=Sigmoid(c) m=Mul(c,s) y=Mul(m,s)", {}),
    "hard swish up to 5": ("a=Add(c,b) k=Clip(a,z,s) m=Mul(c,k) y=Div(m,s)", {"b": 3, "z": 0, "s": 5}),
    "hard swish of 2": ("a=Add(c,b) k=Clip(a,z,s) m=Mul(c,k) y=Div(m,s)", {"b": 2, "z": 0, "s": 6}),
    "two functions": ("s=Sigmoid(c) t=Tanh(s) y=Mul(c,t)", {}),
    "divided the wrong way round": ("s=Sigmoid(c) m=Div(s,c) y=Mul(c,m)", {}),
}


@pytest.mark.parametrize("name", ALMOST_ACTIVATIONS)
def test_what_is_nearly_an_activation_is_not_fused(name):
    text, constants = ALMOST_ACTIVATIONS[name]
    nodes = []
    for equation in text.split():
        output, _, call = equation.partition("=")
        op, _, arguments = call.rstrip(")").partition("(")
        nodes.append(node(op, arguments.replace(",", " "), output))
    result = fuse(model([conv(), *nodes], constants))
    (reason,) = reasons(result).values()
    assert result.fused == () and "nodes read 'c'" in reason


def test_silu_of_an_op_of_another_domain_is_not_fused():
    nodes = [conv(), node("elsewhere.Sigmoid", "c", "s", "theirs"), node("Mul", "c s", "y")]
    result = swap(model(nodes, domains=["elsewhere"]), fuse=True)
    assert_not_fused(result, "theirs", "2 nodes read 'c'")


# Pooling


@pytest.mark.parametrize(
    ("op", "attributes", "words"),
    [
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [1, 2]}, "its dilations are (1, 2)"),
        ("AveragePool", {"kernel_shape": [2, 2], "dilations": [2, 2]}, "its dilations are (2, 2)"),
        ("MaxPool", {"kernel_shape": [2, 2], "auto_pad": "VALID", "ceil_mode": 1}, "ceil_mode with auto_pad"),
        (
            "MaxPool",
            {"kernel_shape": [1, 1], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
            "with strides beyond its kernel",
        ),
        ("MaxPool", {"kernel_shape": [2, 2], "auto_pad": "SOME"}, "its auto_pad 'SOME' is not known"),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, "its pads (2, 0, 0, 0) are not"),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [1, 1]}, "do not fit together"),
        ("MaxPool", {}, "does not pool over two axes"),
        ("LpPool", {"kernel_shape": [2, 2]}, "does not have this op"),
        ("GlobalAveragePool", {}, "does not have this op"),
        ("GlobalMaxPool", {}, "does not have this op"),
    ],
)
def test_pooling_that_the_op_does_not_have_is_not_fused(op, attributes, words):
    original = model([conv(), node("Relu", "c", "h"), node(op, "h", "y", "pool", **attributes)], opset=22)
    assert_not_fused(swap(original, fuse=True), "pool", words, ["Relu"])


@pytest.mark.parametrize("spatial", [(9,), (5, 6, 7)])
def test_pooling_over_another_number_of_axes_is_not_fused(spatial):
    axes = len(spatial)
    original = model(
        [conv(pads=[1, 1] * axes), node("MaxPool", "c", "y", "pool", kernel_shape=[2] * axes)],
        {"w": array("w", K, 3, *[3] * axes)},
        x_shape=(2, 3, *spatial),
    )
    assert_not_fused(fuse(original), "pool", "does not pool over two axes")


@pytest.mark.parametrize("outputs", [("y", "indices"), ("y", "z")])
def test_pooling_whose_indices_are_read_is_not_fused(outputs):
    nodes = [conv(), node("MaxPool", "c", "y indices", "pool", kernel_shape=[2, 2])]
    if "z" in outputs:
        nodes.append(node("Cast", "indices", "z", to=TensorProto.FLOAT))
    original = model(nodes, outputs=outputs[:1])
    if "indices" in outputs:
        original.graph.output.append(declare("indices", None, TensorProto.INT64))
    else:
        original.graph.output.append(declare("z", None))
    result = swap(original, fuse=True)
    assert_not_fused(result, "pool", "its Indices are read")


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_of_unknown_sizes_is_not_fused(auto_pad):
    original = model(
        [conv(), node("MaxPool", "c", "y", "pool", kernel_shape=[2, 2], auto_pad=auto_pad)],
        x_shape=(2, 3, "height", 8),
    )
    assert_not_fused(fuse(original), "pool", "the size of what it pools is not known")


# The rest of the model


def test_below_opset_7_nothing_is_fused():
    result = swap(model([conv(), node("Relu", "c", "y", "relu")], opset=6), fuse=True)
    assert_not_fused(result, "relu", "the model's opset is 6; nodes are fused from opset 7 on")


def test_call_of_a_function_is_not_fused():
    function = swap_models.function("Relu", ["a"], ["b"], [node("Neg", "a", "b")])
    original = model(
        [conv(), helper.make_node("Relu", ["c"], ["y"], name="call", domain="local")],
        functions=[function],
        domains=["local"],
    )
    assert_not_fused(swap(original, fuse=True), "call", "its op is a function of the model")


def test_cast_ends_a_chain():
    nodes = [conv(), node("Cast", "c", "h", "cast", to=TensorProto.FLOAT16), node("Relu", "h", "y")]
    original = model(nodes)
    assert_not_fused(swap(original, fuse=True), "cast", "does not have this op")


# Random chains

OPS = ("Add", "Norm", "Residual", "Relu", "SiLU", "Clip", "MaxPool", "AveragePool", "Neg", "Fork")


@pytest.mark.parametrize("seed", range(40))
def test_any_chain_gives_the_same_outputs_when_it_is_fused(seed):
    """Chains of up to seven ops in any order, some values read twice, in every element type."""
    random = np.random.default_rng(seed)
    element_type = list(UNIT)[seed % len(UNIT)]
    nodes, constants, value, forks = [conv("v0", "x w3")], {"w3": array("w3", 3, 3, 3, 3)}, "v0", []
    ops = []
    for step in range(1, int(random.integers(2, 8))):
        output = f"v{step}"
        op = str(random.choice(OPS))
        ops.append(op)
        match op:
            case "Add":
                constants[f"a{step}"] = array(f"a{step}", 3, 1, 1)
                nodes.append(node("Add", " ".join(random.permutation([value, f"a{step}"])), output))
            case "Norm":
                for name, low in (("s", 0.5), ("b", -1.0), ("m", -1.0), ("u", 0.5)):
                    constants[f"{name}{step}"] = array(f"{name}{step}", 3, low=low)
                nodes.append(node("BatchNormalization", f"{value} s{step} b{step} m{step} u{step}", output))
            case "Residual":
                nodes.append(conv(f"r{step}", "x w3", f"other{step}"))
                nodes.append(node("Add", " ".join(random.permutation([value, f"r{step}"])), output))
            case "SiLU":
                nodes += [node("Sigmoid", value, f"g{step}"), node("Mul", f"{value} g{step}", output)]
            case "Clip":
                nodes.append(node("Clip", f"{value} low high", output))
                constants |= {"low": -0.5, "high": 0.75}
            case "MaxPool" | "AveragePool":
                # The pool keeps the size, so that residuals still fit.
                nodes.append(node(op, value, output, kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
            case "Fork":
                forks.append(value)
                continue
            case _:
                nodes.append(node(op, value, output))
        value = output
    nodes.append(node("Concat", " ".join([value, *forks]), "y", axis=1))
    original = model(nodes, constants, element_type=element_type, opset=22, ir_version=10)
    result = swap(original, fuse=True)
    # Several successive foldings of the weights, each rounded to float16.
    assert_same(original, result.to_proto(), units=16)
    assert ("conv" in taken(result)) == (ops[0] not in ("Neg", "Fork"))
