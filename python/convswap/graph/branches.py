"""Branches of If nodes: extracted as models, and their inner values exposed as outputs of the whole model.

A session cannot return a value of a subgraph. To expose such a value, it becomes another output of its branch
and of the If node, up to the main graph. The other branch, which has no such value, outputs an empty tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper

from convswap.graph.constants import PASS_THROUGH_OPS
from convswap.graph.domain import ONNX_DOMAINS
from convswap.graph.names import UniqueNames, names_in
from convswap.graph.serialisation import copy_of

# Path from the main graph, which is (), to a branch: for each If, its first output and the branch's
# attribute.
Path = tuple[tuple[str, str], ...]

_ATTRIBUTES = ("then_branch", "else_branch")


@dataclass(frozen=True)
class SubgraphValue:
    """A value of a graph: the path to the graph, and the value's name in the graph."""

    path: Path
    name: str


def branch_paths(graph: onnx.GraphProto, path: Path = ()) -> Iterator[Path]:
    """Yield the path to every branch of an If in `graph`, also to nested branches, but not inside loops."""
    for node in graph.node:
        for name, branch in _branches(node).items():
            branch_path = (*path, (str(node.output[0]), name))
            yield branch_path
            yield from branch_paths(branch, branch_path)


def graphs_along(graph: onnx.GraphProto, path: Path) -> list[onnx.GraphProto]:
    """Return `graph` and the branches along `path`, the innermost branch last.

    Raises KeyError if there is no such branch.
    """
    graphs = [graph]
    for output, attribute in path:
        owners = {str(node.output[0]): node for node in graphs[-1].node if _branches(node)}
        graphs.append(_branches(owners[output])[attribute])
    return graphs


def branch_model(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return the branch at `path` as a main graph, with the constants of the outer graphs that it reads.

    The model has neither inputs nor outputs: it is meant for inspection, not for running.
    """
    *outer_graphs, branch = graphs_along(model.graph, path)
    # Weights may reach the branch through nodes that pass constants through.
    passing = [node for graph in outer_graphs for node in graph.node if _passes_constants(node)]
    nodes = [*passing, *branch.node]
    read = {name for node in nodes for name in node.input}
    tensors = [
        tensor for graph in (*outer_graphs, branch) for tensor in graph.initializer if tensor.name in read
    ]
    lifted = helper.make_model(
        helper.make_graph(nodes, "branch", [], [], tensors), opset_imports=list(model.opset_import)
    )
    lifted.ir_version = model.ir_version
    return lifted


def locate_value(graph: onnx.GraphProto, path: Path, name: str) -> SubgraphValue | None:
    """Return where the value that the branch at `path` calls `name` is computed; None for a model's input."""
    graphs = graphs_along(graph, path)
    for depth in reversed(range(len(graphs))):
        if any(name in node.output for node in graphs[depth].node):
            return SubgraphValue(path[:depth], name)
    return None


def with_values_as_outputs(
    model: onnx.ModelProto, requested: Mapping[SubgraphValue, int]
) -> tuple[onnx.ModelProto, dict[SubgraphValue, str]]:
    """Return a copy of `model` with the `requested` values as further outputs, and the outputs' names.

    `requested` maps the values to their element types. The output for a value of a branch that does not run
    has shape (0,).
    """
    copy = copy_of(model)
    names = UniqueNames(names_in(copy.graph))
    exposed = {}
    for value in _expose_values(copy.graph, (), requested, names):
        name = names.make_unique(f"{value.name}/out")
        copy.graph.node.append(helper.make_node("Identity", [value.name], [name], name=name))
        copy.graph.output.append(_value_info(name, value.element_type))
        exposed[value.location] = name
    return copy, exposed


@dataclass(frozen=True)
class _ExposedValue:
    """A requested value, and the name of its copy in a graph along its path."""

    location: SubgraphValue
    name: str
    element_type: int


def _expose_values(
    graph: onnx.GraphProto, path: Path, requested: Mapping[SubgraphValue, int], names: UniqueNames
) -> list[_ExposedValue]:
    """Make the requested values of the branches of `graph` values of `graph`; return these and its own."""
    exposed = [
        _ExposedValue(location, location.name, element_type)
        for location, element_type in requested.items()
        if location.path == path
    ]
    for node in graph.node:
        branches = _branches(node)
        first = str(node.output[0]) if branches else ""
        for name, branch in branches.items():
            for value in _expose_values(branch, (*path, (first, name)), requested, names):
                exposed.append(_expose_through(node, name, value, names))
    return exposed


def _expose_through(
    node: onnx.NodeProto, branch: str, value: _ExposedValue, names: UniqueNames
) -> _ExposedValue:
    """Make a value of one branch of the If `node` an output of `node`."""
    for name, graph in _branches(node).items():
        inner = names.make_unique(f"{value.name}/{name}")
        if name == branch:
            # The copy has a new name, because the value may already be an output of the branch.
            graph.node.append(helper.make_node("Identity", [value.name], [inner], name=inner))
        else:
            empty = helper.make_tensor(inner, value.element_type, [0], [])
            graph.node.append(helper.make_node("Constant", [], [inner], name=inner, value=empty))
        graph.output.append(_value_info(inner, value.element_type))
    outer = names.make_unique(f"{value.name}/out")
    node.output.append(outer)
    return _ExposedValue(value.location, outer, value.element_type)


def _value_info(name: str, element_type: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element_type, None)


def _branches(node: onnx.NodeProto) -> dict[str, onnx.GraphProto]:
    if node.domain not in ONNX_DOMAINS or node.op_type != "If":
        return {}
    return {attribute.name: attribute.g for attribute in node.attribute if attribute.name in _ATTRIBUTES}


def _passes_constants(node: onnx.NodeProto) -> bool:
    return node.domain in ONNX_DOMAINS and (
        ("", node.op_type) in PASS_THROUGH_OPS or node.op_type == "Constant"
    )
