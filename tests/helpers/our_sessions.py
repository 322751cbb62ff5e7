"""Sessions of plain ONNX models whose Convs are ours, by swapping or overriding, and a check of it."""

from __future__ import annotations

import convswap
import onnx
import onnxruntime
import pytest
from onnx import helper
from op_sessions import PROVIDERS

WAYS = ("swapped", "override")
either_way = pytest.mark.parametrize("way", WAYS)


def our_session(
    model: onnx.ModelProto, way: str, device: str, *, conv_nodes: int = 1
) -> onnxruntime.InferenceSession:
    """Return a session of `model`, asserting that its `conv_nodes` Convs are all ours and on `device`.

    "swapped" swaps the model, "override" leaves it unchanged. `override_session` itself compares the kernels
    that the library created with the session's nodes; only the library can run a swapped node.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = [PROVIDERS[device]]
    if way == "swapped":
        result = convswap.swap(model)
        assert (len(result.swapped), result.not_swapped) == (conv_nodes, ())
        convswap.register(options)
        source = result.to_proto().SerializeToString()
        session = onnxruntime.InferenceSession(source, options, providers=providers)
    else:
        session = convswap.override_session(model.SerializeToString(), options, providers=providers)
    placed = [
        (node.domain, part.ep_name)
        for part in session.get_provider_graph_assignment_info()
        for node in part.get_nodes()
        if "Conv" in node.op_type
    ]
    domains = {"convswap"} if way == "swapped" else {"", "ai.onnx"}
    assert len(placed) == conv_nodes
    assert all(domain in domains and provider == PROVIDERS[device] for domain, provider in placed)
    return session


def conv(inputs: str, output: str = "y", **attributes) -> onnx.NodeProto:
    return helper.make_node("Conv", inputs.split(), [output], name=f"conv_{output}", **attributes)
