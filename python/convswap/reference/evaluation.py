"""The float64 reference: evaluate a model in float64, to measure the errors of both sides.

Every floating-point weight, constant, type and Cast target becomes float64. ONNX's reference evaluator then
computes the model, with the operators of `operators.py` in place of its slow or inexact ones, and with the
functions as rewritten by `rewriting.py`. A value is freed after its last use, and a weight is converted to
float64 when it is read. So peak memory is that of the values alive at one node.

Some nodes cannot be computed this way: operators without a NumPy implementation (such as com.microsoft's),
operators whose implementation loops over pixels in Python, and nodes whose implementation fails. The CPU
provider runs such a node as a model of one node, with its subgraphs, in float32, and the result names its
operator. The error of float32 is about 1e-7, far below that of TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import RuntimeContextError

from convswap.errors import ConvswapError
from convswap.graph.domain import ONNX_DOMAINS, op_name
from convswap.graph.external_weights import AnyModel, as_split
from convswap.graph.serialisation import subgraphs
from convswap.reference.operators import OPERATORS
from convswap.reference.provider_node import ProviderNode, names_read, to_float64
from convswap.reference.rewriting import TO_FLOAT64, copy_without_weights, retype, specialise_functions

# Operators that the evaluator implements as Python loops over every pixel or time step.
_CPU_PROVIDER_OPS = {
    "ConvTranspose",
    "DeformConv",
    "GridSample",
    "GRU",
    "LSTM",
    "MaxRoiPool",
    "MaxUnpool",
    "RNN",
    "Resize",
    "RoiAlign",
    "Upsample",
}


@dataclass(frozen=True)
class Evaluation:
    """The outputs of a model in float64, and the operators that the CPU provider computed in float32."""

    outputs: list[Any]
    in_float32: tuple[str, ...]


def evaluate(model: AnyModel, feeds: Mapping[str, np.ndarray]) -> Evaluation:
    """Return the outputs of `model` for `feeds`, in float64. Does not change `model`.

    Raises:
        ConvswapError: a node can be evaluated neither in NumPy nor by the CPU provider.
    """
    message, weights = as_split(model)
    wide = copy_without_weights(message)
    specialise_functions(wide)
    retype(wide, TO_FLOAT64)
    shared_state = _SharedState(wide.functions)
    for tensor in message.graph.initializer:
        shared_state.weights[tensor.name] = partial(numpy_helper.to_array, tensor)
    for name, values in weights.items():
        shared_state.weights[name] = partial(np.asarray, values)
    inputs = {name: to_float64(values) for name, values in feeds.items()}
    try:
        # Infinities and NaN are valid outputs here.
        with np.errstate(all="ignore"):
            outputs: Any = _evaluator_class(shared_state)(wide).run(None, inputs)
    except (ConvswapError, MemoryError):
        raise
    except Exception as error:  # The evaluator's operators raise errors of many classes.
        reason = str(error).strip().splitlines()
        raise ConvswapError(
            f"cannot evaluate the model in float64: {reason[0] if reason else type(error).__name__}; "
            "check the model with onnx.checker"
        ) from error
    return Evaluation(outputs, tuple(sorted(shared_state.in_float32)))


@dataclass
class _SharedState:
    """State that the evaluators of a model's main graph, subgraphs and functions share.

    `weights` has functions that return the weights of the main graph in their stored type, by name.
    """

    functions: Sequence[onnx.FunctionProto]
    weights: dict[str, Callable[[], np.ndarray]] = field(default_factory=dict)
    in_float32: set[str] = field(default_factory=set)

    def provider_node(
        self, node: onnx.NodeProto, opsets: Mapping[str, int], composed_op: str | None = None
    ) -> ProviderNode:
        """Return a runner of `node` on the CPU provider.

        `composed_op` names the ONNX operator if the node belongs to an operator that ONNX defines as a
        function.
        """
        return ProviderNode(
            node, opsets, self.functions, partial(self.record_float32, composed_op=composed_op)
        )

    def record_float32(self, node: onnx.NodeProto, composed_op: str | None = None) -> None:
        """Record that `node` was computed in float32."""
        name = composed_op or op_name(node)
        self.in_float32.add(f"{name} with its subgraphs" if any(subgraphs(node)) else name)


class _Float64Evaluator(ReferenceEvaluator):
    """An evaluator with the operators of `operators.py`, for a model, its subgraphs and its functions."""

    shared_state: _SharedState

    def __init__(self, proto: Any, *arguments: Any, **options: Any) -> None:
        options["new_ops"] = list(OPERATORS)
        self._fallbacks: dict[int, ProviderNode] = {}
        # The name of the operator, if `proto` is a function by which ONNX defines one of its operators.
        is_operator = isinstance(proto, onnx.FunctionProto) and proto.domain in ONNX_DOMAINS
        self._operator: str | None = proto.name if is_operator else None
        super().__init__(proto, *arguments, **options)
        # The names that each node reads, also in its subgraphs, in the order of the nodes.
        self._reads = [names_read(node) for node in self.nodes_]
        self._weights = self.shared_state.weights if isinstance(proto, onnx.ModelProto) else {}

    def _load_impl(self, node: onnx.NodeProto, *arguments: Any) -> Any:
        if node.domain == "" and node.op_type in _CPU_PROVIDER_OPS:
            return self._cpu_provider_node
        try:
            implementation = super()._load_impl(node, *arguments)
        except RuntimeContextError:
            # An implementation exists: the evaluator calls this method again, with the types of the inputs.
            raise
        except RuntimeError:  # includes NotImplementedError
            return self._cpu_provider_node
        return partial(self._instantiate, implementation)

    def _instantiate(self, implementation: Callable[..., Any], node: onnx.NodeProto, parameters: Any) -> Any:
        try:
            return implementation(node, parameters)
        except Exception:  # Implementations raise errors of many classes for unsupported parameters.
            return self._cpu_provider_node(node, parameters)

    def _cpu_provider_node(self, node: onnx.NodeProto, parameters: Any) -> ProviderNode:
        return self.shared_state.provider_node(node, self.opsets, self._operator)

    def run(
        self,
        output_names: Sequence[str] | None,
        feed_inputs: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        *unused: Any,
        **unused_too: Any,
    ) -> list[Any]:
        """Compute the nodes in order; free each value after its last use."""
        output_names = list(output_names or self.output_names)
        values = {**self.rt_inits_, **feed_inputs}
        last_used = _last_used(self.nodes_, self._reads, output_names)
        for index, node in enumerate(self.nodes_):
            for name in self._reads[index]:
                if name not in values:
                    values[name] = self._weight(name)
            outputs = self._compute(index, values, attributes)
            values.update((name, value) for name, value in zip(node.output, outputs, strict=False) if name)
            # Memory is freed only if no variable refers to a value.
            del outputs
            for name in last_used.get(index, ()):
                values.pop(name, None)
        return [values[name] if name in values else self._weight(name) for name in output_names]

    def _weight(self, name: str) -> np.ndarray:
        if name not in self._weights:
            raise ConvswapError(f"cannot evaluate the model in float64: nothing produces {name!r}")
        wide: np.ndarray = to_float64(self._weights[name]())
        return wide

    def _compute(
        self, index: int, values: Mapping[str, Any], attributes: Mapping[str, Any] | None
    ) -> Sequence[Any]:
        node = self._fallbacks.get(index, self.rt_nodes_[index])
        if isinstance(node, ProviderNode):
            return node.run(values, attributes)
        options: dict[str, Any] = {}
        if node.has_linked_attribute and attributes:
            options["linked_attributes"] = attributes
        if node.need_context():
            options["context"] = {name: values[name] for name in self._reads[index]}
        inputs = [values[name] if name else None for name in node.input]
        try:
            outputs: Sequence[Any] = node.run(*inputs, **options)
            return outputs
        except MemoryError:
            raise
        except Exception:  # The evaluator's operators raise errors of many classes.
            self._fallbacks[index] = self.shared_state.provider_node(
                self.nodes_[index], self.opsets, self._operator
            )
            return self._fallbacks[index].run(values, attributes)


def _evaluator_class(shared_state: _SharedState) -> type[_Float64Evaluator]:
    """Return an evaluator class for one model, with `shared_state` as a class attribute.

    The evaluator of a graph creates those of subgraphs from its class, without further arguments.
    """

    class Evaluator(_Float64Evaluator):
        pass

    Evaluator.shared_state = shared_state
    return Evaluator


def _last_used(
    nodes: Sequence[onnx.NodeProto], reads: Sequence[Sequence[str]], output_names: Sequence[str]
) -> dict[int, list[str]]:
    """Return, by the index of a node, the names of the values that no later node and no output needs."""
    last_index: dict[str, int] = {}
    for index, (node, names) in enumerate(zip(nodes, reads, strict=True)):
        last_index.update(dict.fromkeys((*names, *node.output), index))
    names_by_node: dict[int, list[str]] = {}
    for name, index in last_index.items():
        if name and name not in output_names:
            names_by_node.setdefault(index, []).append(name)
    return names_by_node
