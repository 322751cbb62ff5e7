"""Fold constant scales and biases of a convolution's input into its weights and bias.

conv(x * s) has the weights W * s, and conv(x + a) the bias B + sum(W * a) if nothing is padded: the zeros of
the padding are not a. PP-LCNet has both behind every activation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants, ConstantWriter, remove_if_unused
from convswap.graph.domain import SUPPORTED_ELEMENT_TYPES, op_name
from convswap.graph.epilogue import NotFusable, read_int, read_ints, read_text
from convswap.graph.external_weights import aligned_empty
from convswap.graph.fusion.folding import chunks_of, float64_of, per_channel_values, rounded_weights
from convswap.graph.value_types import ValueTypes


@dataclass(frozen=True)
class _Step:
    """A node in front of convolutions: data * factor or data + addend, one number for each channel."""

    node: ir.Node
    data: ir.Value
    factor: np.ndarray | None
    addend: np.ndarray | None


def fold_inputs(
    model: ir.Model, convs: Mapping[ir.Node, str], names: Mapping[ir.Node, str], types: ValueTypes
) -> dict[ir.Node, list[tuple[str, str]]]:
    """Fold the constant scales and biases of the inputs of `convs`, in place; remove their nodes.

    `convs` are nodes of `convswap.Conv` or `convswap.FusedConv`, with their names. A node is folded if they
    alone read it, and each of them can take it. `names` has the names of all other nodes; `types` knows the
    values of `model`.

    Returns op and name of the folded nodes in the order of computation, for the first of the Convs that took
    them.
    """
    folder = _Folder(model, convs, types)
    folded: dict[ir.Node, list[tuple[str, str]]] = {}
    for conv in convs:
        while (node := folder.fold(conv)) is not None:
            folded.setdefault(conv, []).insert(0, (op_name(node), names[node]))
    return folded


class _Folder:
    def __init__(self, model: ir.Model, convs: Mapping[ir.Node, str], types: ValueTypes) -> None:
        self._convs, self._types = convs, types
        self._functions = model.functions
        self._constants, self._writer = Constants(model), ConstantWriter(model)

    def fold(self, conv: ir.Node) -> ir.Node | None:
        """Fold the node before `conv` into all its readers; return None if that is not possible."""
        value = conv.inputs[0] if conv.inputs else None
        if value is None or any(index != 0 or reader not in self._convs for reader, index in value.uses()):
            return None
        readers = [reader for reader, _ in value.uses()]
        try:
            step = self._step(value, conv)
            folded = [] if step is None else [self._folded(reader, step) for reader in readers]
        except NotFusable:
            return None
        if step is None:
            return None
        for reader, arrays in zip(readers, folded, strict=True):
            self._replace(reader, *arrays)
            reader.replace_input_with(0, step.data)
        assert isinstance(step.node.graph, ir.Graph)
        operands = list(step.node.inputs)
        step.node.graph.remove(step.node, safe=True)
        for operand in operands:
            remove_if_unused(operand)
        return step.node

    def _step(self, value: ir.Value, conv: ir.Node) -> _Step | None:
        """Return what the node before `conv` does to its data; None if that is no scale or bias."""
        node = value.producer()
        if node is None or value.is_graph_output() or node.graph is not conv.graph:
            return None
        is_binary = node.domain == "" and len(node.inputs) == 2 and not node.attributes
        if not is_binary or node.op_type not in ("Mul", "Div", "Add", "Sub"):
            return None
        if node.op_identifier() in self._functions:
            return None
        places = (0, 1) if node.op_type in ("Mul", "Add") else (1,)
        place = next((i for i in places if self._constants.tensor(node.inputs[i]) is not None), None)
        if place is None:
            return None
        weights = self._weights(conv)
        shape = weights.shape.numpy()
        channels, rank = shape[1] * read_int(conv, "group", 1), len(shape)
        tensor, data = self._constants.tensor(node.inputs[place]), node.inputs[1 - place]
        if (
            tensor is None
            or data is None
            or self._types.rank([data]) != rank
            or tensor.dtype != weights.dtype
        ):
            return None
        if tensor.size > 1 and self._types.axes(data)[1:2] != [channels]:
            return None  # the data may be broadcast
        if _is_normalised(data):
            return None
        values = per_channel_values(tensor, channels, rank)
        if values is None:
            return None
        if node.op_type in ("Add", "Sub"):
            return _Step(node, data, None, values if node.op_type == "Add" else -values)
        with np.errstate(all="ignore"):
            return _Step(node, data, values if node.op_type == "Mul" else 1 / values, None)

    def _weights(self, conv: ir.Node) -> ir.TensorProtocol:
        tensor = self._constants.tensor(conv.inputs[1])
        if tensor is None or tensor.dtype not in SUPPORTED_ELEMENT_TYPES or len(tensor.shape) < 3:
            raise NotFusable("the weights of the convolution are not constant")
        return tensor

    def _folded(self, conv: ir.Node, step: _Step) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the weights and the bias of `conv` after folding; None for what stays."""
        tensor = self._weights(conv)
        shape = tuple(tensor.shape.numpy())
        group, operand = read_int(conv, "group", 1), step.factor if step.addend is None else step.addend
        assert operand is not None
        if group < 1 or shape[0] % group or shape[1] * group != len(operand):
            raise NotFusable("the weights of the convolution do not fit its input")
        # One row for each conv group.
        rows = operand.reshape(group, shape[1])
        values = tensor.numpy()
        weights = aligned_empty(shape, values.dtype) if step.addend is None else None
        sums = np.zeros(shape[0])
        for chunk in chunks_of(shape):
            numbers = rows[np.arange(chunk.start, min(chunk.stop, shape[0])) // (shape[0] // group)]
            exact = float64_of(values[chunk], tensor)
            with np.errstate(all="ignore"):
                scaled = exact * numbers.reshape(*numbers.shape, *(1,) * (exact.ndim - 2))
                sums[chunk] = scaled.reshape(len(numbers), -1).sum(1)
            if weights is not None:
                weights[chunk] = rounded_weights(scaled, tensor.dtype)
        return weights, None if step.addend is None else self._bias(conv, sums, tensor.dtype)

    def _bias(self, conv: ir.Node, sums: np.ndarray, dtype: ir.DataType) -> np.ndarray:
        is_padded = any(read_ints(conv, "pads", ())) or read_text(conv, "auto_pad", "NOTSET") not in (
            "",
            "NOTSET",
            "VALID",
        )
        if is_padded:
            raise NotFusable("the convolution pads its input with zeros")
        bias = conv.inputs[2] if len(conv.inputs) > 2 else None
        total = sums
        if bias is not None:
            tensor = self._constants.tensor(bias)
            if tensor is None or tuple(tensor.shape.numpy()) != sums.shape:
                raise NotFusable("the bias of the convolution is not constant")
            total = sums + float64_of(tensor.numpy(), tensor)
        with np.errstate(over="ignore"):
            rounded: np.ndarray = total.astype(dtype.numpy())
        if not np.isfinite(rounded.astype(np.float64)).all():
            raise NotFusable("the folded bias would not be finite")
        return rounded

    def _replace(self, conv: ir.Node, weights: np.ndarray | None, bias: np.ndarray | None) -> None:
        dtype = self._weights(conv).dtype
        if bias is not None and len(conv.inputs) < 3:
            conv.resize_inputs(3)
        for index, role, array in ((1, "weight", weights), (2, "bias", bias)):
            if array is None:
                continue
            old = conv.inputs[index]
            name = f"{self._convs[conv]}/{role}"
            conv.replace_input_with(index, self._writer.add(conv, name, ir.Tensor(array, dtype=dtype)))
            remove_if_unused(old)


def _is_normalised(value: ir.Value) -> bool:
    """Return whether `value` is the quotient of a decomposed LayerNormalization, which has a scale."""
    quotient = value.producer()
    if quotient is None or (quotient.domain, quotient.op_type) != ("", "Div") or len(quotient.inputs) != 2:
        return False
    divisor = None if quotient.inputs[1] is None else quotient.inputs[1].producer()
    return divisor is not None and (divisor.domain, divisor.op_type) == ("", "Sqrt")
