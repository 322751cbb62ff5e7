"""Constant scales and biases in front of Convs, which are folded into their weights and biases."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from convswap import compare
from convswap.graph.swap import SwapResult, swap
from onnx import helper, numpy_helper
from op_sessions import cpu_session

CHANNELS = 6
TOLERANCES = {np.float32: 1e-5, np.float16: 1e-2}


class Model:
    """A model with nodes that are added one by one, with the input "x" and random constants."""

    def __init__(self, seed: int = 0, dtype: type = np.float32, opset: int = 17) -> None:
        self.numbers, self.dtype, self.opset = np.random.default_rng(seed), dtype, opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[str] = []

    def constant(self, *shape: int, name: str = "", low: float = 0.5, high: float = 2.0) -> str:
        array = self.numbers.uniform(low, high, shape) * self.numbers.choice((-1, 1), shape)
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array, self.dtype), name))
        return name

    def add(self, op: str, *inputs: str, y: str = "", **attributes) -> str:
        y = y or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [y], name=f"{op}_{y}", **attributes))
        return y

    def conv(
        self, x: str, y: str = "", taps: int = 1, group: int = 1, has_bias: bool = True, **attributes
    ) -> str:
        filters = CHANNELS if group > 1 else 5
        weights = self.constant(filters, CHANNELS // group, taps, taps, low=0.1, high=0.4)
        biases = [self.constant(filters)] if has_bias else []
        return self.add("Conv", x, weights, *biases, y=y, group=group, **attributes)

    def build(self) -> onnx.ModelProto:
        element_type = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            self.nodes,
            "model",
            [helper.make_tensor_value_info("x", element_type, ["n", CHANNELS, 9, 7])],
            [helper.make_tensor_value_info(name, element_type, None) for name in self.outputs],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


def checked(model: Model, **options) -> SwapResult:
    """Return the swapped model, whose outputs were compared with the original's."""
    original = model.build()
    result = swap(original, **{"fuse": True} | options)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, CHANNELS, 9, 7)).astype(model.dtype)}
    runs = [cpu_session(each).run(None, feeds) for each in (original, result.to_proto())]
    for expected, actual in zip(*runs, strict=True):
        assert expected.shape == actual.shape
        expected, actual = expected.astype(np.float64), actual.astype(np.float64)
        assert np.linalg.norm(actual - expected) <= TOLERANCES[model.dtype] * np.linalg.norm(expected)
    return result


def left(result: SwapResult) -> list[str]:
    """Return the operators of ONNX in the swapped model."""
    return [node.op_type for node in result.model.graph if node.domain == "" and node.op_type != "Constant"]


def affine(model: Model, x: str, *shape: int) -> str:
    return model.add("Add", model.add("Mul", x, model.constant(*shape)), model.constant(*shape))


SHAPES = [(), (1,), (1, 1, 1, 1), (CHANNELS, 1, 1), (1, CHANNELS, 1, 1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_scale_and_a_bias_are_folded_into_a_conv_without_padding(shape, has_bias, dtype):
    model = Model(dtype=dtype)
    model.outputs = [model.conv(affine(model, "x", *shape), "y", taps=3, has_bias=has_bias)]
    result = checked(model)
    assert left(result) == []
    assert [record.fused_nodes for record in result.fused] == [(("Mul", "Mul_v0"), ("Add", "Add_v1"))]
    assert [node.op_type for node in result.model.graph] == ["Conv"]
    # Only constants that are read remain.
    read = {value.name for node in result.model.graph for value in node.inputs if value is not None}
    assert set(result.model.graph.initializers) <= read


@pytest.mark.parametrize("operator, reverse", [("Mul", True), ("Add", True), ("Sub", False), ("Div", False)])
def test_all_operators_that_scale_or_shift_are_folded(operator, reverse):
    model = Model()
    operands = ["x", model.constant(CHANNELS, 1, 1)]
    model.outputs = [model.conv(model.add(operator, *operands[:: -1 if reverse else 1]), "y")]
    assert left(checked(model)) == []


@pytest.mark.parametrize("operator", ["Sub", "Div"])
def test_reversed_differences_and_quotients_stay(operator):
    model = Model()
    absolute = model.add("Abs", model.add("Exp", "x"))
    model.outputs = [model.conv(model.add(operator, model.constant(), absolute), "y")]
    assert left(checked(model)) == ["Exp", "Abs", operator]


def test_with_padding_a_scale_is_folded_and_a_bias_stays():
    for pads in ({"pads": [0, 1, 0, 0]}, {"auto_pad": "SAME_UPPER"}):
        model = Model()
        scaled = model.add("Mul", model.add("Add", "x", model.constant()), model.constant(CHANNELS, 1, 1))
        model.outputs = [model.conv(scaled, "y", taps=3, **pads)]
        result = checked(model)
        assert left(result) == ["Add"]
        assert [record.fused_nodes for record in result.fused] == [(("Mul", "Mul_v1"),)]
        model = Model()
        model.outputs = [model.conv(affine(model, "x", CHANNELS, 1, 1), "y", taps=3, **pads)]
        assert left(checked(model)) == ["Mul", "Add"]


def test_conv_groups_and_several_readers_are_scaled_by_their_own_channels():
    model = Model()
    value = affine(model, "x", CHANNELS, 1, 1)
    model.outputs = [
        model.conv(value, "y"),
        model.conv(value, "depthwise", taps=3, group=CHANNELS),
        model.conv(value, "grouped", group=2),
    ]
    result = checked(model)
    assert left(result) == []
    # The nodes are counted once.
    assert sum(len(record.fused_nodes) for record in result.fused) == 2


def test_weights_that_two_convs_share_are_scaled_for_one_of_them():
    model = Model()
    weights = model.constant(5, CHANNELS, 1, 1)
    scaled = model.add("Mul", "x", model.constant())
    model.outputs = [model.add("Conv", scaled, weights), model.add("Conv", "x", weights)]
    assert left(checked(model)) == []


def test_behind_an_activation_both_are_folded():
    model = Model()
    first = model.conv("x", group=2, taps=3, pads=[1] * 4)
    active = model.add("HardSwish", first)
    model.outputs = [model.add("Relu", model.conv(affine(model, active, 1)), y="y")]
    result = checked(model)
    assert left(result) == []
    assert {record.fused_nodes for record in result.fused} == {
        (("HardSwish", "HardSwish_v1"),),
        (("Mul", "Mul_v2"), ("Add", "Add_v3"), ("Relu", "Relu_y")),
    }


def test_a_decomposed_activation_keeps_its_last_scale():
    model = Model()
    value = model.conv("x", group=2)
    model.constants += [
        numpy_helper.from_array(np.array(number, np.float32), name)
        for name, number in (("three", 3.0), ("zero", 0.0), ("six", 6.0))
    ]
    inner = model.add("Clip", model.add("Add", value, "three"), "zero", "six")
    model.outputs = [model.conv(model.add("Div", model.add("Mul", value, inner), "six"), "y")]
    result = checked(model)
    assert left(result) == []
    assert [node.op_type for node in result.model.graph] == ["FusedConv", "Conv"]


def test_an_affine_layer_stays_without_folding_and_where_others_read_it():
    model = Model()
    value = affine(model, "x", 1)
    model.outputs = [model.conv(value, "y")]
    assert left(checked(model, fuse=False, fold=False)) == ["Mul", "Add"]
    assert left(checked(model, fuse=False)) == []
    model.outputs.append(value)
    assert left(checked(model)) == ["Mul", "Add"]
    model.outputs[-1] = model.add("Neg", value)
    assert left(checked(model)) == ["Mul", "Add", "Neg"]
    model.outputs = ["y", model.conv(value, "other")]
    assert left(checked(model, only="^Conv_y$")) == ["Mul", "Add", "Neg", "Conv"]


@pytest.mark.parametrize(
    "shape", [(7,), (9, 1), (1, 1, 9, 7), (2, 1, 1, 1), (2, CHANNELS, 1, 1), (1, 1, 1, 1, 1)]
)
def test_factors_for_positions_or_images_stay(shape):
    model = Model()
    value = model.add("Mul", "x", model.constant(*shape))
    if len(shape) == 5:
        value = model.add("Squeeze", value, *[model.constant(1, name="axis")][:0])
    model.outputs = [model.conv(value, "y")]
    assert "Mul" in left(checked(model))


def test_data_that_a_constant_broadcasts_stay():
    model = Model()
    one = model.add("ReduceMean", "x", axes=[1])
    model.outputs = [model.conv(model.add("Mul", one, model.constant(CHANNELS, 1, 1)), "y")]
    assert left(checked(model)) == ["ReduceMean", "Mul"]


@pytest.mark.parametrize("factor", [0.0, 1e-38, 1e38, np.inf, np.nan])
def test_factors_that_spoil_weights_stay_and_zero_is_folded(factor):
    model = Model()
    model.constants.append(numpy_helper.from_array(np.array(factor, np.float32), "factor"))
    value = model.add("Mul", "x", "factor")
    weights = model.constant(5, CHANNELS, 1, 1, low=100.0, high=200.0)
    model.outputs = [model.add("Conv", value, weights, y="y")]
    result = swap(model.build(), fuse=True)
    assert left(result) == ([] if factor in (0.0, 1e-38) else ["Mul"])


@pytest.mark.parametrize("activation", ["Relu", None])
@pytest.mark.parametrize("pads", [0, 1])
def test_compare_judges_the_layers_with_what_is_folded_into_them(pads, activation, tmp_path, device):
    model = Model()
    active = model.add("Relu", model.conv("x", group=2, taps=3, pads=[1] * 4))
    y = model.conv(affine(model, active, CHANNELS, 1, 1), taps=3, pads=[pads] * 4)
    model.outputs = [model.add(activation, y) if activation else y]
    onnx.save(model.build(), tmp_path / "model.onnx")
    result = compare(tmp_path / "model.onnx", device=device, batch=2, images=2, fuse=True, precision="ieee")
    assert result.verdict.agree
    assert len(result.layers) == 2
    # Sums of 150 terms in float32; a scale that one side lacks changes a result by its own size.
    assert all(max(layer.relative_l2_error.values()) < 1e-5 for layer in result.layers)


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_random_chains_keep_their_outputs(first):
    folded = 0
    for seed in range(first, first + 10):
        draw = random.Random(seed)
        model = Model(seed, draw.choice((np.float32, np.float32, np.float16)), draw.choice((7, 11, 13, 17)))
        values = ["x"]
        for _ in range(draw.randint(2, 7)):
            value, kind = draw.choice(values[-3:]), draw.random()
            if kind < 0.45:
                operands = [value, model.constant(*draw.choice(SHAPES))]
                operator = draw.choice(("Mul", "Add", "Sub", "Div", "Mul", "Add"))
                if draw.random() < 0.3 and operator in ("Mul", "Add", "Sub"):
                    operands.reverse()
                values.append(model.add(operator, *operands))
            elif kind < 0.85:
                taps = draw.choice((1, 1, 3))
                attributes = {"pads": [draw.choice((0, 1))] * 4} if taps == 1 else {"pads": [1] * 4}
                group = draw.choice((2, 3, CHANNELS))
                has_bias = draw.random() < 0.5
                y = model.conv(value, taps=taps, group=group, has_bias=has_bias, **attributes)
                if attributes["pads"][0] == 1 and taps == 1:
                    y = model.add("MaxPool", y, kernel_shape=[3, 3])
                values.append(y)
            else:
                values.append(model.add(draw.choice(("Relu", "Tanh")), value))
        model.outputs = list(
            dict.fromkeys([model.conv(values[-1], "y"), *draw.sample(values[1:], draw.choice((0, 0, 1)))])
        )
        result = checked(model, fuse=draw.random() < 0.7)
        folded += sum(
            op in ("Mul", "Add", "Sub", "Div") for record in result.fused for op, _ in record.fused_nodes
        )
    assert folded > 2
