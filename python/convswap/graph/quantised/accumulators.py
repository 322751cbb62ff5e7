"""Read what a quantised convolution sums: codes, weights, bias, and the factors that make them numbers.

Three forms are read: Conv with dequantised data and weights, QLinearConv, and ConvInteger with the Cast and
the multiplications behind it. A mean over images is read as a depthwise convolution, and a fully connected
layer as one of images of one pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from convswap.graph.domain import type_name
from convswap.graph.epilogue import NotFusable, read_float, read_int, read_ints
from convswap.graph.fusion.folding import per_channel_values
from convswap.graph.layout.axes import RANKS
from convswap.graph.quantised.computed_constants import RESHAPES
from convswap.graph.quantised.quantisation import (
    NotQuantised,
    Quantisation,
    Quantisations,
    is_dequantize,
    is_quantize,
)
from convswap.graph.value_types import ValueTypes

MEANS = ("GlobalAveragePool", "ReduceMean")
HEADS = (*MEANS, "Gemm", "MatMul")
# A thread of the depthwise kernels adds a whole window.
_LARGEST_MEAN = 64
FLOAT_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
# The names of codes in messages.
_DATA, _WEIGHTS = "its data", "its weights"
# Sums are int32.
_MAX_SUM = 2**31
_MAX_CODE_DIFFERENCE, _MAX_WEIGHT = 255, 128
# Maximum relative difference between the scale of a bias and the product of the scales of data and weights.
# Tools compute this product in float32 or float64.
_BIAS_SCALE_TOLERANCE = 1e-6


@dataclass
class Weights:
    """Weights of a QuantConv (int8, zero point 0) and their scale for each filter.

    `value` has them in the model already, unless it is None.
    """

    codes: np.ndarray
    scale: np.ndarray
    value: ir.Value | None


@dataclass
class Accumulator:
    """The int32 sums of a convolution, times `factor`, plus `offset`: numbers in the units of the model.

    `bias` is a part of the sums. `codes` and `x` are the data and their quantisation. `nodes` are the
    convolution and the nodes behind it that belong to it. `result` is the value of these numbers, of type
    `float_type`, or of their codes if `y` is set.
    """

    codes: ir.Value
    x: Quantisation
    weights: Weights
    factor: np.ndarray
    result: ir.Value
    bias: np.ndarray | None = None
    offset: np.ndarray | None = None
    y: Quantisation | None = None
    float_type: ir.DataType = ir.DataType.FLOAT
    nodes: list[ir.Node] = field(default_factory=list)

    @property
    def conv(self) -> ir.Node:
        """The convolution."""
        return self.nodes[0]


class AccumulatorReader:
    """Reads the convolutions of a model; raises NotQuantised.

    `images` has the images of one pixel that new Flattens of codes read, by their results.
    """

    def __init__(self, quantisations: Quantisations, types: ValueTypes) -> None:
        self._quantisations, self._types = quantisations, types
        self.images: dict[ir.Value, ir.Value] = {}

    def read(self, node: ir.Node) -> Accumulator | None:
        """Return the sums of `node`; None if it is no quantised convolution.

        Raises:
            NotQuantised: a QuantConv cannot compute them.
        """
        op = (node.domain, node.op_type)
        if op == ("", "Conv"):
            accumulator = self._read_conv(node)
        elif op in (("", "QLinearConv"), ("com.microsoft", "QLinearConv")):
            accumulator = self._read_qlinear_conv(node)
        elif op == ("", "ConvInteger"):
            accumulator = self._read_conv_integer(node)
        elif node.domain == "" and node.op_type in HEADS:
            accumulator = (self._read_mean if node.op_type in MEANS else self._read_product)(node)
        else:
            return None
        if accumulator is not None:
            _check_shape(accumulator)
        return accumulator

    def _read_conv(self, node: ir.Node) -> Accumulator | None:
        x, w, bias = _inputs(node, 3)
        if x is None or w is None or len(node.outputs) != 1:
            return None
        x_node, w_node = x.producer(), w.producer()
        if not is_dequantize(x_node) and not is_dequantize(w_node):
            return None
        if x_node is None or not is_dequantize(x_node):
            raise NotQuantised("its weights are codes, but its data are no result of DequantizeLinear")
        if w_node is None or not is_dequantize(w_node):
            raise NotQuantised("its data are codes, but its weights are no result of DequantizeLinear")
        weights = self._weights(_required(w_node, 0), self._quantisations.of_node(w_node, what=_WEIGHTS))
        return self._sums(node, x_node, weights, bias)

    def _sums(
        self, node: ir.Node, x_node: ir.Node, weights: Weights, bias: ir.Value | None = None
    ) -> Accumulator:
        element_type = self._types.element_type([x_node.outputs[0], node.outputs[0]])
        if element_type not in FLOAT_TYPES:
            actual = "unknown" if element_type is None else type_name(element_type)
            raise NotQuantised(f"its type is {actual}; QuantConv writes codes, float32 or float16")
        quantisation = self._data(x_node)
        accumulator = Accumulator(
            _required(x_node, 0),
            quantisation,
            weights,
            quantisation.only_scale * weights.scale,
            node.outputs[0],
            float_type=element_type,
            nodes=[node],
        )
        if bias is not None:
            self._add_bias(accumulator, bias)
        return accumulator

    def _read_mean(self, node: ir.Node) -> Accumulator | None:
        x, axes = _inputs(node, 2)
        x_node, extents = (None, []) if x is None else (x.producer(), self._types.axes(x))
        if x_node is None or not is_dequantize(x_node) or len(extents) != 4:
            return None
        if node.op_type == "ReduceMean":
            tensor = self._quantisations.constants.tensor(axes)
            reduced = read_ints(node, "axes", ()) if tensor is None else tensor.numpy().flat
            if sorted(int(axis) % 4 for axis in reduced) != [2, 3]:
                return None
        channels, height, width = (extent or 0 for extent in extents[1:])
        is_small = channels > 0 and 0 < height * width <= _LARGEST_MEAN
        if not is_small or not is_quantize(only_reader(node.outputs[0])):
            return None
        scale = np.full(channels, 1 / (height * width), np.float32)
        return self._sums(node, x_node, Weights(np.ones((channels, 1, height, width), np.int8), scale, None))

    def _read_product(self, node: ir.Node) -> Accumulator | None:
        x, w, bias = _inputs(node, 3)
        if x is None or w is None or self._types.rank([x]) != 2:
            return None
        x_node, w_node = self._unshaped(x).producer(), w.producer()
        if x_node is None or w_node is None or not is_dequantize(x_node) or not is_dequantize(w_node):
            return None
        images, matrix = self._unshaped(_required(x_node, 0)), _required(w_node, 0)
        tensor = self._stored_weights(matrix)
        if tensor is None or len(tensor.shape) != 2:
            return None
        axis = 0 if read_int(node, "transB", 0) else 1
        shape = images.shape if images in self.images.values() else self._types.axes(images)
        if [*(shape or ())][1:] != [tensor.shape[1 - axis], 1, 1]:
            return None
        if {read_float(node, name, 1.0) for name in ("alpha", "beta")} != {1.0}:
            raise NotQuantised("its alpha or beta is not 1")
        if read_int(node, "transA", 0):
            raise NotQuantised("its data are transposed")
        filters = tensor.shape[axis]
        if bias is not None and self._types.axes(bias)[-1:] != [filters]:
            raise NotQuantised(f"its bias has not {filters} numbers, one for each column of its result")
        quantisation = self._quantisations.of_node(w_node, what=_WEIGHTS)
        codes = np.ascontiguousarray(np.moveaxis(self._weight_codes(matrix, quantisation), axis, 0))
        if quantisation.axis is not None:
            if quantisation.axis % 2 != axis:
                raise NotQuantised(
                    f"its weights have a scale for each index of axis {quantisation.axis}; expected {axis}"
                )
            quantisation = replace(quantisation, axis=0)
        weights = _shifted(codes[..., None, None], quantisation, None)
        accumulator = self._sums(node, x_node, weights, bias)
        accumulator.codes = images
        if node.op_type == "MatMul":
            accumulator.offset = self._operand(accumulator, "Add", rank=2)
        return accumulator

    def _unshaped(self, value: ir.Value) -> ir.Value:
        """Return the value of which reshapes alone make `value`."""
        while value not in self.images:
            node = value.producer()
            if node is None or node.domain or node.op_type not in RESHAPES or node.inputs[0] is None:
                return value
            value = node.inputs[0]
        return self.images[value]

    def _read_qlinear_conv(self, node: ir.Node) -> Accumulator:
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = _inputs(node, 9)
        if x is None or w is None or len(node.outputs) != 1:
            raise NotQuantised("it is no valid QLinearConv")
        if read_int(node, "channels_last", 0):
            raise NotQuantised("its data are in NHWC: use the model as it was before it was optimised")
        read, per_tensor = self._quantisations.read, self._quantisations.per_tensor
        quantisation = per_tensor(read(x_scale, x_zero, None, axis=1, what=_DATA), what=_DATA)
        weights = self._weights(w, read(w_scale, w_zero, None, axis=0, what=_WEIGHTS))
        y = per_tensor(read(y_scale, y_zero, None, axis=1, what="its results"), what="its results")
        factor = quantisation.only_scale * weights.scale
        accumulator = Accumulator(x, quantisation, weights, factor, node.outputs[0], y=y, nodes=[node])
        if bias is not None:
            tensor = self._quantisations.constants.tensor(bias)
            if tensor is None or tensor.dtype != ir.DataType.INT32:
                raise NotQuantised("its bias is no constant of type int32")
            accumulator.bias = tensor.numpy().reshape(-1)
        return accumulator

    def _read_conv_integer(self, node: ir.Node) -> Accumulator:
        x, w, x_zero, w_zero = _inputs(node, 4)
        if x is None or w is None or len(node.outputs) != 1:
            raise NotQuantised("it is no valid ConvInteger")
        unit_scale = ir.Value(const_value=ir.Tensor(np.ones((), np.float32)))
        x_type, w_type = self._types.element_type([x]), self._types.element_type([w])
        quantisation = self._quantisations.read(unit_scale, x_zero, x_type, axis=1, what=_DATA)
        weights = self._weights(
            w, self._quantisations.read(unit_scale, w_zero, w_type, axis=0, what=_WEIGHTS)
        )
        accumulator = Accumulator(x, quantisation, weights, weights.scale, node.outputs[0], nodes=[node])
        _append_next(accumulator, "Cast")
        try:
            target = read_int(accumulator.nodes[-1], "to", 0)
        except NotFusable as reason:
            raise NotQuantised(str(reason)) from None
        if target not in map(int, FLOAT_TYPES):
            raise NotQuantised("the Cast of its sums is to another type than float32 and float16")
        accumulator.float_type = ir.DataType(target)
        factor = self._operand(accumulator, "Mul")
        if factor is None:
            raise NotQuantised("its sums are not multiplied by a constant for each filter")
        while factor is not None:
            accumulator.factor = accumulator.factor * factor
            factor = self._operand(accumulator, "Mul")
        accumulator.offset = self._operand(accumulator, "Add")
        return accumulator

    def _operand(self, accumulator: Accumulator, op: str, rank: int = 0) -> np.ndarray | None:
        """Append the next node if it is an `op` with a constant; return a number for each filter, or None."""
        node = only_reader(accumulator.result)
        if node is None or (node.domain, node.op_type) != ("", op) or len(node.inputs) != 2:
            return None
        others = [value for value in node.inputs if value is not accumulator.result]
        tensor = self._quantisations.constants.tensor(others[0]) if len(others) == 1 else None
        if tensor is None:
            return None
        shape = accumulator.weights.codes.shape
        numbers = per_channel_values(tensor, shape[0], rank or len(shape))
        if numbers is None:
            return None
        _append_next(accumulator, op)
        return numbers.astype(np.float32)

    def _data(self, node: ir.Node) -> Quantisation:
        return self._quantisations.per_tensor(self._quantisations.of_node(node, what=_DATA), what=_DATA)

    def _stored_weights(self, value: ir.Value) -> ir.TensorProtocol | None:
        """Return the constant that has weights: their codes are `value`, or quantised in the graph."""
        writer = value.producer()
        source = _required(writer, 0) if writer is not None and is_quantize(writer) else value
        return self._quantisations.constants.tensor(source)

    def _weight_codes(self, value: ir.Value, quantisation: Quantisation) -> np.ndarray:
        tensor, writer = self._stored_weights(value), value.producer()
        if tensor is None:
            raise NotQuantised("its weights are not constant")
        if writer is None or not is_quantize(writer):
            return tensor.numpy()
        if not quantisation.is_same(self._quantisations.of_node(writer, what=_WEIGHTS)):
            raise NotQuantised("its weights are quantised and dequantised differently")
        return quantisation.codes(tensor.numpy())

    def _weights(self, value: ir.Value, quantisation: Quantisation) -> Weights:
        """Return the weights whose codes are `value`; those that the graph computes become a new constant."""
        is_stored = self._quantisations.constants.is_stored(value)
        return _shifted(self._weight_codes(value, quantisation), quantisation, value if is_stored else None)

    def _add_bias(self, accumulator: Accumulator, value: ir.Value) -> None:
        """Make the bias of a Conv a part of the sums if its scale fits, else an offset."""
        constants, writer = self._quantisations.constants, value.producer()
        if writer is None or not is_dequantize(writer):
            tensor = constants.tensor(value)
            if tensor is None:
                raise NotQuantised("its bias is not constant")
            accumulator.offset = tensor.numpy().astype(np.float32).reshape(-1)
            return
        codes = constants.tensor(_required(writer, 0))
        if codes is None:
            raise NotQuantised("its bias is not constant")
        scale, zero_point = _inputs(writer, 3)[1:]
        what = "the codes of its bias"
        kinds = (ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8)
        quantisation = self._quantisations.read(
            scale, zero_point, codes.dtype, axis=0, what=what, types=kinds
        )
        numbers = codes.numpy().astype(np.int64).reshape(-1) - quantisation.zero_point
        factors = np.broadcast_to(quantisation.scale, numbers.shape).astype(np.float64)
        fits = len(numbers) == len(accumulator.factor) and np.allclose(
            factors, accumulator.factor, rtol=_BIAS_SCALE_TOLERANCE, atol=0
        )
        if fits and np.abs(numbers).max(initial=0) < _MAX_SUM:
            accumulator.bias = numbers.astype(np.int32)
        else:
            accumulator.offset = (numbers * factors).astype(np.float32)


def _shifted(codes: np.ndarray, quantisation: Quantisation, value: ir.Value | None) -> Weights:
    """Return weights with the zero point 0. `value` has `codes` in the model."""
    if codes.ndim not in RANKS:
        raise NotQuantised(f"its weights have rank {codes.ndim}; QuantConv computes ranks 3, 4 and 5")
    if quantisation.axis is not None and quantisation.axis % codes.ndim != 0:
        raise NotQuantised(f"its weights have a scale for each index of axis {quantisation.axis}; expected 0")
    if quantisation.scale.size not in (1, codes.shape[0]):
        raise NotQuantised(
            f"it has {codes.shape[0]} filters, but {quantisation.scale.size} scales of weights"
        )
    scale = np.broadcast_to(quantisation.scale, codes.shape[:1]).astype(np.float32)
    if codes.dtype == np.int8 and not quantisation.zero_point.any():
        return Weights(codes, scale, value)
    zero_point = np.broadcast_to(quantisation.zero_point, codes.shape[:1])
    shifted = codes.astype(np.int64) - zero_point.reshape(-1, *[1] * (codes.ndim - 1))
    limits = np.iinfo(np.int8)
    lowest, highest = shifted.min(initial=0), shifted.max(initial=0)
    if lowest < limits.min or highest > limits.max:
        raise NotQuantised(
            f"its weights less their zero points are {lowest} to {highest}; QuantConv takes int8, so "
            "quantise the weights to int8"
        )
    return Weights(shifted.astype(np.int8), scale, None)


def _check_shape(accumulator: Accumulator) -> None:
    """Raise NotQuantised if the sums may not fit into int32, or a bias has a wrong length."""
    weights = accumulator.weights.codes
    for name, numbers in (("bias", accumulator.bias), ("bias", accumulator.offset)):
        if numbers is not None and len(numbers) != weights.shape[0]:
            raise NotQuantised(f"it has {weights.shape[0]} filters, but a {name} of {len(numbers)}")
    bias = 0 if accumulator.bias is None else int(np.abs(accumulator.bias.astype(np.int64)).max(initial=0))
    addends = math.prod(weights.shape[1:])
    if _MAX_CODE_DIFFERENCE * _MAX_WEIGHT * addends + bias >= _MAX_SUM:
        raise NotQuantised(
            f"its sums of {addends} products and a bias of up to {bias} may not fit into int32"
        )


def _append_next(accumulator: Accumulator, op: str) -> None:
    node = only_reader(accumulator.result)
    if node is None or (node.domain, node.op_type) != ("", op) or len(node.outputs) != 1:
        raise NotQuantised(f"{accumulator.result.name!r} is not read by one {op} alone")
    accumulator.nodes.append(node)
    accumulator.result = node.outputs[0]


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the only node that reads `value`, once and in the same graph; else None."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output():
        return None
    writer = value.producer()
    return uses[0].node if writer is not None and uses[0].node.graph is writer.graph else None


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


def _required(node: ir.Node, index: int) -> ir.Value:
    value = _inputs(node, index + 1)[index]
    if value is None:
        raise NotQuantised(f"a {node.op_type} before it lacks an input")
    return value
