"""A suite's layer as a one-node Conv with seeded weights and data, and how exact a session of it is.

Its precision is "tf32" or "ieee" for float32 tensors, else the type of all tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from convswap.graph.domain import DOMAIN, DOMAIN_VERSION, FUSED_OP
from convswap.graph.swap import PRECISIONS
from convswap.runtime.device import Device
from convswap.runtime.layers import ConvLayer
from convswap.runtime.sessions import NoKernelError, Side, make_session, plain_errors, value_on
from convswap.timing.suite_layer import SuiteLayer
from convswap.truth.closeness import TRUTH_IMAGES, relative_l2_error
from convswap.truth.operators import reference_conv

_STORAGE_TYPES = {"float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16}
LONE_PRECISIONS = (*PRECISIONS, *_STORAGE_TYPES)
# What the plain loops of `reference` do in seconds.
_TRUTH_OPERATIONS = 5e9
_OPSET, _IR_VERSION = 20, 9
# The first whose Conv knows bfloat16; older ONNX Runtimes do not know it.
_BFLOAT16_OPSET = 22


def lone_conv(layer: SuiteLayer, precision: str, algorithm: str) -> ConvLayer:
    """Return `layer` as a Conv of our op, or a FusedConv, with seeded normal weights."""
    opset = _BFLOAT16_OPSET if precision == "bfloat16" else _OPSET
    stored = {} if precision in _STORAGE_TYPES else {"precision": precision}
    node = helper.make_node(
        FUSED_OP if layer.following else "Conv",
        ["x", "w"],
        ["y"],
        name=layer.name,
        domain=DOMAIN,
        kernel_shape=[layer.kernel] * layer.rank,
        algorithm=algorithm,
        **layer.attributes,
        **layer.following,
        **stored,
    )
    return ConvLayer(
        node=node,
        constants={"w": numpy_helper.from_array(lone_weights(layer, precision), "w")},
        opsets=(helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)),
        ir_version=_IR_VERSION,
        element_type=_element_type(precision),
    )


def lone_sessions(
    conv: ConvLayer, sides: Sequence[Side], device: Device, provider_options: Mapping[str, str] | None = None
) -> dict[Side, onnxruntime.InferenceSession]:
    """Return a session of each side, but of those whose provider has no Conv of the layer's type.

    `provider_options` are added to each side's own.

    Raises:
        ConvswapError: a session cannot be made for any other reason.
    """
    sessions = {}
    for side in sides:
        try:
            model = conv.model({"x": _rank(conv)}, ours=side.ours)
            optioned = side.with_options(provider_options or {})
            sessions[side] = make_session(model, optioned, device, only_device=True)
        except NoKernelError:
            # float32 they all have.
            if side.ours or conv.element_type == onnx.TensorProto.FLOAT:
                raise
    return sessions


def lone_weights(layer: SuiteLayer, precision: str) -> np.ndarray:
    """Return the seeded normal weights of `layer`, of shape (filters, c of a group, kernel...)."""
    return _normal(layer.weight_shape, precision, seed=0)


def lone_data(layer: SuiteLayer, batch: int, precision: str) -> np.ndarray:
    """Return seeded normal data for a run of `layer`, of shape (batch, c, spatial...)."""
    return _normal(layer.input_shape(batch), precision, seed=batch)


def lone_error(conv: ConvLayer, side: Side, device: Device, x: np.ndarray) -> float:
    """Return the relative L2 error of `conv` on our `side`, on at most 100 images of `x`.

    They are fewer where each is a lot of work, so that a node that leaves the choice to the planner may get
    another algorithm than for all of `x`: name it. The error is against the float64 convolution of what the
    session is given, the rounded values of a small type.
    """
    session = make_session(conv.model({"x": _rank(conv)}, ours=True), side, device, only_device=True)
    affordable = int(_TRUTH_OPERATIONS // (conv.problem({"x": x.shape}).operations / len(x)))
    few = np.ascontiguousarray(x[: max(1, min(TRUTH_IMAGES, affordable))])
    arrays = conv.arrays({"x": few})
    truth = reference_conv(arrays.x, arrays.w, arrays.bias, conv.attributes)
    y = np.empty(truth.shape, few.dtype)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value_on(few))
    binding.bind_ortvalue_output("y", value_on(y))
    with plain_errors("ONNX Runtime cannot run the model"):
        session.run_with_iobinding(binding)
    return relative_l2_error(y, truth)


def _rank(conv: ConvLayer) -> int:
    return len(conv.constants["w"].dims)


def _element_type(precision: str) -> int:
    return int(_STORAGE_TYPES.get(precision, onnx.TensorProto.FLOAT))


def _normal(shape: tuple[int, ...], precision: str, seed: int) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return values.astype(helper.tensor_dtype_to_np_dtype(_element_type(precision)), copy=False)
