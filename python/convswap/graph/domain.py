"""The library's op domain and its ops, and convolutions that are not Conv of the ONNX domain."""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir

DOMAIN = "convswap"
DOMAIN_VERSION = 1
# The two names of ONNX's domain.
ONNX_DOMAINS = ("", "ai.onnx")
FUSED_OP = "FusedConv"
# FusedConv whose tensors may be NHWC.
LAYOUT_OP = "LayoutConv"
# Convolution of int8 or uint8 codes.
QUANT_OP = "QuantConv"
# The library's convolutions.
CONVSWAP_OPS = ("Conv", FUSED_OP, LAYOUT_OP)
# MaxPool or AveragePool whose tensors are NHWC.
POOL_OP = "LayoutPool"
# These compute what ONNX's operators of the same names do, LayerNormalization only over the last axis, Mul
# only for factors of shape (N, 1..., C).
LAYER_NORM_OP = "LayerNormalization"
MUL_OP = "Mul"
SUPPORTED_ELEMENT_TYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
)

_OPTIMISED = "is written by ONNX Runtime's optimiser: use the model as it was before it was optimised"
_QUANTISED = (
    "computes in integers, the library's Conv in floating point: fuse the model, which makes it a QuantConv, "
    "or use the model as it was before it was quantised"
)
_TRANSPOSED = "is a transposed convolution, which the library does not compute"
_UNSUPPORTED_REASONS = {
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
# "Conv" not followed by a lower-case letter: "Convert" and "ConvexHull" are no convolutions.
_CONVOLUTION_NAME = re.compile(r"Conv(?![a-z])|Convolution")


def is_convswap_conv(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a `convswap.Conv`."""
    return node.domain == DOMAIN and node.op_type == "Conv"


def is_convswap_op(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a `convswap.Conv`, `convswap.FusedConv` or `convswap.LayoutConv`."""
    return node.domain == DOMAIN and node.op_type in CONVSWAP_OPS


def is_layout_op(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a `convswap.LayoutConv`, whose tensors may be NHWC."""
    return node.domain == DOMAIN and node.op_type == LAYOUT_OP


def is_quant_op(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a `convswap.QuantConv`, whose data are codes."""
    return node.domain == DOMAIN and node.op_type == QUANT_OP


def is_layout_pool(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a `convswap.LayoutPool`, whose tensors are NHWC."""
    return node.domain == DOMAIN and node.op_type == POOL_OP


def is_operator_of_onnx(node: onnx.NodeProto | ir.Node) -> bool:
    """Return whether `node` is a `convswap.LayerNormalization` or `convswap.Mul`."""
    return node.domain == DOMAIN and node.op_type in (LAYER_NORM_OP, MUL_OP)


def opset_of(model: ir.Model) -> int:
    """Return the version of ONNX's domain in `model`; 0 if it is missing."""
    # onnx-ir normalises the domain "ai.onnx" to "" in nodes, but not in opset imports.
    return next((model.opset_imports[name] for name in ONNX_DOMAINS if name in model.opset_imports), 0)


def type_name(element_type: ir.DataType) -> str:
    """Return the name of an element type: "float32", "bfloat16"."""
    return {"float": "float32", "double": "float64"}.get(element_type.name.lower(), element_type.name.lower())


def op_name(node: onnx.NodeProto | ir.Node) -> str:
    """Return the op type of `node` with its domain, which is left out for ONNX's: "convswap.Conv", "Relu"."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def is_named_convolution(op_type: str) -> bool:
    """Return whether the name `op_type` says that the op computes a convolution."""
    return _CONVOLUTION_NAME.search(op_type) is not None


def unsupported_reason(domain: str, op_type: str) -> str | None:
    """Return why the library does not compute the convolution op `op_type`; None for any other op."""
    return _UNSUPPORTED_REASONS.get((domain, op_type))


def rewritten_conv_reason(domain: str, op_type: str) -> str | None:
    """Return why the library does not compute an op that a tool has put in place of a Conv; else None.

    ONNX Runtime's optimiser and quantisation tools rewrite Conv nodes to such ops.
    """
    reason = unsupported_reason(domain, op_type)
    return reason if reason in (_OPTIMISED, _QUANTISED) else None
