"""Find the values of an ONNX model that are the same in every run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from convswap.graph.names import UniqueNames, nodes_of

# First version of the format in which an initializer that is also a graph input is only a default value.
FIRST_IR_WITH_DEFAULTS = 4


# Nodes that old exporters put between a constant and its consumers.
PASS_THROUGH_OPS = frozenset({("", "Identity"), ("", "Unsqueeze")})


class Constants:
    """Constant values of a model: initializers and Constant nodes, also through Identity and Unsqueeze."""

    def __init__(self, model: ir.Model) -> None:
        self.inputs_may_be_constant = model.ir_version < FIRST_IR_WITH_DEFAULTS

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the constant tensor of `value`; None if `value` is not constant."""
        new_axes = []
        while value is not None and (node := value.producer()) is not None:
            if (node.domain, node.op_type) not in PASS_THROUGH_OPS or not node.inputs:
                break
            if node.op_type == "Unsqueeze":
                new_axes.append(self._axes(node))
            value = node.inputs[0]
        tensor = self.direct_tensor(value)
        for axes in reversed(new_axes):
            if tensor is None or axes is None:
                return None
            tensor = _unsqueezed(tensor, axes)
        return tensor

    def direct_tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the tensor of `value` if it is an initializer or the output of a Constant node; else None.

        Identity and Unsqueeze are not followed. An initializer that a run may override is no constant.
        """
        if value is None or (value.is_graph_input() and not self.inputs_may_be_constant):
            return None
        try:
            return ir.convenience.get_const_tensor(value)
        except ValueError:
            # A Constant node without its attribute.
            return None

    def _axes(self, node: ir.Node) -> tuple[int, ...] | None:
        """Return the axes that Unsqueeze adds: an attribute below opset 13, an input from opset 13 on."""
        attribute = node.attributes.get("axes")
        if attribute is not None and attribute.type == ir.AttributeType.INTS and not attribute.is_ref():
            return tuple(attribute.as_ints())
        axes = self.direct_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
        return None if axes is None or axes.dtype != ir.DataType.INT64 else tuple(axes.numpy().flat)

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return the number that `value` is in every run; None if it is no constant of one element."""
        tensor = self.tensor(value)
        if (
            tensor is None
            or tensor.size != 1
            or not (tensor.dtype.is_floating_point() or _is_integer(tensor))
        ):
            return None
        return float(tensor.numpy().reshape(()).item())


class ConstantWriter:
    """Adds constants to a model; `names` and `node_names` are the names of its values and nodes."""

    def __init__(self, model: ir.Model) -> None:
        self.names = UniqueNames.of_values(model.graphs())
        self.node_names = UniqueNames(node.name for node in nodes_of(model))
        # In older IR versions an initializer must also be a graph input, which would change the model's
        # interface.
        self._may_add_initializers = not Constants(model).inputs_may_be_constant

    def add(self, node: ir.Node, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a new constant for `node`, called `name`, perhaps with a number."""
        name = self.names.make_unique(name)
        graph = node.graph
        assert isinstance(graph, ir.Graph)
        named = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
        if self._may_add_initializers:
            value = ir.Value(
                name=name, shape=named.shape, type=ir.TensorType(tensor.dtype), const_value=named
            )
            graph.register_initializer(value)
            return value
        constant = ir.node("Constant", [], {"value": named}, name=self.node_names.make_unique(name))
        constant.outputs[0].name = name
        graph.insert_before(node, constant)
        return constant.outputs[0]


def remove_if_unused(value: ir.Value | None) -> None:
    """Remove a constant without consumers, with its Constant node and the nodes that pass it through."""
    pending = [value]
    while pending:
        value = pending.pop()
        if value is None or value.uses() or value.is_graph_output() or value.is_graph_input():
            continue
        producer = value.producer()
        if producer is None:
            if value.is_initializer() and value.graph is not None:
                value.graph.initializers.pop(str(value.name), None)
            continue
        op = (producer.domain, producer.op_type)
        if (op == ("", "Constant") or op in PASS_THROUGH_OPS) and isinstance(producer.graph, ir.Graph):
            pending += producer.inputs
            producer.graph.remove(producer, safe=True)


def _is_integer(tensor: ir.TensorProtocol) -> bool:
    # The exponent of Pow may have another type than its base.
    return tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64)


def _unsqueezed(tensor: ir.TensorProtocol, axes: tuple[int, ...]) -> ir.TensorProtocol | None:
    try:
        return ir.Tensor(np.expand_dims(tensor.numpy(), axes), dtype=tensor.dtype, name=tensor.name)
    except ValueError:
        # np.expand_dims raises ValueError for axes that are out of range for the result.
        return None
