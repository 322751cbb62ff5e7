"""Shapes that follow from a model's inputs and constants, whatever else the file says of its values.

ONNX Runtime refuses an input whose rank, or whose extent where a number is declared, is another. All else
that a file says of shapes it does not hold a model to: inner values and outputs may have been declared for
other inputs, and two axes of one name may differ in length. So ONNX's shape inference is given the model with
a symbol of its own for every open axis of an input and with nothing said of what nodes compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError
from convswap.graph.constants import Constants
from convswap.graph.domain import DOMAIN, FUSED_OP, is_our_conv
from convswap.graph.epilogue import NotFusable, read_int, read_ints, read_text
from convswap.graph.functions import count_copies
from convswap.graph.names import UniqueNames, values_of
from convswap.graph.plain_model import plain_model
from convswap.graph.serialisation import from_proto, to_proto
from convswap.graph.symbolic_extents import Label, SymbolicExtents

Extent = int | str | None

# Shape inference needs the values of small initializers (shapes, axes) and never those of weights.
_SMALL_INITIALIZER_BYTES = 1024
# Each tells what lies behind one more of the nodes that inference cannot be asked about; deeper models are
# rare, and merely have less that is certain.
_MOST_ROUNDS = 64
_POOLS = {("", "MaxPool"), ("", "AveragePool"), ("", "LpPool")}
# Their bodies may run any number of times, also never, so that what is certain within is not so behind them.
_REPEATING_OPS = {("", "Loop"), ("", "Scan")}
# ONNX Runtime's own, which ONNX does not know, and whose result has the shape of their first input.
_KEEPING_CONTRIB_OPS = {("com.microsoft", op) for op in ("Gelu", "FastGelu", "QuickGelu")}
# ONNX's, whose result has the shape and the type of their first input.
_KEEPING_OPS = {
    "BatchNormalization", "Clip", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Neg", "Relu", "Sigmoid", "Tanh",
}  # fmt: skip


@dataclass(frozen=True)
class CertainShapes:
    """What is certain of the shapes of a model's values.

    `values` has, for values of the model, the same as inference completes them; `declared_symbols` the name
    that the model has for a symbol, where it has it for one axis of one input only.
    """

    values: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    declared_symbols: Mapping[str, str] = field(default_factory=dict)
    symbols: SymbolicExtents | None = None

    def shape(self, value: ir.Value | None) -> tuple[Extent, ...] | None:
        """Return the extents of `value`, a symbol or None where they are no number; None if no rank is."""
        known = None if value is None else self.values.get(value)
        return None if known is None else extents_of(known)

    def element_type(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type of `value`; None where it is not known."""
        known = None if value is None else self.values.get(value)
        return None if known is None else known.dtype

    def labels(self, value: ir.Value) -> list[Label | None]:
        """Return what each extent of `value` is, the same for the same; nothing where its rank is unknown."""
        known = self.values.get(value)
        return [] if known is None or self.symbols is None else self.symbols.labels(known)


def certain_shapes(model: ir.Model) -> CertainShapes:
    """Return what follows from the inputs and constants of `model`; nothing where it cannot be inferred."""
    try:
        # Refuses what onnx, which follows every call, would take minutes for.
        count_copies(model, model.functions.keys())
        skeleton = _Skeleton(model)
        inferred = skeleton.infer()
        symbols = SymbolicExtents(inferred, lambda value: list(extents_of(value) or ()))
        return CertainShapes(pair_values(model, inferred), skeleton.declared_symbols, symbols)
    except Exception:
        # A model that cannot be inferred is not an error here: its Convs are left, with the reason.
        return CertainShapes()


def extents_of(value: ir.Value | ir.TensorProtocol) -> tuple[Extent, ...] | None:
    """Return the shape that is declared of `value`; what is neither a number nor a name is None."""
    if value.shape is None:
        return None
    return tuple(extent if isinstance(extent, int) else extent.value or None for extent in value.shape)


class _Skeleton:
    """A model with the same graphs and values, without weights and without what is merely said of shapes."""

    def __init__(self, model: ir.Model) -> None:
        self.declared_symbols: dict[str, str] = {}
        self._names = UniqueNames.of_values(model.graphs())
        self._symbols = 0
        self._inputs_may_be_constant = Constants(model).inputs_may_be_constant
        self._model = _without_our_ops(self._without_statements(model.clone()))
        # Whoever reads it knows nothing of its value.
        self._anything = ir.Value(name=self._names.take("anything"), type=ir.TensorType(ir.DataType.INT64))
        self._model.graph.inputs.append(self._anything)
        # What stands for the result of a pool, and the pool.
        self._pools: dict[ir.Value, ir.Node] = {}
        for node in list(ir.traversal.RecursiveGraphIterator(self._model.graph)):
            self._stand_in(node)
        live: set[ir.Node] = set()
        _find_live(self._model.graph, live)
        self._convs = [node for node in live if node.op_type == "Conv" and len(node.inputs) > 1]

    def infer(self) -> ir.Model:
        """Return the skeleton with everything that follows."""
        for _ in range(_MOST_ROUNDS):
            inferred = from_proto(onnx.shape_inference.infer_shapes(to_proto(self._model)))
            known = CertainShapes(pair_values(self._model, inferred))
            # Both are asked, since one may tell something where the other does not.
            if not any([*self._tell_pools(known), *self._tell_inputs_of_convs(known)]):
                break
        return inferred

    def _without_statements(self, model: ir.Model) -> ir.Model:
        for graph in model.graphs():
            computed = [value for node in graph for value in node.outputs]
            # Nothing holds those who call a subgraph to the shapes that it declares for its inputs.
            for value in [*computed, *(graph.inputs if graph is not model.graph else ())]:
                value.shape = None
            self._reduce_initializers(graph, model)
        for function in model.functions.values():
            for value in (value for node in function.all_nodes() for value in node.outputs):
                value.shape = None
        self._open_inputs(model.graph)
        return model

    def _reduce_initializers(self, graph: ir.Graph, model: ir.Model) -> None:
        """Turn initializers that are large, or merely the default of an input, into inputs."""
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

    def _open_inputs(self, graph: ir.Graph) -> None:
        """Give each open axis of each input a symbol of its own."""
        axes_of: dict[str, list[str]] = {}
        for value in graph.inputs:
            declared = extents_of(value)
            if declared is None or not isinstance(value.type, ir.TensorType):
                value.shape = None
                continue
            # No axis is -1 long, and 0 is what some exporters write for what they do not know.
            value.shape = self._shape(
                [None if isinstance(e, int) and e <= 0 else e for e in declared], axes_of
            )
        self.declared_symbols = {
            symbols[0]: name
            for name, symbols in axes_of.items()
            if len(symbols) == 1 and name.isidentifier() and name != "None"
        }

    def _shape(self, extents: Sequence[Extent], axes_of: dict[str, list[str]] | None = None) -> ir.Shape:
        """Return a shape of `extents` with a new symbol for what is open; with `axes_of`, also for names."""
        known: list[int | str] = []
        for extent in extents:
            if extent is None or (axes_of is not None and isinstance(extent, str)):
                self._symbols += 1
                known.append(f"axis {self._symbols}")
                if axes_of is not None and isinstance(extent, str):
                    axes_of.setdefault(extent, []).append(f"axis {self._symbols}")
            else:
                known.append(extent)
        return ir.Shape(known)

    def _stand_in(self, node: ir.Node) -> None:
        """Have inference tell of what `node` computes only what holds in ONNX Runtime, too."""
        op = (node.domain, node.op_type)
        if node.op_identifier() in self._model.functions or not node.outputs:
            return
        if op == ("", "Constant"):
            self._drop_large_constant(node)
        elif op in _KEEPING_CONTRIB_OPS and node.inputs and node.inputs[0] is not None:
            node.domain, node.op_type = "", "Identity"
            node.attributes.clear()
            node.resize_inputs(1)
        elif op in _REPEATING_OPS or (op == ("", "Resize") and _may_crop(node)):
            for output in node.outputs:
                self._bar(node, output)
        elif op in _POOLS and node.inputs and _may_round_up(node):
            self._pools[self._bar(node, node.outputs[0])] = node

    def _drop_large_constant(self, node: ir.Node) -> None:
        try:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
        except ValueError:
            # Without its one attribute.
            return
        if tensor is None or tensor.nbytes <= _SMALL_INITIALIZER_BYTES:
            return
        graph, constant = node.graph, node.outputs[0]
        assert isinstance(graph, ir.Graph)
        given = ir.Value(
            name=constant.name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
        )
        _replace(constant, given)
        graph.remove(node)
        graph.inputs.append(given)

    def _bar(self, node: ir.Node, output: ir.Value) -> ir.Value:
        """Put what has the name and the type of `output`, and no shape, in its place; return that."""
        graph, name = node.graph, output.name
        assert isinstance(graph, ir.Graph)
        # Inference tells nothing but the type of Reshape where it does not know what shape is asked for.
        barrier = ir.node("Reshape", [None, self._anything])
        (opened,) = barrier.outputs
        opened.type = output.type
        _replace(output, opened)
        barrier.replace_input_with(0, output)
        output.name = self._names.take(f"{name}/shaped")
        opened.name = name
        graph.insert_after(node, barrier)
        return opened

    def _tell_pools(self, known: CertainShapes) -> Iterator[bool]:
        """Tell what is certain of the results of pools of which inference is not asked."""
        for value, pool in self._pools.items():
            data = known.shape(pool.inputs[0])
            if value.shape is None and data is not None and len(data) > 2:
                sizes = [_pooled(pool, axis, len(data) - 2, size) for axis, size in enumerate(data[2:])]
                self._tell(value, [*data[:2], *sizes], known.element_type(pool.inputs[0]))
                yield True

    def _tell_inputs_of_convs(self, known: CertainShapes) -> Iterator[bool]:
        """Tell of values of which inference knows nothing what the Convs that read them need them to be."""
        for conv in self._convs:
            value, weights = self._unknown_source(conv, known), known.shape(conv.inputs[1])
            if value is not None and weights is not None and len(weights) > 2:
                shape = [None, _channels(conv, weights[1]), *[None] * (len(weights) - 2)]
                self._tell(value, shape, known.element_type(conv.inputs[1]))
                yield True

    def _tell(self, value: ir.Value, extents: Sequence[Extent], element_type: ir.DataType | None) -> None:
        value.shape = self._shape(extents)
        # Without a type there is no shape in a file.
        if value.type is None and element_type is not None:
            value.type = ir.TensorType(element_type)

    def _unknown_source(self, conv: ir.Node, known: CertainShapes) -> ir.Value | None:
        """Return the first value that has the shape of the data of `conv`, of which nothing tells it."""
        value = conv.inputs[0]
        # What is computed outside of the graph of `conv` may be used where `conv` is not.
        while value is not None and value.graph is conv.graph and known.shape(value) is None:
            if value.shape is not None:
                return None
            node = value.producer()
            if node is None or not onnx.defs.has(node.op_type, domain=node.domain):
                return value
            if node.domain == "" and node.op_type in _KEEPING_OPS and node.inputs:
                value = node.inputs[0]
                continue
            waits = [read for read in node.inputs if read is not None and known.shape(read) is None]
            # Of others than these inference tells more once it knows more.
            return value if not waits or (waits == [self._anything] and value not in self._pools) else None
        return None


def pair_values(model: ir.Model, other: ir.Model) -> dict[ir.Value, ir.Value]:
    """Return, for each value of `model`, that of the same name in the same graph of `other`."""
    pairs = {}
    for graph, same in zip(model.graphs(), other.graphs(), strict=True):
        by_name = {value.name: value for value in values_of(same)}
        pairs.update({value: by_name[value.name] for value in values_of(graph) if value.name in by_name})
    return pairs


def _without_our_ops(model: ir.Model) -> ir.Model:
    """Return `model`, which this may change, with ONNX's ops for ours."""
    has_fused = False
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        has_fused = has_fused or (node.domain, node.op_type) == (DOMAIN, FUSED_OP)
        if is_our_conv(node):
            node.domain = ""
    if not has_fused:
        return model
    try:
        return plain_model(model)
    except ConvswapError:
        # ONNX's operators cannot stand for one of them: nothing is known behind it.
        return model


def _replace(value: ir.Value, other: ir.Value) -> None:
    """Have all who use `value` use `other`."""
    for user, index in list(value.uses()):
        user.replace_input_with(index, other)
    graph = value.graph
    if graph is not None and value.is_graph_output():
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = other


def _find_live(graph: ir.Graph, live: set[ir.Node]) -> None:
    """Add the nodes whose results are used to `live`.

    ONNX Runtime drops the others, so that what they need of their inputs need not be so.
    """
    for node in reversed(graph):
        if any(output.is_graph_output() or live.intersection(output.consumers()) for output in node.outputs):
            live.add(node)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    _find_live(attribute.as_graph(), live)


def _channels(conv: ir.Node, of_a_group: Extent) -> int | None:
    """Return how many channels `conv` needs its data to have, by those of a group of its weights."""
    try:
        return of_a_group * read_int(conv, "group", 1) if isinstance(of_a_group, int) else None
    except NotFusable:
        return None


def _may_crop(resize: ir.Node) -> bool:
    """Return whether the size of what `resize` gives may depend on more than its scales and sizes."""
    try:
        return (
            read_text(resize, "coordinate_transformation_mode", "") == "tf_crop_and_resize"
            or read_text(resize, "keep_aspect_ratio_policy", "stretch") != "stretch"
        )
    except NotFusable:
        # An attribute of another type than ONNX gives it.
        return True


def _may_round_up(pool: ir.Node) -> bool:
    """Return whether `pool` may have a window that begins behind its data.

    ONNX's inference counts such a window; ONNX Runtime does not, in versions that are not old.
    """
    try:
        return read_int(pool, "ceil_mode", 0) != 0 and any(s != 1 for s in read_ints(pool, "strides", ()))
    except NotFusable:
        # An attribute of another type than ONNX gives it.
        return True


def _pooled(pool: ir.Node, axis: int, axes: int, size: Extent) -> int | None:
    """Return how many windows `pool`, with ceil_mode, has over `size`; None where that is not certain."""
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
    room = size + begin + end - reach
    windows = -(-room // stride) + 1
    # VALID is rounded down by some.
    is_certain = room % stride == 0 if auto_pad == "VALID" else (windows - 1) * stride < size + begin
    return windows if room >= 0 and is_certain else None
