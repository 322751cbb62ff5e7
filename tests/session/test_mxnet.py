"""MXNet checkpoints become models that compute the same; damaged files are refused in one line."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.errors import ConvswapError
from convswap.export import read_mxnet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops import at_most_loops
from mxnet_files import (
    ELEMENT_TYPES,
    LAYOUTS,
    SymbolWriter,
    array_bytes,
    course_arrays,
    course_symbol,
    params_bytes,
    write_checkpoint,
)
from numpy_forward import convolve, dense, pool, softmax
from refused import refused

# float32 sums of at most a few hundred products of numbers near 1.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def run(model, images):
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    chunks = [images[start : start + 500] for start in range(0, len(images), 500)]
    return np.concatenate([session.run(None, {"image": chunk})[0] for chunk in chunks])


def images(size, count=3, channels=1):
    return np.random.default_rng(size).normal(size=(count, channels, size, size)).astype(np.float32)


def course_forward(arrays, x):
    value = np.tanh(convolve(x, arrays["conv0_weight"]))
    return softmax(dense(pool(value, (2, 2), (2, 2)), arrays["fc0_weight"], arrays["fc0_bias"]))


@pytest.fixture
def course_checkpoint(tmp_path):
    return write_checkpoint(tmp_path, course_symbol(), course_arrays())


def read_single(tmp_path, operator, size, arrays=None, channels=1, **attributes):
    """Read a network of one operator and return its model."""
    symbol = SymbolWriter().add(operator, "node", list(arrays or {}), **attributes)
    return read_mxnet(*write_checkpoint(tmp_path, symbol, arrays or {}), size, channels)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_every_layout_and_element_type_gives_the_same_network(tmp_path, layout, dtype):
    arrays = course_arrays(dtype)
    model = read_mxnet(*write_checkpoint(tmp_path, course_symbol(), arrays, layout=layout), 12)
    x = images(12)
    np.testing.assert_allclose(run(model, x), course_forward(arrays, x), **TOLERANCE)


@pytest.mark.parametrize("key", ["attrs", "attr", "param"])
@pytest.mark.parametrize("convolution", ["New", "Convolution"])
def test_every_name_for_attributes_and_convolution_is_read(tmp_path, key, convolution):
    arrays = course_arrays()
    model = read_mxnet(*write_checkpoint(tmp_path, course_symbol(key, convolution), arrays), 12)
    x = images(12)
    np.testing.assert_allclose(run(model, x), course_forward(arrays, x), **TOLERANCE)


@pytest.mark.parametrize("prefix", ["arg:", "aux:", ""])
def test_names_are_read_with_and_without_a_prefix(tmp_path, prefix):
    arrays = course_arrays()
    model = read_mxnet(*write_checkpoint(tmp_path, course_symbol(), arrays, prefix=prefix), 12)
    np.testing.assert_allclose(run(model, images(12)), course_forward(arrays, images(12)), **TOLERANCE)


def test_references_of_two_numbers_are_read(tmp_path):
    symbol = course_symbol()
    for node in symbol.nodes:
        node["inputs"] = [reference[:2] for reference in node["inputs"]]
    model = read_mxnet(*write_checkpoint(tmp_path, symbol, course_arrays()), 12)
    np.testing.assert_allclose(
        run(model, images(12)), course_forward(course_arrays(), images(12)), **TOLERANCE
    )


def test_a_checkpoint_keeps_node_names_and_states_its_versions(course_checkpoint):
    model = read_mxnet(*course_checkpoint, 12)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (9, 20)
    assert [node.name for node in model.graph.node] == ["conv0", "act0", "pool0", "flat0", "fc0", "softmax"]
    assert {entry.key: entry.value for entry in model.metadata_props} == {
        "convswap.network": "net",
        "convswap.dataset": "fashion-mnist",
        "convswap.weights": "MXNet checkpoint net-0001.params",
    }
    (image,), (output,) = model.graph.input, model.graph.output
    assert (image.name, output.name) == ("image", "probabilities")
    dimensions = image.type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in dimensions] == ["batch", 1, 12, 12]
    assert len(model.graph.value_info) == 5


@pytest.mark.parametrize(
    "attributes",
    [
        {"no_bias": True},
        {"no_bias": False},
        {"stride": (2, 3), "pad": (1, 2), "no_bias": "1"},
        {"dilate": (2, 1), "pad": "[2, 0]"},
        {"num_group": 2, "stride": (1, 2), "layout": "NCHW"},
    ],
)
def test_convolution_attributes_mean_what_they_mean_in_mxnet(tmp_path, attributes):
    random = np.random.default_rng(1)
    groups = attributes.get("num_group", 1)
    arrays = {"w": random.normal(size=(6, 4 // groups, 3, 2)).astype(np.float32)}
    if attributes.get("no_bias") not in (True, "1"):
        arrays["b"] = random.normal(size=6).astype(np.float32)
    model = read_single(tmp_path, "Convolution", 11, arrays, 4, kernel=(3, 2), num_filter=6, **attributes)
    pad = (2, 0) if attributes.get("pad") == "[2, 0]" else attributes.get("pad", (0, 0))
    x = images(11, channels=4)
    expected = convolve(
        x,
        arrays["w"],
        arrays.get("b"),
        stride=attributes.get("stride", (1, 1)),
        dilate=attributes.get("dilate", (1, 1)),
        pad=pad,
        groups=groups,
    )
    np.testing.assert_allclose(run(model, x), expected, **TOLERANCE)


@pytest.mark.parametrize("size", [12, 13, 14, 15])
@pytest.mark.parametrize("convention", ["valid", "full"])
@pytest.mark.parametrize(("kernel", "stride", "pad"), [((4, 4), (4, 4), (0, 0)), ((3, 2), (2, 1), (1, 1))])
def test_max_pooling_rounds_as_its_convention_says(tmp_path, size, convention, kernel, stride, pad):
    attributes = {"kernel": kernel, "stride": stride, "pad": pad, "pooling_convention": convention}
    model = read_single(tmp_path, "Pooling", size, pool_type="max", **attributes)
    expected = pool(images(size), kernel, stride, pad, ceil=convention == "full")
    np.testing.assert_array_equal(run(model, images(size)), expected)


def test_pooling_without_a_stride_moves_by_one(tmp_path):
    model = read_single(tmp_path, "Pooling", 7, kernel=(2, 2), pool_type="max")
    np.testing.assert_array_equal(run(model, images(7)), pool(images(7), (2, 2), (1, 1)))


def test_average_pooling_counts_the_padding_as_zeros(tmp_path):
    model = read_single(tmp_path, "Pooling", 7, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg")
    expected = pool(images(7).astype(np.float64), (3, 3), (2, 2), (1, 1), reduce=np.mean, outside=0.0)
    np.testing.assert_allclose(run(model, images(7)), expected, **TOLERANCE)


@pytest.mark.parametrize(("pool_type", "reduce"), [("max", np.max), ("avg", np.mean)])
def test_global_pooling_covers_the_image(tmp_path, pool_type, reduce):
    model = read_single(tmp_path, "Pooling", 6, kernel=(2, 2), pool_type=pool_type, global_pool=True)
    expected = reduce(images(6), axis=(2, 3), keepdims=True)
    np.testing.assert_allclose(run(model, images(6)), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("act_type", "function"),
    [
        ("relu", lambda x: np.maximum(x, 0)),
        ("tanh", np.tanh),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("softrelu", lambda x: np.log1p(np.exp(x))),
        ("softsign", lambda x: x / (1 + np.abs(x))),
    ],
)
def test_activations_are_the_functions_of_their_names(tmp_path, act_type, function):
    model = read_single(tmp_path, "Activation", 5, act_type=act_type)
    np.testing.assert_allclose(run(model, images(5)), function(images(5).astype(np.float64)), **TOLERANCE)


@pytest.mark.parametrize("no_bias", [True, False])
@pytest.mark.parametrize("flatten", [True, False])
def test_fully_connected_flattens_by_default(tmp_path, no_bias, flatten):
    random = np.random.default_rng(2)
    arrays = {"w": random.normal(size=(5, 36 if flatten else 6)).astype(np.float32)}
    if not no_bias:
        arrays["b"] = random.normal(size=5).astype(np.float32)
    model = read_single(tmp_path, "FullyConnected", 6, arrays, num_hidden=5, no_bias=no_bias, flatten=flatten)
    x = images(6).astype(np.float64)
    expected = (x.reshape(3, 36) if flatten else x) @ arrays["w"].T + arrays.get("b", 0)
    np.testing.assert_allclose(run(model, images(6)), expected, **TOLERANCE)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("(0, -1)", (32,)),
        ("(-1, 32)", (32,)),
        ("(0, 4, -1)", (4, 8)),
        ("(0, 0, -3)", (2, 16)),
        ("(0, -2)", (2, 4, 4)),
        ("(0, 2, -1, 2)", (2, 8, 2)),
    ],
)
def test_reshape_understands_the_codes_of_mxnet(tmp_path, shape, expected):
    model = read_single(tmp_path, "Reshape", 4, channels=2, shape=shape)
    x = images(4, channels=2)
    np.testing.assert_array_equal(run(model, x), x.reshape(3, *expected))


def message_of(*arguments):
    with refused() as caught:
        read_mxnet(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(("size", "advice"), [(48, "--image-size 12 fits"), (2, "--image-size 12 fits")])
def test_a_wrong_image_size_is_refused_with_the_one_that_fits(course_checkpoint, size, advice):
    assert advice in message_of(*course_checkpoint, size)


def test_an_array_of_another_network_is_named_with_both_shapes(tmp_path):
    arrays = course_arrays() | {"conv0_weight": np.zeros((4, 1, 5, 5), np.float32)}
    message = message_of(*write_checkpoint(tmp_path, course_symbol(), arrays), 12)
    assert "array 'conv0_weight'" in message
    assert "4x1x5x5" in message and "4x1x3x3" in message
    assert "no image size up to 512 fits" in message


def test_a_size_for_a_long_network_is_not_looked_for_without_end(tmp_path):
    symbol = SymbolWriter()
    for place in range(4_990):
        symbol.add("Reshape", f"reshape{place}", shape="(0, -1, 1, 1)")
    symbol.add("FullyConnected", "fc", ["w"], num_hidden=3, no_bias=True)
    files = write_checkpoint(tmp_path, symbol, {"w": np.zeros((3, 7), np.float32)})
    # The search takes about 70 loops; up to size 512 it would take 15 times as many.
    with at_most_loops(350):
        assert "no image size up to 40 fits" in message_of(*files, 28)


def test_an_attribute_longer_than_any_shape_is_refused(tmp_path):
    symbol = SymbolWriter().add("Reshape", "node", shape=f"(0, {'1, ' * 1_000})")
    assert "3005 characters as shape" in message_of(*write_checkpoint(tmp_path, symbol, {}), 4)


def test_names_of_arrays_are_shown_in_printable_characters(tmp_path):
    arrays = {"two\nlines": np.zeros(3, np.float32), "red\x1b[31m": np.zeros(3, np.float32)}
    message = message_of(*write_checkpoint(tmp_path, course_symbol(), arrays), 12)
    assert r"it has: 'red\x1b[31m', 'two\nlines'" in message


@pytest.mark.parametrize("size", [0, -1, 100_000])
def test_an_image_size_out_of_range_is_refused(course_checkpoint, size):
    assert f"image size {size} is out of range" in message_of(*course_checkpoint, size)


def test_an_array_in_the_place_of_the_image_is_refused(tmp_path):
    arrays = course_arrays() | {"data": np.zeros(3, np.float32)}
    message = message_of(*write_checkpoint(tmp_path, course_symbol(), arrays), 12)
    assert "has the array 'data' as its first input; expected the image" in message


def test_a_missing_array_is_named_with_those_that_are_there(tmp_path):
    arrays = course_arrays()
    del arrays["fc0_weight"]
    message = message_of(*write_checkpoint(tmp_path, course_symbol(), arrays), 12)
    assert "no array 'fc0_weight', which node 'fc0' takes; it has: conv0_weight, fc0_bias" in message


def test_an_unknown_op_is_refused_with_those_that_are_known(tmp_path):
    symbol = course_symbol().add("Deconvolution", "up0")
    message = message_of(*write_checkpoint(tmp_path, symbol, course_arrays()), 12)
    assert "node 'up0'" in message and "unknown op 'Deconvolution'" in message and "Convolution" in message


def test_missing_files_folders_and_pipes_are_refused(tmp_path, course_checkpoint):
    symbol, params = course_checkpoint
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for wrong, word in (
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a directory"),
        (pipe, "not a regular"),
    ):
        assert word in message_of(wrong, params, 12)
        assert word in message_of(symbol, wrong, 12)


def test_swapped_files_are_refused(course_checkpoint):
    symbol, params = course_checkpoint
    assert "is not an MXNet symbol" in message_of(params, params, 12)
    assert "is not an MXNet .params file: it begins with" in message_of(symbol, symbol, 12)


def test_a_cut_off_file_is_refused_wherever_it_was_cut(course_checkpoint):
    symbol, params = course_checkpoint
    content = params.read_bytes()
    lengths = {0, 1, 7, 8, 23, 24, 27, len(content) - 1} | {len(content) * part // 50 for part in range(50)}
    for length in sorted(lengths):
        params.write_bytes(content[:length])
        message = message_of(symbol, params, 12)
        assert "is cut off or damaged" in message and "at byte" in message
        offset = int(message.split("at byte ")[1].split()[0])
        assert offset <= length


def test_a_longer_file_is_refused(course_checkpoint):
    symbol, params = course_checkpoint
    params.write_bytes(params.read_bytes() + b"\0")
    assert "goes on for 1 bytes after its last name" in message_of(symbol, params, 12)


def with_numbers(content, offset, layout, *numbers):
    return content[:offset] + struct.pack(layout, *numbers) + content[offset + struct.calcsize(layout) :]


@pytest.mark.parametrize(
    ("offset", "layout", "number", "expected"),
    [
        (0, "<Q", 0x113, "it begins with 0x113, expected 0x112"),
        (16, "<Q", 2**63, "damaged"),
        (24, "<I", 0xF993FACA, "0xf993faca where array 1 begins"),
        (28, "<i", 1, "storage type 1"),
        (32, "<I", 2**31, "2147483648 dimensions"),
        (36, "<q", 2**62, "the data of array 1 at byte 56"),
        (36, "<q", -10, "the shape (-10,)"),
        (52, "<i", 77, "element type 77"),
    ],
)
def test_damaged_numbers_are_refused_before_anything_is_allocated(
    course_checkpoint, offset, layout, number, expected
):
    symbol, params = course_checkpoint
    params.write_bytes(with_numbers(params.read_bytes(), offset, layout, number))
    assert expected in message_of(symbol, params, 12)


def test_names_that_are_no_text_twice_or_too_few_are_refused(tmp_path):
    symbol, params = write_checkpoint(tmp_path, course_symbol(), course_arrays())
    content = params.read_bytes()
    params.write_bytes(content.replace(b"arg:fc0_bias", b"arg:fc0_\xff\xfe\xfd\xfc"))
    assert "expected text in UTF-8" in message_of(symbol, params, 12)
    params.write_bytes(
        content.replace(b"arg:fc0_weight", b"arg:fc0_bias\0\0").replace(b"fc0_bias\0\0", b"fc0_bias..")
    )
    assert "no array 'fc0_weight'" in message_of(symbol, params, 12)
    first = array_bytes(np.zeros(3, np.float32))
    head, name = struct.pack("<QQQ", 0x112, 0, 2), struct.pack("<Q", 5) + b"arg:a"
    params.write_bytes(head + first + first + struct.pack("<Q", 2) + name + name)
    assert "two arrays named 'a'" in message_of(symbol, params, 12)
    params.write_bytes(head + first + first + struct.pack("<Q", 1) + name)
    assert "1 names, expected 2" in message_of(symbol, params, 12)


def test_values_beyond_float32_are_refused(tmp_path):
    arrays = course_arrays("float64") | {"fc0_bias": np.full(10, 1e300)}
    assert "beyond the range of float32" in message_of(
        *write_checkpoint(tmp_path, course_symbol(), arrays), 12
    )


def changed(change):
    """Return the document of the course's symbol after `change` has altered it."""
    document = course_symbol().document()
    change(document)
    return document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("[1, 2]", "expected a JSON object with a list of nodes"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("1" * 10_000, "is not an MXNet symbol"),
        (json.dumps({"nodes": [{}] * 5_001}), "has 5001 nodes; expected at most 5000"),
        ("{}", "expected a JSON object with a list of nodes"),
        ('{"nodes": []}', "expected a JSON object with a list of nodes"),
        (changed(lambda d: d["nodes"].__setitem__(0, 7)), "node 0"),
        (changed(lambda d: d["nodes"][0].pop("op")), "None as its op"),
        (changed(lambda d: d["nodes"][0].update(name="a\nb")), "as its name"),
        (changed(lambda d: d["nodes"][0].update(name="\ud800")), "as its name"),
        (changed(lambda d: d["nodes"][2].update(attrs=[1])), "expected names and values"),
        (changed(lambda d: d["nodes"][1].update(name="data")), "two nodes named 'data'"),
        (changed(lambda d: d["nodes"][3].update(inputs=[[3, 0, 0]])), "is node 3; expected one from 0 to 2"),
        (changed(lambda d: d["nodes"][3].update(inputs=[[9, 0, 0]])), "is node 9; expected one from 0 to 2"),
        (changed(lambda d: d["nodes"][3].update(inputs=[[-1, 0, 0]])), "is node -1"),
        (changed(lambda d: d["nodes"][3].update(inputs=[[2, 1, 0]])), "is output 1 of node 2"),
        (changed(lambda d: d["nodes"][3].update(inputs=[["2", 0, 0]])), "expected [node, output, version]"),
        (changed(lambda d: d["nodes"][3].update(inputs=[[True, 0, 0]])), "expected [node, output, version]"),
        (changed(lambda d: d["nodes"][3].update(inputs=[])), "has the inputs none"),
        (
            changed(lambda d: d["nodes"][2].update(inputs=[[0, 0, 0]])),
            "has 0 arrays among its inputs; expected 1",
        ),
        (changed(lambda d: d.update(heads=[])), "has 0 heads"),
        (changed(lambda d: d.update(heads=[[99, 0, 0]])), "the head"),
        (changed(lambda d: d.update(heads=[[0, 0, 0]])), "is the input 'data'; expected an operator"),
        (changed(lambda d: d["nodes"][2]["attrs"].pop("kernel")), "has no kernel"),
        (changed(lambda d: d["nodes"][2]["attrs"].update(kernel="(3,)")), "expected 2 whole numbers"),
        (changed(lambda d: d["nodes"][2]["attrs"].update(kernel="(3, x)")), "expected 2 whole numbers"),
        (changed(lambda d: d["nodes"][2]["attrs"].update(kernel="(0, 3)")), "expected numbers from 1"),
        (
            changed(lambda d: d["nodes"][2]["attrs"].update(stride="(1, 9999999999)")),
            "expected numbers from 1",
        ),
        (changed(lambda d: d["nodes"][2]["attrs"].update(kernel="9" * 99)), "expected 2 whole numbers"),
        (changed(lambda d: d["nodes"][2]["attrs"].update(num_group="3")), "a number that divides both"),
        (changed(lambda d: d["nodes"][3]["attrs"].update(act_type="gelu")), "expected one of relu, tanh"),
        (changed(lambda d: d["nodes"][4]["attrs"].update(pool_type="sum")), "expected one of max, avg"),
        (changed(lambda d: d["nodes"][4]["attrs"].update(global_pool="maybe")), "expected True or False"),
        (changed(lambda d: d["nodes"][4]["attrs"].update(pad="(2, 2)")), "a pad smaller than the kernel"),
    ],
)
def test_a_file_that_is_no_symbol_is_refused_in_one_line(course_checkpoint, document, expected):
    symbol, params = course_checkpoint
    symbol.write_text(document if isinstance(document, str) else json.dumps(document))
    assert expected in message_of(symbol, params, 12)


def test_pooling_that_onnx_does_not_have_is_refused(tmp_path):
    with pytest.raises(ConvswapError, match="expected 'valid', or a max-pool"):
        read_single(
            tmp_path, "Pooling", 7, kernel=(2, 2), stride=(2, 2), pool_type="avg", pooling_convention="full"
        )
    with pytest.raises(ConvswapError, match="expected 'valid', or a max-pool"):
        read_single(
            tmp_path, "Pooling", 6, kernel=(2, 2), stride=(5, 5), pad=(1, 1), pooling_convention="full"
        )


@pytest.mark.parametrize(
    "shape", ["(7, -1)", "(0, 5)", "(0, -1, -1)", "(0, -4, 1, 2)", "(0, 0, 0, 0, 0)", "(0,)"]
)
def test_a_reshape_that_moves_the_batch_or_loses_elements_is_refused(tmp_path, shape):
    with pytest.raises(ConvswapError, match="expected a shape that keeps the batch first"):
        read_single(tmp_path, "Reshape", 4, shape=shape)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_altered_bytes_give_a_model_or_one_line(tmp_path, data):
    symbol, params = tmp_path / "net-symbol.json", tmp_path / "net-0001.params"
    contents = [
        json.dumps(course_symbol().document()).encode(),
        params_bytes(course_arrays(), data.draw(st.sampled_from(LAYOUTS))),
    ]
    which = data.draw(st.integers(0, 1))
    altered = bytearray(contents[which])
    for _ in range(data.draw(st.integers(1, 3))):
        altered[data.draw(st.integers(0, len(altered) - 1))] = data.draw(st.integers(0, 255))
    contents[which] = bytes(altered)
    symbol.write_bytes(contents[0])
    params.write_bytes(contents[1])
    try:
        model = read_mxnet(symbol, params, 12)
    except ConvswapError as error:
        assert "\n" not in str(error)
    else:
        onnx.checker.check_model(model, full_check=True)
