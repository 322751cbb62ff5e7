"""The model as the evaluator takes it: other floating-point types, attributes written into functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from convswap.graph.serialisation import copy_of, subgraphs

Types = Mapping[int, int]

# Of float32, float16 and bfloat16, a float64; and back, for what can only be computed so.
WIDER: Types = {
    int(kind): int(TensorProto.DOUBLE)
    for kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
}
IN_FLOAT32: Types = {int(TensorProto.DOUBLE): int(TensorProto.FLOAT)}
IN_FLOAT16: Types = {int(TensorProto.DOUBLE): int(TensorProto.FLOAT16)}
AS_IT_IS: Types = {}
# Attributes that hold an element type and decide that of the result.
_TYPE_ATTRIBUTES = {"to", "dtype", "output_dtype"}

_Attributes = Mapping[str, onnx.AttributeProto]


def copy_without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` without the initializers of its main graph.

    So a model of gigabytes is not there twice.
    """
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
    """Change the floating-point types of `model`, of its subgraphs and functions too."""
    for opset in model.opset_import:
        if opset.domain == "ai.onnx":
            opset.domain = ""
    _retype_graph(model.graph, types)
    for function in model.functions:
        _retype_function(function, types)


def retyped_node(node: onnx.NodeProto, types: Types) -> onnx.NodeProto:
    """Return a copy of `node`, its subgraphs included, with its floating-point types changed."""
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
    float32 = types.get(int(TensorProto.FLOAT))
    if float32 is None or node.domain:
        return
    kind = helper.tensor_dtype_to_np_dtype(float32)
    if node.op_type == "Constant":
        _retype_constant(node, kind)
    elif node.op_type == "ConstantOfShape" and not node.attribute:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, kind))))


def _retype_constant(node: onnx.NodeProto, kind: np.dtype) -> None:
    """Turn value_float and value_floats, which are float32, into a tensor of another type."""
    for attribute in list(node.attribute):
        if attribute.name in ("value_float", "value_floats") and not attribute.ref_attr_name:
            values = np.array(helper.get_attribute_value(attribute), dtype=kind)
            node.attribute.remove(attribute)
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(values)))


def write_attributes_into_functions(model: onnx.ModelProto) -> None:
    """Give every call in `model` a function without overload and attributes, and drop what nothing calls.

    ONNX's own evaluator knows a function by its domain and name alone, whatever the overload; it leaves out
    the defaults of attributes, fails on an attribute that has no value, and misses a function that is called
    by an earlier one. Of a function that has a name of its own for each set of attributes that it is called
    with, and stands before its callers, none of that matters.
    """
    written = _WrittenFunctions(model.functions)
    for node in model.graph.node:
        written.write(node, {})
    del model.functions[:]
    model.functions.extend(written.functions)


class _WrittenFunctions:
    """Functions as they are called; each stands after those that it calls."""

    def __init__(self, given: Iterable[onnx.FunctionProto]) -> None:
        self.functions: list[onnx.FunctionProto] = []
        self._given = {(each.domain, each.name, each.overload): each for each in given}
        self._given_names = {(domain, name) for domain, name, _ in self._given}
        # By the function that is called, and the attributes that it has then.
        self._names: dict[object, str] = {}
        self._taken: set[tuple[str, str]] = set()

    def write(self, node: onnx.NodeProto, attributes: _Attributes) -> None:
        """Write `attributes`, of the function that `node` stands in, into it; make what it calls."""
        # Before the attributes: a graph among those is the caller's, and was written there.
        for graph in subgraphs(node):
            for inner in graph.node:
                self.write(inner, attributes)
        _write_attributes(node, attributes)
        function = self._given.get((node.domain, node.op_type, node.overload))
        if function is not None:
            node.op_type = self._called(function, node)
            node.overload = ""
            del node.attribute[:]

    def _called(self, function: onnx.FunctionProto, call: onnx.NodeProto) -> str:
        """Return the name of `function` with the attributes of `call`."""
        known = {*function.attribute, *(each.name for each in function.attribute_proto)}
        attributes = {
            each.name: each for each in (*function.attribute_proto, *call.attribute) if each.name in known
        }
        key = (
            function.domain,
            function.name,
            function.overload,
            *sorted((name, each.SerializeToString(deterministic=True)) for name, each in attributes.items()),
        )
        if key not in self._names:
            self._names[key] = self._new_name(function)
            made = copy_of(function)
            made.name, made.overload = self._names[key], ""
            del made.attribute[:], made.attribute_proto[:]
            for node in made.node:
                self.write(node, attributes)
            self.functions.append(made)
        return self._names[key]

    def _new_name(self, function: onnx.FunctionProto) -> str:
        name, number = function.name, 1
        while (function.domain, name) in self._taken or (
            number > 1 and (function.domain, name) in self._given_names
        ):
            number += 1
            name = f"{function.name}_{number}"
        self._taken.add((function.domain, name))
        return name


def _write_attributes(node: onnx.NodeProto, attributes: _Attributes) -> None:
    """Replace what refers to an attribute of a function by its value, or by nothing where it has none."""
    for attribute in list(node.attribute):
        if not attribute.ref_attr_name:
            continue
        name, value = attribute.name, attributes.get(attribute.ref_attr_name)
        node.attribute.remove(attribute)
        if value is not None:
            node.attribute.add().CopyFrom(value)
            node.attribute[-1].name = name
