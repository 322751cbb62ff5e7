"""A node of the float64 reference that ONNX Runtime's CPU provider runs in float32, as a one-node model."""

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
    TO_FLOAT16,
    TO_FLOAT32,
    UNCHANGED_TYPES,
    Types,
    retyped_function,
    retyped_node,
)
from convswap.runtime.library import register_op_libraries

# The newest IR that every supported ONNX Runtime reads.
_IR_VERSION = 9
# Types in the order of attempts. Few operators have a float64 kernel in the CPU provider.
_TYPES: tuple[Types, ...] = (TO_FLOAT32, UNCHANGED_TYPES, TO_FLOAT16)


class ProviderNode:
    """Runs `node`, of a model in float64, with its subgraphs as a separate model.

    `opsets` are those of the node's graph. `functions` are the model's functions, which the node or its
    subgraphs may call. `record_float32` is called with the node whenever it was not computed in float64.
    """

    # The evaluator passes attributes of a function to nodes that set this. `run` gets them as an argument
    # instead.
    has_linked_attribute = False

    def __init__(
        self,
        node: onnx.NodeProto,
        opsets: Mapping[str, int],
        functions: Sequence[onnx.FunctionProto],
        record_float32: Callable[[onnx.NodeProto], None],
    ) -> None:
        self._node, self._opsets, self._functions, self._record_float32 = (
            node,
            opsets,
            functions,
            record_float32,
        )
        self._names = names_read(node)
        # The latest session, the signature of its inputs and its types. Only one is cached, since the shapes
        # may change in every iteration of a loop.
        self._session: tuple[object, onnxruntime.InferenceSession, Types] | None = None

    def run(self, values: Mapping[str, Any], attributes: Mapping[str, Any] | None) -> list[Any]:
        """Return the outputs in float64. The node reads its inputs from `values`.

        `attributes` are those of the function call, if the node is in a function.

        Raises:
            ConvswapError: the CPU provider cannot run the node in any floating-point type.
        """
        feeds = {name: values[name] for name in self._names if values[name] is not None}
        key = tuple((name, _signature(value)) for name, value in feeds.items())
        reasons = []
        # Attributes of a function call are written into the model, so its session cannot be reused.
        cached = self._session if self._session and self._session[0] == key and not attributes else None
        for types in _TYPES if cached is None else [cached[2]]:
            typed_feeds = {name: _convert(value, types) for name, value in feeds.items()}
            constants = {
                name: typed_feeds.pop(name) for name, value in feeds.items() if _is_empty_vector(value)
            }
            try:
                if cached is None:
                    model = self._model(typed_feeds, constants, types, attributes)
                    session = onnxruntime.InferenceSession(model, _quiet_options(), ["CPUExecutionProvider"])
                    outputs = session.run(None, typed_feeds)
                    self._session = None if attributes else (key, session, types)
                else:
                    outputs = cached[1].run(None, typed_feeds)
            except Exception as error:  # ONNX Runtime's exceptions have no other common base class.
                reasons.append(error)
                continue
            if types is not UNCHANGED_TYPES:
                self._record_float32(self._node)
            computed = iter(outputs)
            return [to_float64(next(computed)) if name else None for name in self._node.output]
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
        single_node = retyped_node(self._node, types)
        _bind_attributes(single_node, attributes or {})
        outputs = [onnx.ValueInfoProto(name=name) for name in single_node.output if name]
        inputs = [_value_info(name, value) for name, value in feeds.items()]
        initializers = [
            TensorProto(name=name, data_type=_element_type(values), dims=values.shape)
            for name, values in constants.items()
        ]
        imports = dict(self._opsets)
        imports.setdefault(single_node.domain, 1)
        for function in self._functions:
            imports.setdefault(function.domain, 1)
        model = helper.make_model(
            helper.make_graph([single_node], "one_node", inputs, outputs, initializers),
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in imports.items()],
            functions=[retyped_function(function, types) for function in self._functions],
        )
        model.ir_version = _IR_VERSION
        serialized: bytes = model.SerializeToString()
        return serialized


def names_read(node: onnx.NodeProto) -> list[str]:
    """Return the names of the values that `node` reads, also in its subgraphs, without duplicates."""
    inner = (name for graph in subgraphs(node) for name in _outer_names(graph))
    return list(dict.fromkeys(name for name in (*node.input, *inner) if name))


def _outer_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names of the outer values that `graph` or its subgraphs read."""
    inner_names = {value.name for value in graph.input}
    inner_names.update(tensor.name for tensor in graph.initializer)
    inner_names.update(sparse.values.name for sparse in graph.sparse_initializer)
    outer_names = []
    for node in graph.node:
        outer_names += [name for name in names_read(node) if name not in inner_names]
        inner_names.update(node.output)
    return [*outer_names, *(value.name for value in graph.output if value.name not in inner_names)]


def to_float64(value: Any) -> Any:
    """Return `value`, an array, a sequence or a map, with floating-point numbers in float64."""
    if isinstance(value, list):
        return [to_float64(item) for item in value]
    if isinstance(value, dict):
        return {key: to_float64(item) for key, item in value.items()}
    is_array = isinstance(value, (np.ndarray, np.generic))
    if is_array and (value.dtype.kind == "f" or value.dtype.name == "bfloat16"):
        return value.astype(np.float64)
    return value


def _quiet_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return register_op_libraries(options)


def _convert(value: Any, types: Types) -> Any:
    if isinstance(value, list):
        return [_convert(item, types) for item in value]
    values = np.asarray(value)
    if values.dtype != np.float64 or not types:
        return values
    return values.astype(helper.tensor_dtype_to_np_dtype(types[int(TensorProto.DOUBLE)]))


def _is_empty_vector(value: Any) -> bool:
    """Return whether `value` is a tensor of shape (0,).

    Such a tensor is passed as a constant. As scales of a Resize with sizes, ONNX Runtime takes an empty
    constant for an omitted input, but rejects an empty input.
    """
    return not isinstance(value, list) and np.shape(value) == (0,)


def _signature(value: Any) -> object:
    if isinstance(value, list):
        return ("sequence", _signature(value[0]) if value else None)
    values = np.asarray(value)
    return (values.dtype.str, values.shape)


def _value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    if isinstance(value, list):
        element_type = _element_type(value[0]) if value else int(TensorProto.FLOAT)
        return helper.make_tensor_sequence_value_info(name, element_type, None)
    # The shape is declared because ONNX Runtime needs some extents: a Resize needs the number of its sizes.
    return helper.make_tensor_value_info(name, _element_type(value), np.shape(value))


def _element_type(values: np.ndarray) -> int:
    if values.dtype.kind in "OSU":
        return int(TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(values.dtype))


def _bind_attributes(node: onnx.NodeProto, attributes: Mapping[str, Any]) -> None:
    """Replace references to function attributes in `node` and in its subgraphs by their values."""
    for attribute in list(node.attribute):
        if attribute.ref_attr_name:
            node.attribute.remove(attribute)
            value = attributes.get(attribute.ref_attr_name)
            if value is not None:
                node.attribute.append(helper.make_attribute(attribute.name, _to_onnx_value(value)))
    for graph in subgraphs(node):
        for inner in graph.node:
            _bind_attributes(inner, attributes)


def _to_onnx_value(value: Any) -> Any:
    """Convert the value of an attribute from NumPy's types to types that `onnx.helper` accepts."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return onnx.numpy_helper.from_array(value)
    return [_to_onnx_value(item) for item in value] if isinstance(value, (list, tuple)) else value
