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
from onnx import helper

from convswap.errors import ConvswapError, unknown_name
from convswap.graph.names import UniqueNames, names_in
from convswap.graph.serialisation import copy_of
from convswap.inputs.feeds import declared_input
from convswap.inputs.given import Given, Value, as_array, check_shape, values_by_name

# From this version of the format on, an initializer that is a graph input too is only a default.
_FIRST_IR_WITH_DEFAULTS = 4
_WITHOUT_TENSORS = ("sequence_type", "optional_type")


def with_tensor_inputs(model: onnx.ModelProto, given: Given | None) -> tuple[onnx.ModelProto, Given | None]:
    """Return `model` with inputs that are tensors, and what they are given.

    Both are returned as they are where nothing but tensors without a default is given.

    Raises:
        ConvswapError: a value that was given cannot be read or does not suit its input.
    """
    defaults = {tensor.name for tensor in model.graph.initializer}
    inputs = list(model.graph.input)
    parted = [value for value in inputs if value.type.WhichOneof("value") in _WITHOUT_TENSORS]
    defaulted = [value for value in inputs if value.name in defaults]
    if given is None or not (parted or defaulted):
        return model, given
    values = values_by_name(given, [value.name for value in inputs if value.name not in defaults])
    if values is None:  # Images, of which a model has one input.
        return model, given
    _check_names(model, values)
    replaced = [value for value in defaulted if value.name in values]
    if not (parted or replaced):
        return model, given
    copy = copy_of(model)
    change = _Change(copy, values)
    for value in replaced:
        change.drop_default(value)
    for value in parted:
        change.make_of_tensors(value)
    return copy, change.values


def _check_names(model: onnx.ModelProto, values: Mapping[str, Value]) -> None:
    """Refuse a value for what `model` does not take, while its inputs are called as in its file."""
    known = {value.name: value.type.WhichOneof("value") in _WITHOUT_TENSORS for value in model.graph.input}
    for name in values:
        if name not in known and not any(
            _element_of(sequence, name) for sequence, has_elements in known.items() if has_elements
        ):
            raise unknown_name("input", name, known)


class _Change:
    """A model whose inputs are made tensors one by one, and the values that it is given meanwhile."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Value]) -> None:
        self._model = model
        self.values: dict[str, Any] = dict(values)
        self._inputs = {value.name for value in model.graph.input}
        self._taken = UniqueNames(names_in(model.graph))

    def drop_default(self, value: onnx.ValueInfoProto) -> None:
        """Make `value`, an input with an initializer, one without."""
        graph = self._model.graph
        if self._model.ir_version < _FIRST_IR_WITH_DEFAULTS:
            raise ConvswapError(
                f"input {value.name!r} was given a value, but the model, of IR version "
                f"{self._model.ir_version}, has one for it that cannot be changed; leave it out"
            )
        (index,) = (i for i, tensor in enumerate(graph.initializer) if tensor.name == value.name)
        del graph.initializer[index]
        self._remove_input(value.name)
        array = as_array(value.name, self.values[value.name])
        check_shape(array.shape, declared_input(value), None)
        self._add_input(value.name, value.type.tensor_type.elem_type, array)

    def make_of_tensors(self, value: onnx.ValueInfoProto) -> None:
        """Put nodes that make `value`, a sequence or an optional, in the place of that input."""
        self._remove_input(value.name)
        self._model.graph.value_info.append(value)
        if value.type.HasField("sequence_type"):
            self._make_sequence(value.name, value.name, value.type.sequence_type.elem_type)
            return
        inner = value.type.optional_type.elem_type
        elements = self._elements(value.name) if inner.HasField("sequence_type") else None
        held = elements if elements is not None else self.values.get(value.name)
        if held is None:
            self.values.pop(value.name, None)
            self._put_in_front("Optional", [], value.name, type=inner)
            return
        made = self._taken.take(f"{value.name}.value")
        if inner.HasField("sequence_type"):
            self._make_sequence(value.name, made, inner.sequence_type.elem_type)
        else:
            self._feed(value.name, made, inner, self.values.pop(value.name))
        # In front of the nodes before it, so that it is put behind what makes its input.
        self._put_in_front("Optional", [made], value.name, after=made)

    def _make_sequence(self, name: str, output: str, element: onnx.TypeProto) -> None:
        """Make `output`, the sequence that was given for the input `name`, of its elements."""
        elements = self._elements(name)
        if elements is None:
            raise ConvswapError(
                f"input {name!r} is a sequence, but no elements of it were given; give a list of arrays, or "
                f"in a file arrays {name}.0, {name}.1, and so on"
            )
        elements_and_more = {name, *self._given_elements(name)}
        self.values = {other: held for other, held in self.values.items() if other not in elements_and_more}
        if not elements:
            self._put_in_front("SequenceEmpty", [], output, dtype=element.tensor_type.elem_type)
            return
        names = []
        for index, held in enumerate(elements):
            names.append(self._taken.take(f"{name}.{index}"))
            self._feed(name, names[-1], element, held)
        self._put_in_front("SequenceConstruct", names, output)

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

    def _feed(self, name: str, tensor: str, kind: onnx.TypeProto, held: Any) -> None:
        """Make an input `tensor` for what was given as the input `name`, or as a part of it."""
        if not kind.HasField("tensor_type"):
            raise ConvswapError(
                f"input {name!r} is of {kind.WhichOneof('value') or 'no type'}s, and only sequences and "
                "optionals of tensors can be fed: give a model whose inputs are such"
            )
        array = as_array(name, held)
        check_shape(array.shape, declared_input(onnx.ValueInfoProto(name=name, type=kind)), None)
        self._add_input(tensor, kind.tensor_type.elem_type, array)

    def _add_input(self, name: str, element_type: int, array: np.ndarray) -> None:
        """Add a last input: the first one tells the batch. Its shape is fixed, so that it has no samples."""
        self._model.graph.input.append(helper.make_tensor_value_info(name, element_type, array.shape))
        self.values[name] = array

    def _remove_input(self, name: str) -> None:
        (index,) = (i for i, value in enumerate(self._model.graph.input) if value.name == name)
        del self._model.graph.input[index]

    def _put_in_front(
        self, op: str, inputs: Sequence[str], output: str, *, after: str = "", **attributes: Any
    ) -> None:
        nodes = self._model.graph.node
        made_by = [index for index, node in enumerate(nodes) if after and after in node.output]
        node = helper.make_node(op, inputs, [output], name=self._taken.take(f"{output}/{op}"), **attributes)
        nodes.insert(made_by[0] + 1 if made_by else 0, node)


def _element_of(name: str, other: str) -> bool:
    return re.fullmatch(rf"{re.escape(name)}\.(0|[1-9]\d*)", other, re.ASCII) is not None
