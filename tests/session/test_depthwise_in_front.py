"""A FusedConv with a depthwise convolution in front equals ONNX's two Convs, in sessions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from convswap import _native
from convswap.graph.swap import swap
from each_case import each
from fused_cases import ACTIVATIONS
from onnx import helper
from op_sessions import check_shape, graph_model, make_session, onnx_outputs, run, without_trailing_empty

C, K = 6, 4
X_SHAPE = (2, C, 11, 9)
WINDOWS = {
    "3x3": {"kernel": (3, 3), "pads": [1, 1, 1, 1]},
    "3x3 by two": {"kernel": (3, 3), "pads": [0, 1, 1, 0], "strides": [2, 2]},
    "5x3 wide": {"kernel": (5, 3), "pads": [2, 2, 2, 2], "dilations": [1, 2], "strides": [1, 2]},
    "no pads": {"kernel": (2, 3)},
}
# Float32 sums of 15 and of 6 products, computed twice.
TOLERANCE = 2e-6


def arrays(window: str = "3x3", *, biases: str = "both", residual: bool = False) -> dict[str, np.ndarray]:
    """Return x and the other inputs of the node, with the op's input names in lower case."""
    random = np.random.default_rng(3)
    tensors = {
        "x": random.standard_normal(X_SHAPE),
        "w": random.standard_normal((K, C, 1, 1)) / 2,
        "d": random.standard_normal((C, 1, *WINDOWS[window]["kernel"])) / 2,
    }
    if biases in ("both", "b"):
        tensors["b"] = random.standard_normal(K)
    if biases in ("both", "db"):
        tensors["db"] = random.standard_normal(C)
    if residual:
        tensors["z"] = random.standard_normal(direct_call(tensors, window).shape)
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def attributes_of(window: str) -> dict[str, list[int]]:
    return {f"depthwise_{name}": value for name, value in WINDOWS[window].items() if name != "kernel"}


def direct_call(tensors: dict[str, np.ndarray], window: str, **attributes) -> np.ndarray:
    """Return the result of a direct call of our algorithm."""
    contiguous = {name: np.ascontiguousarray(values, np.float32) for name, values in tensors.items()}
    return _native.conv(
        contiguous["x"],
        contiguous["w"],
        contiguous.get("b"),
        residual=contiguous.get("z"),
        depthwise=contiguous["d"],
        depthwise_bias=contiguous.get("db"),
        **attributes_of(window),
        **attributes,
    )


def one_node(tensors: dict[str, np.ndarray], window: str, x_shape=X_SHAPE, **attributes) -> bytes:
    """Return a model of the node with data and residual as inputs and everything else constant."""
    names = without_trailing_empty(
        [each if each in tensors else "" for each in ("x", "w", "b", "z", "d", "db")]
    )
    fused = helper.make_node(
        "FusedConv", names, ["y"], "pair", domain="convswap", **attributes_of(window), **attributes
    )
    kind = helper.np_dtype_to_tensor_dtype(tensors["x"].dtype)
    return model_of([fused], tensors, x_shape, element_type=kind).SerializeToString()


def model_of(nodes, tensors: dict[str, np.ndarray], x_shape, **options) -> onnx.ModelProto:
    """Return a model with data and residual as inputs and everything else constant."""
    shapes = {"x": x_shape, "z": None}
    inputs = {name: shapes[name] for name in "xz" if name in tensors}
    constants = {name: tensors[name] for name in ("w", "b", "d", "db") if name in tensors}
    return graph_model(nodes, inputs, constants, **options)


def two_convs(
    tensors: dict[str, np.ndarray], window: str, x_shape=X_SHAPE, between=(), epilogue_nodes=()
) -> onnx.ModelProto:
    """Return ONNX's own nodes; `between` leads from "u" to "v", and `epilogue_nodes` lead to "y"."""
    windows = {name: value for name, value in WINDOWS[window].items() if name != "kernel"}
    first = ["x", "d", *(["db"] if "db" in tensors else [])]
    second = ["v" if between else "u", "w", *(["b"] if "b" in tensors else [])]
    nodes = [
        helper.make_node("Conv", first, ["u"], "depthwise", group=C, **windows),
        *between,
        helper.make_node("Conv", second, ["p" if "z" in tensors or epilogue_nodes else "y"], "pointwise"),
    ]
    if "z" in tensors:
        nodes.append(helper.make_node("Add", ["p", "z"], ["q" if epilogue_nodes else "y"], "add"))
    return model_of([*nodes, *epilogue_nodes], tensors, x_shape)


def expected_output(model: onnx.ModelProto, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """Return the outputs of ONNX Runtime's own nodes on the CPU."""
    return onnx_outputs(model, {name: tensors[name] for name in "xz" if name in tensors})[0]


def assert_close(y: np.ndarray, reference: np.ndarray) -> None:
    assert y.shape == reference.shape and y.dtype == reference.dtype
    assert np.linalg.norm(y - reference) <= TOLERANCE * np.linalg.norm(reference)


@each("residual", [False, True])
@pytest.mark.parametrize("biases", ["both", "b", "db", "none"])
@pytest.mark.parametrize("window", WINDOWS)
def test_it_is_both_convolutions_whatever_inputs_are_left_out(window, biases, residual):
    tensors = arrays(window, biases=biases, residual=residual)
    session = make_session(one_node(tensors, window))
    y = session.run(None, {name: tensors[name] for name in "xz" if name in tensors})[0]
    assert_close(y, expected_output(two_convs(tensors, window), tensors))
    # The session computes by the same algorithms.
    np.testing.assert_array_equal(y, direct_call(tensors, window))


@each("activation", [name for name in ACTIVATIONS if name != "None"])
def test_every_activation_between_equals_that_activation_at_the_end(activation):
    tensors = arrays()
    parameters = ACTIVATIONS[activation][0]
    depthwise_parameters = {f"depthwise_activation_{name}": value for name, value in parameters.items()}
    y = run(
        make_session(one_node(tensors, "3x3", depthwise_activation=activation, **depthwise_parameters)),
        tensors["x"],
    )
    epilogue_parameters = {f"activation_{name}": value for name, value in parameters.items()}
    u = _native.conv(
        tensors["x"],
        tensors["d"],
        tensors["db"],
        group=C,
        pads=[1] * 4,
        activation=activation,
        **epilogue_parameters,
    )
    assert_close(y, _native.conv(u, tensors["w"], tensors["b"]))


@pytest.mark.parametrize("kind", [np.float64, np.float16])
def test_value_between_is_rounded_to_the_type(kind):
    tensors = {name: values.astype(kind) for name, values in arrays().items()}
    y = run(make_session(one_node(tensors, "3x3", depthwise_activation="Relu")), tensors["x"])
    between = {"group": C, "pads": [1] * 4, "activation": "Relu"}
    u = _native.conv(tensors["x"], tensors["d"], tensors["db"], **between)
    np.testing.assert_array_equal(y, _native.conv(u, tensors["w"], tensors["b"]))


@pytest.mark.parametrize("algorithm", ["auto", "direct", "reference"])
def test_everything_at_once_is_what_onnx_runtime_computes(algorithm):
    tensors = arrays("3x3 by two", residual=True)
    between = [helper.make_node("Relu", ["u"], ["v"])]
    epilogue_nodes = [
        helper.make_node("Sigmoid", ["q"], ["s"]),
        helper.make_node("MaxPool", ["s"], ["y"], kernel_shape=[2, 2], strides=[2, 1]),
    ]
    epilogue = {
        "activation": "Sigmoid",
        "pool": "MaxPool",
        "pool_kernel_shape": [2, 2],
        "pool_strides": [2, 1],
    }
    model = one_node(tensors, "3x3 by two", depthwise_activation="Relu", algorithm=algorithm, **epilogue)
    y = make_session(model).run(None, {"x": tensors["x"], "z": tensors["z"]})[0]
    assert_close(
        y,
        expected_output(
            two_convs(tensors, "3x3 by two", between=between, epilogue_nodes=epilogue_nodes), tensors
        ),
    )


@pytest.mark.parametrize("x_shape", [("n", C, 11, 9), ("n", C, "h", "w"), ("n", "c", "h", "w"), None])
def test_declared_shapes_and_changing_batches_give_what_a_new_session_gives(x_shape):
    tensors = arrays("3x3 by two")
    session = make_session(one_node(tensors, "3x3 by two", x_shape, depthwise_activation="Relu"))
    between = [helper.make_node("Relu", ["u"], ["v"])]
    open_sizes = x_shape is None or "h" in x_shape
    sizes = [(2, 11, 9), (1, 11, 9), (5, 11, 9), (2, 11, 9)] + [(1, 7, 8), (3, 20, 5)] * open_sizes
    for batch, height, width in sizes:
        x = np.random.default_rng(batch).standard_normal((batch, C, height, width)).astype(np.float32)
        reference = expected_output(two_convs(tensors, "3x3 by two", x.shape, between), {"x": x})
        assert_close(run(session, x), reference)


def test_shape_of_the_result_is_inferred_through_both():
    tensors = arrays("3x3 by two")
    for x_shape, expected in (
        (X_SHAPE, [2, K, 5, 4]),
        (("n", C, 11, 9), ["n", K, 5, 4]),
        (("n", C, "h", 9), ["n", K, None, 4]),
    ):
        check_shape(one_node(tensors, "3x3 by two", x_shape), expected)


def test_batch_of_no_images_gives_none():
    tensors = arrays()
    session = make_session(one_node(tensors, "3x3", ("n", C, "h", "w")))
    assert run(session, np.zeros((0, C, 11, 9), np.float32)).shape == (0, K, 11, 9)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"d": np.ones((C, 2, 3, 3), np.float32)}, "depthwise weights of shape"),
        (
            {"d": np.ones((C + 1, 1, 3, 3), np.float32), "db": np.ones(C + 1, np.float32)},
            "a filter for each channel of the input",
        ),
        (
            {"db": np.ones(C + 1, np.float32)},
            r"the depthwise convolution in front: bias of shape \[7\]: expected \[6\]",
        ),
        ({"w": np.ones((K, C + 1, 1, 1), np.float32)}, "expected 7 channels"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_shapes(changed, words):
    tensors = arrays() | changed
    with pytest.raises(Exception, match=words):
        run(make_session(one_node(tensors, "3x3", (None, None, None, None))), tensors["x"])


@pytest.mark.parametrize("x_shape", [X_SHAPE, ("n", C, "h", "w")])
def test_swap_makes_a_session_with_the_same_outputs(x_shape):
    tensors = arrays("3x3", residual=False)
    original = two_convs(
        tensors, "3x3", x_shape,
        [helper.make_node("HardSwish", ["u"], ["v"])], [helper.make_node("Tanh", ["p"], ["y"])],
    )  # fmt: skip
    result = swap(original, fuse=True)
    assert [each.op_type for each in result.to_proto().graph.node] == ["FusedConv"]
    assert_close(
        run(make_session(result.to_proto().SerializeToString()), tensors["x"]),
        expected_output(original, tensors),
    )
