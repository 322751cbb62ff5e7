"""Tensors between Convs in NHWC: random models keep their outputs, and known models change as they should."""

from __future__ import annotations

import math
import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap import _native, compare, explain
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.graph.layout.choose import LayoutChange, change_layouts
from convswap.graph.layout.costs import ConversionCosts, EstimatedCosts, NodeLayouts
from convswap.graph.names import node_names
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import swap
from convswap.graph.value_types import ValueTypes
from convswap.planning.problems import PlanOptions, conv_problems
from convswap.planning.warm import op_kernels
from convswap.runtime.device import absent_card, choose_device
from layout_models import RandomCosts, RandomLayoutModel
from onnx import TensorProto, helper, numpy_helper
from op_sessions import cpu_session
from quantised_models import quantised, residual_net

# Environment variable with the number of graphs to draw, for longer runs.
GRAPHS = "CONVSWAP_TEST_GRAPHS"
# Of a tensor's root mean square: sums of up to a dozen nodes in another order. A wrong axis gives about 1.
TOLERANCES = {np.dtype(np.float32): 1e-4, np.dtype(np.float16): 3e-2}
SEEDS_OF_A_TEST = 10


def assert_same(expected: list[np.ndarray], actual: list[np.ndarray], note: str) -> None:
    for first, second in zip(expected, actual, strict=True):
        assert first.shape == second.shape, note
        tolerance = TOLERANCES[first.dtype]
        first, second = first.astype(np.float64), second.astype(np.float64)
        limit = tolerance * (np.linalg.norm(first) + np.sqrt(first.size))
        assert np.linalg.norm(first - second) <= limit, note


def changed(model: onnx.ModelProto, costs, *, fuse: bool = True) -> tuple[ir.Model, LayoutChange]:
    swapped = swap(model, fuse=fuse).model
    types = ValueTypes(swapped)
    return swapped, change_layouts(swapped, node_names(swapped), types, costs(types))


@pytest.mark.slow
@pytest.mark.parametrize("first", [SEEDS_OF_A_TEST * number for number in range(8)])
def test_random_models_give_the_same_outputs_in_any_layout(first):
    count = int(os.environ.get(GRAPHS, 8 * SEEDS_OF_A_TEST)) // 8
    nhwc = carried = removed = 0
    for seed in range(first * count // SEEDS_OF_A_TEST, first * count // SEEDS_OF_A_TEST + count):
        drawn = RandomLayoutModel(seed)
        session = cpu_session(drawn.model)
        batches = (2,) if drawn.batch == 2 else (2, 3)
        runs = [(feeds, session.run(None, feeds)) for feeds in map(drawn.feeds, batches)]
        fuse = seed % 3 > 0
        whole = swap(drawn.model, fuse=fuse, layout="nhwc")
        assert whole.layout is not None
        random = changed(drawn.model, lambda _, seed=seed: RandomCosts(seed, 1.0), fuse=fuse)
        for model, change in ((whole.model, whole.layout), random):
            session = cpu_session(ir.to_proto(model))
            for feeds, expected in runs:
                assert_same(expected, session.run(None, feeds), f"seed {seed}")
            nhwc, carried = nhwc + len(change.nodes), carried + len(change.carried)
            removed += change.removed
    # The draws would prove nothing if few nodes changed.
    assert nhwc > 2 * count
    assert carried > 2 * count
    assert removed > 0


def model_of(nodes, initializers=None, *, x=("n", 16, 9, 7), outputs=("y",), opset=17, dtype=np.float32):
    arrays = {name: np.asarray(array) for name, array in (initializers or {}).items()}
    arrays = {
        name: array.astype(dtype) if array.dtype == np.float64 else array for name, array in arrays.items()
    }
    element_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info("x", element_type, x)],
        [helper.make_tensor_value_info(name, element_type, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def conv(x: str, y: str, filters: int = 16, channels: int = 16, **attributes) -> tuple[onnx.NodeProto, dict]:
    weights = np.random.default_rng(len(y)).standard_normal((filters, channels, 3, 3)) / np.sqrt(9 * channels)
    node = helper.make_node("Conv", [x, f"w_{y}"], [y], name=f"conv_{y}", pads=[1, 1, 1, 1], **attributes)
    return node, {f"w_{y}": weights}


def checked(nodes, initializers, *, x=(2, 16, 9, 7), **options) -> tuple[ir.Model, LayoutChange]:
    """Return the model in NHWC, whose outputs were compared with the original's."""
    model = model_of(nodes, initializers, x=x, **options)
    result = swap(model, fuse=True, layout="nhwc")
    feeds = {"x": np.random.default_rng(0).standard_normal(x).astype(options.get("dtype", np.float32))}
    assert_same(
        cpu_session(model).run(None, feeds), cpu_session(result.to_proto()).run(None, feeds), "outputs"
    )
    assert result.layout is not None
    return result.model, result.layout


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def test_only_the_tensor_between_two_convs_becomes_nhwc():
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "y")
    model, change = checked([first, second], w1 | w2)
    assert ops(model) == ["LayoutConv", "LayoutConv"]
    assert change.nodes == {"conv_a": ("output",), "conv_y": ("input",)}
    assert (change.added, change.removed, change.not_carried) == (0, 0, ())
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_a_first_conv_of_three_channels_reads_nchw_and_writes_nhwc():
    parts = [conv("x", "a", channels=3), conv("a", "b"), conv("a", "c")]
    nodes = [*(node for node, _ in parts), helper.make_node("Add", ["b", "c"], ["y"], name="add")]
    _, change = checked(nodes, {**parts[0][1], **parts[1][1], **parts[2][1]}, x=(2, 3, 9, 7))
    assert change.nodes["conv_a"] == ("output",)
    assert change.nodes["conv_b"][0] == "input"


def test_a_first_conv_writes_nhwc_in_place_of_a_transpose():
    (first, w1), (second, w2) = conv("x", "a", channels=3), conv("d", "y")
    nodes = [
        first,
        helper.make_node("Transpose", ["a"], ["b"], name="to_nhwc", perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["b", "scale"], ["c"], name="norm"),
        helper.make_node("Transpose", ["c"], ["d"], name="to_nchw", perm=[0, 3, 1, 2]),
        second,
    ]
    model, change = checked(nodes, w1 | w2 | {"scale": np.linspace(0.5, 2, 16)}, x=(2, 3, 9, 7))
    assert ops(model) == ["LayoutConv", "LayerNormalization", "LayoutConv"]
    assert (change.nodes["conv_a"], change.removed, change.added) == (("output",), 2, 0)


def test_a_group_of_another_type_suits_nchw():
    (node, weights) = conv("x", "y", channels=3)
    model = swap(model_of([node], weights, x=(2, 3, 9, 7))).model
    (swapped,) = model.graph
    swapped.attributes["group"] = ir.AttrString("group", "one")
    costs = ConversionCosts(ValueTypes(model))
    assert costs.conv(swapped, NodeLayouts(False, False, False)) == 0
    assert costs.conv(swapped, NodeLayouts(False, False, True)) > 0


def test_a_filter_larger_than_its_image_costs_no_less_than_nothing():
    """Shape inference gives its result a negative extent, and negative costs were lowered forever."""
    node, weights = conv("x", "y", dilations=[1, 5])
    model = ir.from_proto(model_of([node], weights, x=("n", 16, 9, 1)))
    types = ValueTypes(model)
    (result,) = next(iter(model.graph)).outputs
    assert min(extent or 0 for extent in types.axes(result)) < 0
    assert ConversionCosts(types).transpose(result) > 0


def test_a_residual_and_what_is_added_to_it_are_nhwc():
    (first, w1), (second, w2), (third, w3) = conv("x", "a"), conv("a", "b"), conv("s", "y")
    nodes = [first, second, helper.make_node("Add", ["b", "a"], ["s"], name="add"), third]
    _, change = checked(nodes, w1 | w2 | w3)
    assert change.nodes["conv_b"] == ("input", "residual", "output")


def test_operators_between_convs_are_carried_with_their_axes():
    parts = [conv("x", "a"), conv("a", "b"), conv("joined", "y", channels=32)]
    nodes = [
        parts[0][0],
        parts[1][0],
        helper.make_node("Mul", ["b", "scale"], ["scaled"], name="scaled"),
        helper.make_node("Concat", ["a", "scaled"], ["joined"], name="joined", axis=-3),
        parts[2][0],
    ]
    scale = {"scale": np.random.default_rng(1).standard_normal((16, 9, 7))}
    model, change = checked(nodes, parts[0][1] | parts[1][1] | parts[2][1] | scale)
    assert change.carried == ("scaled", "joined")
    assert change.added == 0
    (concat,) = (node for node in model.graph if node.op_type == "Concat")
    assert concat.attributes["axis"].as_int() == 3


def test_a_node_without_a_form_for_nhwc_gets_one_transpose_on_each_side_and_a_reason():
    parts = [conv("x", "a"), conv("a", "b"), conv("n", "c"), conv("c", "d"), conv("joined", "y", channels=32)]
    nodes = [
        parts[0][0],
        parts[1][0],
        helper.make_node("LRN", ["b"], ["n"], name="norm", size=3),
        parts[2][0],
        parts[3][0],
        helper.make_node("Concat", ["b", "d"], ["joined"], name="joined", axis=1),
        parts[4][0],
    ]
    weights = {name: array for _, part in parts for name, array in part.items()}
    model, change = checked(nodes, weights)
    # `n` is read by one Conv, which takes it in NCHW for the cost of one Transpose.
    assert ops(model).count("Transpose") == change.added == 1
    assert [(record.node, record.reason) for record in change.not_carried] == [
        ("norm", "it has no form for NHWC")
    ]


def test_transposes_of_a_model_that_was_channels_last_go():
    (first, w1), (second, w2) = conv("x", "a"), conv("b", "y")
    nodes = [
        first,
        helper.make_node("Transpose", ["a"], ["last"], name="to_last", perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["last", "gamma"], ["normal"], name="normal", axis=-1),
        helper.make_node("Transpose", ["normal"], ["b"], name="from_last", perm=[0, 3, 1, 2]),
        second,
    ]
    model, change = checked(nodes, w1 | w2 | {"gamma": np.random.default_rng(2).random(16)})
    assert ops(model) == ["LayoutConv", "LayerNormalization", "LayoutConv"]
    assert (change.added, change.removed) == (0, 2)


def test_a_model_with_nhwc_inputs_and_outputs_loses_all_transposes():
    (first, w1), (second, w2) = conv("first", "a"), conv("a", "b")
    nodes = [
        helper.make_node("Transpose", ["x"], ["first"], perm=[0, 3, 1, 2]),
        first,
        second,
        helper.make_node("Transpose", ["b"], ["c"], perm=[0, 2, 3, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model, change = checked(nodes, w1 | w2, x=(2, 9, 7, 16))
    assert ops(model) == ["LayoutConv", "LayoutConv", "Relu"]
    assert change.removed == 2


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_a_pool_behind_a_concat_is_carried_as_layout_pool(pool):
    parts = [conv("x", "a"), conv("a", "b"), conv("small", "y", channels=32)]
    padding = {"count_include_pad": 1} if pool == "AveragePool" else {}
    nodes = [
        parts[0][0],
        parts[1][0],
        helper.make_node("Concat", ["a", "b"], ["joined"], name="joined", axis=1),
        helper.make_node(pool, ["joined"], ["small"], name="pool", kernel_shape=[3, 2], strides=[2, 1],
                         pads=[1, 1, 0, 0], ceil_mode=1, **padding),
        parts[2][0],
    ]  # fmt: skip
    model, change = checked(nodes, parts[0][1] | parts[1][1] | parts[2][1])
    assert ops(model) == ["LayoutConv", "LayoutConv", "Concat", "LayoutPool", "LayoutConv"]
    assert change.carried == ("joined", "pool") and change.added == 0
    node = next(node for node in model.graph if node.op_type == "LayoutPool")
    windows = {"kernel_shape": (3, 2), "strides": (2, 1), "pads": (1, 1, 0, 0), "ceil_mode": 1}
    written = {name: attribute.value for name, attribute in node.attributes.items()}
    assert written == {"pool": pool} | windows | padding


def test_same_padding_of_a_pool_becomes_pads():
    parts = [conv("x", "a"), conv("a", "b"), conv("s", "y", channels=32)]
    nodes = [
        parts[0][0],
        parts[1][0],
        helper.make_node("Concat", ["a", "b"], ["joined"], name="joined", axis=1),
        helper.make_node(
            "MaxPool", ["joined"], ["s"], name="pool", kernel_shape=[2, 2], auto_pad="SAME_LOWER"
        ),
        parts[2][0],
    ]
    model, _ = checked(nodes, parts[0][1] | parts[1][1] | parts[2][1])
    node = next(node for node in model.graph if node.op_type == "LayoutPool")
    assert tuple(node.attributes["pads"].as_ints()) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    "attributes, reason",
    [
        ({"dilations": [2, 1]}, "its dilations are (2, 1), which convswap does not compute"),
        (
            {"auto_pad": "SAME_UPPER", "strides": [3, 1]},
            "its auto_pad is SAME_UPPER with strides beyond its kernel",
        ),
        ({"kernel_shape": [17, 16], "pads": [8, 8, 8, 8]}, "its window has more than 256 positions"),
    ],
)
def test_a_pool_that_the_library_does_not_have_stays_in_nchw(attributes, reason):
    (first, w1), (second, w2), (third, w3) = conv("x", "a"), conv("a", "b"), conv("sum", "z")
    pool = helper.make_node("MaxPool", ["sum"], ["y"], name="pool", **{"kernel_shape": [2, 2]} | attributes)
    nodes = [first, second, helper.make_node("Add", ["a", "b"], ["sum"], name="sum"), third, pool]
    model, change = checked(nodes, w1 | w2 | w3, outputs=("z", "y"))
    assert "MaxPool" in ops(model)
    assert [(record.node, record.reason) for record in change.not_carried] == [("pool", reason)]


def test_a_pool_whose_indices_are_read_stays_in_nchw_and_unread_ones_go():
    parts = [conv("x", "a"), conv("a", "b"), conv("p", "c", channels=32)]
    weights = {name: array for _, part in parts for name, array in part.items()}
    nodes = [
        parts[0][0],
        parts[1][0],
        helper.make_node("Concat", ["a", "b"], ["joined"], name="joined", axis=1),
        helper.make_node(
            "MaxPool", ["joined"], ["p", "places"], name="pool", kernel_shape=[2, 2], storage_order=1
        ),
        parts[2][0],
    ]
    model, _ = checked(nodes, weights, outputs=("c",))
    assert "LayoutPool" in ops(model)
    original = model_of(
        [*nodes, helper.make_node("Cast", ["places"], ["y"], to=TensorProto.FLOAT)],
        weights,
        outputs=("c", "y"),
    )
    result = swap(original, fuse=True, layout="nhwc")
    assert "MaxPool" in ops(result.model)
    assert [record.reason for record in result.layout.not_carried] == [
        "its Indices are read, which convswap does not compute"
    ]


def pyramid_model() -> onnx.ModelProto:
    """Return a model with YOLO's three pools in a row."""
    parts = [conv("x", "a"), conv("joined", "y", channels=64)]
    pools = [
        helper.make_node(
            "MaxPool", [read], [written], name=f"pool_{written}", kernel_shape=[5, 5], pads=[2] * 4
        )
        for read, written in (("a", "p1"), ("p1", "p2"), ("p2", "p3"))
    ]
    concat = helper.make_node("Concat", ["a", "p1", "p2", "p3"], ["joined"], name="joined", axis=1)
    return model_of([parts[0][0], *pools, concat, parts[1][0]], parts[0][1] | parts[1][1])


def test_three_pools_in_a_row_need_no_transpose():
    result = swap(pyramid_model(), fuse=True, layout="nhwc")
    assert ops(result.model) == ["LayoutConv", *["LayoutPool"] * 3, "Concat", "LayoutConv"]


def test_commands_take_a_file_with_pools_in_nhwc(tmp_path, device):
    path = tmp_path / "pools.onnx"
    original = pyramid_model()
    result = swap(original, fuse=True, layout="nhwc")
    result.save(path)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 16, 9, 7), np.float32)}
    plain = ir.to_proto(plain_model(ir.load(path)))
    assert not any(node.domain for node in plain.graph.node)
    assert_same(cpu_session(original).run(None, feeds), cpu_session(plain).run(None, feeds), "plain model")
    again = swap(path, layout="nhwc")
    assert ops(again.model) == ops(result.model)
    assert len(explain(path, device=device).convs) == 2
    assert compare(path, device=device, batch=2, images=2, time_layers=False).verdict.agree


def test_warm_names_the_kernels_of_pools(tmp_path):
    path = tmp_path / "pools.onnx"
    swap(pyramid_model(), fuse=True, layout="nhwc").save(path)
    problems = conv_problems(
        path, PlanOptions(2, "tf32", "auto"), absent_card(90), run_on=choose_device("cpu")
    )
    assert problems.op_types == (("LayoutPool", "float32"),)
    instances = [
        f"pool::kernel<float, {arguments}>" for arguments in ("false, 1", "true, 1", "true, 4", "true, 0")
    ]
    assert op_kernels(problems.op_types) == instances


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("pool", ["GlobalAveragePool", "ReduceMean"])
def test_squeeze_and_excitation_is_carried(pool, dtype):
    parts = [conv("x", "a"), conv("scaled", "y")]
    options = {} if pool == "GlobalAveragePool" else {"axes": [2, 3]}
    nodes = [
        parts[0][0],
        helper.make_node(pool, ["a"], ["mean"], name="mean", **options),
        helper.make_node("Conv", ["mean", "w"], ["gate"], name="gate"),
        helper.make_node("Sigmoid", ["gate"], ["opened"], name="opened"),
        helper.make_node("Mul", ["a", "opened"], ["scaled"], name="scaled"),
        parts[1][0],
    ]
    weights = parts[0][1] | parts[1][1] | {"w": np.random.default_rng(3).standard_normal((16, 16, 1, 1)) / 4}
    # Images of more positions than a thread of LayoutPool adds up.
    model, change = checked(nodes, weights, dtype=dtype, x=(2, 16, 20, 17))
    assert set(change.carried) == {"mean", "scaled"}
    assert "LayoutPool" in ops(model) and "Transpose" not in ops(model)
    assert change.muls == ("scaled",)
    assert change.to_json()["muls"] == ["scaled"]
    assert change.lines()[0].endswith("Mul nodes of the library: 1")


def muls(nodes: list[onnx.NodeProto], channels: int = 16, dtype: type = np.float32) -> list[ir.Node]:
    """Return the Muls, in NHWC, of a model whose `nodes` compute "factors" of "a", which is their product."""
    parts = [conv("x", "a", filters=channels), conv("b", "y", channels=channels)]
    mul = helper.make_node("Mul", ["factors", "a"], ["b"], name="mul")
    model = model_of([parts[0][0], *nodes, mul, parts[1][0]], parts[0][1] | parts[1][1], dtype=dtype)
    swapped = swap(model, fuse=True, layout="nhwc")
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 16, 9, 7)).astype(dtype)}
    assert_same(
        cpu_session(model).run(None, feeds), cpu_session(swapped.to_proto()).run(None, feeds), "outputs"
    )
    return [node for node in swapped.model.graph if node.op_type == "Mul"]


def mean(*axes: int, y: str = "factors") -> onnx.NodeProto:
    return helper.make_node("ReduceMean", ["a"], [y], name=y, axes=axes)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_mul_by_factors_of_images_and_channels_becomes_the_librarys(dtype):
    (mul,) = muls([mean(2, 3)], dtype=dtype)
    assert (mul.domain, mul.inputs[0].producer().op_type) == ("convswap", "LayoutConv")


@pytest.mark.parametrize(
    "channels, nodes",
    [
        (6, [mean(2, 3)]),
        (16, [mean(0, 2, 3)]),
        (16, [mean(1, 2, 3)]),
        (16, [mean(3)]),
        (16, [mean(0, 2, 3, y="m"), helper.make_node("Constant", [], ["shape"], value_ints=[16, 1, 1]),
              helper.make_node("Reshape", ["m", "shape"], ["factors"], name="flat")]),
    ],
    ids=["no whole vectors", "one image", "one channel", "rows", "another rank"],
)  # fmt: skip
def test_other_muls_stay_those_of_onnx(channels, nodes):
    assert [mul.domain for mul in muls(nodes, channels)] == [""]


@pytest.mark.parametrize("keeps_axes", [0, 1])
@pytest.mark.parametrize("size", [(9, 7), (31,), (3, 5, 4)])
def test_means_of_every_rank_are_carried(size, keeps_axes):
    rank = len(size)
    weights = {name: np.full((16, 16, *[1] * rank), value) for name, value in (("v", 0.1), ("w", -0.2))}
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["a"], name="first"),
        helper.make_node("Conv", ["a", "w"], ["b"], name="second"),
        helper.make_node(
            "ReduceMean", ["b"], ["y"], name="mean", axes=list(range(2, 2 + rank)), keepdims=keeps_axes
        ),
    ]
    model, change = checked(nodes, weights, x=(2, 16, *size))
    assert change.carried == ("mean",)
    assert ops(model).count("Reshape") == (rank != 2) + (rank != 2 or not keeps_axes)


def test_a_mean_over_many_positions_needs_channels_that_fill_vectors():
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "b", filters=6)
    nodes = [first, second, helper.make_node("GlobalAveragePool", ["b"], ["y"], name="mean")]
    for size, is_carried in (((9, 7), True), ((20, 17), False)):
        _, change = checked(nodes, w1 | w2, x=(2, 16, *size))
        assert [record.node for record in change.not_carried] == ([] if is_carried else ["mean"])


def normalisation(x: str, y: str, channels: int, **attributes) -> tuple[onnx.NodeProto, dict]:
    generator = np.random.default_rng(len(x))
    names = [f"{part}_{y}" for part in ("scale", "bias", "mean", "variance")]
    numbers = [*generator.standard_normal((3, channels)), generator.uniform(0.5, 2.0, channels)]
    node = helper.make_node("BatchNormalization", [x, *names], [y], name=f"norm_{y}", **attributes)
    return node, dict(zip(names, numbers, strict=True))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_batch_normalisation_behind_a_concat_becomes_a_depthwise_conv_with_its_activation(dtype):
    parts = [conv("x", "a"), conv("a", "b"), normalisation("joined", "n", 32), conv("r", "y", channels=32)]
    nodes = [
        parts[0][0],
        parts[1][0],
        helper.make_node("Concat", ["a", "b"], ["joined"], name="joined", axis=1),
        parts[2][0],
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        parts[3][0],
    ]
    weights = {name: array for _, arrays in parts for name, array in arrays.items()}
    model, change = checked(nodes, weights, dtype=dtype)
    assert ops(model) == ["LayoutConv", "LayoutConv", "Concat", "LayoutConv", "LayoutConv"]
    assert change.carried == ("joined", "norm_n") and change.added == 0
    (record,) = change.batch_norms
    assert (record.node, record.fused_nodes) == ("norm_n", (("Relu", "relu"),))


@pytest.mark.parametrize(
    ("channels", "attributes", "reason"),
    [
        (12, {}, "its channels are not known to be a multiple of 8"),
        (16, {"training_mode": 1}, "it is in training mode"),
    ],
)
def test_batch_normalisations_that_stay(channels, attributes, reason):
    parts = [conv("x", "a", channels), conv("a", "b", channels, channels), normalisation("s", "y", channels)]
    nodes = [parts[0][0], parts[1][0], helper.make_node("Sub", ["a", "b"], ["s"], name="sub"), parts[2][0]]
    weights = {name: array for _, arrays in parts for name, array in arrays.items()}
    model = model_of(nodes, weights, x=(2, 16, 9, 7))
    for name, value in attributes.items():
        next(node for node in model.graph.node if node.name == "norm_y").attribute.append(
            helper.make_attribute(name, value)
        )
    result = swap(model, fuse=True, layout="nhwc")
    assert result.layout is not None and "BatchNormalization" in ops(result.model)
    reasons = [record.reason for record in result.layout.not_carried if record.node == "norm_y"]
    assert reasons == [reason]


def test_values_that_a_subgraph_reads_are_nchw_there():
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "b")
    inner, w3 = conv("a", "inside")
    then = helper.make_graph(
        [inner], "then", [], [helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["a"], ["outside"])],
        "other",
        [],
        [helper.make_tensor_value_info("outside", TensorProto.FLOAT, None)],
    )
    nodes = [
        first,
        second,
        helper.make_node("If", ["condition"], ["chosen"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["chosen", "b"], ["y"]),
    ]
    checked(nodes, w1 | w2 | w3 | {"condition": np.array(True)})


def test_the_report_says_what_changed():
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "y")
    model = model_of([first, second], w1 | w2)
    assert "layout" not in swap(model).report()
    assert swap(model, layout="nhwc").report()["layout"] == {
        "nhwc": {"conv_a": ["output"], "conv_y": ["input"]},
        "carried": [],
        "transposes_added": 0,
        "transposes_removed": 0,
        "not_carried": [],
    }


def test_the_argument_model_and_the_model_in_nchw_stay_as_they_are():
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "y")
    model = ir.from_proto(model_of([first, second], w1 | w2))
    result = swap(model, layout="nhwc")
    assert ops(model) == ["Conv", "Conv"]
    assert ops(result.nchw_model) == ["Conv", "Conv"]
    assert result.nchw_model is not result.model


def test_an_unknown_layout_is_refused():
    (first, weights) = conv("x", "y")
    with pytest.raises(ConvswapError, match="unknown layout 'nhcw'; did you mean 'nhwc'"):
        swap(model_of([first], weights), layout="nhcw")


def test_without_a_card_auto_says_so_and_changes_nothing(monkeypatch):
    monkeypatch.setattr("convswap._native.cuda_devices", list)
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "y")
    result = swap(model_of([first, second], w1 | w2), layout="auto")
    assert ops(result.model) == ["Conv", "Conv"]
    assert any("there is none" in note for note in result.notes)


def depthwise_model() -> onnx.ModelProto:
    generator = np.random.default_rng(4)
    (first, w1) = conv("x", "a")
    nodes = [
        first,
        helper.make_node("Conv", ["a", "d"], ["b"], name="depthwise", group=16, pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["b", "p"], ["c"], name="pointwise"),
    ]
    weights = w1 | {"d": generator.random((16, 1, 3, 3)), "p": generator.random((16, 16, 1, 1))}
    (last, w2) = conv("c", "y")
    return model_of([*nodes, last], weights | w2)


class CostsOfPairs:
    """Costs in which a depthwise Conv and the 1x1 Conv after it take `pair` as one node, else 1 each."""

    def __init__(self, pair: float) -> None:
        self._pair = pair

    def conv(self, node, layouts) -> float:
        base = self._pair if len(node.inputs) > 4 else 1.0
        return base - 0.1 * sum(layouts)

    def transpose(self, value) -> float:
        return 1.0


@pytest.mark.parametrize("pair, has_pair", [(1.0, True), (3.0, False)])
def test_auto_fuses_a_depthwise_conv_with_the_next_only_where_that_is_faster(monkeypatch, pair, has_pair):
    monkeypatch.setattr("convswap._native.cuda_devices", lambda: [{"memory_bandwidth": 1e12}])
    monkeypatch.setattr("convswap.graph.swap.EstimatedCosts", lambda types, batch: CostsOfPairs(pair))
    model = swap(depthwise_model(), fuse=True, layout="auto").model
    assert any(len(node.inputs) > 4 for node in model.graph) is has_pair


def test_nhwc_computes_a_depthwise_conv_and_the_next_as_two_nodes():
    result = swap(depthwise_model(), fuse=True, layout="nhwc")
    assert ops(result.model) == ["LayoutConv"] * 4
    assert result.layout is not None and result.layout.nodes["depthwise"] == ("input", "output")


def test_pads_for_axes_that_are_computed_keep_the_whole_graph_in_nchw():
    parts = [conv("x", "a"), conv("a", "b"), conv("padded", "y")]
    padding = helper.make_node("Pad", ["b", "pads", "", "axes"], ["padded"], name="padding")
    computed = helper.make_node("Identity", ["given"], ["pads"])
    model = model_of(
        [parts[0][0], parts[1][0], computed, padding, parts[2][0]],
        {**parts[0][1], **parts[1][1], **parts[2][1], "axes": np.array([2, 3])},
        opset=18,
    )
    model.graph.input.append(helper.make_tensor_value_info("given", TensorProto.INT64, [4]))
    # ONNX Runtime would move a Transpose through this Pad, and fail.
    assert swap(model, layout="nhwc").layout.nodes == {}


def test_a_resize_for_named_axes_is_for_all_axes_next_to_a_transpose():
    parts = [conv("x", "a"), conv("a", "b"), conv("a", "c"), conv("large", "d"), conv("large", "e")]
    resize = helper.make_node(
        "Resize", ["a", "", "scales"], ["large"], name="resize", mode="linear", axes=[2, 3],
        coordinate_transformation_mode="asymmetric",
    )  # fmt: skip
    nodes = [parts[0][0], parts[1][0], parts[2][0], resize, parts[3][0], parts[4][0]]
    weights = {name: array for _, part in parts for name, array in part.items()}
    scales = {"scales": np.array([2, 3], np.float32)}
    model, change = checked(nodes, weights | scales, opset=18, outputs=("b", "c", "d", "e"))
    assert change.added > 0
    (node,) = (node for node in model.graph if node.op_type == "Resize")
    assert "axes" not in node.attributes


def test_a_pad_for_named_axes_is_for_all_axes_also_where_it_stays_in_nchw():
    parts = [conv("x", "a"), conv("a", "b"), conv("a", "c")]
    pad = helper.make_node("Pad", ["n", "pads", "", "axes"], ["d"], name="pad")
    norm = helper.make_node("LRN", ["a"], ["n"], name="norm", size=3)
    operands = {"pads": np.array([1, 2, 0, 3]), "axes": np.array([2, 3])}
    model, change = checked(
        [*(node for node, _ in parts), norm, pad],
        {**parts[0][1], **parts[1][1], **parts[2][1], **operands},
        opset=18,
        outputs=("b", "c", "d"),
    )
    assert change.added > 0
    (node,) = (node for node in model.graph if node.op_type == "Pad")
    assert len(node.inputs) < 4


def test_new_nodes_and_values_have_names_of_their_own():
    parts = [conv("x", "a"), conv("a", "b"), conv("a", "c")]
    other = helper.make_node("LRN", ["a"], ["a/NHWC"], name="a/Transpose", size=3)
    model, _ = checked(
        [*(node for node, _ in parts), other],
        {**parts[0][1], **parts[1][1], **parts[2][1]},
        outputs=("b", "c", "a/NHWC"),
    )
    names = [node.name for node in model.graph]
    assert len(set(names)) == len(names)


def test_constants_that_nothing_reads_any_more_are_removed():
    parts = [conv("x", "a"), conv("scaled", "y")]
    scale = {"scale": np.random.default_rng(1).standard_normal((16, 1, 1))}
    nodes = [parts[0][0], helper.make_node("Mul", ["a", "scale"], ["scaled"], name="scaled"), parts[1][0]]
    model = swap(model_of(nodes, parts[0][1] | parts[1][1] | scale), fold=False, layout="nhwc").model
    assert "scale" not in model.graph.initializers


@pytest.mark.parametrize(
    "node, extra",
    [
        (helper.make_node("Relu", ["unused"], ["dead"]), {"unused": np.ones((2, 16, 9, 7))}),
        (helper.make_node("Add", ["a", "empty"], ["dead"]), {"empty": np.ones((1, 1, 1, 1))}),
    ],
)
def test_nodes_that_nothing_reads_do_no_harm(node, extra):
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "y")
    checked([first, node, second], w1 | w2 | extra)


def test_data_that_are_also_the_weights_stay_in_nchw():
    (first, w1) = conv("x", "a")
    nodes = [first, helper.make_node("Conv", ["a", "a"], ["y"], name="correlation")]
    model, _ = checked(nodes, w1, x=(16, 16, 3, 3))
    assert "LayoutConv" not in ops(model)


def test_a_flatten_of_unknown_shape_is_not_taken_for_one_of_a_single_position():
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "b")
    nodes = [
        first,
        second,
        helper.make_node("Reshape", ["b", "shape"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["y"]),
    ]
    model = model_of(nodes, w1 | w2, x=(2, 16, 9, 7))
    model.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, ["k"]))
    for name in ("c", "d"):
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 16, 9, 7]))
    feeds = {
        "x": np.random.default_rng(0).standard_normal((2, 16, 9, 7), np.float32),
        "shape": np.array([2, 16, 9, 7]),
    }
    changed_session = cpu_session(swap(model, layout="nhwc").to_proto())
    assert_same(cpu_session(model).run(None, feeds), changed_session.run(None, feeds), "outputs")


def test_a_pair_that_gains_nothing_in_nhwc_stays_one_node():
    generator = np.random.default_rng(5)
    nodes = [
        helper.make_node("Conv", ["x", "d"], ["a"], name="depthwise", group=12),
        helper.make_node("Conv", ["a", "p"], ["y"], name="pointwise"),
    ]
    weights = {"d": generator.random((12, 1, 3, 3)), "p": generator.random((12, 12, 1, 1))}
    result = swap(model_of(nodes, weights, x=(2, 12, 9, 7)), fuse=True, layout="nhwc")
    assert ops(result.model) == ["FusedConv"]


@pytest.mark.parametrize("batch", [0, -1, 2.5])
def test_a_batch_that_is_no_count_is_refused(batch):
    (first, weights) = conv("x", "y")
    with pytest.raises(ConvswapError, match="batch must be"):
        swap(model_of([first], weights), layout="auto", batch=batch)


def test_the_command_passes_layout_and_batch_on(tmp_path, capsys):
    (first, w1), (second, w2) = conv("x", "a"), conv("a", "y")
    onnx.save(model_of([first, second], w1 | w2), tmp_path / "in.onnx")
    files = [str(tmp_path / name) for name in ("in.onnx", "out.onnx")]
    assert main(["swap", files[0], "-o", files[1], "--layout", "nhwc", "--batch", "64"]) == 0
    assert "Conv with NHWC tensors: 2" in capsys.readouterr().out
    assert ops(ir.load(files[1])) == ["LayoutConv", "LayoutConv"]


class PretendCard:
    """The planner for a card whose only estimate is that of naive; `problems` has what was asked."""

    Problem = _native.Problem

    def __init__(self) -> None:
        self.problems: list[str] = []

    def cuda_devices(self):
        return [{"memory_bandwidth": 1e12}]

    def choose(self, problem, device, algorithm):
        return "naive" if algorithm == "auto" else algorithm

    def estimates(self, problem, device):
        self.problems.append(problem.text)
        return {"naive": 2.0, "tiled": None}


@pytest.mark.parametrize(
    "height, algorithm, nchw, nhwc",
    [(9, "auto", 2.0, 2.0), ("h", "auto", 0.0, math.inf), (9, "tiled", 0.0, math.inf)],
    ids=["known", "open height", "no estimate"],
)
def test_estimated_costs_are_the_planner_s(monkeypatch, height, algorithm, nchw, nhwc):
    card = PretendCard()
    monkeypatch.setattr("convswap.graph.layout.costs._native", card)
    (node, weights) = conv("x", "y")
    model = swap(model_of([node], weights, x=("n", 16, height, 7)), algorithm=algorithm).model
    costs = EstimatedCosts(ValueTypes(model), batch=64)
    (swapped,) = model.graph
    assert costs.conv(swapped, NodeLayouts(False, False, False)) == nchw
    assert costs.conv(swapped, NodeLayouts(True, False, True)) == nhwc
    if nchw:
        assert "64" in card.problems[0] and card.problems[0] != card.problems[1]
        # Reading and writing 64 x 16 x 9 x 7 float32 at 45 % of the bandwidth, and 3 us.
        assert costs.transpose(swapped.inputs[0]) == pytest.approx(0.003 + 2 * 64 * 16 * 9 * 7 * 4 / 0.45e9)


class TypicalCard(PretendCard):
    """The planner for a typical card of compute capability 9.0."""

    def choose(self, problem, device, algorithm):
        return _native.choose(problem, device, algorithm, compute_capability=90)

    def estimates(self, problem, device):
        self.problems.append(problem.text)
        return _native.estimates(problem, device, compute_capability=90)


def test_estimated_costs_of_quant_convs_are_the_planner_s(monkeypatch):
    card = TypicalCard()
    monkeypatch.setattr("convswap.graph.layout.costs._native", card)
    model = swap(quantised(residual_net()), fuse=True, layout="nchw").model
    costs = EstimatedCosts(ValueTypes(model), batch=64)
    node = next(each for each in model.graph if each.name == "a2")
    nchw, nhwc = (costs.conv(node, NodeLayouts(*[is_nhwc] * 3)) for is_nhwc in (False, True))
    problem = _native.Problem(
        (64, 16, 8, 9), (16, 16, 3, 3), True, "int8", residual_shape=(64, 16, 8, 9), pads=[1] * 4
    )
    known = card.estimates(problem, "cuda").values()
    # The roundings of the node cost little.
    assert nchw == pytest.approx(min(known), rel=1e-2)
    assert nhwc > 0
    assert all(text.startswith("int8>int8 x=64x16x8x9") for text in card.problems)
    assert "residual" in card.problems[0] and card.problems[1].endswith("layouts=NHWC+NHWC>NHWC")


def test_quant_conv_without_an_estimate_costs_transposes(monkeypatch):
    monkeypatch.setattr("convswap.graph.layout.costs._native", TypicalCard())
    quantised_model = quantised(residual_net())
    quantised_model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    model = swap(quantised_model, fuse=True, layout="nchw").model
    costs = EstimatedCosts(ValueTypes(model), batch=64)
    node = next(each for each in model.graph if each.name == "a1")
    assert costs.conv(node, NodeLayouts(True, False, True)) == 0
    assert costs.conv(node, NodeLayouts(False, False, False)) > 0
