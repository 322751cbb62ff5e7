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

    Types are what the model declares, as ONNX Runtime holds it to that, or what inference tells. Shapes are
    what follows from inputs and constants.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._constants = Constants(model)
        self._contradicted: set[ir.Value] = set()

    @cached_property
    def _certain(self) -> CertainShapes:
        return certain_shapes(self._model)

    def element_type(self, values: Iterable[ir.Value]) -> ir.DataType | None:
        """Return the one element type that all `values` have, from the first whose type is known."""
        return next((known.dtype for known in self._known(values) if known.dtype is not None), None)

    def rank(self, values: Iterable[ir.Value]) -> int | None:
        """Return the one rank that all `values` have; as declared where it follows from nothing."""
        candidates = list(values)
        ranks = (len(shape) for value in candidates if (shape := self._shape(value)) is not None)
        declared = (len(value.shape) for value in candidates if value.shape is not None)
        return next(ranks, next(declared, None))

    def extents(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape of `value`; None where an extent of it is not known."""
        known = tuple(extent for extent in self._shape(value) or () if isinstance(extent, int))
        return known if len(known) == len(self._shape(value) or (None,)) else None

    def have_same_shape(self, value: ir.Value, other: ir.Value) -> bool:
        """Return whether both have the same shape in every run: equal extents, known or computed alike."""
        labels, others = self._certain.labels(value), self._certain.labels(other)
        return bool(labels) and labels == others and None not in labels

    def axes(self, value: ir.Value) -> list[int | None]:
        """Return the extent of each axis, None where it is not known; nothing where the rank is not."""
        return [extent if isinstance(extent, int) else None for extent in self._shape(value) or ()]

    def contradicts(self, value: ir.Value) -> bool:
        """Return whether the model declared another extent of `value` than it has."""
        return value in self._contradicted

    def correct(self) -> None:
        """Take away what the model declares of shapes that nodes read and does not follow.

        ONNX Runtime plans memory by it, and refuses to run where it was wrong; our ops look at it when a
        session is made. Inputs, and outputs that nothing reads on, stay as they are: they are what users see.
        """
        inner = [value for value in self._computed() if value.shape is not None]
        if not inner:
            return
        meant = self._meanings()
        for value in inner:
            declared, shape = extents_of(value), self._shape(value)
            if declared is None or shape is None:
                continue
            if _contradict(declared, shape):
                self._contradicted.add(value)
            names = {name for name in declared if isinstance(name, str) and len(meant.get(name, ())) == 1}
            if (value.uses() or not value.is_graph_output()) and not _follows(declared, shape, names):
                value.shape = self._stated(value, declared, names)

    def complete(self, value: ir.Value) -> None:
        """Give `value` the element type and the shape that are known of it, where it has none itself."""
        if value.dtype is None and (element_type := self.element_type([value])) is not None:
            value.type = ir.TensorType(element_type)
        if value.shape is None and self._certain.shape(value) is not None:
            value.shape = self._stated(value, (), set())

    def _stated(self, value: ir.Value, declared: Sequence[Extent], names: Container[str]) -> ir.Shape:
        """Return the shape of `value` with names that mean something: of `names`, and those of inputs."""
        labels = self._certain.labels(value)
        extents: list[Extent] = []
        for axis, label in enumerate(labels):
            name = declared[axis] if len(declared) == len(labels) else None
            if isinstance(label, int):
                extents.append(label)
            elif isinstance(name, str) and name in names:
                extents.append(name)
            else:
                extents.append(self._certain.declared_symbols.get(label) if isinstance(label, str) else None)
        return ir.Shape(extents)

    def _computed(self) -> Iterator[ir.Value]:
        for graph in self._model.graphs():
            for node in graph:
                yield from node.outputs

    def _meanings(self) -> dict[str, set[Label | None]]:
        """Return, for each name that the model has for extents, what it stands for."""
        meant: dict[str, set[Label | None]] = {}
        for value in (*self._model.graph.inputs, *self._computed()):
            declared, labels = extents_of(value) or (), self._certain.labels(value)
            if len(labels) != len(declared):
                labels = [None] * len(declared)
            for name, label in zip(declared, labels, strict=True):
                if isinstance(name, str):
                    # What is not known may be several things.
                    meant.setdefault(name, set()).update([label] if label is not None else [None, name])
        return meant

    def _shape(self, value: ir.Value) -> tuple[Extent, ...] | None:
        tensor = self._constants.own_tensor(value)
        return self._certain.shape(value) if tensor is None else tuple(tensor.shape.numpy())

    def _known(self, values: Iterable[ir.Value]) -> Iterator[ir.Value | ir.TensorProtocol]:
        """Yield what is known of the types of `values`, lazily, because inferring takes long."""
        candidates = list(values)
        for value in candidates:
            tensor = ir.convenience.get_const_tensor(value)
            yield value if tensor is None else tensor
        for value in candidates:
            if value in self._certain.values:
                yield self._certain.values[value]


def _contradict(declared: Sequence[Extent], shape: Sequence[Extent]) -> bool:
    return len(declared) != len(shape) or any(
        isinstance(one, int) and isinstance(other, int) and one != other
        for one, other in zip(declared, shape, strict=True)
    )


def _follows(declared: Sequence[Extent], shape: Sequence[Extent], names: Container[str]) -> bool:
    """Return whether what is declared, where only `names` mean something, is so in every run."""
    return len(declared) == len(shape) and all(
        one == other if isinstance(one, int) else one is None or one in names
        for one, other in zip(declared, shape, strict=True)
    )
