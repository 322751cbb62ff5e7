"""What `convswap.FusedConv` computes after the convolution: y = pool(activation(conv(X, W) + B + Z))."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

_Default = TypeVar("_Default", float, None)


class NotFusable(Exception):
    """The reason why a node cannot be fused into a FusedConv; "it" in the message is that node."""


@dataclass(frozen=True)
class Activation:
    """An elementwise function, by the name that the attribute `activation` gives it.

    `alpha` and `beta` are None where they mean nothing. Clip's are its minimum and maximum, infinite if there
    is no bound; LeakyRelu and Elu have `alpha`; HardSigmoid has both.
    """

    name: str
    alpha: float | None = None
    beta: float | None = None

    def attributes(self) -> list[ir.Attr]:
        """Return the attributes of FusedConv that stand for this activation."""
        found = [ir.AttrString("activation", self.name)]
        for name in ("alpha", "beta"):
            parameter = getattr(self, name)
            if parameter is not None:
                found.append(ir.AttrFloat32(f"activation_{name}", parameter))
        return found


NO_ACTIVATION = Activation("None")


@dataclass(frozen=True)
class Pool:
    """A pooling over height and width: `op` is MaxPool or AveragePool.

    `kernel_shape` and `strides` are those of height, width; `pads` has the beginnings of both, then the ends.
    """

    op: str
    kernel_shape: tuple[int, int]
    strides: tuple[int, int]
    pads: tuple[int, int, int, int]
    ceil_mode: bool
    count_include_pad: bool

    def attributes(self) -> list[ir.Attr]:
        """Return the attributes of FusedConv that stand for this pooling."""
        found = [
            ir.AttrString("pool", self.op),
            ir.AttrInt64s("pool_kernel_shape", self.kernel_shape),
            ir.AttrInt64s("pool_strides", self.strides),
            ir.AttrInt64s("pool_pads", self.pads),
            ir.AttrInt64("pool_ceil_mode", int(self.ceil_mode)),
        ]
        if self.op == "AveragePool":
            found.append(ir.AttrInt64("pool_count_include_pad", int(self.count_include_pad)))
        return found


def read_float(node: ir.Node, name: str, default: _Default) -> float | _Default:
    """Return the attribute `name`; NotFusable where it is no number."""
    attribute = _attribute(node, name, ir.AttributeType.FLOAT)
    return default if attribute is None else attribute.as_float()


def read_int(node: ir.Node, name: str, default: int) -> int:
    """Return the attribute `name`; NotFusable where it is no whole number."""
    attribute = _attribute(node, name, ir.AttributeType.INT)
    return default if attribute is None else attribute.as_int()


def read_ints(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the attribute `name`; NotFusable where it is no list of whole numbers."""
    attribute = _attribute(node, name, ir.AttributeType.INTS)
    return default if attribute is None else tuple(attribute.as_ints())


def read_text(node: ir.Node, name: str, default: str) -> str:
    """Return the attribute `name`; NotFusable where it is no string."""
    attribute = _attribute(node, name, ir.AttributeType.STRING)
    return default if attribute is None else attribute.as_string()


def _attribute(node: ir.Node, name: str, kind: ir.AttributeType) -> ir.Attr | None:
    attribute = node.attributes.get(name)
    if attribute is not None and (attribute.is_ref() or attribute.type != kind):
        raise NotFusable(f"its attribute {name!r} is not of the type that ONNX gives it")
    return attribute


def largest(dtype: np.dtype) -> float:
    """Return the largest finite number of a floating-point `dtype`."""
    return float(ml_dtypes.finfo(dtype).max)
