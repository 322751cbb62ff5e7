"""A comparison with fused Convs: a fused node is set against the very nodes that it replaced."""

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


def whole_chain() -> onnx.ModelProto:
    """Conv, a bias, batch normalisation, a residual that is a Conv of the input, Relu and MaxPool."""
    nodes = [
        conv("c", "x v", name="conv"),
        node("Add", "c bias", "d"),
        node("BatchNormalization", "d n0 n1 n2 n3", "e"),
        # After the other, which so is the one to take in what follows both.
        conv("z", "x w", name="shortcut"),
        node("Add", "z e", "f", name="residual"),
        node("Relu", "f", "g"),
        node("MaxPool", "g", "y", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    constants = {"v": array("v", FILTERS, 3, 3, 3), "bias": array("bias", FILTERS, 1, 1)}
    return model(nodes, constants | NORM)


@pytest.fixture
def layer_models(monkeypatch):
    """What the sessions of the layers are made of: {side: [model of each layer, …]}."""
    made: dict[str, list[onnx.ModelProto]] = {"default": [], "convswap": []}

    def recording(model, side, device, **options):
        if options:
            made[side.name].append(model.message)
        return make_session(model, side, device, **options)

    monkeypatch.setattr(orchestration, "make_session", recording)
    return made


def ops(proto: onnx.ModelProto) -> list[str]:
    return [each.op_type for each in proto.graph.node]


def fed(proto: onnx.ModelProto) -> list[str]:
    return [value.name for value in proto.graph.input]


def test_command_compares_a_fused_network_and_says_what_was_fused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = ["compare", NETWORK, "--fuse", "--data", "synthetic", "--images", "40", "--batch", "20"]
    assert main([*arguments, "--device", "cpu", "--json", "found.json"]) == 0
    found = json.loads(Path("found.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert (found["swapped"], found["options"]["fuse"], found["options"]["only"]) == (2, True, None)
    assert found["fused"] == [
        {
            "node": "conv1",
            "op": "FusedConv",
            "taken": [{"op": "Tanh", "node": "tanh1"}, {"op": "MaxPool", "node": "pool1"}],
        }
    ]
    (left,) = found["not_fused"]
    assert (left["node"], left["op"], bool(left["reason"])) == ("conv2", "Flatten", True)
    assert [(layer["node"], layer["fused"]) for layer in found["layers"]] == [
        ("conv1", ["Tanh", "MaxPool"]),
        ("conv2", []),
    ]
    for side in ("default", "convswap"):
        assert found["accuracy"][side] is not None
        assert 0 < found["relative_l2_error"][side] < 2e-5
        total = sum(layer[f"{side}_ms"] for layer in found["layers"])
        assert found["layers_sum_ms"][side] == pytest.approx(total)
        assert all(0 < layer["relative_l2_error"][side] < 2e-6 for layer in found["layers"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 120
    for expected in (
        "algorithm auto, fused",
        "conv1 + Tanh + MaxPool",
        "sum of all rows",
        "FusedConv conv1 includes Tanh tanh1, MaxPool pool1.",
        f"Flatten {left['follower']} is not fused into conv2: {left['reason']}.",
        "2 Conv swapped, 0 left, 1 fused with what follows",
    ):
        assert expected in shown


def test_only_what_is_folded_is_taken_in_unless_fusing_is_asked_for(layer_models):
    found = compare(whole_chain(), device="cpu")
    assert (found.not_fused, found.options["fuse"]) == ((), False)
    assert [layer.title for layer in found.layers] == ["conv + Add + BatchNormalization", "shortcut"]
    assert checked(found)["layers"][0]["fused"] == ["Add", "BatchNormalization"]
    assert ops(layer_models["default"][0]) == ["Conv", "Add", "BatchNormalization"]
    assert found.within_tolerance


def test_convs_that_took_in_the_same_are_told_of_once():
    taken = (("BatchNormalization", "norm"), ("Relu", "relu"))
    fused = [Fused(f"conv{number}", "FusedConv", taken) for number in range(3)]
    left = [NotFused(f"conv{number}", f"softmax{number}", "Softmax", "why") for number in (3, 4)]
    assert fusion_remarks([*fused, Fused("conv5", "Conv", taken[:1])], left) == [
        "FusedConv conv0 includes BatchNormalization norm, Relu relu; and 2 more of the same",
        "Conv conv5 includes BatchNormalization norm",
        "Softmax softmax3 is not fused into conv3: why; and 1 more of the same",
    ]


def test_default_side_of_a_layer_is_the_chain_that_was_replaced(layer_models):
    original = whole_chain()
    found = compare(original, device="cpu", fuse=True)
    assert found.within_tolerance and found.swapped == 2
    assert [layer.fused for layer in found.layers] == [
        (),
        ("Add", "BatchNormalization", "Add", "Relu", "MaxPool"),
    ]
    assert found.layers[1].title == "conv + Add + BatchNormalization + Add + Relu + MaxPool"
    assert [ops(proto) for proto in layer_models["default"]] == [
        ["Conv"],
        ["Conv", "Add", "BatchNormalization", "Add", "Relu", "MaxPool"],
    ]
    assert [ops(proto) for proto in layer_models["convswap"]] == [["Conv"], ["FusedConv"]]
    # Its own weights, not those that the fused node made of them and of the normalisation.
    constants = {value.name: value for value in layer_models["default"][1].graph.initializer}
    assert constants.keys() == {"v", "bias", *NORM}
    assert constants["v"] == next(value for value in original.graph.initializer if value.name == "v")
    # The residual is what the network gives, on both sides.
    assert {side: fed(protos[1]) for side, protos in layer_models.items()} == {
        "default": ["x", "z"],
        "convswap": ["x", "z"],
    }
    for side in ("default", "convswap"):
        assert 0 < found.layers[1].relative_l2_error[side] < 1e-6


def test_spelled_out_activation_is_run_as_it_is_spelled(layer_models):
    nodes = [conv(), node("Sigmoid", "c", "s"), node("Mul", "s c", "y")]
    found = compare(model(nodes), device="cpu", fuse=True)
    assert [layer.fused for layer in found.layers] == [("Sigmoid", "Mul")]
    assert [ops(proto) for proto in layer_models["default"]] == [["Conv", "Sigmoid", "Mul"]]
    assert [taken.op for taken in found.fused] == ["FusedConv"]


def test_conv_that_took_in_a_normalisation_alone_is_set_against_both(layer_models):
    found = compare(
        model([conv(), node("BatchNormalization", "c n0 n1 n2 n3", "y")], NORM), device="cpu", fuse=True
    )
    assert [(taken.op, layer.title) for taken, layer in zip(found.fused, found.layers, strict=True)] == [
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
    found = compare(model(nodes, constants), device="cpu", fuse=True)
    assert [layer.fused for layer in found.layers] == [("Add", "Mul", "Tanh")]
    assert ops(layer_models["default"][0]) == ["Identity", "Unsqueeze", "Conv", "Add", "Mul", "Tanh"]
    assert found.layers[0].relative_l2_error["default"] < 1e-6


def test_domain_may_be_written_out(layer_models):
    weights = tensor("v", array("v", FILTERS, 3, 3, 3))
    nodes = [
        node("Constant", "", "v", value=weights),
        conv("c", "x v"),
        node("Relu", "c", "y"),
        conv("z", "x v", name="alone"),
    ]
    given = model(nodes, outputs=("y", "z"))
    for each in given.graph.node:
        each.domain = "ai.onnx"
    found = compare(given, device="cpu", fuse=True)
    assert [layer.title for layer in found.layers] == ["conv + Relu", "alone"]
    assert [ops(proto) for proto in layer_models["default"]] == [["Conv", "Relu"], ["Conv"]]


def test_intermediate_value_that_others_read_is_not_fused():
    nodes = [conv(), node("Relu", "c", "r"), node("Neg", "c", "n"), node("Add", "r n", "y")]
    found = compare(model(nodes), device="cpu", fuse=True)
    assert found.fused == () and found.within_tolerance
    assert [layer.title for layer in found.layers] == ["conv"]
    assert ["2 nodes read 'c'" in left.reason for left in found.not_fused] == [True]


def test_value_between_two_fused_convs_is_what_the_network_gives(layer_models):
    nodes = [conv("c"), node("Relu", "c", "r"), conv("d", "r v", name="second"), node("Tanh", "d", "y")]
    found = compare(model(nodes, {"v": array("v", 5, FILTERS, 3, 3)}), device="cpu", fuse=True)
    assert [layer.title for layer in found.layers] == ["conv + Relu", "second + Tanh"]
    assert [fed(proto) for proto in layer_models["default"]] == [["x"], ["r"]]
    assert all(0 < error < 1e-6 for layer in found.layers for error in layer.relative_l2_error.values())


def test_residual_that_is_the_input_itself_is_fed_once(layer_models):
    nodes = [conv("c", "x v"), node("Add", "c x", "d"), node("Relu", "d", "y")]
    found = compare(model(nodes, {"v": array("v", 3, 3, 3, 3), "w": np.ones(1)}), device="cpu", fuse=True)
    assert [layer.fused for layer in found.layers] == [("Add", "Relu")]
    assert [fed(protos[0]) for protos in layer_models.values()] == [["x"], ["x"]]
    assert found.within_tolerance


def test_wrong_answers_of_a_fused_node_are_found_in_the_layer_and_in_the_whole(monkeypatch):
    def wrong_swap(proto, **options):
        result = swap(proto, **options)
        fused = next(each for each in result.model.graph if each.op_type == "FusedConv")
        fused.attributes["activation"] = type(fused.attributes["pool"])(
            "activation", fused.attributes["pool"].type, "Sigmoid"
        )
        return result

    monkeypatch.setattr("convswap.comparison.preparation.swap", wrong_swap)
    found = compare(whole_chain(), device="cpu", fuse=True)
    assert not found.within_tolerance
    layer = found.layers[1]
    assert layer.relative_l2_error["default"] < 1e-6 < 1e-2 < layer.relative_l2_error["convswap"]


def test_floor_counts_every_tensor_once_and_the_output_after_the_pool(monkeypatch):
    problems = []
    monkeypatch.setattr(orchestration, "floor_ms", lambda problem, *_: problems.append(problem))
    compare(whole_chain(), device="cpu", fuse=True)
    alone, fused = problems
    x, w, z, y = 2 * 3 * 9 * 8, FILTERS * 3 * 9, 2 * FILTERS * 9 * 8, 2 * FILTERS * 4 * 4
    assert alone.bytes == 4 * (x + w + z)
    assert fused.bytes == 4 * (x + w + FILTERS + z + y)
    assert fused.operations == alone.operations == 2 * z * 27
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
    found = compare(original, device="cpu", fuse=True, only="2$", algorithm="reference", precision="ieee")
    assert [(layer.title, layer.algorithm) for layer in found.layers] == [("conv2 + Tanh", "reference")]
    assert [(left.node, left.reason) for left in found.left] == [("conv1", "its name does not match '2$'")]
    assert (found.tolerance, found.swapped) == (TOLERANCES["ieee"], 1)
    # `reference` sums in float64 and rounds once.
    assert found.layers[0].relative_l2_error["convswap"] < 1e-7
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
    given = fuse(original).to_proto() if is_fused_before else original
    found = compare(given, device="cpu", fuse=True)
    (layer,) = found.layers
    assert found.within_tolerance and found.tolerance == TOLERANCES["float16"]
    expected = ("Clip", "AveragePool") if is_fused_before else ("BatchNormalization", "Clip", "AveragePool")
    assert layer.fused == expected
    # One rounding to 11 bits at the end is 2^-12 at most; the default side rounds after every node.
    assert 1e-5 < layer.relative_l2_error["convswap"] < 1e-3
    assert layer.relative_l2_error["default"] < 4e-3


@pytest.mark.parametrize("again", [False, True])
def test_model_that_was_fused_before_is_compared_with_what_it_stands_for(again, layer_models, tmp_path):
    path = tmp_path / "fused.onnx"
    swap(whole_chain(), fuse=True, algorithm="reference").save(path)
    found = compare(str(path), device="cpu", fuse=again)
    assert found.within_tolerance and found.swapped == 2
    assert any(note.startswith("2 Conv swapped before") for note in found.notes)
    assert [(layer.title, layer.algorithm) for layer in found.layers] == [
        ("shortcut", "reference"),
        ("conv + Add + Relu + MaxPool", "reference"),
    ]
    # The bias and the normalisation are in the weights that the file has.
    assert ops(layer_models["default"][1]) == ["Conv", "Add", "Relu", "MaxPool"]
    assert all(0 < error < 1e-6 for layer in found.layers for error in layer.relative_l2_error.values())
    checked(found)


def test_model_that_was_swapped_before_is_fused_with_what_follows(layer_models):
    given = swap(whole_chain(), algorithm="reference", fold=False).to_proto()
    found = compare(given, device="cpu", fuse=True)
    assert [layer.algorithm for layer in found.layers] == ["reference", "reference"]
    assert found.layers[1].fused == ("Add", "BatchNormalization", "Add", "Relu", "MaxPool")
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
    given = model(
        [node("own.Block", "x w", "h"), node("Neg", "h", "y")],
        functions=[body],
        domains=["own"],
        y_shape=Y_SHAPE,
    )
    found = compare(given, device="cpu", fuse=True)
    assert [layer.fused for layer in found.layers] == [("Relu",)]
    assert [ops(proto) for proto in layer_models["default"]] == [["Conv", "Relu"]]
    assert found.layers[0].relative_l2_error["default"] < 1e-6


def test_conv_in_a_branch_is_compared_as_part_of_the_whole():
    def branch(name: str, activation: str) -> onnx.GraphProto:
        nodes = [conv(f"{name}_c", name=name), node(activation, f"{name}_c", f"{name}_y")]
        return helper.make_graph(nodes, name, [], [declare(f"{name}_y", Y_SHAPE)])

    choice = helper.make_node(
        "If", ["flag"], ["y"], then_branch=branch("yes", "Relu"), else_branch=branch("no", "Tanh")
    )
    given = model(
        [choice],
        inputs=[declare("x", (2, 3, 9, 8)), declare("flag", [], TensorProto.BOOL)],
        y_shape=Y_SHAPE,
    )
    for proto, fuses in ((given, False), (given, True), (swap(given, fuse=True).to_proto(), True)):
        found = compare(proto, device="cpu", fuse=fuses)
        checked(found)
        assert (found.swapped, found.layers) == (2, ())
        assert found.within_tolerance
        assert any("2 swapped Conv in subgraphs" in note for note in found.notes)
    plain = ir.to_proto(plain_model(swap(given, fuse=True).model))
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
    found = compare(fused_by_hand(activation=activation, pool="None", **written), device="cpu")
    assert [layer.title for layer in found.layers] == [f"conv + {activation}"]
    assert found.within_tolerance
    assert found.layers[0].relative_l2_error["convswap"] < 1e-6
    for name in written:
        left = {other: value for other, value in written.items() if other != name}
        with pytest.raises(ConvswapError, match=f"{name} of FusedConv 'conv' is None; expected a number"):
            compare(fused_by_hand(activation=activation, pool="None", **left), device="cpu")


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
    given = fused_by_hand(activation="Relu", pool="None")
    given.opset_import[0].version = 6
    with pytest.raises(ConvswapError, match="'conv' is in a model of opset 6; its parts need 7 or newer"):
        compare(given, device="cpu")


def test_only_that_matches_no_conv_is_refused(capsys):
    assert main(["compare", NETWORK, "--fuse", "--only", "nothing", "--device", "cpu"]) == 2
    assert "its name does not match 'nothing'" in capsys.readouterr().err.strip().splitlines()[-1]


def test_fused_convs_whose_type_no_constant_tells_stand_for_constants_of_that_type():
    """Float16 weights and bias that the model computes: the constants of Gelu must be float16 as well."""
    nodes = [
        node("Tanh", "w", "v"),
        node("Neg", "a", "b"),
        conv("c", "x v b"),
        node("Gelu", "c", "y", approximate="tanh"),
    ]
    given = model(nodes, {"a": array("a", FILTERS)}, element_type=TensorProto.FLOAT16)
    fused = swap(given, fuse=True).to_proto()
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
    found = compare(fused, device="cpu")
    assert found.within_tolerance and found.layers[0].title == "conv + GeluTanh"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_fused_network_on_the_gpu_agrees_and_has_every_side_and_floor(cuda, precision):
    images = repeats(600, minimum=20)
    found = compare(
        NETWORK, data="synthetic", images=images, device=cuda, against="all", fuse=True, precision=precision
    )
    written = checked(found)
    assert written["device"] == "cuda" and found.within_tolerance
    assert set(found.sides) == {"default", "convswap", "heuristic", "no_tf32", "nhwc"}
    assert [layer.title for layer in found.layers] == ["conv1 + Tanh + MaxPool", "conv2"]
    limit = 1e-3 if precision == "tf32" else 1e-6
    assert all(0 < layer.relative_l2_error["convswap"] < limit for layer in found.layers)
    assert found.top1_agreement > 0.99


@pytest.mark.gpu
def test_whole_chain_on_the_gpu_is_set_against_the_default_provider(cuda, layer_models):
    found = compare(whole_chain(), device=cuda, fuse=True)
    assert found.within_tolerance
    assert [ops(protos[1]) for protos in layer_models.values()] == [
        ["Conv", "Add", "BatchNormalization", "Add", "Relu", "MaxPool"],
        ["FusedConv"],
    ]
