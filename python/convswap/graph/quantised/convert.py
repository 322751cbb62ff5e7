"""Replace the quantised convolutions of a model by `convswap.QuantConv`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import ConstantWriter
from convswap.graph.domain import DOMAIN, DOMAIN_VERSION, QUANT_OP, op_name
from convswap.graph.epilogue import NotFusable
from convswap.graph.fusion.fuse import Fused
from convswap.graph.names import name_from_output
from convswap.graph.quantised.accumulators import HEADS, Accumulator, AccumulatorReader
from convswap.graph.quantised.computed_constants import ComputedConstants
from convswap.graph.quantised.epilogues import Epilogue, EpilogueFinder
from convswap.graph.quantised.movements import Chain, CodeMover
from convswap.graph.quantised.quantisation import NotQuantised, Quantisations, is_dequantize, is_quantize
from convswap.graph.quantised.write import QuantConvWriter, remove_unused
from convswap.graph.value_types import ValueTypes


@dataclass(frozen=True)
class LeftQuantised:
    """A quantised node that did not become a QuantConv: name, op, and the reason, about "it"."""

    node: str
    op: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return the record for JSON: `{"node", "op", "reason"}`."""
        return asdict(self)


def quantise_convs(
    model: ir.Model,
    names: Mapping[ir.Node, str],
    types: ValueTypes,
    is_selected: Callable[[str], bool] = lambda _: True,
) -> tuple[tuple[Fused, ...], tuple[LeftQuantised, ...]]:
    """Replace the quantised convolutions of `model` by QuantConv nodes, in place.

    A quantised convolution is a Conv whose data and weights come from DequantizeLinear, a QLinearConv, or a
    ConvInteger. The QuantConv also computes the nodes behind it, see `epilogues`. It has the name of the
    convolution, and the place and output of the last of these nodes. Quantisations and constants that nothing
    reads afterwards are removed. QuantizeLinear nodes of one value with equal scales become one. If there are
    QuantConv nodes, operators that only move elements read codes where they can, and a QuantizeLinear of
    dequantised codes becomes a QuantConv of one tap, see `movements`; these are not in the result. Means and
    fully connected layers become QuantConv nodes, too, if their results are codes.

    `names` has a name for every node; `types` knows the values of `model` before the change. A node is
    replaced if `is_selected` is true for its name.

    Returns the QuantConv nodes with the nodes that they replace, and the other quantised nodes that are
    selected. Such a Conv still computes numbers.
    """
    convs = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if _may_be_quantised(node)]
    if not convs:
        return (), ()
    quantisations = Quantisations(model, types)
    _merge_equal_quantisations(model, quantisations)
    reader, finder = AccumulatorReader(quantisations, types), EpilogueFinder(model, quantisations, types)
    not_quantised: list[LeftQuantised] = []

    def chain_of(node: ir.Node) -> Iterator[Chain]:
        if not is_selected(names[node]) or node.op_identifier() in model.functions:
            return
        try:
            accumulator = reader.read(node)
            if accumulator is None:
                return
            epilogue = finder.find(accumulator)
            # Shape inference does not know QuantConv, so its output shape is stored in the model.
            types.complete(epilogue.result)
            # The kernels for tensor cores write codes.
            if node.op_type in HEADS and (epilogue.y is None or epilogue.result.shape is None):
                raise NotQuantised("its result is no tensor of codes with a known shape")
            if node.op_type in HEADS and types.rank(node.outputs) != types.rank([epilogue.result]):
                raise NotQuantised("a constant behind it adds axes to its result")
        except (NotQuantised, NotFusable) as reason:
            not_quantised.append(LeftQuantised(names[node], op_name(node), str(reason)))
            return
        yield accumulator, epilogue

    chains = [chain for node in convs for chain in chain_of(node)]
    # All chains are found before the first change, because types are those of the unchanged model.
    made = [_record(names, *chain) for chain in chains]
    mover = CodeMover(model, quantisations, types)
    if chains:
        chains = mover.concatenate(chains)
    writer = QuantConvWriter(model, names)
    for accumulator, epilogue in chains:
        writer.write(accumulator, epilogue)
    if chains:
        mover.move()
        for node, chain in mover.requantise():
            name = names.get(node) or node.name or name_from_output(node)
            QuantConvWriter(model, {node: name}).write(*chain)
        for node in (node for node in names if node.op_type in HEADS):
            for chain in chain_of(node):
                made.append(_record(names, *chain))
                reader.images |= QuantConvWriter(model, names).write(*chain)
        model.opset_imports[DOMAIN] = DOMAIN_VERSION
        _dequantise_biases(model)
        _drop_second_types(model)
    return tuple(made), tuple(not_quantised)


def _may_be_quantised(node: ir.Node) -> bool:
    if (node.domain, node.op_type) == ("", "Conv"):
        return any(value is not None and is_dequantize(value.producer()) for value in node.inputs[:2])
    return node.op_type in ("QLinearConv", "ConvInteger") and node.domain in ("", "com.microsoft")


def _record(names: Mapping[ir.Node, str], accumulator: Accumulator, epilogue: Epilogue) -> Fused:
    nodes = (*accumulator.nodes[1:], *epilogue.nodes)
    fused_nodes = tuple((op_name(node), names.get(node, str(node.name))) for node in nodes)
    return Fused(names[accumulator.conv], QUANT_OP, fused_nodes, accumulator.conv.op_type not in HEADS)


def _drop_second_types(model: ir.Model) -> None:
    """Drop the attribute `output_dtype` of QuantizeLinear nodes whose zero point has the type as well.

    Where ONNX Runtime moves a Transpose through such a node, it keeps the attribute and drops the zero point,
    and then refuses its own node.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if is_quantize(node) and len(node.inputs) > 2 and node.inputs[2] is not None:
            node.attributes.pop("output_dtype", None)


def _merge_equal_quantisations(model: ir.Model, quantisations: Quantisations) -> None:
    """Let one QuantizeLinear of a value stand for all with its scale and zero point, in each graph."""
    for graph in model.graphs():
        first: dict[tuple[object, ...], ir.Node] = {}
        for node in list(graph):
            if not is_quantize(node) or node.inputs[0] is None or not node.outputs:
                continue
            try:
                key = quantisations.of_node(node, what="codes").key()
            except NotQuantised:
                continue
            other = first.setdefault((node.inputs[0], *key), node)
            if other is not node and not node.outputs[0].is_graph_output():
                node.outputs[0].replace_all_uses_with(other.outputs[0])
                remove_unused(node.outputs)


def _dequantise_biases(model: ir.Model) -> None:
    """Replace each DequantizeLinear of constant int32 by its result: biases of Gemm and MatMul.

    ONNX Runtime dequantises int32 on the CPU alone; one such node keeps a model from being captured as a CUDA
    graph.
    """
    constants, writer = ComputedConstants(model), ConstantWriter(model)
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if not is_dequantize(node) or node.outputs[0].is_graph_output():
            continue
        codes, scale = (constants.tensor(value) for value in node.inputs[:2])
        if codes is None or scale is None or codes.dtype != ir.DataType.INT32:
            continue
        # The zero point of int32 is 0.
        array, factor = codes.numpy(), scale.numpy()
        if array.ndim != 1 or factor.size not in (1, array.size):
            continue
        numbers = (array.astype(np.float32) * factor.astype(np.float32).reshape(-1)).astype(factor.dtype)
        result = node.outputs[0]
        result.replace_all_uses_with(writer.add(node, f"{result.name}/numbers", ir.Tensor(numbers)))
        remove_unused(node.outputs)


def quantised_lines(not_quantised: Iterable[LeftQuantised]) -> list[str]:
    """Return one sentence per record, without a full stop."""
    return [f"{record.op} {record.node} is no QuantConv: {record.reason}" for record in not_quantised]
