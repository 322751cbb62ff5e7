"""A suite's layer as a one-node Conv with seeded weights and data, and how exact a session of it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from convswap.closeness import relative_l2_error
from convswap.compare import TRUTH_IMAGES
from convswap.layers import ConvLayer
from convswap.sessions import run
from convswap.suites import SuiteLayer
from convswap.swap import DOMAIN, DOMAIN_VERSION
from convswap.truth_ops import reference_conv

_OPSET, _IR_VERSION = 20, 9


def lone_conv(layer: SuiteLayer, precision: str, algorithm: str) -> ConvLayer:
    """Return `layer` as a Conv of our op, with seeded normal weights."""
    generator = np.random.default_rng(seed=0)
    weights = generator.standard_normal(layer.weight_shape, dtype=np.float32)
    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        name=layer.name,
        domain=DOMAIN,
        kernel_shape=[layer.kernel] * 2,
        strides=[layer.stride] * 2,
        pads=[layer.padding] * 4,
        group=layer.group,
        algorithm=algorithm,
        precision=precision,
    )
    return ConvLayer(
        node=node,
        constants={"w": numpy_helper.from_array(weights, "w")},
        opsets=(helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)),
        ir_version=_IR_VERSION,
        element_type=onnx.TensorProto.FLOAT,
    )


def lone_data(layer: SuiteLayer, batch: int) -> np.ndarray:
    """Return seeded normal data for a run of `layer`, of shape (batch, c, h, w)."""
    return np.random.default_rng(seed=batch).standard_normal(layer.input_shape(batch), dtype=np.float32)


def lone_error(session: onnxruntime.InferenceSession, conv: ConvLayer, x: np.ndarray) -> float:
    """Return the relative L2 error against float64 of a session of `conv`, on at most 100 images of `x`."""
    few = np.ascontiguousarray(x[:TRUTH_IMAGES])
    data, weights, bias = conv.arrays({"x": few})
    truth = reference_conv(data, weights, bias, conv.attributes)
    return relative_l2_error(run(session, {"x": few})[0], truth)
