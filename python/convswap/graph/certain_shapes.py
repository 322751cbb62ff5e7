"""Shapes that follow from a model's inputs and constants, independent of other declarations in the file.

ONNX Runtime rejects an input whose rank, or whose extent along an axis with a declared number, differs from
the declaration. It enforces no other declared shape: shapes of inner values and outputs may have been
declared for other inputs, and two axes with the same symbol may differ in length. So ONNX's shape inference
runs on a copy of the model in which every open axis of an input has a unique symbol, and in which computed
values have no declared shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError
from convswap.graph.constants import Constants
from convswap.graph.domain import DOMAIN, is_convswap_conv
from convswap.graph.epilogue import NotFusable, read_int, read_ints, read_text
from convswap.graph.functions import count_copies
from convswap.graph.names import UniqueNames, values_of
from convswap.graph.plain_model import plain_model
from convswap.graph.serialisation import from_proto, to_proto
from convswap.graph.symbolic_extents import Label, SymbolicExtents

Extent = int | str | None

# Shape inference needs the values of small initializers (shapes, axes), but never the values of weights.
_SMALL_INITIALIZER_BYTES = 1024
# Limit of inference passes. Each pass gets past one more node whose result shape inference cannot tell.
# Models with longer chains of such nodes are rare, and only get fewer certain shapes.
_MAX_ROUNDS = 64
_POOLS = {("", "MaxPool"), ("", "AveragePool"), ("", "LpPool")}
# Their bodies may run any number of times, also never, so shapes that are certain in a body are uncertain
# after the node.
_LOOP_OPS = {("", "Loop"), ("", "Scan")}
# ONNX Runtime's ops, unknown to ONNX, whose result has the shape of the first input.
_SHAPE_PRESERVING_CONTRIB_OPS = {("com.microsoft", op) for op in ("Gelu", "FastGelu", "QuickGelu")}
# ONNX Runtime's ops on codes, with the op of ONNX whose result has the same shape, and its inputs.
_CODE_OPS = {
    ("com.microsoft", "QuantizeLinear"): ("QuantizeLinear", slice(3)),
    ("com.microsoft", "DequantizeLinear"): ("DequantizeLinear", slice(3)),
    ("com.microsoft", "QLinearAdd"): ("Add", slice(0, 4, 3)),
    ("com.microsoft", "QLinearMul"): ("Mul", slice(0, 4, 3)),
    ("com.microsoft", "QLinearConcat"): ("Concat", slice(2, None, 3)),
    ("com.microsoft", "QLinearLeakyRelu"): ("Identity", slice(1)),
    ("com.microsoft", "QLinearSigmoid"): ("Identity", slice(1)),
}
# ONNX's ops whose result has the shape and the type of the first input.
_SHAPE_PRESERVING_OPS = {
    "BatchNormalization", "Clip", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Neg", "Relu", "Sigmoid", "Tanh",
}  # fmt: skip


@dataclass(frozen=True)
class CertainShapes:
    """The certain shapes of a model's values.

    `values` maps values of the model to the same values after shape inference. `declared_symbols` maps a
    symbol of the inference to the model's name for the axis, if the model uses the name for one input axis
    only.
    """

    values: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    declared_symbols: Mapping[str, str] = field(default_factory=dict)
    symbols: SymbolicExtents | None = None

    def shape(self, value: ir.Value | None) -> tuple[Extent, ...] | None:
        """Return the extents of `value`: numbers, symbols or None; return None if its rank is unknown."""
        inferred = None if value is None else self.values.get(value)
        return None if inferred is None else extents_of(inferred)

    def element_type(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type of `value`; None if it is unknown."""
        inferred = None if value is None else self.values.get(value)
        return None if inferred is None else inferred.dtype

    def labels(self, value: ir.Value) -> list[Label | None]:
        """Return a label per extent of `value`, equal for equal extents; an empty list for unknown rank."""
        inferred = self.values.get(value)
        return [] if inferred is None or self.symbols is None else self.symbols.labels(inferred)


def certain_shapes(model: ir.Model) -> CertainShapes:
    """Return the shapes that follow from the inputs and constants of `model`; none if inference fails."""
    try:
        # Raises for models with so many function calls that onnx, which follows every call, would take
        # minutes.
        count_copies(model, model.functions.keys())
        skeleton = _Skeleton(model)
        inferred = skeleton.infer()
        symbols = SymbolicExtents(inferred, lambda value: list(extents_of(value) or ()))
        return CertainShapes(pair_values(model, inferred), skeleton.declared_symbols, symbols)
    except Exception:
        # No error: the Convs of such a model are not swapped, and the result has the reason.
        return CertainShapes()


def extents_of(value: ir.Value | ir.TensorProtocol) -> tuple[Extent, ...] | None:
    """Return the declared shape of `value`; an extent that is neither a number nor a symbol is None."""
    if value.shape is None:
        return None
    return tuple(extent if isinstance(extent, int) else extent.value or None for extent in value.shape)


class _Skeleton:
    """A copy of a model with the same graphs and values, but without weights and unreliable shapes."""

    def __init__(self, model: ir.Model) -> None:
        self.declared_symbols: dict[str, str] = {}
        self._names = UniqueNames.of_values(model.graphs())
        self._symbols = 0
        self._inputs_may_be_constant = Constants(model).inputs_may_be_constant
        self._skeleton = _without_convswap_ops(self._without_declared_shapes(model.clone()))
        # The shape operand of the Reshapes that hide shapes from inference; its value is unknown.
        self._unknown_shape = ir.Value(
            name=self._names.make_unique("anything"), type=ir.TensorType(ir.DataType.INT64)
        )
        self._skeleton.graph.inputs.append(self._unknown_shape)
        # Pools with ceil_mode, by the value that replaces their result.
        self._ceil_pools: dict[ir.Value, ir.Node] = {}
        for node in list(ir.traversal.RecursiveGraphIterator(self._skeleton.graph)):
            self._replace_uncertain_node(node)
        live: set[ir.Node] = set()
        _collect_live_nodes(self._skeleton.graph, live)
        self._convs = [node for node in live if node.op_type == "Conv" and len(node.inputs) > 1]

    def infer(self) -> ir.Model:
        """Return the skeleton with all inferred shapes."""
        for _ in range(_MAX_ROUNDS):
            inferred = from_proto(onnx.shape_inference.infer_shapes(to_proto(self._skeleton)))
            shapes = CertainShapes(pair_values(self._skeleton, inferred))
            # The list runs both generators to their end; `or` would skip the second.
            if not any([*self._declare_pools(shapes), *self._declare_conv_inputs(shapes)]):
                break
        return inferred

    def _without_declared_shapes(self, model: ir.Model) -> ir.Model:
        for graph in model.graphs():
            computed = [value for node in graph for value in node.outputs]
            # Nothing enforces the declared shapes of a subgraph's inputs.
            for value in [*computed, *(graph.inputs if graph is not model.graph else ())]:
                value.shape = None
            self._reduce_initializers(graph, model)
        for function in model.functions.values():
            for value in (value for node in function.all_nodes() for value in node.outputs):
                value.shape = None
        self._generalise_inputs(model.graph)
        return model

    def _reduce_initializers(self, graph: ir.Graph, model: ir.Model) -> None:
        """Turn initializers that are large, or that are only defaults of inputs, into inputs."""
        for value in list(graph.initializers.values()):
            tensor, is_input = value.const_value, value.is_graph_input()
            if tensor is None:
                continue
            is_default = is_input and not (self._inputs_may_be_constant and graph is model.graph)
            if not is_default:
                value.shape, value.type = ir.Shape(tensor.shape.numpy()), ir.TensorType(tensor.dtype)
            if is_default or tensor.nbytes > _SMALL_INITIALIZER_BYTES:
                graph.initializers.pop(str(value.name))
                value.const_value = None
                if not is_input:
                    graph.inputs.append(value)

    def _generalise_inputs(self, graph: ir.Graph) -> None:
        """Give each open axis of each input a unique symbol."""
        axes_of: dict[str, list[str]] = {}
        for value in graph.inputs:
            declared = extents_of(value)
            if declared is None or not isinstance(value.type, ir.TensorType):
                value.shape = None
                continue
            # An extent of 0 or less is unknown: some exporters write 0 or -1 for unknown extents.
            value.shape = self._shape(
                [None if isinstance(e, int) and e <= 0 else e for e in declared], axes_of
            )
        self.declared_symbols = {
            symbols[0]: name
            for name, symbols in axes_of.items()
            if len(symbols) == 1 and name.isidentifier() and name != "None"
        }

    def _shape(self, extents: Sequence[Extent], axes_of: dict[str, list[str]] | None = None) -> ir.Shape:
        """Return a shape of `extents` with new symbols for unknown extents.

        With `axes_of`, symbols are replaced by new ones, too; `axes_of` collects the new symbols by the old
        one.
        """
        new_extents: list[int | str] = []
        for extent in extents:
            if extent is None or (axes_of is not None and isinstance(extent, str)):
                self._symbols += 1
                new_extents.append(f"axis {self._symbols}")
                if axes_of is not None and isinstance(extent, str):
                    axes_of.setdefault(extent, []).append(f"axis {self._symbols}")
            else:
                new_extents.append(extent)
        return ir.Shape(new_extents)

    def _replace_uncertain_node(self, node: ir.Node) -> None:
        """Replace `node` or its outputs if shapes inferred from it may not hold in ONNX Runtime."""
        op = (node.domain, node.op_type)
        if node.op_identifier() in self._skeleton.functions or not node.outputs:
            return
        if op == ("", "Constant"):
            self._drop_large_constant(node)
        elif op in _SHAPE_PRESERVING_CONTRIB_OPS and node.inputs and node.inputs[0] is not None:
            node.domain, node.op_type = "", "Identity"
            node.attributes.clear()
            node.resize_inputs(1)
        elif op in _CODE_OPS:
            node.domain, (node.op_type, kept) = "", _CODE_OPS[op]
            inputs = node.inputs[kept]
            node.resize_inputs(len(inputs))
            for index, value in enumerate(inputs):
                node.replace_input_with(index, value)
        elif op in _LOOP_OPS or (op == ("", "Resize") and _may_crop(node)):
            for output in node.outputs:
                self._hide_shape(node, output)
        elif op in _POOLS and node.inputs and _has_ceil_windows(node):
            self._ceil_pools[self._hide_shape(node, node.outputs[0])] = node

    def _drop_large_constant(self, node: ir.Node) -> None:
        try:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
        except ValueError:
            # A Constant node without its attribute.
            return
        if tensor is None or tensor.nbytes <= _SMALL_INITIALIZER_BYTES:
            return
        graph, constant = node.graph, node.outputs[0]
        assert isinstance(graph, ir.Graph)
        graph_input = ir.Value(
            name=constant.name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
        )
        _replace_uses(constant, graph_input)
        graph.remove(node)
        graph.inputs.append(graph_input)

    def _hide_shape(self, node: ir.Node, output: ir.Value) -> ir.Value:
        """Replace `output` by a value with the same name and type but an unknown shape; return the value."""
        graph, name = node.graph, output.name
        assert isinstance(graph, ir.Graph)
        # Inference tells only the type of a Reshape whose shape operand is unknown.
        reshape = ir.node("Reshape", [None, self._unknown_shape])
        (hidden,) = reshape.outputs
        hidden.type = output.type
        _replace_uses(output, hidden)
        reshape.replace_input_with(0, output)
        output.name = self._names.make_unique(f"{name}/before_reshape")
        hidden.name = name
        graph.insert_after(node, reshape)
        return hidden

    def _declare_pools(self, shapes: CertainShapes) -> Iterator[bool]:
        """Declare the certain extents of pools' results that are hidden from inference."""
        for value, pool in self._ceil_pools.items():
            data = shapes.shape(pool.inputs[0])
            if value.shape is None and data is not None and len(data) > 2:
                sizes = [
                    _ceil_pool_extent(pool, axis, len(data) - 2, size) for axis, size in enumerate(data[2:])
                ]
                self._declare(value, [*data[:2], *sizes], shapes.element_type(pool.inputs[0]))
                yield True

    def _declare_conv_inputs(self, shapes: CertainShapes) -> Iterator[bool]:
        """Declare the rank and channels that Convs require of values of unknown shape."""
        for conv in self._convs:
            value, weights = self._unknown_source(conv, shapes), shapes.shape(conv.inputs[1])
            if value is not None and weights is not None and len(weights) > 2:
                shape = [None, _channels(conv, weights[1]), *[None] * (len(weights) - 2)]
                self._declare(value, shape, shapes.element_type(conv.inputs[1]))
                yield True

    def _declare(self, value: ir.Value, extents: Sequence[Extent], element_type: ir.DataType | None) -> None:
        value.shape = self._shape(extents)
        # An ONNX file stores shapes only in types.
        if value.type is None and element_type is not None:
            value.type = ir.TensorType(element_type)

    def _unknown_source(self, conv: ir.Node, shapes: CertainShapes) -> ir.Value | None:
        """Return the value of unknown shape that determines the shape of the data of `conv`, or None.

        Shape-preserving ops between the value and `conv` are skipped.
        """
        value = conv.inputs[0]
        # Only values of the graph of `conv`: outside, a value may also be used in runs without `conv`.
        while value is not None and value.graph is conv.graph and shapes.shape(value) is None:
            if value.shape is not None:
                return None
            node = value.producer()
            if node is None or not onnx.defs.has(node.op_type, domain=node.domain):
                return value
            if node.domain == "" and node.op_type in _SHAPE_PRESERVING_OPS and node.inputs:
                value = node.inputs[0]
                continue
            unknown = [read for read in node.inputs if read is not None and shapes.shape(read) is None]
            # For any other node, inference may tell the shape once it knows the shapes of the node's inputs.
            is_final = not unknown or (unknown == [self._unknown_shape] and value not in self._ceil_pools)
            return value if is_final else None
        return None


def pair_values(model: ir.Model, other: ir.Model) -> dict[ir.Value, ir.Value]:
    """Return, for each value of `model`, the value of the same name in the same graph of `other`."""
    pairs = {}
    for graph, other_graph in zip(model.graphs(), other.graphs(), strict=True):
        by_name = {value.name: value for value in values_of(other_graph)}
        pairs.update({value: by_name[value.name] for value in values_of(graph) if value.name in by_name})
    return pairs


def _without_convswap_ops(model: ir.Model) -> ir.Model:
    """Return `model` with ONNX's ops in place of convswap's; may change `model`."""
    has_others = False
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        has_others = has_others or (node.domain == DOMAIN and not is_convswap_conv(node))
        if is_convswap_conv(node):
            node.domain = ""
    if not has_others:
        return model
    try:
        return plain_model(model)
    except ConvswapError:
        # ONNX's ops cannot express one of the nodes: shapes after it stay unknown.
        return model


def _replace_uses(value: ir.Value, other: ir.Value) -> None:
    """Replace all uses of `value`, also as a graph output, by `other`."""
    for user, index in list(value.uses()):
        user.replace_input_with(index, other)
    graph = value.graph
    if graph is not None and value.is_graph_output():
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = other


def _collect_live_nodes(graph: ir.Graph, live: set[ir.Node]) -> None:
    """Add the nodes whose results are used to `live`.

    ONNX Runtime drops dead nodes, so their requirements on input shapes need not hold.
    """
    for node in reversed(graph):
        if any(output.is_graph_output() or live.intersection(output.consumers()) for output in node.outputs):
            live.add(node)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    _collect_live_nodes(attribute.as_graph(), live)


def _channels(conv: ir.Node, group_channels: Extent) -> int | None:
    """Return how many channels `conv` requires of its data, given the channels of a group of its weights."""
    try:
        return group_channels * read_int(conv, "group", 1) if isinstance(group_channels, int) else None
    except NotFusable:
        return None


def _may_crop(resize: ir.Node) -> bool:
    """Return whether the output size of `resize` may depend on more than its scales and sizes."""
    try:
        return (
            read_text(resize, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
            or read_text(resize, "keep_aspect_ratio_policy", "stretch") != "stretch"
        )
    except NotFusable:
        # The attribute has a type that the ONNX specification does not allow.
        return True


def _has_ceil_windows(pool: ir.Node) -> bool:
    """Return whether `pool` may have a pool window that begins after the end of its data.

    ONNX's inference counts such a pool window; newer versions of ONNX Runtime do not.
    """
    try:
        return read_int(pool, "ceil_mode", 0) != 0 and any(s != 1 for s in read_ints(pool, "strides", ()))
    except NotFusable:
        # The attribute has a type that the ONNX specification does not allow.
        return True


def _ceil_pool_extent(pool: ir.Node, axis: int, axes: int, size: Extent) -> int | None:
    """Return how many pool windows `pool`, with ceil_mode, has over `size`; None if that is not certain."""
    try:
        kernel = read_ints(pool, "kernel_shape", ())
        strides = read_ints(pool, "strides", (1,) * axes)
        dilations = read_ints(pool, "dilations", (1,) * axes)
        pads = read_ints(pool, "pads", (0,) * 2 * axes)
        auto_pad = read_text(pool, "auto_pad", "NOTSET")
    except NotFusable:
        return None
    lengths = (len(kernel), len(strides), len(dilations), len(pads) // 2)
    if not isinstance(size, int) or any(length != axes for length in lengths) or min(strides) < 1:
        return None
    stride, reach = strides[axis], (kernel[axis] - 1) * dilations[axis] + 1
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return -(-size // stride) if reach >= stride else None
    begin, end = (pads[axis], pads[axes + axis]) if auto_pad in ("", "NOTSET") else (0, 0)
    span = size + begin + end - reach
    windows = -(-span // stride) + 1
    # With VALID, some implementations round down despite ceil_mode.
    is_certain = span % stride == 0 if auto_pad == "VALID" else (windows - 1) * stride < size + begin
    return windows if span >= 0 and is_certain else None
