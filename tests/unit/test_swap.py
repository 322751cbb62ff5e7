"""Properties of swapped models."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import swap_models as models
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.graph import model_file
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import FLOAT16_ON_CPU, swap
from fused_conv_reference import all_nodes
from loops import at_most_loops
from onnx import TensorProto, helper, numpy_helper
from refused import refused
from verdict_models import float16_overflow


def node_named(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    (matching,) = [node for node in all_nodes(proto.graph) if node.name == name]
    return matching


def attributes(node: onnx.NodeProto) -> dict:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def reasons(result) -> dict[str, str]:
    return {left.node: left.reason for left in result.not_swapped}


# The op itself


def test_conv_becomes_the_librarys_op_and_keeps_everything_else():
    original = models.two_convs()
    result = swap(original)
    proto = result.to_proto()
    assert result.swapped == ("conv1", "conv2")
    assert result.not_swapped == ()
    before, after = node_named(original, "conv1"), node_named(proto, "conv1")
    assert (after.domain, after.op_type) == ("convswap", "Conv")
    assert attributes(after) == attributes(before)
    assert list(after.input) == list(before.input) and list(after.output) == list(before.output)
    assert after.doc_string == "the first"
    assert [(entry.key, entry.value) for entry in after.metadata_props] == [("origin", "layer 1")]
    assert [node.name for node in proto.graph.node] == ["conv1", "relu", "conv2"]


def test_model_keeps_its_metadata_and_gains_one_opset_import():
    original = models.two_convs()
    proto = swap(original).to_proto()
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": models.OPSET, "convswap": 1}
    assert proto.ir_version == original.ir_version
    assert proto.producer_name == "tests"
    assert {entry.key: entry.value for entry in proto.metadata_props} == {"owner": "the tests"}
    assert list(proto.graph.input) == list(original.graph.input)
    assert list(proto.graph.output) == list(original.graph.output)
    assert original.graph.value_info[0] in proto.graph.value_info
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for tensor in original.graph.initializer:
        np.testing.assert_array_equal(tensors[tensor.name], numpy_helper.to_array(tensor))


def test_result_passes_the_onnx_checker():
    for make in (
        models.two_convs,
        models.conv_in_if,
        models.conv_in_loop,
        models.conv_in_nested_functions,
        models.weights_in_a_function,
    ):
        onnx.checker.check_model(swap(make()).to_proto())


def test_trailing_empty_bias_is_dropped():
    node = node_named(swap(models.empty_bias()).to_proto(), "conv")
    assert list(node.input) == ["x", "w"]


def test_default_algorithm_and_precision_write_no_attribute():
    assert attributes(node_named(swap(models.empty_bias()).to_proto(), "conv")) == {}


def test_precision_is_written_to_every_swapped_node():
    proto = swap(models.two_convs(), precision="ieee").to_proto()
    assert all(attributes(node_named(proto, name))["precision"] == b"ieee" for name in ("conv1", "conv2"))


def test_algorithm_is_written_to_every_swapped_node():
    proto = swap(models.two_convs(), algorithm="reference").to_proto()
    assert all(
        attributes(node_named(proto, name))["algorithm"] == b"reference" for name in ("conv1", "conv2")
    )


def test_unknown_algorithm_names_the_nearest():
    with refused("unknown algorithm 'referense'; did you mean 'reference'"):
        swap(models.two_convs(), algorithm="referense")


def test_unknown_precision_names_the_known_ones():
    with refused("unknown precision 'tf3'; did you mean 'tf32'"):
        swap(models.two_convs(), precision="tf3")


def test_domain_spelled_ai_onnx_is_the_onnx_domain():
    original = models.empty_bias()
    original.graph.node[0].domain = "ai.onnx"
    assert swap(original).swapped == ("conv",)


def test_unnamed_convs_get_unique_names_from_their_outputs():
    result = swap(models.unnamed_convs())
    assert result.swapped == ("Conv_h_2", "Conv_g")
    assert [node.name for node in result.to_proto().graph.node] == ["Conv_h_2", "Conv_g", "Conv_h"]


def test_input_objects_are_not_modified():
    for make in (
        models.two_convs,
        models.conv_in_if,
        models.conv_in_nested_functions,
        models.weights_in_a_function,
    ):
        proto = make()
        untouched = proto.SerializeToString(deterministic=True)
        swap(proto, precision="ieee")
        assert proto.SerializeToString(deterministic=True) == untouched
        model = ir.from_proto(make())
        untouched = ir.to_proto(model).SerializeToString(deterministic=True)
        swap(model, precision="ieee")
        assert ir.to_proto(model).SerializeToString(deterministic=True) == untouched


def test_path_proto_and_ir_model_give_the_same_result(tmp_path):
    proto = models.conv_in_nested_functions()
    onnx.save(proto, tmp_path / "m.onnx")
    results = [
        swap(tmp_path / "m.onnx"),
        swap(str(tmp_path / "m.onnx")),
        swap(proto),
        swap(ir.from_proto(proto)),
    ]
    serialised = {result.to_proto().SerializeToString(deterministic=True) for result in results}
    assert len(serialised) == 1
    assert len({result.swapped for result in results}) == 1


# Subgraphs and functions


def test_convs_in_both_branches_of_an_if_are_swapped():
    result = swap(models.conv_in_if())
    assert set(result.swapped) == {"conv_then", "conv_else"}
    for name in ("conv_then", "conv_else"):
        assert node_named(result.to_proto(), name).domain == "convswap"


def test_conv_in_a_loop_body_is_swapped():
    result = swap(models.conv_in_loop())
    assert result.swapped == ("conv_loop",)
    assert node_named(result.to_proto(), "conv_loop").domain == "convswap"


def test_functions_with_a_conv_are_inlined_and_others_stay():
    result = swap(models.conv_in_nested_functions())
    proto = result.to_proto()
    assert [function.name for function in proto.functions] == ["Double"]
    assert len(result.swapped) == 3 and "conv" in result.swapped
    assert len(set(result.swapped)) == 3
    assert not [
        node for node in all_nodes(proto.graph) if node.op_type == "Conv" and node.domain != "convswap"
    ]
    assert result.not_swapped == ()


def test_inlined_names_do_not_meet_those_of_subgraphs():
    proto = swap(models.conv_in_nested_functions()).to_proto()
    main = [output for node in proto.graph.node for output in node.output]
    inner = {output for node in all_nodes(proto.graph) for output in node.output} - set(main)
    assert "h" in inner and "h" not in main
    assert len(main) == len(set(main))


def test_function_that_returns_its_input_leaves_the_graph_inputs_name_alone():
    proto = swap(models.function_that_returns_its_input()).to_proto()
    assert [value.name for value in proto.graph.input] == ["x"]
    onnx.checker.check_model(proto, full_check=False)


def test_call_with_more_outputs_than_its_function_has_is_left_with_the_reason():
    original = models.function_that_returns_its_input()
    original.graph.node[0].output.append("more")
    original.graph.node[1].input[1] = "more"
    with refused("it cannot be inlined: Cannot remove output"):
        swap(original)


def test_function_of_another_opset_is_inlined_where_its_ops_mean_the_same():
    # Relu is the same in opsets 18 and 20, and Conv from 11 to 21.
    result = swap(models.conv_in_nested_functions(opset=18))
    assert len(result.swapped) == 3
    assert {entry.domain: entry.version for entry in result.to_proto().opset_import}[""] == models.OPSET


def test_function_of_an_opset_with_another_meaning_stays_with_the_reason():
    original = models.conv_in_nested_functions()
    # Relu-13 and Relu-14 differ.
    for function in original.functions[:2]:
        function.opset_import[0].version = 13
    result = swap(original)
    assert result.swapped == ("conv",)
    # Layer stays too: its ops would have another meaning in Block.
    assert [left.node for left in result.not_swapped] == ["conv"]
    assert "'Block' calls it and stays: its Relu is of opset 13" in result.not_swapped[0].reason
    assert swap(result.model).swapped == ()


def test_version_of_a_functions_own_domain_does_not_keep_it_from_being_inlined():
    original = models.conv_in_nested_functions()
    original.functions[1].opset_import[1].version = 7
    assert len(swap(original).swapped) == 3


@pytest.mark.parametrize(
    ("depth", "reason"),
    [
        (40, "the calls of functions in functions give more than 20000 nodes"),
        # For 2**12 copies of a name the inliner would search for free names for 10 s.
        (12, "functions are called too often"),
    ],
)
def test_functions_whose_calls_multiply_are_left_in_no_time(depth, reason):
    start = time.process_time()
    result = swap(models.functions_that_double(depth, "Conv"))
    assert result.swapped == ("conv",)
    assert reason in result.not_swapped[0].reason
    assert time.process_time() - start < 4


def test_types_are_inferred_through_functions_unless_their_calls_multiply():
    assert swap(models.functions_that_double(8, "Relu")).swapped == ("conv",)
    start = time.process_time()
    with refused("its element type is unknown"):
        swap(models.functions_that_double(40, "Relu"))
    assert time.process_time() - start < 4


def test_nodes_of_one_name_are_renamed_and_the_main_graph_keeps_its_names():
    model = models.conv_in_if()
    model.graph.node.extend(
        [
            helper.make_node("Conv", ["y", "again"], ["z"], name="k"),
            helper.make_node("Relu", ["z"], ["r"], name="k_2"),
        ]
    )
    model.graph.initializer.append(models.weights("again", 4, 4, 1, 1))
    model.graph.output[0].name = "r"
    for name in ("conv_then", "conv_else"):
        node_named(model, name).name = "k"
    result = swap(model)
    assert sorted(result.swapped) == ["k", "k_3", "k_4"]
    assert [node.name for node in result.to_proto().graph.node] == ["choice", "k", "k_2"]
    assert {node.name for node in all_nodes(result.to_proto().graph)} == {"choice", "k", "k_2", "k_3", "k_4"}
    assert swap(model, only="^k$").swapped == ("k",)
    # The caller's model is unchanged, and swapping a swapped model changes nothing.
    assert sum(node.name == "k" for node in all_nodes(model.graph)) == 3
    assert swap(result.to_proto()).to_proto() == result.to_proto()


def test_branches_may_have_weights_of_one_name_and_other_channels():
    model = models.conv_in_if()
    for channels, (attribute) in zip((3, 6), model.graph.node[0].attribute, strict=True):
        graph = attribute.g
        output = graph.output[0].name
        del graph.node[:], graph.initializer[:]
        graph.node.extend(
            [
                helper.make_node("Concat", ["x"] * (channels // 3), ["a"], axis=1),
                helper.make_node("Conv", ["a", "d"], ["b"], group=channels, pads=[1] * 4),
                helper.make_node("Conv", ["b", "f"], [output]),
            ]
        )
        graph.initializer.extend(
            [models.weights("d", channels, 1, 3, 3), models.weights("f", 4, channels, 1, 1)]
        )
    fused = swap(model, fuse=True)
    assert len(fused.fused) == 2
    groups = [
        attributes(node).get("group") for node in all_nodes(ir.to_proto(plain_model(fused.model)).graph)
    ]
    assert [group for group in groups if group not in (None, 1)] == [3, 6]


def test_names_for_many_nodes_without_one_are_found_in_no_time():
    original = models.empty_bias()
    # Without an output name, each node would be called Relu_.
    for _ in range(10_000):
        original.graph.node.add(op_type="Relu", input=["x"], output=[""])
    # Takes some 50 loops; counting up from 2 for each node would take 20 times as long.
    with at_most_loops(200):
        assert swap(original).swapped == ("conv",)


def test_conv_in_a_function_that_nothing_calls_is_left():
    original = models.two_convs()
    unused = models.function(
        "Unused", ["a", "f"], ["c"], [helper.make_node("Conv", ["a", "f"], ["c"], name="in")]
    )
    original.functions.append(unused)
    original.opset_import.append(helper.make_opsetid("local", 1))
    result = swap(original)
    assert result.swapped == ("conv1", "conv2")
    assert "nothing calls it" in reasons(result)["in"]


# Nodes that are left


def test_functions_that_call_each_other_in_a_circle_are_left():
    original = models.conv_in_nested_functions()
    layer = original.functions[0]
    layer.node.add(op_type="Block", domain="local", input=["a", "f"], output=["again"], name="circle")
    result = swap(original)
    assert result.swapped == ("conv",)
    assert [left.node for left in result.not_swapped] == ["conv"]
    assert "cannot be inlined: Cyclic dependency" in result.not_swapped[0].reason


def test_every_unsupported_convolution_is_left_with_a_reason():
    original = models.unsupported_convolutions()
    result = swap(original)
    unsupported = [node.name for node in original.graph.node if node.name not in ("conv", "convert")]
    assert [left.node for left in result.not_swapped] == unsupported
    for left in result.not_swapped:
        assert left.op == left.node and left.reason.startswith(left.op)
    assert "before it was quantised" in reasons(result)["QLinearConv"]
    assert "before it was optimised" in reasons(result)["com.microsoft.FusedConv"]
    untouched = [node for node in original.graph.node if node.name != "conv"]
    assert [node for node in result.to_proto().graph.node if node.name != "conv"] == untouched


def test_conv_of_every_floating_type_is_swapped_even_if_only_inference_finds_it():
    result = swap(models.mixed_types())
    assert result.swapped == ("conv32", "conv16")
    assert result.not_swapped == ()


@pytest.mark.parametrize(
    "element_type", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE]
)
def test_model_of_any_floating_type_is_swapped(element_type):
    result = swap(models.conv_of(element_type, 1, 2, 8, 8, weight_shape=(3, 2, 3, 3)))
    assert result.swapped == ("conv",)


def test_model_of_a_type_that_conv_does_not_have_is_an_error_that_says_so():
    with refused("'conv' is left because its element type is int32;"):
        swap(models.conv_of(TensorProto.INT32, 1, 2, 8, 8, weight_shape=(3, 2, 3, 3)))


def test_conv_of_unknown_element_type_is_left():
    nodes = """
      h = elsewhere.Secret(x)
      f = elsewhere.Secret(x)
      [hidden] g = Conv(h, f)
      h2 = elsewhere.Secret(g)
      [conv] y = Conv(h2, w)"""
    model = models.text_model(nodes, models.weights("w", 4, 3, 3, 3), domains="elsewhere")
    result = swap(model)
    assert result.swapped == ("conv",)
    assert "element type is unknown" in reasons(result)["hidden"]


@pytest.mark.parametrize(("spatial", "kernel"), [((8,), (3,)), ((8, 7), (3, 2)), ((5, 6, 7), (2, 3, 2))])
def test_one_two_and_three_dimensions_are_swapped(spatial, kernel):
    result = swap(models.conv_of(TensorProto.FLOAT, 1, 2, *spatial, weight_shape=(3, 2, *kernel)))
    assert result.swapped == ("conv",)


def test_four_dimensional_data_are_refused_with_the_rank():
    with refused("rank 6; the library computes ranks 3, 4 and 5"):
        swap(models.conv_of(TensorProto.FLOAT, 1, 2, 5, 5, 5, 5, weight_shape=(3, 2, 3, 3, 3, 3)))


def test_dynamic_shapes_are_swapped():
    assert swap(models.conv_of(TensorProto.FLOAT, "n", 2, None, "w", weight_shape=(3, 2, 3, 3))).swapped == (
        "conv",
    )
    unknown_rank = models.conv_of(TensorProto.FLOAT, weight_shape=(3, 2, 3, 3))
    unknown_rank.graph.input[0].type.tensor_type.ClearField("shape")
    assert swap(unknown_rank).swapped == ("conv",)


def test_only_swaps_the_nodes_it_matches():
    result = swap(models.two_convs(), only="2$")
    assert result.swapped == ("conv2",)
    assert reasons(result) == {"conv1": "its name does not match '2$'"}
    assert node_named(result.to_proto(), "conv1").domain == ""


def test_only_that_matches_nothing_is_an_error():
    with refused(r"no Conv that can be swapped.*does not match 'conv9', and 1 more"):
        swap(models.two_convs(), only="conv9")


def test_only_that_is_no_regular_expression_is_an_error():
    with refused(r"'conv\(' is not a regular expression"):
        swap(models.two_convs(), only="conv(")


def test_model_without_a_conv_is_an_error_that_names_it(tmp_path):
    onnx.save(models.no_conv(), tmp_path / "plain.onnx")
    with refused(r"plain\.onnx' has no Conv node"):
        swap(tmp_path / "plain.onnx")


def test_report_is_json_of_what_was_swapped_and_left():
    report = json.loads(json.dumps(swap(models.two_convs(), only="1").report()))
    assert report == {
        "swapped": ["conv1"],
        "left": [{"node": "conv2", "op": "Conv", "reason": "its name does not match '1'"}],
        "fused": [],
        "not_fused": [],
    }


def test_something_else_than_a_model_is_an_error():
    with refused(r"of type ndarray was given; expected a path"):
        swap(np.zeros(3))


# Idempotence


@pytest.mark.parametrize(
    "make",
    [
        models.two_convs,
        models.conv_in_if,
        models.conv_in_loop,
        models.conv_in_nested_functions,
        models.mixed_types,
        models.unsupported_convolutions,
        models.unnamed_convs,
    ],
)
def test_swapping_a_swapped_model_changes_no_byte(make, tmp_path):
    once = swap(make())
    once.save(tmp_path / "once.onnx")
    twice = swap(tmp_path / "once.onnx", precision="ieee")
    twice.save(tmp_path / "twice.onnx")
    assert twice.swapped == ()
    assert twice.not_swapped == once.not_swapped
    assert (tmp_path / "twice.onnx").read_bytes() == (tmp_path / "once.onnx").read_bytes()


# Files


def test_external_data_stay_external_and_byte_equal(tmp_path):
    source = models.save_with_external_data(tmp_path)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "swapped.onnx"
    swap(source).save(target)
    assert sorted(path.name for path in target.parent.iterdir()) == ["swapped.onnx", "swapped.onnx.data"]
    bare = onnx.load(target, load_external_data=False)
    external = {t.name for t in bare.graph.initializer if t.data_location == TensorProto.EXTERNAL}
    assert external == {"w1", "w2"}
    locations = {e.value for t in bare.graph.initializer for e in t.external_data if e.key == "location"}
    assert locations == {"swapped.onnx.data"}
    loaded = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(target).graph.initializer}
    for tensor in models.two_convs().graph.initializer:
        assert loaded[tensor.name].tobytes() == numpy_helper.to_array(tensor).tobytes()


def test_external_tensors_in_attributes_and_functions_are_read_so_that_they_can_move(tmp_path):
    values = np.arange(200, dtype=np.float32)
    (tmp_path / "constant.bin").write_bytes(values.tobytes())
    tensor = TensorProto(
        name="c", data_type=TensorProto.FLOAT, dims=[200], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "constant.bin"), ("offset", "0"), ("length", "800")):
        tensor.external_data.add(key=key, value=value)
    original = models.two_convs()
    original.graph.node.insert(0, helper.make_node("Constant", [], ["c"], name="constant", value=tensor))
    onnx.save(original, tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    swap(tmp_path / "model.onnx").save(tmp_path / "out" / "m.onnx")
    constant = node_named(onnx.load(tmp_path / "out" / "m.onnx"), "constant")
    np.testing.assert_array_equal(numpy_helper.to_array(constant.attribute[0].t), values)


def test_strings_stay_in_the_model_file_when_the_weights_are_external(tmp_path):
    source = models.save_with_external_data(tmp_path)
    labels = helper.make_tensor(
        "labels", TensorProto.STRING, [60], [f"class {i}".encode() for i in range(60)]
    )
    proto = onnx.load(source, load_external_data=False)
    proto.graph.initializer.append(labels)
    source.write_bytes(proto.SerializeToString())
    swap(source).save(tmp_path / "swapped.onnx")
    assert labels in onnx.load(tmp_path / "swapped.onnx").graph.initializer


def test_small_models_stay_in_one_file(tmp_path):
    swap(models.two_convs()).save(tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_weights_beyond_the_protobuf_limit_go_to_a_data_file(tmp_path, monkeypatch):
    monkeypatch.setattr(model_file, "LARGEST_INLINE_BYTES", 500)
    swap(models.two_convs()).save(tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    loaded = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in onnx.load(tmp_path / "m.onnx").graph.initializer
    }
    for tensor in models.two_convs().graph.initializer:
        np.testing.assert_array_equal(loaded[tensor.name], numpy_helper.to_array(tensor))


@pytest.mark.parametrize("link", ["itself", "symlink", "hard link", "other spelling"])
def test_input_file_is_not_overwritten_without_force(tmp_path, link):
    source = tmp_path / "model.onnx"
    onnx.save(models.two_convs(), source)
    before = source.read_bytes()
    target = tmp_path / "target.onnx"
    if link == "itself":
        target = source
    elif link == "symlink":
        target.symlink_to(source)
    elif link == "hard link":
        os.link(source, target)
    else:
        (tmp_path / "folder").mkdir()
        target = tmp_path / "folder" / ".." / "model.onnx"
    result = swap(source)
    with refused("--force"):
        result.save(target)
    assert source.read_bytes() == before
    result.save(target, force=True)
    assert node_named(onnx.load(target), "conv1").domain == "convswap"


def test_data_file_of_the_input_is_not_overwritten_without_force(tmp_path):
    source = models.save_with_external_data(tmp_path, data="out.onnx.data")
    before = (tmp_path / "out.onnx.data").read_bytes()
    result = swap(source)
    with refused(r"out\.onnx\.data' is a file that the model was read from"):
        result.save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.onnx.data"]


def test_forced_overwrite_of_a_model_with_external_data_keeps_the_weights(tmp_path):
    source = models.save_with_external_data(tmp_path, data="model.onnx.data")
    swap(source).save(source, force=True)
    proto = onnx.load(source)
    assert node_named(proto, "conv2").domain == "convswap"
    loaded = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    for tensor in models.two_convs().graph.initializer:
        np.testing.assert_array_equal(loaded[tensor.name], numpy_helper.to_array(tensor))


def test_other_existing_files_are_replaced(tmp_path):
    (tmp_path / "m.onnx").write_text("something old")
    swap(models.two_convs()).save(tmp_path / "m.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"))


def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_text("something old")
    result = swap(models.two_convs())

    def half_write(model, path, **_):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_file.onnx, "save_model", half_write)
    with refused("No space left on device"):
        result.save(tmp_path / "m.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_text() == "something old"


def test_a_link_is_followed_and_stays(tmp_path):
    real, link = tmp_path / "real.onnx", tmp_path / "link.onnx"
    real.write_text("old")
    link.symlink_to(real.name)
    swap(models.two_convs()).save(link)
    assert link.is_symlink()
    assert len(onnx.load(real).graph.node) == len(models.two_convs().graph.node)


def test_a_link_is_replaced_where_weights_must_lie_beside_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(model_file, "LARGEST_INLINE_BYTES", 0)
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real.onnx", tmp_path / "link.onnx"
    real.write_text("old")
    link.symlink_to(real)
    swap(models.two_convs()).save(link)
    assert real.read_text() == "old"
    onnx.checker.check_model(onnx.load(link))


@pytest.mark.parametrize("target", ["", "folder", "absent/m.onnx", "/dev/null"])
def test_target_that_cannot_be_written_is_an_error(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with refused("cannot write"):
        swap(models.two_convs()).save(target)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


# Bad input


def test_missing_file_and_folder_are_errors(tmp_path):
    with refused(r"no such file.*absent\.onnx"):
        swap(tmp_path / "absent.onnx")
    with refused("is a directory; expected the path of an ONNX model"):
        swap(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"this is a text file, and a long one: " * 40,
        b'{"nodes": [], "heads": []}',
        np.random.default_rng(0).bytes(4096),
        bytes(1000),
        b"\x08\x0a",
        b"\x80\x02}q\x00.",
    ],
    ids=["empty", "text", "json", "random", "zeros", "only a version", "pickle"],
)
def test_files_that_are_no_models_are_errors(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with refused(r"model\.onnx' is not a"):
        swap(path)


def test_truncated_model_is_an_error_wherever_it_is_cut(tmp_path):
    # The last field is the opset import, so no truncated file is a valid model.
    content = models.empty_bias().SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with refused("."):
            swap(path)


def test_altered_bytes_give_a_model_or_a_clear_error(tmp_path):
    content = bytearray(models.conv_in_if().SerializeToString())
    random = np.random.default_rng(3)
    path = tmp_path / "model.onnx"
    for _ in range(400):
        altered = bytearray(content)
        for position in random.integers(0, len(content), size=3):
            altered[position] = random.integers(0, 256)
        path.write_bytes(altered)
        try:
            swap(path).save(tmp_path / "out.onnx")
        except ConvswapError as error:
            assert "\n" not in str(error)


def test_model_that_reads_what_nothing_produces_is_one_error_and_no_warning(caplog):
    original = models.two_convs()
    original.graph.node[1].input[0] = "nowhere"
    with refused("node 'relu' reads 'nowhere', which nothing produces"):
        swap(original)
    assert caplog.records == []


def sparse_tensor(name: str, values: list[float], indices: Any, *shape: int) -> onnx.SparseTensorProto:
    index_tensor = numpy_helper.from_array(np.array(indices, np.int64), f"{name}_indices")
    value_tensor = numpy_helper.from_array(np.array(values, np.float32), name)
    return onnx.SparseTensorProto(values=value_tensor, indices=index_tensor, dims=shape)


def with_sparse_bias(sparse: onnx.SparseTensorProto) -> onnx.ModelProto:
    """Return a model with a Conv and an Add of the initializer `sparse`."""
    original = models.make_model(
        [
            helper.make_node("Conv", ["x", "w"], ["h"], name="conv"),
            helper.make_node("Add", ["h", "s"], ["y"]),
        ],
        [models.weights("w", 4, 3, 3, 3)],
    )
    original.graph.sparse_initializer.append(sparse)
    return original


DENSE = np.array([[[[0, 2, 0], [0, 0, -3]]]], np.float32)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 0, 0, 1], [0, 0, 1, 2]]], ids=["linear", "coordinates"])
def test_sparse_initializers_become_dense_ones(indices):
    original = with_sparse_bias(sparse_tensor("s", [2, -3], indices, 1, 1, 2, 3))
    before = original.SerializeToString()
    result = swap(original)
    proto = result.to_proto()
    (dense,) = (tensor for tensor in proto.graph.initializer if tensor.name == "s")
    np.testing.assert_array_equal(numpy_helper.to_array(dense), DENSE)
    assert not proto.graph.sparse_initializer and len(result.swapped) == 1
    assert original.SerializeToString() == before


def test_sparse_tensors_of_subgraphs_functions_and_constants_become_dense():
    sparse = sparse_tensor("s", [2, -3], [1, 5], 1, 1, 2, 3)
    value = models.tensor_info("z", *models.ANY_SHAPE)
    add = helper.make_node("Add", ["x", "s"], ["z"])
    constant = helper.make_node("Constant", [], ["s"], sparse_value=sparse)
    inner = helper.make_graph([add], "inner", [], [value])
    inner.sparse_initializer.append(sparse)
    other = helper.make_graph([constant, add], "other", [], [value])
    choose = helper.make_node("If", ["flag"], ["z"], then_branch=inner, else_branch=other)
    function = helper.make_function(
        "mine", "Choose", ["flag", "x"], ["z"], [choose], [helper.make_opsetid("", models.OPSET)]
    )
    call = helper.make_node("Choose", ["flag", "c"], ["h"], domain="mine")
    outer = helper.make_node("If", ["flag"], ["y"], then_branch=inner, else_branch=other)
    original = models.make_model(
        [helper.make_node("Conv", ["x", "w"], ["c"], name="conv"), call, outer],
        [models.weights("w", 4, 3, 3, 3)],
        inputs=[models.tensor_info("x", *models.INPUT_SHAPE), models.tensor_info("flag", element_type=9)],
        functions=[function],
        domains=["mine"],
    )
    text = str(swap(original).to_proto())
    assert "sparse" not in text and text.count("data_type: 1") == 5


@pytest.mark.parametrize(
    ("sparse", "expected"),
    [
        (sparse_tensor("s", [2, -3], [1, 6], 1, 1, 2, 3), "'s' has indices outside of its shape"),
        (sparse_tensor("s", [2, -3], [-1, 5], 1, 1, 2, 3), "'s' has indices outside of its shape"),
        (sparse_tensor("s", [2], [[0, 0, 2, 0]], 1, 1, 2, 3), "is not a valid ONNX model: invalid entry"),
        (sparse_tensor("s", [2, -3], [1], 1, 1, 2, 3), "has indices of shape [1] for values of shape [2]"),
        (sparse_tensor("s", [2], [1], -1, 3), "the shape of sparse tensor 's' is [-1, 3]"),
        (
            sparse_tensor("s", [2], [1], 2**15, 2**14),
            "'s' of shape [32768, 16384], which is 2.0 GiB as a dense one, and only less than 2 GiB can be",
        ),
    ],
    ids=["outside", "negative", "coordinates outside", "too few indices", "negative shape", "too large"],
)
def test_sparse_initializers_that_cannot_become_dense_are_refused(sparse, expected):
    with refused(re.escape(expected)):
        swap(with_sparse_bias(sparse))


@pytest.mark.parametrize("version", [-1, 2**31, -(2**62)])
def test_opset_versions_that_do_not_fit_32_bits_are_an_error(version):
    original = models.conv_in_nested_functions()
    original.functions[0].opset_import[0].version = version
    with refused(f"imports opset {version} of domain ''"):
        swap(original)


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.int32, np.uint8, np.int64, np.uint32, np.complex64]
)
@pytest.mark.parametrize("raw", [True, False])
def test_tensors_with_less_or_more_data_than_their_shape_are_an_error(dtype, raw):
    original = models.two_convs()
    tensor = helper.make_tensor(
        "more", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [5], np.ones(5, dtype)
    )
    if raw:
        tensor = numpy_helper.from_array(np.ones(5, dtype), "more")
    original.graph.initializer.append(tensor)
    assert len(swap(original).swapped) == 2
    for dimension in (4, 6, 2**62):
        original.graph.initializer[-1].dims[0] = dimension
        with refused(r"tensor 'more' takes \d+ bytes, and \d+ are there"):
            swap(original)


def test_conv_without_an_output_is_left():
    original = models.two_convs()
    original.graph.node.add(op_type="Conv", input=["x", "w1"])
    assert reasons(swap(original))["Conv_"] == "it has no output"


def test_conv_without_an_output_in_a_function_is_left():
    original = models.conv_in_nested_functions()
    unused = models.function("Unused", ["a", "f"], ["c"], [helper.make_node("Relu", ["a"], ["c"])])
    unused.node.add(op_type="Conv", input=["a", "f"])
    original.functions.append(unused)
    assert "nothing calls it" in reasons(swap(original))["Conv_"]


def test_a_broken_reference_is_named():
    original = models.conv_in_nested_functions()
    original.functions[0].output[0] = "nowhere"
    with refused(r"there is no 'nowhere'$"):
        swap(original)


def test_the_fault_is_named_and_not_a_later_error_of_onnx_ir():
    original = models.two_convs()
    entry = original.graph.initializer[0].external_data.add()
    original.graph.initializer[0].data_location = TensorProto.EXTERNAL
    entry.key, entry.value = "offset", "many"
    with refused(r"invalid literal for int.* 'many'"):
        swap(original)


@pytest.mark.parametrize("location", ["\x1b[31m", "two\nlines", "x" * 70_000, "nul\0"])
def test_names_of_external_data_that_no_file_has_are_one_printable_line(location, tmp_path):
    source = models.save_with_external_data(tmp_path)
    model = onnx.load_model(source, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ConvswapError) as error:
        swap(source)
    assert str(error.value).isprintable()


def test_missing_external_data_are_an_error(tmp_path):
    source = models.save_with_external_data(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with refused(r"'w1' in 'weights\.bin', which is missing; expected the file '.*weights\.bin'"):
        swap(source)


def test_missing_external_data_of_another_folder_are_asked_for_in_the_model_s(tmp_path):
    source = models.save_with_external_data(tmp_path)
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = "../weights.bin" if entry.key == "location" else entry.value
    onnx.save(model, source)
    with refused(r"in '\.\./weights\.bin', which is missing; expected a file in the model's folder"):
        swap(source)


def test_truncated_external_data_are_an_error(tmp_path):
    source = models.save_with_external_data(tmp_path)
    data = tmp_path / "weights.bin"
    data.write_bytes(data.read_bytes()[:-1])
    with refused(r"weights\.bin' is too short: it has \d+ bytes"):
        swap(source)


def test_external_data_outside_the_models_folder_are_refused(tmp_path):
    (tmp_path / "inner").mkdir()
    source = models.save_with_external_data(tmp_path)
    text = source.read_bytes()
    (tmp_path / "secret.bin").write_bytes((tmp_path / "weights.bin").read_bytes())
    inner = tmp_path / "inner" / "model.onnx"
    model = onnx.load_from_string(text)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../secret.bin"
    inner.write_bytes(model.SerializeToString())
    with refused("outside the base directory"):
        swap(inner)


# With the library


def test_only_a_float16_conv_that_is_swapped_has_a_note_about_the_cpu(tmp_path, capsys):
    onnx.save(float16_overflow(second=True), tmp_path / "half.onnx")
    result = swap(tmp_path / "half.onnx", only="small")
    assert result.notes == (FLOAT16_ON_CPU,) and result.report()["notes"] == [FLOAT16_ON_CPU]
    assert main(["swap", str(tmp_path / "half.onnx"), "-o", str(tmp_path / "swapped.onnx")]) == 0
    assert f"Note: {FLOAT16_ON_CPU}.\n" in capsys.readouterr().out
    assert swap(tmp_path / "swapped.onnx").notes == swap(models.two_convs()).notes == ()
