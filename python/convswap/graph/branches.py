"""The branches of If nodes: as models of their own, and their inner values as outputs of the whole model.

A session gives no value of a subgraph. Here each value that is wanted becomes one more output of its branch
and of the If, up to the main graph; the other branch, which has no such value, gives an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from convswap.graph.constants import PASSING_OPS
from convswap.graph.domain import ONNX_DOMAINS
from convswap.graph.names import UniqueNames, names_in
from convswap.graph.serialisation import copy_of

# The way to a branch from the main graph, which is (): for each If its first output, and the attribute.
Path = tuple[tuple[str, str], ...]

_ATTRIBUTES = ("then_branch", "else_branch")


@dataclass(frozen=True)
class Inner:
    """A value of a graph, by the way to that graph and its name there."""

    path: Path
    name: str


def branch_paths(graph: onnx.GraphProto, path: Path = ()) -> Iterator[Path]:
    """Yield the way to every branch of an If in `graph`, also of one in a branch; not of those in loops."""
    for node in graph.node:
        for name, branch in _branches(node).items():
            inside = (*path, (str(node.output[0]), name))
            yield inside
            yield from branch_paths(branch, inside)


def graphs_to(graph: onnx.GraphProto, path: Path) -> list[onnx.GraphProto]:
    """Return `graph` and the branches on the way of `path`, the last of which is the one it leads to.

    Raises KeyError where there is no such branch.
    """
    graphs = [graph]
    for output, attribute in path:
        owners = {str(node.output[0]): node for node in graphs[-1].node if _branches(node)}
        graphs.append(_branches(owners[output])[attribute])
    return graphs


def branch_model(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return the branch at `path` as a main graph, with the constants around it that it reads.

    It has neither inputs nor outputs: it is there to be looked at.
    """
    *around, branch = graphs_to(model.graph, path)
    # Weights may come by way of a node that passes them on.
    passing = [node for graph in around for node in graph.node if _passes_constants(node)]
    nodes = [*passing, *branch.node]
    read = {name for node in nodes for name in node.input}
    tensors = [tensor for graph in (*around, branch) for tensor in graph.initializer if tensor.name in read]
    lifted = helper.make_model(
        helper.make_graph(nodes, "branch", [], [], tensors), opset_imports=list(model.opset_import)
    )
    lifted.ir_version = model.ir_version
    return lifted


def home_of(graph: onnx.GraphProto, path: Path, name: str) -> Inner | None:
    """Return where what is called `name` in the branch at `path` is computed; None for a model's input."""
    graphs = graphs_to(graph, path)
    for depth in reversed(range(len(graphs))):
        if any(name in node.output for node in graphs[depth].node):
            return Inner(path[:depth], name)
    return None


def with_inner_values(
    model: onnx.ModelProto, wanted: Mapping[Inner, int]
) -> tuple[onnx.ModelProto, dict[Inner, str]]:
    """Return a copy of `model` with the `wanted` values among its outputs, and their names there.

    `wanted` has their element types. A value of a branch that is not run has one axis, of no elements.
    """
    copy = copy_of(model)
    names = UniqueNames(names_in(copy.graph))
    found = {}
    for value in _brought_out(copy.graph, (), wanted, names):
        name = names.take(f"{value.name}/out")
        copy.graph.node.append(helper.make_node("Identity", [value.name], [name], name=name))
        copy.graph.output.append(_declared(name, value.element_type))
        found[value.home] = name
    return copy, found


@dataclass(frozen=True)
class _BroughtOut:
    """A wanted value, and its name in a graph on the way out."""

    home: Inner
    name: str
    element_type: int


def _brought_out(
    graph: onnx.GraphProto, path: Path, wanted: Mapping[Inner, int], names: UniqueNames
) -> list[_BroughtOut]:
    """Return the wanted values of `graph` and of its branches, which become known in `graph`."""
    found = [_BroughtOut(home, home.name, kind) for home, kind in wanted.items() if home.path == path]
    for node in graph.node:
        branches = _branches(node)
        first = str(node.output[0]) if branches else ""
        for name, branch in branches.items():
            for value in _brought_out(branch, (*path, (first, name)), wanted, names):
                found.append(_through(node, name, value, names))
    return found


def _through(node: onnx.NodeProto, branch: str, value: _BroughtOut, names: UniqueNames) -> _BroughtOut:
    """Make a value of one branch of the If `node` an output of it."""
    for name, graph in _branches(node).items():
        inner = names.take(f"{value.name}/{name}")
        if name == branch:
            # A name of its own: the value may be an output of the branch already.
            graph.node.append(helper.make_node("Identity", [value.name], [inner], name=inner))
        else:
            empty = helper.make_tensor(inner, value.element_type, [0], [])
            graph.node.append(helper.make_node("Constant", [], [inner], name=inner, value=empty))
        graph.output.append(_declared(inner, value.element_type))
    outer = names.take(f"{value.name}/out")
    node.output.append(outer)
    return _BroughtOut(value.home, outer, value.element_type)


def _declared(name: str, element_type: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, None)


def _branches(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    if node.domain not in ONNX_DOMAINS or node.op_type != "If":
        return {}
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.name in _ATTRIBUTES}


def _passes_constants(node: onnx.NodeProto) -> bool:
    return node.domain in ONNX_DOMAINS and (("", node.op_type) in PASSING_OPS or node.op_type == "Constant")
