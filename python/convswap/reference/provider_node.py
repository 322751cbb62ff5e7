"""A node of the float64 reference that ONNX Runtime's CPU provider computes, alone and in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from convswap.errors import ConvswapError
from convswap.graph.domain import op_name
from convswap.graph.serialisation import subgraphs
from convswap.reference.rewriting import (
    AS_IT_IS,
    IN_FLOAT16,
    IN_FLOAT32,
    Types,
    retyped_function,
    retyped_node,
)
from convswap.runtime.library import register_op_libraries

# The newest IR that every supported ONNX Runtime reads.
_IR_VERSION = 9
# In the order in which they are tried. Few operators have a kernel for float64 there.
_TYPES: tuple[Types, ...] = (IN_FLOAT32, AS_IT_IS, IN_FLOAT16)


class ProviderNode:
    """Runs `node`, of a model in float64, as a model of its own, with all that is in its subgraphs.

    `opsets` are those of its graph, and `functions` those of the model, which it or its subgraphs may call.
    `note` is called with the node whenever it was not computed in float64.
    """

    # The evaluator asks its nodes whether they take attributes of a function. This one finds out by itself.
    has_linked_attribute = False

    def __init__(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        functions: Sequence[onnx.FunctionProto],
        note: Callable[[onnx.NodeProto], None],
    ) -> None:
        self._node, self._opsets, self._functions, self._note = node, opsets, functions, note
        self._names = names_read(node)
        # The newest one, and what it is for: a loop may bring another shape each time.
        self._session: tuple[object, onnxruntime.InferenceSession, Types] | None = None

    def run(self, values: Mapping[str, Any], attributes: Mapping[str, Any] | None) -> list[Any]:
        """Return the outputs, in float64, for those of `values` that the node reads.

        `attributes` are those of the call of the function that the node stands in.

        Raises:
            ConvswapError: the CPU provider cannot run the node in any floating-point type.
        """
        feeds = {name: values[name] for name in self._names if values[name] is not None}
        key = tuple((name, _kind(held)) for name, held in feeds.items())
        reasons = []
        # What a function's call says of the node is written into the model.
        found = self._session if self._session and self._session[0] == key and not attributes else None
        for types in _TYPES if found is None else [found[2]]:
            given = {name: _retyped(held, types) for name, held in feeds.items()}
            constants = {name: given.pop(name) for name, held in feeds.items() if _is_empty_list(held)}
            try:
                if found is None:
                    model = self._model(given, constants, types, attributes)
                    session = onnxruntime.InferenceSession(model, _quiet(), ["CPUExecutionProvider"])
                    outputs = session.run(None, given)
                    self._session = None if attributes else (key, session, types)
                else:
                    outputs = found[1].run(None, given)
            except Exception as error:  # ONNX Runtime's exceptions have no common class but this one.
                reasons.append(error)
                continue
            if types is not AS_IT_IS:
                self._note(self._node)
            computed = iter(outputs)
            return [widened(next(computed)) if name else None for name in self._node.output]
        lines = str(reasons[0]).strip().splitlines()
        raise ConvswapError(
            f"cannot evaluate {op_name(self._node)} node {self._node.name!r} in float64, nor by the CPU "
            f"provider: {lines[0] if lines else type(reasons[0]).__name__}; check the model with onnx.checker"
        ) from reasons[0]

    def _model(
        self,
        feeds: Mapping[str, Any],
        constants: Mapping[str, np.ndarray],
        types: Types,
        attributes: Mapping[str, Any] | None,
    ) -> bytes:
        alone = retyped_node(self._node, types)
        _link(alone, attributes or {})
        outputs = [onnx.ValueInfoProto(name=name) for name in alone.output if name]
        inputs = [_value_info(name, held) for name, held in feeds.items()]
        initializers = [
            TensorProto(name=name, data_type=_element_type(values), dims=values.shape)
            for name, values in constants.items()
        ]
        imports = dict(self._opsets)
        imports.setdefault(alone.domain, 1)
        for function in self._functions:
            imports.setdefault(function.domain, 1)
        model = helper.make_model(
            helper.make_graph([alone], "one_node", inputs, outputs, initializers),
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in imports.items()],
            functions=[retyped_function(function, types) for function in self._functions],
        )
        model.ir_version = _IR_VERSION
        serialized: bytes = model.SerializeToString()
        return serialized


def names_read(node: onnx.NodeProto) -> list[str]:
    """Return the names of the values that `node` reads, in its subgraphs too, each once."""
    inner = (name for graph in subgraphs(node) for name in _free_names(graph))
    return list(dict.fromkeys(name for name in (*node.input, *inner) if name))


def _free_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the values around `graph` that it or its own subgraphs read."""
    own = {value.name for value in graph.input}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(sparse.values.name for sparse in graph.sparse_initializer)
    found = []
    for node in graph.node:
        found += [name for name in names_read(node) if name not in own]
        own.update(node.output)
    return [*found, *(value.name for value in graph.output if value.name not in own)]


def widened(held: Any) -> Any:
    """Return `held`, an array or a sequence or map of them, with floating-point numbers in float64."""
    if isinstance(held, list):
        return [widened(item) for item in held]
    if isinstance(held, dict):
        return {key: widened(item) for key, item in held.items()}
    is_array = isinstance(held, (np.ndarray, np.generic))
    if is_array and (held.dtype.kind == "f" or held.dtype.name == "bfloat16"):
        return held.astype(np.float64)
    return held


def _quiet() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return register_op_libraries(options)


def _retyped(held: Any, types: Types) -> Any:
    if isinstance(held, list):
        return [_retyped(item, types) for item in held]
    values = np.asarray(held)
    if values.dtype != np.float64 or not types:
        return values
    return values.astype(helper.tensor_dtype_to_np_dtype(types[int(TensorProto.DOUBLE)]))


def _is_empty_list(held: Any) -> bool:
    """Return whether `held` is a tensor of one axis and no element.

    As scales of a Resize, one is taken for left out where it is a constant, and refused beside sizes where
    it is fed.
    """
    return not isinstance(held, list) and np.shape(held) == (0,)


def _kind(held: Any) -> object:
    if isinstance(held, list):
        return ("sequence", _kind(held[0]) if held else None)
    values = np.asarray(held)
    return (values.dtype.str, values.shape)


def _value_info(name: str, held: Any) -> onnx.ValueInfoProto:
    if isinstance(held, list):
        kind = _element_type(held[0]) if held else int(TensorProto.FLOAT)
        return helper.make_tensor_sequence_value_info(name, kind, None)
    # With its extents, of which ONNX Runtime wants some: as many sizes as a Resize has axes.
    return helper.make_tensor_value_info(name, _element_type(held), np.shape(held))


def _element_type(values: np.ndarray) -> int:
    if values.dtype.kind in "OSU":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(values.dtype))


def _link(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
    """Give the attributes of `node`, and of what is in it, that refer to those of a function their values."""
    for attribute in list(node.attribute):
        if attribute.ref_attr_name:
            node.attribute.remove(attribute)
            value = attributes.get(attribute.ref_attr_name)
            if value is not None:
                node.attribute.append(helper.make_attribute(attribute.name, _plain(value)))
    for graph in subgraphs(node):
        for inner in graph.node:
            _link(inner, attributes)


def _plain(value: Any) -> Any:
    """Return the value of an attribute as `onnx.helper` takes it; the evaluator has NumPy's types."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return onnx.numpy_helper.from_array(value)
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
