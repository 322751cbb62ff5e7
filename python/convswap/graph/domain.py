"""The domain of the library's ops, its version, and convolutions that are not Conv of the ONNX domain."""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

DOMAIN = "convswap"
DOMAIN_VERSION = 1
# Both names of ONNX's own domain.
ONNX_DOMAINS = ("", "ai.onnx")
FUSED_OP = "FusedConv"
OUR_OPS = ("Conv", FUSED_OP)
SUPPORTED_ELEMENT_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)

_OPTIMISED = "is written by ONNX Runtime's optimiser: use the model as it was before it was optimised"
_QUANTISED = "computes in integers, the library in float32: use the model as it was before it was quantised"
_TRANSPOSED = "is a transposed convolution, which the library does not compute"
_REASONS = {
    ("", "ConvTranspose"): _TRANSPOSED,
    ("", "ConvInteger"): _QUANTISED,
    ("", "QLinearConv"): _QUANTISED,
    ("", "DeformConv"): "is a deformable convolution, which the library does not compute",
    ("com.microsoft", "FusedConv"): _OPTIMISED,
    ("com.microsoft", "NhwcConv"): _OPTIMISED,
    ("com.microsoft", "NhwcFusedConv"): _OPTIMISED,
    ("com.microsoft", "QLinearConv"): _QUANTISED,
    ("com.microsoft", "ConvTransposeWithDynamicPads"): _TRANSPOSED,
    ("com.microsoft.nchwc", "Conv"): _OPTIMISED,
    ("com.ms.internal.nhwc", "Conv"): _OPTIMISED,
}
# "Conv" as a word of its own: not the beginning of "Convert" or of "ConvexHull".
_CONVOLUTION_NAME = re.compile(r"Conv(?![a-z])|Convolution")


def is_our_conv(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a Conv of ours without fused nodes."""
    return node.domain == DOMAIN and node.op_type == "Conv"


def is_ours(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a Conv or a FusedConv of ours."""
    return node.domain == DOMAIN and node.op_type in OUR_OPS


def op_name(node: onnx.NodeProto | ir.Node) -> str:
    """Return the name of what `node` computes, with its domain unless that is ONNX's: "convswap.Conv"."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def is_named_convolution(op_type: str) -> bool:
    """Return whether an op of that name computes a convolution, by its name."""
    return _CONVOLUTION_NAME.search(op_type) is not None


def why_no_conv(domain: str, op_type: str) -> str | None:
    """Return why the library does not compute a convolution that is not Conv of ONNX, None of others."""
    return _REASONS.get((domain, op_type))


def why_no_conv_any_more(domain: str, op_type: str) -> str | None:
    """Return the reason of an op that a tool has put in the place of a Conv, None of other ops."""
    reason = why_no_conv(domain, op_type)
    return reason if reason in (_OPTIMISED, _QUANTISED) else None
