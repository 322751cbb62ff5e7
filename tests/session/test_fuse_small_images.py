"""A fused pool computes images smaller than its window like ONNX Runtime, if the model leaves sizes open."""

from __future__ import annotations

import itertools

import convswap
import numpy as np
import onnx
import onnxruntime
import pytest
from convswap import _native
from convswap.errors import ConvswapError
from onnx import TensorProto, helper
from swap_models import tensor_info, weights

# Sizes for a Conv of 3x3 without padding.
IMAGES = tuple(itertools.product((3, 4, 5, 7), (3, 4, 6)))
KERNELS, STRIDES = ((2, 2), (3, 3), (5, 4)), ((1, 1), (2, 2), (3, 5), (7, 7))
PADS = ((0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1))
CASES = [
    ("MaxPool", {"ceil_mode": 0}),
    ("MaxPool", {"ceil_mode": 1}),
    ("AveragePool", {"ceil_mode": 0, "count_include_pad": 0}),
    ("AveragePool", {"ceil_mode": 0, "count_include_pad": 1}),
    ("AveragePool", {"ceil_mode": 1, "count_include_pad": 0}),
    ("AveragePool", {"ceil_mode": 1, "count_include_pad": 1}),
]


def model_of(op: str, opset: int, **attributes) -> onnx.ModelProto:
    """Return a Conv and a pool, for images of any size."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node(op, ["c"], ["y"], name="pool", **attributes),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        nodes, "net", [tensor_info("x", "n", 3, "h", "l")], [output], [weights("w", 8, 3, 3, 3)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # One thread: each of the many sessions would start threads, which spin after every run.
    options.intra_op_num_threads = 1
    convswap.register(options)
    # ONNX Runtime's pool of channel blocks (8 wide with AVX2, 16 with AVX-512) divides by its output height,
    # which is 0 for some of these images. A number of filters that no block divides would avoid it too, but
    # would not fill the vectors of `direct`.
    return onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["NchwcTransformer"],
    )


def output_or_none(session: onnxruntime.InferenceSession, x: np.ndarray) -> np.ndarray | None:
    try:
        return session.run(None, {"x": x})[0]
    except Exception:
        return None


# Opset 19 changed AveragePool and not MaxPool.
@pytest.mark.parametrize(
    ("op", "attributes", "opset"),
    [
        (op, attributes, opset)
        for op, attributes in CASES
        for opset in ((17, 20) if op == "AveragePool" else (20,))
    ],
)
def test_the_output_is_that_of_onnxruntime_wherever_it_has_one(op, attributes, opset):
    empty = smaller = 0
    for kernel, strides, pads in itertools.product(KERNELS, STRIDES, PADS):
        model = model_of(op, opset, kernel_shape=kernel, strides=strides, pads=pads, **attributes)
        plain, swapped_sessions = session_of(model), []
        for algorithm in ("direct", "reference"):
            result = convswap.swap(model, fuse=True, algorithm=algorithm)
            # A pool that is not fused runs in ONNX Runtime.
            assert result.fused or "may reach over more" in result.not_fused[0].reason
            swapped_sessions.append(session_of(result.to_proto()))
        for height, width in IMAGES:
            x = np.random.default_rng(height).standard_normal((2, 3, height, width)).astype(np.float32)
            if (expected := output_or_none(plain, x)) is None:
                continue
            for session in swapped_sessions:
                actual = output_or_none(session, x)
                assert actual is not None, (kernel, strides, pads, height, width)
                np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
            empty += expected.size == 0
            smaller += bool(result.fused) and height - 2 + pads[0] + pads[2] < kernel[0]
    assert empty > 20 and smaller > 20


def test_average_that_divides_by_less_than_the_window_in_later_opsets_is_fused_where_that_cannot_be():
    attributes = {"kernel_shape": (3, 3), "strides": (2, 2), "count_include_pad": 1}
    assert convswap.swap(model_of("AveragePool", 20, **attributes), fuse=True).fused
    padded = {**attributes, "pads": (1, 1, 0, 0)}
    (not_fused,) = convswap.swap(model_of("AveragePool", 20, **padded), fuse=True).not_fused
    assert "its kernel_shape (3, 3) may reach over more than what it pools" in not_fused.reason
    assert convswap.swap(model_of("AveragePool", 18, **padded), fuse=True).fused
    assert convswap.swap(model_of("AveragePool", 20, **{**padded, "pads": (1, 1, 1, 1)}), fuse=True).fused


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "windows"),
    [(2, 3, 1, 0), (2, 3, 2, 1), (1, 3, 2, 0), (1, 5, 3, 0), (1, 5, 5, 1), (1, 3, 1, None), (1, 5, 2, None)],
)
@pytest.mark.parametrize("rounds_up", [0, 1])
def test_room_for_windows_is_rounded_towards_zero(size, kernel, stride, windows, rounds_up):
    def result() -> tuple[int, ...]:
        return _native.Problem(
            (1, 1, size, 9),
            (1, 1, 1, 1),
            pool="MaxPool",
            pool_kernel_shape=[kernel, 1],
            pool_strides=[stride, 1],
            pool_ceil_mode=rounds_up,
        ).output_shape

    if windows is None:
        with pytest.raises(ConvswapError, match="window reaches over"):
            result()
    else:
        assert result() == (1, 1, windows, 9)
