"""The functions of a model with the attributes of their calls written into them.

ONNX's own evaluator knows a function by its domain and name alone, whatever the overload; it leaves out the
defaults of attributes, fails on an attribute that has no value, and misses a function that is called by an
earlier one. Of a function that has a name of its own for each set of attributes that it is called with, and
stands before its callers, none of that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from convswap.truth.provider_node import subgraphs_of

_Attributes = Mapping[str, onnx.AttributeProto]


def write_attributes_into_functions(model: onnx.ModelProto) -> None:
    """Give every call in `model` a function without overload and attributes, and drop what nothing calls."""
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
        for graph in subgraphs_of(node):
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
            made = onnx.FunctionProto()
            made.CopyFrom(function)
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
