"""Write ONNX Runtime's operators on codes as DequantizeLinear, the operator on numbers, and QuantizeLinear.

That is what these operators compute. ONNX Runtime's CUDA provider has no kernels for them, but for the three
nodes; and the forms of a quantised Conv's activations, residuals and concatenations are read from these.
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.epilogue import NotFusable, read_int
from convswap.graph.names import UniqueNames, nodes_of


class _Form(NamedTuple):
    """The operator on numbers, and the inputs of one on codes: data come with a scale and a zero point.

    `data` are the indices of the operands' codes, and `scale` is that of the result's scale.
    """

    op: str
    data: tuple[int, ...]
    scale: int


_FORMS = {
    ("com.microsoft", "QLinearAdd"): _Form("Add", (0, 3), 6),
    ("com.microsoft", "QLinearMul"): _Form("Mul", (0, 3), 6),
    ("", "QLinearMatMul"): _Form("MatMul", (0, 3), 6),
    ("com.microsoft", "QLinearMatMul"): _Form("MatMul", (0, 3), 6),
    ("com.microsoft", "QLinearSigmoid"): _Form("Sigmoid", (0,), 3),
    ("com.microsoft", "QLinearLeakyRelu"): _Form("LeakyRelu", (0,), 3),
    ("com.microsoft", "QLinearAveragePool"): _Form("AveragePool", (0,), 3),
    ("com.microsoft", "QLinearGlobalAveragePool"): _Form("GlobalAveragePool", (0,), 3),
}
_CONCAT = ("com.microsoft", "QLinearConcat")  # the result's scale and zero point, then the operands


def expand_qlinear_ops(model: ir.Model) -> bool:
    """Replace such nodes of `model`, in place; return whether there are any.

    The QuantizeLinear has the name and the result of the node. Nodes that read the same codes share a
    DequantizeLinear. Left are nodes whose result has no zero point, on which the type of its codes depends,
    nodes with a scale that is not one constant number, and pools of NHWC data.
    """
    expander = _Expander(model)
    nodes = [node for node in nodes_of(model) if node.op_identifier() not in model.functions]
    return any([expander.expand(node) for node in nodes])


class _Expander:
    def __init__(self, model: ir.Model) -> None:
        self._value_names = UniqueNames.of_values(model.graphs())
        self._node_names = UniqueNames(node.name for node in nodes_of(model))
        self._constants = Constants(model)
        self._numbers: dict[tuple[object, ...], ir.Value] = {}

    def expand(self, node: ir.Node) -> bool:
        """Replace one node; return False if it stays."""
        form, graph = _form_of(node), node.graph
        if form is None or not isinstance(graph, ir.Graph) or len(node.inputs) < form.scale + 2:
            return False
        scale, zero_point = node.inputs[form.scale : form.scale + 2]
        scales = [scale, *(node.inputs[index + 1] for index in form.data)]
        if zero_point is None or not all(map(self._is_scalar, scales)):
            return False
        operands = [self._dequantized(node, graph, index) for index in form.data]
        attributes = {name: each for name, each in node.attributes.items() if name != "channels_last"}
        numbers = self._insert(form.op, operands, node, graph)
        numbers.producer().attributes.update(attributes)  # type: ignore[union-attr]
        # The node itself rounds the numbers, so that its result stays where it is.
        node.domain, node.op_type, node.version = "", "QuantizeLinear", None
        node.attributes.clear()
        node.resize_inputs(3)
        for index, value in enumerate((numbers, scale, zero_point)):
            node.replace_input_with(index, value)
        return True

    def _is_scalar(self, scale: ir.Value | None) -> bool:
        tensor = self._constants.tensor(scale)
        return tensor is not None and tensor.size == 1

    def _dequantized(self, node: ir.Node, graph: ir.Graph, index: int) -> ir.Value:
        """Return the numbers of the codes that are input `index`, by a node in front of `node`."""
        inputs = [value for value in node.inputs[index : index + 3] if value is not None]
        key = (graph, *inputs)
        if key not in self._numbers:
            self._numbers[key] = self._insert("DequantizeLinear", inputs, node, graph)
        return self._numbers[key]

    def _insert(self, op: str, inputs: list[ir.Value], node: ir.Node, graph: ir.Graph) -> ir.Value:
        """Insert a node in front of `node`; return its result."""
        name = self._node_names.make_unique(f"{node.name or node.outputs[0].name}/{op}")
        new = ir.node(op, inputs, name=name)
        new.outputs[0].name = self._value_names.make_unique(name)
        graph.insert_before(node, new)
        return new.outputs[0]


def _form_of(node: ir.Node) -> _Form | None:
    op = (node.domain, node.op_type)
    if op == _CONCAT:
        return _Form("Concat", tuple(range(2, len(node.inputs), 3)), 0)
    try:
        reads_nhwc = read_int(node, "channels_last", 0)
    except NotFusable:
        return None
    return None if reads_nhwc else _FORMS.get(op)
