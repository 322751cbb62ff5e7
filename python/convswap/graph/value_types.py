"""Find the element type, the rank and the extents of values in an ONNX model."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property

import onnx_ir as ir

from convswap.graph.certain_shapes import CertainShapes, Extent, certain_shapes, extents_of
from convswap.graph.constants import Constants
from convswap.graph.symbolic_extents import Label


class ValueTypes:
    """Element types and shapes of a model's values.

    Types are declared by the model, which ONNX Runtime enforces, or inferred. Shapes are those that follow
    from inputs and constants, see `certain_shapes`.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._constants = Constants(model)
        self._contradicted: set[ir.Value] = set()

    @cached_property
    def _certain(self) -> CertainShapes:
        return certain_shapes(self._model)

    def element_type(self, values: Iterable[ir.Value]) -> ir.DataType | None:
        """Return the element type of `values`, which all have the same type; None if no type is known."""
        return next(
            (value_type.dtype for value_type in self._known_types(values) if value_type.dtype is not None),
            None,
        )

    def rank(self, values: Iterable[ir.Value]) -> int | None:
        """Return the rank of `values`, which all have the same rank; a declared rank if none is certain."""
        candidates = list(values)
        ranks = (len(shape) for value in candidates if (shape := self._shape(value)) is not None)
        declared = (len(value.shape) for value in candidates if value.shape is not None)
        return next(ranks, next(declared, None))

    def static_shape(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape of `value`; None if one of its extents is unknown."""
        extents = tuple(extent for extent in self._shape(value) or () if isinstance(extent, int))
        return extents if len(extents) == len(self._shape(value) or (None,)) else None

    def have_same_shape(self, value: ir.Value, other: ir.Value) -> bool:
        """Return whether both values have the same shape in every run: equal numbers or equal labels."""
        labels, others = self._certain.labels(value), self._certain.labels(other)
        return bool(labels) and labels == others and None not in labels

    def have_same_extent(self, value: ir.Value, other: ir.Value, axis: int) -> bool:
        """Return whether an axis of both values has the same extent in every run."""
        labels, others = self._certain.labels(value), self._certain.labels(other)
        return bool(labels and others) and labels[axis] == others[axis] and labels[axis] is not None

    def axes(self, value: ir.Value) -> list[int | None]:
        """Return the extent of each axis, None for an unknown extent; an empty list for an unknown rank."""
        return [extent if isinstance(extent, int) else None for extent in self._shape(value) or ()]

    def contradicts(self, value: ir.Value) -> bool:
        """Return whether the model declared a shape of `value` that differs from its certain shape."""
        return value in self._contradicted

    def correct(self) -> None:
        """Correct the declared shapes of computed values, in place: keep only certain extents.

        ONNX Runtime plans memory by declared shapes, and fails if they are wrong; the library's ops read them
        when a session is created. Graph inputs, and graph outputs without consumers, stay as they are: they
        are the model's interface.
        """
        inner = [value for value in self._computed() if value.shape is not None]
        if not inner:
            return
        meanings = self._meanings()
        for value in inner:
            declared, shape = extents_of(value), self._shape(value)
            if declared is None or shape is None:
                continue
            if _contradicts_shape(declared, shape):
                self._contradicted.add(value)
            valid_names = {
                name for name in declared if isinstance(name, str) and len(meanings.get(name, ())) == 1
            }
            is_inner = value.uses() or not value.is_graph_output()
            if is_inner and not _is_certain_shape(declared, shape, valid_names):
                value.shape = self._resolved_shape(value, declared, valid_names)

    def complete(self, value: ir.Value) -> None:
        """Store the known element type and shape of `value` in the model if it declares none."""
        if value.dtype is None and (element_type := self.element_type([value])) is not None:
            value.type = ir.TensorType(element_type)
        if value.shape is None and self._certain.shape(value) is not None:
            value.shape = self._resolved_shape(value, (), set())

    def _resolved_shape(
        self, value: ir.Value, declared: Sequence[Extent], valid_names: Container[str]
    ) -> ir.Shape:
        """Return the certain shape of `value`. Its symbols are `valid_names` and symbols of the inputs."""
        labels = self._certain.labels(value)
        extents: list[Extent] = []
        for axis, label in enumerate(labels):
            name = declared[axis] if len(declared) == len(labels) else None
            if isinstance(label, int):
                extents.append(label)
            elif isinstance(name, str) and name in valid_names:
                extents.append(name)
            else:
                extents.append(self._certain.declared_symbols.get(label) if isinstance(label, str) else None)
        return ir.Shape(extents)

    def _computed(self) -> Iterator[ir.Value]:
        for graph in self._model.graphs():
            for node in graph:
                yield from node.outputs

    def _meanings(self) -> dict[str, set[Label | None]]:
        """Return, for each symbol in the model's declared shapes, the labels of the extents that it names."""
        meanings: dict[str, set[Label | None]] = {}
        for value in (*self._model.graph.inputs, *self._computed()):
            declared, labels = extents_of(value) or (), self._certain.labels(value)
            if len(labels) != len(declared):
                labels = [None] * len(declared)
            for name, label in zip(declared, labels, strict=True):
                if isinstance(name, str):
                    # Unknown extents may differ, so the name counts as having several meanings.
                    meanings.setdefault(name, set()).update([label] if label is not None else [None, name])
        return meanings

    def _shape(self, value: ir.Value) -> tuple[Extent, ...] | None:
        tensor = self._constants.direct_tensor(value)
        return self._certain.shape(value) if tensor is None else tuple(tensor.shape.numpy())

    def _known_types(self, values: Iterable[ir.Value]) -> Iterator[ir.Value | ir.TensorProtocol]:
        """Yield the declared and then the inferred types of `values`; lazily, because inference is slow."""
        candidates = list(values)
        for value in candidates:
            tensor = ir.convenience.get_const_tensor(value)
            yield value if tensor is None else tensor
        for value in candidates:
            if value in self._certain.values:
                yield self._certain.values[value]


def _contradicts_shape(declared: Sequence[Extent], shape: Sequence[Extent]) -> bool:
    return len(declared) != len(shape) or any(
        isinstance(declared_extent, int) and isinstance(extent, int) and declared_extent != extent
        for declared_extent, extent in zip(declared, shape, strict=True)
    )


def _is_certain_shape(
    declared: Sequence[Extent], shape: Sequence[Extent], valid_names: Container[str]
) -> bool:
    """Return whether the shape `declared` holds in every run; its symbols must be among `valid_names`."""
    return len(declared) == len(shape) and all(
        declared_extent == extent
        if isinstance(declared_extent, int)
        else declared_extent is None or declared_extent in valid_names
        for declared_extent, extent in zip(declared, shape, strict=True)
    )
