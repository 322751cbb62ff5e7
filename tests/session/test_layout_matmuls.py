"""MatMuls of NHWC tensors become 1x1 Convs: ConvNeXt's blocks keep their outputs, and other MatMuls stay."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from convswap import _native, compare, explain
from convswap.cli.main import main
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import NodeChoice, SwapResult, swap, swap_selected
from convswap.planning.problems import PlanOptions, conv_problems
from convswap.planning.warm import op_kernels
from convswap.runtime.device import absent_card, choose_device
from onnx import helper, numpy_helper
from op_sessions import cpu_session

OPSETS = (10, 13, 17, 20, 22, 25)
GELUS = ("Gelu", "com.microsoft", "erf", "tanh")
CHANNELS, HIDDEN = 16, 32
# Extents of the spatial axes, by rank; they differ from the numbers of channels, so that swapped axes show.
SIZES = {3: (11,), 4: (9, 7), 5: (3, 5, 4)}
# Of a tensor's root mean square: a dozen sums in another order. A wrong axis gives about 1.
TOLERANCES = {np.float32: 1e-4, np.float16: 1e-2}


class Blocks:
    """A model of ConvNeXt-like blocks; options not given are drawn at random.

    Options: `bias`, whether the MatMuls have one; `scale`, where LayerScale is ("before" or "after" the last
    Transpose, or None); `residual`; `open`, the names of the open extents; `form` of constants.
    """

    def __init__(self, seed: int = 0, count: int = 2, **options) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.dtype = self._option(options, "dtype", (np.float32, np.float32, np.float16))
        self.opset = self._option(options, "opset", OPSETS)
        self.rank = self._option(options, "rank", (3, 4, 4, 4, 5))
        gelus = [gelu for gelu in GELUS if self.opset >= 20 or gelu != "Gelu"]
        self.activation = self._option(options, "activation", (*gelus, "Relu", None))
        self.bias = self._option(options, "bias", (True, True, False))
        self.scale = self._option(options, "scale", ("before", "after", None))
        self.residual = self._option(options, "residual", (True, True, False))
        self.open = self._option(options, "open", ((), ("n",), ("n", "h", "w", "d")))
        self.form = self._option(options, "form", ("initializer", "Constant", "Identity"))
        self.hidden = options.pop("hidden", HIDDEN)
        assert not options
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.size = SIZES[self.rank]
        value = "x"
        for number in range(count):
            value = self._block(value, f"b{number}")
        self._conv(value, "y", 1)
        self.outputs = ["y"]

    def _option(self, options, name, choices):
        return options.pop(name) if name in options else self.random.choice(choices)

    def feeds(self) -> dict[str, np.ndarray]:
        shape = (2, CHANNELS, *self.size)
        return {"x": np.random.default_rng(7).standard_normal(shape).astype(self.dtype)}

    @property
    def model(self) -> onnx.ModelProto:
        element_type = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        names = ("n", None, "h", "w", "d")
        shape = [name if name in self.open else extent
                 for name, extent in zip(names, (2, CHANNELS, *self.size), strict=False)]  # fmt: skip
        graph = helper.make_graph(
            self.nodes,
            "blocks",
            [helper.make_tensor_value_info("x", element_type, shape)],
            [helper.make_tensor_value_info(name, element_type, None) for name in self.outputs],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def add(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes) -> str:
        node = helper.make_node(op, inputs, [output], name=f"{output}_{op}", domain=domain, **attributes)
        self.nodes.append(node)
        return output

    def add_either(self, op: str, first: str, second: str, output: str) -> str:
        """Add a commutative operator with its operands in a random order."""
        return self.add(op, self.random.sample([first, second], 2), output)

    def constant(self, name: str, array: np.ndarray | float, form: str = "initializer") -> str:
        tensor = numpy_helper.from_array(np.asarray(array, self.dtype), name)
        if form == "Constant":
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            return name
        self.initializers.append(tensor)
        return self.add("Identity", [name], f"{name}_same") if form == "Identity" else name

    def _weights(self, name: str, *shape: int, form: str = "initializer") -> str:
        fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
        return self.constant(name, self.numbers.standard_normal(shape) / np.sqrt(fan_in), form)

    def _conv(self, x: str, y: str, group: int) -> None:
        weights = self._weights(f"{y}_w", CHANNELS, CHANNELS // group, *(3,) * len(self.size))
        self.add("Conv", [x, weights], y, group=group, pads=(1,) * 2 * len(self.size))

    def _block(self, x: str, b: str) -> str:
        self._conv(x, f"{b}_conv", CHANNELS)
        perm = [0, *range(2, self.rank), 1]
        value = self.add("Transpose", [f"{b}_conv"], f"{b}_last", perm=perm)
        value = self._normalise(value, f"{b}_norm")
        value = self._product(value, f"{b}_mm1", CHANNELS, self.hidden)
        value = self._activate(value, f"{b}_act")
        value = self._product(value, f"{b}_mm2", self.hidden, CHANNELS)
        scales = self.numbers.random(CHANNELS) + 0.5
        if self.scale == "before":
            value = self.add_either("Mul", value, self.constant(f"{b}_s", scales), f"{b}_scaled")
        perm = [0, self.rank - 1, *range(1, self.rank - 1)]
        value = self.add("Transpose", [value], f"{b}_first", perm=perm)
        if self.scale == "after":
            scale = self.constant(f"{b}_s", scales.reshape(-1, *(1,) * len(self.size)))
            value = self.add_either("Mul", value, scale, f"{b}_scaled")
        return self.add_either("Add", value, x, f"{b}_sum") if self.residual else value

    def _normalise(self, x: str, name: str) -> str:
        gamma = self.constant(f"{name}_gamma", self.numbers.random(CHANNELS) + 0.5, self.form)
        if self.opset >= 17:
            return self.add("LayerNormalization", [x, gamma], name, axis=-1)
        mean = self.add("ReduceMean", [x], f"{name}_mean", axes=[-1])
        centred = self.add("Sub", [x, mean], f"{name}_centred")
        power = ("Mul", centred) if self.bias else ("Pow", self.constant(f"{name}_2", 2.0))
        square = self.add(power[0], [centred, power[1]], f"{name}_square")
        variance = self.add("ReduceMean", [square], f"{name}_variance", axes=[self.rank - 1])
        epsilon = self.constant(f"{name}_epsilon", 1e-3, self.form)
        positive = self.add_either("Add", variance, epsilon, f"{name}_positive")
        normal = self.add("Div", [centred, self.add("Sqrt", [positive], f"{name}_root")], f"{name}_normal")
        if self.scale is None:
            return self.add_either("Mul", normal, gamma, name)
        beta = self.constant(f"{name}_beta", self.numbers.standard_normal(CHANNELS), self.form)
        return self.add_either("Add", self.add_either("Mul", normal, gamma, f"{name}_scaled"), beta, name)

    def _product(self, x: str, name: str, c: int, k: int) -> str:
        product = self.add("MatMul", [x, self._weights(f"{name}_w", c, k, form=self.form)], name)
        if not self.bias:
            return product
        bias = self.constant(f"{name}_b", self.numbers.standard_normal(k))
        return self.add_either("Add", product, bias, f"{name}_biased")

    def _activate(self, x: str, name: str) -> str:
        if self.activation is None:
            return x
        if self.activation in ("Relu", "Gelu"):
            return self.add(self.activation, [x], name)
        if self.activation == "com.microsoft":
            return self.add("Gelu", [x], name, "com.microsoft")
        one, half = self.constant(f"{name}_1", 1.0), self.constant(f"{name}_half", 0.5)
        if self.activation == "erf":
            scaled = self.add("Div", [x, self.constant(f"{name}_root", np.sqrt(2))], f"{name}_scaled")
            function = self.add("Erf", [scaled], f"{name}_f")
        else:
            cube = self.add("Mul", [self.add("Mul", [x, x], f"{name}_square"), x], f"{name}_cube")
            term = self.add_either("Mul", cube, self.constant(f"{name}_c", 0.044715), f"{name}_term")
            total = self.add_either("Add", x, term, f"{name}_total")
            factor = self.constant(f"{name}_factor", np.sqrt(2 / np.pi))
            function = self.add("Tanh", [self.add_either("Mul", total, factor, f"{name}_arg")], f"{name}_f")
        sum_ = self.add_either("Add", function, one, f"{name}_sum")
        return self.add_either("Mul", self.add_either("Mul", x, sum_, f"{name}_double"), half, name)


def checked(blocks: Blocks, **options) -> SwapResult:
    """Return the model in NHWC, whose outputs were compared with the original's."""
    original = blocks.model
    result = swap(original, **{"fuse": True, "layout": "nhwc"} | options)
    assert_same_outputs(blocks, original, result.to_proto())
    return result


def assert_same_outputs(blocks: Blocks, original: onnx.ModelProto, changed: onnx.ModelProto) -> None:
    runs = [cpu_session(model).run(None, blocks.feeds()) for model in (original, changed)]
    for expected, actual in zip(*runs, strict=True):
        assert expected.shape == actual.shape
        expected, actual = expected.astype(np.float64), actual.astype(np.float64)
        assert np.linalg.norm(actual - expected) <= TOLERANCES[blocks.dtype] * np.linalg.norm(expected)


def counts(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph))


def matmuls(result: SwapResult) -> dict[str, list[str]]:
    """Return the ops that each replaced MatMul includes."""
    assert result.layout is not None
    return {record.node: [op for op, _ in record.fused_nodes] for record in result.layout.matmuls}


def plain_block(**options) -> Blocks:
    """Return a block with everything that ConvNeXt has."""
    defaults = {"dtype": np.float32, "opset": 20, "rank": 4, "activation": "Gelu", "bias": True,
                "scale": "after", "residual": True, "open": (), "form": "initializer"}  # fmt: skip
    return Blocks(**{"count": 1} | defaults | options)


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_random_blocks_keep_their_outputs_and_lose_their_matmuls(first):
    for seed in range(first, first + 10):
        blocks = Blocks(seed)
        result = checked(blocks)
        left = counts(result.model)
        # Without a bias, an activation, or a scale and a residual there is nothing to fuse. A scale directly
        # in front of the next Conv is folded into that one.
        is_scaled = blocks.residual or blocks.scale == "before"
        included = [blocks.bias or blocks.activation, blocks.bias or is_scaled]
        assert left["MatMul"] == 2 * sum(not each for each in included), seed
        if all(included):
            passing = ("LayoutConv", "Constant", "Identity")
            others = {str(node.name) for node in result.model.graph if node.op_type not in passing}
            assert all("_norm" in name or "Transpose" in name for name in others), (seed, others)
            assert left["Transpose"] <= 1, seed
        assert left["LayoutConv"] == 3 + 2 * sum(map(bool, included))


@pytest.mark.parametrize("scale", ["before", "after"])
def test_bias_gelu_scale_and_residual_are_included(scale):
    result = checked(plain_block(scale=scale))
    assert matmuls(result) == {
        "b0_mm1_MatMul": ["Add", "Gelu"],
        "b0_mm2_MatMul": ["Add", "Mul", "Add"],
    }
    assert counts(result.model) == {"Transpose": 1, "LayoutConv": 4, "LayerNormalization": 1}
    # Only constants of nodes that are left remain.
    names = {value.name for node in result.model.graph for value in node.inputs if value is not None}
    assert set(result.model.graph.initializers) <= names


def norms(result: SwapResult) -> list[ir.Node]:
    return [node for node in result.model.graph if node.op_type == "LayerNormalization"]


def test_layer_normalisations_of_nhwc_tensors_become_those_of_the_library():
    result = checked(plain_block(count=2, dtype=np.float16, open=("n",)))
    assert [node.domain for node in norms(result)] == ["convswap", "convswap"]
    names = [node.name for node in norms(result)]
    assert result.report()["layout"]["layer_norms"] == names
    assert result.layout.lines()[0].endswith("LayerNormalization nodes of the library: 2")
    assert norms(checked(plain_block(), fuse=False))[0].domain == "convswap"
    assert norms(checked(plain_block(), layout="nchw"))[0].domain == ""


def older_block(**options) -> Blocks:
    """Return a block of an opset without LayerNormalization, which is several nodes there."""
    return plain_block(**{"opset": 13, "activation": "erf"} | options)


@pytest.mark.parametrize("form", ["initializer", "Constant", "Identity"])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"scale": None}, {"dtype": np.float16}])
def test_decomposed_layer_normalisations_become_those_of_the_library(options, form):
    result = checked(older_block(form=form, **options))
    (norm,) = norms(result)
    name = "b0_norm_Mul" if "scale" in options else "b0_norm_Add"
    assert (norm.domain, norm.name) == ("convswap", name)
    assert norm.attributes["epsilon"].as_float() == pytest.approx(1e-3, rel=1e-3)
    assert not {"ReduceMean", "Sub", "Sqrt", "Div"} & set(counts(result.model))
    report = result.report()["layout"]
    assert report["layer_norms"] == [norm.name]
    assert set(report["carried"]) <= {node.name for node in result.model.graph}
    names = {value.name for node in result.model.graph for value in node.inputs if value is not None}
    assert set(result.model.graph.initializers) <= names


@pytest.mark.parametrize(
    "value", ["mean", "centred", "square", "variance", "positive", "root", "normal", "scaled"]
)
def test_decomposed_layer_normalisations_whose_values_are_read_stay(value):
    for reader in (True, False):
        blocks = older_block()
        if reader:
            blocks.add("Neg", [f"b0_norm_{value}"], "z")
        blocks.outputs.append("z" if reader else f"b0_norm_{value}")
        left = norms(checked(blocks))
        # With another reader before the bias, the Add of the bias stays.
        assert [norm.name for norm in left] == (["b0_norm_scaled_Mul"] if value == "scaled" else [])


@pytest.mark.parametrize("inner", range(1, 9))
def test_decomposed_layer_normalisations_that_continue_in_a_branch_stay(inner):
    """The last `inner` nodes of nine are in both branches of an If."""
    blocks = older_block()
    first = next(i for i, node in enumerate(blocks.nodes) if node.output[0] == "b0_norm_mean")
    last = next(i for i, node in enumerate(blocks.nodes) if node.output[0] == "b0_norm")
    moved = [node for node in blocks.nodes[first : last + 1] if node.op_type not in ("Constant", "Identity")]
    moved = moved[len(moved) - inner :]
    branches = {}
    for name in ("then_branch", "else_branch"):
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in moved]
        nodes[-1].output[0] = f"{name}_y"
        y = helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, None)
        branches[name] = helper.make_graph(nodes, name, [], [y])
    condition = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    blocks.nodes[last] = helper.make_node("If", ["yes"], ["b0_norm"], name="if", **branches)
    for node in moved[:-1]:
        blocks.nodes.remove(node)
    blocks.nodes.insert(0, condition)
    # Without its bias, the rest is a normalisation.
    names = ["b0_norm_scaled_Mul"] if inner == 1 else []
    assert [norm.name for norm in norms(checked(blocks))] == names


def test_a_decomposed_layer_normalisation_of_data_without_certain_shape_stays():
    blocks = older_block()
    x = next(i for i, node in enumerate(blocks.nodes) if node.output[0] == "b0_norm_mean")
    shape = helper.make_node("Shape", ["b0_last"], ["shape"], name="shape")
    # An equal shape that no inference knows.
    same = helper.make_node("NonZero", ["shape"], ["places"], name="places")
    gathered = helper.make_node("Gather", ["shape", "places"], ["rows"], name="rows")
    minus = numpy_helper.from_array(np.array([-1]), "minus")
    flat = helper.make_node("Reshape", ["rows", "minus"], ["extents"], name="extents")
    again = helper.make_node("Reshape", ["b0_last", "extents"], ["again"], name="again")
    blocks.initializers.append(minus)
    for node in blocks.nodes[x:]:
        for index, value in enumerate(node.input):
            if value == "b0_last":
                node.input[index] = "again"
    blocks.nodes[x:x] = [shape, same, gathered, flat, again]
    assert norms(checked(blocks)) == []


@pytest.mark.parametrize("wide", ["gamma", "epsilon"])
def test_a_decomposed_layer_normalisation_whose_constants_add_an_axis_stays(wide):
    blocks = older_block()
    last = next(i for i, node in enumerate(blocks.nodes) if node.output[0] == "b0_norm")
    del blocks.nodes[last + 1 :]
    blocks.outputs = ["b0_norm"]
    assert len(norms(checked(blocks))) == 1
    tensor = next(each for each in blocks.initializers if each.name == f"b0_norm_{wide}")
    tensor.dims[:] = [*[1] * (5 - len(tensor.dims)), *tensor.dims]
    assert norms(checked(blocks)) == []


def with_other_axis(block: Blocks) -> None:
    node = next(node for node in block.nodes if node.output[0] == "b0_norm_variance")
    node.attribute[0].ints[:] = [2]


def with_other_square(block: Blocks) -> None:
    node = next(node for node in block.nodes if node.output[0] == "b0_norm_square")
    node.input[:] = ["b0_last"] * 2


def with_reversed_quotient(block: Blocks) -> None:
    node = next(node for node in block.nodes if node.output[0] == "b0_norm_normal")
    node.input[:] = node.input[::-1]


def with_computed_scale(block: Blocks) -> None:
    index = next(i for i, node in enumerate(block.nodes) if node.output[0] == "b0_norm_scaled")
    node = block.nodes[index]
    gamma = next(name for name in node.input if name.endswith("gamma"))
    node.input[list(node.input).index(gamma)] = "absolute"
    block.nodes.insert(index, helper.make_node("Mul", [gamma, "b0_norm_root"], ["absolute"], name="absolute"))


@pytest.mark.parametrize(
    "change",
    [with_other_axis, with_other_square, with_reversed_quotient, with_computed_scale],
)
def test_nodes_like_a_layer_normalisation_stay(change):
    blocks = older_block()
    change(blocks)
    assert norms(checked(blocks)) == []


def test_commands_take_a_file_of_an_older_opset_with_layer_normalisations(tmp_path, device):
    path, blocks = tmp_path / "blocks.onnx", older_block()
    result = checked(blocks)
    result.save(path)
    plain = ir.to_proto(plain_model(ir.load(path)))
    assert {node.domain for node in plain.graph.node} == {""}
    assert_same_outputs(blocks, blocks.model, plain)
    assert compare(path, device=device, batch=2, images=2, time_layers=False).verdict.agree


def test_commands_take_a_file_with_layer_normalisations(tmp_path, device):
    path, blocks = tmp_path / "blocks.onnx", plain_block()
    result = checked(blocks)
    result.save(path)
    assert_same_outputs(blocks, blocks.model, ir.to_proto(plain_model(ir.load(path))))
    assert counts(swap(path, fuse=True, layout="nhwc").model) == counts(result.model)
    assert len(explain(path, device=device).convs) == counts(result.model)["LayoutConv"]
    assert compare(path, device=device, batch=2, images=2, time_layers=False).verdict.agree
    options = PlanOptions(2, "tf32", "auto")
    problems = conv_problems(path, options, absent_card(90), run_on=choose_device("cpu"))
    assert problems.op_types == (("LayerNormalization", "float32"),)
    kernels = {f"layer_norm::kernel<float, {vectors}>" for vectors in range(9)}
    assert set(op_kernels(problems.op_types)) == kernels


def with_axis(node: onnx.NodeProto, blocks: Blocks) -> None:
    node.attribute[0].i = 2
    del node.input[1]
    node.input.append(blocks.constant("plane", np.ones((SIZES[4][1], CHANNELS))))


def with_mean(node: onnx.NodeProto, blocks: Blocks) -> None:
    node.output.append("mean")
    blocks.add("Neg", ["mean"], "z")
    blocks.outputs.append("z")


def with_one_scale(node: onnx.NodeProto, blocks: Blocks) -> None:
    del node.input[1]
    node.input.append(blocks.constant("one", np.ones(1)))


@pytest.mark.parametrize("change", [with_axis, with_mean, with_one_scale])
def test_layer_normalisations_that_the_library_does_not_have_stay(change):
    blocks = plain_block()
    node = next(node for node in blocks.nodes if node.op_type == "LayerNormalization")
    change(node, blocks)
    blocks.nodes.sort(key=lambda each: each.op_type == "Neg")
    assert norms(checked(blocks))[0].domain == ""


@pytest.mark.parametrize("options", [{"layout": "nchw"}, {"fuse": False}], ids=["nchw", "not fused"])
def test_matmuls_stay_without_fusing_or_nhwc(options):
    result = checked(plain_block(), **options)
    assert counts(result.model)["MatMul"] == 2
    assert "MatMul" not in str(result.report().get("layout", {}).get("matmuls", ""))


@pytest.mark.parametrize(
    "value, left", [("b0_mm1", 1), ("b0_mm1_biased", 0), ("b0_act", 0), ("b0_mm2_biased", 0)]
)
def test_values_that_are_outputs_are_kept(value, left):
    blocks = plain_block()
    blocks.outputs.append(value)
    result = checked(blocks)
    assert counts(result.model)["MatMul"] == left
    assert [output.name for output in result.model.graph.outputs] == ["y", value]


def test_a_bias_with_a_second_reader_is_included_and_the_activation_is_not():
    blocks = plain_block()
    blocks.add("Neg", ["b0_mm1_biased"], "z")
    blocks.outputs.append("z")
    assert matmuls(checked(blocks))["b0_mm1_MatMul"] == ["Add"]


def test_matmuls_of_tokens_without_convs_around_stay():
    blocks = plain_block()
    blocks.constant("to_tokens", 0.0)
    shape = numpy_helper.from_array(np.array([0, CHANNELS, -1], np.int64), "shape")
    blocks.initializers.append(shape)
    blocks.add("Reshape", ["y", "shape"], "rows")
    blocks.add("Transpose", ["rows"], "tokens", perm=[0, 2, 1])
    weights = blocks.constant("token_w", np.random.default_rng(1).standard_normal((CHANNELS, CHANNELS)))
    blocks.add("MatMul", ["tokens", weights], "product")
    blocks.add("Softmax", ["product"], "attention", axis=-1)
    blocks.add("MatMul", ["attention", weights], "second")
    blocks.add("Relu", ["second"], "z")
    blocks.outputs = ["z"]
    assert counts(checked(blocks).model)["MatMul"] == 2


def test_a_model_without_nhwc_tensors_keeps_its_matmuls():
    original = plain_block().model
    # No Conv has channels for NHWC: groups of four channels.
    for node in original.graph.node:
        if node.op_type == "Conv":
            node.attribute[0].i = 4
    for tensor in original.graph.initializer:
        if tensor.name in ("b0_conv_w", "y_w"):
            array = np.ones((CHANNELS, CHANNELS // 4, 3, 3), np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    result = swap(original, fuse=True, layout="nhwc")
    assert result.layout is not None and not result.layout.nodes
    assert ir.to_proto(result.model) == swap(original, fuse=True).to_proto()


def test_a_matrix_as_first_operand_and_computed_matrices_stay():
    blocks = plain_block(bias=False, activation="Relu", scale=None)
    first, second = (node for node in blocks.nodes if node.op_type == "MatMul")
    matrix = blocks.constant("left_w", np.random.default_rng(1).standard_normal((7, 7)))
    first.input[:] = [matrix, "b0_norm"]
    blocks.add("Add", [matrix, matrix], "computed")
    blocks.nodes.insert(0, blocks.nodes.pop())
    hidden = blocks.constant("wide", np.random.default_rng(2).standard_normal((CHANNELS, 1)))
    blocks.add("Mul", [hidden, hidden], "computed_w")
    blocks.nodes.insert(0, blocks.nodes.pop())
    del second.input[1]
    second.input.append("computed_w")
    assert counts(swap(blocks.model, fuse=True, layout="nhwc").model)["MatMul"] == 2


def test_matmuls_whose_channels_do_not_suit_nhwc_stay():
    assert matmuls(checked(plain_block(hidden=20))) == {}


def test_only_the_matmuls_whose_names_match_are_replaced():
    result = checked(plain_block(), only="conv_Conv|y_Conv|mm1")
    assert list(matmuls(result)) == ["b0_mm1_MatMul"]
    assert counts(result.model)["MatMul"] == 1


def test_algorithm_and_precision_are_those_of_convs():
    result = checked(plain_block(), precision="ieee", algorithm="reference")
    for node in result.model.graph:
        if node.op_type == "LayoutConv":
            assert node.attributes["precision"].as_string() == "ieee"
            assert node.attributes["algorithm"].as_string() == "reference"


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_selected_convs_bring_their_precision_to_matmuls(precision):
    choices = dict.fromkeys(("b0_conv_Conv", "y_Conv"), NodeChoice(precision=precision))
    result = swap_selected(plain_block().model, choices, "not selected", layout="nhwc")
    node = next(node for node in result.model.graph if node.name == "b0_mm1_MatMul")
    assert ("precision" in node.attributes) is (precision == "ieee")


def test_a_scale_too_small_for_float16_stays():
    blocks = plain_block(dtype=np.float16)
    for tensor in blocks.initializers:
        if tensor.name == "b0_s":
            array = np.full((CHANNELS, 1, 1), 1e-6, np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert matmuls(checked(blocks))["b0_mm2_MatMul"] == ["Add"]


def test_blocks_in_a_branch_are_replaced():
    blocks = plain_block()
    for node in blocks.nodes:
        node.input[:] = ["inner" if name == "x" else name for name in node.input]
    blocks.nodes.insert(0, helper.make_node("Relu", ["x"], ["inner"]))
    # Ranks in a branch are known if they are declared.
    model = onnx.shape_inference.infer_shapes(blocks.model)
    branch = helper.make_graph(model.graph.node, "branch", [], model.graph.output, model.graph.initializer,
                               value_info=model.graph.value_info)  # fmt: skip
    same = helper.make_node("Identity", ["x"], ["same"])
    other = helper.make_graph([same], "other", [], [helper.make_tensor_value_info("same", 1, None)])
    true = helper.make_node("Constant", [], ["true"], value=numpy_helper.from_array(np.array(True)))
    chosen = helper.make_node("If", ["true"], ["y"], then_branch=branch, else_branch=other)
    model.graph.CopyFrom(helper.make_graph([true, chosen], "outer", model.graph.input, model.graph.output))
    result = swap(model, fuse=True, layout="nhwc")
    assert len(matmuls(result)) == 2 and counts(result.model)["MatMul"] == 0
    assert_same_outputs(blocks, model, result.to_proto())


class Card:
    """The planner for a typical card of compute capability 9.0."""

    Problem = _native.Problem

    def cuda_devices(self):
        return [{"memory_bandwidth": 4.8e12}]

    def choose(self, problem, device, algorithm):
        return _native.choose(problem, device, algorithm, compute_capability=90)

    def estimates(self, problem, device):
        return _native.estimates(problem, device, compute_capability=90)


@pytest.mark.parametrize(
    "options, batch, replaced",
    [
        ({"activation": "Relu"}, 1024, ["b0_mm1", "b0_mm2", "b1_mm1", "b1_mm2"]),
        ({"activation": "Relu"}, 4, ["b0_mm1", "b1_mm1"]),
        # Gelu takes longer in the kernel of the Conv than Relu.
        ({"activation": "Gelu"}, 4, []),
        ({"activation": "Relu", "open": ("n", "h")}, 1024, []),
    ],
    ids=["many", "few", "few with Gelu", "open height"],
)
def test_auto_replaces_matmuls_that_are_estimated_to_gain(monkeypatch, options, batch, replaced):
    monkeypatch.setattr("convswap.graph.layout.costs._native", Card())
    monkeypatch.setattr("convswap.graph.swap._native", Card())
    blocks = plain_block(**{"dtype": np.float16, "open": ("n",), "count": 2} | options)
    result = checked(blocks, layout="auto", batch=batch)
    assert list(matmuls(result)) == [f"{name}_MatMul" for name in replaced]
    assert counts(result.model)["MatMul"] == 4 - len(replaced)


def test_the_report_and_the_command_name_the_matmuls(tmp_path, capsys):
    onnx.save(plain_block().model, tmp_path / "in.onnx")
    files = [str(tmp_path / name) for name in ("in.onnx", "out.onnx", "report.json")]
    arguments = ["swap", files[0], "-o", files[1], "--fuse", "--layout", "nhwc", "--report", files[2]]
    assert main(arguments) == 0
    printed_text = capsys.readouterr().out
    assert "MatMul nodes that became 1x1 Convs: 2" in printed_text
    assert "LayoutConv b0_mm1_MatMul includes Add b0_mm1_biased_Add, Gelu b0_act_Gelu" in printed_text
    layout = json.loads((tmp_path / "report.json").read_text())["layout"]
    assert [record["node"] for record in layout["matmuls"]] == ["b0_mm1_MatMul", "b0_mm2_MatMul"]
    # The scale and the sum are part of a Conv now.
    assert layout["carried"] == []


def test_commands_take_a_model_with_replaced_matmuls(tmp_path, device):
    blocks, path = plain_block(), tmp_path / "blocks.onnx"
    original = blocks.model
    checked(blocks).save(path)
    plain = ir.to_proto(plain_model(ir.load(path)))
    assert not any(node.domain for node in plain.graph.node)
    assert_same_outputs(blocks, original, plain)
    assert len(explain(path, device=device).convs) == 4
    assert compare(path, device=device, images=2, time_layers=False).verdict.agree
    result = compare(original, device=device, images=2, fuse=True, layout="nhwc")
    assert result.verdict.agree and result.swapped == len(result.layers) == 2
    assert not any("subgraphs" in note for note in result.notes)


@pytest.mark.parametrize("name, after", [("BatchNormalization", "b0_mm1"), ("MaxPool", "b0_mm1_biased")])
def test_nodes_that_treat_the_second_axis_as_channels_are_not_included(name, after):
    blocks = plain_block()
    index = 1 + [node.output[0] for node in blocks.nodes].index(after)
    for node in blocks.nodes[index:]:
        node.input[:] = ["other" if value == after else value for value in node.input]
    if name == "MaxPool":
        blocks.add(name, [after], "other", kernel_shape=[1, 1])
    else:
        statistics = [blocks.constant(f"n{number}", np.full(9, 1.0 + number)) for number in range(4)]
        blocks.add(name, [after, *statistics], "other")
    blocks.nodes.insert(index, blocks.nodes.pop())
    included = {"BatchNormalization": None, "MaxPool": ["Add"]}[name]
    assert matmuls(checked(blocks)).get("b0_mm1_MatMul") == included
