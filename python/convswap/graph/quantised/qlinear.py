"""Write ONNX Runtime's operators on codes as DequantizeLinear, the operator on numbers, and QuantizeLinear.

These operators compute the same, up to one step. ONNX Runtime's CUDA provider has no kernels for them, but
for the three nodes; and the forms of a quantised Conv's activations, residuals and concatenations are read
from these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants, ConstantWriter
from convswap.graph.domain import opset_of
from convswap.graph.epilogue import NotFusable, read_float, read_int
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
_GEMM = ("com.microsoft", "QGemm")
_VECTORS_OF_SCALES = 13  # opset
_CONCAT = ("com.microsoft", "QLinearConcat")  # the result's scale and zero point, then the operands


def expand_qlinear_ops(model: ir.Model) -> bool:
    """Replace such nodes of `model`, in place; return whether there are any.

    The last new node has the name and the result of the node. Nodes that read the same codes share a
    DequantizeLinear. Left are nodes in functions, pools of NHWC data, and nodes with a scale or zero point
    that is not one constant number; the weights of a QGemm may have several, and its bias is a constant
    vector.
    """
    expander = _Expander(model)
    nodes = [
        node
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_identifier() not in model.functions
    ]
    return any([expander.expand(node) for node in nodes])


class _Expander:
    def __init__(self, model: ir.Model) -> None:
        self._value_names = UniqueNames.of_values(model.graphs())
        self._node_names = UniqueNames(node.name for node in nodes_of(model))
        self._constants, self._writer = Constants(model), ConstantWriter(model)
        self._opset = opset_of(model)
        self._numbers: dict[tuple[object, ...], ir.Value] = {}

    def expand(self, node: ir.Node) -> bool:
        """Replace one node; return False if it stays."""
        form, graph = _form_of(node), node.graph
        if (node.domain, node.op_type) == _GEMM and isinstance(graph, ir.Graph):
            return self._expand_gemm(node, graph)
        if form is None or not isinstance(graph, ir.Graph) or len(node.inputs) <= form.scale:
            return False
        inputs = [*node.inputs, None]
        scales = [inputs[index] for index in (form.scale, *(index + 1 for index in form.data))]
        zero_points = [inputs[index + 2] for index in form.data]
        if not all(map(self._is_scalar, scales)):
            return False
        if not all(value is None or self._is_scalar(value) for value in zero_points):
            return False
        zero_point = inputs[form.scale + 1] or self._zero_like(zero_points[0], node)
        if not self._is_scalar(zero_point):
            return False
        operands = [self._dequantized(node, graph, index) for index in form.data]
        attributes = [each for each in node.attributes.values() if each.name != "channels_last"]
        numbers = self._insert(form.op, operands, node, graph, attributes)
        become(node, "QuantizeLinear", [numbers, scales[0], zero_point])
        return True

    def _expand_gemm(self, node: ir.Node, graph: ir.Graph) -> bool:
        """Replace a QGemm; the scale of its bias is alpha times the scales of its operands."""
        a, a_scale, _, b, b_scale, _, c, y_scale, y_zero_point = [*node.inputs, *[None] * 9][:9]
        scale, scales = self._constants.tensor(a_scale), self._constants.tensor(b_scale)
        bias = self._constants.tensor(c)
        try:
            alpha, is_transposed = read_float(node, "alpha", 1.0), read_int(node, "transB", 0)
        except NotFusable:
            return False
        if a is None or b is None or scale is None or scale.size > 1 or scales is None:
            return False
        if scales.size > 1 and self._opset < _VECTORS_OF_SCALES:
            return False
        if c is not None and (bias is None or bias.shape.rank() != 1 or scales.size not in (1, bias.size)):
            return False
        if y_scale is not None and not (self._is_scalar(y_scale) and self._is_scalar(y_zero_point)):
            return False
        axis = [ir.AttrInt64("axis", 0 if is_transposed else 1)] if scales.size > 1 else []
        operands = [self._dequantized(node, graph, 0), self._dequantized(node, graph, 3, axis)]
        if c is not None:
            factors = scale.numpy() * scales.numpy() * np.float32(alpha)
            name = f"{node.name or node.outputs[0].name}/bias_scale"
            factor = self._writer.add(node, name, ir.Tensor(factors.astype(np.float32).reshape(scales.shape)))
            vector = [ir.AttrInt64("axis", 0)] if scales.size > 1 else []
            operands.append(self._insert("DequantizeLinear", [c, factor], node, graph, vector))
        attributes = list(node.attributes.values())
        if y_scale is None:
            become(node, "Gemm", operands, attributes)
            return True
        numbers = self._insert("Gemm", operands, node, graph, attributes)
        become(node, "QuantizeLinear", [numbers, y_scale, y_zero_point])
        return True

    def _is_scalar(self, value: ir.Value | None) -> bool:
        tensor = self._constants.tensor(value)
        return tensor is not None and tensor.size == 1

    def _zero_like(self, zero_point: ir.Value | None, node: ir.Node) -> ir.Value | None:
        """Return a zero of the operand's type, for a result without a zero point."""
        tensor = self._constants.tensor(zero_point)
        if tensor is None:
            return None
        zero = ir.Tensor(np.zeros((), tensor.dtype.numpy()), dtype=tensor.dtype)
        return self._writer.add(node, f"{node.name or node.outputs[0].name}/zero_point", zero)

    def _dequantized(
        self, node: ir.Node, graph: ir.Graph, index: int, attributes: Sequence[ir.Attr] = ()
    ) -> ir.Value:
        """Return the numbers of the codes that are input `index`, by a node in front of `node`."""
        inputs = [value for value in node.inputs[index : index + 3] if value is not None]
        key = (graph, *inputs, *(each.value for each in attributes))
        if key not in self._numbers:
            self._numbers[key] = self._insert("DequantizeLinear", inputs, node, graph, attributes)
        return self._numbers[key]

    def _insert(
        self,
        op: str,
        inputs: list[ir.Value],
        node: ir.Node,
        graph: ir.Graph,
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        """Insert a node in front of `node`; return its result."""
        name = self._node_names.make_unique(f"{node.name or node.outputs[0].name}/{op}")
        new = ir.node(op, inputs, name=name)
        new.attributes.update({each.name: each for each in attributes})
        new.outputs[0].name = self._value_names.make_unique(name)
        graph.insert_before(node, new)
        return new.outputs[0]


def become(
    node: ir.Node, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = ()
) -> None:
    """Make `node` another one with the same result."""
    node.domain, node.op_type, node.version = "", op, None
    node.attributes.clear()
    node.attributes.update({each.name: each for each in attributes})
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def _form_of(node: ir.Node) -> _Form | None:
    op = (node.domain, node.op_type)
    if op == _CONCAT:
        return _Form("Concat", tuple(range(2, len(node.inputs), 3)), 0)
    try:
        reads_nhwc = read_int(node, "channels_last", 0)
    except NotFusable:
        return None
    return None if reads_nhwc else _FORMS.get(op)
