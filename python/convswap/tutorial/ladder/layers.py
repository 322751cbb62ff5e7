"""The convolutions of a network as a rung of the ladder computes them, each in a session of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnxruntime
from onnx import helper

from convswap.graph.domain import DOMAIN, DOMAIN_VERSION
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.runtime.device import Device
from convswap.runtime.layers import ConvLayer
from convswap.runtime.sessions import CONVSWAP, make_session
from convswap.truth.evaluation import evaluate

Arrays = Mapping[str, np.ndarray]


def session_of(
    layer: ConvLayer, ranks: Mapping[str, int], device: Device, options: Mapping[str, str]
) -> onnxruntime.InferenceSession:
    """Return a session of the layer alone; `options` are added to those of the provider."""
    return make_session(
        layer.model(ranks, ours=True), CONVSWAP.with_options(options), device, only_device=True
    )


def apart_session(
    layer: ConvLayer, ranks: Mapping[str, int], device: Device, options: Mapping[str, str], algorithm: str
) -> onnxruntime.InferenceSession:
    """Return a session of what a fused layer takes the place of: our Conv by `algorithm`, and ONNX's ops."""
    model = layer.model(ranks, ours=False)
    model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
    conv = model.graph.node[0]
    conv.domain = DOMAIN
    conv.attribute.append(helper.make_attribute("algorithm", algorithm))
    precision = layer.setting("precision", DEFAULT_PRECISION)
    conv.attribute.append(helper.make_attribute("precision", precision))
    return make_session(model, CONVSWAP.with_options(options), device)


def truth_of(layer: ConvLayer, fed: Arrays) -> np.ndarray:
    """Return what the layer gives for the inputs `fed`, in float64."""
    ranks = {name: values.ndim for name, values in fed.items()}
    output: np.ndarray = evaluate(layer.model(ranks, ours=False), fed).outputs[0]
    return output
