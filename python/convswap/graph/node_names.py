"""Names that tell the nodes of a model apart, in subgraphs too.

ONNX Runtime wants the names of one graph to differ. Two branches of an If, or a branch and the graph around
it, may hold nodes of one name.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from convswap.graph.model_file import model_from_proto
from convswap.graph.serialisation import to_proto
from convswap.graph.unique_names import UniqueNames


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


def with_node_names(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `proto` whose nodes have the names that `node_names` gives; not those of functions."""
    model = model_from_proto(proto)
    for node, name in node_names(model).items():
        node.name = name
    return to_proto(model)


def name_from_output(node: ir.Node) -> str:
    """Return what to call a node without a name, by its op and its first output."""
    output = node.outputs[0].name if node.outputs else ""
    return f"{node.op_type}_{output}"
