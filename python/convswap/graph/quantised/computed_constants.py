"""Constants that a model computes from constants.

PyTorch's exporter writes casts of scales and zero points, and computes the codes of a bias in the graph.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.epilogue import NotFusable, read_int

_ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_OPS = frozenset({*_ARITHMETIC, *RESHAPES, "Cast", "ConstantOfShape", "Shape"})
# Larger results are not computed.
_MAX_ELEMENTS = 2**24


class ComputedConstants(Constants):
    """The constants of a model, with those that are computed from constants by a few operators."""

    def __init__(self, model: ir.Model) -> None:
        super().__init__(model)
        self._computed: dict[ir.Value, ir.TensorProtocol | None] = {}

    def direct_tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of `value` if it is an initializer, a Constant node's output, or computed."""
        if value is None:
            return None
        if value not in self._computed:
            tensor = super().direct_tensor(value)
            self._computed[value] = self._compute(value) if tensor is None else tensor
        return self._computed[value]

    def is_stored(self, value: ir.Value) -> bool:
        """Return whether `value` is an initializer or the output of a Constant node."""
        return super().direct_tensor(value) is not None

    def _compute(self, value: ir.Value) -> ir.TensorProtocol | None:
        node = value.producer()
        if node is None or not is_constant_arithmetic(node):
            return None
        tensors = [self.tensor(operand) for operand in node.inputs]
        arrays = [tensor.numpy() for tensor in tensors if tensor is not None]
        if len(arrays) < len(tensors):
            return None
        try:
            array = _result(node, arrays)
        except (ValueError, TypeError, NotFusable):
            # Operands that do not fit together are reported when ONNX Runtime loads the model.
            return None
        return None if array is None or array.size > _MAX_ELEMENTS else ir.Tensor(array)


def is_constant_arithmetic(node: ir.Node) -> bool:
    """Return whether `node` is an operator that computes constants from constants, or reshapes them."""
    return node.domain == "" and node.op_type in _OPS and len(node.outputs) == 1


def _result(node: ir.Node, operands: list[np.ndarray]) -> np.ndarray | None:
    with np.errstate(all="ignore"):
        match node.op_type, operands:
            case ("Add" | "Sub" | "Mul" | "Div") as op, [a, b]:
                # Integers have another division.
                is_float = np.issubdtype(a.dtype, np.floating) and a.dtype == b.dtype
                return np.asarray(_ARITHMETIC[op](a, b), a.dtype) if is_float else None
            case "Cast", [a]:
                return a.astype(ir.DataType(read_int(node, "to", 0)).numpy())
            case "Reshape", [a, shape] if 0 not in shape:
                return a.reshape(shape.tolist())
            case "Shape", [a] if not node.attributes:
                return np.array(a.shape, np.int64)
            case "ConstantOfShape", [shape] if np.prod(shape) <= _MAX_ELEMENTS:
                attribute = node.attributes.get("value")
                fill = np.float32(0) if attribute is None else attribute.as_tensor().numpy().reshape(())
                return np.full(shape.tolist(), fill)
    return None
