"""Read the activations that `convswap.FusedConv` computes from the nodes that stand for them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.epilogue import Activation, NotFusable, largest, read_float, read_text

_WITHOUT_PARAMETERS = {
    ("", "Relu"): "Relu",
    ("", "Tanh"): "Tanh",
    ("", "Sigmoid"): "Sigmoid",
    ("", "HardSwish"): "HardSwish",
    ("com.microsoft", "Gelu"): "Gelu",
}
_OTHERS = {
    ("", "LeakyRelu"),
    ("", "Elu"),
    ("", "HardSigmoid"),
    ("", "Gelu"),
    ("", "Clip"),
    ("", "Max"),
    ("", "Min"),
    ("", "Swish"),
    ("com.microsoft", "QuickGelu"),
    ("com.microsoft", "FastGelu"),
}
ACTIVATION_OPS = frozenset(_WITHOUT_PARAMETERS) | frozenset(_OTHERS)


# Clip's bounds are attributes, float32 for data of every type, below this opset and inputs from there on.
_CLIP_HAS_INPUTS = 11


def read_activation(
    node: ir.Node, value: ir.Value, element_type: ir.DataType, constants: Constants, *, opset: int
) -> Activation:
    """Return the activation that `node`, of one of ACTIVATION_OPS, applies to its input `value`.

    `opset` is the version of ONNX's own operators in the model.

    Raises:
        NotFusable: FusedConv does not have it, with these parameters.
    """
    op = (node.domain, node.op_type)
    if op in (("", "Clip"), ("", "Max"), ("", "Min")):
        minimum, maximum = clip_bounds(node, value, constants)
        most = largest((element_type if opset >= _CLIP_HAS_INPUTS else ir.DataType.FLOAT).numpy())
        minimum = -most if minimum is None else minimum
        return _clip(minimum, most if maximum is None else maximum, element_type)
    if node.inputs[0] is not value:
        raise NotFusable(f"it does not take {value.name!r} as its data")
    if op in _WITHOUT_PARAMETERS:
        return Activation(_WITHOUT_PARAMETERS[op])
    if op == ("", "LeakyRelu"):
        return Activation("LeakyRelu", read_float(node, "alpha", 0.01))
    if op == ("", "Elu"):
        return Activation("Elu", read_float(node, "alpha", 1.0))
    if op == ("", "HardSigmoid"):
        return Activation("HardSigmoid", read_float(node, "alpha", 0.2), read_float(node, "beta", 0.5))
    if op == ("", "Gelu"):
        return _gelu(node)
    if op == ("com.microsoft", "FastGelu"):
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            raise NotFusable("it adds a bias of its own")
        return Activation("GeluTanh")
    alpha = read_float(node, "alpha", 1.0 if node.op_type == "Swish" else 1.702)
    if alpha != 1.0:
        raise NotFusable(f"its alpha is {alpha:g}; SiLU, which is fused, has 1")
    return Activation("SiLU")


def clip_bounds(node: ir.Node, value: ir.Value, constants: Constants) -> tuple[float | None, float | None]:
    """Return the bounds between which a Clip, Max or Min `node` keeps `value`.

    Max and Min have one bound; the other is infinite. A bound that a Clip leaves out is None.

    Raises:
        NotFusable: they are not constant, or not one number for all elements.
    """
    if node.op_type == "Clip":
        if node.inputs[0] is not value:
            raise NotFusable(f"it does not take {value.name!r} as its data")
        minimum = read_float(node, "min", None)
        maximum = read_float(node, "max", None)
        given = [*node.inputs[1:], None, None]
        if given[0] is not None:
            minimum = _bound(given[0], constants)
        if given[1] is not None:
            maximum = _bound(given[1], constants)
        return minimum, maximum
    others = [other for other in node.inputs if other is not value]
    if len(node.inputs) != 2 or len(others) != 1:
        raise NotFusable(f"a {node.op_type} is fused where it has two operands, one of them constant")
    bound = _bound(others[0], constants)
    return (bound, math.inf) if node.op_type == "Max" else (-math.inf, bound)


def _bound(value: ir.Value | None, constants: Constants) -> float:
    bound = constants.scalar(value)
    tensor = constants.tensor(value)
    # A bound of more axes than the data would add axes to the result; data have three or more.
    if bound is None or tensor is None or len(tensor.shape) > 3:
        raise NotFusable("its bounds are not one constant number for all elements")
    return bound


def _clip(minimum: float, maximum: float, element_type: ir.DataType) -> Activation:
    if not minimum <= maximum or minimum == math.inf or maximum == -math.inf:
        raise NotFusable(f"nothing is between its minimum, {minimum:g}, and its maximum, {maximum:g}")
    if (minimum, maximum) == (0.0, math.inf):
        return Activation("Relu")
    if element_type == ir.DataType.DOUBLE:
        with np.errstate(over="ignore"):
            as_attributes = np.array([minimum, maximum], np.float32).tolist()
        for bound, attribute in zip((minimum, maximum), as_attributes, strict=True):
            if attribute != bound:
                raise NotFusable(f"its bound {bound!r} is no float32, the type of the fused op's attributes")
    return Activation("Clip", minimum, maximum)


def _gelu(node: ir.Node) -> Activation:
    kind = read_text(node, "approximate", "none")
    known = {"none": "Gelu", "tanh": "GeluTanh"}
    if kind not in known:
        raise NotFusable(f"its approximation {kind!r} is not known")
    return Activation(known[kind])
