"""Calls of the functions of an ONNX model: the graphs that they are given, and what inlining makes of them.

Calls inside calls multiply.
"""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

# Beyond this, inlining and shape inference, which both walk every copy, take many seconds: a file of a few
# kilobytes, in which each function calls the next one twice, can ask for any number of nodes.
MOST_COPIED_NODES = 20_000

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def give_references_graphs(model: ir.Model) -> None:
    """Let each attribute in functions of `model` that refers to a graph of the call have one without nodes.

    As a branch of an If may do. onnx-ir walks the graphs of nodes whether they are there or not; it still
    writes the attribute as a reference.
    """
    for function in model.functions.values():
        _give_references_graphs(function)


def _give_references_graphs(nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        for name, attribute in list(node.attributes.items()):
            if attribute.type not in _GRAPHS:
                continue
            if attribute.is_ref():
                alone = attribute.type == ir.AttributeType.GRAPH
                value = ir.Graph([], [], nodes=[]) if alone else ()
                node.attributes[name] = ir.Attr(name, attribute.type, value, attribute.ref_attr_name)
            else:
                for graph in _graphs_of(attribute):
                    _give_references_graphs(graph)


def takes_graph(function: ir.Function, calls: Iterable[ir.Node]) -> bool:
    """Return whether one of `calls` gives `function` a graph as an attribute, or it has one by default."""
    attributes = [
        *function.attributes.values(),
        *(each for call in calls for each in call.attributes.values()),
    ]
    return any(attribute.type in _GRAPHS for attribute in attributes)


def calls_of_functions(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of `model` that call one of its functions, at any depth."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        for node in ir.traversal.RecursiveGraphIterator(body):
            if node.op_identifier() in model.functions:
                yield node


def nodes_given_to(call: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes of the graphs that `call` gives its function as attributes, at any depth."""
    for attribute in call.attributes.values():
        if attribute.type in _GRAPHS and not attribute.is_ref():
            for graph in _graphs_of(attribute):
                yield from ir.traversal.RecursiveGraphIterator(graph)


def _graphs_of(attribute: ir.Attr) -> Iterable[ir.Graph]:
    return [attribute.as_graph()] if attribute.type == ir.AttributeType.GRAPH else attribute.as_graphs()


def count_copies(
    model: ir.Model, functions: Collection[ir.OperatorIdentifier]
) -> dict[ir.OperatorIdentifier, int]:
    """Return how often the body of each of `functions` is copied where all calls of them are inlined.

    Raises:
        ValueError: a function calls itself, directly or through others, or the copies have more than
            MOST_COPIED_NODES nodes together.
    """
    calls = {identifier: _calls_in(model.functions[identifier], functions) for identifier in functions}
    try:
        callees_first = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        cycle = " -> ".join(f"{domain}::{name}" for domain, name, _ in error.args[1])
        raise ValueError(f"Cyclic dependency between functions: {cycle}") from None
    copies = _calls_in(model.graph, functions)
    for identifier, function in model.functions.items():
        if identifier not in calls:
            copies += _calls_in(function, functions)
    nodes = 0
    for identifier in reversed(callees_first):
        nodes += copies[identifier] * sum(1 for _ in model.functions[identifier].all_nodes())
        if nodes > MOST_COPIED_NODES:
            raise ValueError(f"the calls of functions in functions give more than {MOST_COPIED_NODES} nodes")
        for callee, times in calls[identifier].items():
            # A function that nothing calls has its own calls inlined, too.
            copies[callee] += times * max(1, copies[identifier])
    return dict(copies)


def _calls_in(
    body: ir.Graph | ir.Function, functions: Collection[ir.OperatorIdentifier]
) -> Counter[ir.OperatorIdentifier]:
    nodes = ir.traversal.RecursiveGraphIterator(body)
    return Counter(node.op_identifier() for node in nodes if node.op_identifier() in functions)
