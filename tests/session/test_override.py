"""Override mode: Convs of unmodified models run on our op, or an error names those that do not.

The graph that ONNX Runtime writes after its last optimiser shows what a session runs. A node that is still
Conv of the ONNX domain runs on the overriding op; a Conv that an optimiser replaced has another name.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from convswap.errors import NO_ONNXRUNTIME, ConvswapError
from convswap.runtime import override as override_module
from convswap.runtime.library import register
from convswap.runtime.override import _precision_of
from onnx import TensorProto, helper, numpy_helper
from op_sessions import PROVIDERS
from refused import refused

CPU = ["CPUExecutionProvider"]
DISABLED = "optimization.disable_specified_optimizers"
# This optimiser puts nodes of ONNX into the domain of the Conv, which may be another.
DOMAIN_OPTIMISER = "WeightBiasQuantization"
FUSING_OPTIMISERS = ["ConvActivationFusion", "ConvAddActivationFusion", "NchwcTransformer"]
RANDOM = np.random.default_rng(31)
X = RANDOM.normal(size=(1, 16, 9, 8)).astype(np.float32)
W = RANDOM.normal(size=(16, 16, 3, 3)).astype(np.float32)
B = RANDOM.normal(size=16).astype(np.float32)
SCALE = RANDOM.uniform(0.5, 1.5, size=16).astype(np.float32)
CONSTANTS = {
    "w": W, "b": B, "scale": SCALE, "zero": np.float32(0), "six": np.float32(6),
    "planes": SCALE[:, None, None], "borders": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "image": X[:, ::-1].copy(),
}  # fmt: skip


def node(op: str, inputs: str, output: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=name, **attributes)


def conv(inputs: str, output: str, name: str = "conv1", **attributes: Any) -> onnx.NodeProto:
    return node("Conv", inputs, output, name, pads=[1, 1, 1, 1], **attributes)


def model(*nodes: onnx.NodeProto, functions: Any = (), **constants: np.ndarray) -> bytes:
    """Return a model of `nodes` from x to y, with the CONSTANTS and `constants` that the nodes read."""
    input_names = {name for each in nodes for name in each.input}
    input_names |= {
        name
        for each in nodes
        for a in each.attribute
        if a.HasField("g")
        for n in a.g.node
        for name in n.input
    }
    values = {name: value for name, value in {**CONSTANTS, **constants}.items() if name in input_names}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(
        graph, opset_imports=opsets, functions=functions, ir_version=9
    ).SerializeToString()


def if_model() -> bytes:
    def branch(output: str, **attributes: Any) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        return helper.make_graph([conv("x w b", output, f"conv_{output}", **attributes)], output, [], [value])

    choose = helper.make_node(
        "If", ["condition"], ["y"], then_branch=branch("then"), else_branch=branch("other")
    )
    return model(
        node("ReduceMax", "x", "most", keepdims=0), node("Greater", "most zero", "condition"), choose
    )


def function_model() -> bytes:
    function = helper.make_function(
        "mine", "Block", ["x", "w"], ["y"], [conv("x w", "y", "inner")], [helper.make_opsetid("", 20)]
    )
    return model(node("Block", "x w", "y", "call", domain="mine"), functions=[function])


PATTERNS = {
    "nothing": model(conv("x w", "y")),
    "relu": model(conv("x w b", "h"), node("Relu", "h", "y")),
    "clip": model(conv("x w b", "h"), node("Clip", "h zero six", "y")),
    "leaky_relu": model(conv("x w", "h"), node("LeakyRelu", "h", "y")),
    "sigmoid_product": model(conv("x w b", "h"), node("Sigmoid", "h", "s"), node("Mul", "h s", "y")),
    "add": model(conv("x w b", "h"), node("Add", "h x", "y")),
    "add_without_bias": model(conv("x w", "h"), node("Add", "h x", "y")),
    "add_and_relu": model(conv("x w b", "h"), node("Add", "h x", "s"), node("Relu", "s", "y")),
    "batch_normalization": model(
        conv("x w b", "h"), node("BatchNormalization", "h scale b b scale", "s"), node("Relu", "s", "y")
    ),
    "product_with_constant": model(conv("x w b", "h"), node("Mul", "h planes", "y")),
    "pad_before": model(node("Pad", "x borders", "p"), node("Conv", "p w b", "y", "conv1")),
    "max_pool_and_conv": model(
        conv("x w b", "h"), node("MaxPool", "h", "p", kernel_shape=[2, 2]), conv("p w", "y", "conv2")
    ),
    "pointwise": model(node("Conv", "x v b", "y", "conv1"), v=W[:, :, :1, :1]),
    "depthwise": model(conv("x v b", "y", group=16), v=W[:, :1]),
    "two_that_share_weights": model(
        conv("x w", "h"), conv("x w b", "k", "conv2"), node("Sub", "h k", "y")
    ),
    "if": if_model(),
    "function": function_model(),
    "unnamed": model(conv("x w b", "h", ""), conv("h w", "y", "")),
}  # fmt: skip
FOLDED = model(conv("image w", "h", "constant"), conv("x w", "k"), node("Add", "h k", "y"))


def quantized() -> bytes:
    nodes = []
    for name in ("x", "h"):
        nodes.append(node("QuantizeLinear", f"{name} step offset", f"{name}_q"))
        nodes.append(node("DequantizeLinear", f"{name}_q step offset", f"{name}_d"))
    nodes.insert(2, node("DequantizeLinear", "w8 step offset8", "w_d"))
    nodes.insert(3, conv("x_d w_d", "h"))
    values = {"step": np.float32(0.05), "offset": np.uint8(128), "offset8": np.int8(0)}
    return model(*nodes, node("Relu", "h_d", "y"), w8=np.clip(W * 20, -127, 127).astype(np.int8), **values)


@pytest.fixture
def final_graph(tmp_path: Path):
    """Return a function that makes a session and returns the names of Conv ops in its final graph."""

    def convolutions(source: bytes, options: onnxruntime.SessionOptions, **arguments: Any) -> list[str]:
        options.optimized_model_filepath = str(tmp_path / "final.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(source, options, providers=CPU, **arguments)
        return list(ops_of(onnx.load(tmp_path / "final.onnx").graph))

    return convolutions


def ops_of(graph: onnx.GraphProto) -> Iterator[str]:
    for each in graph.node:
        if "Conv" in each.op_type:
            yield f"{each.domain}.{each.op_type}".lstrip(".")
        for attribute in each.attribute:
            if attribute.HasField("g"):
                yield from ops_of(attribute.g)


def options_with(entries: dict[str, str], library: bool = True) -> onnxruntime.SessionOptions:
    """Return options as a C program makes them: entries, then the library."""
    options = onnxruntime.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    if library:
        options.register_custom_ops_library(str(convswap.library_path()))
    return options


def plain_run(source: bytes) -> np.ndarray:
    """Return the output of ONNX Runtime without our library."""
    return onnxruntime.InferenceSession(source, providers=CPU).run(None, {"x": X})[0]


# The session config entry.


@pytest.mark.parametrize("pattern", PATTERNS)
def test_entry_alone_keeps_every_conv_from_the_optimisers(pattern, final_graph):
    ops = final_graph(PATTERNS[pattern], options_with({"convswap.override": "1"}))
    assert ops and set(ops) == {"Conv"}


@pytest.mark.parametrize(
    ("pattern", "op"),
    [("relu", "com.microsoft.nchwc.Conv"), ("add_and_relu", "com.microsoft.nchwc.Conv")],
)
def test_without_the_entry_the_optimisers_take_conv(pattern, op, final_graph):
    """Shows that the test above can fail."""
    for entries in ({}, {"convswap.override": "0"}):
        assert final_graph(PATTERNS[pattern], options_with(entries)) == [op]


@pytest.mark.parametrize(
    ("pattern", "left_on"),
    [("relu", FUSING_OPTIMISERS[0]), ("add", FUSING_OPTIMISERS[1]), ("nothing", FUSING_OPTIMISERS[2])],
)
def test_each_disabled_optimiser_would_take_conv(pattern, left_on, final_graph):
    disabled = ";".join(name for name in FUSING_OPTIMISERS if name != left_on)
    (op,) = final_graph(PATTERNS[pattern], options_with({DISABLED: disabled}, library=False))
    assert op != "Conv"


def test_optimisers_that_the_user_disabled_stay_disabled():
    for disabled, expected in (
        ("GeluFusion", ["GeluFusion", *FUSING_OPTIMISERS, DOMAIN_OPTIMISER]),
        (
            f"{FUSING_OPTIMISERS[2]};GeluFusion",
            [FUSING_OPTIMISERS[2], "GeluFusion", *FUSING_OPTIMISERS[:2], DOMAIN_OPTIMISER],
        ),
        (";".join([DOMAIN_OPTIMISER, *FUSING_OPTIMISERS]), [DOMAIN_OPTIMISER, *FUSING_OPTIMISERS]),
        ("NchwcTransformerOfMine", ["NchwcTransformerOfMine", *FUSING_OPTIMISERS, DOMAIN_OPTIMISER]),
    ):
        options = options_with({"convswap.override": "1", DISABLED: disabled})
        assert options.get_session_config_entry(DISABLED).split(";") == expected


def test_registration_loads_the_cuda_libraries_that_pip_installed(monkeypatch):
    loaded: list[str] = []
    # It loads them once in a process, maybe in an earlier test.
    monkeypatch.setitem(convswap.register.__globals__, "load_cuda_libraries", loaded.append)
    convswap.register(onnxruntime.SessionOptions())
    assert loaded == ["cuda"]


def test_without_the_override_only_the_optimiser_that_reuses_our_domain_is_disabled():
    assert options_with({}).get_session_config_entry(DISABLED) == DOMAIN_OPTIMISER


def test_value_that_is_neither_0_nor_1_is_refused():
    for value in ("yes", "true", "", "2"):
        with pytest.raises(Exception, match=f"convswap.override is '{value}'; expected 0 or 1"):
            options_with({"convswap.override": value})


def test_value_that_is_no_precision_is_refused():
    with pytest.raises(Exception, match=r"convswap\.precision is 'tf33'; expected tf32 or ieee"):
        options_with({"convswap.override": "1", "convswap.precision": "tf33"})


@pytest.mark.parametrize(
    ("providers", "arguments", "expected"),
    [
        (["CPUExecutionProvider"], {}, None),
        (["CUDAExecutionProvider"], {}, None),
        (None, {}, None),
        ([("CUDAExecutionProvider", {"use_tf32": "1"})], {}, None),
        ([("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"], {}, "ieee"),
        ([("CUDAExecutionProvider", {"use_tf32": 0})], {}, "ieee"),
        (
            ["CPUExecutionProvider", "CUDAExecutionProvider"],
            {"provider_options": [{}, {"use_tf32": "0"}]},
            "ieee",
        ),
    ],
)
def test_precision_is_what_the_cuda_provider_is_asked_for(providers, arguments, expected):
    assert _precision_of(onnxruntime.SessionOptions(), providers, arguments) == expected
    options = options_with({"convswap.precision": "tf32"}, library=False)
    assert _precision_of(options, providers, arguments) is None


@pytest.mark.parametrize(("first", "second"), [("ieee", "tf32"), ("tf32", "ieee"), (None, "ieee")])
def test_options_that_override_in_one_precision_are_refused_another(first, second):
    options = onnxruntime.SessionOptions()
    register(options, override=True, precision=first)
    register(options, override=True, precision=first)
    message = f"override in precision {first or 'tf32'} already: make new ones for {second}"
    with refused(message):
        register(options, override=True, precision=second)


def test_precision_without_the_override_is_refused():
    with refused("'ieee' is of nodes that are overridden: give override=True too"):
        register(onnxruntime.SessionOptions(), precision="ieee")


def test_precision_that_is_asked_for_is_the_entry():
    options = onnxruntime.SessionOptions()
    convswap.register(options, override=True, precision="ieee")
    assert options.get_session_config_entry("convswap.precision") == "ieee"
    assert onnxruntime.InferenceSession(PATTERNS["nothing"], options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("overrides", [(False, False), (True, True), (False, True), (True, False)])
def test_options_that_are_registered_twice_make_sessions(overrides):
    options = onnxruntime.SessionOptions()
    for override in overrides:
        register(options, override=override)
    for _ in range(2):
        onnxruntime.InferenceSession(PATTERNS["relu"], options, providers=CPU)


def test_register_with_override_is_the_entry_and_no_more(final_graph):
    options = onnxruntime.SessionOptions()
    register(options, override=True)
    assert options.get_session_config_entry("convswap.override") == "1"
    assert final_graph(PATTERNS["add_and_relu"], options) == ["Conv"]


# The library's report on its kernels.


def kernels(request: str) -> list[str]:
    options = options_with({"convswap.kernels": request})
    if request == "record":
        return []
    count = int(options.get_session_config_entry("convswap.kernels.count"))
    return [options.get_session_config_entry(f"convswap.kernels.{i}") for i in range(count)]


def test_library_names_the_nodes_of_the_kernels_made_between_record_and_read():
    def make() -> None:
        options = options_with({"convswap.override": "1"})
        onnxruntime.InferenceSession(PATTERNS["max_pool_and_conv"], options, providers=CPU)

    make()
    assert kernels("read") == []
    kernels("record")
    make()
    with ThreadPoolExecutor(1) as other_thread:
        other_thread.submit(make).result()
        assert other_thread.submit(kernels, "read").result() == []
    assert sorted(kernels("read")) == ["conv1", "conv2"]
    make()
    assert kernels("read") == []


def test_unknown_request_for_kernels_is_refused():
    with pytest.raises(Exception, match=r"convswap.kernels is 'list'; expected record or read"):
        kernels("list")


# override_session.


@pytest.mark.parametrize("pattern", PATTERNS)
def test_override_session_computes_what_onnx_runtime_computes(pattern):
    source = PATTERNS[pattern]
    y = convswap.override_session(source, providers=CPU).run(None, {"x": X})[0]
    expected = plain_run(source)
    # Two float32 sums of at most 16 * 9 products and a bias, in different orders, of values below 100. The
    # nodes after the first Conv at most double an error, and a second Conv multiplies it by the 145 weights
    # of size 1.
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=4 * 146 * 2.0**-24 * np.abs(expected).max() + 1e-4)


def test_model_may_be_a_file(tmp_path):
    (tmp_path / "model.onnx").write_bytes(PATTERNS["relu"])
    for path in (tmp_path / "model.onnx", str(tmp_path / "model.onnx")):
        assert convswap.override_session(path, providers=CPU).get_outputs()[0].name == "y"


def test_conv_of_constants_does_not_keep_a_model_from_loading():
    y = convswap.override_session(FOLDED, providers=CPU).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, plain_run(FOLDED), rtol=0, atol=2 * 146 * 2.0**-24 * 100)


def test_model_may_be_swapped_in_part():
    mixed = onnx.load_from_string(PATTERNS["max_pool_and_conv"])
    mixed.graph.node[2].domain = "convswap"
    mixed.opset_import.add(domain="convswap", version=1)
    y = convswap.override_session(mixed.SerializeToString(), providers=CPU).run(None, {"x": X})[0]
    assert y.shape == plain_run(PATTERNS["max_pool_and_conv"]).shape


def test_options_of_the_user_are_unchanged_and_can_be_used_again():
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry(DISABLED, "GeluFusion")
    for name in ("LayerNormFusion", "CommonSubexpressionElimination"):
        session = convswap.override_session(
            PATTERNS["add"], options, providers=CPU, disabled_optimizers={name}
        )
        assert session.get_session_options().intra_op_num_threads == 1
    disabled = options.get_session_config_entry(DISABLED).split(";")
    assert sorted(disabled) == sorted(
        [
            "GeluFusion",
            "LayerNormFusion",
            *FUSING_OPTIMISERS,
            DOMAIN_OPTIMISER,
            "CommonSubexpressionElimination",
        ]
    )


def test_conv_that_is_quantised_away_is_named():
    words = r"^1 of 1 Conv nodes would not run on convswap: 'conv1' on CPUExecutionProvider;.*convswap\.swap"
    with refused(words):
        convswap.override_session(quantized(), providers=CPU)


def test_quantised_conv_runs_on_our_op_where_onnx_runtime_leaves_it():
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    convswap.override_session(quantized(), options, providers=CPU)


@pytest.fixture
def bypassed(monkeypatch) -> None:
    """Make every session replace the disabled optimisers, as an argument of InferenceSession does."""

    class Session(onnxruntime.InferenceSession):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options, disabled_optimizers=["GeluFusion"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)


@pytest.mark.parametrize("name", ["conv1", "", "模" * 700, "a" * 999 + "模型"])
def test_bypassed_conv_is_named_whatever_its_name(bypassed, name):
    source = model(conv("x w b", "h", name), node("Relu", "h", "y"))
    with pytest.raises(ConvswapError, match=r"^1 of 1 Conv nodes would not run on convswap: ") as raised:
        convswap.override_session(source, providers=CPU)
    assert f": '{name}' on CPUExecutionProvider; " in str(raised.value)


@pytest.mark.parametrize("name", ["", "模" * 700, "a" * 999 + "模型", "two\nlines"])
def test_conv_of_any_name_is_recognised(name):
    source = model(conv("x w b", "h", name), node("Relu", "h", "y"))
    convswap.override_session(source, providers=CPU)


def test_five_bypassed_conv_nodes_are_named_at_most(bypassed):
    nodes = [conv(f"{'x' if i == 0 else f'h{i}'} w", f"h{i + 1}", f"conv{i}") for i in range(7)]
    with refused(r"^7 of 7 .*'conv0' on .*'conv4' on [A-Za-z]+, \.\.\.; an"):
        convswap.override_session(model(*nodes, node("Relu", "h7", "y")), providers=CPU)


def mapped(name: str, inner: str, *between: onnx.NodeProto) -> bytes:
    """Return a Conv called `name`, and a Conv called `inner` in the body of a SequenceMap after it."""
    element = helper.make_tensor_value_info("element", TensorProto.FLOAT, None)
    result = helper.make_tensor_value_info("result", TensorProto.FLOAT, None)
    body = helper.make_graph([conv("element w", "result", inner)], "body", [element], [result])
    sequence = helper.make_node("SequenceMap", ["parts"], ["mapped"], body=body)
    return model(
        conv("x w b", "h", name),
        *between,
        node("SequenceConstruct", f"{'r' if between else 'h'} x", "parts"),
        sequence,
        node("ConcatFromSequence", "mapped", "y", axis=0),
        w=W,
    )


@pytest.mark.parametrize(("name", "inner"), [("conv1", "inner"), ("same", "same"), ("", "")])
def test_conv_in_a_body_that_onnx_runtime_inlines_counts_once(name, inner, tmp_path):
    source = mapped(name, inner)
    (tmp_path / "model.onnx").write_bytes(source)
    expected = plain_run(source)
    for each in (source, tmp_path / "model.onnx"):
        (y,) = convswap.override_session(each, providers=CPU).run(None, {"x": X})
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("name", "inner"), [("conv1", "inner"), ("same", "same"), ("", "")])
def test_bypassed_conv_is_refused_together_with_one_in_an_inlined_body(bypassed, name, inner):
    # Only the Conv before the Relu is fused; a body of one node has nothing to fuse.
    source = mapped(name, inner, node("Relu", "h", "r"))
    with refused(f"of 2 Conv nodes would not run on convswap: .*{name!r} on CPU"):
        convswap.override_session(source, providers=CPU)


def test_sessions_made_at_the_same_time_are_checked_separately():
    def make(pattern: str) -> str:
        try:
            convswap.override_session(PATTERNS.get(pattern) or quantized(), providers=CPU)
        except ConvswapError:
            return "refused"
        return "made"

    patterns = ["max_pool_and_conv", "quantized", "relu", "quantized"] * 10
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(make, patterns))
    assert outcomes == ["refused" if pattern == "quantized" else "made" for pattern in patterns]


def test_model_that_does_not_load_is_one_clear_line(tmp_path):
    for source in (b"no model", tmp_path / "none.onnx", model(conv("x w b", "y", strides=[0, 1]))):
        with refused(r"^ONNX Runtime cannot load the model in the override"):
            convswap.override_session(source, providers=CPU)


def test_failed_session_leaves_no_record():
    with pytest.raises(ConvswapError):
        convswap.override_session(b"no model", providers=CPU)
    register(options := onnxruntime.SessionOptions(), override=True)
    onnxruntime.InferenceSession(PATTERNS["relu"], options, providers=CPU)
    assert kernels("read") == []


def test_onnx_runtime_without_the_report_is_named_with_its_version(monkeypatch):
    class Session:
        pass

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "__version__", "1.23.2")
    with refused(r"^ONNX Runtime 1\.23\.2 does not tell .* 1\.24 or newer does"):
        convswap.override_session(PATTERNS["relu"])


def test_missing_onnx_runtime_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConvswapError) as raised:
        convswap.override_session(PATTERNS["relu"])
    assert str(raised.value) == NO_ONNXRUNTIME


# The CUDA provider.


@pytest.fixture
def cuda(cuda: str) -> str:
    """Return the CUDA provider's name after loading its libraries."""
    return PROVIDERS[cuda]


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("use_tf32", [True, False])
def test_override_session_computes_the_same_on_a_card(use_tf32, pattern, cuda):
    source = PATTERNS[pattern]
    session = convswap.override_session(source, providers=[(cuda, {"use_tf32": str(int(use_tf32))})])
    assert session.get_providers()[0] == cuda
    placed = {
        each.name: part.ep_name
        for part in session.get_provider_graph_assignment_info()
        for each in part.get_nodes()
        if each.op_type == "Conv"
    }
    assert set(placed.values()) == {cuda}
    expected = plain_run(source)
    # TF32 rounds each factor by 2**-11 at most; errors of 144 products add up to sqrt(144) of one, and a
    # second Conv sums them once more. Without TF32, sums on tensor cores, which truncate, have errors of a
    # few times 2**-22.
    roundoff = 2.0**-11 if use_tf32 else 2.0**-20
    y = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=24 * roundoff * np.abs(expected).max())


@pytest.mark.gpu
def test_conv_of_constants_does_not_keep_a_model_from_loading_on_a_card(cuda):
    convswap.override_session(FOLDED, providers=[cuda]).run(None, {"x": X})


@pytest.mark.gpu
@pytest.mark.parametrize("value", ["1", 1, True])
def test_prefer_nhwc_is_refused(value, cuda):
    for arguments in (
        {"providers": [(cuda, {"prefer_nhwc": value})]},
        {"providers": [cuda], "provider_options": [{"prefer_nhwc": value}]},
    ):
        with refused("option prefer_nhwc takes the Conv nodes before"):
            convswap.override_session(PATTERNS["relu"], **arguments)


@pytest.mark.gpu
def test_prefer_nhwc_that_is_off_is_no_obstacle(cuda):
    convswap.override_session(PATTERNS["relu"], providers=[(cuda, {"prefer_nhwc": "0"})])


@pytest.mark.gpu
def test_prefer_nhwc_would_bypass_the_override(cuda, monkeypatch):
    """Shows the reason for the refusal: without the check of the option, the Conv would not run on our op."""
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_provider_options", lambda _session: {})
    with refused(r"^1 of 1 Conv nodes would not run on convswap: 'conv1\w*' on CUDA"):
        convswap.override_session(PATTERNS["relu"], providers=[(cuda, {"prefer_nhwc": "1"})])


# Models that a tool has optimised before.


def optimised(level: str, source: bytes, folder: Path) -> bytes:
    """Return `source` as ONNX Runtime writes it after optimising it for the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(folder / f"{level}.onnx")
    onnxruntime.InferenceSession(source, options, providers=CPU)
    return (folder / f"{level}.onnx").read_bytes()


CONV_RELU_CONV = model(conv("x w b", "h"), node("Relu", "h", "r"), conv("r w b", "y", "conv2"))


def test_override_names_the_convs_that_onnx_runtime_had_fused_before(tmp_path, caplog):
    source = optimised("ORT_ENABLE_EXTENDED", CONV_RELU_CONV, tmp_path)
    y = convswap.override_session(source, providers=CPU).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, plain_run(CONV_RELU_CONV), rtol=1e-4, atol=1e-2)
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("convswap", "WARNING")
    assert record.getMessage() == (
        "these convolutions stay with ONNX Runtime: 'conv1' (com.microsoft.FusedConv), 1 in all; each is "
        "written by ONNX Runtime's optimiser: use the model as it was before it was optimised"
    )


def test_override_names_the_convs_that_onnx_runtime_had_blocked_before(tmp_path, caplog):
    source = optimised("ORT_ENABLE_ALL", CONV_RELU_CONV, tmp_path)
    names = [each.name for each in onnx.load_from_string(source).graph.node if each.op_type == "Conv"]
    y = convswap.override_session(source, providers=CPU).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, plain_run(CONV_RELU_CONV), rtol=1e-4, atol=1e-2)
    (record,) = caplog.records
    assert len(names) == 2
    assert all(f"'{name}' (com.microsoft.nchwc.Conv)" in record.getMessage() for name in names)


def test_override_names_quantised_convs_of_the_model(caplog):
    values = {"step": np.float32(0.05), "offset": np.uint8(128), "offset8": np.int8(0)}
    source = model(
        node("QuantizeLinear", "x step offset", "q"),
        node("QLinearConv", "q step offset w8 step offset8 step offset", "r", "inner", pads=[1, 1, 1, 1]),
        node("DequantizeLinear", "r step offset", "d"),
        conv("d w b", "y"),
        w8=np.clip(W * 20, -127, 127).astype(np.int8),
        **values,
    )
    convswap.override_session(source, providers=CPU)
    (record,) = caplog.records
    assert ": 'inner' (QLinearConv), 1 in all; each computes in integers" in record.getMessage()


@pytest.mark.parametrize("pattern", ["relu", "if", "function", "unnamed"])
def test_override_logs_nothing_where_every_conv_runs_on_our_op(pattern, caplog):
    convswap.override_session(PATTERNS[pattern], providers=CPU)
    assert caplog.records == []


def test_swap_says_why_it_leaves_the_convs_that_onnx_runtime_had_fused_before(tmp_path):
    result = convswap.swap(onnx.load_from_string(optimised("ORT_ENABLE_EXTENDED", CONV_RELU_CONV, tmp_path)))
    assert result.swapped == ("conv2",)
    (unsupported,) = result.not_swapped
    assert (unsupported.node, unsupported.op) == ("conv1", "com.microsoft.FusedConv")
    assert "use the model as it was before it was optimised" in unsupported.reason


# Models in ORT format.


def in_ort_format(source: bytes, folder: Path, level: str = "ORT_ENABLE_BASIC", ours: bool = False) -> Path:
    """Return the file in which ONNX Runtime saves `source` in ORT format, with our Convs if `ours`."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(folder / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    if ours:
        register(options, override=True)
    onnxruntime.InferenceSession(source, options, providers=CPU)
    return folder / "model.ort"


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"])
@pytest.mark.parametrize("pattern", ["relu", "if", "unnamed", "depthwise", "two_that_share_weights"])
def test_convs_of_a_model_in_ort_format_run_on_our_op(pattern, level, tmp_path, caplog, monkeypatch):
    checked = []
    monkeypatch.setattr(override_module, "_check", lambda *arguments: checked.append(arguments[1:3]))
    file = in_ort_format(PATTERNS[pattern], tmp_path, level)
    y = convswap.override_session(file, providers=CPU).run(None, {"x": X})[0]
    np.testing.assert_allclose(y, plain_run(PATTERNS[pattern]), rtol=1e-4, atol=1e-4)
    ((nodes, our_kernels),) = checked
    convs = Counter(each.name for each in nodes if each.op_type == "Conv")
    assert (
        our_kernels == convs
        and our_kernels.total() == PATTERNS[pattern].count(b"Conv")
        and caplog.records == []
    )


def test_model_in_ort_format_is_known_without_its_suffix_and_as_bytes(tmp_path):
    content = in_ort_format(PATTERNS["relu"], tmp_path).read_bytes()
    (tmp_path / "model").write_bytes(content)
    for source in (content, tmp_path / "model"):
        y = convswap.override_session(source, providers=CPU).run(None, {"x": X})[0]
        np.testing.assert_allclose(y, plain_run(PATTERNS["relu"]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("level", "op"),
    [("ORT_ENABLE_EXTENDED", "microsoft.FusedConv"), ("ORT_ENABLE_ALL", "microsoft.nchwc.Conv")],
)
def test_convs_that_were_fused_before_ort_format_are_named(level, op, tmp_path, caplog):
    convswap.override_session(in_ort_format(CONV_RELU_CONV, tmp_path, level), providers=CPU)
    (record,) = caplog.records
    assert f"(com.{op})" in record.getMessage() and "before it was optimised" in record.getMessage()


def test_conv_in_ort_format_without_our_kernel_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(override_module, "_kernel_counts", lambda _: Counter())
    with refused("1 of 1 Conv nodes would not run on convswap: 'conv1' on CPU"):
        convswap.override_session(in_ort_format(PATTERNS["relu"], tmp_path), providers=CPU)


def test_damaged_model_in_ort_format_is_one_line_that_says_so(tmp_path):
    content = in_ort_format(PATTERNS["relu"], tmp_path).read_bytes()
    for length in (8, 60, len(content) // 2, len(content) - 200):
        with refused(r"it is a model in ORT format; give the \.onnx file"):
            convswap.override_session(content[:length], providers=CPU)


def test_model_saved_in_ort_format_with_the_override_needs_no_more_than_the_entry(tmp_path):
    file = in_ort_format(PATTERNS["relu"], tmp_path, ours=True)
    register(options := onnxruntime.SessionOptions(), override=True)
    kernels("record")
    y = onnxruntime.InferenceSession(file, options, providers=CPU).run(None, {"x": X})[0]
    assert kernels("read") == ["conv1"]
    np.testing.assert_allclose(y, plain_run(PATTERNS["relu"]), rtol=1e-4, atol=1e-4)
