"""What the layouts of tensors cost: converted elements, or estimated milliseconds of a card."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import onnx_ir as ir

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import AUTO
from convswap.graph.domain import is_quant_op, type_name
from convswap.graph.epilogue import NO_ACTIVATION, NotFusable, read_int, read_ints, read_text
from convswap.graph.fusion.fuse import Chain
from convswap.graph.layout.axes import in_nhwc
from convswap.graph.plain_model import CONVSWAP_ATTRIBUTES
from convswap.graph.quantised.quantisation import CODE_TYPES
from convswap.graph.value_types import ValueTypes

# Elements of a channel group that the kernels for NHWC load at once.
_CHANNELS_AT_ONCE = 8
# The same for codes: on tensor cores, and of depthwise convolutions.
_CODE_CHANNELS_AT_ONCE, _DEPTHWISE_CODES_AT_ONCE = 16, 4
# Neighbouring pixels that a 1x1 convolution of codes may take as one.
_JOINED_PIXELS = (2, 4)
# Most channels of a first layer.
_FEW_CHANNELS = 4
# Inputs of convswap nodes.
_RESIDUAL, _ZERO_POINT, _CODE_RESIDUAL = 3, 3, 6
LAYOUT_ATTRIBUTES = ("input_layout", "residual_layout", "output_layout")
# A Transpose of ONNX Runtime: milliseconds besides its bytes, and its share of the memory's bandwidth. On an
# H200 64 x 144 x 56 x 56 float16 take 54 us, and 64 x 2048 x 7 x 7 take 15 us.
_TRANSPOSE_LAUNCH_MS = 0.003
_TRANSPOSE_SHARE = 0.45
# The share of the memory's bandwidth of ONNX Runtime's elementwise nodes. On an H200 the BiasGelu nodes of
# ConvNeXt-T, which move 2.2 GB for 64 images in float16, take 0.9 ms.
_ELEMENTWISE_SHARE = 0.5
# Bytes per second of a card whose bandwidth is not known.
_LOW_BANDWIDTH = 0.3e12


class NodeLayouts(NamedTuple):
    """Which tensors of a convswap node are NHWC."""

    input: bool
    residual: bool
    output: bool


class Costs(Protocol):
    """Costs of one unit; only their order and their sums count."""

    def conv(self, node: ir.Node, layouts: NodeLayouts) -> float:
        """Return the cost of a convswap node."""

    def transpose(self, value: ir.Value) -> float:
        """Return the cost of a Transpose of `value`."""

    def matmul_gain(self, chain: Chain) -> float:
        """Return the gain of the 1x1 Conv of `chain` over a MatMul and the nodes after it, at least one."""


class ConversionCosts:
    """Counts the elements of tensors that are not in the layout of the kernels that suit a node best.

    Those for NHWC suit a convolution of one group, or a depthwise one, whose channels and filters are
    multiples of 8. First layers of at most four channels write both layouts. Those of QuantConv write NHWC if
    the filters are a multiple of 16, and then read other channels than a multiple of 16 in both layouts
    alike. A depthwise QuantConv needs a multiple of 4. So does a 1x1 QuantConv with stride 1, if 2 or 4
    pixels, of which the tensor has a multiple, together have 16. An extent that is not known counts as one.
    """

    def __init__(self, types: ValueTypes) -> None:
        self._types = types

    def conv(self, node: ir.Node, layouts: NodeLayouts) -> float:
        """Return the elements of the node's tensors in the other layout.

        Those of a QuantConv count twice: its fast kernels take no tensor in NCHW, so a Transpose is better.
        """
        factor = 2.0 if is_quant_op(node) else 1.0
        return factor * sum(map(self.transpose, self.unsuitable(node, layouts)))

    def unsuitable(self, node: ir.Node, layouts: NodeLayouts) -> Iterator[ir.Value]:
        """Yield the node's tensors in the other layout."""
        tensors = (node.inputs[0], residual_of(node), node.outputs[0])
        suitable: Sequence[bool | None] = (
            self._suitable_quantised(node) if is_quant_op(node) else self._suitable(node)
        )
        for value, is_nhwc, suits_nhwc in zip(tensors, layouts, suitable, strict=True):
            if value is not None and suits_nhwc not in (is_nhwc, None):
                yield value

    def transpose(self, value: ir.Value) -> float:
        """Return the elements of `value`; an open extent counts as 1.

        So does the negative extent that shape inference gives a Conv whose filter is larger than its image.
        """
        return float(math.prod(max(extent or 1, 1) for extent in self._types.axes(value)))

    def matmul_gain(self, chain: Chain) -> float:
        """Return the elements that nodes after the MatMul move; 0 if NHWC does not suit the Conv."""
        return _moved_tensors(chain) * self.transpose(chain.result) if self._suitable(chain.conv)[0] else 0.0

    def _suitable(self, node: ir.Node) -> tuple[bool, bool | None, bool | None]:
        """Return whether data, residual and result suit the kernels in NHWC; None: in both layouts."""
        shape = self._plain_weights(node)
        if shape is None:
            return False, False, False
        out_channels, in_channels = shape
        if in_channels % _CHANNELS_AT_ONCE == 0 and out_channels % _CHANNELS_AT_ONCE == 0:
            return True, True, True
        # Kernels for few channels read NCHW and write either layout.
        writes_both = out_channels % _CHANNELS_AT_ONCE == 0 and in_channels <= _FEW_CHANNELS
        either = None if writes_both else False
        return False, either, either

    def _suitable_quantised(self, node: ir.Node) -> tuple[bool | None, bool, bool]:
        """Return whether data, residual and result suit the kernels of QuantConv in NHWC.

        None stands for data that suit them in both layouts.
        """
        shape = self._types.static_shape(node.inputs[1]) if node.inputs[1] is not None else None
        try:
            group = read_int(node, "group", 1)
            if shape is None or len(shape) < 3 or not (group == 1 or group == shape[1] * group == shape[0]):
                return False, False, False
            at_once = _DEPTHWISE_CODES_AT_ONCE if group > 1 else self._codes_at_once(node, shape)
        except NotFusable:
            return False, False, False
        writes = shape[0] % at_once == 0
        reads = shape[1] * group % at_once == 0 or (None if writes else False)
        return reads, writes, writes

    def _codes_at_once(self, node: ir.Node, weights: Sequence[int]) -> int:
        """Return the channels of codes that the tensor cores' kernels for one group load at once."""
        x, zero_point = node.inputs[0], node.inputs[_ZERO_POINT]
        strides, pads = read_ints(node, "strides", ()), read_ints(node, "pads", ())
        if x is None or zero_point is None or {*weights[2:], *strides} != {1} or any(pads):
            return _CODE_CHANNELS_AT_ONCE
        y_type = self._types.element_type([zero_point])
        if y_type is None or y_type not in CODE_TYPES:
            return _CODE_CHANNELS_AT_ONCE
        batch, _, *size = self._types.axes(x) or (None, None)
        pixels = math.prod(extent or 1 for extent in (batch, *size))
        for joined in _JOINED_PIXELS:
            at_once = _CODE_CHANNELS_AT_ONCE // joined
            if pixels % joined == 0 and all(count % at_once == 0 for count in weights[:2]):
                return at_once
        return _CODE_CHANNELS_AT_ONCE

    def _plain_weights(self, node: ir.Node) -> tuple[int, int] | None:
        """Return out and in channels of a convolution of one group or a depthwise one; else None."""
        shape = self._types.static_shape(node.inputs[1]) if node.inputs[1] is not None else None
        try:
            group = read_int(node, "group", 1)
        except NotFusable:
            return None
        if shape is None or len(shape) < 3 or any(extra is not None for extra in node.inputs[4:]):
            return None
        channels = shape[1] * group
        return (shape[0], channels) if group == 1 or (group == channels == shape[0]) else None


class EstimatedCosts:
    """The planner's estimates for the card of this machine, in milliseconds.

    An extent of the first axis that the model leaves open counts as `batch`. Nodes with other open extents
    have no estimate. A QuantConv without an estimate costs a Transpose of each tensor that does not suit its
    kernels.
    """

    def __init__(self, types: ValueTypes, batch: int) -> None:
        self._types, self._batch = types, batch
        self._known: dict[str, float | None] = {}
        self._conversions = ConversionCosts(types)
        bandwidth = _native.cuda_devices()[0]["memory_bandwidth"] or _LOW_BANDWIDTH
        self._bytes_per_ms = bandwidth / 1e3

    def conv(self, node: ir.Node, layouts: NodeLayouts) -> float:
        """Return the estimate of the algorithm that the planner selects, longer by a factor for NHWC.

        Without an estimate NCHW costs nothing, and any other layout is infinitely expensive.
        """
        unknown = math.inf if any(layouts) else 0.0
        if is_quant_op(node):
            unknown = sum(map(self.transpose, self._conversions.unsuitable(node, layouts)))
            problem = self._quant_problem(node, layouts)
        else:
            problem = self._problem(node, layouts)
        if problem is None:
            return unknown
        try:
            algorithm = read_text(node, "algorithm", AUTO)
        except NotFusable:
            return unknown
        milliseconds = self._estimate(problem, algorithm)
        return unknown if milliseconds is None else milliseconds

    def _estimate(self, problem: Any, algorithm: str) -> float | None:
        key = f"{algorithm} {problem.text}"
        if key not in self._known:
            estimates = _native.estimates(problem, "cuda")
            self._known[key] = estimates.get(_native.choose(problem, "cuda", algorithm))
        return self._known[key]

    def transpose(self, value: ir.Value) -> float:
        """Return an estimate for reading and writing `value` once."""
        shape, dtype = self._shape(value), self._types.element_type([value])
        if shape is None or dtype is None:
            return math.inf
        milliseconds = 2 * math.prod(shape) * dtype.itemsize / self._bytes_per_ms
        return _TRANSPOSE_LAUNCH_MS + milliseconds / _TRANSPOSE_SHARE

    def matmul_gain(self, chain: Chain) -> float:
        """Return the estimated gain; 0 without an estimate.

        The time of the MatMul is the planner's estimate for the Conv alone, which rests on memory traffic and
        the rate of the tensor cores. The time of the nodes after it is that of their memory traffic.
        """
        x, w = chain.conv.inputs[:2]
        assert x is not None and w is not None
        shape, w_shape = self._shape(x), self._types.static_shape(w)
        if shape is None or w_shape is None:
            return 0.0
        result = (*shape[:-1], w_shape[0])
        try:
            algorithm = read_text(chain.conv, "algorithm", AUTO)
            alone, fused = (
                _native.Problem(
                    x_shape=shape,
                    w_shape=w_shape,
                    type=type_name(chain.element_type),
                    precision=read_text(chain.conv, "precision", "tf32"),
                    **epilogue | layout_attributes(NodeLayouts(True, "residual_shape" in epilogue, True)),
                )
                for epilogue in ({}, _epilogue(chain, result))
            )
        except (ConvswapError, NotFusable):
            return 0.0
        milliseconds = [self._estimate(alone, AUTO), self._estimate(fused, algorithm)]
        known = [number for number in milliseconds if number is not None]
        if len(known) < len(milliseconds):
            return 0.0
        moved = _moved_tensors(chain) * math.prod(result) * chain.element_type.itemsize
        nodes = moved / self._bytes_per_ms / _ELEMENTWISE_SHARE
        return known[0] + nodes - known[1]

    def _shape(self, value: ir.Value) -> tuple[int, ...] | None:
        first, *others = self._types.axes(value) or [None, None]
        extents = [extent for extent in (first or self._batch, *others) if extent is not None]
        return tuple(extents) if len(extents) == 1 + len(others) else None

    def _problem(self, node: ir.Node, layouts: NodeLayouts) -> Any:
        x, w, bias, residual, depthwise, depthwise_bias = [*node.inputs, *[None] * 5][:6]
        if x is None or w is None:
            return None
        shapes = {value: self._shape(value) for value in (x, residual) if value is not None}
        w_shape = self._types.static_shape(w)
        depthwise_shape = None if depthwise is None else self._types.static_shape(depthwise)
        dtype = self._types.element_type([x, w, node.outputs[0]])
        if None in shapes.values() or w_shape is None or dtype is None:
            return None
        if depthwise is not None and depthwise_shape is None:
            return None
        try:
            return _native.Problem(
                x_shape=_in_layout(shapes[x], layouts.input),
                w_shape=w_shape,
                has_bias=bias is not None,
                type=type_name(dtype),
                precision=read_text(node, "precision", "tf32"),
                residual_shape=None if residual is None else _in_layout(shapes[residual], layouts.residual),
                depthwise_shape=depthwise_shape,
                has_depthwise_bias=depthwise_bias is not None,
                **_problem_attributes(node) | layout_attributes(layouts),
            )
        except (ConvswapError, NotFusable):
            return None

    def _quant_problem(self, node: ir.Node, layouts: NodeLayouts) -> Any:
        x, w, _, zero_point, bias, offset = [*node.inputs, *[None] * 4][:6]
        residual = residual_of(node)
        if x is None or w is None or zero_point is None:
            return None
        x_shape, w_shape = self._shape(x), self._types.static_shape(w)
        residual_shape = None if residual is None else self._shape(residual)
        x_type, y_type = self._types.element_type([x]), self._types.element_type([zero_point])
        if x_shape is None or w_shape is None or x_type is None or y_type is None:
            return None
        if residual is not None and residual_shape is None:
            return None
        try:
            return _native.Problem(
                x_shape=_in_layout(x_shape, layouts.input),
                w_shape=w_shape,
                has_bias=bias is not None,
                type=type_name(x_type),
                y_type=type_name(y_type),
                has_offset=int(offset is not None),
                residual_shape=None if residual is None else _in_layout(residual_shape, layouts.residual),
                **_problem_attributes(node) | layout_attributes(layouts),
            )
        except ConvswapError:
            return None


def _problem_attributes(node: ir.Node) -> dict[str, Any]:
    return {
        name: attribute.value
        for name, attribute in node.attributes.items()
        if name not in CONVSWAP_ATTRIBUTES
    }


def residual_of(node: ir.Node) -> ir.Value | None:
    """Return the residual of a convswap node; see `plain_model.code_residual` for constants with one axis."""
    index = _CODE_RESIDUAL if is_quant_op(node) else _RESIDUAL
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = ir.convenience.get_const_tensor(value) if value is not None and is_quant_op(node) else None
    return None if tensor is not None and len(tensor.shape) == 1 else value


def _moved_tensors(chain: Chain) -> int:
    """Return how many tensors of the result's size the nodes of `chain` after the MatMul read and write.

    ONNX Runtime computes a bias and Gelu in one node.
    """
    # A scale changes the bias as well.
    has_bias = chain.folding.changes_bias and chain.fused_nodes[0].op_type != "Mul"
    return (
        2 * (has_bias or chain.activation != NO_ACTIVATION)
        + 2 * chain.folding.changes_weights
        + 3 * (chain.residual is not None)
    )


def _epilogue(chain: Chain, result: Sequence[int]) -> dict[str, Any]:
    """Return the arguments of a Problem for the nodes of `chain`, whose result has the shape `result`."""
    residual = {} if chain.residual is None else {"residual_shape": result}
    attributes = {attribute.name: attribute.value for attribute in chain.activation.attributes()}
    return {"has_bias": True} | residual | attributes


def layout_attributes(layouts: NodeLayouts) -> dict[str, str]:
    """Return the attributes of LayoutConv for tensors that are NHWC."""
    return {f"{name}_layout": "NHWC" for name, is_nhwc in layouts._asdict().items() if is_nhwc}


def _in_layout(shape: Any, is_nhwc: bool) -> Sequence[int]:
    return in_nhwc(shape) if is_nhwc else shape
