"""Find the nodes that a fused Conv took the place of, in the model as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from convswap.graph.constants import PASSING_OPS
from convswap.graph.domain import ONNX_DOMAINS, is_ours
from convswap.graph.external_weights import SplitModel, Weights
from convswap.graph.plain_model import onnx_opset, plain_nodes
from convswap.graph.serialisation import copy_of
from convswap.graph.swap import SwapResult, swap

_CONSTANT_OPS = PASSING_OPS | {("", "Constant")}


@dataclass(frozen=True)
class Replaced:
    """Nodes of ONNX, in order, that one fused node stands for, and the constants that they read, by name.

    `weights` has the constants that are large. `beside` has the ops that it computes beside its own
    convolution, without what only passes constants on: those in front, of which the first is a depthwise
    Conv, and those that follow.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, onnx.TensorProto]
    weights: Weights
    beside: tuple[str, ...]


def unfused_model(model: ir.Model, result: SwapResult) -> ir.Model | None:
    """Return the model before the fusing of which `result` tells, None where nothing was fused.

    `model` is what was swapped. Its values have the same names as those of `result` that are still there: it
    is `model` itself, but for functions, which `swap` inlines.
    """
    if not result.fused:
        return None
    return swap(model, fold=False).model if model.functions else model


def find_replaced(
    convs: Iterable[onnx.NodeProto], constants: Collection[str], unfused: SplitModel
) -> dict[str, Replaced]:
    """Return, by the name of its output, what each of `convs` replaces that took in others.

    `convs` are nodes of ours of a main graph, `constants` the names of that graph's constants, and `unfused`
    is the model before they were fused: what computes an output there, from the inputs that the fused node
    has, is what the node stands for.
    """
    message, weights = unfused
    tensors = constants_of(message.graph)
    nodes = list(message.graph.node)
    producers = {output: index for index, node in enumerate(nodes) for output in node.output if output}
    opset = onnx_opset(message.opset_import)
    lengths = {name: tensor.dims[0] for name, tensor in tensors.items() if tensor.dims}
    found = {}
    for conv in convs:
        known = tensors.keys() | {name for name in conv.input if name not in constants}
        chain = [nodes[index] for index in _between(known, conv.output[0], nodes, producers)]
        if len(chain) == 1:
            continue
        read = {name for node in chain for name in node.input}
        plain = [node for one in chain for node in _plain(one, opset, tensors, lengths)]
        ops = [node.op_type for node in plain if not _passes_constants(node)]
        if "Conv" in ops:
            # The last, which is its own.
            del ops[len(ops) - 1 - ops[::-1].index("Conv")]
        constants_read = {name: tensor for name, tensor in tensors.items() if name in read}
        found[conv.output[0]] = Replaced(tuple(plain), constants_read, weights, tuple(ops))
    return found


def _between(
    known: Collection[str], output: str, nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int]
) -> list[int]:
    """Return the indices, in order, of the `nodes` that compute `output` from the values called `known`."""
    found: set[int] = set()
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name and name not in known and producers[name] not in found:
            found.add(producers[name])
            waiting += nodes[producers[name]].input
    return sorted(found)


def _plain(
    node: onnx.NodeProto, opset: int, tensors: Mapping[str, onnx.TensorProto], lengths: Mapping[str, int]
) -> Sequence[onnx.NodeProto]:
    """Return `node`, or ONNX's nodes that it stands for: what is taken in may have been fused before."""
    if not is_ours(node):
        return [node]
    weights = tensors.get(node.input[1])
    element_type = int(onnx.TensorProto.FLOAT) if weights is None else weights.data_type
    return plain_nodes(node, opset, element_type, lengths)


def _passes_constants(node: onnx.NodeProto) -> bool:
    # No data pass through such a node: a Conv does not take it in.
    return node.domain in ONNX_DOMAINS and ("", node.op_type) in _CONSTANT_OPS


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of `graph` by name: its initializers, and what its Constant nodes hold."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            for attribute in node.attribute:
                if attribute.name == "value":
                    tensors[node.output[0]] = _named(attribute.t, node.output[0])
    return tensors


def _named(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = copy_of(tensor)
    copy.name = name
    return copy
