"""QuantConv nodes in place of the quantised Convs of several tools; the op itself is evaluated in NumPy."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import onnx
import pytest
import quantised_models as models
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.graph.layout.choose import change_layouts
from convswap.graph.names import node_names
from convswap.graph.plain_model import count_swapped, plain_model
from convswap.graph.serialisation import from_proto
from convswap.graph.swap import NOT_FUSED, QUANTISED_ON_CPU, SwapResult, swap
from convswap.graph.value_types import ValueTypes
from convswap.reference.evaluation import evaluate
from layout_models import RandomCosts
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType

# Codes that may differ by one step: ONNX Runtime divides by the scale and adds products in float32, where
# QuantConv multiplies by factors and adds exactly.
SHARE_OF_STEPS = 1e-3
# Relative to the largest number: sums of float32.
FLOAT_TOLERANCE = 2e-6
# The same, where codes in front of it may differ by a step: a step is 0.4 % of a range, and there are up to
# four roundings.
CODES_TOLERANCE = 0.02
FORMATS = [pytest.param(True, id="qdq"), pytest.param(False, id="qoperator")]
QUANTISATIONS = {
    "int8": {},
    "per_channel": {"per_channel": True},
    "uint8": {"activations": QuantType.QUInt8, "per_channel": True},
    "symmetric": {"ActivationSymmetric": True},
}


def data_of(model: onnx.ModelProto, batch: int = 3, seed: int = 0) -> dict[str, np.ndarray]:
    shape = [dim.dim_value or batch for dim in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def check_nodes(original: onnx.ModelProto, result: SwapResult, share: float = SHARE_OF_STEPS) -> None:
    """Compare each QuantConv, fed with the codes of the original model, with the original's result."""
    swapped = result.nchw_model
    message = onnx.ModelProto()
    message.CopyFrom(result.to_proto() if swapped is result.model else models.to_proto(swapped))
    constants = {tensor.name for tensor in message.graph.initializer}
    values_of_original = {"x", *(name for node in original.graph.node for name in node.output)}
    nodes, others = [], set()
    for node in models.quant_convs(message):
        read_and_written = {name.removesuffix("/images") for name in (*node.input, *node.output)}
        new = read_and_written - constants - values_of_original
        others |= new
        nodes += [] if new else [node]
    # The original has no codes of other quantisations.
    assert all("/requantised" in name for name in others)
    assert nodes
    names = list(dict.fromkeys(
        name for node in nodes for name in (*node.input, *node.output) if name not in constants
    ))  # fmt: skip
    feeds = data_of(original)
    known = [name.removesuffix("/images") for name in names if name not in feeds]
    values = feeds | dict(zip(known, models.run_plain(original, feeds, known), strict=True))
    values |= {name: values[name.removesuffix("/images")][..., None, None] for name in {*names} - {*values}}
    differing, total = 0, 0
    for node in nodes:
        actual, expected = models.run_quant_conv(message, node, values), values[node.output[0]]
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(
                actual, expected, rtol=0, atol=FLOAT_TOLERANCE * float(np.abs(expected).max())
            )
            continue
        steps = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
        assert steps.max() <= 1, f"{node.name} is {steps.max()} steps off"
        differing, total = differing + int((steps > 0).sum()), total + steps.size
    assert differing <= share * total


def check_whole(original: onnx.ModelProto, result: SwapResult) -> None:
    """Compare the outputs of the model in the layout that was chosen with those in NCHW."""
    feeds = data_of(original)
    plain = models.run_swapped(models.to_proto(result.nchw_model), feeds)
    for one, other in zip(plain, models.run_swapped(result.to_proto(), feeds), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("network", ["residual", "projected", "mobile"])
@pytest.mark.parametrize("options", QUANTISATIONS)
@pytest.mark.parametrize("qdq", FORMATS)
def test_every_conv_of_a_quantised_network_becomes_a_quant_conv(network, options, qdq):
    original = {
        "residual": models.residual_net,
        "projected": lambda: models.residual_net(projected=True),
        "mobile": models.mobile_net,
    }[network]()
    quantised = models.quantised(original, qdq=qdq, **QUANTISATIONS[options])
    result = swap(quantised, fuse=True)
    convs = [node.name for node in quantised.graph.node if "Conv" in node.op_type]
    message = result.to_proto()
    head = {node.name for node in models.quant_convs(message)} - {*convs}
    assert len(models.quant_convs(message)) == len({*convs} | head)
    assert head <= {"fc", "fc_quant/MatMul"} and (head or network == "mobile" or not qdq)
    assert {record.node for record in result.fused} == {*convs} | head
    assert not result.not_swapped and not result.not_quantised and result.swapped == tuple(convs)
    assert not {"Conv", "QLinearConv", "Add", "QLinearAdd", "MaxPool"} & set(models.ops(message))
    # The default layout is NHWC: every tensor between QuantConv nodes, and a Transpose behind the last.
    assert models.ops(message).count("Transpose") <= 1
    convs_with_nhwc = {node.name for node in models.quant_convs(message) if "NHWC" in str(node.attribute)}
    assert convs_with_nhwc == set(convs) | head
    check_nodes(quantised, result)
    check_whole(quantised, result)


INPUT, OUTPUT = {"input_layout"}, {"output_layout"}
BOTH = INPUT | OUTPUT


@pytest.mark.parametrize(
    ("width", "strides", "nhwc"),
    [
        (6, [1, 1], [OUTPUT, BOTH, BOTH, BOTH]),
        # Without pairs of pixels the first 1x1 Conv writes NCHW; the second one reads either layout.
        (7, [1, 1], [OUTPUT, INPUT, OUTPUT, BOTH]),
        (6, [2, 1], [OUTPUT, INPUT, OUTPUT, BOTH]),
    ],
)
def test_few_channels_between_1x1_and_depthwise_convolutions_are_nhwc(width, strides, nhwc):
    graph = models.GraphBuilder()
    x = graph.conv("x", 3, 16, 3, name="stem")
    x = graph.conv(x, 16, 24, 1, name="a", strides=strides)
    x = graph.conv(x, 24, 24, 3, group=24, name="b")
    x = graph.conv(x, 24, 32, 1, name="c", strides=strides)
    x = graph.conv(x, 32, 32, 3, name="d")
    original = models.quantised(graph.model(["n", 3, 5, width], x))
    result = swap(original, fuse=True)
    layouts = [
        {name for name, value in models.attributes_of(node).items() if value == "NHWC"}
        for node in models.quant_convs(result.to_proto())
    ]
    assert layouts[:4] == nhwc
    check_whole(original, result)


def test_codes_rather_than_numbers_are_transposed_for_a_node_in_nchw():
    graph = models.GraphBuilder()
    x = graph.conv("x", 16, 32, 3, name="a")
    x = graph.conv(x, 32, 16, 3, name="b")
    x = graph.add("GlobalMaxPool", x)
    original = models.quantised(graph.model(["n", 16, 6, 5], x))
    result = swap(original, fuse=True)
    nodes = list(result.to_proto().graph.node)
    written = {name: node for node in nodes for name in node.output}
    (pool,) = [node for node in nodes if node.op_type == "GlobalMaxPool"]
    chain = [pool]
    while chain[-1].op_type != "QuantConv":
        chain.append(written[chain[-1].input[0]])
    assert [node.op_type for node in chain[1:3]] == ["DequantizeLinear", "Transpose"]
    assert result.layout is not None
    (record,) = result.layout.not_carried
    assert record.op == "DequantizeLinear" and "no form for NHWC" in record.reason
    check_whole(original, result)


@pytest.mark.parametrize("options", QUANTISATIONS)
def test_qlinear_conv_is_equal_bit_for_bit(options):
    graph = models.GraphBuilder(5)
    x = graph.conv("x", 3, 16, 3, name="a")
    x = graph.conv(graph.add("Relu", x), 16, 24, 3, strides=[2, 2], name="b")
    x = graph.conv(x, 24, 24, 5, group=24, bias=False, name="c")
    original = graph.model(["n", 3, 15, 13], x)
    # Weights of seven bits: sums of int16 do not saturate in ONNX Runtime's kernels for older processors.
    quantised = models.quantised(original, qdq=False, reduce_range=True, **QUANTISATIONS[options])
    result = swap(quantised, fuse=True)
    assert {"a_quant", "b_quant", "c_quant"} <= {node.name for node in models.quant_convs(result.to_proto())}
    check_nodes(quantised, result, share=0.0)


def test_model_optimizer_form_is_recognised():
    original = models.model_optimizer_net()
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert len(models.quant_convs(message)) == 6 and not result.not_quantised
    # The input is quantised once; equal quantisations of one value became one, in the Conv before them.
    assert models.ops(message).count("QuantizeLinear") == 1 and "DequantizeLinear" not in models.ops(message)
    # A float bias is an offset in units of the result's scale.
    node = models.node_named(message, "stem")
    bias = models.initializer(original, models.node_named(original, "stem").input[2])
    np.testing.assert_array_equal(models.initializer(message, node.input[5]), bias / np.float32(0.02))
    check_nodes(original, result)
    check_whole(original, result)


def test_note_says_that_quantised_convs_need_to_be_fused():
    original = models.model_optimizer_net()
    assert NOT_FUSED in swap(original).notes and NOT_FUSED not in swap(original, fuse=True).notes


def test_notes_about_the_cpu_are_for_the_cpu():
    result = swap(models.model_optimizer_net(), fuse=True)
    assert result.notes_on("cpu") == result.notes == (QUANTISED_ON_CPU,) and result.notes_on("cuda") == ()


def test_other_readers_of_a_float_result_keep_it():
    original = models.model_optimizer_net(shared_scales=False)
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert len(models.quant_convs(message)) == 6
    assert models.ops(message).count("QuantizeLinear") == 5
    check_nodes(original, result)


def test_form_of_pytorch_is_recognised():
    original = models.exported_net()
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert len(models.quant_convs(message)) == 5 and len(message.graph.node) == 6
    project = models.attributes_of(models.node_named(message, "project"))
    assert project["sum_zero_point"] == 130 and math.isclose(project["sum_scale"], 0.02, rel_tol=1e-6)
    check_nodes(original, result)
    check_whole(original, result)


@pytest.mark.parametrize("seed", range(100))
def test_drawn_block_is_one_quant_conv_with_the_same_codes(seed):
    original, is_whole = models.drawn_block(seed)
    onnx.checker.check_model(original)
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert not result.not_quantised
    convs = [node for node in original.graph.node if node.op_type == "Conv"]
    assert len(models.quant_convs(message)) == len(convs)
    if is_whole:
        rest = [op for op in models.ops(message) if op not in ("QuantConv", "Transpose")]
        assert rest == ["QuantizeLinear"], rest
    assert [output.name for output in message.graph.output] == [o.name for o in original.graph.output]
    check_nodes(original, result)
    check_whole(original, result)


@pytest.mark.parametrize("seed", range(40))
def test_inner_values_with_other_readers_stay(seed):
    original, _ = models.drawn_block(seed)
    inner = [node.output[0] for node in original.graph.node[:-1]]
    for name in random.Random(seed).sample(inner, 2):
        original.graph.node.append(helper.make_node("Identity", [name], [f"{name}/copy"]))
        original.graph.output.extend(onnx.ValueInfoProto(name=name) for name in (name, f"{name}/copy"))
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert [output.name for output in message.graph.output] == [o.name for o in original.graph.output]
    check_whole(original, result)
    feeds = data_of(original)
    for actual, expected in zip(
        models.run_swapped(message, feeds), models.run_plain(original, feeds), strict=True
    ):
        assert actual.dtype == expected.dtype and actual.shape == expected.shape
        error = np.abs(actual.astype(np.float64) - expected)
        # A code that differs by one step changes numbers behind it.
        limit = 0 if actual.dtype.kind == "i" else 1e-5 * float(np.abs(expected).max())
        assert (error > limit).mean() < 0.01


def test_nothing_is_quantised_without_fuse():
    original = models.model_optimizer_net()
    result = swap(original)
    assert not models.quant_convs(result.to_proto()) and len(result.swapped) == 6
    with pytest.raises(ConvswapError, match="fuse the model"):
        swap(models.quantised(models.mobile_net(), qdq=False))


def test_only_names_limit_what_is_quantised():
    result = swap(models.model_optimizer_net(), fuse=True, only="^a1$")
    assert [node.name for node in models.quant_convs(result.to_proto())] == ["a1"]
    assert len(result.not_swapped) == 5


def conv_model(change=lambda graph: None, **options) -> onnx.ModelProto:
    """A Conv of codes with int8 weights and no other step; `options` replace the nodes' inputs."""
    graph = models.QuantisedBuilder(1, options.get("opset", 21))
    x = options.get("x", lambda g: g.rounded("x", g.quantisation(0.1)))(graph)
    w = options.get("w", lambda g: g.weights((4, 3, 3, 3), per_channel=False)[0])(graph)
    bias = options.get("bias", lambda g: [])(graph)
    y = graph.add("Conv", x, w, *bias, name="conv")
    return graph.model(["n", 3, 8, 8], y)


def _dequantized(graph, codes, dtype, scale=0.1, zero=0, **attributes):
    scale = graph.constant(scale)
    shape = np.shape(zero)
    name = f"zero_{len(graph.initializers)}"
    graph.initializers.append(helper.make_tensor(name, dtype, shape, np.reshape(zero, -1)))
    data = f"codes_{len(graph.initializers)}"
    graph.initializers.append(helper.make_tensor(data, dtype, np.shape(codes), np.reshape(codes, -1)))
    return graph.add("DequantizeLinear", data, scale, name, **attributes)


CODES = np.arange(108).reshape(4, 3, 3, 3) % 7
REFUSED = {
    "int4": ({"w": lambda g: _dequantized(g, CODES, TensorProto.INT4)}, "int4"),
    "int16": ({"w": lambda g: _dequantized(g, CODES, TensorProto.INT16)}, "int16"),
    "float8": ({"w": lambda g: _dequantized(g, CODES, TensorProto.FLOAT8E4M3FN)}, "float8e4m3fn"),
    "blocks": (
        {
            "w": lambda g: _dequantized(
                g, CODES, TensorProto.INT8, np.ones((2, 3, 3, 3)), np.zeros((2, 3, 3, 3), int), axis=0,
                block_size=2,
            )
        },
        "a scale for each block",
    ),
    "axis": (
        {"w": lambda g: _dequantized(g, CODES, TensorProto.INT8, np.ones(3), np.zeros(3, int), axis=1)},
        "axis 1",
    ),
    "uint8 far from zero": (
        {"w": lambda g: _dequantized(g, CODES * 40, TensorProto.UINT8, 0.1, 100)}, "-100 to 140"
    ),
    "float data": ({"x": lambda g: "x"}, "its data are no result of DequantizeLinear"),
    "float weights": (
        {"w": lambda g: g.constant(CODES)}, "its weights are no result of DequantizeLinear"
    ),
    "computed bias": (
        {"bias": lambda g: [g.add("Neg", g.constant(np.ones(4)))]}, "its bias is not constant"
    ),
    "per-channel data": (
        {
            "x": lambda g: g.dequantize(
                g.quantize("x", [g.constant(np.ones(3)), g.constant(np.zeros(3), np.int8)], axis=1),
                [g.constant(np.ones(3)), g.constant(np.zeros(3), np.int8)],
                axis=1,
            )
        },
        "its data have a scale for each channel",
    ),
    "computed scale": (
        {"x": lambda g: g.rounded("x", [g.add("Abs", g.constant(0.1)), g.constant(0, np.int8)])},
        "the scale of its data is no constant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_conv_that_quant_conv_cannot_compute_is_left_with_the_reason(case):
    options, reason = REFUSED[case]
    result = swap(conv_model(**options), fuse=True)
    (left,) = result.not_quantised
    assert left.node == "conv" and left.op == "Conv" and reason in left.reason
    # The Conv of numbers is swapped as any other.
    assert result.swapped == ("conv",) and not models.quant_convs(result.to_proto())
    assert result.report()["not_quantised"] == [left.to_json()]


def test_sums_beyond_int32_are_left():
    def weights(graph):
        return graph.dequantize(graph.constant(np.ones((1, 66000, 1, 1)), np.int8), graph.quantisation(0.1))

    graph = models.QuantisedBuilder()
    x = graph.rounded("x", graph.quantisation(0.1))
    result = swap(graph.model([1, 66000, 1, 1], graph.add("Conv", x, weights(graph))), fuse=True)
    assert "66000 products" in result.not_quantised[0].reason


def test_bias_with_another_scale_becomes_an_offset():
    graph = models.QuantisedBuilder()
    x = graph.rounded("x", graph.quantisation(0.1))
    w, _ = graph.weights((4, 3, 3, 3), per_channel=False)
    bias = graph.dequantize(graph.constant([1, -2, 3, 4], np.int32), [graph.constant(0.5)])
    original = graph.model(["n", 3, 8, 8], graph.add("Conv", x, w, bias, name="conv"))
    message = swap(original, fuse=True).to_proto()
    node = models.node_named(message, "conv")
    np.testing.assert_array_equal(models.initializer(message, node.input[4]), np.zeros(4))
    np.testing.assert_array_equal(models.initializer(message, node.input[5]), [0.5, -1, 1.5, 2])
    check_nodes(original, swap(original, fuse=True))


def test_dequantized_data_that_others_read_stay():
    graph = models.QuantisedBuilder()
    x = graph.rounded("x", graph.quantisation(0.1))
    w, _ = graph.weights((4, 3, 3, 3), per_channel=False)
    y = graph.add("Conv", x, w, name="conv")
    original = graph.model(["n", 3, 8, 8], [y, graph.add("Exp", x)])
    message = swap(original, fuse=True).to_proto()
    assert models.ops(message) == ["QuantizeLinear", "DequantizeLinear", "QuantConv", "Exp"]


def test_float16_model_gives_float16_numbers():
    graph = models.QuantisedBuilder(opset=19, float_type=np.float16)
    x = graph.add("Cast", "x", to=TensorProto.FLOAT16)
    x = graph.rounded(x, graph.quantisation(0.03))
    w, _ = graph.weights((8, 3, 3, 3), per_channel=True)
    y = graph.add("Conv", x, w, name="a")
    # HardSwish with its factor 1 / 6 in float16.
    three, zero, six, factor = (graph.constant(number, np.float16) for number in (3, 0, 6, 1 / 6))
    gate = graph.add("Clip", graph.add("Add", y, three), zero, six)
    y = graph.add("Mul", graph.add("Mul", y, gate), factor)
    x = graph.rounded(y, graph.quantisation(0.02))
    w, _ = graph.weights((4, 8, 1, 1), per_channel=True)
    bias = graph.constant([0.5, 1, 2, -1], np.float16)
    original = graph.model(["n", 3, 8, 8], graph.add("Conv", x, w, bias, name="b"))
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert models.ops(message) == ["Cast", "QuantizeLinear", "QuantConv", "QuantConv"]
    assert models.attributes_of(models.node_named(message, "a"))["activation"] == "HardSwish"
    node = models.node_named(message, "b")
    assert models.initializer(message, node.input[2]).dtype == np.float32
    assert models.initializer(message, node.input[3]).dtype == np.float16
    feeds = data_of(original)
    expected, actual = models.run_plain(original, feeds)[0], models.run_swapped(message, feeds)[0]
    assert actual.dtype == np.float16
    np.testing.assert_allclose(actual, expected, rtol=0, atol=CODES_TOLERANCE * float(np.abs(expected).max()))


def test_conv_integer_with_a_constant_scale_gives_numbers():
    graph = models.QuantisedBuilder(dtype=np.uint8)
    codes = graph.quantize("x", graph.quantisation(0.05, 120))
    w = graph.constant(graph.numbers.integers(-63, 64, (8, 3, 3, 3)), np.int8)
    zero = graph.constant(120, np.uint8)
    sums = graph.add("ConvInteger", codes, w, zero, name="conv")
    y = graph.add("Mul", graph.add("Cast", sums, to=TensorProto.FLOAT), graph.constant(0.05 * 0.01))
    y = graph.add("Mul", y, graph.constant(graph.numbers.uniform(1, 2, (8, 1, 1))))
    y = graph.add("Add", y, graph.constant(graph.numbers.standard_normal((1, 8, 1, 1))))
    original = graph.model(["n", 3, 9, 7], graph.add("Relu", y))
    result = swap(original, fuse=True)
    assert models.ops(result.to_proto()) == ["QuantizeLinear", "QuantConv"]
    check_nodes(original, result)


def test_conv_integer_with_a_computed_scale_is_left():
    graph = models.QuantisedBuilder(dtype=np.uint8)
    graph.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero"]))
    w = graph.constant(graph.numbers.integers(-63, 64, (8, 3, 3, 3)), np.uint8)
    sums = graph.add("ConvInteger", "codes", w, "zero", name="dynamic")
    y = graph.add("Mul", graph.add("Cast", sums, to=TensorProto.FLOAT), "scale")
    y = graph.conv(y, 8, 4, 1, name="float")
    result = swap(graph.model(["n", 3, 9, 7], y), fuse=True)
    (left,) = result.not_swapped
    assert left.node == "dynamic" and "the zero point of its data is no constant" in left.reason
    assert result.swapped == ("float",)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(
    "original", [models.model_optimizer_net, models.exported_net], ids=["model_optimizer", "exported"]
)
def test_plain_model_has_the_same_codes(original, layout):
    result = swap(original(), fuse=True, layout=layout)
    plain = models.to_proto(plain_model(result.model))
    onnx.checker.check_model(plain)
    assert {node.domain for node in plain.graph.node} == {""}
    assert count_swapped(result.model) == len(models.quant_convs(result.to_proto()))
    feeds = data_of(original())
    expected, actual = models.run_swapped(result.to_proto(), feeds), models.run_plain(plain, feeds)
    # All sums are below 2^24, and so exact.
    np.testing.assert_allclose(actual[0], expected[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(0, 100, 5))
def test_plain_model_of_a_drawn_block_has_the_same_codes(seed):
    original, _ = models.drawn_block(seed)
    result = swap(original, fuse=True)
    feeds = data_of(original)
    plain = models.run_plain(models.to_proto(plain_model(result.model)), feeds)[0]
    expected = models.run_swapped(result.to_proto(), feeds)[0]
    assert plain.dtype == expected.dtype
    difference = np.abs(plain.astype(np.float64) - expected.astype(np.float64))
    assert (difference > 1e-5).mean() <= SHARE_OF_STEPS and difference.max() <= 1


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_float64_evaluation_computes_quant_conv(layout):
    original = models.exported_net()
    feeds = data_of(original)
    swapped = swap(original, fuse=True, layout=layout).to_proto()
    evaluation = evaluate(swapped, feeds)
    assert not evaluation.in_float32
    expected = models.run_swapped(swapped, feeds)[0]
    np.testing.assert_allclose(evaluation.outputs[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "original", [models.model_optimizer_net, models.exported_net], ids=["model_optimizer", "exported"]
)
def test_float64_evaluation_dequantizes(original):
    feeds = data_of(original())
    evaluation = evaluate(original(), feeds)
    assert not evaluation.in_float32
    expected = models.run_plain(original(), feeds)[0]
    np.testing.assert_allclose(evaluation.outputs[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", range(30))
def test_any_tensors_may_be_nhwc(seed):
    original = models.quantised(
        models.residual_net(seed, projected=seed % 2 == 1), qdq=seed % 3 > 0, per_channel=seed % 5 > 2
    )
    swapped = swap(original, fuse=True, layout="nchw").model
    model = swapped.clone()
    change_layouts(model, node_names(model), ValueTypes(model), RandomCosts(seed, nhwc=0.7))
    feeds = data_of(original)
    expected = models.run_swapped(models.to_proto(swapped), feeds)
    for actual, other in zip(models.run_swapped(models.to_proto(model), feeds), expected, strict=True):
        np.testing.assert_array_equal(actual, other)


def test_scales_for_each_channel_move_with_the_channels():
    graph = models.QuantisedBuilder()
    scales = [graph.constant(np.linspace(0.01, 0.05, 16)), graph.constant(np.zeros(16), np.int8)]
    x = graph.rounded(graph.conv("x", 8, 16, 3), scales)
    original = graph.model(["n", 8, 9, 7], graph.conv(x, 16, 16, 1))
    result = swap(original, layout="nhwc", fuse=True)
    carried = [node for node in result.to_proto().graph.node if "Linear" in node.op_type]
    assert [models.attributes_of(node).get("axis") for node in carried] == [3, 3]
    # The Conv behind them is no quantised one, and has a reason.
    (left,) = result.not_quantised
    assert left.reason == "its data are codes, but its weights are no result of DequantizeLinear"
    feeds = data_of(original)
    expected = models.run_plain(original, feeds)[0]
    np.testing.assert_allclose(
        models.run_plain(models.to_proto(plain_model(result.model)), feeds)[0], expected, rtol=0, atol=1e-5
    )


def test_silu_without_roundings_between_its_nodes_is_a_part_of_the_conv():
    graph = models.GraphBuilder(2)
    x = "x"
    for channels in (3, 16, 16):
        y = graph.conv(x, channels, 16, 3)
        x = graph.add("Mul", y, graph.add("Sigmoid", y))
    original = graph.model(["n", 3, 12, 10], graph.conv(graph.add("Concat", x, y, axis=1), 32, 8, 1))
    kinds = ["Conv", "Concat"]
    quantised = models.quantised(original, per_channel=True, op_types_to_quantize=kinds)
    result = swap(quantised, fuse=True)
    message = result.to_proto()
    # A fifth one writes the codes that the Concat asks for.
    assert len(models.quant_convs(message)) == 5
    # The last Conv before the Concat gives two values, so its SiLU stays.
    assert models.ops(message).count("Sigmoid") == 1
    check_nodes(quantised, result)
    check_whole(quantised, result)


def quantised_silu(graph, value):
    """Add a SiLU whose Sigmoid is rounded."""
    lowest = int(np.iinfo(graph.dtype).min)
    gate = graph.rounded(graph.add("Sigmoid", value), graph.quantisation(1 / 256, lowest))
    return graph.add("Mul", value, gate)


def scalars_and_roundings(graph, value):
    """Add operators with scalars of several ranks on either side, and roundings to both types."""
    number = graph.float_type
    shifted = graph.add("Sub", graph.constant([0.3], number), value)
    scaled = graph.add("Mul", shifted, graph.constant([[[2]]], number))
    signed = graph.rounded(scaled, graph.quantisation(0.05, 3, np.int8))
    squared = graph.add("Pow", signed, graph.constant(2, number))
    return graph.add("Tanh", graph.rounded(squared, graph.quantisation(0.04, 7, np.uint8)))


def clipped_and_rounded(graph, value):
    bounds = [graph.constant(bound, graph.float_type) for bound in (-0.5, 0.9)]
    return graph.rounded(graph.add("Clip", value, *bounds), graph.quantisation(0.01))


FUNCTIONS = {
    "SiLU": quantised_silu,
    "scalars": scalars_and_roundings,
    "Clip": clipped_and_rounded,
    **{
        op: (lambda graph, value, op=op: graph.add(op, value)) for op in ("Erf", "Sigmoid", "Softplus", "Abs")
    },
    "LeakyRelu": lambda graph, value: graph.add("LeakyRelu", value, alpha=0.2),
}


def function_model(function, *, opset=21, dtype=np.int8, float_type=np.float32, residual=False):
    """Return a model of a Conv, a rounding, a function of the codes and a rounding.

    With `residual`, another rounded Conv is added in front of the last rounding.
    """
    graph = models.QuantisedBuilder(3, opset, dtype=dtype, float_type=float_type)
    middle = int(np.iinfo(dtype).min) + 119
    x = graph.add("Cast", "x", to=helper.np_dtype_to_tensor_dtype(graph.float_type))
    x = graph.rounded(x, graph.quantisation(0.031, middle))
    w, _ = graph.weights((16, 3, 3, 3), per_channel=opset >= 13)
    y = graph.rounded(graph.add("Conv", x, w, name="conv"), graph.quantisation(0.0213, middle))
    y = function(graph, y)
    if residual:
        other, _ = graph.weights((16, 3, 3, 3), per_channel=False)
        z = graph.rounded(graph.add("Conv", x, other, name="other"), graph.quantisation(0.027, middle))
        y = graph.add("Add", graph.rounded(y, graph.quantisation(0.0171, middle)), z)
    return graph.model(["n", 3, 12, 10], graph.quantize(y, graph.quantisation(0.0243, middle)))


def check_function(original: onnx.ModelProto) -> dict[str, object]:
    """Check that QuantConv nodes alone remain; return the attributes of "conv"."""
    result = swap(original, fuse=True)
    message = result.to_proto()
    rest = [op for op in models.ops(message) if op not in ("Cast", "QuantConv", "Transpose")]
    assert rest == ["QuantizeLinear"]
    check_whole(original, result)
    return models.attributes_of(models.node_named(message, "conv"))


def check_values(original: onnx.ModelProto, share: float = 0.0) -> None:
    """Compare the codes of each value of "conv" with the original's results for the same rounded sums.

    A `share` may differ by one step.
    """
    message = models.to_proto(swap(original, fuse=True).nchw_model)
    node, conv = models.node_named(message, "conv"), models.node_named(original, "conv")
    assert not {"sum_scale", "y_scale", "activation"} & set(models.attributes_of(node))
    rounding = next(other for other in original.graph.node if conv.output[0] in other.input)
    names = [rounding.output[0], node.output[0]]
    codes, expected = models.run_plain(original, data_of(original), names)
    limits = np.iinfo(codes.dtype)
    steps = np.rint(models.initializer(message, node.input[7])[codes.astype(int) - limits.min])
    shifted = steps + models.initializer(message, node.input[3])
    difference = np.abs(shifted.clip(limits.min, limits.max) - expected)
    assert difference.max() <= 1 and (difference > 0).mean() <= share


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_function_of_codes_becomes_their_values_and_gives_equal_codes(function, dtype):
    original = function_model(FUNCTIONS[function], dtype=dtype)
    check_function(original)
    check_values(original)
    check_nodes(original, swap(original, fuse=True))


@pytest.mark.parametrize("opset", [10, 13, 19, 23, 25])
def test_function_of_codes_is_read_in_every_opset(opset):
    check_function(function_model(quantised_silu, opset=opset))


def test_function_of_codes_may_be_computed_in_float16():
    original = function_model(quantised_silu, float_type=np.float16)
    check_function(original)
    # ONNX Runtime's CPU provider computes float16 in float32.
    check_values(original, share=0.01)


@pytest.mark.parametrize("function", [quantised_silu, FUNCTIONS["LeakyRelu"]], ids=["SiLU", "LeakyRelu"])
def test_residual_may_follow_a_function_of_codes(function):
    original = function_model(function, residual=True)
    attributes = check_function(original)
    check_nodes(original, swap(original, fuse=True))
    assert {"sum_zero_point", "z_scale", "y_scale"} <= set(attributes) and "sum_scale" not in attributes


def _through_codes_of_nan(graph, value):
    """Return the square root, which a second rounding makes a number again."""
    root = graph.rounded(graph.add("Sqrt", value), graph.quantisation(0.02, int(np.iinfo(graph.dtype).min)))
    return graph.add("Neg", root)


def _through_integers(graph, value):
    integers = graph.add("Cast", graph.add("Exp", value), to=TensorProto.INT32)
    return graph.add("Cast", integers, to=TensorProto.FLOAT)


@pytest.mark.parametrize("function", [_through_codes_of_nan, _through_integers])
def test_functions_in_which_providers_differ_stay_nodes(function):
    original = function_model(function)
    message = swap(original, fuse=True).to_proto()
    assert {"DequantizeLinear", "QuantizeLinear"} <= set(models.ops(message)[1:])
    assert len(models.node_named(message, "conv").input) < 8


def test_each_reader_may_have_a_dequantisation_of_its_own():
    original = function_model(quantised_silu)
    mul = next(node for node in original.graph.node if node.op_type == "Mul")
    dequantize = next(node for node in original.graph.node if node.output[0] == mul.input[0])
    copy = onnx.NodeProto()
    copy.CopyFrom(dequantize)
    copy.name, copy.output[0] = "copy", "copy"
    original.graph.node.insert(list(original.graph.node).index(dequantize), copy)
    mul.input[0] = "copy"
    check_function(original)


def test_plain_clamp_behind_a_rounding_stays_an_activation():
    attributes = check_function(function_model(lambda graph, value: graph.add("Relu", value)))
    assert attributes["activation"] == "Relu" and "sum_scale" in attributes


NO_FUNCTIONS = {
    "channels": lambda graph, value: graph.add("Mul", value, graph.constant(np.ones((16, 1, 1)))),
    "more axes": lambda graph, value: graph.add("Mul", value, graph.constant(np.ones((1, 1, 1, 1, 1)))),
    "another tensor": lambda graph, value: graph.add("Mul", value, graph.add("ReduceMean", "x", keepdims=0)),
    "another element": lambda graph, value: graph.add("CumSum", value, graph.constant(1, np.int64)),
    "no finite numbers": lambda graph, value: graph.add("Log", graph.add("Abs", value)),
    "random": lambda graph, value: graph.add(
        "Dropout", value, graph.constant(0.5), graph.constant(True, np.bool_)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_FUNCTIONS)
def test_other_nodes_behind_a_rounding_stay(case):
    original = function_model(NO_FUNCTIONS[case])
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert len(models.node_named(message, "conv").input) == 4
    last = original.graph.node[-2].op_type
    assert last in models.ops(message)
    check_nodes(original, result)


def test_networks_quantised_by_default_options_have_no_activation_between_convs():
    graph = models.GraphBuilder(2)

    def silu_conv(x, channels):
        y = graph.conv(x, channels, 16, 3)
        return graph.add("Mul", y, graph.add("Sigmoid", y))

    x = silu_conv("x", 3)
    x = graph.add("Add", x, silu_conv(silu_conv(x, 16), 16))
    x = graph.add("LeakyRelu", graph.conv(x, 16, 24, 1), alpha=0.1)
    original = graph.model(
        ["n", 3, 12, 10], graph.conv(graph.add("HardSwish", graph.conv(x, 24, 16, 1)), 16, 8, 1)
    )
    for options in QUANTISATIONS.values():
        quantised = models.quantised(original, **options)
        result = swap(quantised, fuse=True)
        message = result.to_proto()
        rest = {op for op in models.ops(message) if op not in ("QuantConv", "Transpose")}
        assert rest == {"QuantizeLinear", "DequantizeLinear"} and len(models.quant_convs(message)) == 6
        check_nodes(quantised, result)
        check_whole(quantised, result)


@pytest.mark.parametrize("size", [(13,), (5, 4, 6)], ids=["1-d", "3-d"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_data_of_other_ranks_are_quantised(size, layout):
    graph = models.QuantisedBuilder(4)
    rank = len(size)

    def conv(x, channels, filters, group=1):
        w, _ = graph.weights((filters, channels // group, *[3] * rank), per_channel=True)
        return graph.add("Conv", x, w, pads=[1] * 2 * rank, group=group)

    x = graph.rounded("x", graph.quantisation(0.03, 5))
    x = graph.rounded(graph.add("Relu", conv(x, 4, 16)), graph.quantisation(0.017, -128))
    y = graph.rounded(conv(x, 16, 16, group=16), graph.quantisation(0.013, 3))
    x = graph.rounded(graph.add("Relu", graph.add("Add", y, x)), graph.quantisation(0.019, -128))
    original = graph.model(["n", 4, *size], conv(x, 16, 16))
    result = swap(original, fuse=True, layout=layout)
    message = result.to_proto()
    assert len(models.quant_convs(message)) == 3 and len(message.graph.node) <= 5
    check_nodes(original, result)
    check_whole(original, result)
    plain = models.run_plain(models.to_proto(plain_model(result.model)), data_of(original))
    expected = models.run_swapped(message, data_of(original))
    np.testing.assert_allclose(plain[0], expected[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("opset", "ir_version"), [(10, 3), (10, 5), (12, 7), (23, 10), (25, 12)])
def test_every_opset_with_quantisations_is_read(opset, ir_version):
    graph = models.QuantisedBuilder(3, opset)
    x = graph.rounded("x", graph.quantisation(0.03, 5))
    w, scale = graph.weights((8, 3, 3, 3), per_channel=opset >= 13)
    x = graph.add("Conv", x, w, *graph.bias(8, 0.03, scale, form="float"), name="conv")
    attributes = {"precision": int(TensorProto.FLOAT)} if opset >= 23 else {}
    y = graph.quantize(graph.add("Relu", x), graph.quantisation(0.02, -128), **attributes)
    original = graph.model(["n", 3, 8, 8], y)
    original.ir_version = ir_version
    if ir_version < 4:
        # In this version initializers are inputs, too.
        original.graph.input.extend(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            for tensor in original.graph.initializer
        )
    onnx.checker.check_model(original)
    result = swap(original, fuse=True)
    message = result.to_proto()
    assert [node.name for node in models.quant_convs(message)] == ["conv"]
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    if opset < 25:  # the newest that this version of ONNX Runtime is known to run
        (actual,), (expected,) = models.run_swapped(message, feeds), models.run_plain(original, feeds)
        steps = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
        assert steps.max() <= 1 and (steps > 0).mean() <= SHARE_OF_STEPS


def test_type_without_a_zero_point_is_read():
    graph = models.QuantisedBuilder(3, 21)
    scale = graph.constant(0.03)
    x = graph.add("QuantizeLinear", "x", scale, output_dtype=int(TensorProto.INT8))
    x = graph.add("DequantizeLinear", x, scale)
    w, _ = graph.weights((8, 3, 3, 3), per_channel=True)
    y = graph.add("QuantizeLinear", graph.add("Conv", x, w, name="conv"), scale)
    original = graph.model(["n", 3, 8, 8], y)
    result = swap(original, fuse=True)
    node = models.node_named(result.to_proto(), "conv")
    assert models.initializer(result.to_proto(), node.input[3]).dtype == np.uint8
    check_nodes(original, result)


def branch_model() -> onnx.ModelProto:
    """A model whose quantised Conv is in a branch of an If."""
    graph = models.QuantisedBuilder(6)
    x = graph.rounded("x", graph.quantisation(0.03, 5))
    w, _ = graph.weights((8, 3, 3, 3), per_channel=True)
    y = graph.quantize(graph.add("Conv", x, w, name="conv"), graph.quantisation(0.02))
    then = helper.make_graph(graph.nodes, "then", [], [onnx.ValueInfoProto(name=y)], graph.initializers)
    other = helper.make_node(
        "Constant", [], ["none"], value=onnx.numpy_helper.from_array(np.zeros((1, 8, 6, 6), np.int8))
    )
    otherwise = helper.make_graph([other], "else", [], [onnx.ValueInfoProto(name="none")])
    outer = models.GraphBuilder()
    outer.nodes.append(
        helper.make_node("If", [outer.constant(True, bool)], ["y"], then_branch=then, else_branch=otherwise)
    )
    return outer.model(["n", 3, 8, 8], "y")


def test_conv_in_a_branch_is_quantised():
    result = swap(branch_model(), fuse=True)
    (branch,) = [node for node in result.to_proto().graph.node if node.op_type == "If"]
    then = next(attribute.g for attribute in branch.attribute if attribute.name == "then_branch")
    assert [node.op_type for node in then.node] == ["QuantizeLinear", "QuantConv"]
    assert {tensor.name for tensor in then.initializer} >= set(then.node[1].input[2:])


def test_inner_value_that_is_an_output_ends_the_node():
    graph = models.QuantisedBuilder()
    x = graph.rounded("x", graph.quantisation(0.1))
    w, _ = graph.weights((4, 3, 3, 3), per_channel=False)
    inner = graph.add("Relu", graph.add("Conv", x, w, name="conv"))
    original = graph.model(["n", 3, 8, 8], [inner, graph.quantize(inner, graph.quantisation(0.1))])
    result = swap(original, fuse=True)
    assert models.ops(result.to_proto()) == ["QuantizeLinear", "QuantConv", "QuantizeLinear"]
    assert [output.name for output in result.to_proto().graph.output] == [
        o.name for o in original.graph.output
    ]
    check_nodes(original, result)


def test_residual_of_another_type_stays_an_add():
    graph = models.QuantisedBuilder(dtype=np.uint8)
    x = graph.rounded("x", graph.quantisation(0.1, 100))
    w, _ = graph.weights((3, 3, 1, 1), per_channel=False)
    z = graph.rounded("x", graph.quantisation(0.1, 0, np.int8))
    y = graph.add("Add", graph.add("Conv", x, w, name="conv"), z)
    original = graph.model(["n", 3, 8, 8], graph.quantize(y, graph.quantisation(0.1)))
    result = swap(original, fuse=True)
    assert "Add" in models.ops(result.to_proto())
    check_nodes(original, result)


def test_swapped_file_comes_back_unchanged(tmp_path):
    swap(models.model_optimizer_net(), fuse=True).save(tmp_path / "fast.onnx")
    again = swap(tmp_path / "fast.onnx", fuse=True)
    assert not again.swapped and again.to_proto() == onnx.load(tmp_path / "fast.onnx")


def test_command_reports_what_was_quantised_and_what_was_left(tmp_path, capsys):
    graph = models.QuantisedBuilder()
    x = graph.rounded("x", graph.quantisation(0.1))
    w, _ = graph.weights((4, 3, 3, 3), per_channel=False)
    y = graph.rounded(graph.add("Conv", x, w, name="quantised"), graph.quantisation(0.1))
    y = graph.add("Conv", y, graph.constant(np.ones((2, 4, 1, 1))), name="of numbers")
    onnx.save(graph.model(["n", 3, 8, 8], y), tmp_path / "model.onnx")
    arguments = [
        "swap",
        tmp_path / "model.onnx",
        "-o",
        tmp_path / "fast.onnx",
        "--fuse",
        "--report",
        tmp_path / "r",
    ]
    assert main(list(map(str, arguments))) == 0
    output = capsys.readouterr().out
    assert "2 Conv swapped, 0 left" in output
    assert "QuantConv quantised includes QuantizeLinear" in output
    assert "Conv of numbers is no QuantConv: its data are codes, but its weights are no result of" in output
    report = json.loads((tmp_path / "r").read_text())
    assert [record["op"] for record in report["fused"]] == ["QuantConv"]
    assert [record["node"] for record in report["not_quantised"]] == ["of numbers"]
    assert "layout" in report


def test_constants_that_pytorch_s_exporter_computes_are_read():
    graph = models.QuantisedBuilder(8, 13, dtype=np.uint8)

    def quantisation(scale, zero_point):
        # Doubles and int64 of Python become constants with casts.
        return [
            graph.add("Cast", graph.constant(scale, np.float64), to=TensorProto.FLOAT),
            graph.add("Cast", graph.constant(zero_point, np.int64), to=TensorProto.UINT8),
        ]

    x_quantisation = quantisation(0.03, 120)
    x = graph.rounded("x", x_quantisation)
    w_scale = graph.add(
        "Cast", graph.constant(graph.numbers.uniform(0.001, 0.002, 8), np.float64), to=TensorProto.FLOAT
    )
    w_zero = graph.add("Cast", graph.constant(np.zeros(8), np.int64), to=TensorProto.INT8)
    codes = graph.constant(graph.numbers.integers(-63, 64, (8, 3, 3, 3)), np.int8)
    w = graph.add("DequantizeLinear", codes, w_scale, w_zero, axis=0)
    scale = graph.add("Mul", w_scale, x_quantisation[0])
    zeros = graph.add(
        "ConstantOfShape",
        graph.add("Shape", scale),
        value=onnx.numpy_helper.from_array(np.zeros(1, np.int32)),
    )
    bias = graph.add("Div", graph.constant(graph.numbers.standard_normal(8)), scale)
    bias = graph.add("Cast", bias, to=TensorProto.INT32)
    bias = graph.add("DequantizeLinear", bias, scale, zeros, axis=0)
    y = graph.add("Conv", x, w, bias, name="conv")
    y = graph.quantize(graph.add("Relu", y), quantisation(0.02, 0))
    original = graph.model(["n", 3, 8, 8], y)
    result = swap(original, fuse=True)
    message = result.to_proto()
    # What computed the scale of the data still serves the QuantizeLinear of the input.
    assert models.ops(message) == ["Cast", "Cast", "QuantizeLinear", "QuantConv"]
    node = models.node_named(message, "conv")
    assert len(node.input) == 5 and models.initializer(message, node.input[4]).dtype == np.int32
    check_nodes(original, result)


def test_qlinear_conv_may_quantise_its_weights_in_the_graph():
    graph = models.QuantisedBuilder(9)
    x_scale, y_scale = graph.quantisation(0.03, 5), graph.quantisation(0.02, -10)
    w_scale = [graph.constant(np.full(8, 0.01)), graph.constant(np.zeros(8), np.int8)]
    numbers = graph.constant(graph.numbers.uniform(-0.6, 0.6, (8, 3, 3, 3)))
    w = graph.quantize(numbers, w_scale, axis=0)
    x = graph.quantize("x", x_scale)
    y = graph.add("QLinearConv", x, *x_scale, w, *w_scale, *y_scale, name="conv")
    original = graph.model(["n", 3, 8, 8], y)
    result = swap(original, fuse=True)
    assert models.ops(result.to_proto()) == ["QuantizeLinear", "QuantConv"]
    check_nodes(original, result, share=0.0)


def qlinear_net() -> onnx.ModelProto:
    """Return a network with all operators on codes that `quantize_static` writes around QLinearConv."""
    graph = models.GraphBuilder(4)
    x = graph.conv("x", 16, 16, 3)
    x = graph.add("Concat", x, graph.conv("x", 16, 16, 1), axis=1)
    x = graph.add("LeakyRelu", graph.conv(x, 32, 16, 3))
    y = graph.conv(x, 16, 16, 3)
    x = graph.conv(graph.add("Mul", x, y), 16, 8, 1)
    x = graph.add("AveragePool", graph.add("Sigmoid", x), kernel_shape=[3, 2])
    x = graph.add("Add", x, graph.constant(np.linspace(-1, 1, 8).reshape(8, 1, 1)))
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    weights = np.random.default_rng(0).standard_normal((8, 5))
    original = graph.model(["n", 16, 9, 7], graph.add("MatMul", x, graph.constant(weights)))
    return models.quantised(original, qdq=False)


def test_shapes_behind_operators_on_codes_are_known():
    quantised = qlinear_net()
    model = from_proto(quantised)
    types = ValueTypes(model)
    convs = [node for node in model.graph if node.op_type == "QLinearConv"]
    assert len(convs) == 5
    for conv in convs:
        assert types.axes(conv.inputs[0])[2:] == [9, 7] and types.axes(conv.outputs[0])[2:] == [9, 7]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_operators_on_codes_become_operators_on_numbers(layout):
    quantised = qlinear_net()
    assert {
        "QLinearConcat", "QLinearLeakyRelu", "QLinearMul", "QLinearSigmoid", "QLinearAdd",
        "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearMatMul",
    } <= set(models.ops(quantised))  # fmt: skip
    result = swap(quantised, fuse=True, layout=layout)
    ops = models.ops(result.to_proto())
    assert not [op for op in ops if op.startswith("QLinear")]
    # LeakyRelu and Sigmoid are parts of QuantConvs.
    assert not {"LeakyRelu", "Sigmoid"} & set(ops)
    check_nodes(quantised, result)
    check_whole(quantised, result)


def test_without_a_quant_conv_operators_on_codes_stay():
    quantised = qlinear_net()
    graph = models.GraphBuilder(7)
    y = graph.conv("x", 16, 16, 3)
    quantised.graph.node.extend(graph.nodes)
    quantised.graph.initializer.extend(graph.initializers)
    quantised.graph.output.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, None))
    for node in quantised.graph.node:
        if node.op_type == "QLinearConv":
            node.domain = "another"
    quantised.opset_import.append(helper.make_opsetid("another", 1))
    ops = models.ops(quantised)
    swapped = models.ops(swap(quantised, fuse=True).to_proto())
    assert [op for op in swapped if op.startswith("QLinear")] == [
        op for op in ops if op.startswith("QLinear")
    ]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("ends_in_codes", [False, True])
@pytest.mark.parametrize(("transposed", "bias"), [(0, True), (1, True), (1, False)])
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_gemm_of_codes_becomes_one_of_numbers_or_a_conv(alpha, transposed, bias, ends_in_codes, per_channel):
    graph, random = models.GraphBuilder(4), np.random.default_rng(0)
    x = graph.add("Flatten", graph.add("GlobalAveragePool", graph.conv("x", 3, 16, 3)))
    weights = graph.constant(random.standard_normal((5, 16) if transposed else (16, 5)))
    biases = [graph.constant(random.standard_normal(5))] if bias else []
    y = graph.add("Gemm", x, weights, *biases, transB=transposed, alpha=alpha)
    quantised = models.quantised(
        graph.model(["n", 3, 9, 7], graph.add("Relu", y) if ends_in_codes else y),
        qdq=False, per_channel=per_channel,
    )  # fmt: skip
    (gemm,) = (node for node in quantised.graph.node if node.op_type == "QGemm")
    if not ends_in_codes:
        last = quantised.graph.node[-1]
        assert last.op_type == "DequantizeLinear"
        gemm.output[0] = last.output[0]
        del gemm.input[7:], quantised.graph.node[-1]
    result = swap(quantised, fuse=True)
    ops = models.ops(result.to_proto())
    is_conv = alpha == 1 and ends_in_codes
    assert ("Gemm" in ops) != is_conv and "QGemm" not in ops
    assert ops.count("QuantConv") == 2 + is_conv
    assert len(result.not_quantised) == 1 - is_conv
    # Those of data, of the weights and of the result. Biases are numbers already: ONNX Runtime dequantises
    # int32 on the CPU alone.
    assert ops.count("DequantizeLinear") == (1 if is_conv else 3 if ends_in_codes else 2)
    check_whole(quantised, result)
    feeds = data_of(quantised)
    (actual,), (expected,) = (
        models.run_swapped(result.to_proto(), feeds), models.run_plain(quantised, feeds)
    )  # fmt: skip
    np.testing.assert_allclose(actual, expected, atol=CODES_TOLERANCE * float(np.abs(expected).max()))


def set_constant(model: onnx.ModelProto, node: onnx.NodeProto, index: int, array: np.ndarray) -> None:
    """Give a node another constant as input."""
    name = f"{node.name}_{index}"
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    node.input[index] = name


@pytest.mark.parametrize("case", ["NHWC", "several scales", "several zero points", "no zero point at all"])
def test_other_operators_on_codes_stay(case):
    quantised = qlinear_net()
    pool = next(node for node in quantised.graph.node if node.op_type == "QLinearGlobalAveragePool")
    if case == "NHWC":
        pool.attribute.append(helper.make_attribute("channels_last", 1))
    elif case == "several scales":
        set_constant(quantised, pool, 1, np.array([0.1, 0.2], np.float32))
    elif case == "several zero points":
        set_constant(quantised, pool, 2, np.zeros(8, np.uint8))
    else:
        pool.input[2] = ""
        del pool.input[4:]
    ops = models.ops(swap(quantised, fuse=True).to_proto())
    assert [op for op in ops if op.startswith("QLinear")] == ["QLinearGlobalAveragePool"]


def test_result_on_codes_without_a_zero_point_has_zero():
    quantised = qlinear_net()
    pool = next(node for node in quantised.graph.node if node.op_type == "QLinearGlobalAveragePool")
    dtype = models.initializer(quantised, pool.input[4]).dtype
    set_constant(quantised, pool, 4, np.zeros((), dtype))
    expected = models.run_plain(quantised, data_of(quantised))
    del pool.input[4:]
    message = swap(quantised, fuse=True).to_proto()
    assert "QLinearGlobalAveragePool" not in models.ops(message)
    (actual,) = models.run_swapped(message, data_of(quantised))
    np.testing.assert_allclose(actual, expected[0], atol=CODES_TOLERANCE * float(np.abs(expected[0]).max()))


@pytest.mark.parametrize("bias", [(1, 5), (2, 5), (1,)], ids=str)
def test_gemm_of_codes_with_another_bias_stays(bias):
    graph = models.GraphBuilder(4)
    x = graph.add("Flatten", graph.add("GlobalAveragePool", graph.conv("x", 3, 16, 3)))
    y = graph.add("Gemm", x, graph.constant(np.ones((16, 5))), graph.constant(np.ones(5)))
    quantised = models.quantised(graph.model(["n", 3, 9, 7], y), qdq=False, per_channel=True)
    (gemm,) = (node for node in quantised.graph.node if node.op_type == "QGemm")
    set_constant(quantised, gemm, 6, np.ones(bias, np.int32))
    assert "QGemm" in models.ops(swap(quantised, fuse=True).to_proto())


def test_operators_on_codes_of_functions_stay():
    quantised = qlinear_net()
    pool = next(node for node in quantised.graph.node if node.op_type == "QLinearGlobalAveragePool")
    inputs = [f"input_{index}" for index in range(len(pool.input))]
    body = onnx.NodeProto()
    body.CopyFrom(pool)
    body.input[:], body.output[:] = inputs, ["result"]
    opsets = [helper.make_opsetid("com.microsoft", 1)]
    quantised.functions.append(helper.make_function("own", "Pool", inputs, ["result"], [body], opsets))
    quantised.opset_import.append(helper.make_opsetid("own", 1))
    pool.domain, pool.op_type = "own", "Pool"
    del pool.attribute[:]
    message = swap(quantised, fuse=True).to_proto()
    (function,) = message.functions
    assert [node.op_type for node in function.node] == ["QLinearGlobalAveragePool"]


def test_constant_int32_is_dequantised_ahead():
    """ONNX Runtime dequantises int32 on the CPU alone, which would keep a model from a CUDA graph."""
    graph = models.residual_net()
    codes = np.array([100, -7, 3], np.int32)
    scale = np.array(0.25, np.float32)
    graph.graph.initializer.extend(
        [onnx.numpy_helper.from_array(codes, "int32"), onnx.numpy_helper.from_array(scale, "int32_scale")]
    )
    graph.graph.node.append(helper.make_node("DequantizeLinear", ["int32", "int32_scale"], ["numbers"]))
    graph.graph.node.append(helper.make_node("Neg", ["numbers"], ["negated"]))
    graph.graph.output.append(helper.make_tensor_value_info("negated", TensorProto.FLOAT, [3]))
    model = swap(models.quantised(graph), fuse=True).to_proto()
    (negation,) = (node for node in model.graph.node if node.op_type == "Neg")
    np.testing.assert_array_equal(models.initializer(model, negation.input[0]), codes * scale)
