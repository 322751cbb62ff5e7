"""LayoutConv in sessions: shapes that are declared open, every rank, type and layout, and refusals.

The expected numbers are those of the ONNX nodes that compute the same, with Transposes around.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from convswap import compare, explain, swap
from convswap.graph.plain_model import plain_model
from convswap.runtime.layers import conv_layers
from each_case import each
from onnx import TensorProto, helper
from op_sessions import check_shape, graph_model, make_session, without_trailing_empty

LAYOUTS = list(itertools.product(("NCHW", "NHWC"), repeat=3))
# Relative to the largest number: sums of at most 54 products in float32, and in TF32 on a card.
TOLERANCE = {"cpu": 2e-6, "cuda": 2e-3}
# Weights of each rank, and extents of the input's spatial axes. No two extents are equal.
RANKS = {1: ((6, 5, 3), (9,)), 2: ((6, 5, 3, 2), (9, 8)), 3: ((4, 3, 2, 3, 1), (4, 6, 7))}
POOL = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 1]}
DEPTHWISE = {"depthwise_pads": [1, 0, 1, 2], "depthwise_strides": [1, 2], "depthwise_activation": "Relu"}


def permuted(shape: tuple, layout: str) -> list:
    """Return an NCHW shape in a layout."""
    return list(shape) if layout == "NCHW" else [shape[0], *shape[2:], shape[1]]


def layout_model(
    rank: int = 2,
    layouts: tuple[str, str, str] = ("NHWC", "NHWC", "NHWC"),
    *,
    op: str = "LayoutConv",
    x_shape: list | None = None,
    has_residual: bool = False,
    has_depthwise: bool = False,
    element_type: int = TensorProto.FLOAT,
    follow: str = "Abs",
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one LayoutConv and a node behind it; only the batch and the channels are declared."""
    random = np.random.default_rng(rank)
    w_shape, _ = RANKS[rank]
    if has_depthwise:
        w_shape = (w_shape[0], w_shape[1], *[1] * rank)
    kind = helper.tensor_dtype_to_np_dtype(element_type)
    constants = {"w": random.standard_normal(w_shape), "b": random.standard_normal(w_shape[0])}
    names = ["x", "w", "b", "z" if has_residual else ""]
    if has_depthwise:
        constants["d"] = random.standard_normal((w_shape[1], 1, 3, 2))
        names.append("d")
        attributes |= DEPTHWISE
    if op == "LayoutConv":
        attributes |= dict(zip(("input_layout", "output_layout", "residual_layout"), layouts, strict=True))
    names = without_trailing_empty(names)
    node = helper.make_node(op, names, ["h"], "conv1", domain="convswap", **attributes)
    spatial = tuple(f"extent{axis}" for axis in range(rank))
    shapes = {"x": x_shape or permuted(("n", w_shape[1], *spatial), layouts[0]), "z": None}
    return graph_model(
        [node, helper.make_node(follow, ["h"], ["y"])],
        {name: shapes[name] for name in "xz" if name in names},
        {name: array.astype(kind) for name, array in constants.items()},
        element_type=element_type,
    )


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    plain = ir.to_proto(plain_model(ir.from_proto(model)))
    return onnxruntime.InferenceSession(plain.SerializeToString(), providers=["CPUExecutionProvider"])


def feeds_of(
    model: onnx.ModelProto, rank: int, layouts: tuple[str, str, str], batch: int = 2
) -> dict[str, np.ndarray]:
    """Return random inputs; the residual has the shape of the convolution's output."""
    random = np.random.default_rng(9)
    w_shape, extents = RANKS[rank]
    x = random.standard_normal(permuted((batch, w_shape[1], *extents), layouts[0])).astype(np.float32)
    feeds = {"x": x}
    if any(value.name == "z" for value in model.graph.input):
        z_shape = (batch, w_shape[0], *(e - k + 1 for e, k in zip(extents, w_shape[2:], strict=True)))
        feeds["z"] = random.standard_normal(permuted(z_shape, layouts[2])).astype(np.float32)
    return feeds


@each("layouts", LAYOUTS)
@each("has_residual", [False, True])
@pytest.mark.parametrize("rank", RANKS)
def test_it_is_the_plain_nodes_with_transposes(rank, has_residual, layouts, device):
    pool = POOL if rank == 2 else {}
    model = layout_model(
        rank, layouts, has_residual=has_residual, activation="LeakyRelu", activation_alpha=0.25, **pool
    )
    session, plain = make_session(model.SerializeToString(), device), plain_session(model)
    for batch in (2, 3):  # the batch and the extents are open
        feeds = feeds_of(model, rank, layouts, batch)
        (y,), (expected,) = session.run(None, feeds), plain.run(None, feeds)
        assert y.shape == expected.shape
        np.testing.assert_allclose(y, expected, atol=TOLERANCE[device] * np.abs(expected).max(), rtol=0)


@each("layouts", LAYOUTS)
def test_depthwise_convolution_in_front_reads_the_input_layout(layouts, device):
    model = layout_model(2, layouts, has_depthwise=True)
    feeds = feeds_of(model, 2, layouts)
    y = make_session(model.SerializeToString(), device).run(None, feeds)[0]
    expected = plain_session(model).run(None, feeds)[0]
    np.testing.assert_allclose(y, expected, atol=TOLERANCE[device] * np.abs(expected).max(), rtol=0)


@each(
    "rank, layouts, x_shape, expected",
    [
        (2, ("NHWC", "NHWC", "NCHW"), ["n", 9, 8, 5], ["n", 7, 7, 6]),
        (2, ("NHWC", "NCHW", "NCHW"), ["n", 9, 8, 5], ["n", 6, 7, 7]),
        (2, ("NCHW", "NHWC", "NCHW"), ["n", 5, 9, 8], ["n", 7, 7, 6]),
        (2, ("NHWC", "NHWC", "NCHW"), ["n", "h", 8, 5], ["n", None, 7, 6]),
        (2, ("NHWC", "NHWC", "NCHW"), [2, 9, "w", "c"], [2, 7, None, 6]),
        (1, ("NHWC", "NHWC", "NCHW"), ["n", 9, 5], ["n", 7, 6]),
        (3, ("NHWC", "NHWC", "NCHW"), ["n", 4, "h", 7, 3], ["n", 3, None, 7, 4]),
    ],
)
def test_known_extents_of_the_output_are_on_the_axes_of_its_layout(rank, layouts, x_shape, expected, device):
    model = layout_model(rank, layouts, x_shape=x_shape)
    check_shape(model.SerializeToString(), expected, device)


def test_known_extents_behind_a_depthwise_convolution_are_those_of_the_layout(device):
    model = layout_model(2, ("NHWC", "NHWC", "NCHW"), x_shape=["n", 9, 8, 5], has_depthwise=True)
    check_shape(model.SerializeToString(), ["n", 9, 5, 6], device)


@each(
    "options, message",
    [
        ({"x_shape": [2, 5, 9, 8]}, "input of shape [2, 5, 9, 8]: expected 5 channels on the last axis"),
        ({"x_shape": ["n", "h", 1, 5]}, "spatial axis 1: the filter reaches over 2 positions"),
        ({"layouts": ("NHCW", "NHWC", "NHWC")}, "unknown input_layout 'NHCW'"),
        ({"x_shape": [2, 5, 9, 8], "has_depthwise": True}, "the depthwise convolution in front: input of"),
    ],
)
def test_misfit_is_refused_when_the_session_is_made(options, message, device):
    with pytest.raises(Exception, match="convswap LayoutConv node 'conv1'") as raised:
        make_session(layout_model(**options).SerializeToString(), device)
    assert message in str(raised.value)


@pytest.mark.parametrize("op", ["Conv", "FusedConv"])
@pytest.mark.parametrize("name", ["input_layout", "output_layout", "residual_layout"])
def test_other_ops_refuse_a_layout_and_do_not_ignore_it(op, name):
    model = layout_model(op=op, x_shape=[2, 5, 9, 8], **{name: "NCHW"})
    with pytest.raises(
        Exception, match=f"{name} NCHW: expected no such attribute of {op}: LayoutConv has it"
    ):
        make_session(model.SerializeToString())


def test_op_that_the_library_does_not_have_is_one_clear_error():
    """A library without LayoutConv meets a file with one, as this library meets this op."""
    model = layout_model(op="LaterConv", x_shape=[2, 5, 9, 8])
    with pytest.raises(Exception, match=r"convswap:LaterConv.* is not a registered function/op"):
        make_session(model.SerializeToString())


def test_swap_leaves_it_and_fuses_nothing_into_it():
    model = layout_model(2, follow="Relu")
    result = swap(model, fuse=True)
    nodes = [node.op_type for node in result.model.graph]
    assert nodes == ["LayoutConv", "Relu"] and not result.fused and not result.swapped


def test_layer_has_the_problem_and_the_default_nodes_of_its_layouts():
    model = layout_model(2, ("NHWC", "NCHW", "NCHW"), has_residual=True, activation="Relu")
    (layer,) = conv_layers(model)
    assert layer.fused == ("Add", "Relu")
    problem = layer.problem({"x": (2, 9, 8, 5), "z": (2, 6, 7, 7)})
    assert problem.text.endswith("layouts=NHWC+NCHW>NCHW") and problem.output_shape == (2, 6, 7, 7)
    default = layer.model({"x": 4, "z": 4}, swapped=False).message
    assert [node.op_type for node in default.graph.node] == ["Transpose", "Conv", "Add", "Relu"]


def test_compare_and_explain_take_a_model_with_one(tmp_path, device):
    path = tmp_path / "model.onnx"
    onnx.save(layout_model(2, x_shape=["n", 9, 8, 5]), path)
    explanation = explain(path, device=device)
    (plan,) = explanation.convs
    assert "layouts=NHWC>NHWC" in plan.problem
    result = compare(path, device=device, images=2, batch=2, time_layers=False)
    assert result.verdict.agree
