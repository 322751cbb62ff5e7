"""Find the values of an ONNX model that are the same in every run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

# From this version of the format on, an initializer that is a graph input too is only a default.
FIRST_IR_WITH_DEFAULTS = 4


# Nodes that pass on what is constant; old exporters put them between weights and what uses them.
PASSING_OPS = frozenset({("", "Identity"), ("", "Unsqueeze")})


class Constants:
    """The constant values of a model: initializers and Constant nodes, also behind Identity and Unsqueeze."""

    def __init__(self, model: ir.Model) -> None:
        self.inputs_may_be_constant = model.ir_version < FIRST_IR_WITH_DEFAULTS

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor that `value` is in every run; None where there is no such tensor."""
        new_axes = []
        while value is not None and (node := value.producer()) is not None:
            if (node.domain, node.op_type) not in PASSING_OPS or not node.inputs:
                break
            if node.op_type == "Unsqueeze":
                new_axes.append(self._axes(node))
            value = node.inputs[0]
        tensor = self.own_tensor(value)
        for axes in reversed(new_axes):
            if tensor is None or axes is None:
                return None
            tensor = _unsqueezed(tensor, axes)
        return tensor

    def own_tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor that `value` is itself, as initializer or Constant; None where it may change."""
        if value is None or (value.is_graph_input() and not self.inputs_may_be_constant):
            return None
        try:
            return ir.convenience.get_const_tensor(value)
        except ValueError:
            # A Constant node without its one attribute.
            return None

    def _axes(self, node: ir.Node) -> tuple[int, ...] | None:
        """Return the axes that Unsqueeze adds: an attribute below opset 13, an input from there on."""
        attribute = node.attributes.get("axes")
        if attribute is not None and attribute.type == ir.AttributeType.INTS and not attribute.is_ref():
            return tuple(attribute.as_ints())
        axes = self.own_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
        return None if axes is None or axes.dtype != ir.DataType.INT64 else tuple(axes.numpy().flat)

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return the one element that `value` has in every run; None where it has several, or may change."""
        tensor = self.tensor(value)
        if tensor is None or tensor.size != 1 or not (tensor.dtype.is_floating_point() or _is_whole(tensor)):
            return None
        return float(tensor.numpy().reshape(()).item())


def _is_whole(tensor: ir.TensorProtocol) -> bool:
    # The exponent of Pow may have another type than its base.
    return tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64)


def _unsqueezed(tensor: ir.TensorProtocol, axes: tuple[int, ...]) -> ir.TensorProtocol | None:
    try:
        return ir.Tensor(np.expand_dims(tensor.numpy(), axes), dtype=tensor.dtype, name=tensor.name)
    except ValueError:
        # The axes are none that the result could have.
        return None
