"""Rewrite a model for the evaluator: change floating-point types, specialise functions for their calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from convswap.graph.serialisation import copy_of, subgraphs

Types = Mapping[int, int]

# Maps of element types: to float64 for the evaluator, and from float64 for nodes that the CPU provider
# computes.
TO_FLOAT64: Types = {
    int(kind): int(TensorProto.DOUBLE)
    for kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
}
TO_FLOAT32: Types = {int(TensorProto.DOUBLE): int(TensorProto.FLOAT)}
TO_FLOAT16: Types = {int(TensorProto.DOUBLE): int(TensorProto.FLOAT16)}
UNCHANGED_TYPES: Types = {}
# Attributes whose value is the element type of the result.
_TYPE_ATTRIBUTES = {"to", "dtype", "output_dtype"}

_Attributes = Mapping[str, onnx.AttributeProto]


def copy_without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` without the initializers of its main graph, which may take gigabytes."""
    copy = onnx.ModelProto()
    copy.ir_version = model.ir_version
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    copy.graph.name = model.graph.name
    copy.graph.input.extend(model.graph.input)
    copy.graph.output.extend(model.graph.output)
    copy.graph.node.extend(model.graph.node)
    copy.graph.sparse_initializer.extend(model.graph.sparse_initializer)
    return copy


def retype(model: onnx.ModelProto, types: Types) -> None:
    """Change the floating-point types of `model` by the map `types`, also in subgraphs and functions."""
    for opset in model.opset_import:
        if opset.domain == "ai.onnx":
            opset.domain = ""
    _retype_graph(model.graph, types)
    for function in model.functions:
        _retype_function(function, types)


def retyped_node(node: onnx.NodeProto, types: Types) -> onnx.NodeProto:
    """Return a copy of `node` with its floating-point types changed, also in its subgraphs."""
    copy = copy_of(node)
    _retype_node(copy, types)
    return copy


def retyped_function(function: onnx.FunctionProto, types: Types) -> onnx.FunctionProto:
    """Return a copy of `function` with its floating-point types changed."""
    copy = copy_of(function)
    _retype_function(copy, types)
    return copy


def _retype_function(function: onnx.FunctionProto, types: Types) -> None:
    del function.value_info[:]
    for node in function.node:
        _retype_node(node, types)


def _retype_graph(graph: onnx.GraphProto, types: Types) -> None:
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        _retype_type(value.type, types)
    for tensor in graph.initializer:
        _retype_tensor(tensor, types)
    for sparse in graph.sparse_initializer:
        _retype_tensor(sparse.values, types)
    for node in graph.node:
        _retype_node(node, types)


def _retype_type(type_proto: onnx.TypeProto, types: Types) -> None:
    kind = type_proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(type_proto, kind)
        tensor.elem_type = types.get(tensor.elem_type, tensor.elem_type)
    elif kind in ("sequence_type", "optional_type"):
        _retype_type(getattr(type_proto, kind).elem_type, types)
    elif kind == "map_type":
        _retype_type(type_proto.map_type.value_type, types)


def _retype_tensor(tensor: TensorProto, types: Types) -> None:
    if tensor.data_type in types:
        kind = helper.tensor_dtype_to_np_dtype(types[tensor.data_type])
        values = numpy_helper.to_array(tensor).astype(kind)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _retype_node(node: onnx.NodeProto, types: Types) -> None:
    if node.domain == "ai.onnx":
        node.domain = ""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR:
            _retype_tensor(attribute.t, types)
        elif attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
            _retype_tensor(attribute.sparse_tensor.values, types)
        elif attribute.type == onnx.AttributeProto.GRAPH:
            _retype_graph(attribute.g, types)
        elif attribute.type == onnx.AttributeProto.TYPE_PROTO:
            _retype_type(attribute.tp, types)
        elif attribute.name in _TYPE_ATTRIBUTES and attribute.i in types:
            attribute.i = types[attribute.i]
    new_type = types.get(int(TensorProto.FLOAT))
    if new_type is None or node.domain:
        return
    kind = helper.tensor_dtype_to_np_dtype(new_type)
    if node.op_type == "Constant":
        _retype_constant(node, kind)
    elif node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, kind))))


def _retype_constant(node: onnx.NodeProto, kind: np.dtype) -> None:
    """Turn the float32 attributes value_float and value_floats into a tensor of the type `kind`."""
    for attribute in list(node.attribute):
        if attribute.name in ("value_float", "value_floats") and not attribute.ref_attr_name:
            values = np.array(helper.get_attribute_value(attribute), dtype=kind)
            node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(values)))


def specialise_functions(model: onnx.ModelProto) -> None:
    """Give every call in `model` a function without overload and attributes; drop functions without calls.

    ONNX's evaluator has four shortcomings: it looks up a function by domain and name and ignores the
    overload; it ignores default values of attributes; it fails on an attribute without a value; and it does
    not find a function that an earlier function calls. None of these matters here: there is a function with a
    unique name for each set of attributes that a call passes, and functions come before their callers.
    """
    specialiser = _SpecialisedFunctions(model.functions)
    for node in model.graph.node:
        specialiser.specialise(node, {})
    del model.functions[:]
    model.functions.extend(specialiser.functions)


class _SpecialisedFunctions:
    """Functions specialised for the attributes of their calls, in topological order: callees first."""

    def __init__(self, originals: Iterable[onnx.FunctionProto]) -> None:
        self.functions: list[onnx.FunctionProto] = []
        self._originals = {
            (function.domain, function.name, function.overload): function for function in originals
        }
        self._original_names = {(domain, name) for domain, name, _ in self._originals}
        # Names of the specialised functions, by the original function and the attributes of the call.
        self._names: dict[object, str] = {}
        self._used_names: set[tuple[str, str]] = set()

    def specialise(self, node: onnx.NodeProto, attributes: _Attributes) -> None:
        """Replace references to `attributes` in `node`, and specialise the function that `node` calls.

        `attributes` are those of the function that contains `node`.
        """
        # Subgraphs come first: a graph among `attributes` is the caller's, and is specialised already.
        for graph in subgraphs(node):
            for inner in graph.node:
                self.specialise(inner, attributes)
        _replace_references(node, attributes)
        function = self._originals.get((node.domain, node.op_type, node.overload))
        if function is not None:
            node.op_type = self._specialised_name(function, node)
            node.overload = ""
            del node.attribute[:]

    def _specialised_name(self, function: onnx.FunctionProto, call: onnx.NodeProto) -> str:
        """Return the name of `function` specialised for the attributes of `call`; create it if needed."""
        declared = {*function.attribute, *(attribute.name for attribute in function.attribute_proto)}
        attributes = {
            attribute.name: attribute
            for attribute in (*function.attribute_proto, *call.attribute)
            if attribute.name in declared
        }
        key = (
            function.domain,
            function.name,
            function.overload,
            *sorted(
                (name, attribute.SerializeToString(deterministic=True))
                for name, attribute in attributes.items()
            ),
        )
        if key not in self._names:
            self._names[key] = self._new_name(function)
            specialised = copy_of(function)
            specialised.name, specialised.overload = self._names[key], ""
            del specialised.attribute[:], specialised.attribute_proto[:]
            for node in specialised.node:
                self.specialise(node, attributes)
            self.functions.append(specialised)
        return self._names[key]

    def _new_name(self, function: onnx.FunctionProto) -> str:
        name, number = function.name, 1
        while (function.domain, name) in self._used_names or (
            number > 1 and (function.domain, name) in self._original_names
        ):
            number += 1
            name = f"{function.name}_{number}"
        self._used_names.add((function.domain, name))
        return name


def _replace_references(node: onnx.NodeProto, attributes: _Attributes) -> None:
    """Replace references to function attributes in `node` by their values; remove those without a value."""
    for attribute in list(node.attribute):
        if not attribute.ref_attr_name:
            continue
        name, value = attribute.name, attributes.get(attribute.ref_attr_name)
        node.attribute.remove(attribute)
        if value is not None:
            node.attribute.add().CopyFrom(value)
            node.attribute[-1].name = name
