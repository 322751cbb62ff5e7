"""A comparison with fused Convs measures a fused node against the nodes that it replaced."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from comparisons import SCHEMA, checked
from convswap.cli.main import main
from convswap.comparison.compare import compare
from convswap.errors import ConvswapError
from convswap.graph.fusion.fuse import Fused, NotFused, fusion_remarks
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import swap
from convswap.reference.metrics import TOLERANCES
from convswap.runtime.sessions import make_session
from fuse_models import FILTERS, array, conv, declare, fuse, model, node, tensor
from onnx import TensorProto, helper, numpy_helper
from repeats import repeats

jsonschema = pytest.importorskip("jsonschema")
# The package's function of the same name hides the module.
orchestration = importlib.import_module("convswap.comparison.compare")
NETWORK = "ece408-2019sp"
NORM = {f"n{number}": array(f"n{number}", FILTERS, low=0.5, high=1.5) for number in range(4)}
Y_SHAPE = (2, FILTERS, 9, 8)


def complete_chain() -> onnx.ModelProto:
    """Return a Conv with bias, batch normalisation, Relu and MaxPool, and a Conv of the input as residual."""
    nodes = [
        conv("c", "x v", name="conv"),
        node("Add", "c bias", "d"),
        node("BatchNormalization", "d n0 n1 n2 n3", "e"),
        # This Conv comes second, so the nodes after the Add are fused into the first one.
        conv("z", "x w", name="shortcut"),
        node("Add", "z e", "f", name="residual"),
        node("Relu", "f", "g"),
        node("MaxPool", "g", "y", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    constants = {"v": array("v", FILTERS, 3, 3, 3), "bias": array("bias", FILTERS, 1, 1)}
    return model(nodes, constants | NORM)


@pytest.fixture
def layer_models(monkeypatch):
    """Record the models of the layers' sessions: {side: [model of each layer, …]}."""
    models: dict[str, list[onnx.ModelProto]] = {"default": [], "convswap": []}

    def recording(model, side, device, **options):
        if options:
            models[side.name].append(model.message)
        return make_session(model, side, device, **options)

    monkeypatch.setattr(orchestration, "make_session", recording)
    return models


def ops(proto: onnx.ModelProto) -> list[str]:
    return [each.op_type for each in proto.graph.node]


def input_names(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.input]


def test_command_compares_a_fused_network_and_says_what_was_fused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", NETWORK, "--fuse", "--data", "synthetic", "--images", "40", "--batch", "20"]
    assert main([*arguments, "--device", "cpu", "--json", "found.json"]) == 0
    report = json.loads(Path("found.json").read_text())
    jsonschema.validate(report, SCHEMA)
    assert (report["swapped"], report["options"]["fuse"], report["options"]["only"]) == (2, True, None)
    assert report["fused"] == [
        {
            "node": "conv1",
            "op": "FusedConv",
            "taken": [{"op": "Tanh", "node": "tanh1"}, {"op": "MaxPool", "node": "pool1"}],
        }
    ]
    (not_fused,) = report["not_fused"]
    assert (not_fused["node"], not_fused["op"], bool(not_fused["reason"])) == ("conv2", "Flatten", True)
    assert [(layer["node"], layer["fused"]) for layer in report["layers"]] == [
        ("conv1", ["Tanh", "MaxPool"]),
        ("conv2", []),
    ]
    for side in ("default", "convswap"):
        assert report["accuracy"][side] is not None
        assert 0 < report["relative_l2_error"][side] < 2e-5
        total = sum(layer[f"{side}_ms"] for layer in report["layers"])
        assert report["layers_sum_ms"][side] == pytest.approx(total)
        assert all(0 < layer["relative_l2_error"][side] < 2e-6 for layer in report["layers"])
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 120
    for expected in (
        "algorithm auto, fused",
        "conv1 + Tanh + MaxPool",
        "sum of all rows",
        "FusedConv conv1 includes Tanh tanh1, MaxPool pool1.",
        f"Flatten {not_fused['follower']} is not fused into conv2: {not_fused['reason']}.",
        "2 Conv swapped, 0 left, 1 fused with the nodes after them",
    ):
        assert expected in output


def test_only_folding_takes_place_unless_fusing_is_asked_for(layer_models):
    result = compare(complete_chain(), device="cpu")
    assert (result.not_fused, result.options["fuse"]) == ((), False)
    assert [layer.title for layer in result.layers] == ["conv + Add + BatchNormalization", "shortcut"]
    assert checked(result)["layers"][0]["fused"] == ["Add", "BatchNormalization"]
    assert ops(layer_models["default"][0]) == ["Conv", "Add", "BatchNormalization"]
    assert result.within_tolerance


def test_convs_with_the_same_fused_nodes_are_listed_once():
    fused_nodes = (("BatchNormalization", "norm"), ("Relu", "relu"))
    fused = [Fused(f"conv{number}", "FusedConv", fused_nodes) for number in range(3)]
    not_fused = [NotFused(f"conv{number}", f"softmax{number}", "Softmax", "why") for number in (3, 4)]
    assert fusion_remarks([*fused, Fused("conv5", "Conv", fused_nodes[:1])], not_fused) == [
        "FusedConv conv0 includes BatchNormalization norm, Relu relu; and 2 more of the same",
        "Conv conv5 includes BatchNormalization norm",
        "Softmax softmax3 is not fused into conv3: why; and 1 more of the same",
    ]


def test_default_side_of_a_layer_is_the_chain_that_was_replaced(layer_models):
    original = complete_chain()
    result = compare(original, device="cpu", fuse=True)
    assert result.within_tolerance and result.swapped == 2
    assert [layer.fused for layer in result.layers] == [
        (),
        ("Add", "BatchNormalization", "Add", "Relu", "MaxPool"),
    ]
    assert result.layers[1].title == "conv + Add + BatchNormalization + Add + Relu + MaxPool"
    assert [ops(proto) for proto in layer_models["default"]] == [
        ["Conv"],
        ["Conv", "Add", "BatchNormalization", "Add", "Relu", "MaxPool"],
    ]
    assert [ops(proto) for proto in layer_models["convswap"]] == [["Conv"], ["FusedConv"]]
    # The original weights, not those with the batch normalisation folded in.
    constants = {value.name: value for value in layer_models["default"][1].graph.initializer}
    assert constants.keys() == {"v", "bias", *NORM}
    assert constants["v"] == next(value for value in original.graph.initializer if value.name == "v")
    # The residual comes from the network's own run, on both sides.
    assert {side: input_names(protos[1]) for side, protos in layer_models.items()} == {
        "default": ["x", "z"],
        "convswap": ["x", "z"],
    }
    for side in ("default", "convswap"):
        assert 0 < result.layers[1].relative_l2_error[side] < 1e-6


def test_decomposed_activation_is_run_as_its_nodes(layer_models):
    nodes = [conv(), node("Sigmoid", "c", "s"), node("Mul", "s c", "y")]
    result = compare(model(nodes), device="cpu", fuse=True)
    assert [layer.fused for layer in result.layers] == [("Sigmoid", "Mul")]
    assert [ops(proto) for proto in layer_models["default"]] == [["Conv", "Sigmoid", "Mul"]]
    assert [each.op for each in result.fused] == ["FusedConv"]


def test_conv_with_only_a_normalisation_folded_is_compared_with_both_nodes(layer_models):
    result = compare(
        model([conv(), node("BatchNormalization", "c n0 n1 n2 n3", "y")], NORM), device="cpu", fuse=True
    )
    assert [(fused.op, layer.title) for fused, layer in zip(result.fused, result.layers, strict=True)] == [
        ("Conv", "conv + BatchNormalization")
    ]
    assert ops(layer_models["default"][0]) == ["Conv", "BatchNormalization"]
    assert ops(layer_models["convswap"][0]) == ["Conv"]


def test_nodes_that_pass_constants_on_are_run_but_not_named(layer_models):
    nodes = [
        node("Identity", "w", "v"),
        node("Unsqueeze", "bias axes", "b"),
        node("Constant", "", "axes", value=numpy_helper.from_array(np.array([1, 2]))),
        conv("c", "x v"),
        node("Add", "c b", "d"),
        node("Mul", "d scale", "e"),
        node("Tanh", "e", "y"),
    ]
    nodes[1], nodes[2] = nodes[2], nodes[1]
    constants = {"bias": array("bias", FILTERS), "scale": array("scale", FILTERS, 1, 1)}
    result = compare(model(nodes, constants), device="cpu", fuse=True)
    assert [layer.fused for layer in result.layers] == [("Add", "Mul", "Tanh")]
    assert ops(layer_models["default"][0]) == ["Identity", "Unsqueeze", "Conv", "Add", "Mul", "Tanh"]
    assert result.layers[0].relative_l2_error["default"] < 1e-6


def test_domain_may_be_written_out(layer_models):
    weights = tensor("v", array("v", FILTERS, 3, 3, 3))
    nodes = [
        node("Constant", "", "v", value=weights),
        conv("c", "x v"),
        node("Relu", "c", "y"),
        conv("z", "x v", name="alone"),
    ]
    original = model(nodes, outputs=("y", "z"))
    for each in original.graph.node:
        each.domain = "ai.onnx"
    result = compare(original, device="cpu", fuse=True)
    assert [layer.title for layer in result.layers] == ["conv + Relu", "alone"]
    assert [ops(proto) for proto in layer_models["default"]] == [["Conv", "Relu"], ["Conv"]]


def test_intermediate_value_that_others_read_is_not_fused():
    nodes = [conv(), node("Relu", "c", "r"), node("Neg", "c", "n"), node("Add", "r n", "y")]
    result = compare(model(nodes), device="cpu", fuse=True)
    assert result.fused == () and result.within_tolerance
    assert [layer.title for layer in result.layers] == ["conv"]
    assert ["2 nodes read 'c'" in entry.reason for entry in result.not_fused] == [True]


def test_value_between_two_fused_convs_is_what_the_network_gives(layer_models):
    nodes = [conv("c"), node("Relu", "c", "r"), conv("d", "r v", name="second"), node("Tanh", "d", "y")]
    result = compare(model(nodes, {"v": array("v", 5, FILTERS, 3, 3)}), device="cpu", fuse=True)
    assert [layer.title for layer in result.layers] == ["conv + Relu", "second + Tanh"]
    assert [input_names(proto) for proto in layer_models["default"]] == [["x"], ["r"]]
    assert all(0 < error < 1e-6 for layer in result.layers for error in layer.relative_l2_error.values())


def test_residual_that_is_the_input_itself_is_one_input(layer_models):
    nodes = [conv("c", "x v"), node("Add", "c x", "d"), node("Relu", "d", "y")]
    result = compare(model(nodes, {"v": array("v", 3, 3, 3, 3), "w": np.ones(1)}), device="cpu", fuse=True)
    assert [layer.fused for layer in result.layers] == [("Add", "Relu")]
    assert [input_names(protos[0]) for protos in layer_models.values()] == [["x"], ["x"]]
    assert result.within_tolerance


def test_wrong_outputs_of_a_fused_node_are_found_in_the_layer_and_end_to_end(monkeypatch):
    def wrong_swap(proto, **options):
        result = swap(proto, **options)
        fused = next(each for each in result.model.graph if each.op_type == "FusedConv")
        fused.attributes["activation"] = type(fused.attributes["pool"])(
            "activation", fused.attributes["pool"].type, "Sigmoid"
        )
        return result

    monkeypatch.setattr("convswap.comparison.preparation.swap_to_run", wrong_swap)
    comparison = compare(complete_chain(), device="cpu", fuse=True)
    assert not comparison.within_tolerance
    layer = comparison.layers[1]
    assert layer.relative_l2_error["default"] < 1e-6 < 1e-2 < layer.relative_l2_error["convswap"]


def test_floor_counts_every_tensor_once_and_the_output_after_the_pool(monkeypatch):
    problems = []
    monkeypatch.setattr(orchestration, "floor_ms", lambda problem, *_: problems.append(problem))
    compare(complete_chain(), device="cpu", fuse=True)
    plain, fused = problems
    x, w, z, y = 2 * 3 * 9 * 8, FILTERS * 3 * 9, 2 * FILTERS * 9 * 8, 2 * FILTERS * 4 * 4
    assert plain.bytes == 4 * (x + w + z)
    assert fused.bytes == 4 * (x + w + FILTERS + z + y)
    assert fused.operations == plain.operations == 2 * z * 27
    assert fused.output_shape == (2, FILTERS, 4, 4)


def test_only_algorithm_and_precision_count_for_fused_convs_too():
    original = model(
        [
            conv("c", name="conv1"),
            node("Relu", "c", "r"),
            conv("d", "r v", name="conv2"),
            node("Tanh", "d", "y"),
        ],
        {"v": array("v", 5, FILTERS, 3, 3)},
    )
    result = compare(original, device="cpu", fuse=True, only="2$", algorithm="reference", precision="ieee")
    assert [(layer.title, layer.algorithm) for layer in result.layers] == [("conv2 + Tanh", "reference")]
    assert [(entry.node, entry.reason) for entry in result.left] == [
        ("conv1", "its name does not match '2$'")
    ]
    assert (result.tolerance, result.swapped) == (TOLERANCES["ieee"], 1)
    # `reference` sums in float64 and rounds once.
    assert result.layers[0].relative_l2_error["convswap"] < 1e-7
    unfused = compare(original, device="cpu", only="conv1")
    assert [layer.title for layer in unfused.layers] == ["conv1"]


@pytest.mark.parametrize("is_fused_before", [False, True], ids=["fused here", "fused before"])
def test_float16_network_is_compared(is_fused_before):
    nodes = [
        conv(),
        node("BatchNormalization", "c n0 n1 n2 n3", "d"),
        node("Clip", "d low high", "e"),
        node("AveragePool", "e", "y", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    constants = NORM | {"low": np.array(-0.5), "high": np.array(0.75)}
    original = model(nodes, constants, element_type=TensorProto.FLOAT16)
    source = fuse(original).to_proto() if is_fused_before else original
    result = compare(source, device="cpu", fuse=True)
    (layer,) = result.layers
    assert result.within_tolerance and result.tolerance == TOLERANCES["float16"]
    expected = ("Clip", "AveragePool") if is_fused_before else ("BatchNormalization", "Clip", "AveragePool")
    assert layer.fused == expected
    # One rounding to 11 bits at the end is 2^-12 at most; the default side rounds after every node.
    assert 1e-5 < layer.relative_l2_error["convswap"] < 1e-3
    assert layer.relative_l2_error["default"] < 4e-3


@pytest.mark.parametrize("again", [False, True])
def test_model_that_was_fused_before_is_compared_with_what_it_stands_for(again, layer_models, tmp_path):
    path = tmp_path / "fused.onnx"
    swap(complete_chain(), fuse=True, algorithm="reference").save(path)
    result = compare(str(path), device="cpu", fuse=again)
    assert result.within_tolerance and result.swapped == 2
    assert any(note.startswith("2 Conv swapped before") for note in result.notes)
    assert [(layer.title, layer.algorithm) for layer in result.layers] == [
        ("shortcut", "reference"),
        ("conv + Add + Relu + MaxPool", "reference"),
    ]
    # The bias and the normalisation are folded into the file's weights.
    assert ops(layer_models["default"][1]) == ["Conv", "Add", "Relu", "MaxPool"]
    assert all(0 < error < 1e-6 for layer in result.layers for error in layer.relative_l2_error.values())
    checked(result)


def test_model_that_was_swapped_before_is_fused_with_what_follows(layer_models):
    swapped = swap(complete_chain(), algorithm="reference", fold=False).to_proto()
    result = compare(swapped, device="cpu", fuse=True)
    assert [layer.algorithm for layer in result.layers] == ["reference", "reference"]
    assert result.layers[1].fused == ("Add", "BatchNormalization", "Add", "Relu", "MaxPool")
    default = layer_models["default"][1]
    assert ops(default) == ["Conv", "Add", "BatchNormalization", "Add", "Relu", "MaxPool"]
    assert {each.domain for each in default.graph.node} == {""}


def test_chain_inside_a_function_is_found(layer_models):
    body = helper.make_function(
        "own",
        "Block",
        ["a", "v"],
        ["o"],
        [node("Conv", "a v", "c", "inner", pads=[1, 1, 1, 1]), node("Relu", "c", "o")],
        [helper.make_opsetid("", 20)],
    )
    original = model(
        [node("own.Block", "x w", "h"), node("Neg", "h", "y")],
        functions=[body],
        domains=["own"],
        y_shape=Y_SHAPE,
    )
    result = compare(original, device="cpu", fuse=True)
    assert [layer.fused for layer in result.layers] == [("Relu",)]
    assert [ops(proto) for proto in layer_models["default"]] == [["Conv", "Relu"]]
    assert result.layers[0].relative_l2_error["default"] < 1e-6


def test_conv_in_a_branch_is_compared_as_part_of_the_model():
    def branch(name: str, activation: str) -> onnx.GraphProto:
        nodes = [conv(f"{name}_c", name=name), node(activation, f"{name}_c", f"{name}_y")]
        return helper.make_graph(nodes, name, [], [declare(f"{name}_y", Y_SHAPE)])

    choice = helper.make_node(
        "If", ["flag"], ["y"], then_branch=branch("yes", "Relu"), else_branch=branch("no", "Tanh")
    )
    original = model(
        [choice],
        inputs=[declare("x", (2, 3, 9, 8)), declare("flag", [], TensorProto.BOOL)],
        y_shape=Y_SHAPE,
    )
    for proto, fuses in ((original, False), (original, True), (swap(original, fuse=True).to_proto(), True)):
        result = compare(proto, device="cpu", fuse=fuses)
        checked(result)
        assert (result.swapped, result.layers) == (2, ())
        assert result.within_tolerance
        assert any("2 swapped Conv in subgraphs" in note for note in result.notes)
    plain = ir.to_proto(plain_model(swap(original, fuse=True).model))
    branches = [attribute.g for attribute in plain.graph.node[0].attribute]
    assert sorted(tuple(each.op_type for each in graph.node) for graph in branches) == [
        ("Conv", "Relu"),
        ("Conv", "Tanh"),
    ]


def test_course_lines_say_what_their_time_is_of(capsys):
    arguments = ["--course", "--fuse", "--data", "synthetic", "--images", "20", "--device", "cpu"]
    note = "Note: Op Time is that of what is fused with the convolutions too, on each side."
    assert main(["compare", NETWORK, *arguments]) == 0
    assert note in capsys.readouterr().out.splitlines()


def fused_by_hand(**attributes) -> onnx.ModelProto:
    fused = node("convswap.FusedConv", "x w b", "y", "conv", pads=[1, 1, 1, 1], **attributes)
    return model([fused], {"b": array("b", FILTERS)}, domains=["convswap"], y_shape=Y_SHAPE)


@pytest.mark.parametrize(
    ("activation", "numbers"), [("LeakyRelu", "alpha"), ("HardSigmoid", "alpha beta"), ("Elu", "alpha")]
)
def test_number_that_an_activation_needs_is_refused_where_it_is_not_written(activation, numbers):
    written = {f"activation_{name}": 0.25 for name in numbers.split()}
    result = compare(fused_by_hand(activation=activation, pool="None", **written), device="cpu")
    assert [layer.title for layer in result.layers] == [f"conv + {activation}"]
    assert result.within_tolerance
    assert result.layers[0].relative_l2_error["convswap"] < 1e-6
    for name in written:
        incomplete = {key: value for key, value in written.items() if key != name}
        with pytest.raises(ConvswapError, match=f"{name} of FusedConv 'conv' is None; expected a number"):
            compare(fused_by_hand(activation=activation, pool="None", **incomplete), device="cpu")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"activation": "Tahn"}, "unknown activation of FusedConv 'conv' 'Tahn'; did you mean 'Tanh'"),
        ({"pool": "MaxPol"}, "unknown pool of FusedConv 'conv' 'MaxPol'; did you mean 'MaxPool'"),
        ({"activation": 3}, "unknown activation of FusedConv 'conv' '3'; known: Clip"),
        ({"activation": b"\xff"}, "unknown activation of FusedConv 'conv' '\ufffd'; known: Clip"),
        (
            {"activation": "Clip", "activation_alpha": 0.0, "activation_beta": "high"},
            "activation_beta of FusedConv 'conv' is 'high'; expected a number",
        ),
    ],
    ids=str,
)
def test_attribute_that_no_fused_conv_has_is_refused_in_one_line(attributes, message, tmp_path, capsys):
    onnx.save(fused_by_hand(**attributes), tmp_path / "model.onnx")
    for command in ("compare", "explain", "tune"):
        assert main([command, str(tmp_path / "model.onnx"), "--device", "cpu"]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert message in lines[-1] and not any("Traceback" in line for line in lines)


def test_fused_conv_of_an_opset_that_cannot_spell_it_is_refused():
    fused = fused_by_hand(activation="Relu", pool="None")
    fused.opset_import[0].version = 6
    with pytest.raises(ConvswapError, match="'conv' is in a model of opset 6; its parts need 7 or newer"):
        compare(fused, device="cpu")


def test_only_that_matches_no_conv_is_refused(capsys):
    assert main(["compare", NETWORK, "--fuse", "--only", "nothing", "--device", "cpu"]) == 2
    assert "its name does not match 'nothing'" in capsys.readouterr().err.strip().splitlines()[-1]


def test_fused_convs_without_constants_get_constants_of_their_element_type():
    """Float16 weights and bias that the model computes: the constants of Gelu must be float16 as well."""
    nodes = [
        node("Tanh", "w", "v"),
        node("Neg", "a", "b"),
        conv("c", "x v b"),
        node("Gelu", "c", "y", approximate="tanh"),
    ]
    original = model(nodes, {"a": array("a", FILTERS)}, element_type=TensorProto.FLOAT16)
    fused = swap(original, fuse=True).to_proto()
    assert ops(fused) == ["Tanh", "Neg", "FusedConv"]
    plain = ir.to_proto(plain_model(ir.from_proto(fused)))
    kinds = {
        attribute.t.data_type
        for each in plain.graph.node
        if each.op_type == "Constant"
        for attribute in each.attribute
    }
    assert kinds == {TensorProto.FLOAT16}
    onnx.checker.check_model(plain, full_check=True)
    result = compare(fused, device="cpu")
    assert result.within_tolerance and result.layers[0].title == "conv + GeluTanh"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_fused_network_on_the_gpu_agrees_and_has_every_side_and_floor(cuda, precision):
    images = repeats(600, minimum=20)
    result = compare(
        NETWORK, data="synthetic", images=images, device=cuda, against="all", fuse=True, precision=precision
    )
    written = checked(result)
    assert written["device"] == "cuda" and result.within_tolerance
    assert set(result.sides) == {"default", "convswap", "heuristic", "no_tf32", "nhwc"}
    assert [layer.title for layer in result.layers] == ["conv1 + Tanh + MaxPool", "conv2"]
    limit = 1e-3 if precision == "tf32" else 1e-6
    assert all(0 < layer.relative_l2_error["convswap"] < limit for layer in result.layers)
    assert result.top1_agreement > 0.99


@pytest.mark.gpu
def test_whole_chain_on_the_gpu_is_set_against_the_default_provider(cuda, layer_models):
    result = compare(complete_chain(), device=cuda, fuse=True)
    assert result.within_tolerance
    assert [ops(protos[1]) for protos in layer_models.values()] == [
        ["Conv", "Add", "BatchNormalization", "Add", "Relu", "MaxPool"],
        ["FusedConv"],
    ]
