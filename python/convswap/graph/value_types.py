"""Find the element type, the rank and the extents of values in an ONNX model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import onnx
import onnx_ir as ir

from convswap.graph.domain import is_our_conv
from convswap.graph.function_calls import count_copies
from convswap.graph.serialisation import from_proto, to_proto
from convswap.graph.symbolic_extents import SymbolicExtents

# Shape inference needs the values of small initializers (shapes, axes) and never those of weights.
_SMALL_INITIALIZER_BYTES = 1024


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that `graph` itself defines: inputs, initializers and node outputs."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


class ValueTypes:
    """Element types and shapes of a model's values, by shape inference where the model does not tell them."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @cached_property
    def _inferred(self) -> dict[ir.Value, ir.Value]:
        return _infer(self._model)

    @cached_property
    def _symbolic(self) -> SymbolicExtents:
        return SymbolicExtents(self._model, self._extents_and_symbols)

    def element_type(self, values: Iterable[ir.Value]) -> ir.DataType | None:
        """Return the one element type that all `values` have, from the first whose type is known."""
        return next((known.dtype for known in self._known(values) if known.dtype is not None), None)

    def rank(self, values: Iterable[ir.Value]) -> int | None:
        """Return the one rank that all `values` have, from the first whose shape is known."""
        return next((len(known.shape) for known in self._known(values) if known.shape is not None), None)

    def extents(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the shape of `value`; None where an extent of it is not known."""
        for known in self._known([value]):
            if known.shape is not None and all(isinstance(extent, int) for extent in known.shape):
                return tuple(known.shape.numpy())
        return None

    def have_same_shape(self, value: ir.Value, other: ir.Value) -> bool:
        """Return whether both have the same shape in every run: equal extents, known or computed alike."""
        pairs = (self._symbolic.labels(value), self._symbolic.labels(other))
        if not pairs[0] or len(pairs[0]) != len(pairs[1]):
            return False
        return all(known & others for known, others in zip(*pairs, strict=True))

    def axes(self, value: ir.Value) -> list[int | None]:
        """Return the extent of each axis, None where it is not known; nothing where the rank is not."""
        return [
            next((label for label in labels if isinstance(label, int)), None)
            for labels in self._extents_and_symbols(value)
        ]

    def complete(self, value: ir.Value) -> None:
        """Give `value` the element type and the shape that are known of it, where it has none itself."""
        for known in self._known([value]) if value.shape is None or value.dtype is None else ():
            if value.shape is None and known.shape is not None:
                value.shape = ir.Shape([_own_label(extent) for extent in known.shape])
            if value.dtype is None and known.dtype is not None:
                value.type = ir.TensorType(known.dtype)

    def _extents_and_symbols(self, value: ir.Value) -> list[set[int | str]]:
        """Return, for each axis, the number and the symbols that are known for it; nothing if no rank is."""
        found: list[set[int | str]] = []
        for known in self._known([value]):
            if known.shape is None or (found and len(found) != len(known.shape)):
                continue
            found = found or [set() for _ in known.shape]
            for labels, extent in zip(found, known.shape, strict=True):
                label = extent if isinstance(extent, int) else extent.value
                if label is not None:
                    labels.add(label)
        return found

    def _known(self, values: Iterable[ir.Value]) -> Iterator[ir.Value | ir.TensorProtocol]:
        """Yield what is known of `values`, lazily, because inferring takes long."""
        candidates = list(values)
        for value in candidates:
            tensor = ir.convenience.get_const_tensor(value)
            yield value if tensor is None else tensor
        for value in candidates:
            if value in self._inferred:
                yield self._inferred[value]


def _own_label(extent: int | ir.SymbolicDimProtocol) -> int | str | None:
    if isinstance(extent, int):
        return extent
    # Inference makes up symbols for what it does not know; they mean nothing to others.
    return None if extent.value is None or extent.value.startswith("unk__") else extent.value


def _infer(model: ir.Model) -> dict[ir.Value, ir.Value]:
    """Return, for the values of `model`, the same values as ONNX's shape inference completes them."""
    try:
        # Refuses what onnx, which follows every call, would take minutes for.
        count_copies(model, model.functions.keys())
        skeleton = model.clone()
        for value in list(skeleton.graph.initializers.values()):
            if value.const_value is not None and value.const_value.nbytes > _SMALL_INITIALIZER_BYTES:
                skeleton.graph.initializers.pop(str(value.name))
                if value not in skeleton.graph.inputs:
                    skeleton.graph.inputs.append(value)
        for node in ir.traversal.RecursiveGraphIterator(skeleton.graph):
            # Of a model that was swapped, onnx knows every op but ours, which has the types of its own.
            if is_our_conv(node):
                node.domain = ""
        inferred = from_proto(onnx.shape_inference.infer_shapes(to_proto(skeleton)))
        found = {}
        for graph, completed in zip(model.graphs(), inferred.graphs(), strict=True):
            by_name = {value.name: value for value in values_of(completed)}
            found.update({value: by_name[value.name] for value in values_of(graph) if value.name in by_name})
        return found
    except Exception:
        # A model that cannot be inferred is not an error here: its Convs are left, with the reason.
        return {}
