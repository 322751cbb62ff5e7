"""The reference that both sides are measured against: the model in float64.

Every floating-point weight, constant, type and Cast target becomes float64. ONNX's reference evaluator then
computes the model, with the operators of `operators.py` in place of its slow or inexact ones, and with the
functions as `rewriting.py` writes them. A value is freed after its last use, and a weight is widened when it
is read, so that the peak memory is that of the values which are alive at one node.

The CPU provider runs in float32, alone, what cannot be computed so, and the result names it: an operator that
has no NumPy implementation (com.microsoft's, say) or only one that loops over pixels in Python, and a node,
with its subgraphs, whose implementation fails. Its error is about 1e-7, far below TF32's.
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
from convswap.reference.provider_node import ProviderNode, names_read, widened
from convswap.reference.rewriting import WIDER, copy_without_weights, retype, write_attributes_into_functions

# The evaluator has these, but as Python loops over every pixel or time step.
_LEFT_TO_THE_CPU_PROVIDER = {
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
    """The outputs of a model in float64, and the operators that were computed in float32 after all."""

    outputs: list[Any]
    in_float32: tuple[str, ...]


def evaluate(model: AnyModel, feeds: Mapping[str, np.ndarray]) -> Evaluation:
    """Return the outputs of `model`, which is not changed, for `feeds`, in float64.

    Raises:
        ConvswapError: a node can be evaluated neither in NumPy nor by the CPU provider.
    """
    message, weights = as_split(model)
    wide = copy_without_weights(message)
    write_attributes_into_functions(wide)
    retype(wide, WIDER)
    shared = _Shared(wide.functions)
    for tensor in message.graph.initializer:
        shared.weights[tensor.name] = partial(numpy_helper.to_array, tensor)
    for name, values in weights.items():
        shared.weights[name] = partial(np.asarray, values)
    inputs = {name: widened(values) for name, values in feeds.items()}
    try:
        # Infinities and NaN are answers like others here.
        with np.errstate(all="ignore"):
            outputs: Any = _evaluator_class(shared)(wide).run(None, inputs)
    except (ConvswapError, MemoryError):
        raise
    except Exception as error:  # The evaluator passes on whatever its operators raise.
        reason = str(error).strip().splitlines()
        raise ConvswapError(
            f"cannot evaluate the model in float64: {reason[0] if reason else type(error).__name__}; "
            "check the model with onnx.checker"
        ) from error
    return Evaluation(outputs, tuple(sorted(shared.in_float32)))


@dataclass
class _Shared:
    """What the evaluators of a model share: of its main graph, its subgraphs and its functions.

    `weights` gives those of the main graph, as they are stored, to whoever reads one.
    """

    functions: Sequence[onnx.FunctionProto]
    weights: dict[str, Callable[[], np.ndarray]] = field(default_factory=dict)
    in_float32: set[str] = field(default_factory=set)

    def provider_node(
        self, node: onnx.NodeProto, opsets: Mapping[str, int], part_of: str | None = None
    ) -> ProviderNode:
        """Return what runs `node`, maybe part of an operator that ONNX composes, on the CPU provider."""
        return ProviderNode(node, opsets, self.functions, partial(self.note, part_of=part_of))

    def note(self, node: onnx.NodeProto, part_of: str | None = None) -> None:
        """Keep in mind that `node` was computed in float32."""
        what = part_of or op_name(node)
        self.in_float32.add(f"{what} with its subgraphs" if any(subgraphs(node)) else what)


class _Float64Evaluator(ReferenceEvaluator):
    """An evaluator with our operators, of a model and, by its own class, of its subgraphs and functions."""

    shared: _Shared

    def __init__(self, proto: Any, *arguments: Any, **options: Any) -> None:
        options["new_ops"] = list(OPERATORS)
        self._instead: dict[int, ProviderNode] = {}
        # Of ONNX's own functions, which stand for one of its operators.
        is_operator = isinstance(proto, onnx.FunctionProto) and proto.domain in ONNX_DOMAINS
        self._operator: str | None = proto.name if is_operator else None
        super().__init__(proto, *arguments, **options)
        # In the order of the nodes: the names that each reads, in its subgraphs too.
        self._reads = [names_read(node) for node in self.nodes_]
        self._weights = self.shared.weights if isinstance(proto, onnx.ModelProto) else {}

    def _load_impl(self, node: onnx.NodeProto, *arguments: Any) -> Any:
        if node.domain == "" and node.op_type in _LEFT_TO_THE_CPU_PROVIDER:
            return self._by_the_cpu_provider
        try:
            found = super()._load_impl(node, *arguments)
        except RuntimeContextError:
            # Not a lack: the evaluator asks again, with the types of the inputs.
            raise
        except RuntimeError:  # NotImplementedError too, which is one.
            return self._by_the_cpu_provider
        return partial(self._made, found)

    def _made(self, found: Callable[..., Any], node: onnx.NodeProto, parameters: Any) -> Any:
        try:
            return found(node, parameters)
        except Exception:  # An implementation refuses what it does not know as it likes.
            return self._by_the_cpu_provider(node, parameters)

    def _by_the_cpu_provider(self, node: onnx.NodeProto, parameters: Any) -> ProviderNode:
        return self.shared.provider_node(node, self.opsets, self._operator)

    def run(
        self,
        output_names: Sequence[str] | None,
        feed_inputs: Mapping[str, Any],
        attributes: dict[str, Any] | None = None,
        *unused: Any,
        **unused_too: Any,
    ) -> list[Any]:
        """Compute the nodes in order; see the module's text for what is kept of their values."""
        wanted = list(output_names or self.output_names)
        values = {**self.rt_inits_, **feed_inputs}
        last_used = _last_used(self.nodes_, self._reads, wanted)
        for index, node in enumerate(self.nodes_):
            for name in self._reads[index]:
                if name not in values:
                    values[name] = self._weight(name)
            outputs = self._computed(index, values, attributes)
            values.update((name, each) for name, each in zip(node.output, outputs, strict=False) if name)
            # Neither may be named any more where their memory is to be let go of.
            del outputs
            for name in last_used.get(index, ()):
                values.pop(name, None)
        return [values[name] if name in values else self._weight(name) for name in wanted]

    def _weight(self, name: str) -> np.ndarray:
        if name not in self._weights:
            raise ConvswapError(f"cannot evaluate the model in float64: nothing produces {name!r}")
        wide: np.ndarray = widened(self._weights[name]())
        return wide

    def _computed(
        self, index: int, values: Mapping[str, Any], attributes: Mapping[str, Any] | None
    ) -> Sequence[Any]:
        node = self._instead.get(index, self.rt_nodes_[index])
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
        except Exception:  # As many kinds as the evaluator has operators.
            self._instead[index] = self.shared.provider_node(self.nodes_[index], self.opsets, self._operator)
            return self._instead[index].run(values, attributes)


def _evaluator_class(shared: _Shared) -> type[_Float64Evaluator]:
    """Return an evaluator of one model, of whose subgraphs it makes others by its class alone."""

    class Evaluator(_Float64Evaluator):
        pass

    Evaluator.shared = shared
    return Evaluator


def _last_used(
    nodes: Sequence[onnx.NodeProto], reads: Sequence[Sequence[str]], wanted: Sequence[str]
) -> dict[int, list[str]]:
    """Return, by the index of a node, the names of the values that nothing needs after it."""
    last: dict[str, int] = {}
    for index, (node, names) in enumerate(zip(nodes, reads, strict=True)):
        last.update(dict.fromkeys((*names, *node.output), index))
    found: dict[int, list[str]] = {}
    for name, index in last.items():
        if name and name not in wanted:
            found.setdefault(index, []).append(name)
    return found
