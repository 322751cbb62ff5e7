"""A model that is fed tensors alone, for whoever runs it and does not write it.

ONNX Runtime's Python binds nothing else. A sequence input becomes one input for each of its elements, and a
node in front that makes the sequence of them; an optional one becomes an input, or nothing, and a node. An
input that has a default loses it where a value is given. All of these are fed as they were given, whatever
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

_WITHOUT_TENSORS = ("sequence_type", "optional_type")


def with_tensor_inputs(model: ir.Model, given: UserInputs | None) -> tuple[ir.Model, UserInputs | None]:
    """Return `model` with inputs that are tensors, and what they are given.

    Both are returned as they are where nothing but tensors without a default is given.

    Raises:
        ConvswapError: a value that was given cannot be read or does not suit its input.
    """
    if given is None:
        return model, given
    defaults, inputs = model.graph.initializers, model.graph.inputs
    types = {str(value.name): value_to_proto(value).type for value in inputs}
    parted = [name for name, kind in types.items() if kind.WhichOneof("value") in _WITHOUT_TENSORS]
    defaulted = [name for name in types if name in defaults]
    if not (parted or defaulted):
        return model, given
    values = values_by_name(given, [name for name in types if name not in defaults])
    if values is None:  # Images, of which a model has one input.
        return model, given
    for name in values:
        if name not in types and not any(_element_of(sequence, name) for sequence in parted):
            raise unknown_name("input", name, types)
    replaced = [name for name in defaulted if name in values]
    if not (parted or replaced):
        return model, given
    copy = model.clone()
    change = _Change(copy, values)
    for name in replaced:
        change.drop_default(name)
    for name in parted:
        change.make_of_tensors(name, types[name])
    return copy, change.values


class _Change:
    """A model whose inputs are made tensors one by one, and the values that it is given meanwhile."""

    def __init__(self, model: ir.Model, values: Mapping[str, Value]) -> None:
        self._model, self._graph = model, model.graph
        self.values: dict[str, Any] = dict(values)
        self._inputs = {str(value.name): value for value in model.graph.inputs}
        self._taken = UniqueNames(
            each.name for graph in model.graphs() for each in (*values_of(graph), *graph)
        )

    def drop_default(self, name: str) -> None:
        """Make `name`, an input with an initializer, one without."""
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

    def make_of_tensors(self, name: str, kind: onnx.TypeProto) -> None:
        """Put nodes that make `name`, a sequence or an optional, in the place of that input."""
        value = self._inputs[name]
        self._graph.inputs.remove(value)
        if kind.HasField("sequence_type"):
            self._put_in_front(self._sequence(name, kind.sequence_type.elem_type, value))
            return
        inner = kind.optional_type.elem_type
        elements = self._elements(name) if inner.HasField("sequence_type") else None
        held = elements if elements is not None else self.values.get(name)
        if held is None:
            self.values.pop(name, None)
            self._put_in_front(self._node("Optional", [], value, type=inner))
            return
        made = ir.Value(name=self._taken.take(f"{name}.value"))
        if inner.HasField("sequence_type"):
            sequence = self._sequence(name, inner.sequence_type.elem_type, made)
            self._put_in_front(sequence, self._node("Optional", sequence.outputs, value))
        else:
            self._feed(name, made, inner, self.values.pop(name))
            self._put_in_front(self._node("Optional", [made], value))

    def _sequence(self, name: str, element: onnx.TypeProto, output: ir.Value) -> ir.Node:
        """Return what makes `output`, the sequence that was given for the input `name`, of its elements."""
        elements = self._elements(name)
        if elements is None:
            raise ConvswapError(
                f"input {name!r} is a sequence, but no elements of it were given; give a list of arrays, or "
                f"in a file arrays {name}.0, {name}.1, and so on"
            )
        elements_and_more = {name, *self._given_elements(name)}
        self.values = {other: held for other, held in self.values.items() if other not in elements_and_more}
        if not elements:
            return self._node("SequenceEmpty", [], output, dtype=element.tensor_type.elem_type)
        inputs = []
        for index, held in enumerate(elements):
            inputs.append(ir.Value(name=self._taken.take(f"{name}.{index}")))
            self._feed(name, inputs[-1], element, held)
        return self._node("SequenceConstruct", inputs, output)

    def _elements(self, name: str) -> Sequence[Any] | None:
        """Return the elements that were given for the sequence `name`, None for none."""
        held = self.values.get(name)
        if isinstance(held, (list, tuple)):
            return held
        if held is not None:
            raise ConvswapError(
                f"input {name!r} is a sequence, but a {type(held).__name__} was given; give a list of "
                f"arrays, or in a file arrays {name}.0, {name}.1, and so on"
            )
        found = sorted(int(other[len(name) + 1 :]) for other in self._given_elements(name))
        if found != list(range(len(found))):
            raise ConvswapError(
                f"input {name!r} is a sequence, and its elements were given as "
                f"{', '.join(f'{name}.{index}' for index in found)}; number them from 0 on, without a gap"
            )
        return [self.values[f"{name}.{index}"] for index in found] or None

    def _given_elements(self, name: str) -> list[str]:
        """Return what may be elements of the sequence `name`, and is no other input."""
        return [other for other in self.values if _element_of(name, other) and other not in self._inputs]

    def _feed(self, name: str, tensor: ir.Value, kind: onnx.TypeProto, held: Any) -> None:
        """Make an input `tensor` for what was given as the input `name`, or as a part of it."""
        if not kind.HasField("tensor_type"):
            raise ConvswapError(
                f"input {name!r} is of {kind.WhichOneof('value') or 'no type'}s, and only sequences and "
                "optionals of tensors can be fed: give a model whose inputs are such"
            )
        array = as_array(name, held)
        check_shape(array.shape, declared_input(onnx.ValueInfoProto(name=name, type=kind)), None)
        tensor.type = ir.TensorType(ir.DataType(kind.tensor_type.elem_type))
        self._add_input(tensor, array)

    def _add_input(self, value: ir.Value, array: np.ndarray) -> None:
        """Add a last input: the first one tells the batch. Its shape is fixed, so that it has no samples."""
        value.shape = ir.Shape(array.shape)
        self._graph.inputs.append(value)
        self.values[str(value.name)] = array

    def _node(self, op: str, inputs: Sequence[ir.Value], output: ir.Value, **attributes: Any) -> ir.Node:
        """Return a node that computes `output`, or what takes the place of that where it was an input."""
        name = self._taken.take(f"{output.name}/{op}")
        written = [
            ir.serde.deserialize_attribute(helper.make_attribute(key, held))
            for key, held in attributes.items()
        ]
        made = ir.Value(name=output.name, type=output.type, shape=output.shape)
        made.metadata_props.update(output.metadata_props)
        ir.convenience.replace_all_uses_with(output, made, replace_graph_outputs=True)
        return ir.Node("", op, inputs, written, name=name, outputs=[made])

    def _put_in_front(self, *nodes: ir.Node) -> None:
        for first in self._graph:
            self._graph.insert_before(first, nodes)
            return
        self._graph.extend(nodes)


def _element_of(name: str, other: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}\.(0|[1-9]\d*)", other, re.ASCII) is not None
