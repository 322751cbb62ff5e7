"""Write the layouts of a graph's tensors into its nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

from convswap.graph.constants import ConstantWriter, remove_if_unused
from convswap.graph.domain import LAYOUT_OP, is_quant_op
from convswap.graph.layout.axes import in_nhwc, to_nchw, to_nhwc
from convswap.graph.layout.costs import layout_attributes
from convswap.graph.layout.operators import Writer, names_axes
from convswap.graph.layout.regions import Regions, changes_to_nchw, changes_to_nhwc


class LayoutWriter:
    """Changes the nodes of one graph; counts the Transposes that it adds and removes.

    A value in NHWC has a new name: the old name stays with the tensor in NCHW, if there is one.
    """

    def __init__(self, graph: ir.Graph, regions: Regions, constants: ConstantWriter) -> None:
        self._graph, self._regions, self._constants = graph, regions, constants
        self.added = self.removed = 0

    def constant(self, node: ir.Node, role: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a new constant for `node`; `role` is a part of its name."""
        return self._constants.add(node, f"{node.name or node.outputs[0].name}/{role}", tensor)

    def node_before(self, node: ir.Node, op: str, *inputs: ir.Value | None) -> ir.Value:
        """Insert a new node of ONNX's `op` before `node`; return its result."""
        new = self._new_node(op, inputs, node.name or str(node.outputs[0].name))
        new.outputs[0].name = self.unique_name(f"{new.name}/result")
        self._graph.insert_before(node, new)
        return new.outputs[0]

    def node_after(self, node: ir.Node, op: str, *inputs: ir.Value | None) -> ir.Node:
        """Insert a new node of ONNX's `op` after `node`; return it, its result without a name."""
        new = self._new_node(op, inputs, node.name or str(node.outputs[0].name))
        self._graph.insert_after(node, new)
        return new

    def _new_node(self, op: str, inputs: Iterable[ir.Value | None], base: str) -> ir.Node:
        return ir.node(op, list(inputs), name=self._constants.node_names.make_unique(f"{base}/{op}"))

    def unique_name(self, base: str) -> str:
        """Return a name for a value that no other value has: `base`, perhaps with a number."""
        return self._constants.names.make_unique(base)

    def write(self) -> None:
        """Turn the sets of values that are NHWC into NHWC, with all nodes that read or write them."""
        regions = self._regions
        values = [value for tied in regions.sets if tied.is_nhwc for value in tied.values]
        layouts = {node: regions.layouts(node) for node in regions.convs}
        carried = {node: regions.carried[node].write for node in regions.carried_in_nhwc()}
        changes = [node for node in regions.transposes if self._joins_layouts(node)]
        # Uses are read before the first change.
        readers = {value: [(user, index, self._reads_nhwc(user, value)) for user, index in value.uses()]
                   for value in values}  # fmt: skip
        for node, chosen in layouts.items():
            if any(chosen):
                if not is_quant_op(node):
                    node.op_type = LAYOUT_OP
                for name, layout in layout_attributes(chosen).items():
                    node.attributes[name] = ir.AttrString(name, layout)
        for value in values:
            self._write_value(value, readers[value])
        self._rewrite(carried)
        for node in changes:
            self._remove(node)
        if self.added:
            # Carried nodes in NHWC name no axes any more.
            self._rewrite({node: write for node, write in regions.with_axes.items() if names_axes(node)})

    def _rewrite(self, rewritings: Mapping[ir.Node, Callable[[Writer], None]]) -> None:
        """Rewrite nodes, and remove constants that nothing reads afterwards."""
        for node, rewrite in rewritings.items():
            operands = list(node.inputs)
            rewrite(self)
            for operand in operands:
                remove_if_unused(operand)

    def _reads_nhwc(self, user: ir.Node, value: ir.Value) -> bool:
        return self._regions.keeps_layout(user, value) or self._joins_layouts(user)

    def _joins_layouts(self, node: ir.Node) -> bool:
        """Return whether `node`, a Transpose, becomes an identity, because one side of it becomes NHWC."""
        if node.graph is not self._graph or node not in self._regions.transposes:
            return False
        reads, writes = self._regions.is_nhwc(node.inputs[0]), self._regions.is_nhwc(node.outputs[0])
        if reads and writes:
            return False
        return (reads and changes_to_nhwc(node)) or (writes and changes_to_nchw(node))

    def _write_value(self, value: ir.Value, readers: Iterable[tuple[ir.Node, int, bool]]) -> None:
        writer = value.producer()
        if writer is not None and self._joins_layouts(writer):
            # The input of the Transpose is the tensor in NHWC. The Transpose stays for readers in NCHW.
            self._replace(readers, writer.inputs[0])
            return
        if not self._regions.keeps_layout(writer, value):
            self._replace(readers, self._transposed(value, to_nhwc, self.unique_name(f"{value.name}/NHWC")))
            return
        name = str(value.name)
        value.name = self.unique_name(f"{name}/NHWC")
        value.shape = _permuted(value.shape)
        others = [(user, index) for user, index, reads_nhwc in readers if not reads_nhwc]
        if others or value.is_graph_output():
            plain = self._transposed(value, to_nchw, name)
            plain.doc_string, value.doc_string = value.doc_string, None
            plain.metadata_props.update(value.metadata_props)
            for user, index in others:
                user.replace_input_with(index, plain)
            for index, output in enumerate(self._graph.outputs):
                if output is value:
                    self._graph.outputs[index] = plain

    def _replace(self, readers: Iterable[tuple[ir.Node, int, bool]], value: ir.Value | None) -> None:
        for user, index, reads_nhwc in readers:
            if reads_nhwc:
                user.replace_input_with(index, value)

    def _transposed(self, value: ir.Value, perm_of: Callable[[int], tuple[int, ...]], name: str) -> ir.Value:
        """Return a new value called `name`, the result of a Transpose of `value`."""
        perm = perm_of(self._regions.rank(value))
        node = self._new_node("Transpose", [value], name)
        node.attributes["perm"] = ir.AttrInt64s("perm", perm)
        (result,) = node.outputs
        dtype = self._regions.reader.element_type(value)
        result.name, result.type = name, value.type or (None if dtype is None else ir.TensorType(dtype))
        # A subgraph that reads the value learns its rank from here.
        extents = [None] * len(perm) if value.shape is None else value.shape
        if result.type is not None:
            result.shape = ir.Shape([extents[axis] for axis in perm])
        writer = value.producer()
        if writer is not None and writer.graph is self._graph:
            self._graph.insert_after(writer, node)
        else:
            self._graph.insert_before(self._graph[0], node)
        self.added += 1
        return result

    def _remove(self, node: ir.Node) -> None:
        """Remove a Transpose that became an identity, unless a reader in NCHW still needs it.

        If its result is an output of the graph, an Identity gives the output its name.
        """
        (data,), (result,) = node.inputs, node.outputs
        assert data is not None
        if self._regions.is_nhwc(result):
            if result.uses() or result.is_graph_output():
                return
        elif result.is_graph_output():
            node.op_type = "Identity"
            node.attributes.clear()
            self.removed += 1
            return
        else:
            result.replace_all_uses_with(data)
        self._graph.remove(node, safe=True)
        self.removed += 1


def _permuted(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else ir.Shape(in_nhwc(list(shape)))
