"""Nodes that are fused into a Conv, and equal outputs before and after."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import swap_models
from convswap.cli import main as cli
from convswap.graph.fusion import folding
from convswap.graph.swap import swap
from fuse_models import (
    FILTERS,
    UNIT,
    X_SHAPE,
    array,
    assert_same,
    assert_same_in_onnx_runtime,
    conv,
    declare,
    feeds_of,
    fuse,
    model,
    node,
    reasons,
    taken,
    tensor,
)
from fused_conv_reference import attributes_of, conv_node_counts, expand
from onnx import TensorProto, helper, numpy_helper
from op_sessions import cpu_session

K = FILTERS
LARGEST = float(np.finfo(np.float32).max)


def only_node(result) -> onnx.NodeProto:
    (node,) = [each for each in result.to_proto().graph.node if each.op_type != "Constant"]
    return node


def epilogue(result) -> dict:
    attributes = attributes_of(only_node(result))
    return {name: value for name, value in attributes.items() if name.startswith(("activation", "pool"))}


def normalisation(prefix: str, channels: int = K) -> dict[str, np.ndarray]:
    return {
        f"{prefix}_scale": array(f"{prefix}s", channels, low=0.5, high=2),
        f"{prefix}_bias": array(f"{prefix}b", channels),
        f"{prefix}_mean": array(f"{prefix}m", channels),
        f"{prefix}_variance": array(f"{prefix}v", channels, low=0.1, high=3),
    }


def normalise(value: str, output: str, prefix: str = "n", **attributes) -> onnx.NodeProto:
    inputs = f"{value} {prefix}_scale {prefix}_bias {prefix}_mean {prefix}_variance"
    return node("BatchNormalization", inputs, output, f"norm_{prefix}", **attributes)


# Bias and batch normalisation


@pytest.mark.parametrize("shape", [(K, 1, 1), (1, K, 1, 1), (1,), (), (1, 1, 1, 1)])
@pytest.mark.parametrize("inputs", ["c a", "a c"])
@pytest.mark.parametrize("conv_inputs", ["x w", "x w b"])
def test_bias_is_added_to_that_of_the_conv(shape, inputs, conv_inputs):
    result = fuse(
        model(
            [conv(inputs=conv_inputs), node("Add", inputs, "y")],
            {"a": array("a", *shape), "b": array("b", K)},
        )
    )
    assert taken(result) == {"conv": ["Conv", "Add"]}
    assert reasons(result) == {}


@pytest.mark.parametrize(("spatial", "bias"), [((9,), (K, 1)), ((5, 4, 6), (K, 1, 1, 1))])
def test_bias_of_one_and_three_dimensions_is_folded(spatial, bias):
    original = model(
        [conv(pads=[1, 1] * len(spatial)), node("Add", "c a", "h"), node("Relu", "h", "y")],
        {"w": array("w", K, 3, *[3] * len(spatial)), "a": array("a", *bias)},
        x_shape=(2, 3, *spatial),
    )
    assert taken(fuse(original)) == {"conv": ["FusedConv", "Add", "Relu"]}


@pytest.mark.parametrize("shape", [(K, 1, 1), (1, K, 1, 1), ()])
@pytest.mark.parametrize("inputs", ["c a", "a c"])
@pytest.mark.parametrize("conv_inputs", ["x w", "x w b"])
def test_scale_is_folded(shape, inputs, conv_inputs):
    """Caffe's form of batch normalisation: one that only subtracts and divides, then a scale and a bias."""
    original = model(
        [
            conv(inputs=conv_inputs),
            normalise("c_", "c"),
            node("Mul", inputs, "h"),
            node("Add", "h v", "s"),
            node("Relu", "s", "y"),
        ],
        {"a": array("a", *shape), "b": array("b", K), "v": array("v", 1, K, 1, 1), **normalisation("n")},
    )
    original.graph.node[0].output[0] = "c_"
    assert taken(fuse(original)) == {"conv": ["FusedConv", "BatchNormalization", "Mul", "Add", "Relu"]}


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("axes", [[1, 2], [0, 2, 3]])
def test_vector_that_unsqueeze_turns_to_the_filters_is_a_bias_and_a_scale(opset, axes):
    def unsqueeze(name):
        if opset < 13:
            return node("Unsqueeze", f"{name}_", name, axes=axes)
        return node("Unsqueeze", f"{name}_ axes", name)

    original = model(
        [
            conv(),
            unsqueeze("a"),
            node("Mul", "c a", "h"),
            unsqueeze("v"),
            node("Add", "h v", "s"),
            node("Relu", "s", "y"),
        ],
        {"a_": array("a", K), "v_": array("v", K)},
        opset=opset,
        tensors=[numpy_helper.from_array(np.array(axes), "axes")] if opset >= 13 else [],
    )
    result = fuse(original)
    assert taken(result) == {"conv": ["FusedConv", "Mul", "Add", "Relu"]}
    assert [each.op_type for each in result.to_proto().graph.node] == ["FusedConv"]
    assert initializers(result.to_proto()).keys() == {"conv/weight", "conv/bias"}


@pytest.mark.parametrize("opset", [7, 8, 9, 14, 15, 20])
def test_batch_normalisation_is_folded_at_every_opset(opset):
    attributes = {"epsilon": 0.01, "momentum": 0.5}
    original = model([conv(), normalise("c", "y", **attributes)], normalisation("n"), opset=opset)
    result = fuse(original)
    assert taken(result) == {"conv": ["Conv", "BatchNormalization"]}
    assert {entry.name for entry in result.to_proto().graph.initializer} == {"conv/weight", "conv/bias"}


def test_swap_folds_what_onnx_runtime_folds_and_no_more():
    original = model(
        [
            conv(),
            normalise("c", "h1"),
            node("Mul", "h1 a", "h2"),
            node("Add", "h2 a", "h3"),
            node("Relu", "h3", "y"),
        ],
        {"a": array("a", K, 1, 1), **normalisation("n")},
    )
    folded, unfolded = swap(original), swap(original, fold=False)
    assert taken(folded) == {"conv": ["Conv", "BatchNormalization", "Mul", "Add"]}
    assert [each.op_type for each in folded.to_proto().graph.node] == ["Conv", "Relu"]
    assert initializers(folded.to_proto()).keys() == {"conv/weight", "conv/bias"}
    assert (folded.not_fused, unfolded.fused) == ((), ())
    nodes = unfolded.to_proto().graph.node
    assert [each.op_type for each in nodes] == ["Conv", "BatchNormalization", "Mul", "Add", "Relu"]
    assert_same(original, folded.to_proto())


def test_swap_folds_nothing_into_convs_that_were_swapped_before_or_do_not_match():
    original = model([conv(), normalise("c", "y")], normalisation("n"))
    before = swap(original, fold=False).to_proto()
    assert swap(before).to_proto() == before
    two_convs = model(
        [conv(), normalise("c", "h"), conv("d", "h u", name="other"), normalise("d", "y", "m")],
        {"u": array("u", K, K, 3, 3), **normalisation("n"), **normalisation("m")},
    )
    assert taken(swap(two_convs, only="other")) == {"other": ["Conv", "BatchNormalization"]}


@pytest.mark.parametrize("elements", [1, 3 * K, 1 << 20])
def test_biases_and_batch_normalisations_are_folded_in_any_order_with_one_rounding(elements, monkeypatch):
    # Chunks of one or more output channels.
    monkeypatch.setattr(folding, "_CHUNK_ELEMENTS", elements)
    original = model(
        [
            conv(inputs="x w b"),
            normalise("c", "h1", "n1"),
            node("Add", "a h1", "h2"),
            normalise("h2", "h3", "n2"),
            node("Add", "h3 a", "y"),
        ],
        {"a": array("a", K, 1, 1), "b": array("b", K), **normalisation("n1"), **normalisation("n2")},
    )
    result = fuse(original)
    assert taken(result) == {"conv": ["Conv", "BatchNormalization", "Add", "BatchNormalization", "Add"]}
    exact = {name: numpy_helper.to_array(value) for name, value in initializers(original).items()}
    factor = np.ones(K)
    for prefix in ("n1", "n2"):
        scale, variance = (exact[f"{prefix}_{name}"].astype(np.float64) for name in ("scale", "variance"))
        # ONNX stores epsilon, and its default, as float32.
        factor = factor * scale / np.sqrt(variance + float(np.float32(1e-5)))
    folded = numpy_helper.to_array(initializers(result.to_proto())["conv/weight"])
    expected = (exact["w"].astype(np.float64) * factor.reshape(-1, 1, 1, 1)).astype(np.float32)
    # Two orders of the same float64 operations rarely round to neighbours in float32.
    np.testing.assert_allclose(folded, expected, rtol=2**-23)
    assert np.mean(folded == expected) > 0.99


def initializers(proto: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {value.name: value for value in proto.graph.initializer}


def test_folding_leaves_weights_alone_that_other_nodes_share():
    original = model(
        [
            conv("c1", name="conv1"),
            normalise("c1", "h1", "n1"),
            conv("c2", name="conv2"),
            normalise("c2", "h2", "n2"),
            conv("c3", name="conv3"),
            node("Concat", "h1 h2 c3", "y", axis=1),
        ],
        {**normalisation("n1"), **normalisation("n2")},
    )
    result = fuse(original)
    assert len(result.fused) == 2
    constants = initializers(result.to_proto())
    assert constants["w"] == initializers(original)["w"]
    assert constants.keys() == {"w", "conv1/weight", "conv1/bias", "conv2/weight", "conv2/bias"}


def test_statistics_that_two_normalisations_share_stay_until_both_are_folded():
    nodes = [
        conv("c1", name="conv1"),
        normalise("c1", "h1"),
        conv("c2", name="conv2"),
        node("BatchNormalization", "c2 n_scale n_bias n_mean n_variance", "h2", "norm2"),
        node("Concat", "h1 h2", "y", axis=1),
    ]
    result = fuse(model(nodes, normalisation("n")), only="conv1")
    assert len(result.fused) == 1
    assert {"n_scale", "n_mean"} <= initializers(result.to_proto()).keys()


@pytest.mark.parametrize("form", ["Constant", "Identity", "old"])
def test_constants_are_found_wherever_a_model_may_keep_them(form):
    """Constants in a Constant node, after an Identity, and, below IR version 4, among the graph's inputs."""
    constants = {"w": array("w", K, 3, 3, 3), **normalisation("n")}
    if form == "old":
        inputs = [declare("x", (2, 3, 9, 8)), *(declare(name, v.shape) for name, v in constants.items())]
        original = model(
            [conv(), normalise("c", "h"), node("Relu", "h", "y")],
            constants,
            inputs=inputs,
            ir_version=3,
            opset=8,
        )
        # `w` is both an input and a constant.
        assert {"w", "n_mean"} <= {value.name for value in original.graph.input} & initializers(
            original
        ).keys()
    else:
        nodes = []
        for name, values in constants.items():
            if form == "Constant":
                nodes.append(helper.make_node("Constant", [], [name], value=tensor(name, values)))
            else:
                nodes.append(helper.make_node("Identity", [f"{name}_"], [name]))
        original = model(
            [*nodes, conv(), normalise("c", "h"), node("Relu", "h", "y")],
            {f"{name}_": values for name, values in constants.items()} if form == "Identity" else {},
            inputs=[declare("x", (2, 3, 9, 8))],
            opset=20,
        )
        # Remove the helper's `w`, which no node of this model reads.
        remaining = [entry for entry in original.graph.initializer if entry.name != "w"]
        del original.graph.initializer[:]
        original.graph.initializer.extend(remaining)
    result = fuse(original)
    assert taken(result) == {"conv": ["FusedConv", "BatchNormalization", "Relu"]}
    kinds = [each.op_type for each in result.to_proto().graph.node]
    # Unused constants are removed. Models of the old format keep constants in nodes: a new initializer would
    # need a new input.
    assert kinds == (["Constant", "Constant", "FusedConv"] if form == "old" else ["FusedConv"])
    if form != "old":
        assert initializers(result.to_proto()).keys() == {"conv/weight", "conv/bias"}


@pytest.mark.parametrize("element_type", UNIT)
def test_every_element_type_is_fused_in_that_type(element_type):
    original = model(
        [
            conv("c1", name="conv1"),
            normalise("c1", "h"),
            node("Clip", "h low high", "g"),
            conv("c2", "g w2", name="conv2"),
            node("Add", "g c2", "s"),
            node("Sigmoid", "s", "f"),
            node("Mul", "s f", "a"),
            node("MaxPool", "a", "y", kernel_shape=[2, 2]),
        ],
        {"w2": array("w2", K, K, 3, 3), "low": 0.0, "high": 6.0, **normalisation("n")},
        element_type=element_type,
        opset=22,
        ir_version=10,
    )
    result = fuse(original)
    assert taken(result) == {
        "conv1": ["FusedConv", "BatchNormalization", "Clip"],
        "conv2": ["FusedConv", "Add", "Sigmoid", "Mul", "MaxPool"],
    }
    types = {entry.data_type for entry in result.to_proto().graph.initializer}
    assert types == {element_type}


# The residual


@pytest.mark.parametrize("op", ["Add", "Sum"])
@pytest.mark.parametrize("inputs", ["c r", "r c"])
def test_residual_may_be_either_operand(inputs, op):
    result = fuse(
        model(
            [node("Neg", "x", "r"), conv(inputs="x w3"), node(op, inputs, "y")],
            {"w3": array("w", 3, 3, 3, 3)},
        )
    )
    assert taken(result) == {"conv": ["FusedConv", op]}
    fused = result.to_proto().graph.node[-1]
    assert list(fused.input) == ["x", "w3", "conv/bias", "r"] and list(fused.output) == ["y"]
    np.testing.assert_array_equal(
        numpy_helper.to_array(initializers(result.to_proto())["conv/bias"]), np.zeros(3, np.float32)
    )


@pytest.mark.parametrize("shape", [("batch", 3, "height", "width"), ("n", 3, 9, 8)])
def test_residual_of_the_same_symbolic_shape_is_fused(shape):
    # Inference does not know that the Conv keeps height and width; the declared symbols do.
    original = model(
        [conv("c", "x w3"), node("Add", "c x", "y")], {"w3": array("w", 3, 3, 3, 3)}, x_shape=shape
    )
    original.graph.value_info.append(declare("c", shape))
    assert taken(fuse(original)) == {"conv": ["FusedConv", "Add"]}


def residual_block(*shortcut: onnx.NodeProto, **first) -> onnx.ModelProto:
    """Return y = conv2(conv1(h)) + shortcut, from `h` to `r`; height and width are symbols."""
    nodes = [
        node("Relu", "x", "h"),
        conv("c1", "h w3", "conv1", **first),
        node("Tanh", "c1", "t"),
        conv("c2", "t w3", "conv2"),
        *shortcut,
        node("Add", "c2 r", "y", "add"),
    ]
    constants = {"w3": array("w3", 3, 3, 3, 3), "w1": array("w1", 3, 3, 1, 1), "v": array("v", 3, 1, 1)}
    return model(nodes, constants, x_shape=("n", 3, "height", "width"))


@pytest.mark.parametrize(
    ("first", "shortcut"),
    [
        ({}, [node("Neg", "h", "r")]),
        ({"pads": [0, 0, 2, 2]}, [node("Add", "h v", "r")]),
        ({"pads": [2] * 4, "dilations": [2, 2]}, [conv("r", "h w1", "short", pads=[0] * 4)]),
        ({"auto_pad": "SAME_UPPER"}, [conv("r", "h w1", "short", auto_pad="VALID")]),
        ({"strides": [2, 2]}, [conv("r", "h w1", "short", pads=[0] * 4, strides=[2, 2])]),
        (
            {"strides": [2, 3], "auto_pad": "SAME_LOWER"},
            [conv("r", "h w1", "short", strides=[2, 3], auto_pad="SAME_UPPER")],
        ),
        (
            {"pads": [0] * 4, "strides": [2, 2]},
            [node("MaxPool", "h", "r", kernel_shape=[3, 3], strides=[2, 2])],
        ),
        # Two steps that shrink the image as much as one.
        (
            {"pads": [0] * 4, "kernel_shape": [3, 3]},
            [
                node("AveragePool", "h", "p", kernel_shape=[2, 2]),
                node("MaxPool", "p", "r", kernel_shape=[2, 2]),
            ],
        ),
    ],
)
def test_residual_whose_unknown_extents_come_from_the_same_steps_is_fused(first, shortcut):
    original = residual_block(*shortcut, **first)
    result = swap(original, fuse=True)
    assert taken(result)["conv2"] == ["FusedConv", "Add"]
    for height, width in ((9, 8), (8, 11)):
        feeds = {"x": array("x", 2, 3, height, width).astype(np.float32)}
        assert_same_in_onnx_runtime(original, expand(result.to_proto()), feeds, 1e-6)


@pytest.mark.parametrize(
    ("first", "shortcut"),
    [
        ({"pads": [0] * 4}, [node("Neg", "h", "r")]),
        ({"strides": [2, 2], "pads": [0] * 4}, [conv("r", "h w1", "short", pads=[0] * 4, strides=[2, 2])]),
        ({"strides": [2, 2]}, [conv("r", "h w1", "short", pads=[0] * 4, strides=[2, 3])]),
        ({"strides": [2, 2]}, [node("MaxPool", "h", "r", kernel_shape=[1, 1], strides=[2, 2], ceil_mode=1)]),
        ({}, [node("ReduceMax", "h", "r", keepdims=1)]),
    ],
)
def test_residual_whose_unknown_extents_come_from_other_steps_is_not_fused(first, shortcut):
    result = swap(residual_block(*shortcut, **first), fuse=True)
    assert "conv2" not in taken(result)
    assert "is not known to have the shape" in reasons(result)["add"]


def test_addition_is_fused_into_one_of_two_convs_and_the_other_is_its_residual():
    original = model(
        [
            conv("c1", name="conv1"),
            normalise("c1", "h1", "n1"),
            conv("c2", "x w2", name="conv2"),
            normalise("c2", "h2", "n2"),
            node("Add", "h1 h2", "s"),
            node("Relu", "s", "y"),
        ],
        {"w2": array("w2", K, 3, 3, 3), **normalisation("n1"), **normalisation("n2")},
    )
    result = fuse(original)
    assert taken(result) == {
        "conv1": ["FusedConv", "BatchNormalization", "Add", "Relu"],
        "conv2": ["Conv", "BatchNormalization"],
    }
    # The fused node stands at the position of the Relu, after its residual.
    assert [each.name for each in result.to_proto().graph.node] == ["conv2", "conv1"]
    assert reasons(result) == {}


def test_everything_at_once_is_fused_in_order():
    original = model(
        [
            conv("c1", name="conv1"),
            conv("c", "c1 w2 b", "conv2"),
            node("Add", "c a", "h1"),
            normalise("h1", "h2"),
            node("Add", "c1 h2", "h3"),
            node("LeakyRelu", "h3", "h4", alpha=0.25),
            node(
                "AveragePool",
                "h4",
                "y",
                "pool",
                kernel_shape=[3, 2],
                strides=[2, 1],
                pads=[1, 0, 0, 1],
                ceil_mode=1,
                count_include_pad=1,
            ),
        ],
        {"w2": array("w2", K, K, 3, 3), "b": array("b", K), "a": array("a", K, 1, 1), **normalisation("n")},
    )
    result = fuse(original, algorithm="reference", precision="ieee")
    assert taken(result) == {
        "conv2": ["FusedConv", "Add", "BatchNormalization", "Add", "LeakyRelu", "AveragePool"]
    }
    assert result.fused[0].fused_nodes[-1] == ("AveragePool", "pool")
    assert result.swapped == ("conv1", "conv2")
    (fused,) = [each for each in result.to_proto().graph.node if each.name == "conv2"]
    assert (fused.domain, fused.op_type, list(fused.output)) == ("convswap", "FusedConv", ["y"])
    assert attributes_of(fused) == {
        "pads": [1, 1, 1, 1],
        "algorithm": "reference",
        "precision": "ieee",
        "activation": "LeakyRelu",
        "activation_alpha": 0.25,
        "pool": "AveragePool",
        "pool_kernel_shape": [3, 2],
        "pool_strides": [2, 1],
        "pool_pads": [1, 0, 0, 1],
        "pool_ceil_mode": 1,
        "pool_count_include_pad": 1,
    }


# Activations


@pytest.mark.parametrize(
    ("op", "attributes", "expected"),
    [
        ("Relu", {}, ("Relu",)),
        ("Tanh", {}, ("Tanh",)),
        ("Sigmoid", {}, ("Sigmoid",)),
        ("LeakyRelu", {}, ("LeakyRelu", 0.01)),
        ("LeakyRelu", {"alpha": 0.3}, ("LeakyRelu", 0.3)),
        ("Elu", {}, ("Elu", 1.0)),
        ("Elu", {"alpha": 0.7}, ("Elu", 0.7)),
        ("HardSigmoid", {}, ("HardSigmoid", 0.2, 0.5)),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}, ("HardSigmoid", 0.3, 0.4)),
        ("HardSwish", {}, ("HardSwish",)),
        ("Gelu", {}, ("Gelu",)),
        ("Gelu", {"approximate": "tanh"}, ("GeluTanh",)),
        ("com.microsoft.Gelu", {}, ("Gelu",)),
        ("com.microsoft.FastGelu", {}, ("GeluTanh",)),
        ("com.microsoft.QuickGelu", {"alpha": 1.0}, ("SiLU",)),
    ],
)
def test_activation_is_fused_with_its_parameters(op, attributes, expected):
    original = model(
        [conv(), node(op, "c", "y", **attributes)], domains=["com.microsoft"], y_shape=(2, K, 9, 8)
    )
    # com.microsoft's approximations compute in float32.
    result = fuse(original, units=16 if op.startswith("com") else 4)
    assert taken(result) == {"conv": ["FusedConv", op]}
    assert_activation(result, *expected)


def assert_activation(result, name, alpha=None, beta=None):
    parameters = {"activation_alpha": alpha, "activation_beta": beta}
    # ONNX stores attributes as float32.
    numbers = {key: float(np.float32(value)) for key, value in parameters.items() if value is not None}
    assert epilogue(result) == {"activation": name, **numbers, "pool": "None"}


def test_swish_of_opset_24_is_silu():
    if onnx.defs.onnx_opset_version() < 24:
        pytest.skip("this onnx package has no Swish")
    original = model([conv(), node("Swish", "c", "y")], opset=24, ir_version=11)
    result = swap(original, fuse=True)
    assert_activation(result, "SiLU")


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "bounds"),
    [
        (7, "c", {"min": 0.0, "max": 6.0}, (0, 6)),
        (7, "c", {"max": 2.0}, (-LARGEST, 2)),
        (10, "c", {"min": -0.5}, (-0.5, LARGEST)),
        (10, "c", {"min": 0.0, "max": math.inf}, (None, None)),
        (11, "c low high", {}, (-0.25, 1.5)),
        (13, "c low", {}, (-0.25, LARGEST)),
        (20, "c - high", {}, (-LARGEST, 1.5)),
        (20, "c infinite high", {}, (-math.inf, 1.5)),
    ],
)
def test_clip_has_attributes_or_inputs_for_bounds(opset, inputs, attributes, bounds):
    constants = {"low": -0.25, "high": 1.5, "infinite": -math.inf}
    result = fuse(model([conv(), node("Clip", inputs, "y", **attributes)], constants, opset=opset))
    assert_activation(result, "Relu" if bounds[0] is None else "Clip", *bounds)


@pytest.mark.parametrize(
    ("element_type", "opset", "largest"),
    [
        (TensorProto.FLOAT, 13, LARGEST),
        (TensorProto.FLOAT16, 13, 65504.0),
        # Attributes are float32 for data of every type.
        (TensorProto.FLOAT16, 10, LARGEST),
        (TensorProto.BFLOAT16, 22, 3.3895313892515355e38),
    ],
)
def test_bound_that_clip_leaves_out_is_the_largest_number_of_the_type(element_type, opset, largest):
    original = model([conv(), node("Clip", "c", "y")], element_type=element_type, opset=opset, ir_version=10)
    assert_activation(fuse(original), "Clip", -largest, largest)


@pytest.mark.parametrize(
    ("inputs", "limit"),
    [("c low", "largest"), ("c low most", "largest"), ("c low infinite", "infinite")],
    ids=["left out", "largest number", "infinite"],
)
@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_clip_of_an_overflow_gives_the_bound(element_type, inputs, limit):
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    limits = {"largest": np.finfo(dtype).max, "infinite": dtype.type(np.inf)}
    constants = {"w": np.full((FILTERS, 3, 3, 3), limits["largest"] / 4), "low": 0.0}
    constants |= {"most": limits["largest"], "infinite": np.inf}
    original = model([conv(), node("Clip", inputs, "y")], constants, element_type=element_type)
    feeds = {"x": np.full(X_SHAPE, 30, dtype)}
    outputs = [
        cpu_session(proto).run(None, feeds)[0] for proto in (original, swap(original, fuse=True).to_proto())
    ]
    assert (outputs[0] == limits[limit]).all()
    np.testing.assert_array_equal(outputs[1], outputs[0])


def test_float64_clip_that_leaves_out_a_bound_is_not_fused():
    result = fuse(
        model([conv(), node("Clip", "c low", "y")], {"low": 0.0}, element_type=TensorProto.DOUBLE, opset=13)
    )
    (reason,) = reasons(result).values()
    assert "is no float32, the type of the fused op's attributes" in reason


@pytest.mark.parametrize("number", [0.0, 0.5])
@pytest.mark.parametrize("inputs", ["c a", "a c"])
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_maximum_and_minimum_with_a_number_are_clips(op, inputs, number):
    result = fuse(model([conv(), node(op, inputs, "y")], {"a": [number]}))
    if op == "Min":
        assert_activation(result, "Clip", -math.inf, number)
    elif number == 0:
        assert_activation(result, "Relu")
    else:
        assert_activation(result, "Clip", number, math.inf)


def test_float64_bounds_that_float32_represents_are_fused():
    original = model(
        [conv(), node("Clip", "c low high", "y")],
        {"low": 0.0, "high": 6.0},
        element_type=TensorProto.DOUBLE,
    )
    assert_activation(fuse(original), "Clip", 0.0, 6.0)


ROOT = math.sqrt(2 / math.pi)
# Nodes that compute `y` from `c`, and their constants, in the forms of exporters and of hand-written models.
DECOMPOSITIONS = {
    "silu": ("SiLU", "s=Sigmoid(c) y=Mul(c,s)", {}),
    "silu, the other way round": ("SiLU", "s=Sigmoid(c) y=Mul(s,c)", {}),
    "gelu of PyTorch": (
        "Gelu",
        "d=Div(c,r2) e=Erf(d) p=Add(e,one) m=Mul(c,p) y=Mul(m,half)",
        {"r2": math.sqrt(2), "one": 1, "half": 0.5},
    ),
    "gelu, half of x first": (
        "Gelu",
        "h=Mul(half,c) d=Mul(i2,c) e=Erf(d) p=Add(one,e) y=Mul(h,p)",
        {"i2": math.sqrt(0.5), "one": [1], "half": [[[0.5]]]},
    ),
    "gelu, half of the sum first": (
        "Gelu",
        "d=Div(c,r2) e=Erf(d) p=Add(e,one) h=Mul(p,half) y=Mul(h,c)",
        {"r2": 1.41421356, "one": 1, "half": 0.5},
    ),
    "gelu, divided by two": (
        "Gelu",
        "t=Div(c,two) d=Div(c,r2) e=Erf(d) p=Add(e,one) y=Mul(t,p)",
        {"r2": 1.4142135, "one": 1, "two": 2},
    ),
    "gelu, multiplied out": (
        "Gelu",
        "h=Mul(c,half) d=Mul(c,i2) e=Erf(d) p=Mul(h,e) y=Add(h,p)",
        {"i2": 0.70710678, "half": 0.5},
    ),
    "gelu by tanh of PyTorch": (
        "GeluTanh",
        "q=Pow(c,three) k=Mul(q,a) s=Add(c,k) i=Mul(s,root) t=Tanh(i) p=Add(t,one) h=Mul(c,half) y=Mul(h,p)",
        {"three": 3, "a": 0.044715, "root": ROOT, "one": 1, "half": 0.5},
    ),
    "gelu by tanh of GPT": (
        "GeluTanh",
        "q=Mul(c,c) k=Mul(q,a) s=Add(k,one) r=Mul(c,root) i=Mul(r,s) t=Tanh(i) "
        "p=Add(one,t) m=Mul(c,p) y=Mul(half,m)",
        {"a": 0.044715, "root": 0.7978845608, "one": 1, "half": 0.5},
    ),
    "gelu by tanh with x*x*x": (
        "GeluTanh",
        "q=Mul(c,c) v=Mul(c,q) k=Mul(a,v) s=Add(k,c) i=Mul(root,s) t=Tanh(i) "
        "p=Add(t,one) h=Mul(p,half) y=Mul(h,c)",
        {"a": 0.044715, "root": ROOT, "one": 1, "half": 0.5},
    ),
    "hard swish by Clip": (
        "HardSwish",
        "a=Add(c,three) k=Clip(a,zero,six) m=Mul(c,k) y=Div(m,six)",
        {"three": 3, "zero": 0, "six": 6},
    ),
    "hard swish, divided first": (
        "HardSwish",
        "a=Add(three,c) k=Clip(a,zero,six) d=Div(k,six) y=Mul(d,c)",
        {"three": 3, "zero": 0, "six": 6},
    ),
    "hard sigmoid by Clip": (
        "HardSigmoid",
        "a=Add(c,three) k=Clip(a,zero,six) y=Mul(k,sixth)",
        {"three": 3, "zero": 0, "six": 6, "sixth": 1 / 6},
    ),
}
EXACT = {"r2": math.sqrt(2), "i2": math.sqrt(0.5), "root": ROOT}


def nodes_of(text: str) -> list[onnx.NodeProto]:
    """Return the nodes of a text like "s=Sigmoid(c) y=Mul(c,s)"."""
    nodes = []
    for equation in text.split():
        output, _, call = equation.partition("=")
        op, _, arguments = call.rstrip(")").partition("(")
        nodes.append(node(op, arguments.replace(",", " "), output))
    return nodes


@pytest.mark.parametrize("name", DECOMPOSITIONS)
@pytest.mark.parametrize("element_type", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BFLOAT16])
def test_decomposed_activation_is_fused(name, element_type):
    activation, text, constants = DECOMPOSITIONS[name]
    if element_type == TensorProto.DOUBLE:
        # With float64 constants instead of constants rounded to float32.
        constants = constants | {key: value for key, value in EXACT.items() if key in constants}
    original = model(
        [conv(), normalise("c_", "c"), *nodes_of(text)],
        {**constants, **normalisation("n")},
        element_type=element_type,
        opset=22,
        ir_version=10,
    )
    original.graph.node[0].output[0] = "c_"
    # HardSigmoid's parameters are float32 in ONNX and here.
    units = 1e9 if element_type == TensorProto.DOUBLE and activation.startswith("Hard") else 4
    result = fuse(original, units=units)
    ops = [each.op_type for each in nodes_of(text)]
    (fused_ops,) = taken(result).values()
    assert fused_ops[:2] == ["FusedConv", "BatchNormalization"] and sorted(fused_ops[2:]) == sorted(ops)
    parameters = (1 / 6, 0.5) if activation == "HardSigmoid" else ()
    assert_activation(result, activation, *parameters)
    assert initializers(result.to_proto()).keys() == {"conv/weight", "conv/bias"}


def test_hard_swish_by_hard_sigmoid_is_fused():
    original = model([conv(), node("HardSigmoid", "c", "s", alpha=1 / 6, beta=0.5), node("Mul", "c s", "y")])
    result = fuse(original)
    assert taken(result) == {"conv": ["FusedConv", "HardSigmoid", "Mul"]}
    assert_activation(result, "HardSwish")


def test_pooling_follows_a_decomposed_activation():
    nodes = [conv(), *nodes_of("s=Sigmoid(c) h=Mul(c,s)"), node("MaxPool", "h", "y", kernel_shape=[2, 2])]
    assert taken(fuse(model(nodes))) == {"conv": ["FusedConv", "Sigmoid", "Mul", "MaxPool"]}


# Pooling


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [2, 2]},
        {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 2, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [4, 4], "strides": [4, 4], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_LOWER", "ceil_mode": 1},
    ],
)
def test_pooling_is_fused_with_its_windows(op, attributes):
    # SAME padding does not need the batch.
    shape = ("batch", 3, 9, 8)
    original = model([conv(), node("Relu", "c", "h"), node(op, "h", "y", **attributes)], x_shape=shape)
    result = fuse(original)
    assert taken(result) == {"conv": ["FusedConv", "Relu", op]}
    attributes_found = epilogue(result)
    assert attributes_found["pool"] == op and ("pool_count_include_pad" in attributes_found) == (
        op == "AveragePool"
    )


@pytest.mark.parametrize("opset", [7, 10, 19, 22])
def test_pooling_alone_is_fused_at_every_opset(opset):
    nodes = [conv(), node("AveragePool", "c", "y", kernel_shape=[2, 3], count_include_pad=1)]
    result = fuse(model(nodes, opset=opset, ir_version=10))
    assert epilogue(result) == {
        "activation": "None",
        "pool": "AveragePool",
        "pool_kernel_shape": [2, 3],
        "pool_strides": [1, 1],
        "pool_pads": [0, 0, 0, 0],
        "pool_ceil_mode": 0,
        "pool_count_include_pad": 1,
    }


def test_indices_that_nobody_reads_do_not_matter():
    nodes = [conv(), node("MaxPool", "c", "y indices", kernel_shape=[2, 2])]
    result = fuse(model(nodes))
    assert list(only_node(result).output) == ["y"]


# The rest of the model


def test_fused_node_keeps_name_documentation_and_metadata_of_its_conv():
    original = model([conv(), node("Relu", "c", "y")])
    original.graph.node[0].doc_string = "the first"
    original.graph.node[0].metadata_props.add(key="origin", value="layer 1")
    original.graph.node[1].doc_string = "of the Relu"
    original.graph.node[1].metadata_props.add(key="place", value="last")
    fused = only_node(fuse(original))
    assert (fused.name, fused.doc_string) == ("conv", "the first")
    assert [(entry.key, entry.value) for entry in fused.metadata_props] == [("origin", "layer 1")]


def test_domain_written_ai_onnx_is_the_onnx_domain():
    original = model([conv(), node("Relu", "c", "y")])
    for each in (*original.graph.node, *original.opset_import):
        each.domain = "ai.onnx"
    assert taken(swap(original, fuse=True)) == {"conv": ["FusedConv", "Relu"]}


def test_names_of_new_constants_are_unused_ones():
    original = model(
        [node("Neg", "x", "conv/weight"), conv(inputs="conv/weight w"), normalise("c", "y")],
        normalisation("n"),
    )
    proto = fuse(original).to_proto()
    assert initializers(proto).keys() == {"conv/weight_2", "conv/bias"}


def test_only_fuses_the_nodes_it_matches():
    nodes = [conv("c1", name="conv1"), node("Relu", "c1", "h"), conv("c2", "h w2", name="conv2")]
    original = model([*nodes, node("Tanh", "c2", "y")], {"w2": array("w2", K, K, 3, 3)})
    result = fuse(original, only="2")
    assert taken(result) == {"conv2": ["FusedConv", "Tanh"]}
    # Nodes that were swapped before match in the same way.
    assert taken(swap(swap(original).to_proto(), fuse=True, only="2")) == taken(result)


def test_convs_that_were_swapped_before_are_fused_and_fused_ones_stay(tmp_path):
    original = model(
        [conv("c1", "x w3", name="conv1"), node("Add", "x c1", "h"), node("Relu", "h", "y")],
        {"w3": array("w3", 3, 3, 3, 3)},
    )
    swapped = swap(original, algorithm="reference").to_proto()
    result = swap(swapped, fuse=True)
    assert (result.swapped, taken(result)) == ((), {"conv1": ["FusedConv", "Add", "Relu"]})
    assert attributes_of(only_node(result))["algorithm"] == "reference"
    assert_same(original, result.to_proto())
    again = swap(result.to_proto(), fuse=True)
    assert (again.swapped, again.not_swapped, again.fused, again.not_fused) == ((), (), (), ())
    assert again.to_proto() == result.to_proto()


def test_without_fuse_nothing_is_fused():
    result = swap(model([conv(), node("Relu", "c", "y")]))
    assert (result.fused, result.not_fused) == ((), ())
    assert conv_node_counts(result.to_proto()) == {"Conv": 1, "FusedConv": 0}


@pytest.mark.parametrize("branch_uses", ["its own", "outer"])
def test_convs_in_subgraphs_are_fused_there(branch_uses):
    """The weights and the residual may belong to the outer graph."""
    nodes = """
      [outer] r = Conv <pads = [1, 1, 1, 1]> (x, w)
      [choice] y = If <
        else_branch = else () => (float[2, 4, 9, 8] out2) { [neg_out2] out2 = Neg(r) },
        then_branch = then () => (float[2, 4, 9, 8] out) {
          [conv] t = Conv <pads = [1, 1, 1, 1]> (x, wb)
          u = BatchNormalization(t, n_scale, n_bias, n_mean, n_variance)
          v = Add(u, r)
          out = Relu(v)
        }
      > (flag)"""
    outputs, inputs = "float[2, 4, 9, 8] y", "float[2, 3, 9, 8] x, bool flag"
    w = tensor("w", array("w", K, 3, 3, 3))
    original = swap_models.text_model(nodes, w, inputs=inputs, outputs=outputs)
    branch_constants = {"wb": array("wb", K, 3, 3, 3), **normalisation("n")}
    branch = original.graph.node[1].attribute[1].g
    where = branch if branch_uses == "its own" else original.graph
    where.initializer.extend(tensor(name, values) for name, values in branch_constants.items())
    result = swap(original, fuse=True)
    assert taken(result) == {"conv": ["FusedConv", "BatchNormalization", "Add", "Relu"]}
    # The outer Conv is the residual of the inner one, and the other branch reads it.
    assert reasons(result) == {"neg_out2": "'r' is read inside a subgraph"}
    assert_same_outputs(original, result)


def assert_same_outputs(original, result):
    expanded = expand(result.to_proto())
    onnx.checker.check_model(expanded, full_check=True)
    assert_same_in_onnx_runtime(original, expanded, feeds_of(original), 1e-6)


def test_conv_in_a_loop_is_fused():
    kind = "float[2, 3, 9, 8]"
    nodes = f"""
      trips = Constant <value = int64 {{3}}> ()
      always = Constant <value = bool {{1}}> ()
      [loop] y = Loop <
        body = body (int64 step, bool going, {kind} state) => (bool going_out, {kind} state_out) {{
          going_out = Identity(going)
          [conv] c = Conv <pads = [1, 1, 1, 1]> (state, w3)
          s = Add(state, c)
          state_out = Tanh(s)
        }}
      > (trips, always, x)"""
    w3 = tensor("w3", array("w3", 3, 3, 3, 3))
    original = swap_models.text_model(nodes, w3, outputs=f"{kind} y")
    result = swap(original, fuse=True)
    assert taken(result) == {"conv": ["FusedConv", "Add", "Tanh"]}
    assert_same_outputs(original, result)


def test_conv_and_activation_in_a_function_are_fused_where_it_was_called():
    function = """
      <domain: "local", opset_import: ["": 20]>
      Layer (a, f) => (r) { [conv] h = Conv <pads = [1, 1, 1, 1]> (a, f)  r = Relu(h) }"""
    nodes = "[first] h1 = local.Layer(x, w3)  [second] y = local.Layer(h1, w3)"
    original = swap_models.text_model(
        nodes, tensor("w3", array("w3", 3, 3, 3, 3)), outputs="float[2, 3, 9, 8] y", functions=function
    )
    result = swap(original, fuse=True)
    assert [fused.op for fused in result.fused] == ["FusedConv", "FusedConv"]
    assert_same_outputs(original, result)


def test_folded_weights_are_saved_with_external_data(tmp_path):
    # Larger than the constants that stay in the model file.
    original = model(
        [conv(), normalise("c", "h"), node("Relu", "h", "y")], normalisation("n"), x_shape=(1, 3, 9, 8)
    )
    copy = onnx.ModelProto.FromString(original.SerializeToString())
    onnx.save_model(copy, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    result = swap(tmp_path / "m.onnx", fuse=True)
    assert taken(result) == {"conv": ["FusedConv", "BatchNormalization", "Relu"]}
    result.save(tmp_path / "fused.onnx")
    # The result must not refer to the files of the original.
    (tmp_path / "m.onnx").unlink()
    for data in tmp_path.glob("*"):
        assert data.name.startswith("fused") or data.unlink() is None
    assert_same(original, onnx.load(tmp_path / "fused.onnx"))


def test_ir_model_that_is_given_is_not_changed():
    original = ir.from_proto(model([conv(), normalise("c", "h"), node("Relu", "h", "y")], normalisation("n")))
    before = ir.to_proto(original)
    swap(original, fuse=True)
    assert ir.to_proto(original) == before


def test_report_and_command_line_list_what_was_fused_and_what_was_not(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    original = model([conv(), node("Relu", "c", "h", "relu"), node("GlobalAveragePool", "h", "y", "gap")])
    onnx.save(original, "m.onnx")
    assert cli.main(["swap", "m.onnx", "-o", "f.onnx", "--fuse", "--report", "r.json"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "f.onnx: 1 Conv swapped, 0 left, 1 fused with the nodes after them",
        "  FusedConv conv includes Relu relu",
        "  GlobalAveragePool gap is not fused into conv: FusedConv does not have this op",
    ]
    assert json.loads(Path("r.json").read_text()) == {
        "swapped": ["conv"],
        "left": [],
        "fused": [{"node": "conv", "op": "FusedConv", "taken": [{"op": "Relu", "node": "relu"}]}],
        "not_fused": [
            {
                "node": "conv",
                "follower": "gap",
                "op": "GlobalAveragePool",
                "reason": "FusedConv does not have this op",
            }
        ],
    }
    assert conv_node_counts(onnx.load("f.onnx")) == {"Conv": 0, "FusedConv": 1}
