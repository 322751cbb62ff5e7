"""Every opset of Conv, and every form of shapes and weights in a graph: swapped and in override mode."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from conv_cases import EMPTY_CASES, ConvCase, assert_within_rounding
from each_case import each
from onnx import helper, numpy_helper
from op_sessions import ROUNDING, graph_model, run
from our_sessions import conv, either_way, our_session

# The versions in which ONNX changed Conv.
OPSETS = (1, 11, 22)
CASES = (
    # No attribute at all, not even kernel_shape.
    ConvCase((2, 3, 17), (4, 3, 5)),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True),
    ConvCase((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), True),
    # Some attributes left out. With an even filter the two modes of SAME padding differ.
    ConvCase((2, 4, 9, 8), (6, 2, 4, 2), True, {"group": 2}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), False, {"kernel_shape": [4, 2], "dilations": [2, 3]}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True, {"pads": [1, 0, 2, 3], "strides": [2, 1]}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True, {"auto_pad": "NOTSET", "pads": [1, 0, 2, 3]}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True, {"auto_pad": "NOTSET"}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True, {"auto_pad": "VALID", "strides": [2, 3]}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True, {"auto_pad": "SAME_UPPER"}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 2), True, {"auto_pad": "SAME_LOWER"}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 3), False, {"auto_pad": "SAME_UPPER", "strides": [3, 2]}),
    ConvCase((2, 3, 9, 8), (4, 3, 4, 3), False, {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ConvCase((1, 2, 10), (2, 2, 4), True, {"auto_pad": "SAME_LOWER", "strides": [3]}),
    ConvCase((1, 2, 5, 6, 7), (3, 2, 2, 3, 4), True, {"auto_pad": "SAME_UPPER", "strides": [2, 1, 3]}),
)
X, W, B = ConvCase((2, 3, 9, 8), (4, 3, 3, 2), True).arrays()
OTHER_W = ConvCase((1, 3, 9, 8), (4, 3, 3, 2)).arrays()[1]


def case_model(case: ConvCase, opset: int = 22) -> onnx.ModelProto:
    _, w, b = case.arrays()
    constants = {"w": w} if b is None else {"w": w, "b": b}
    node = conv(" ".join(["x", *constants]), **case.attributes)
    return graph_model([node], {"x": case.x_shape}, constants, opset=opset)


def check(
    y: np.ndarray, x: np.ndarray, w: np.ndarray, b: np.ndarray | None, device: str, **attributes
) -> None:
    assert_within_rounding(y, (x, w, b), *ROUNDING[device], **attributes)


@either_way
@each("case", CASES)
def test_every_opset_gives_the_definition_and_the_same_bits(case, way, device):
    x = case.arrays()[0]
    results = [run(our_session(case_model(case, opset), way, device), x) for opset in OPSETS]
    case.check(results[0], *ROUNDING[device])
    assert all(np.array_equal(y, results[0]) for y in results)


@either_way
@each("case", EMPTY_CASES)
def test_an_extent_of_0_gives_no_outputs_or_those_of_the_bias(case, way, device):
    y = run(our_session(case_model(case), way, device), case.arrays()[0])
    case.check(y, *ROUNDING[device])


# Shapes that are known only in a run.

SHAPES = ((2, 3, 9, 8), (1, 3, 20, 31), (5, 3, 3, 2), (0, 3, 9, 8), (2, 3, 9, 8))


@either_way
@pytest.mark.parametrize(
    "declared",
    [("N", 3, "H", "W"), ("N", "C", "H", "W"), (None,) * 4, ("N", "C", "S", "S"), (2, 3, None, None), None],
    ids=str,
)
def test_symbolic_dimensions_accept_every_shape_that_fits(declared, way, device):
    attributes = {"auto_pad": "SAME_UPPER", "strides": [2, 1]}
    model = graph_model([conv("x w b", **attributes)], {"x": declared}, {"w": W, "b": B}, opset=22)
    session = our_session(model, way, device)
    random = np.random.default_rng(3)
    for shape in SHAPES:
        if declared is not None and isinstance(declared[0], int) and shape[0] != declared[0]:
            continue
        if declared == ("N", "C", "S", "S"):
            shape = (*shape[:2], shape[2], shape[2])
        x = random.normal(size=shape).astype(np.float32)
        check(run(session, x), x, W, B, device, **attributes)


@either_way
def test_channels_that_only_the_run_knows_follow_the_weights_of_the_run(way, device):
    model = graph_model(
        [conv("x w b", pads=[1, 0, 1, 0])],
        {"x": ("N", "C", "H", "W"), "w": ("K", "C", "R", "S"), "b": ("K",)},
        opset=22,
    )
    session = our_session(model, way, device)
    for case in (
        ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True),
        ConvCase((1, 7, 9, 8), (6, 7, 5, 2), True),
        ConvCase((2, 1, 4, 30), (1, 1, 1, 1), True),
        ConvCase((2, 3, 9, 8), (4, 3, 3, 3), True),
    ):
        x, w, b = case.arrays()
        check(run(session, x, w=w, b=b), x, w, b, device, pads=[1, 0, 1, 0])


# Sources of the weights.


@either_way
def test_weights_that_another_node_computes_are_those_of_the_run(way, device):
    nodes = [helper.make_node("Mul", ["v", "v"], ["w"], name="square"), conv("x w")]
    session = our_session(graph_model(nodes, {"x": X.shape, "v": W.shape}, opset=22), way, device)
    for v in (W, OTHER_W, W):
        check(run(session, X, v=v), X, v * v, None, device)


@either_way
def test_weights_of_a_constant_node_are_its_value(way, device):
    constant = helper.make_node("Constant", [], ["w"], name="constant", value=numpy_helper.from_array(W))
    check(
        run(our_session(graph_model([constant, conv("x w")], {"x": X.shape}, opset=22), way, device), X),
        X, W, None, device,
    )  # fmt: skip


@either_way
def test_weights_with_a_default_may_be_given_or_left_out(way, device):
    model = graph_model([conv("x w")], {"x": X.shape, "w": W.shape}, {"w": W}, opset=22)
    session = our_session(model, way, device)
    check(run(session, X), X, W, None, device)
    check(run(session, X, w=OTHER_W), X, OTHER_W, None, device)
    check(run(session, X), X, W, None, device)


@either_way
def test_weights_shared_by_nodes_with_other_attributes_serve_each_and_stay_as_they_were(way, device):
    attributes = [
        {},
        {"strides": [2, 3], "pads": [1, 1, 0, 2]},
        {"dilations": [3, 2], "auto_pad": "SAME_LOWER"},
        {},
    ]
    names = [f"y{i}" for i in range(len(attributes))]
    # Our op must neither move nor rewrite weights that a node of another kind reads too.
    nodes = [
        *(
            conv("x w", name, **node_attributes)
            for name, node_attributes in zip(names, attributes, strict=True)
        ),
        helper.make_node("Mul", ["w", "scale"], ["seen"], name="multiply"),
    ]
    model = graph_model(nodes, {"x": X.shape, "scale": (1,)}, {"w": W}, outputs=[*names, "seen"], opset=22)
    session = our_session(model, way, device, conv_nodes=len(attributes))
    for _ in range(3):
        *results, product = session.run(None, {"x": X, "scale": np.full(1, 2, np.float32)})
        for y, node_attributes in zip(results, attributes, strict=True):
            check(y, X, W, None, device, **node_attributes)
        assert np.array_equal(product, 2 * W)


@either_way
def test_weights_given_once_may_be_shared_and_reach_another_node(way, device):
    nodes = [
        conv("x w", "h", pads=[1, 1, 1, 0]),
        conv("x w", "k", dilations=[2, 1], pads=[2, 1, 2, 0]),
        helper.make_node("Sub", ["h", "k"], ["y"], name="subtract"),
        helper.make_node("Neg", ["w"], ["negative"], name="negate"),
    ]
    model = graph_model(nodes, {"x": X.shape, "w": W.shape}, outputs=["h", "k", "y", "negative"], opset=22)
    session = our_session(model, way, device, conv_nodes=2)
    for w in (W, OTHER_W):
        h, k, y, negative = session.run(None, {"x": X, "w": w})
        check(h, X, w, None, device, pads=[1, 1, 1, 0])
        check(k, X, w, None, device, dilations=[2, 1], pads=[2, 1, 2, 0])
        assert np.array_equal(y, h - k)
        assert np.array_equal(negative, -w)
