"""Find the values of an ONNX model that are the same in every run."""

from __future__ import annotations

import onnx_ir as ir

# From this version of the format on, an initializer that is a graph input too is only a default.
_FIRST_IR_WITH_DEFAULTS = 4


class Constants:
    """The constant values of a model: initializers and Constant nodes, also behind Identity."""

    def __init__(self, model: ir.Model) -> None:
        self.inputs_may_be_constant = model.ir_version < _FIRST_IR_WITH_DEFAULTS

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor that `value` is in every run; None where there is no such tensor."""
        while value is not None and (node := value.producer()) is not None:
            if (node.domain, node.op_type) != ("", "Identity") or not node.inputs:
                break
            value = node.inputs[0]
        if value is None or (value.is_graph_input() and not self.inputs_may_be_constant):
            return None
        try:
            return ir.convenience.get_const_tensor(value)
        except ValueError:
            # A Constant node without its one attribute.
            return None

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return the one element that `value` has in every run; None where it has several, or may change."""
        tensor = self.tensor(value)
        if tensor is None or tensor.size != 1 or not (tensor.dtype.is_floating_point() or _is_whole(tensor)):
            return None
        return float(tensor.numpy().reshape(()).item())


def _is_whole(tensor: ir.TensorProtocol) -> bool:
    # The exponent of Pow may have another type than its base.
    return tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64)
