"""Loop, Scan and SequenceMap of the float64 reference, as the ONNX operator specification has them.

ONNX's own evaluator joins what a Loop collects along an axis that is there already, knows Scan along the
first axis and forwards only, and hides the values around a SequenceMap from its body.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference.op_run import OpRun

# The first opset whose Scan has no batch of its own.
_SCAN_WITHOUT_BATCH = 9


class _WithBody(OpRun):
    """An operator that runs its attribute `body`, which sees the values around the node."""

    # Of the evaluator's making, from the attribute.
    _run_body: Callable[..., list[Any]]

    def need_context(self) -> bool:
        """Return whether the evaluator passes those values on."""
        return True

    @property
    def _graph(self) -> onnx.GraphProto:
        return next(attribute.g for attribute in self.onnx_node.attribute if attribute.name == "body")

    def _once(
        self, inputs: Sequence[Any], context: Mapping[str, Any], attributes: Mapping[str, Any] | None
    ) -> list[Any]:
        names = [value.name for value in self._graph.input]
        # An unused input may be left without a value.
        bound = {**context, **dict(zip(names, inputs, strict=False))}
        return self._run_body(bound, attributes=attributes)

    def _nothing_collected(self, output: int) -> np.ndarray:
        """Return what a collected output is after no run: as ONNX Runtime has it, of size 0 where unknown."""
        tensor = self._graph.output[output].type.tensor_type
        sizes = [dimension.dim_value for dimension in tensor.shape.dim]
        kind = tensor.elem_type or onnx.TensorProto.DOUBLE
        return np.zeros((0, *sizes), helper.tensor_dtype_to_np_dtype(kind))


class Loop(_WithBody):
    """The body as often as M and the condition say, either of which may be absent."""

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
        going, trip = True if cond is None else bool(np.all(cond)), 0
        while going and (M is None or trip < int(np.asarray(M).item())):
            count = np.array(trip, dtype=np.int64)
            outputs = self._once([count, np.array(going), *carried], context, attributes)
            going = bool(np.all(outputs[0]))
            carried = outputs[1 : 1 + len(carried)]
            for values, each in zip(collected, outputs[1 + len(carried) :], strict=True):
                values.append(each)
            trip += 1
        first = 1 + len(carried)
        joined = [
            np.stack(values) if values else self._nothing_collected(first + index)
            for index, values in enumerate(collected)
        ]
        return (*carried, *joined)


class Scan(_WithBody):
    """The body once for each slice of the scanned inputs, along any axis and in either direction."""

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
            _slices(values, _at(scan_input_axes, index), _at(scan_input_directions, index))
            for index, values in enumerate(inputs[len(states) :])
        ]
        collected: list[list[Any]] = [[] for _ in self._graph.output[len(states) :]]
        for parts in zip(*scanned, strict=True):
            outputs = self._once([*states, *parts], context, attributes)
            for values, each in zip(collected, outputs[len(states) :], strict=True):
                values.append(each)
            states = outputs[: len(states)]
        joined = []
        for index, values in enumerate(collected):
            if not values:
                joined.append(self._nothing_collected(len(states) + index))
                continue
            forwards = not _at(scan_output_directions, index)
            joined.append(np.stack(values if forwards else values[::-1], axis=_at(scan_output_axes, index)))
        return (*states, *joined)


class SequenceMap(_WithBody):
    """The body once for each element of a sequence, and of the others at the same place."""

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
            beside = [other[index] if isinstance(other, list) else other for other in others]
            for values, each in zip(collected, self._once([item, *beside], context, attributes), strict=True):
                values.append(each)
        return tuple(collected)


SUBGRAPH_OPERATORS: tuple[type[OpRun], ...] = (Loop, Scan, SequenceMap)


def _at(given: Sequence[int] | None, index: int) -> int:
    """Return entry `index` of an attribute that may be left out or be short, for which ONNX has 0."""
    return int(given[index]) if given is not None and index < len(given) else 0


def _slices(values: np.ndarray, axis: int, backwards: int) -> list[np.ndarray]:
    parts = list(np.moveaxis(values, axis, 0))
    return parts[::-1] if backwards else parts
