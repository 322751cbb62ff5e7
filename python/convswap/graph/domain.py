"""The domain of the library's ops, its version, and what its ops compute."""

from __future__ import annotations

import onnx
import onnx_ir as ir

DOMAIN = "convswap"
DOMAIN_VERSION = 1
FUSED_OP = "FusedConv"
OUR_OPS = ("Conv", FUSED_OP)
SUPPORTED_ELEMENT_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)


def is_our_conv(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a Conv of ours that takes in nothing of what follows it."""
    return node.domain == DOMAIN and node.op_type == "Conv"


def is_ours(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a Conv or a FusedConv of ours."""
    return node.domain == DOMAIN and node.op_type in OUR_OPS


def op_name(node: onnx.NodeProto | ir.Node) -> str:
    """Return the name of what `node` computes, with its domain unless that is ONNX's: "convswap.Conv"."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
