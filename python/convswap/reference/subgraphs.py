"""Loop, Scan and SequenceMap of the float64 reference, as in the ONNX operator specification.

ONNX's evaluator deviates: it concatenates the collected outputs of a Loop along an existing axis; it supports
Scan only along the first axis and forwards; and the body of its SequenceMap cannot read outer values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference.op_run import OpRun

# First opset whose Scan has no batch dimension.
_SCAN_WITHOUT_BATCH = 9


class _WithBody(OpRun):
    """An operator that runs its attribute `body`, a graph that may read outer values."""

    # Set by the evaluator, from the attribute.
    _run_body: Callable[..., list[Any]]

    def need_context(self) -> bool:
        """Return whether the evaluator passes the outer values to `_run`."""
        return True

    @property
    def _graph(self) -> onnx.GraphProto:
        return next(attribute.g for attribute in self.onnx_node.attribute if attribute.name == "body")

    def _run_once(
        self, inputs: Sequence[Any], context: Mapping[str, Any], attributes: Mapping[str, Any] | None
    ) -> list[Any]:
        names = [value.name for value in self._graph.input]
        # An unused input may have no value.
        bound = {**context, **dict(zip(names, inputs, strict=False))}
        return self._run_body(bound, attributes=attributes)

    def _empty_output(self, output: int) -> np.ndarray:
        """Return a collected output after no iteration. As in ONNX Runtime, unknown extents are 0."""
        tensor = self._graph.output[output].type.tensor_type
        sizes = [dimension.dim_value for dimension in tensor.shape.dim]
        kind = tensor.elem_type or onnx.TensorProto.DOUBLE
        return np.zeros((0, *sizes), helper.tensor_dtype_to_np_dtype(kind))


class Loop(_WithBody):
    """Runs the body at most M times and while the condition holds; either may be absent."""

    def _run(
        self,
        M: Any = None,
        cond: Any = None,
        *initial: Any,
        context: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        **unused: Any,
    ) -> tuple[Any, ...]:
        carried = list(initial)
        collected: list[list[Any]] = [[] for _ in self._graph.output[1 + len(carried) :]]
        condition, iteration = True if cond is None else bool(np.all(cond)), 0
        while condition and (M is None or iteration < int(np.asarray(M).item())):
            count = np.array(iteration, dtype=np.int64)
            outputs = self._run_once([count, np.array(condition), *carried], context, attributes)
            condition = bool(np.all(outputs[0]))
            carried = outputs[1 : 1 + len(carried)]
            for values, value in zip(collected, outputs[1 + len(carried) :], strict=True):
                values.append(value)
            iteration += 1
        first = 1 + len(carried)
        joined = [
            np.stack(values) if values else self._empty_output(first + index)
            for index, values in enumerate(collected)
        ]
        return (*carried, *joined)


class Scan(_WithBody):
    """Runs the body for each slice of the scanned inputs, along any axis and in either direction."""

    def _run(
        self,
        *inputs: Any,
        context: Mapping[str, Any],
        num_scan_inputs: int,
        scan_input_axes: Sequence[int] | None = None,
        scan_input_directions: Sequence[int] | None = None,
        scan_output_axes: Sequence[int] | None = None,
        scan_output_directions: Sequence[int] | None = None,
        attributes: Mapping[str, Any] | None = None,
        **unused: Any,
    ) -> tuple[Any, ...]:
        if self.run_params["opsets"][""] < _SCAN_WITHOUT_BATCH:
            raise NotImplementedError("Scan with a batch of its own, of opset 8")
        states = list(inputs[: len(inputs) - num_scan_inputs])
        scanned = [
            _slices(values, _entry(scan_input_axes, index), _entry(scan_input_directions, index))
            for index, values in enumerate(inputs[len(states) :])
        ]
        collected: list[list[Any]] = [[] for _ in self._graph.output[len(states) :]]
        for parts in zip(*scanned, strict=True):
            outputs = self._run_once([*states, *parts], context, attributes)
            for values, value in zip(collected, outputs[len(states) :], strict=True):
                values.append(value)
            states = outputs[: len(states)]
        joined = []
        for index, values in enumerate(collected):
            if not values:
                joined.append(self._empty_output(len(states) + index))
                continue
            forwards = not _entry(scan_output_directions, index)
            joined.append(
                np.stack(values if forwards else values[::-1], axis=_entry(scan_output_axes, index))
            )
        return (*states, *joined)


class SequenceMap(_WithBody):
    """Runs the body for each element of a sequence, with the other sequences' elements of the same index."""

    def _run(
        self,
        first: Sequence[Any],
        *others: Any,
        context: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        **unused: Any,
    ) -> tuple[Any, ...]:
        collected: list[list[Any]] = [[] for _ in self._graph.output]
        for index, item in enumerate(first):
            arguments = [other[index] if isinstance(other, list) else other for other in others]
            for values, value in zip(
                collected, self._run_once([item, *arguments], context, attributes), strict=True
            ):
                values.append(value)
        return tuple(collected)


SUBGRAPH_OPERATORS: tuple[type[OpRun], ...] = (Loop, Scan, SequenceMap)


def _entry(values: Sequence[int] | None, index: int) -> int:
    """Return entry `index` of an attribute; 0, ONNX's default, if the attribute is absent or too short."""
    return int(values[index]) if values is not None and index < len(values) else 0


def _slices(values: np.ndarray, axis: int, backwards: int) -> list[np.ndarray]:
    parts = list(np.moveaxis(values, axis, 0))
    return parts[::-1] if backwards else parts
