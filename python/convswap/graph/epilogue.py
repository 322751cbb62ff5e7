"""Activation and pooling of `convswap.FusedConv`: y = pool(activation(conv(X, W) + B + Z))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

_Default = TypeVar("_Default", float, None)


class NotFusable(Exception):
    """A node cannot be fused into a FusedConv. The message is the reason; its "it" is the node."""


@dataclass(frozen=True)
class Activation:
    """An elementwise activation, under its name in the attribute `activation`.

    Clip's `alpha` and `beta` are its minimum and maximum, infinite if unbounded. LeakyRelu and Elu have
    `alpha`; HardSigmoid has both. A parameter that the activation does not have is None.
    """

    name: str
    alpha: float | None = None
    beta: float | None = None

    def attributes(self) -> list[ir.Attr]:
        """Return the attributes of FusedConv for this activation."""
        attributes = [ir.AttrString("activation", self.name)]
        for name in ("alpha", "beta"):
            parameter = getattr(self, name)
            if parameter is not None:
                attributes.append(ir.AttrFloat32(f"activation_{name}", parameter))
        return attributes


NO_ACTIVATION = Activation("None")


@dataclass(frozen=True)
class Pool:
    """A pooling over height and width: `op` is MaxPool or AveragePool.

    `kernel_shape` and `strides` are (height, width); `pads` is (top, left, bottom, right).
    """

    op: str
    kernel_shape: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    ceil_mode: bool
    count_include_pad: bool

    def attributes(self) -> list[ir.Attr]:
        """Return the attributes of FusedConv for this pooling."""
        attributes = [
            ir.AttrString("pool", self.op),
            ir.AttrInt64s("pool_kernel_shape", self.kernel_shape),
            ir.AttrInt64s("pool_strides", self.strides),
            ir.AttrInt64s("pool_pads", self.pads),
            ir.AttrInt64("pool_ceil_mode", int(self.ceil_mode)),
        ]
        if self.op == "AveragePool":
            attributes.append(ir.AttrInt64("pool_count_include_pad", int(self.count_include_pad)))
        return attributes


def read_float(node: ir.Node, name: str, default: _Default) -> float | _Default:
    """Return the attribute `name`; raise NotFusable if it is no number."""
    attribute = _attribute(node, name, ir.AttributeType.FLOAT)
    return default if attribute is None else attribute.as_float()


def read_int(node: ir.Node, name: str, default: int) -> int:
    """Return the attribute `name`; raise NotFusable if it is no integer."""
    attribute = _attribute(node, name, ir.AttributeType.INT)
    return default if attribute is None else attribute.as_int()


def read_ints(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the attribute `name`; raise NotFusable if it is no list of integers."""
    attribute = _attribute(node, name, ir.AttributeType.INTS)
    return default if attribute is None else tuple(attribute.as_ints())


def read_text(node: ir.Node, name: str, default: str) -> str:
    """Return the attribute `name`; raise NotFusable if it is no string."""
    attribute = _attribute(node, name, ir.AttributeType.STRING)
    return default if attribute is None else attribute.as_string()


def _attribute(node: ir.Node, name: str, kind: ir.AttributeType) -> ir.Attr | None:
    attribute = node.attributes.get(name)
    if attribute is not None and (attribute.is_ref() or attribute.type != kind):
        raise NotFusable(f"its attribute {name!r} is not of the type that ONNX gives it")
    return attribute


def max_finite(dtype: np.dtype) -> float:
    """Return the largest finite number of a floating-point `dtype`."""
    return float(ml_dtypes.finfo(dtype).max)
