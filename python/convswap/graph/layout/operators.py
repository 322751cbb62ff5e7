"""ONNX's operators that compute the same with their tensors in NHWC, and what changes in their nodes then.

A node is "carried" if it is computed in NHWC. The rule of an operator returns the values of a node that have
the same layout ("tied"), and a function that rewrites the node for NHWC. Other inputs and outputs keep their
order of axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir as ir

from convswap.graph.constants import Constants
from convswap.graph.domain import (
    DOMAIN,
    LAYOUT_OP,
    POOL_OP,
    SUPPORTED_ELEMENT_TYPES,
    is_layout_pool,
    opset_of,
    type_name,
)
from convswap.graph.epilogue import NotFusable, Pool, read_int, read_ints, read_text
from convswap.graph.fusion.folding import normalisation
from convswap.graph.layout.axes import RANKS, axis_in_nhwc, in_nhwc, to_nchw, to_nhwc
from convswap.graph.pooling import read_pool
from convswap.graph.value_types import ValueTypes

# In older opsets binary operators broadcast by attributes.
OLDEST_OPSET = 7
_AXES_ARE_INPUTS = {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}
_REDUCTIONS_TAKE_AXES_AS_INPUT = 18
_SOFTMAX_HAS_ONE_AXIS = 13
_SLICE_HAS_INPUTS = 10
_PAD_HAS_INPUTS = 11
# A thread of LayoutPool reads a whole window. Many positions for each result are too few threads for a card.
_LARGEST_WINDOW = 256
_DEPTHWISE_TYPES = SUPPORTED_ELEMENT_TYPES - {ir.DataType.DOUBLE}
_INTEGERS_WITH_MAXIMA = frozenset({ir.DataType.INT8, ir.DataType.UINT8})

ELEMENTWISE = {
    ("", op)
    for op in (
        "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Cos", "Div", "Dropout", "Elu", "Equal", "Erf",
        "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity",
        "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not",
        "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus",
        "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tanh", "ThresholdedRelu", "Where", "Xor",
    )
} | {("com.microsoft", op) for op in ("FastGelu", "Gelu", "QuickGelu")}  # fmt: skip
REDUCTIONS = {
    f"Reduce{kind}"
    for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
}


class NotCarried(Exception):
    """The node cannot be computed in NHWC; the text is the reason, with the node as "it"."""


class Writer(Protocol):
    """Adds constants and nodes to the model."""

    def constant(self, node: ir.Node, role: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Return a new constant for `node`; `role` is a part of its name."""

    def node_before(self, node: ir.Node, op: str, *inputs: ir.Value | None) -> ir.Value:
        """Insert a new node of ONNX's `op` before `node`; return its result."""

    def node_after(self, node: ir.Node, op: str, *inputs: ir.Value | None) -> ir.Node:
        """Insert a new node of ONNX's `op` after `node`; return it, its result without a name."""

    def unique_name(self, base: str) -> str:
        """Return a name for a value that no other value has: `base`, perhaps with a number."""


@dataclass(frozen=True)
class Carried:
    """A node that can be computed in NHWC: the values whose layout is that of the node, and its rewriting."""

    tied: tuple[ir.Value, ...]
    write: Callable[[Writer], None]


class Reader:
    """What rules know of a model: ranks, shapes, constants and the opset."""

    def __init__(self, model: ir.Model, types: ValueTypes) -> None:
        self._types = types
        self._constants = Constants(model)
        self.opset = opset_of(model)

    def rank(self, *values: ir.Value) -> int | None:
        """Return the rank of `values`, which all have the same; None if it is unknown."""
        return self._types.rank(values)

    def axes(self, value: ir.Value) -> list[int | None]:
        """Return the extents of `value`, None where unknown; an empty list for an unknown rank."""
        return self._types.axes(value)

    def element_type(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of `value`; None if it is unknown."""
        return self._types.element_type([value])

    def contradicts(self, value: ir.Value) -> bool:
        """Return whether the model declared another shape of `value` than its certain one."""
        return self._types.contradicts(value)

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """Return the constant tensor of `value`; None if it is not constant."""
        return self._constants.tensor(value)

    def normalisation(self, node: ir.Node, channels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the numbers of a BatchNormalization, see `fusion.folding.normalisation`."""
        return normalisation(node, self.opset, self._constants, channels)

    def integers(self, node: ir.Node, index: int) -> list[int] | None:
        """Return the integers of a constant input; None for an absent one."""
        value = _input(node, index)
        if value is None:
            return None
        tensor = self.tensor(value)
        if tensor is None or tensor.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
            raise NotCarried(f"its input {value.name!r} is no constant list of integers")
        return [int(number) for number in tensor.numpy().flat]


def carried(node: ir.Node, reader: Reader) -> Carried:
    """Return how `node` is computed in NHWC.

    Raises:
        NotCarried: it is not.
        NotFusable: it has an attribute of another type than ONNX's.
    """
    if reader.opset < OLDEST_OPSET:
        raise NotCarried(
            f"the model's opset is {reader.opset}; tensors become NHWC from opset {OLDEST_OPSET} on"
        )
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        raise NotCarried("its attributes refer to those of a function")
    if (node.domain, node.op_type) in ELEMENTWISE:
        return _elementwise(node, reader)
    if is_layout_pool(node):
        raise NotCarried("it is in NHWC already")
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    if any(attribute.type == ir.AttributeType.GRAPH for attribute in node.attributes.values()):
        raise NotCarried("it has subgraphs")
    if rule is None:
        raise NotCarried("it has no form for NHWC")
    try:
        return rule(node, reader)
    except IndexError as error:
        raise NotCarried("its axes do not fit its data") from error


def _elementwise(node: ir.Node, reader: Reader) -> Carried:
    outputs = [value for value in node.outputs if value.uses() or value.is_graph_output()]
    rank = _data_rank(node.outputs[0], reader)
    if node.domain and len(node.inputs) > 1:
        raise NotCarried("it adds a bias along the last axis")
    tied: list[ir.Value] = list(outputs)
    constants: list[tuple[int, ir.TensorProtocol]] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        tensor = reader.tensor(value)
        if tensor is not None:
            if tensor.size != 1:
                constants.append((index, tensor))
        elif reader.rank(value) == rank:
            tied.append(value)
        elif any(extent != 1 for extent in reader.axes(value) or [None]) and reader.rank(value) != 0:
            raise NotCarried(f"its operand {value.name!r} is not known to have rank {rank}, like its result")
    if not tied:
        raise NotCarried("nothing reads its result")
    permuted = [(index, _permuted(tensor, rank)) for index, tensor in constants]

    def write(writer: Writer) -> None:
        for index, tensor in permuted:
            node.replace_input_with(index, writer.constant(node, "operand", tensor))

    return Carried(tuple(tied), write)


def _permuted(tensor: ir.TensorProtocol, rank: int) -> ir.TensorProtocol:
    """Return `tensor`, which is broadcast to `rank` axes in NCHW, in NHWC."""
    if len(tensor.shape) > rank:
        raise NotCarried("a constant operand has more axes than its result")
    array = tensor.numpy()
    array = array.reshape((1,) * (rank - array.ndim) + array.shape)
    return ir.Tensor(np.ascontiguousarray(array.transpose(to_nhwc(rank))), dtype=tensor.dtype)


def _quantize(node: ir.Node, reader: Reader) -> Carried:
    """QuantizeLinear and DequantizeLinear, which have one scale, or one for each index of an axis."""
    data = _data(node)
    rank = _data_rank(data, reader)
    tied = (data, node.outputs[0])
    scale = _input(node, 1)
    scales = [None] if scale is None else reader.axes(scale)
    if scales == [1] or (scale is not None and reader.rank(scale) == 0):
        return Carried(tied, lambda _: None)
    if len(scales) != 1:
        raise NotCarried("it has a scale for each block, or scales of unknown shape")
    axis = axis_in_nhwc(read_int(node, "axis", 1), rank)
    return Carried(tied, lambda _: _set_axis(node, axis))


def _concat(node: ir.Node, reader: Reader) -> Carried:
    rank = _data_rank(node.outputs[0], reader)
    axis = axis_in_nhwc(read_int(node, "axis", 1), rank)
    inputs = [value for value in node.inputs if value is not None]
    constants = [(index, _permuted(tensor, rank)) for index, value in enumerate(node.inputs)
                 if value is not None and (tensor := reader.tensor(value)) is not None]  # fmt: skip
    tied = [value for value in inputs if reader.tensor(value) is None]

    def write(writer: Writer) -> None:
        _set_axis(node, axis)
        for index, tensor in constants:
            node.replace_input_with(index, writer.constant(node, "operand", tensor))

    return Carried((*tied, node.outputs[0]), write)


def _split(node: ir.Node, reader: Reader) -> Carried:
    data = _data(node)
    axis = axis_in_nhwc(read_int(node, "axis", 0), _data_rank(data, reader))
    return Carried((data, *node.outputs), lambda _: _set_axis(node, axis))


def _softmax(node: ir.Node, reader: Reader) -> Carried:
    if reader.opset < _SOFTMAX_HAS_ONE_AXIS:
        raise NotCarried(f"before opset {_SOFTMAX_HAS_ONE_AXIS} it normalises all axes from one on together")
    data = _data(node)
    axis = axis_in_nhwc(read_int(node, "axis", -1), _data_rank(data, reader))
    return Carried((data, node.outputs[0]), lambda _: _set_axis(node, axis))


def _slice(node: ir.Node, reader: Reader) -> Carried:
    data = _data(node)
    rank = _data_rank(data, reader)
    if reader.opset < _SLICE_HAS_INPUTS:
        starts, ends = read_ints(node, "starts", ()), read_ints(node, "ends", ())
        named = read_ints(node, "axes", tuple(range(len(starts))))
        # ONNX infers no shape from axes that are not sorted.
        cuts = sorted(
            (axis_in_nhwc(axis, rank), start, end)
            for axis, start, end in zip(named, starts, ends, strict=False)
        )

        def write(_: Writer) -> None:
            for name, numbers in zip(("axes", "starts", "ends"), zip(*cuts, strict=True), strict=False):
                _set_ints(node, name, numbers)

        return Carried((data, node.outputs[0]), write)
    given = reader.integers(node, 3)
    if given is None:
        given = list(range(len(reader.integers(node, 1) or ())))
    moved = [axis_in_nhwc(axis, rank) for axis in given]
    axes_input = _input(node, 3) or _input(node, 1)
    tensor = reader.tensor(axes_input)
    dtype = ir.DataType.INT64 if tensor is None else tensor.dtype
    return Carried((data, node.outputs[0]), lambda writer: _set_input(node, 3, "axes", moved, writer, dtype))


def _pad(node: ir.Node, reader: Reader) -> Carried:
    data = _data(node)
    rank = _data_rank(data, reader)
    tied = (data, node.outputs[0])
    if reader.opset < _PAD_HAS_INPUTS:
        given = read_ints(node, "pads", ())
        _check_length(given, 2 * rank)
        in_order = [*in_nhwc(given[:rank]), *in_nhwc(given[rank:])]
        return Carried(tied, lambda _: _set_ints(node, "pads", in_order))
    ((index, role, pads),) = _operands_per_axis(node, reader, rank)
    moved = pads.reshape(2, rank)[:, list(to_nhwc(rank))].reshape(-1)
    return Carried(tied, lambda writer: _set_operands(node, [(index, role, moved)], writer))


_Operands = Sequence[tuple[int, str, np.ndarray]]


def names_axes(node: ir.Node) -> bool:
    """Return whether `node` is a Pad or Resize whose operands are for the axes that it names.

    ONNX Runtime (1.31, 1.32) moves Transposes through such a node as if it named none, and then fails.
    """
    is_pad = (node.domain, node.op_type) == ("", "Pad") and _input(node, 3) is not None
    return is_pad or ((node.domain, node.op_type) == ("", "Resize") and "axes" in node.attributes)


def with_every_axis(node: ir.Node, reader: Reader) -> Callable[[Writer], None]:
    """Return what rewrites `node`, which names axes, as one whose operands are for every axis.

    Raises:
        NotCarried: the operands are not known.
    """
    rank = reader.rank(_data(node), node.outputs[0])
    if rank is None:
        raise NotCarried("the rank of its data is not known")
    try:
        operands = _operands_per_axis(node, reader, rank)
    except (IndexError, NotFusable) as error:
        raise NotCarried("its axes do not fit its data") from error
    return lambda writer: _set_operands(node, operands, writer)


def _operands_per_axis(node: ir.Node, reader: Reader, rank: int) -> _Operands:
    """Return index, name and numbers of each constant operand of a Pad or Resize, for every axis of NCHW."""
    if node.op_type == "Pad":
        given, axes = reader.integers(node, 1) or [], reader.integers(node, 3)
        places = [range(rank)[axis] for axis in (range(rank) if axes is None else axes)]
        _check_length(given, 2 * len(places))
        pads = np.zeros((2, rank), np.int64)
        pads[:, places] = np.reshape(given, (2, len(places)))
        return [(1, "pads", pads.reshape(-1))]
    places = [range(rank)[axis] for axis in read_ints(node, "axes", tuple(range(rank)))]
    # Upsample and the first Resize have (X, scales), later ones (X, roi, scales, sizes).
    has_sizes = node.op_type == "Resize" and reader.opset > 10
    operands = []
    for index, role in ({2: "scales", 3: "sizes"} if has_sizes else {1: "scales"}).items():
        value = _input(node, index)
        tensor = reader.tensor(value)
        if value is None or (tensor is not None and tensor.size == 0):
            continue
        if tensor is None:
            raise NotCarried(f"its {role} are not constant")
        _check_length(tensor.numpy(), len(places))
        numbers = np.ones(rank, tensor.dtype.numpy())
        if role == "sizes" and len(places) < rank:
            extents = reader.axes(_data(node))
            known = [extent for extent in extents if extent is not None]
            if len(known) != rank or read_text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
                raise NotCarried("its sizes are for some axes, and the size of its data is not known")
            numbers[:] = known
        numbers[places] = tensor.numpy()
        operands.append((index, role, numbers))
    return operands


def _set_operands(node: ir.Node, operands: _Operands, writer: Writer) -> None:
    for index, role, numbers in operands:
        node.replace_input_with(index, writer.constant(node, role, ir.Tensor(numbers)))
    node.attributes.pop("axes", None)
    if node.op_type == "Pad":
        node.resize_inputs(min(3, len(node.inputs)))


def _reduce(node: ir.Node, reader: Reader) -> Carried:
    """Reductions of the channels, which NHWC makes the last axis, and means of all positions of a channel."""
    data = _data(node)
    rank = _data_rank(data, reader)
    keeps_axes = read_int(node, "keepdims", 1) != 0
    axes, write_axes = _axes_of(node, reader, rank)
    if axes == list(range(2, rank)) and node.op_type == "ReduceMean":
        return _mean(node, reader, keeps_axes)
    if axes != [1]:
        raise NotCarried("it reduces other axes than the channels, which ONNX Runtime does slowly in NHWC")
    return Carried((data, node.outputs[0]) if keeps_axes else (data,), write_axes)


def _global_average_pool(node: ir.Node, reader: Reader) -> Carried:
    return _mean(node, reader, keeps_axes=True)


def _mean(node: ir.Node, reader: Reader, keeps_axes: bool) -> Carried:
    """The mean of each channel, by a LayoutPool of all positions. ONNX Runtime is slow at it in NHWC."""
    data = _data(node)
    rank = _data_rank(data, reader)
    _, channels, *extents = reader.axes(data) or [None] * rank
    known = [extent for extent in extents if extent is not None]
    dtype = reader.element_type(data)
    if dtype not in SUPPORTED_ELEMENT_TYPES:
        raise NotCarried(f"its element type is {'not known' if dtype is None else type_name(dtype)}")
    if channels is None or len(known) != len(extents):
        raise NotCarried("the size of its data is not known")
    positions = math.prod(known)
    if positions == 0:
        raise NotCarried("its data are empty")
    if positions > _LARGEST_WINDOW and channels * dtype.itemsize % 16 != 0:
        raise NotCarried("its kernel needs channels of a multiple of 16 bytes")
    is_image = rank == 4
    result = [0, *[1] * (rank - 2), channels] if keeps_axes else [0, channels]

    def write(writer: Writer) -> None:
        def integers(role: str, numbers: Sequence[int]) -> ir.Value:
            return writer.constant(node, role, ir.Tensor(np.array(numbers, np.int64)))

        window = (known[0], known[1]) if is_image else (positions, 1)
        pool = Pool("AveragePool", window, (1, 1), (0, 0, 0, 0), False, False)
        node.resize_inputs(1)
        if is_image and keeps_axes:
            return _become_layout_pool(node, pool)
        images = node.inputs[0]
        if not is_image:
            shape = integers("image", [0, positions, 1, channels])
            images = writer.node_before(node, "Reshape", images, shape)
        means = writer.node_before(node, pool.op, images)
        pooling = means.producer()
        assert pooling is not None
        _become_layout_pool(pooling, pool)
        node.op_type = "Reshape"
        node.attributes.clear()
        node.resize_inputs(2)
        node.replace_input_with(0, means)
        node.replace_input_with(1, integers("shape", result))

    return Carried((data, node.outputs[0]) if keeps_axes else (data,), write)


def _become_layout_pool(node: ir.Node, pool: Pool) -> None:
    node.domain, node.op_type, node.overload, node.version = DOMAIN, POOL_OP, "", None
    node.attributes.clear()
    for attribute in pool.attributes():
        name = attribute.name.removeprefix("pool_")
        node.attributes[name] = ir.Attr(name, attribute.type, attribute.value)
    node.resize_outputs(1)


def _batch_normalization(node: ir.Node, reader: Reader) -> Carried:
    """BatchNormalization that is in no Conv becomes a depthwise Conv of one tap, which also computes an
    activation after it. ONNX Runtime has it in NCHW only.
    """
    data = _data(node)
    rank = _data_rank(data, reader)
    channels = (reader.axes(data) or [None] * rank)[1]
    dtype = reader.element_type(data)
    if dtype not in _DEPTHWISE_TYPES:
        raise NotCarried(f"its element type is {'not known' if dtype is None else type_name(dtype)}")
    if channels is None or channels % 8 != 0:
        raise NotCarried("its channels are not known to be a multiple of 8")
    factor, mean, bias = reader.normalisation(node, channels)
    with np.errstate(all="ignore"):
        weights, biases = (array.astype(dtype.numpy()) for array in (factor, bias - mean * factor))
    if not np.isfinite(np.stack([weights, biases]).astype(np.float64)).all():
        raise NotCarried("its scale or bias is not finite as a Conv's")

    def write(writer: Writer) -> None:
        taps = weights.reshape(channels, *[1] * (rank - 1))
        node.resize_inputs(3)
        for index, role, array in ((1, "weights", taps), (2, "bias", biases)):
            node.replace_input_with(index, writer.constant(node, role, ir.Tensor(array, dtype=dtype)))
        node.domain, node.op_type, node.version = DOMAIN, LAYOUT_OP, None
        node.attributes.clear()
        node.attributes["group"] = ir.AttrInt64("group", channels)
        for name in ("input_layout", "output_layout"):
            node.attributes[name] = ir.AttrString(name, "NHWC")
        node.resize_outputs(1)

    return Carried((data, node.outputs[0]), write)


def _pool(node: ir.Node, reader: Reader) -> Carried:
    """MaxPool and AveragePool of images, which become LayoutPool: ONNX Runtime has them in NCHW only."""
    data = _data(node)
    _data_rank(data, reader)
    sizes = reader.axes(data)[2:] or [None, None]
    pool = read_pool(node, sizes, opset=reader.opset, contradicted=reader.contradicts(data))
    if math.prod(pool.kernel_shape) > _LARGEST_WINDOW:
        raise NotCarried(f"its window has more than {_LARGEST_WINDOW} positions")
    dtype = reader.element_type(data)
    has_type = dtype in SUPPORTED_ELEMENT_TYPES or (pool.op == "MaxPool" and dtype in _INTEGERS_WITH_MAXIMA)
    if dtype is not None and not has_type:
        raise NotCarried(f"its element type is {type_name(dtype)}")

    return Carried((data, node.outputs[0]), lambda _: _become_layout_pool(node, pool))


def _squeeze(node: ir.Node, reader: Reader) -> Carried:
    """Squeeze and Unsqueeze between (N, C) and (N, C, 1, ...)."""
    value = _data(node) if node.op_type == "Squeeze" else node.outputs[0]
    rank = _data_rank(value, reader)
    axes, write_axes = _axes_of(node, reader, rank)
    if axes != list(range(2, rank)):
        raise NotCarried("its axes are not known to be the spatial ones")
    return Carried((value,), write_axes)


def _axes_of(node: ir.Node, reader: Reader, rank: int) -> tuple[list[int], Callable[[Writer], None]]:
    """Return the axes of Squeeze, Unsqueeze or a reduction, sorted, and what writes those of NHWC."""
    are_input = reader.opset >= _AXES_ARE_INPUTS.get(node.op_type, _REDUCTIONS_TAKE_AXES_AS_INPUT)
    given = reader.integers(node, 1) if are_input else list(read_ints(node, "axes", ()))
    axes = sorted(range(rank)[axis] for axis in given or ())
    moved = sorted(axis_in_nhwc(axis, rank) for axis in axes)
    if are_input:
        return axes, lambda writer: _set_input(node, 1, "axes", moved, writer)
    return axes, lambda _: _set_ints(node, "axes", moved)


def _flatten(node: ir.Node, reader: Reader) -> Carried:
    data = _data(node)
    rank = _data_rank(data, reader)
    if read_int(node, "axis", 1) not in (1, 1 - rank) or not _has_one_position(data, reader):
        raise NotCarried("its result has the positions of a channel next to each other")
    return Carried((data,), lambda _: None)


def _reshape(node: ir.Node, reader: Reader) -> Carried:
    data, result = _data(node), node.outputs[0]
    target = reader.integers(node, 1) or []
    if read_int(node, "allowzero", 0) and 0 in target:
        raise NotCarried("its attribute allowzero is set, and its shape has a 0")
    extents, rank = reader.axes(data), len(target)
    # (N, C, 1, 1) is the same memory in both layouts; a matrix of images and channels is the same in both.
    if len(extents) in RANKS and rank == 2 and _has_one_position(data, reader) and target[1] != 0:
        return Carried((data,), lambda _: None)
    if len(extents) == 2 and rank in RANKS and target[2:] == [1] * (rank - 2) and target[1] != 0:
        tied: tuple[ir.Value, ...] = (result,)
    elif len(extents) in RANKS and rank in RANKS and _keeps_channels(extents, target):
        tied = (data, result)
        target[1] = extents[1] or 0
    else:
        raise NotCarried("it mixes channels and positions")
    moved = in_nhwc(target)
    return Carried(tied, lambda writer: _set_input(node, 1, "shape", moved, writer))


def _keeps_channels(extents: Sequence[int | None], target: Sequence[int]) -> bool:
    """Return whether a Reshape to `target` keeps images and channels, and only divides the positions."""
    batch, channels, *spatial = extents
    if channels is None or target[1] not in (0, channels) or 0 in target[2:]:
        return False
    if target[0] == 0 or (batch is not None and target[0] == batch):
        return True
    # The rest of the numbers says how many images there are.
    known = [extent for extent in spatial if extent is not None]
    return target[0] == -1 and len(known) == len(spatial) and math.prod(known) == math.prod(target[2:])


def _has_one_position(value: ir.Value, reader: Reader) -> bool:
    extents = reader.axes(value)
    return len(extents) in RANKS and all(extent == 1 for extent in extents[2:])


def _resize(node: ir.Node, reader: Reader) -> Carried:
    data = _data(node)
    rank = _data_rank(data, reader)
    if read_text(node, "mode", "nearest") != "nearest":
        raise NotCarried("it interpolates, which ONNX Runtime computes in NCHW")
    if read_text(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize":
        raise NotCarried("it crops")
    if "scales" in node.attributes:
        raise NotCarried("its scales are an attribute")
    order = list(to_nhwc(rank))
    operands = [
        (index, role, numbers[order]) for index, role, numbers in _operands_per_axis(node, reader, rank)
    ]
    return Carried((data, node.outputs[0]), lambda writer: _set_operands(node, operands, writer))


def _shape(node: ir.Node, reader: Reader) -> Carried:
    data = _data(node)
    rank = _data_rank(data, reader)
    start, end = read_int(node, "start", 0), read_int(node, "end", rank)
    places = np.array(to_nchw(rank)[start:end], np.int64)

    def write(writer: Writer) -> None:
        for name in ("start", "end"):
            node.attributes.pop(name, None)
        (shape,) = node.outputs
        gather = writer.node_after(node, "Gather", None, writer.constant(node, "order", ir.Tensor(places)))
        (in_order,) = gather.outputs
        in_order.name, in_order.type, in_order.shape = shape.name, shape.type, shape.shape
        shape.name = writer.unique_name(f"{shape.name}/NHWC")
        shape.replace_all_uses_with(in_order, replace_graph_outputs=True)
        shape.type, shape.shape = ir.TensorType(ir.DataType.INT64), ir.Shape([rank])
        gather.replace_input_with(0, shape)

    return Carried((data,), write)


_RULES: dict[str, Callable[[ir.Node, Reader], Carried]] = {
    "AveragePool": _pool,
    "Concat": _concat,
    "DequantizeLinear": _quantize,
    "Flatten": _flatten,
    "BatchNormalization": _batch_normalization,
    "GlobalAveragePool": _global_average_pool,
    "LogSoftmax": _softmax,
    "MaxPool": _pool,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Unsqueeze": _squeeze,
    "Upsample": _resize,
    **dict.fromkeys(REDUCTIONS, _reduce),
}


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _data(node: ir.Node) -> ir.Value:
    value = _input(node, 0)
    if value is None or not node.outputs:
        raise NotCarried("it has no data")
    return value


def _data_rank(value: ir.Value, reader: Reader) -> int:
    rank = reader.rank(value)
    if rank is None:
        raise NotCarried("the rank of its data is not known")
    if rank not in RANKS:
        raise NotCarried(f"its data have rank {rank}")
    return rank


def _check_length(numbers: Sequence[int] | np.ndarray, length: int) -> None:
    if len(numbers) != length:
        raise NotCarried(f"it has {len(numbers)} numbers where its data have {length}")


def _set_axis(node: ir.Node, axis: int) -> None:
    node.attributes["axis"] = ir.AttrInt64("axis", axis)


def _set_ints(node: ir.Node, name: str, numbers: Sequence[int]) -> None:
    node.attributes[name] = ir.AttrInt64s(name, numbers)


def _set_input(
    node: ir.Node,
    index: int,
    role: str,
    numbers: Sequence[int],
    writer: Writer,
    dtype: ir.DataType = ir.DataType.INT64,
) -> None:
    """Set a list of integers as an input of `node`."""
    value = writer.constant(node, role, ir.Tensor(np.array(numbers, dtype.numpy())))
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)
