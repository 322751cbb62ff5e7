"""Each swapped Conv of a model alone: a small model for each side, and the inputs that it gets in the model.

A Conv that is fused with the nodes that follow, or with a depthwise Conv in front, is one layer: one node on
the convswap side, the nodes that were fused on the default side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, numpy_helper

from convswap import _native
from convswap.graph.algorithms import AUTO
from convswap.graph.domain import DOMAIN, is_convswap_op, is_quant_op
from convswap.graph.external_weights import AnyModel, SplitModel, Weights, as_split, is_external_weight
from convswap.graph.layout.axes import in_nhwc
from convswap.graph.layout.choose import LayoutChange
from convswap.graph.plain_model import (
    CONVSWAP_ATTRIBUTES,
    code_residual,
    count_convolutions,
    expand_quantised,
    fused_parts,
    onnx_opset,
    plain_model,
    plain_nodes,
)
from convswap.graph.replaced import ReplacedNodes, constants_of, find_replaced_nodes
from convswap.graph.serialisation import copy_of
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.graph.value_types import ValueTypes
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, BoundRun, make_session, shapes_of


class PlannerArguments(TypedDict):
    """Keyword arguments of the planner's functions; exists for type checkers alone."""

    algorithm: str
    tuned: str


@dataclass(frozen=True)
class ConvArrays:
    """The arrays that `_native.conv` takes for a Conv; None for inputs that the Conv does not have."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None = None
    residual: np.ndarray | None = None
    depthwise: np.ndarray | None = None
    depthwise_bias: np.ndarray | None = None
    scale: np.ndarray | None = None
    offset: np.ndarray | None = None
    sum_values: np.ndarray | None = None


# The inputs of Conv, FusedConv and LayoutConv, and those of QuantConv, in order.
_INPUTS = ("x", "w", "bias", "residual", "depthwise", "depthwise_bias")
_QUANT_INPUTS = ("x", "w", "scale", "y_zero_point", "bias", "offset", "residual", "sum_values")
# The arithmetic of QuantConv.
INT8 = "int8"


@dataclass(frozen=True)
class ConvLayer:
    """A swapped Conv of a model's main graph: the node and its constant inputs by name.

    `weights` has the data of large constants, which are not in messages. `replaced` has the nodes that the
    fused node replaced, if they are known. `element_type` is that of the data: for a QuantConv the type of
    the codes. `nhwc` names the tensors ("input", "residual", "output") that are NHWC for the swapped node,
    and NCHW in `node` and for the replaced nodes.
    """

    node: onnx.NodeProto
    constants: Mapping[str, onnx.TensorProto]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    element_type: int
    weights: Weights = field(default_factory=dict)
    replaced: ReplacedNodes | None = None
    nhwc: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The node's name, or the name of its output if the node has none."""
        return str(self.node.name or self.node.output[0])

    @property
    def fused(self) -> tuple[str, ...]:
        """The ops that are fused with the convolution, in order; empty for a Conv alone.

        If a depthwise Conv in front is fused too, the first op is "Conv".
        """
        if self.is_quantised:
            # The other nodes that it replaced quantise and dequantise.
            return fused_parts(self.node, self._constant_shapes)
        if self.replaced is not None:
            return self.replaced.extra_ops
        return () if self.node.op_type == "Conv" else fused_parts(self.node)

    @property
    def is_quantised(self) -> bool:
        """Whether the node is a QuantConv."""
        return is_quant_op(self.node)

    @property
    def output_type(self) -> int:
        """The element type of the result."""
        if not self.is_quantised:
            return self.element_type
        return int(self.constants[self._inputs["y_zero_point"]].data_type)

    @property
    def has_code_results(self) -> bool:
        """Whether the results are codes."""
        return self.output_type in CODE_TYPES

    @property
    def y_zero_point(self) -> int:
        """The zero point of a QuantConv's result."""
        return int(numpy_helper.to_array(self.constants[self._inputs["y_zero_point"]]).item())

    @property
    def convolutions(self) -> int:
        """The number of convolutions: two if a depthwise Conv in front is fused."""
        return count_convolutions(self.node)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs that are not constant: data, residual, rarely weights."""
        names = (name for name in self.node.input if name and name not in self.constants)
        return tuple(dict.fromkeys(names))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that define the result: those of ONNX's Conv and of the fused ops."""
        return {
            attribute.name: helper.get_attribute_value(attribute)
            if attribute.type != onnx.AttributeProto.STRING
            else attribute.s.decode(errors="replace")
            for attribute in self.swapped_node.attribute
            if attribute.name not in CONVSWAP_ATTRIBUTES
        }

    @property
    def swapped_node(self) -> onnx.NodeProto:
        """The node with the layouts of `nhwc`."""
        if not self.nhwc:
            return self.node
        node = copy_of(self.node)
        node.attribute.extend(helper.make_attribute(f"{tensor}_layout", "NHWC") for tensor in self.nhwc)
        return node

    def swapped_shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the swapped node's inputs, given those of the replaced nodes."""
        return {
            name: tuple(in_nhwc(shape) if name in self._nhwc_inputs else shape)
            for name, shape in shapes.items()
        }

    def swapped_inputs(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the inputs of the swapped node, given those of the replaced nodes."""
        return {
            name: np.ascontiguousarray(np.moveaxis(array, 1, -1)) if name in self._nhwc_inputs else array
            for name, array in arrays.items()
        }

    def result_in_nchw(self, array: np.ndarray) -> np.ndarray:
        """Return a result of the swapped node in the layout of the replaced nodes' result."""
        return np.moveaxis(array, -1, 1) if "output" in self.nhwc else array

    @property
    def _nhwc_inputs(self) -> set[str]:
        roles = {"input": "x", "residual": "residual"}
        return {self._inputs[roles[tensor]] for tensor in self.nhwc if tensor in roles}

    def arrays(self, feeds: Mapping[str, np.ndarray]) -> ConvArrays:
        """Return the arrays of the node's inputs; `feeds` has the inputs that are not constant."""
        arrays = {
            name: self.weights[name] if is_external_weight(tensor) else numpy_helper.to_array(tensor)
            for name, tensor in self.constants.items()
        }
        arrays.update(feeds)
        names = self._inputs.items()
        return ConvArrays(**{role: arrays[name] for role, name in names if role != "y_zero_point"})

    @property
    def _inputs(self) -> dict[str, str]:
        """The names of the inputs that are not absent, by what they are."""
        roles = _QUANT_INPUTS if self.is_quantised else _INPUTS
        names = {role: str(name) for role, name in zip(roles, self.node.input, strict=False) if name}
        if self.is_quantised and not code_residual(self.node, self._constant_shapes):
            names.pop("residual", None)
        return names

    @property
    def _constant_shapes(self) -> Mapping[str, Sequence[int]]:
        return {name: tensor.dims for name, tensor in self.constants.items() if tensor.dims}

    @property
    def codes_arguments(self) -> dict[str, Any]:
        """The arguments of `_native` that follow from inputs of a QuantConv; empty for other nodes."""
        if not self.is_quantised:
            return {}
        return {
            "y_type": self.output_type_name,
            "y_zero_point": self.y_zero_point if self.has_code_results else 0,
            "has_offset": int("offset" in self._inputs),
        }

    def setting(self, name: str, default: str) -> str:
        """Return a text attribute of the node, `default` if the node does not have it."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return str(attribute.s.decode(errors="replace"))
        return default

    @property
    def planner_arguments(self) -> PlannerArguments:
        """The node's attributes for the planner, as keyword arguments of `convswap._native.choose`."""
        return {"algorithm": self.setting("algorithm", AUTO), "tuned": self.setting("tuned", "")}

    @property
    def arithmetic(self) -> str:
        """The arithmetic of the products.

        It is "tf32" or "ieee" for float32 data, "int8" for a QuantConv, else the type's name.
        """
        if self.is_quantised:
            return INT8
        if self.element_type == onnx.TensorProto.FLOAT:
            return self.setting("precision", DEFAULT_PRECISION)
        return self.type_name

    @property
    def type_name(self) -> str:
        """The element type of the data, such as "float32", "bfloat16" or "uint8"."""
        return _TYPE_NAMES[self.element_type]

    @property
    def output_type_name(self) -> str:
        """The element type of the result, as `type_name` names it."""
        return _TYPE_NAMES[self.output_type]

    def with_algorithm(self, algorithm: str) -> ConvLayer:
        """Return the same layer with its node's `algorithm` set."""
        return self.with_setting("algorithm", algorithm)

    def with_setting(self, name: str, value: str) -> ConvLayer:
        """Return the same layer with a text attribute of its node set."""
        node = copy_of(self.node)
        others = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute(name, value)])
        return replace(self, node=node)

    def problem(self, shapes: Mapping[str, Sequence[int]]) -> Any:
        """Return the conv problem of the swapped node, a `_native.Problem`.

        `shapes` are those of the replaced nodes' inputs, and may have more values.
        """
        known = {name: tuple(tensor.dims) for name, tensor in self.constants.items()}
        known.update(self.swapped_shapes(shapes))
        inputs = self._inputs
        return _native.Problem(
            x_shape=known[inputs["x"]],
            w_shape=known[inputs["w"]],
            has_bias="bias" in inputs,
            type=self.type_name,
            precision=self.setting("precision", DEFAULT_PRECISION),
            residual_shape=known.get(inputs.get("residual", "")),
            depthwise_shape=known.get(inputs.get("depthwise", "")),
            has_depthwise_bias="depthwise_bias" in inputs,
            **self.codes_arguments,
            **self.attributes,
        )

    def model(self, shapes: Mapping[str, int | Sequence[int]], *, swapped: bool) -> SplitModel:
        """Return the model of this layer alone: the swapped node, or the ONNX nodes that it replaces.

        The inputs that are not constant have `shapes`. A shape that is only a rank leaves the extents open,
        so that the model runs with any batch.
        """
        nodes, constants, weights = (
            ((self.swapped_node,), self.constants, self.weights) if swapped else self._default_nodes
        )
        graph = helper.make_graph(
            list(nodes),
            "layer",
            [
                helper.make_tensor_value_info(name, self._input_type(name), _extents(shapes[name]))
                for name in self.input_names
            ],
            [helper.make_tensor_value_info(self.node.output[0], self.output_type, None)],
            list(constants.values()),
        )
        opsets = [opset for opset in self.opsets if swapped or opset.domain != DOMAIN]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = self.ir_version
        return SplitModel(model, weights)

    @property
    def _default_nodes(self) -> tuple[Sequence[onnx.NodeProto], Mapping[str, onnx.TensorProto], Weights]:
        """The nodes of the default side, and the constants that they read."""
        # A folded weight has the name of the original weight, but other values.
        if self.replaced is not None:
            return self.replaced.nodes, self.replaced.constants, self.replaced.weights
        shapes, opset = self._constant_shapes, onnx_opset(self.opsets)
        if self.is_quantised:
            nodes = expand_quantised(self.node, opset, self.element_type, self.output_type, shapes)
        else:
            nodes = plain_nodes(self.node, opset, self.element_type, shapes)
        return nodes, self.constants, self.weights

    def _input_type(self, name: str) -> int:
        """Return the element type of an input that is not constant."""
        is_weight = self.is_quantised and name == self._inputs["w"]
        return int(onnx.TensorProto.INT8) if is_weight else self.element_type


def _extents(shape: int | Sequence[int]) -> Sequence[int | None]:
    return [None] * shape if isinstance(shape, int) else shape


_TYPE_NAMES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
}
CODE_TYPES = (int(onnx.TensorProto.INT8), int(onnx.TensorProto.UINT8))


def conv_layers(swapped: AnyModel, unfused: AnyModel | None = None) -> tuple[ConvLayer, ...]:
    """Return the swapped Convs of the main graph of `swapped`, fused or not, in order.

    `unfused` is the model before Convs were fused; without it, the default side of a FusedConv has ONNX nodes
    that compute the same. Convs in subgraphs are left out, since a session cannot output their inputs. So is
    a QuantConv whose scales or zero point are not constant.
    """
    message, weights = split = as_split(swapped)
    tensors = constants_of(message.graph)
    convs = [
        node
        for node in message.graph.node
        if is_convswap_op(node) or (is_quant_op(node) and tensors.keys() >= set(node.input[2:4]))
    ]
    computed = {node.input[1] for node in convs if is_convswap_op(node)} - tensors.keys()
    inferred = _inferred_types(split, computed)
    replaced = {} if unfused is None else find_replaced_nodes(convs, tensors.keys(), as_split(unfused))
    return tuple(
        ConvLayer(
            node=node,
            constants={name: tensors[name] for name in node.input if name in tensors},
            opsets=tuple(message.opset_import),
            ir_version=message.ir_version,
            element_type=_data_type(node, message.graph, tensors, inferred),
            weights=weights,
            replaced=replaced.get(node.output[0]),
        )
        for node in convs
    )


def in_layouts_of(layers: Iterable[ConvLayer], change: LayoutChange | None) -> tuple[ConvLayer, ...]:
    """Return `layers`, each QuantConv with the tensors in NHWC that `change` made so.

    Other layers stay in NCHW, the layout of the default provider.
    """
    tensors = {} if change is None else change.nodes
    return tuple(replace(layer, nhwc=_own_layouts(layer, tensors.get(layer.name, ()))) for layer in layers)


def _own_layouts(layer: ConvLayer, tensors: Sequence[str]) -> tuple[str, ...]:
    names = [str(name) for name in layer.node.input]
    is_read_twice = names[0] in names[6:] and ("input" in tensors) != ("residual" in tensors)
    return tuple(tensors) if layer.is_quantised and not is_read_twice else ()


def _data_type(
    node: onnx.NodeProto,
    graph: onnx.GraphProto,
    tensors: Mapping[str, onnx.TensorProto],
    inferred: Mapping[str, int],
) -> int:
    """Return the element type of the data of `node`, a convswap node of `graph`."""
    if is_quant_op(node):
        return _codes_type(node.input[0], graph, tensors)
    weights = node.input[1]
    return int(tensors[weights].data_type) if weights in tensors else inferred[weights]


def _codes_type(name: str, graph: onnx.GraphProto, tensors: Mapping[str, onnx.TensorProto]) -> int:
    """Return the type of the codes `name`: the declared type, else that of its writer's zero point."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.name == name and value.type.tensor_type.elem_type:
            return int(value.type.tensor_type.elem_type)
    for node in graph.node:
        if name in node.output:
            zero_point = 3 if is_quant_op(node) else 2
            is_known = len(node.input) > zero_point and node.input[zero_point] in tensors
            if is_known and (is_quant_op(node) or node.op_type == "QuantizeLinear"):
                return int(tensors[node.input[zero_point]].data_type)
    return int(onnx.TensorProto.INT8)


class Capture:
    """Computes the inputs of layers by a run of the whole model on the default side."""

    def __init__(self, swapped: ir.Model, layers: Sequence[ConvLayer], device: Device) -> None:
        split = as_split(plain_model(swapped))
        model = split.message
        self._device = device
        self._graph_inputs = {value.name for value in model.graph.input}
        self._captured = [
            name
            for name in dict.fromkeys(name for layer in layers for name in layer.input_names)
            if name not in self._graph_inputs
        ]
        present = {value.name for value in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in self._captured if name not in present
        )
        # Each run is for a few values, which is not worth the memory of prepacked weights.
        self._session = make_session(split, DEFAULT, device, optimizes=False)

    def inputs(
        self, layer: ConvLayer, feeds: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        """Return the inputs of `layer` for the model inputs `feeds`, in the memory of the device.

        Each call is for one layer, so that memory never holds the inputs of all layers of a deep model.
        """
        return self._values(layer.input_names, feeds)

    def shapes(self, feeds: Mapping[str, onnxruntime.OrtValue]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all layers' inputs, from one run; meant for a single sample."""
        return shapes_of(self._values([*self._graph_inputs, *self._captured], feeds))

    def _values(
        self, names: Sequence[str], feeds: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        values = {name: feeds[name] for name in names if name in feeds}
        wanted = [name for name in names if name in self._captured]
        if wanted:
            run = BoundRun(self._session, feeds, self._device, wanted)
            run.once()
            values.update(zip(run.outputs, run.values(), strict=True))
        return values


def _inferred_types(swapped: SplitModel, names: Collection[str]) -> dict[str, int]:
    """Return the element types of the values `names`, which are weights that the model computes.

    `swap` swaps no Conv whose type is unknown. For a Conv of another program an unknown type is float32.
    """
    if not names:
        return {}
    # ONNX's type inference does not know convswap's op, so the model is turned back into ONNX's ops.
    model = plain_model(swapped.to_model())
    types = ValueTypes(model)
    inferred = dict.fromkeys(names, int(onnx.TensorProto.FLOAT))
    for node in model.graph:
        if node.op_type != "Conv" or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        name = str(node.inputs[1].name)
        if name in inferred:
            values = [node.inputs[1], *node.inputs, *node.outputs]
            known = types.element_type(value for value in values if value is not None)
            inferred[name] = inferred[name] if known is None else int(known)
    return inferred
