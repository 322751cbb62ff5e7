"""Models of one `convswap.Conv`, their sessions on a provider, and their error messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from conv_cases import ConvCase
from convswap.runtime.library import register
from onnx import TensorProto, helper, numpy_helper

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# Relative errors of an addition, and of rounding an operand: float32 on the CPU, TF32 on a card, whose tensor
# cores also truncate sums. See test_conv_cpu.py and test_conv_cuda.py.
ROUNDING = {"cpu": (2.0**-24, 0.0), "cuda": (2.0**-22, 2.0**-11)}
CASE = ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True, {"pads": [1, 0, 2, 1]})
X, W, B = CASE.arrays()


def cpu_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session on the CPU, with our op, one thread and no messages."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    register(options)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[PROVIDERS["cpu"]])


def onnx_outputs(
    model: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    names: Sequence[str] | None = None,
    *,
    optimised: bool = True,
) -> list:
    """Return the outputs of a model, or those of these names, on the CPU and without our op."""
    levels = onnxruntime.GraphOptimizationLevel
    level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = make_session(model.SerializeToString(), ours=False, graph_optimization_level=level)
    return session.run(names, dict(feeds))


def graph_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str | None] | None],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    outputs: Sequence[str] = ("y",),
    opset: int = 20,
    element_type: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Return a model of ops of ONNX and convswap; `inputs` maps names to shapes, None for an unknown rank."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(name, element_type, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, element_type, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    if any(node.domain == "convswap" for node in nodes):
        opsets.append(helper.make_opsetid("convswap", 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def without_trailing_empty(names: Sequence[str]) -> list[str]:
    """Return the names of a node's inputs without the empty ones at the end."""
    trimmed = list(names)
    while not trimmed[-1]:
        trimmed.pop()
    return trimmed


def conv_model(
    *,
    x=CASE.x_shape,
    w: np.ndarray | list | None = W,
    b: np.ndarray | list | None = None,
    z: list | None = None,
    op: str = "Conv",
    domain: str = "convswap",
    output: list | None = None,
    follow: str = "",
    name: str = "conv1",
    element_type: int = TensorProto.FLOAT,
    **attributes,
) -> bytes:
    """Return a model of one Conv from `x` to `y`; `w` and `b` are constants, or shapes of inputs.

    With `op` FusedConv, `z` is the shape of another input, the residual. `follow` is an op behind the Conv.
    `output` is the declared shape of y.
    """
    inputs = [helper.make_tensor_value_info("x", element_type, x)]
    constants = []
    names = ["x"]
    for key, value in (("w", w), ("b", b)):
        if isinstance(value, np.ndarray):
            constants.append(numpy_helper.from_array(value, key))
        elif value is not None:
            inputs.append(helper.make_tensor_value_info(key, element_type, value))
        names.append(key if value is not None else "")
    if z is not None:
        inputs.append(helper.make_tensor_value_info("z", element_type, z))
        names.append("z")
    names = without_trailing_empty(names)
    nodes = [helper.make_node(op, names, ["h" if follow else "y"], name=name, domain=domain, **attributes)]
    if follow:
        nodes.append(helper.make_node(follow, ["h"], ["y"]))
    graph = helper.make_graph(
        nodes, "net", inputs, [helper.make_tensor_value_info("y", element_type, output)], constants
    )
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def case_model(case: ConvCase, **options) -> bytes:
    _, w, b = case.arrays()
    return conv_model(x=list(case.x_shape), w=w, b=b, **case.attributes, **options)


def undeclared_model() -> bytes:
    """Return a model of a Conv whose three inputs are declared without shapes."""
    names = ["x", "w", "b"]
    node = helper.make_node("Conv", names, ["y"], name="conv1", domain="convswap")
    return graph_model([node], dict.fromkeys(names)).SerializeToString()


def make_session(
    model: bytes | str,
    device: str = "cpu",
    *,
    override: bool = False,
    ours: bool = True,
    provider_options=None,
    **entries,
) -> onnxruntime.InferenceSession:
    """Return a session that fails if the provider of `device` cannot run a node."""
    options = onnxruntime.SessionOptions()
    # Tests run in parallel, and threads that spin after a run slow down the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for name, value in entries.items():
        setattr(options, name, value)
    if ours:
        register(options, override=override)
    session = onnxruntime.InferenceSession(
        model, options, providers=[(PROVIDERS[device], provider_options or {})]
    )
    assert PROVIDERS[device] in session.get_providers()
    return session


def check_shape(model: bytes, expected: Sequence[int | str | None], device: str = "cpu") -> None:
    """Compare the shape of the output that a session declares; None stands for an extent of any name."""
    (output,) = make_session(model, device).get_outputs()
    assert len(output.shape) == len(expected)
    for extent, known in zip(output.shape, expected, strict=True):
        assert isinstance(extent, str) if known is None else extent == known


def run(session: onnxruntime.InferenceSession, x: np.ndarray, **inputs: np.ndarray) -> np.ndarray:
    return session.run(None, {"x": x, **inputs})[0]


def check(y: np.ndarray, case: ConvCase, device: str) -> None:
    case.check(y, *ROUNDING[device])


CREATION_ERRORS = [
    ({"strides": [0, 1]}, "strides [0, 1]: expected values from 1 to 2147483647"),
    ({"strides": [1, -1]}, "strides [1, -1]: expected values from 1"),
    ({"dilations": [1, 0]}, "dilations [1, 0]: expected values from 1"),
    ({"pads": [0, 0, 0, -1]}, "pads [0, 0, 0, -1]: expected values from 0"),
    ({"pads": [1, 1]}, "pads [1, 1]: expected 4 values, for the 2 spatial axes of the weights [4, 3, 3, 3]"),
    ({"pads": [1, 1, 1]}, "pads [1, 1, 1]: expected an even number of values, begins then ends"),
    ({"strides": [1, 1, 1]}, "strides [1, 1, 1]: expected 2 values"),
    ({"kernel_shape": [3, 2]}, "kernel_shape [3, 2]: expected the filter of the weights, [3, 3]"),
    ({"kernel_shape": [3]}, "kernel_shape [3]: expected 2 values"),
    ({"group": 3}, "group 3: expected a divisor of the weights' 4 output channels"),
    ({"group": 0}, "group [0]: expected values from 1"),
    ({"auto_pad": "SAME"}, "unknown auto_pad 'SAME'"),
    (
        {"w": W.reshape(4, 27)},
        "weights of shape [4, 27]: expected 3, 4 or 5 dimensions: (K, C / group, filter...)",
    ),
    ({"b": np.ones(3, np.float32)}, "bias of shape [3]: expected [4], one value per output channel"),
    ({"b": np.ones((4, 1), np.float32)}, "bias of shape [4, 1]: expected [4], one value per output channel"),
    ({"b": [5]}, "bias of shape [5]: expected [4], one value per output channel"),
    ({"x": [2, 5, 9, 8]}, "input of shape [2, 5, 9, 8]: expected 3 channels"),
    ({"x": [2, 3, 2, 8]}, "spatial axis 0: the filter reaches over 3 positions but the padded input has 2"),
    ({"x": [2, 3, 9]}, "weights of shape [4, 3, 3, 3]: expected as many dimensions as the input of shape"),
    ({"w": [4, 3, 3, 3], "kernel_shape": [3, 2]}, "kernel_shape [3, 2]: expected the filter of the weights"),
    ({"w": [4, 1, 3, 3], "group": 3}, "group 3: expected a divisor of the weights' 4 output channels"),
]
WRONG_TYPES = [
    ("strides", [2.0, 2.0], "a list of integers"),
    ("strides", 2.0, "a list of integers"),
    ("strides", 2, "a list of integers"),
    ("strides", "2", "a list of integers"),
    ("strides", ["2", "2"], "a list of integers"),
    ("strides", numpy_helper.from_array(np.array([2, 2])), "a list of integers"),
    ("dilations", [2.0, 2.0], "a list of integers"),
    ("pads", [1, 1, 1, 1.5], "a list of integers"),
    ("kernel_shape", 3, "a list of integers"),
    ("group", 1.0, "an integer"),
    ("group", [1], "an integer"),
    ("group", "1", "an integer"),
    ("auto_pad", 1, "a string"),
    ("auto_pad", ["VALID"], "a string"),
    ("algorithm", 1, "a string"),
    ("precision", 1.0, "a string"),
    ("tuned", 1, "a string"),
    ("tuned", ["a | b | c | d | d 1"], "a string"),
]
RUN_ERRORS = [
    (
        (2, 5, 9, 8),
        W.shape,
        (4,),
        "input of shape [2, 5, 9, 8]: expected 3 channels: the weights [4, 3, 3, 3] have 3 per group",
    ),
    ((2, 3, 9, 8), W.shape, (3,), "bias of shape [3]: expected [4], one value per output channel"),
    ((2, 3, 9, 8), W.shape, (4, 1), "bias of shape [4, 1]: expected [4], one value per output channel"),
    (
        (2, 3, 2, 8),
        W.shape,
        (4,),
        "spatial axis 0: the filter reaches over 3 positions but the padded input has 2",
    ),
    (
        (2, 3, 9),
        W.shape,
        (4,),
        "weights of shape [4, 3, 3, 3]: expected as many dimensions as the input of shape [2, 3, 9]",
    ),
    ((2, 3), W.shape, (4,), "input of shape [2, 3]: expected 3, 4 or 5 dimensions"),
    ((2, 3, 9, 8), (4, 27), (4,), "weights of shape [4, 27]: expected 3, 4 or 5 dimensions"),
    ((2, 3, 9, 8), (4, 3, 0, 3), (4,), "the filter of the weights [0, 3]: expected values from 1"),
]
