"""Depthwise Convs that are fused into a 1x1 Conv, and equal outputs before and after."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap.comparison.compare import compare
from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import fusion_lines
from convswap.graph.plain_model import count_swapped, plain_model
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import swap, swap_without_pairs
from convswap.planning.explain import explain
from convswap.runtime.layers import conv_layers
from fuse_models import UNIT, array, assert_same, conv, declare, fuse, model, node, reasons, taken
from fused_conv_reference import attributes_of, conv_node_counts
from onnx import TensorProto, helper

C, K = 6, 4
X_SHAPE = (2, C, 9, 8)


def depthwise(output="d", inputs="x dw", name="depthwise", **attributes) -> onnx.NodeProto:
    return conv(output, inputs, name, **({"group": C} | attributes))


def pointwise(output="y", inputs="d pw", name="pointwise", **attributes) -> onnx.NodeProto:
    pads = {} if "auto_pad" in attributes else {"pads": [0] * 4}
    return conv(output, inputs, name, **(pads | attributes))


def pair_model(nodes: list[onnx.NodeProto], constants: dict | None = None, **options) -> onnx.ModelProto:
    """Return a model of `nodes`, with weights called "dw" and "pw" and biases "db" and "b"."""
    weights = {
        "dw": array("dw", C, 1, 3, 3),
        "db": array("db", C),
        "pw": array("pw", K, C, 1, 1),
        "b": array("b", K),
    }
    input_names = {name for each in nodes for name in each.input}
    used = {name: values for name, values in (weights | (constants or {})).items() if name in input_names}
    x = declare("x", options.pop("x_shape", X_SHAPE), options.get("element_type", TensorProto.FLOAT))
    inputs = options.pop("inputs", None) or [x]
    pair = model(nodes, {**used, "w": 0.0}, inputs=inputs, **options)
    # Remove the helper's `w`, which no node reads.
    remaining = [tensor for tensor in pair.graph.initializer if tensor.name != "w"]
    del pair.graph.initializer[:]
    pair.graph.initializer.extend(remaining)
    return pair


def our_nodes(result) -> list[onnx.NodeProto]:
    return [each for each in result.to_proto().graph.node if each.domain == "convswap"]


# Fused pairs


@pytest.mark.parametrize("depthwise_inputs", ["x dw", "x dw db"])
@pytest.mark.parametrize("pointwise_inputs", ["d pw", "d pw b"])
def test_pair_alone_becomes_one_node(depthwise_inputs, pointwise_inputs):
    result = fuse(pair_model([depthwise(inputs=depthwise_inputs), pointwise(inputs=pointwise_inputs)]))
    (fused,) = our_nodes(result)
    assert (fused.op_type, fused.name, list(fused.output)) == ("FusedConv", "pointwise", ["y"])
    bias, in_front = pointwise_inputs.split()[2:], depthwise_inputs.split()[2:]
    assert list(fused.input) == ["x", "pw", *(bias or [""]), "", "dw", *in_front]
    assert attributes_of(fused) == {
        "pads": [0] * 4,
        "depthwise_pads": [1] * 4,
        "activation": "None",
        "pool": "None",
    }
    assert result.swapped == ("depthwise", "pointwise")
    assert (taken(result), reasons(result)) == ({"pointwise": ["FusedConv", "Conv"]}, {})


def test_all_nodes_of_both_convs_are_fused_and_listed_in_order():
    nodes = [
        depthwise("d1", "x dw db", strides=[2, 1], dilations=[1, 2], kernel_shape=[3, 3]),
        node("Mul", "d1 scale", "d2", "scaling"),
        node("Clip", "d2 low high", "d", "clip"),
        pointwise("p", "d pw b", pads=[0] * 4),
        node("Add", "p z", "s", "add"),
        node("LeakyRelu", "s", "t", "leaky", alpha=0.25),
        node("MaxPool", "t", "y", "pool", kernel_shape=[2, 2]),
    ]
    nodes[3].doc_string = "told"
    nodes[3].metadata_props.add(key="layer", value="7")
    constants = {"scale": array("s", C, 1, 1), "low": 0.0, "high": 0.5}
    inputs = [declare("x", X_SHAPE), declare("z", (2, K, 5, 6))]
    result = fuse(pair_model(nodes, constants, inputs=inputs), precision="ieee")
    (fused,) = our_nodes(result)
    assert attributes_of(fused) == {
        "pads": [0] * 4,
        "precision": "ieee",
        "activation": "LeakyRelu",
        "activation_alpha": 0.25,
        "pool": "MaxPool",
        "pool_kernel_shape": [2, 2],
        "pool_strides": [1, 1],
        "pool_pads": [0] * 4,
        "pool_ceil_mode": 0,
        "depthwise_pads": [1] * 4,
        "depthwise_strides": [2, 1],
        "depthwise_dilations": [1, 2],
        "depthwise_activation": "Clip",
        "depthwise_activation_alpha": 0.0,
        "depthwise_activation_beta": 0.5,
    }
    assert list(fused.input) == ["x", "pw", "b", "z", "depthwise/weight", "depthwise/bias"]
    assert (fused.doc_string, fused.metadata_props[0].value) == ("told", "7")
    assert fusion_lines(result.fused, result.not_fused) == [
        "FusedConv pointwise includes Conv depthwise, Mul scaling, Clip clip, Add add, LeakyRelu leaky, "
        "MaxPool pool"
    ]
    json.dumps(result.report())


def test_residual_block_of_an_inverted_bottleneck_is_two_nodes():
    nodes = [
        conv("e", "x ew", "expand", pads=[0] * 4),
        node("Relu", "e", "f"),
        depthwise(inputs="f dw"),
        node("Relu", "d", "r"),
        pointwise("p", "r pw"),
        node("Add", "x p", "y"),
    ]
    result = fuse(
        pair_model(
            nodes,
            {"ew": array("ew", C, K, 1, 1), "pw": array("pw", K, C, 1, 1)},
            x_shape=("batch", K, 9, 8),
        )
    )
    assert taken(result) == {
        "expand": ["FusedConv", "Relu"],
        "pointwise": ["FusedConv", "Conv", "Relu", "Add"],
    }
    assert conv_node_counts(result.to_proto()) == {"Conv": 0, "FusedConv": 2}
    assert (count_swapped(result.model), len(result.swapped)) == (3, 3)


@pytest.mark.parametrize("depthwise_auto_pad", ["NOTSET", "VALID"])
@pytest.mark.parametrize("pointwise_auto_pad", ["NOTSET", "VALID"])
def test_auto_pad_that_pads_nothing_is_none(depthwise_auto_pad, pointwise_auto_pad):
    pads = {"pads": [1] * 4} if depthwise_auto_pad == "NOTSET" else {}
    result = fuse(
        pair_model([depthwise(auto_pad=depthwise_auto_pad, **pads), pointwise(auto_pad=pointwise_auto_pad)])
    )
    (fused,) = our_nodes(result)
    assert attributes_of(fused).get("depthwise_pads") == ([1] * 4 if depthwise_auto_pad == "NOTSET" else None)


@pytest.mark.parametrize("element_type", UNIT)
def test_every_element_type_is_fused_in_that_type(element_type):
    nodes = [depthwise("d1", "x dw db"), node("HardSwish", "d1", "d"), pointwise()]
    original = pair_model(nodes, element_type=element_type, opset=22, ir_version=10)
    assert taken(fuse(original)) == {"pointwise": ["FusedConv", "Conv", "HardSwish"]}


def test_only_pairs_both_of_whose_names_match_are_fused():
    original = pair_model([depthwise(), pointwise()])
    for pattern in ("depthwise", "pointwise"):
        result = swap(original, fuse=True, only=pattern)
        assert (result.swapped, result.fused) == ((pattern,), ())
        # The same if both are swapped and one does not match.
        result = swap(swap(original).to_proto(), fuse=True, only=pattern)
        assert (result.swapped, result.fused, result.not_fused) == ((), (), ())


def test_convs_swapped_or_fused_before_are_fused_once():
    original = pair_model([depthwise("d1"), node("Relu", "d1", "d"), pointwise("p"), node("Tanh", "p", "y")])
    swapped = swap(original).to_proto()
    assert taken(swap(swapped, fuse=True)) == {"pointwise": ["FusedConv", "Conv", "Relu", "Tanh"]}
    unpaired = swap_without_pairs(original)
    assert taken(unpaired) == {"depthwise": ["FusedConv", "Relu"], "pointwise": ["FusedConv", "Tanh"]}
    result = swap(unpaired.to_proto(), fuse=True)
    assert (result.swapped, taken(result)) == ((), {"pointwise": ["FusedConv", "FusedConv"]})
    assert_same(original, result.to_proto())
    again = swap(result.to_proto(), fuse=True)
    assert (again.fused, again.not_fused, again.to_proto()) == ((), (), result.to_proto())
    # The default side runs the original nodes, without ours.
    (layer,) = conv_layers(result.to_proto(), unfused_model(unpaired.model, result))
    assert [each.op_type for each in layer.model({"x": 4}, swapped=False).message.graph.node] == [
        "Conv", "Relu", "Conv", "Tanh",
    ]  # fmt: skip
    assert layer.fused == ("Conv", "Relu", "Tanh")


def test_model_of_old_format_keeps_its_constants_in_nodes():
    nodes = [depthwise("d1"), node("Add", "d1 a", "d"), pointwise()]
    constants = {"dw": array("dw", C, 1, 3, 3), "pw": array("pw", K, C, 1, 1), "a": array("a", C, 1, 1)}
    inputs = [declare("x", X_SHAPE), *(declare(name, values.shape) for name, values in constants.items())]
    result = fuse(pair_model(nodes, constants, inputs=inputs, ir_version=3, opset=8))
    assert taken(result) == {"pointwise": ["FusedConv", "Conv", "Add"]}


def test_pair_in_a_branch_is_fused_there_with_the_weights_around_it():
    inner = [depthwise(), node("Relu", "d", "r"), pointwise("out", "r pw")]
    branches = {
        "then_branch": helper.make_graph(inner, "then", [], [declare("out", None)]),
        "else_branch": helper.make_graph(
            [pointwise("out2", "x pw", "other")], "else", [], [declare("out2", None)]
        ),
    }
    original = model(
        [helper.make_node("If", ["flag"], ["y"], name="choice", **branches)],
        {"dw": array("dw", C, 1, 3, 3), "pw": array("pw", K, C, 1, 1)},
        inputs=[declare("x", X_SHAPE), declare("flag", (), TensorProto.BOOL)],
    )
    result = swap(original, fuse=True)
    assert taken(result) == {"pointwise": ["FusedConv", "Conv", "Relu"]}
    assert count_swapped(result.model) == 3
    onnx.checker.check_model(ir.to_proto(plain_model(result.model)), full_check=True)


# Pairs that are not fused


def pair_with(first=None, second=None, between=(), after=(), constants=None, **options) -> onnx.ModelProto:
    """Return a pair with other attributes; `between` leads from d1 to d, `after` from p to y."""
    nodes = [
        depthwise("d1" if between else "d", **(first or {})),
        *between,
        pointwise("p" if after else "y", **(second or {})),
        *after,
    ]
    return pair_model(nodes, constants, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outputs": ("y", "d")}, "its output 'd' is an output of the graph as well"),
        (
            {"after": [node("Tanh", "d", "t"), node("Concat", "p t", "y", axis=1)]},
            "its output 'd' is read more than once",
        ),
        ({"second": {"strides": [1, 2]}}, "the convolution after it has strides"),
        ({"second": {"pads": [0, 0, 1, 0]}}, "the convolution after it has pads"),
        ({"first": {"auto_pad": "SAME_UPPER"}}, "or of the convolution after it is SAME_UPPER"),
        ({"second": {"auto_pad": "SAME_LOWER"}}, "or of the convolution after it is SAME_LOWER"),
        ({"between": [node("Add", "d1 x", "d")]}, "it has a residual or a pooling"),
        ({"between": [node("MaxPool", "d1", "d", kernel_shape=[2, 2])]}, "it has a residual or a pooling"),
    ],
)  # fmt: skip
def test_depthwise_that_one_node_cannot_compute_is_not_fused_with_the_reason(options, words):
    result = fuse(pair_with(**options))
    assert conv_node_counts(result.to_proto())["Conv"] + conv_node_counts(result.to_proto())["FusedConv"] == 2
    assert words in reasons(result)["depthwise"]
    entry = next(each for each in result.not_fused if each.follower == "depthwise")
    assert (entry.node, entry.op) == ("pointwise", "FusedConv" if "between" in options else "Conv")


def test_depthwise_of_another_precision_or_algorithm_is_not_fused():
    original = pair_model([depthwise(), pointwise()])
    swapped = swap(original, only="depthwise", precision="ieee").to_proto()
    result = swap(swapped, fuse=True)
    assert "its precision differs" in reasons(result)["depthwise"]
    fused = fuse(original, precision="ieee")
    assert attributes_of(our_nodes(fused)[0])["precision"] == "ieee"
    assert (
        "the algorithm 'reference', which was asked for"
        in reasons(fuse(original, algorithm="reference"))["depthwise"]
    )
    swapped = swap(original, only="pointwise", algorithm="tuned").to_proto()
    assert "its algorithm differs" in reasons(swap(swapped, fuse=True))["depthwise"]
    # One entry of the tuning table covers both.
    assert attributes_of(our_nodes(fuse(original, algorithm="tuned"))[0])["algorithm"] == "tuned"


def test_depthwise_with_measurements_in_the_file_is_not_fused():
    swapped = swap(pair_model([depthwise(), pointwise()])).to_proto()
    swapped.graph.node[0].attribute.append(helper.make_attribute("tuned", "a | b | c | direct | direct 1"))
    result = swap(swapped, fuse=True)
    assert "has an attribute `tuned`" in reasons(result)["depthwise"] and result.fused == ()


def test_depthwise_whose_weights_are_computed_is_not_fused():
    inputs = [declare("x", X_SHAPE), declare("dw", (C, 1, 3, 3))]
    result = fuse(pair_model([depthwise(), pointwise()], inputs=inputs))
    assert "its weights are no constant" in reasons(result)["depthwise"]


@pytest.mark.parametrize(
    ("first", "second", "constants"),
    [
        ({}, {"pads": [1] * 4}, {"pw": array("pw", K, C, 3, 3)}),
        ({}, {"group": 2}, {"pw": array("pw", K, C // 2, 1, 1)}),
        ({}, {"pads": [0, 1, 0, 1]}, {"pw": array("pw", K, C, 1, 3)}),
        ({"group": 2}, {}, {"dw": array("dw", C, C // 2, 3, 3)}),
        ({}, {}, {"dw": array("dw", 2 * C, 1, 3, 3), "pw": array("pw", K, 2 * C, 1, 1)}),
    ],
    ids=["3x3", "groups", "1x3", "not depthwise", "multiplier"],
)
def test_convolutions_that_are_no_pair_are_not_listed(first, second, constants):
    result = fuse(pair_with(first, second, constants=constants))
    assert (result.fused, result.not_fused) == ((), ())


def test_one_channel_is_no_depthwise_convolution():
    constants = {"dw": array("dw", 1, 1, 3, 3), "pw": array("pw", K, 1, 1, 1)}
    result = fuse(pair_with({"group": 1}, constants=constants, x_shape=(2, 1, 9, 8)))
    assert (result.fused, result.not_fused) == ((), ())


@pytest.mark.parametrize("sizes", [(9,), (5, 4, 6)])
def test_signals_and_volumes_are_no_pair(sizes):
    rank = len(sizes)
    constants = {"dw": array("dw", C, 1, *[3] * rank), "pw": array("pw", K, C, *[1] * rank)}
    original = pair_with(
        {"pads": [1, 1] * rank}, {"pads": [0, 0] * rank}, constants=constants, x_shape=(2, C, *sizes)
    )
    result = fuse(original)
    assert (result.fused, result.not_fused) == ((), ())


def test_depthwise_outside_of_the_graph_of_its_reader_stays_there():
    branches = {
        "then_branch": helper.make_graph([pointwise("out")], "then", [], [declare("out", None)]),
        "else_branch": helper.make_graph([node("Neg", "k", "out2")], "else", [], [declare("out2", None)]),
    }
    original = pair_model(
        [depthwise(), helper.make_node("If", ["flag"], ["y"], name="choice", **branches)],
        {"k": array("k", 2, K, 9, 8)},
        inputs=[declare("x", X_SHAPE), declare("flag", (), TensorProto.BOOL)],
        tensors=[onnx.numpy_helper.from_array(array(name, *shape).astype(np.float32), name)
                 for name, shape in (("pw", (K, C, 1, 1)), ("k", (2, K, 9, 8)))],
    )  # fmt: skip
    assert swap(original, fuse=True).fused == ()


# The fused pair in other commands


def fused_pair(**x_shape) -> onnx.ModelProto:
    return pair_model([depthwise("d1", "x dw db"), node("Relu", "d1", "d"), pointwise()], **x_shape)


def test_unknown_channels_are_an_error():
    proto = swap(fused_pair(), fuse=True).to_proto()
    remaining = [tensor for tensor in proto.graph.initializer if tensor.name != "dw"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(remaining)
    proto.graph.input.append(declare("dw", (None,) * 4))
    del proto.graph.value_info[:]
    words = "'dw', the depthwise weights of FusedConv 'pointwise', is not known; expected a constant"
    with pytest.raises(ConvswapError, match=words):
        plain_model(ir.from_proto(proto))


@pytest.mark.parametrize("attribute", ["depthwise_activation", "activation"])
def test_unknown_activation_is_an_error_that_names_the_attribute(attribute):
    proto = swap(fused_pair(), fuse=True).to_proto()
    proto.graph.node[0].attribute.append(helper.make_attribute(attribute, "Rely"))
    with pytest.raises(ConvswapError, match=f"{attribute} of FusedConv 'pointwise' 'Rely'"):
        plain_model(ir.from_proto(proto))


def test_layer_is_both_convolutions():
    original = fused_pair()
    result = swap(original, fuse=True)
    for unfused in (None, unfused_model(ir.from_proto(original), result)):
        (layer,) = conv_layers(result.to_proto(), unfused)
        assert (layer.name, layer.fused, layer.convolutions, layer.input_names) == (
            "pointwise", ("Conv", "Relu"), 2, ("x",),
        )  # fmt: skip
        problem = layer.problem({"x": X_SHAPE})
        assert problem.output_shape == (2, K, 9, 8)
        assert "of=(float32 tf32 x=2x6x9x8 w=6x1x3x3 bias=yes group=6" in problem.text
        arrays = layer.arrays({"x": np.zeros(X_SHAPE, np.float32)})
        assert arrays.depthwise.shape == (C, 1, 3, 3) and arrays.depthwise_bias.shape == (C,)
        kinds = [each.op_type for each in layer.model({"x": 4}, swapped=False).message.graph.node]
        assert kinds == ["Conv", "Relu", "Conv"]


def test_explain_plans_both_as_one():
    plan = explain(fused_pair(x_shape=("n", C, 9, 8)), device="cpu", fuse=True, batch=3)
    (planned,) = plan.convs
    assert (planned.title, planned.fused) == ("pointwise + Conv + Relu", ("Conv", "Relu"))
    assert "x=3x6x9x8" in planned.problem and not any("subgraphs" in note for note in plan.notes)


@pytest.mark.parametrize("before", [False, True])
def test_compare_times_and_checks_both_as_one(before):
    original = fused_pair(x_shape=("n", C, 9, 8))
    source = swap(original, fuse=True).to_proto() if before else original
    result = compare(source, device="cpu", fuse=True, batch=2)
    (layer,) = result.layers
    assert result.within_tolerance and (result.swapped, layer.title) == (2, "pointwise + Conv + Relu")
    assert max(layer.relative_l2_error.values()) < 1e-6
    assert not any("subgraphs" in note for note in result.notes)
