"""Operators that only move elements compute with codes between quantised Convs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import quantised_models as models
from convswap.graph.quantised.movements import CodeMover
from convswap.graph.swap import swap
from convswap.reference.evaluation import evaluate
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType
from op_sessions import make_session
from test_quantised import check_whole, data_of, quantised_silu

MOVES = {
    "Split": lambda graph, x: (graph.add("Split", x, axis=1, num_outputs=1), 16),
    "MaxPool": lambda graph, x: (graph.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4), 16),
    "Resize": lambda graph, x: (
        graph.add("Resize", x, "", graph.constant([1, 1, 2, 2]), mode="nearest"), 16
    ),
    "Slice": lambda graph, x: (
        graph.add("Slice", x, *(graph.constant([number], np.int64) for number in (4, 12, 1))), 8
    ),
    "Reshape": lambda graph, x: (
        graph.add("Reshape", x, graph.constant([0, 8, -1, 8], np.int64)), 8
    ),
    "Transpose": lambda graph, x: (graph.add("Transpose", x, perm=[0, 1, 3, 2]), 16),
}  # fmt: skip


class MovingBuilder(models.QuantisedBuilder):
    """Builds graphs of rounded Convs."""

    def __init__(self, opset: int = 21, dtype=np.uint8) -> None:
        super().__init__(5, opset, dtype=dtype)
        self.x = self.rounded("x", self.codes_of(0.03))

    def codes_of(self, scale: float) -> list[str]:
        return self.quantisation(scale, 115 if self.dtype == np.uint8 else -13)

    def quantised_conv(self, x: str, scale: float | None, *, channels: int = 3, name: str = "") -> str:
        """Add a Conv of 16 filters, rounded if there is a scale."""
        w, _ = self.weights((16, channels, 3, 3), per_channel=False)
        y = self.add("Conv", x, w, name=name, pads=[1] * 4)
        return y if scale is None else self.rounded(y, self.codes_of(scale))


def rest(message: onnx.ModelProto) -> list[str]:
    """Return the ops other than the convolutions, the quantisation of the input and changes of layouts."""
    ops = [op for op in models.ops(message) if op not in ("QuantConv", "Transpose", "LayoutPool")]
    ops.remove("QuantizeLinear")
    return sorted(ops)


def check_equal(original: onnx.ModelProto, monkeypatch) -> onnx.ModelProto:
    """Compare the results with those of the swapped model that moves numbers; return the swapped model."""
    result = swap(original, fuse=True)
    check_whole(original, result)
    feeds = data_of(original)
    actual = models.run_swapped(result.to_proto(), feeds)
    with monkeypatch.context() as patch:
        patch.setattr(CodeMover, "concatenate", lambda _, chains: chains)
        patch.setattr(CodeMover, "move", lambda _: None)
        patch.setattr(CodeMover, "requantise", lambda _: [])
        expected = models.run_swapped(swap(original, fuse=True).to_proto(), feeds)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    return models.to_proto(result.nchw_model)


@pytest.mark.parametrize("move", MOVES)
def test_operator_between_equal_quantisations_moves_codes(move, monkeypatch):
    graph = MovingBuilder()
    x, channels = MOVES[move](graph, graph.quantised_conv(graph.x, 0.02))
    y = graph.quantised_conv(graph.rounded(x, graph.codes_of(0.02)), None, channels=channels)
    original = graph.model(["n", 3, 8, 12], y)
    message = check_equal(original, monkeypatch)
    assert models.ops(message) == [
        "QuantizeLinear", "QuantConv", *([] if move == "MaxPool" else [move]), "QuantConv"
    ]  # fmt: skip


TO_ROWS = {
    "Flatten": lambda graph, x: graph.add("Flatten", x),
    "Squeeze": lambda graph, x: graph.add("Squeeze", x, graph.constant([2, 3], np.int64)),
    "Unsqueeze": lambda graph, x: graph.add(
        "Squeeze",
        graph.rounded(graph.add("Unsqueeze", x, graph.constant([4], np.int64)), graph.codes_of(0.01)),
        graph.constant([2, 3, 4], np.int64),
    ),
}


def pooled_rows(move: str, **options) -> onnx.ModelProto:
    """Return a network whose means become rows of codes in front of a MatMul."""
    graph = MovingBuilder(**options)
    mean = graph.add("GlobalAveragePool", graph.quantised_conv(graph.x, 0.02))
    rows = graph.rounded(
        TO_ROWS[move](graph, graph.rounded(mean, graph.codes_of(0.01))), graph.codes_of(0.01)
    )
    weights = graph.constant(np.random.default_rng(3).standard_normal((16, 5)).astype(np.float32), np.float32)
    return graph.model(["n", 3, 8, 12], graph.add("MatMul", rows, weights))


@pytest.mark.parametrize("move", TO_ROWS)
def test_codes_become_rows_without_a_second_rounding(move, monkeypatch):
    ops = models.ops(check_equal(pooled_rows(move), monkeypatch))
    assert ops.count("QuantizeLinear") == 2  # of the input and of the means
    assert ops[-2:] == ["DequantizeLinear", "MatMul"]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("move", TO_ROWS)
def test_card_makes_codes_rows(move, dtype):
    original = pooled_rows(move, dtype=dtype)
    message = swap(original, fuse=True).to_proto().SerializeToString()
    feeds = data_of(original, batch=2)
    (expected,), (actual,) = (make_session(message, device).run(None, feeds) for device in ("cpu", "cuda"))
    # The MatMul of a card rounds its operands to TF32. A code is 1e-2.
    np.testing.assert_allclose(actual, expected, atol=2e-3)


def classifier(*filters: int, per_channel=False, form="codes", **options) -> onnx.ModelProto:
    """Return a network whose means are the data of fully connected layers with so many `filters`."""
    graph, channels = MovingBuilder(**options), 16
    x = graph.quantised_conv(graph.x, 0.02)
    x = graph.rounded(
        graph.add("ReduceMean", x, graph.constant([-1, 2], np.int64), keepdims=0), graph.codes_of(0.011)
    )
    for count in filters:
        w, _ = graph.weights((count, channels), per_channel=per_channel, form=form)
        bias = graph.constant(graph.numbers.standard_normal(count))
        x = graph.rounded(graph.add("Relu", graph.add("Gemm", x, w, bias, transB=1)), graph.codes_of(0.017))
        channels = count
    return graph.model(["n", 3, 7, 7], graph.nodes.pop().input[0])


@pytest.mark.parametrize(
    ("filters", "per_channel", "form"),
    [
        ((32, 10), False, "codes"),
        ((32, 10), True, "float"),
        ((4100, 16), True, "codes"),
        ((4100, 16), False, "uint8"),
    ],
)
def test_head_of_a_classifier_computes_codes(filters, per_channel, form):
    original = classifier(*filters, per_channel=per_channel, form=form)
    result, feeds = swap(original, fuse=True), data_of(original, batch=64)
    message = result.to_proto()
    assert rest(message) == ["Flatten", *["Slice"] * (filters[0] % 16 > 0)]
    assert len(models.quant_convs(message)) == 4 and len(result.swapped) == 1
    check_whole(original, result)
    ((actual,), (expected,)) = models.run_swapped(message, feeds), evaluate(original, feeds).outputs
    steps = np.abs(actual.astype(np.int64) - expected.astype(np.int64))
    assert steps.max() <= 1 and (steps > 0).mean() <= 1e-3


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize(
    ("attributes", "bias", "has_scales_of_channels", "reason"),
    [
        ({"alpha": 0.5}, [0] * 16, False, "its alpha or beta is not 1"),
        ({"beta": 2.0}, [0] * 16, False, "its alpha or beta is not 1"),
        ({}, [1], False, "its bias has not 16 numbers, one for each column of its result"),
        ({}, [0] * 16, True, "its weights have a scale for each index of axis {}; expected {}"),
    ],
    ids=["alpha", "beta", "bias", "scales"],
)
def test_reason_says_why_a_fully_connected_layer_stays(
    attributes, bias, has_scales_of_channels, reason, transposed
):
    graph = MovingBuilder()
    x = graph.add("GlobalAveragePool", graph.quantised_conv(graph.x, 0.02))
    x = graph.add("Flatten", graph.rounded(x, graph.codes_of(0.011)))
    scale, zero_point = np.full(16, 0.01), np.zeros(16)
    axis, filters = transposed, 1 - transposed
    if not has_scales_of_channels:
        scale, zero_point = scale[0], zero_point[0]
    codes = graph.constant(graph.numbers.integers(-63, 64, (16, 16)), np.int8)
    w = graph.dequantize(codes, [graph.constant(scale), graph.constant(zero_point, np.int8)], axis=axis)
    y = graph.add("Gemm", x, w, graph.constant(bias), name="fc", transB=transposed, **attributes)
    result = swap(graph.model(["n", 3, 7, 7], graph.rounded(y, graph.codes_of(0.1))), fuse=True)
    (record,) = result.not_quantised
    assert (record.node, record.op, record.reason) == ("fc", "Gemm", reason.format(axis, filters))


@pytest.mark.parametrize(("rounds", "op"), [(True, "ReduceMean"), (True, "Gemm"), (False, "Gemm")])
def test_constant_that_adds_axes_to_rows_stays_behind_them(rounds, op):
    graph = MovingBuilder()
    x = graph.quantised_conv(graph.x, 0.02)
    x = graph.add("ReduceMean", x, graph.constant([-1, 2], np.int64), keepdims=0)
    if op == "Gemm":
        w, _ = graph.weights((8, 16), per_channel=False)
        x = graph.add("Gemm", graph.rounded(x, graph.codes_of(0.011)), w, transB=1)
    if rounds:
        x = graph.add("Mul", graph.rounded(x, graph.codes_of(0.017)), graph.constant([[[0.7]]]))
    else:
        x = graph.add("Mul", x, graph.add("Clip", graph.add("Add", x, graph.constant([[[3]]])), *(
            graph.constant(bound) for bound in (0, 6)
        )))  # fmt: skip
        x = graph.add("Div", x, graph.constant([[[6]]]))
    original = graph.model(["n", 3, 7, 7], graph.rounded(x, graph.codes_of(0.012)))
    message, feeds = swap(original, fuse=True).to_proto(), data_of(original, batch=2)
    (actual,), (expected,) = models.run_swapped(message, feeds), models.run_plain(original, feeds)
    assert actual.shape == expected.shape == (1, 2, 8 if op == "Gemm" else 16)
    np.testing.assert_allclose(actual, expected, atol=1.01 * 0.012)


def test_mean_over_a_large_image_stays_one_of_numbers():
    ops = models.ops(swap(pooled_rows("Flatten"), fuse=True).to_proto())
    assert "LayoutPool" in ops and ops.count("QuantConv") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_card_computes_the_head_of_a_classifier(dtype):
    original = classifier(4100, 10, dtype=dtype)
    message = swap(original, fuse=True).to_proto().SerializeToString()
    for batch in (1, 3, 64):
        feeds = data_of(original, batch)
        (expected,), (actual,) = (
            make_session(message, device).run(None, feeds) for device in ("cpu", "cuda")
        )
        np.testing.assert_array_equal(actual, expected)


def _resize(mode: str):
    return lambda graph, x: graph.add("Resize", x, "", graph.constant([1, 1, 2, 2]), mode=mode)


@pytest.mark.parametrize(
    ("move", "options", "scale"),
    [
        (lambda graph, x: graph.add("Slice", x, *_cut(graph)), {}, 0.03),
        (_resize("linear"), {}, 0.02),
        (_resize("nearest"), {"dtype": np.int8}, 0.02),
    ],
    ids=["another scale", "interpolation", "no kernel for int8"],
)
def test_other_operators_move_numbers(move, options, scale):
    graph = MovingBuilder(**options)
    x = graph.rounded(move(graph, graph.quantised_conv(graph.x, 0.02)), graph.codes_of(scale))
    message = swap(
        graph.model(["n", 3, 8, 8], graph.quantised_conv(x, None, channels=16)), fuse=True
    ).to_proto()
    assert {"DequantizeLinear", "QuantizeLinear"} <= set(rest(message))


def _cut(graph):
    return [graph.constant([number], np.int64) for number in (0, 4, 2)]


def test_result_with_another_reader_stays_a_number():
    graph = MovingBuilder()
    x = graph.add("Slice", graph.quantised_conv(graph.x, 0.02), *_cut(graph))
    y = graph.quantised_conv(graph.rounded(x, graph.codes_of(0.02)), None, channels=16)
    message = swap(graph.model(["n", 3, 8, 8], [y, graph.add("Exp", x)]), fuse=True).to_proto()
    assert rest(message) == ["DequantizeLinear", "Exp", "QuantizeLinear", "Slice"]


def concat_model(
    *, silu=False, residual=False, shared=0, scales=(0.02, 0.025), result=0.03
) -> onnx.ModelProto:
    """Return a Concat of rounded Convs, of which `shared` have another reader, in front of a Conv."""
    graph = MovingBuilder()
    operands, others = [], []
    for index, scale in enumerate(scales):
        x = graph.quantised_conv(graph.x, scale if not (silu or residual) else 0.021, name=f"operand{index}")
        if silu:
            x = graph.rounded(quantised_silu(graph, x), graph.codes_of(scale))
        if residual:
            x = graph.add("Add", x, graph.quantised_conv(graph.x, 0.023))
            x = graph.rounded(x, graph.codes_of(scale))
        operands.append(x)
        if index < shared:
            others.append(graph.quantised_conv(x, None, channels=16))
    x = graph.rounded(graph.add("Concat", *operands, axis=1), graph.codes_of(result))
    y = graph.quantised_conv(x, None, channels=16 * len(scales))
    return graph.model(["n", 3, 8, 12], [y, *others])


@pytest.mark.parametrize("silu", [False, True], ids=["rounded", "SiLU"])
def test_quant_conv_for_a_concat_alone_gives_codes_of_the_concat(silu, monkeypatch):
    message = check_equal(concat_model(silu=silu), monkeypatch)
    assert rest(message) == ["Concat"]
    for name in ("operand0", "operand1"):
        attributes = models.attributes_of(models.node_named(message, name))
        assert "sum_zero_point" in attributes and not {"sum_scale", "y_scale"} & set(attributes)


def test_type_of_codes_that_a_concat_changes_is_known():
    graph = MovingBuilder(dtype=np.int8)
    operands = [graph.quantised_conv(graph.x, scale) for scale in (0.02, 0.025)]
    x = graph.add("Concat", *operands, axis=1)
    y = graph.quantize(x, graph.quantisation(0.03, 115, np.uint8))
    result = swap(graph.model(["n", 3, 8, 12], y), fuse=True)
    codes = [node.outputs[0] for node in result.model.graph if node.op_type == "QuantConv"]
    assert len(codes) == 2 and {value.dtype for value in codes} == {ir.DataType.UINT8}
    for value in result.to_proto().graph.value_info:
        if value.name in {each.name for each in codes}:
            assert value.type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_second_rounding_in_float16_begins_with_numbers_in_float16():
    """Half of the codes are halves of the second rounding, which float16 rounds to either side."""
    graph = MovingBuilder()

    def quantisation(scale: float) -> list[str]:
        return [graph.constant(scale, np.float16), graph.constant(115, np.uint8)]

    x = graph.rounded(graph.add("Cast", "x", to=onnx.TensorProto.FLOAT16), quantisation(0.03))
    operands = []
    for name in ("a", "b"):
        codes = graph.constant(graph.numbers.integers(-127, 128, (16, 3, 3, 3)), np.int8)
        w = graph.dequantize(codes, [graph.constant(0.01, np.float16), graph.constant(0, np.int8)])
        y = graph.add("Conv", x, w, name=name, pads=[1] * 4)
        operands.append(graph.rounded(graph.rounded(y, quantisation(0.0201)), quantisation(0.0402)))
    y = graph.quantize(graph.add("Concat", *operands, axis=1), quantisation(0.05))
    original = graph.model(["n", 3, 8, 12], y)
    message, feeds = swap(original, fuse=True).to_proto(), data_of(original)
    assert rest(message).count("Concat") == 1 and len(models.quant_convs(message)) == 2
    (actual,), (expected,) = models.run_swapped(message, feeds), models.run_plain(original, feeds)
    assert (actual != expected).mean() < 0.02


@pytest.mark.parametrize(
    ("options", "requantised"),
    [
        ({"scales": (0.03, 0.03), "shared": 2}, 0),
        ({"scales": (0.03, 0.02), "shared": 1}, 0),
        ({"scales": (0.02, 0.03), "shared": 1}, 1),
        ({"scales": (0.03, 0.02), "residual": True}, 1),
        ({"scales": (0.02, 0.021, 0.022, 0.023), "shared": 4}, 4),
    ],
    ids=["equal", "equal and alone", "one shared", "residual", "all shared"],
)
def test_concat_concatenates_codes_of_its_own_quantisation(options, requantised, monkeypatch):
    message = check_equal(concat_model(**options), monkeypatch)
    assert rest(message) == ["Concat"]
    assert len(requantising(message)) == requantised


def requantising(message: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the QuantConv nodes that write codes of another quantisation."""
    weights = {each.name: numpy_helper.to_array(each) for each in message.graph.initializer}
    return [
        node
        for node in models.quant_convs(message)
        if np.all(weights[node.input[1]] == 1) and weights[node.input[1]].shape[1:] == (1, 1, 1)
    ]


def test_concat_with_more_numbers_than_codes_concatenates_numbers():
    graph = MovingBuilder()
    numbers = [graph.add("Exp", graph.quantised_conv(graph.x, None)) for _ in range(3)]
    x = graph.add("Concat", graph.quantised_conv(graph.x, 0.02), *numbers, axis=1)
    y = graph.quantised_conv(graph.rounded(x, graph.codes_of(0.02)), None, channels=64)
    message = swap(graph.model(["n", 3, 8, 12], y), fuse=True).to_proto()
    assert rest(message) == ["Concat", "DequantizeLinear", "Exp", "Exp", "Exp", "QuantizeLinear"]


@pytest.mark.parametrize("dtypes", [(np.uint8, np.uint8), (np.int8, np.uint8), (np.uint8, np.int8)], ids=str)
@pytest.mark.parametrize("scales", [(0.02, 0.05), (0.05, 0.0007)], ids=str)
def test_codes_of_another_quantisation_are_written_by_a_conv_of_one_tap(scales, dtypes, monkeypatch):
    """Every code occurs, and in the second case most results are saturated."""
    graph = models.QuantisedBuilder(3, 21)
    source, target = (
        graph.quantisation(scale, 100 if dtype == np.uint8 else -20, dtype)
        for scale, dtype in zip(scales, dtypes, strict=True)
    )
    x = graph.dequantize(graph.quantize("x", source), source)
    w, _ = graph.weights((4, 3, 1, 1), per_channel=False)
    other = graph.add("Conv", x, w)
    original = graph.model(["n", 3, 8, 12], [other, graph.quantize(x, target)])
    codes = np.arange(-30, 258, dtype=np.float32) * scales[0]
    feeds = {"x": codes.reshape(1, 3, 8, 12)}
    message = swap(original, fuse=True).to_proto()
    assert len(requantising(message)) == 1 and "DequantizeLinear" not in models.ops(message)
    np.testing.assert_array_equal(models.run_swapped(message, feeds)[1], models.run_plain(original, feeds)[1])


@pytest.mark.parametrize(
    "case",
    ["float16", "a vector for each channel", "two axes", "unknown channels", "no rows", "a constant"],
)
def test_other_codes_are_dequantised_and_rounded(case):
    number = np.float16 if case == "float16" else np.float32
    graph = models.QuantisedBuilder(3, 21)

    def quantisation(scale: float) -> list[str]:
        scales = [scale, scale, 2 * scale] if case == "a vector for each channel" else scale
        zeros = np.full(np.shape(scales), 100)
        return [graph.constant(scales, number), graph.constant(zeros, np.uint8)]

    w, _ = graph.weights((4, 3, 1, 1), per_channel=False)
    conv = graph.add("Conv", graph.rounded("x", graph.quantisation(0.02, 100)), w)
    numbers = graph.add("Cast", "x", to=helper.np_dtype_to_tensor_dtype(np.dtype(number)))
    if case == "two axes":
        numbers = graph.add("Flatten", numbers)
    if case == "no rows":
        bounds = [graph.constant([number], np.int64) for number in (0, 0, 2)]
        numbers = graph.add("Slice", numbers, *bounds)
    if case == "unknown channels":
        is_kept = graph.add(
            "Greater",
            graph.add("ReduceMax", "x", graph.constant([0, 2, 3], np.int64), keepdims=0),
            graph.constant(0),
        )
        numbers = graph.add("Compress", numbers, is_kept, axis=1)
    first, second = quantisation(0.02), quantisation(0.05)
    codes = graph.quantize(numbers, first)
    if case == "a constant":
        codes = graph.constant(np.arange(6).reshape(1, 3, 2), np.uint8)
    y = graph.quantize(graph.dequantize(codes, first), second)
    original = graph.model(["n", 3, 8, 12], [conv, y])
    ops = models.ops(swap(original, fuse=True).to_proto())
    assert ops.count("QuantConv") == 1 and ops.count("DequantizeLinear") == 1


def test_division_in_the_type_of_the_scale_stays():
    """From opset 23 on, a scale may have another type than the numbers, and they are divided in that type."""
    graph = models.QuantisedBuilder(3, 23)
    source = graph.quantisation(0.05, 100)
    target = [graph.constant(0.1, np.float16), graph.constant(3, np.uint8)]
    w, _ = graph.weights((4, 3, 1, 1), per_channel=False)
    x = graph.dequantize(graph.quantize("x", source), source)
    original = graph.model(["n", 3, 8, 12], [graph.add("Conv", x, w), graph.quantize(x, target)])
    ops = models.ops(swap(original, fuse=True).to_proto())
    assert ops.count("QuantConv") == 1 and ops.count("QuantizeLinear") == 2


def test_unnamed_quantisation_is_named_after_its_result():
    graph = models.QuantisedBuilder(3, 21)
    source = graph.quantisation(0.05, 100)
    w, _ = graph.weights((4, 3, 1, 1), per_channel=False)
    x = graph.dequantize(graph.quantize("x", source), source)
    y = graph.quantize(x, graph.quantisation(0.1, 100))
    original = graph.model(["n", 3, 8, 12], [graph.add("Conv", x, w), y])
    original.graph.node[-2 if original.graph.node[-1].op_type == "Conv" else -1].name = ""
    (node,) = requantising(swap(original, fuse=True).to_proto())
    assert y in node.name


@pytest.mark.parametrize("activations", [QuantType.QInt8, QuantType.QUInt8], ids=["int8", "uint8"])
def test_network_with_halves_and_concats_has_equal_codes(activations, monkeypatch):
    original = models.quantised(models.yolo_net(), per_channel=True, activations=activations)
    message = check_equal(original, monkeypatch)
    assert not {"Sigmoid", "Mul", "Add"} & set(models.ops(message))
    floats = {
        name for node in message.graph.node if node.op_type == "DequantizeLinear" for name in node.output
    }
    readers = [node.op_type for node in message.graph.node if floats & set(node.input)]
    assert "Concat" not in readers and "QuantizeLinear" not in readers
    assert models.ops(swap(original, fuse=True).to_proto()).count("Transpose") <= 1


@pytest.mark.gpu
def test_card_moves_codes_with_equal_results():
    original = models.quantised(models.yolo_net(), per_channel=True, activations=QuantType.QUInt8)
    message = swap(original, fuse=True).to_proto().SerializeToString()
    feeds = data_of(original, batch=2)
    (expected,) = make_session(message, "cpu").run(None, feeds)
    (actual,) = make_session(message, "cuda").run(None, feeds)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("move", MOVES)
def test_card_moves_codes_in_nchw(move, dtype):
    if move == "Resize" and dtype == np.int8:
        pytest.skip("int8 is resized as numbers")
    graph = MovingBuilder(dtype=dtype)
    first = graph.quantised_conv(graph.x, 0.02)
    x, channels = MOVES[move](graph, first)
    # A second reader keeps the pool out of the first QuantConv.
    ends = [(graph.rounded(x, graph.codes_of(0.02)), channels), (first, 16)]
    outputs = [
        graph.quantize(graph.quantised_conv(end, None, channels=count), graph.codes_of(0.05))
        for end, count in ends
    ]
    original = graph.model(["n", 3, 8, 12], outputs)
    result = swap(original, fuse=True, layout="nchw").to_proto()
    assert rest(result) == ([move] if move != "Transpose" else [])
    feeds = data_of(original, batch=2)
    message = result.SerializeToString()
    pairs = zip(*(make_session(message, device).run(None, feeds) for device in ("cpu", "cuda")), strict=True)
    for expected, actual in pairs:
        np.testing.assert_array_equal(actual, expected)


def test_a_type_that_is_given_twice_does_not_stop_onnx_runtime():
    """It moves the Transpose in front of the QuantizeLinear behind it."""
    graph = models.QuantisedBuilder(opset=21, dtype=np.int8)
    codes = graph.quantisation(0.03)
    x = graph.dequantize(graph.quantize("x", codes, output_dtype=onnx.TensorProto.INT8), codes)
    w, _ = graph.weights((32, 1, 3, 3), per_channel=True)
    original = graph.model(["n", 32, 8, 8], graph.rounded(graph.add("Conv", x, w, group=32), codes))
    message = swap(original, fuse=True).to_proto()
    assert models.ops(message)[:2] == ["Transpose", "QuantizeLinear"]
    feeds = data_of(original)
    (actual,) = make_session(message.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(actual, models.run_plain(original, feeds)[0], rtol=0, atol=0.031)
