"""The nodes and values of a model, and their names: given once, telling nodes apart, chosen by patterns.

ONNX Runtime wants the names of one graph to differ. Two branches of an If, or a branch and the graph around
it, may hold nodes of one name.
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
    """Gives every name only once."""

    def __init__(self, taken: Iterable[str | None]) -> None:
        self._taken = set(taken)
        # Where the search for a free number ended, so that n wishes for one name do not take n² steps.
        self._numbers: Counter[str] = Counter()

    @classmethod
    def of_values(cls, graphs: Iterable[ir.Graph]) -> UniqueNames:
        """Return names of which those of the values in `graphs` are taken."""
        return cls(value.name for graph in graphs for value in values_of(graph))

    def __contains__(self, name: str | None) -> bool:
        return name in self._taken

    def take(self, wanted: str) -> str:
        """Return `wanted`, with a number from 2 on where it is taken, and take it."""
        name = wanted
        number = max(2, self._numbers[wanted])
        while name in self._taken:
            name = f"{wanted}_{number}"
            number += 1
        self._numbers[wanted] = number
        self._taken.add(name)
        return name


def node_names(model: ir.Model) -> dict[ir.Node, str]:
    """Return a different name for every node of `model`, and rename the nodes that share one, in place.

    The first node of a name keeps it, in the main graph before subgraphs; the others get a number. A node
    without a name stays so; its name here is made from its op and its output.
    """
    nodes = sorted(
        ir.traversal.RecursiveGraphIterator(model.graph), key=lambda node: node.graph is not model.graph
    )
    taken = UniqueNames(node.name for node in nodes)
    names: dict[ir.Node, str] = {}
    seen = set()
    for node in nodes:
        if node.name and node.name in seen:
            node.name = taken.take(node.name)
        names[node] = node.name or taken.take(name_from_output(node))
        seen.add(node.name)
    return names


def name_from_output(node: ir.Node) -> str:
    """Return what to call a node without a name, by its op and its first output."""
    output = node.outputs[0].name if node.outputs else ""
    return f"{node.op_type}_{output}"


def name_pattern(expression: str | None, names: str, example: str) -> re.Pattern[str]:
    """Return the compiled expression; None matches every name.

    Raises:
        ConvswapError: it is not a regular expression. `names` and `example` say what one would match.
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
