"""Rewrite a model so that all of its inputs are tensors, for running it; such a model is never saved.

ONNX Runtime's Python API binds tensors only. A sequence input becomes one input per element, and a node that
makes a sequence of them. An optional input becomes an input, or none if it is absent, and a node. An input
with a default value loses the default if the user gives a value. The values of these inputs do not depend on
the batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from convswap.errors import ConvswapError, unknown_name
from convswap.graph.constants import FIRST_IR_WITH_DEFAULTS
from convswap.graph.names import UniqueNames, values_of
from convswap.graph.serialisation import value_to_proto
from convswap.inputs.feeds import declared_input
from convswap.inputs.user_inputs import UserInputs, Value, as_array, check_shape, values_by_name

_NON_TENSOR_KINDS = ("sequence_type", "optional_type")


def with_tensor_inputs(model: ir.Model, user_inputs: UserInputs | None) -> tuple[ir.Model, UserInputs | None]:
    """Return `model` with tensor inputs only, and the values for its inputs.

    Both are returned unchanged if all values are for tensors without a default.

    Raises:
        ConvswapError: a value cannot be read or does not fit its input.
    """
    if user_inputs is None:
        return model, user_inputs
    defaults, inputs = model.graph.initializers, model.graph.inputs
    types = {str(value.name): value_to_proto(value).type for value in inputs}
    non_tensor_names = [name for name, kind in types.items() if kind.WhichOneof("value") in _NON_TENSOR_KINDS]
    default_names = [name for name in types if name in defaults]
    if not (non_tensor_names or default_names):
        return model, user_inputs
    values = values_by_name(user_inputs, [name for name in types if name not in defaults])
    if values is None:  # Images are for models with one tensor input.
        return model, user_inputs
    for name in values:
        if name not in types and not any(_is_element_name(sequence, name) for sequence in non_tensor_names):
            raise unknown_name("input", name, types)
    overridden_names = [name for name in default_names if name in values]
    if not (non_tensor_names or overridden_names):
        return model, user_inputs
    copy = model.clone()
    change = _InputChange(copy, values)
    for name in overridden_names:
        change.remove_default(name)
    for name in non_tensor_names:
        change.replace_by_tensors(name, types[name])
    return copy, change.values


class _InputChange:
    """Replaces inputs of a model by tensors, one by one, and the values for them accordingly."""

    def __init__(self, model: ir.Model, values: Mapping[str, Value]) -> None:
        self._model, self._graph = model, model.graph
        self.values: dict[str, Any] = dict(values)
        self._inputs = {str(value.name): value for value in model.graph.inputs}
        self._names = UniqueNames(
            item.name for graph in model.graphs() for item in (*values_of(graph), *graph)
        )

    def remove_default(self, name: str) -> None:
        """Remove the initializer of the input `name`, so that the input gets the user's value."""
        if self._model.ir_version < FIRST_IR_WITH_DEFAULTS:
            raise ConvswapError(
                f"input {name!r} was given a value, but the model, of IR version "
                f"{self._model.ir_version}, has one for it that cannot be changed; leave it out"
            )
        value = self._inputs[name]
        self._graph.initializers.pop(name)
        value.const_value = None
        array = as_array(name, self.values[name])
        check_shape(array.shape, declared_input(value_to_proto(value)), None)
        self._graph.inputs.remove(value)
        self._add_input(value, array)

    def replace_by_tensors(self, name: str, kind: onnx.TypeProto) -> None:
        """Replace the input `name`, a sequence or optional, by tensor inputs and nodes that construct it."""
        value = self._inputs[name]
        self._graph.inputs.remove(value)
        if kind.HasField("sequence_type"):
            self._prepend_nodes(self._sequence(name, kind.sequence_type.elem_type, value))
            return
        inner = kind.optional_type.elem_type
        elements = self._elements(name) if inner.HasField("sequence_type") else None
        supplied = elements if elements is not None else self.values.get(name)
        if supplied is None:
            self.values.pop(name, None)
            self._prepend_nodes(self._node("Optional", [], value, type=inner))
            return
        result = ir.Value(name=self._names.make_unique(f"{name}.value"))
        if inner.HasField("sequence_type"):
            sequence = self._sequence(name, inner.sequence_type.elem_type, result)
            self._prepend_nodes(sequence, self._node("Optional", sequence.outputs, value))
        else:
            self._add_tensor_input(name, result, inner, self.values.pop(name))
            self._prepend_nodes(self._node("Optional", [result], value))

    def _sequence(self, name: str, element: onnx.TypeProto, output: ir.Value) -> ir.Node:
        """Return a node that constructs `output`, the sequence for the input `name`, from its elements."""
        elements = self._elements(name)
        if elements is None:
            raise ConvswapError(
                f"input {name!r} is a sequence, but no elements of it were given; give a list of arrays, or "
                f"in a file arrays {name}.0, {name}.1, and so on"
            )
        used_names = {name, *self._element_names(name)}
        self.values = {other: supplied for other, supplied in self.values.items() if other not in used_names}
        if not elements:
            return self._node("SequenceEmpty", [], output, dtype=element.tensor_type.elem_type)
        inputs = []
        for index, supplied in enumerate(elements):
            inputs.append(ir.Value(name=self._names.make_unique(f"{name}.{index}")))
            self._add_tensor_input(name, inputs[-1], element, supplied)
        return self._node("SequenceConstruct", inputs, output)

    def _elements(self, name: str) -> Sequence[Any] | None:
        """Return the elements that were given for the sequence `name`; None if there are none."""
        supplied = self.values.get(name)
        if isinstance(supplied, (list, tuple)):
            return supplied
        if supplied is not None:
            raise ConvswapError(
                f"input {name!r} is a sequence, but a {type(supplied).__name__} was given; give a list of "
                f"arrays, or in a file arrays {name}.0, {name}.1, and so on"
            )
        indices = sorted(int(other[len(name) + 1 :]) for other in self._element_names(name))
        if indices != list(range(len(indices))):
            raise ConvswapError(
                f"input {name!r} is a sequence, and its elements were given as "
                f"{', '.join(f'{name}.{index}' for index in indices)}; number them from 0 on, without a gap"
            )
        return [self.values[f"{name}.{index}"] for index in indices] or None

    def _element_names(self, name: str) -> list[str]:
        """Return the names of values that are elements of the sequence `name` and no other inputs."""
        return [other for other in self.values if _is_element_name(name, other) and other not in self._inputs]

    def _add_tensor_input(self, name: str, tensor: ir.Value, kind: onnx.TypeProto, supplied: Any) -> None:
        """Make `tensor` a model input with the value `supplied` of the input `name`, or of a part of it."""
        if not kind.HasField("tensor_type"):
            raise ConvswapError(
                f"input {name!r} is of {kind.WhichOneof('value') or 'no type'}s, and only sequences and "
                "optionals of tensors can be fed: give a model whose inputs are such"
            )
        array = as_array(name, supplied)
        check_shape(array.shape, declared_input(onnx.ValueInfoProto(name=name, type=kind)), None)
        tensor.type = ir.TensorType(ir.DataType(kind.tensor_type.elem_type))
        self._add_input(tensor, array)

    def _add_input(self, value: ir.Value, array: np.ndarray) -> None:
        """Append an input. Its shape is fixed, so that its leading dimension is not taken for the batch.

        The new input comes last, because the first input with a fixed leading dimension tells the batch size.
        """
        value.shape = ir.Shape(array.shape)
        self._graph.inputs.append(value)
        self.values[str(value.name)] = array

    def _node(self, op: str, inputs: Sequence[ir.Value], output: ir.Value, **attributes: Any) -> ir.Node:
        """Return a node that computes a new value in place of `output`, in all uses of `output`."""
        name = self._names.make_unique(f"{output.name}/{op}")
        attribute_list = [
            ir.serde.deserialize_attribute(helper.make_attribute(key, value))
            for key, value in attributes.items()
        ]
        result = ir.Value(name=output.name, type=output.type, shape=output.shape)
        result.metadata_props.update(output.metadata_props)
        ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
        return ir.Node("", op, inputs, attribute_list, name=name, outputs=[result])

    def _prepend_nodes(self, *nodes: ir.Node) -> None:
        for first in self._graph:
            self._graph.insert_before(first, nodes)
            return
        self._graph.extend(nodes)


def _is_element_name(name: str, other: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}\.(0|[1-9]\d*)", other, re.ASCII) is not None
