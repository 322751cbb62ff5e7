"""Find the nodes of the original model that a fused Conv replaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx import numpy_helper

from convswap.graph.constants import PASS_THROUGH_OPS
from convswap.graph.domain import ONNX_DOMAINS, is_convswap_op, is_quant_op
from convswap.graph.external_weights import SplitModel, Weights, is_external_weight
from convswap.graph.plain_model import TensorShapes, onnx_opset, plain_nodes
from convswap.graph.serialisation import copy_of
from convswap.graph.swap import SwapResult, swap

_CONSTANT_OPS = PASS_THROUGH_OPS | {("", "Constant")}


@dataclass(frozen=True)
class ReplacedNodes:
    """The ONNX nodes that a fused node replaces, in order, and the constants that they read, by name.

    `weights` has the large constants. `extra_ops` has the ops other than the main convolution, in order: a
    depthwise Conv and its activation before it, and the ops after it. Nodes that only pass constants through
    are left out.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, onnx.TensorProto]
    weights: Weights
    extra_ops: tuple[str, ...]


def unfused_model(model: ir.Model, result: SwapResult) -> ir.Model | None:
    """Return `model`, which `swap` turned into `result`, before fusing; None if nothing was fused.

    The return value is `model` itself if it has no functions, else a swapped copy with functions inlined as
    in `result`. So values that are also in `result.model` have the same names in both.
    """
    if not result.fused:
        return None
    return swap(model, fold=False).model if model.functions else model


def find_replaced_nodes(
    convs: Iterable[onnx.NodeProto], constants: Collection[str], unfused: SplitModel
) -> dict[str, ReplacedNodes]:
    """Return the nodes that each fused node of `convs` replaces, by the name of the fused node's output.

    `convs` are convswap nodes of a main graph, `constants` are the names of that graph's constants, and
    `unfused` is the model before fusing. A fused node replaces those nodes of `unfused` that compute its
    output from its inputs. A node without fused nodes is left out, and a QuantConv of whose inputs one is not
    in `unfused`.
    """
    message, weights = unfused
    tensors = constants_of(message.graph)
    nodes = _with_merged_quantisations(message.graph.node, tensors)
    producers = {output: index for index, node in enumerate(nodes) for output in node.output if output}
    opset = onnx_opset(message.opset_import)
    shapes = {name: tensor.dims for name, tensor in tensors.items() if tensor.dims}
    replaced = {}
    for conv in convs:
        input_names = tensors.keys() | {name for name in conv.input if name not in constants}
        try:
            indices = _nodes_between(input_names, conv.output[0], nodes, producers)
        except KeyError:
            if not is_quant_op(conv):
                raise
            continue
        chain = [nodes[index] for index in indices]
        if len(chain) == 1 and is_quant_op(chain[0]) == is_quant_op(conv):
            continue
        read = {name for node in chain for name in node.input}
        plain = [onnx_node for node in chain for onnx_node in _plain_nodes(node, opset, tensors, shapes)]
        ops = [node.op_type for node in plain if not _passes_constants(node)]
        if "Conv" in ops:
            # The main convolution is the last Conv.
            del ops[len(ops) - 1 - ops[::-1].index("Conv")]
        constants_read = {name: tensor for name, tensor in tensors.items() if name in read}
        replaced[conv.output[0]] = ReplacedNodes(tuple(plain), constants_read, weights, tuple(ops))
    return replaced


def _with_merged_quantisations(
    nodes: Iterable[onnx.NodeProto], tensors: Mapping[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    """Return `nodes` with all readers of equal codes reading those of the first QuantizeLinear.

    `swap` makes one of the QuantizeLinear nodes that quantise a value alike.
    """
    first: dict[tuple[object, ...], str] = {}
    merged: dict[str, str] = {}
    result = []
    for node in nodes:
        if any(name in merged for name in node.input):
            node = copy_of(node)
            node.input[:] = [merged.get(name, name) for name in node.input]
        result.append(node)
        if node.op_type == "QuantizeLinear" and node.domain in (*ONNX_DOMAINS, "com.microsoft"):
            key = (node.input[0], *(_content(name, tensors) for name in node.input[1:3]))
            codes = first.setdefault(key, node.output[0])
            if codes != node.output[0]:
                merged[node.output[0]] = codes
    return result


def _content(name: str, tensors: Mapping[str, onnx.TensorProto]) -> object:
    """Return the type and values of a constant, or the name of a value that is not constant."""
    if name not in tensors or is_external_weight(tensors[name]):
        return name
    array = numpy_helper.to_array(tensors[name])
    return array.dtype.str, array.reshape(-1).tobytes()


def _nodes_between(
    input_names: Collection[str], output: str, nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int]
) -> list[int]:
    """Return the indices, in order, of the `nodes` that compute `output` from the values `input_names`."""
    indices: set[int] = set()
    pending = [output]
    while pending:
        name = pending.pop()
        if name and name not in input_names and producers[name] not in indices:
            indices.add(producers[name])
            pending += nodes[producers[name]].input
    return sorted(indices)


def _plain_nodes(
    node: onnx.NodeProto,
    opset: int,
    tensors: Mapping[str, onnx.TensorProto],
    shapes: TensorShapes,
) -> Sequence[onnx.NodeProto]:
    """Return `node`, or the ONNX nodes that are equivalent to it if it is a convswap node.

    The unfused model may contain FusedConv nodes from an earlier swap.
    """
    if not is_convswap_op(node):
        return [node]
    weights = tensors.get(node.input[1])
    element_type = int(onnx.TensorProto.FLOAT) if weights is None else weights.data_type
    return plain_nodes(node, opset, element_type, shapes)


def _passes_constants(node: onnx.NodeProto) -> bool:
    # Such a node computes nothing from the data, so it is no fused op.
    return node.domain in ONNX_DOMAINS and ("", node.op_type) in _CONSTANT_OPS


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Return the constants of `graph` by name: its initializers and the tensors of its Constant nodes."""
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
