"""The reference is correct and float64 throughout, also if ONNX's own evaluator is slow or wrong.

Tolerance: both sides of a comparison here compute in float64, in different orders. 1e-12 leaves four digits
for that. It is far below float32's 6e-8, so a single rounding to float32 anywhere fails the test.
"""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import onnx
import pytest
from convswap.reference.evaluation import evaluate
from numpy_forward import convolve, dense, pool, softmax
from onnx import TensorProto, helper, numpy_helper
from op_sessions import onnx_outputs
from refused import refused
from swap_models import ANY, IMAGE, INPUT_SHAPE, input_array, make_model, tensor_info, text_model, weights

TOLERANCES = {"rtol": 1e-12, "atol": 1e-12}


def array(tensor: onnx.TensorProto) -> np.ndarray:
    return numpy_helper.to_array(tensor).astype(np.float64)


def result_of(node: onnx.NodeProto, *initializers: onnx.TensorProto, opset: int = 20, **feeds: np.ndarray):
    """Return the reference of a model of one node with the input x and the other named inputs."""
    feeds.setdefault("x", input_array(*INPUT_SHAPE))
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)
        for name, values in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    model = make_model([node], list(initializers), inputs=inputs, outputs=outputs)
    model.opset_import[0].version = opset
    return evaluate(model, feeds).outputs


def test_whole_network_equals_its_definition_in_numpy():
    w1, b1 = weights("w1", 4, 3, 3, 3), weights("b1", 4)
    w2, b2 = weights("w2", 48, 10), weights("b2", 10)
    nodes = """
      c = Conv <strides = [1, 1]> (x, w1, b1)
      t = Tanh(c)
      p = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (t)
      f = Flatten(p)
      g = Gemm(f, w2, b2)
      y = Softmax <axis = 1> (g)"""
    x = input_array(*INPUT_SHAPE)
    pooled = pool(np.tanh(convolve(x, array(w1), array(b1))), (2, 2), (2, 2), ceil=True)
    expected = softmax(dense(pooled, array(w2).T, array(b2)))
    got = evaluate(text_model(nodes, w1, b1, w2, b2, outputs="float[2, 10] y"), {"x": x})
    np.testing.assert_allclose(got.outputs[0], expected, **TOLERANCES)
    assert got.in_float32 == ()


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 1, 2]},
        {"kernel_shape": [2, 2], "dilations": [3, 2]},
        {"kernel_shape": [4, 3], "strides": [3, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [4, 2], "strides": [1, 2], "auto_pad": "SAME_LOWER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
    ],
    ids=str,
)
def test_max_pool_equals_onnxruntime_in_float64_with_indices(attributes):
    x = input_array(*INPUT_SHAPE).astype(np.float64)
    node = helper.make_node("MaxPool", ["x"], ["y", "indices"], **attributes)
    model = make_model(
        [node],
        [],
        inputs=[tensor_info("x", *INPUT_SHAPE, element_type=TensorProto.DOUBLE)],
        outputs=[onnx.ValueInfoProto(name="y"), onnx.ValueInfoProto(name="indices")],
    )
    values, indices = onnx_outputs(model, {"x": x})
    got = evaluate(model, {"x": x}).outputs
    np.testing.assert_array_equal(got[0], values)
    np.testing.assert_array_equal(got[1], indices)
    without_indices = helper.make_node("MaxPool", ["x"], ["y"], **attributes)
    np.testing.assert_array_equal(result_of(without_indices, x=x)[0], values)


@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(
    ("kernel", "strides", "pads"), [((3, 2), (2, 3), (1, 0, 1, 1)), ((2, 5), (3, 2), (0, 2, 1, 1))]
)
def test_average_pool_counts_padding_only_on_request_and_nothing_beyond_it(
    include, ceil_mode, kernel, strides, pads
):
    x = input_array(*INPUT_SHAPE).astype(np.float64)
    node = helper.make_node(
        "AveragePool",
        ["x"],
        ["y"],
        kernel_shape=kernel,
        strides=strides,
        pads=pads,
        ceil_mode=ceil_mode,
        count_include_pad=include,
    )
    (got,) = result_of(node, x=x)
    for n, c, p, q in itertools.product(*(range(size) for size in got.shape)):
        total, count = 0.0, 0
        for r, s in itertools.product(range(kernel[0]), range(kernel[1])):
            h, w = p * strides[0] + r - pads[0], q * strides[1] + s - pads[1]
            if 0 <= h < x.shape[2] and 0 <= w < x.shape[3]:
                total, count = total + x[n, c, h, w], count + 1
            elif include and h < x.shape[2] + pads[2] and w < x.shape[3] + pads[3]:
                count += 1
        assert got[n, c, p, q] == pytest.approx(total / count, rel=1e-12, abs=1e-12)


def test_average_pool_has_the_output_shape_of_onnxruntime():
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    node = helper.make_node("AveragePool", ["x"], ["y"], **attributes)
    x = input_array(*INPUT_SHAPE)
    expected = onnx_outputs(make_model([node], []), {"x": x})[0]
    np.testing.assert_allclose(result_of(node, x=x)[0], expected, rtol=1e-5, atol=1e-6)


def test_lrn_sums_squares_over_neighbouring_channels():
    x = input_array(2, 7, 3, 2).astype(np.float64)
    size, alpha, beta, bias = 4, 0.5, 0.75, 2.0
    node = helper.make_node("LRN", ["x"], ["y"], size=size, alpha=alpha, beta=beta, bias=bias)
    expected = np.empty_like(x)
    for c in range(7):
        lowest, highest = max(0, c - (size - 1) // 2), min(6, c + math.ceil((size - 1) / 2))
        squares = (x[:, lowest : highest + 1] ** 2).sum(axis=1)
        expected[:, c] = x[:, c] / (bias + alpha / size * squares) ** beta
    np.testing.assert_allclose(result_of(node, x=x)[0], expected, **TOLERANCES)


@pytest.mark.parametrize("opset", [7, 9, 15, 20])
def test_batch_normalization_is_inference_at_every_opset(opset):
    constants = [weights(name, 3) for name in ("scale", "bias", "mean")]
    variance = numpy_helper.from_array(np.array([0.5, 1.0, 2.0], np.float32), "variance")
    node = helper.make_node(
        "BatchNormalization", ["x", "scale", "bias", "mean", "variance"], ["y"], epsilon=0.25
    )
    x = input_array(*INPUT_SHAPE).astype(np.float64)
    scale, bias, mean = (array(tensor).reshape(-1, 1, 1) for tensor in constants)
    expected = scale * (x - mean) / np.sqrt(array(variance).reshape(-1, 1, 1) + 0.25) + bias
    np.testing.assert_allclose(
        result_of(node, *constants, variance, opset=opset, x=x)[0], expected, **TOLERANCES
    )


@pytest.mark.parametrize("opset", [14, 15, 20])
def test_batch_normalization_in_training_normalises_by_the_batch(opset):
    constants = [weights(name, 3) for name in ("scale", "bias", "mean", "variance")]
    node = helper.make_node(
        "BatchNormalization",
        ["x", "scale", "bias", "mean", "variance"],
        ["y", "next_mean", "next_variance"],
        epsilon=0.25,
        momentum=0.75,
        training_mode=1,
    )
    x = input_array(*INPUT_SHAPE).astype(np.float64)
    scale, bias, mean, variance = map(array, constants)
    of_batch = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    centred = x - of_batch[0].reshape(-1, 1, 1)
    factor = (scale / np.sqrt(of_batch[1] + 0.25)).reshape(-1, 1, 1)
    got = result_of(node, *constants, opset=opset, x=x)
    np.testing.assert_allclose(got[0], centred * factor + bias.reshape(-1, 1, 1), **TOLERANCES)
    np.testing.assert_allclose(got[1], 0.75 * mean + 0.25 * of_batch[0], **TOLERANCES)
    np.testing.assert_allclose(got[2], 0.75 * variance + 0.25 * of_batch[1], **TOLERANCES)


@pytest.mark.parametrize(("op", "function"), [("Softmax", lambda p: p), ("LogSoftmax", np.log)])
@pytest.mark.parametrize(
    ("opset", "attributes", "shape"),
    [
        (20, {}, (2 * 3 * 9, 8)),
        (20, {"axis": 3}, (2 * 3 * 9, 8)),
        (13, {}, (2 * 3 * 9, 8)),
        (12, {}, (2, 3 * 9 * 8)),
        (11, {"axis": 2}, (2 * 3, 9 * 8)),
        (11, {"axis": -1}, (2 * 3 * 9, 8)),
    ],
    ids=str,
)
def test_softmax_axis_means_what_the_opset_says(op, function, opset, attributes, shape):
    x = input_array(*INPUT_SHAPE).astype(np.float64)
    node = helper.make_node(op, ["x"], ["y"], **attributes)
    expected = function(softmax(x.reshape(shape))).reshape(x.shape)
    np.testing.assert_allclose(result_of(node, opset=opset, x=x)[0], expected, **TOLERANCES)


@pytest.mark.parametrize(
    ("opset", "attributes", "shape"),
    [
        (20, {}, (2 * 3 * 9, 8)),
        (13, {"axis": 3}, (2 * 3 * 9, 8)),
        (12, {}, (2, 3 * 9 * 8)),
        (11, {"axis": 2}, (2 * 3, 9 * 8)),
        (11, {"axis": -1}, (2 * 3 * 9, 8)),
        (7, {"axis": 0}, (1, 2 * 3 * 9 * 8)),
    ],
    ids=str,
)
def test_hardmax_axis_means_what_the_opset_says(opset, attributes, shape):
    # Of equal values, the first counts.
    x = np.round(input_array(*INPUT_SHAPE).astype(np.float64))
    expected = np.zeros(shape)
    expected[np.arange(shape[0]), x.reshape(shape).argmax(axis=1)] = 1
    node = helper.make_node("Hardmax", ["x"], ["y"], **attributes)
    np.testing.assert_array_equal(result_of(node, opset=opset, x=x)[0], expected.reshape(x.shape))


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        {"kernel_shape": [4, 3], "strides": [3, 2], "pads": [1, 0, 0, 2]},
        {"kernel_shape": [2, 3], "strides": [2, 1], "dilations": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 2], "strides": [2, 1], "auto_pad": "SAME_LOWER"},
    ],
    ids=str,
)
def test_lp_pool_equals_onnxruntime_and_is_not_rounded(attributes, p):
    model = make_model([helper.make_node("LpPool", ["x"], ["y"], p=p, **attributes)], [])
    x = input_array(*INPUT_SHAPE)
    reference = evaluate(model, {"x": x})
    # ONNX Runtime has LpPool in float32 only.
    np.testing.assert_allclose(reference.outputs[0], onnx_outputs(model, {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert reference.in_float32 == ()


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pool_with_dilations_and_automatic_padding_is_left_to_onnxruntime_which_has_its_own_shape(op):
    node = helper.make_node(op, ["x"], ["y"], kernel_shape=[3, 2], dilations=[2, 1], auto_pad="SAME_UPPER")
    model = make_model([node], [])
    x = input_array(*INPUT_SHAPE)
    reference = evaluate(model, {"x": x})
    np.testing.assert_array_equal(reference.outputs[0], onnx_outputs(model, {"x": x})[0])
    assert reference.in_float32 == (op,)


def test_operator_that_onnx_decomposes_is_named_itself():
    model = make_model([helper.make_node("MeanVarianceNormalization", ["x"], ["y"])], [])
    reference = evaluate(model, {"x": input_array(*INPUT_SHAPE)})
    assert reference.in_float32 == ("MeanVarianceNormalization",)


@pytest.mark.parametrize("attributes", [{}, {"p": 1}, {"p": 1, "axis": 1}, {"p": 2, "axis": 2}], ids=str)
def test_lp_normalization_divides_by_the_norm_of_magnitudes_and_leaves_zeros(attributes):
    x = input_array(*INPUT_SHAPE).astype(np.float64)
    x[1] = 0
    axis, p = attributes.get("axis", -1), attributes.get("p", 2)
    norm = np.linalg.norm(x, ord=p, axis=axis, keepdims=True)
    node = helper.make_node("LpNormalization", ["x"], ["y"], **attributes)
    expected = np.divide(x, norm, out=np.zeros_like(x), where=norm != 0)
    np.testing.assert_allclose(result_of(node, x=x)[0], expected, **TOLERANCES)


@pytest.mark.parametrize("sizes_are_fed", [False, True])
@pytest.mark.parametrize(
    ("opset", "absent_name", "sizes", "attributes"),
    [
        (11, "none", [2, 3, 5, 16], {}),
        (13, "", [2, 3, 5, 16], {"mode": "linear"}),
        (13, "none", [2, 3, 5, 16], {"mode": "linear"}),
        (17, "none", [2, 3, 5, 16], {"coordinate_transformation_mode": "asymmetric"}),
        (18, "", [2, 3, 5, 16], {"mode": "cubic"}),
        (18, "", [16, 5], {"axes": [3, 2]}),
        (19, "", [2, 3, 5, 16], {"mode": "linear"}),
        (19, "none", [2, 3, 5, 16], {"mode": "linear"}),
        (19, "", [5, 16], {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    ],
    ids=str,
)
def test_resize_to_sizes_is_all_that_float32_computes(opset, absent_name, sizes, attributes, sizes_are_fed):
    """The other two inputs are absent, or tensors without an element."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Resize", ["e", absent_name, absent_name, "sizes"], ["r"], **attributes),
        helper.make_node("Log", ["r"], ["y"]),
    ]
    tensors = [numpy_helper.from_array(np.array([], np.float32), "none")]
    x = input_array(*INPUT_SHAPE)
    inputs = [tensor_info("x", *INPUT_SHAPE)]
    feeds = {"x": x}
    if sizes_are_fed:
        inputs.append(tensor_info("sizes", len(sizes), element_type=TensorProto.INT64))
        feeds["sizes"] = np.array(sizes)
    else:
        tensors.append(numpy_helper.from_array(np.array(sizes), "sizes"))
    model = make_model(nodes, tensors, inputs=inputs)
    model.opset_import[0].version = opset
    reference = evaluate(model, feeds)
    np.testing.assert_allclose(reference.outputs[0], onnx_outputs(model, feeds)[0], rtol=1e-5, atol=1e-5)
    assert reference.outputs[0].dtype == np.float64
    assert reference.in_float32 == ("Resize",)


def optional_of(element_type: int) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(element_type, None)


@pytest.mark.parametrize("holds", ["tensor", "sequence"])
def test_optional_holds_what_it_was_given(holds):
    nodes = f"""
      tensor = Tanh(x)
      sequence = SequenceConstruct(tensor, x)
      o = Optional({holds})
      b = OptionalHasElement(o)
      y = OptionalGetElement(o)"""
    model = text_model(nodes, outputs="o, b, y")
    x = input_array(*INPUT_SHAPE)
    value, has_element, got = evaluate(model, {"x": x}).outputs
    wide = x.astype(np.float64)
    expected = np.tanh(wide) if holds == "tensor" else [np.tanh(wide), wide]
    assert has_element.dtype == bool and has_element
    for values in (value, got):
        assert isinstance(values, list) == (holds == "sequence")
        np.testing.assert_allclose(values, expected, **TOLERANCES)


def test_empty_optional_has_no_element():
    nodes = [
        helper.make_node("Optional", [], ["o"], type=optional_of(TensorProto.FLOAT)),
        helper.make_node("OptionalHasElement", ["o"], ["b"]),
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("o", "b")]
    model = make_model(nodes, [], outputs=outputs)
    feeds = {"x": input_array(*INPUT_SHAPE)}
    reference = evaluate(model, feeds).outputs
    assert reference == [None, np.array(False)] == onnx_outputs(model, feeds)


def test_infinities_and_nan_are_computed_without_a_warning():
    nodes = """
      zero = Constant <value = float {0}> ()
      many = Constant <value = float {10000}> ()
      l = Log(x)
      d = Div(l, zero)
      m = Mul(x, many)
      e = Exp(m)
      y = Add(d, e)"""
    with warnings.catch_warnings(record=True) as raised_warnings:
        warnings.simplefilter("always")
        reference = evaluate(text_model(nodes), {"x": input_array(*INPUT_SHAPE)})
    assert raised_warnings == []
    assert reference.in_float32 == ()
    assert np.isnan(reference.outputs[0]).any() and np.isinf(reference.outputs[0]).any()


def test_global_max_pool_supports_any_rank():
    for shape in ((2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 4, 5)):
        x = input_array(*shape).astype(np.float64)
        (got,) = result_of(helper.make_node("GlobalMaxPool", ["x"], ["y"]), x=x)
        assert got.shape == (2, 3, *(1,) * (len(shape) - 2))
        np.testing.assert_array_equal(got.ravel(), x.reshape(6, -1).max(axis=1))


def test_erf_is_not_rounded_to_float32():
    x = np.linspace(-2, 2, 11)
    (got,) = result_of(helper.make_node("Erf", ["x"], ["y"]), x=x)
    np.testing.assert_allclose(got, [math.erf(value) for value in x], **TOLERANCES)


def test_gelu_is_not_rounded_to_float32():
    x = np.linspace(-3, 3, 13)
    (exact,) = result_of(helper.make_node("Gelu", ["x"], ["y"]), x=x)
    np.testing.assert_allclose(exact, [value * 0.5 * math.erfc(-value / 2**0.5) for value in x], **TOLERANCES)
    (approximate,) = result_of(helper.make_node("Gelu", ["x"], ["y"], approximate="tanh"), x=x)
    inner = [math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)) for value in x]
    np.testing.assert_allclose(
        approximate, [0.5 * v * (1 + t) for v, t in zip(x, inner, strict=True)], **TOLERANCES
    )
    # The approximation is within 5e-4 of the function, but not equal to it.
    assert 1e-5 < np.abs(approximate - exact).max() < 5e-4


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_cast_to_a_narrow_type_stays_in_float64(kind):
    nodes = f"""
      three = Constant <value_float = 3.0> ()
      wide_three = CastLike(three, x)
      third = Div(x, wide_three)
      y = Cast <to = {kind}> (third)"""
    model = text_model(nodes)
    x = np.ones(INPUT_SHAPE, np.float32)
    (got,) = evaluate(model, {"x": x}).outputs
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, 1 / 3, **TOLERANCES)


def test_weights_constants_and_types_are_widened_and_the_model_stays_as_it_is():
    half = numpy_helper.from_array(np.array([0.1], np.float16), "half")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32([0.5]))),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Sum", ["x", "half", "c", "zeros"], ["y"]),
    ]
    model = make_model(nodes, [half, numpy_helper.from_array(np.array([1], np.int64), "shape")])
    before = model.SerializeToString(deterministic=True)
    (got,) = evaluate(model, {"x": np.zeros(INPUT_SHAPE, np.float32)}).outputs
    assert model.SerializeToString(deterministic=True) == before
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, float(np.float16(0.1)) + 0.5, **TOLERANCES)


@pytest.mark.parametrize("condition", [True, False])
def test_conv_in_a_branch_is_computed_in_float64(condition):
    w1, w2 = weights("w1", 2, 3, 3, 3), weights("w2", 2, 3, 3, 3)
    nodes = f"""
      y = If <
        then_branch = yes () => ({ANY} yes_y) {{ yes_y = Conv(x, w1) }},
        else_branch = no () => ({ANY} no_y) {{ no_y = Conv(x, w2) }}
      > (flag)"""
    model = text_model(nodes, w1, w2, inputs=f"{IMAGE} x, bool flag")
    x = input_array(*INPUT_SHAPE)
    (got,) = evaluate(model, {"x": x, "flag": np.array(condition)}).outputs
    np.testing.assert_allclose(got, convolve(x, array(w1 if condition else w2)), **TOLERANCES)


def test_conv_in_a_function_is_computed_in_float64():
    function = '<domain: "local", opset_import: ["": 20]> Block (a, w) => (b) { b = Conv(a, w) }'
    w = weights("w", 2, 3, 3, 3)
    model = text_model("y = local.Block(x, w)", w, functions=function)
    x = input_array(*INPUT_SHAPE)
    np.testing.assert_allclose(evaluate(model, {"x": x}).outputs[0], convolve(x, array(w)), **TOLERANCES)


def test_operator_without_a_float64_form_is_computed_in_float32_and_named():
    nodes = "g = com.microsoft.QuickGelu <alpha = 1.0> (x)  y = Tanh(g)"
    x = input_array(*INPUT_SHAPE)
    got = evaluate(text_model(nodes, domains="com.microsoft"), {"x": x})
    wide = x.astype(np.float64)
    # QuickGelu rounds to float32, whose steps are 1.2e-7.
    np.testing.assert_allclose(got.outputs[0], np.tanh(wide / (1 + np.exp(-wide))), rtol=1e-5, atol=1e-6)
    assert got.outputs[0].dtype == np.float64
    assert got.in_float32 == ("com.microsoft.QuickGelu",)


def test_model_that_nothing_can_evaluate_is_refused_in_one_line():
    model = text_model("y = nowhere.Mystery(x)", domains="nowhere")
    with refused("Mystery"):
        evaluate(model, {"x": input_array(*INPUT_SHAPE)})


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("indices", [False, True])
def test_max_pool_of_whole_numbers_keeps_their_type(kind, indices):
    limits = np.iinfo(kind)
    x = np.random.default_rng(0).integers(limits.min, limits.max, (1, 2, 5, 5)).astype(kind)
    # A pool window of only the smallest value, with padding that must not exceed it.
    x[0, 0, :2, :2] = limits.min
    names = ["y", "indices"] if indices else ["y"]
    node = helper.make_node("MaxPool", ["x"], names, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    model = make_model(
        [node],
        [],
        inputs=[helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        outputs=[onnx.ValueInfoProto(name=name) for name in names],
    )
    expected = onnx_outputs(model, {"x": x})
    got = evaluate(model, {"x": x}).outputs
    assert got[0].dtype == kind
    np.testing.assert_array_equal(got[0], expected[0])
    if indices:
        # Compares the values at the indices, because equal values have several valid indices.
        np.testing.assert_array_equal(x.reshape(-1)[got[1]], expected[0])


@pytest.mark.parametrize("opset", [13, 17, 19, 21])
def test_quantised_pooling_is_evaluated_at_every_opset(opset):
    nodes = """
      scale = Constant <value = float {0.25}> ()
      zero = Constant <value = uint8 {128}> ()
      q = QuantizeLinear(x, scale, zero)
      p = MaxPool <kernel_shape = [2, 2]> (q)
      y = DequantizeLinear(p, scale, zero)"""
    x = input_array(*INPUT_SHAPE)
    model = text_model(nodes, opset=opset)
    rounded = np.clip(np.rint(x.astype(np.float64) / 0.25), -128, 127) * 0.25
    # Multiples of a quarter are exact in float32 too.
    np.testing.assert_array_equal(
        evaluate(model, {"x": x}).outputs[0], pool(rounded, (2, 2), (1, 1), ceil=False)
    )


def test_loop_without_a_condition_runs_as_often_as_its_trip_count():
    nodes = f"""
      trips = Constant <value = int64 {{3}}> ()
      y = Loop <
        body = body (int64 count, bool going, {IMAGE} a_in) => (bool still, {IMAGE} a_out) {{
          still = Identity(going)
          a_out = Add(a_in, a_in)
        }}
      > (trips, , x)"""
    x = input_array(*INPUT_SHAPE)
    np.testing.assert_array_equal(evaluate(text_model(nodes), {"x": x}).outputs[0], 8 * x.astype(np.float64))
