"""Nodes and values of a model, and their names: unique names, names for unnamed nodes, name patterns.

ONNX Runtime requires unique node names within a graph. Different graphs, such as two branches of an If, may
have nodes of the same name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError
from convswap.graph.serialisation import graphs_of_proto


class UniqueNames:
    """A set of used names, and a generator of names that are not in it."""

    def __init__(self, used: Iterable[str | None]) -> None:
        self._used = set(used)
        # The first number to try for a base name, so that n requests for the same base do not take n² steps.
        self._next_numbers: Counter[str] = Counter()

    @classmethod
    def of_values(cls, graphs: Iterable[ir.Graph]) -> UniqueNames:
        """Return a set that contains the names of all values in `graphs`."""
        return cls(value.name for graph in graphs for value in values_of(graph))

    def __contains__(self, name: str | None) -> bool:
        return name in self._used

    def make_unique(self, base: str) -> str:
        """Return `base`, with a number from 2 on if `base` is used already, and mark the result as used."""
        name = base
        number = max(2, self._next_numbers[base])
        while name in self._used:
            name = f"{base}_{number}"
            number += 1
        self._next_numbers[base] = number
        self._used.add(name)
        return name


def node_names(model: ir.Model) -> dict[ir.Node, str]:
    """Return a unique name for every node of `model`; rename nodes that share a name, in place.

    The first node with a name keeps it, and nodes of the main graph come first; the others get a number. A
    node without a name stays unnamed in the model; its returned name is made from its op and its output.
    """
    nodes = sorted(
        ir.traversal.RecursiveGraphIterator(model.graph), key=lambda node: node.graph is not model.graph
    )
    used = UniqueNames(node.name for node in nodes)
    names: dict[ir.Node, str] = {}
    seen = set()
    for node in nodes:
        if node.name and node.name in seen:
            node.name = used.make_unique(node.name)
        names[node] = node.name or used.make_unique(name_from_output(node))
        seen.add(node.name)
    return names


def name_from_output(node: ir.Node) -> str:
    """Return a name for an unnamed node, made from its op and its first output."""
    output = node.outputs[0].name if node.outputs else ""
    return f"{node.op_type}_{output}"


def name_pattern(expression: str | None, names: str, example: str) -> re.Pattern[str]:
    """Return the compiled expression; None matches every name.

    Raises:
        ConvswapError: `expression` is not a regular expression. In the message, `names` says what an
            expression has to match and `example` is one.
    """
    if not isinstance(expression, str | None):
        raise ConvswapError(
            f"{expression!r} is not a regular expression; expected text that matches {names}, such as "
            f"{example!r}"
        )
    try:
        return re.compile(expression or "")
    except re.error as error:
        raise ConvswapError(
            f"{expression!r} is not a regular expression: {error}; expected one that matches {names}, "
            f"such as {example!r}"
        ) from error


def nodes_of(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph of `model` and of its functions, at any depth."""
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for body in bodies:
        yield from ir.traversal.RecursiveGraphIterator(body)


def values_of(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that `graph` itself defines: inputs, initializers and node outputs."""
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def names_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of all values and nodes of `graph` and of the graphs in it."""
    for inner in graphs_of_proto(graph):
        yield from (value.name for value in (*inner.input, *inner.output, *inner.value_info))
        yield from (tensor.name for tensor in inner.initializer)
        for node in inner.node:
            yield from (node.name, *node.input, *node.output)
