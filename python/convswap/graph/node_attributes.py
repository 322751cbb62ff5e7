"""Read the attributes of nodes that are to be fused, from models that may be unsound."""

from __future__ import annotations

from typing import TypeVar

import onnx_ir as ir

from convswap.graph.epilogue import NotFusable

_Default = TypeVar("_Default", float, None)


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
