"""Recognise a LayerNormalization that an exporter wrote as several nodes, as ONNX before opset 17 requires.

    mean = ReduceMean(x); centred = Sub(x, mean); variance = ReduceMean(Pow(centred, 2))
    y = Add(Mul(Div(centred, Sqrt(Add(variance, epsilon))), scale), bias)

All means are over the last axis, and keep it. The square may be a Mul, and the bias may be missing.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from convswap.graph.constants import Constants, ConstantWriter, remove_if_unused
from convswap.graph.domain import DOMAIN, LAYER_NORM_OP
from convswap.graph.epilogue import NotFusable, read_int, read_ints
from convswap.graph.value_types import ValueTypes


@dataclass(frozen=True)
class DecomposedNorm:
    """A normalisation of `x`; `nodes` are in order, and the last one gives the result."""

    x: ir.Value
    scale: ir.TensorProtocol
    bias: ir.TensorProtocol | None
    epsilon: float
    nodes: tuple[ir.Node, ...]


def read_decomposed_norm(centred: ir.Node, constants: Constants, types: ValueTypes) -> DecomposedNorm | None:
    """Return the normalisation whose Sub is `centred`; None if it is none, or if others read its values."""
    if centred.op_type != "Sub" or len(centred.inputs) != 2:
        return None
    x, mean_value = centred.inputs
    mean = None if mean_value is None else mean_value.producer()
    if x is None or mean is None or not _is_last_mean(mean, x, constants, types):
        return None
    readers = _readers(centred)
    divided = next((node for node in readers if (node.domain, node.op_type) == ("", "Div")), None)
    axes = types.axes(x)
    rank = len(axes)
    squared = next((node for node in readers if _is_square(node, centred, rank, constants)), None)
    if len(readers) != 2 or divided is None or squared is None:
        return None
    variance = _only_reader(squared, "ReduceMean")
    shifted = _only_reader(variance, "Add")
    root = _only_reader(shifted, "Sqrt")
    if variance is None or shifted is None or root is None or _readers(mean) != [centred]:
        return None
    epsilons = [number for value in shifted.inputs if (number := _scalar(value, rank, constants)) is not None]
    is_quotient = _readers(root) == [divided] and list(divided.inputs) == [*centred.outputs, *root.outputs]
    is_variance = _is_last_mean(variance, squared.outputs[0], constants, types)
    if not is_quotient or not is_variance or len(epsilons) != 1:
        return None
    scaled = _only_reader(divided, "Mul")
    scale = None if scaled is None else _parameter(scaled, divided, axes, constants)
    if scaled is None or scale is None or not epsilons[0] >= 0:
        return None
    nodes = (mean, centred, squared, variance, shifted, root, divided, scaled)
    biased = _only_reader(scaled, "Add")
    bias = None if biased is None else _parameter(biased, scaled, axes, constants)
    if biased is None or bias is None:
        return DecomposedNorm(x, scale, None, epsilons[0], nodes)
    return DecomposedNorm(x, scale, bias, epsilons[0], (*nodes, biased))


def make_layer_norm(norm: DecomposedNorm, name: str, writer: ConstantWriter) -> None:
    """Turn the last node of `norm` into the library's LayerNormalization, and remove the others.

    `name` is that of the node, for its constants.
    """
    *others, node = norm.nodes
    read = list(node.inputs)
    inputs = [norm.x]
    for role, tensor in (("scale", norm.scale), ("bias", norm.bias)):
        if tensor is not None:
            row = ir.Tensor(tensor.numpy().reshape(-1), dtype=tensor.dtype)
            inputs.append(writer.add(node, f"{name}/{role}", row))
    node.resize_inputs(len(inputs))
    for index, operand in enumerate(inputs):
        node.replace_input_with(index, operand)
    node.domain, node.op_type, node.version = DOMAIN, LAYER_NORM_OP, None
    node.attributes.clear()
    node.attributes["epsilon"] = ir.AttrFloat32("epsilon", norm.epsilon)
    assert isinstance(node.graph, ir.Graph)
    for other in reversed(others):
        read += other.inputs
        node.graph.remove(other, safe=True)
    for value in read:
        if value is not None and value is not norm.x and value.producer() not in norm.nodes:
            remove_if_unused(value)


def _readers(node: ir.Node) -> list[ir.Node]:
    """Return the nodes that read the only output of `node`.

    Return none if the value is also an output of the graph, or if a subgraph reads it.
    """
    (output,) = node.outputs
    readers = list(dict.fromkeys(output.consumers()))
    is_inner = not output.is_graph_output() and all(reader.graph is node.graph for reader in readers)
    return readers if is_inner else []


def _only_reader(node: ir.Node | None, op_type: str) -> ir.Node | None:
    readers = [] if node is None or len(node.outputs) != 1 else _readers(node)
    return readers[0] if [(each.domain, each.op_type) for each in readers] == [("", op_type)] else None


def _is_last_mean(node: ir.Node, data: ir.Value, constants: Constants, types: ValueTypes) -> bool:
    """Return whether `node` is the mean of `data` over the last axis, which it keeps."""
    if (node.domain, node.op_type) != ("", "ReduceMean") or node.inputs[0] is not data:
        return False
    rank = types.rank([data])
    tensor = constants.tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    try:
        axes = list(read_ints(node, "axes", ()) if tensor is None else tensor.numpy().flat)
        return rank is not None and axes in ([-1], [rank - 1]) and read_int(node, "keepdims", 1) == 1
    except NotFusable:
        return False


def _is_square(node: ir.Node, centred: ir.Node, rank: int, constants: Constants) -> bool:
    if (node.domain, node.op_type) == ("", "Mul"):
        return list(node.inputs) == [*centred.outputs, *centred.outputs]
    is_power = (node.domain, node.op_type) == ("", "Pow") and node.inputs[0] is centred.outputs[0]
    return is_power and _scalar(node.inputs[1], rank, constants) == 2.0


def _scalar(value: ir.Value | None, rank: int, constants: Constants) -> float | None:
    """Return the constant number `value`; None if it is none, or if it would add axes to data of `rank`."""
    tensor = constants.tensor(value)
    return None if tensor is None or len(tensor.shape) > rank else constants.scalar(value)


def _parameter(
    node: ir.Node, before: ir.Node, axes: list[int | None], constants: Constants
) -> ir.TensorProtocol | None:
    """Return the constant operand of `node`, one number for each element of a row; None if it has none."""
    others = [value for value in node.inputs if value is not before.outputs[0]]
    tensor = constants.tensor(others[0]) if len(others) == 1 else None
    if tensor is None or not axes or len(tensor.shape) > len(axes):
        return None
    return tensor if tensor.size == axes[-1] and tensor.shape.numpy()[-1:] == (axes[-1],) else None
