"""Each swapped Conv of a model on its own: a small model for each side, and the inputs it really gets.

A Conv that is fused with what follows it, or with a depthwise Conv in front, is one layer: on our side one
node, on the default side the nodes that it stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper, numpy_helper

from convswap import _native
from convswap.graph.algorithms import AUTO
from convswap.graph.domain import DOMAIN, FUSED_OP, is_convswap_op
from convswap.graph.external_weights import AnyModel, SplitModel, Weights, as_split, is_external_weight
from convswap.graph.plain_model import (
    CONVSWAP_ATTRIBUTES,
    count_convolutions,
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


class Requested(TypedDict):
    """Keyword arguments of the planner's functions; exists for type checkers alone."""

    algorithm: str
    tuned: str


@dataclass(frozen=True)
class ConvArrays:
    """The arrays that a Conv is computed of, None where it has none: all that `_native.conv` takes."""

    x: np.ndarray
    w: np.ndarray
    bias: np.ndarray | None
    residual: np.ndarray | None
    depthwise: np.ndarray | None
    depthwise_bias: np.ndarray | None


@dataclass(frozen=True)
class ConvLayer:
    """A swapped Conv of a model's main graph: the node, and its inputs by name, constant where known.

    `weights` has the constants that are large, which are in no message. `replaced` has the nodes that it took
    the place of when it was fused, where those are known.
    """

    node: onnx.NodeProto
    constants: Mapping[str, onnx.TensorProto]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    element_type: int
    weights: Weights = field(default_factory=dict)
    replaced: ReplacedNodes | None = None

    @property
    def name(self) -> str:
        """The node's name, or its output's where it has none."""
        return str(self.node.name or self.node.output[0])

    @property
    def fused(self) -> tuple[str, ...]:
        """The ops that are fused with the convolution, in order; for a Conv alone there are none.

        If there are any in front of it, the first is a depthwise "Conv".
        """
        if self.replaced is not None:
            return self.replaced.extra_ops
        return fused_parts(self.node) if self.node.op_type == FUSED_OP else ()

    @property
    def convolutions(self) -> int:
        """How many convolutions it computes: two with a depthwise one in front."""
        return count_convolutions(self.node)

    @property
    def fed(self) -> tuple[str, ...]:
        """The names of the inputs that only a run of the model can give: data, residual, seldom weights."""
        names = (name for name in self.node.input if name and name not in self.constants)
        return tuple(dict.fromkeys(names))

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that say what is computed: those of ONNX's Conv, and of what is fused with it."""
        return {
            attribute.name: helper.get_attribute_value(attribute)
            if attribute.type != onnx.AttributeProto.STRING
            else attribute.s.decode(errors="replace")
            for attribute in self.node.attribute
            if attribute.name not in CONVSWAP_ATTRIBUTES
        }

    def arrays(self, feeds: Mapping[str, np.ndarray]) -> ConvArrays:
        """Return the arrays of the node's inputs, given those that are not constant."""
        given = {
            name: self.weights[name] if is_external_weight(tensor) else numpy_helper.to_array(tensor)
            for name, tensor in self.constants.items()
        }
        given.update(feeds)
        data, filters, *others = self._inputs
        return ConvArrays(given[data], given[filters], *(given.get(name) for name in others))

    @property
    def _inputs(self) -> tuple[str, str, str, str, str, str]:
        """The names of data, weights, bias, residual, depthwise weights and bias, "" where there is none."""
        x, w, b, z, d, db = [*map(str, self.node.input), "", "", "", ""][:6]
        return x, w, b, z, d, db

    def setting(self, name: str, default: str) -> str:
        """Return an attribute of the node that is text, `default` where it is not written."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return str(attribute.s.decode(errors="replace"))
        return default

    @property
    def requested(self) -> Requested:
        """What the node asks of the planner, as keyword arguments of `convswap._native.choose`."""
        return {"algorithm": self.setting("algorithm", AUTO), "tuned": self.setting("tuned", "")}

    @property
    def arithmetic(self) -> str:
        """What its products are computed in: "tf32" or "ieee" for float32 data, else the type's name."""
        if self.element_type == onnx.TensorProto.FLOAT:
            return self.setting("precision", DEFAULT_PRECISION)
        return self.type_name

    @property
    def type_name(self) -> str:
        """The element type: "float32", "float64", "float16" or "bfloat16"."""
        return _TYPE_NAMES[self.element_type]

    def with_algorithm(self, algorithm: str) -> ConvLayer:
        """Return the same layer with its node's `algorithm` set."""
        return self.with_setting("algorithm", algorithm)

    def with_setting(self, name: str, value: str) -> ConvLayer:
        """Return the same layer with an attribute of its node set that is text."""
        node = copy_of(self.node)
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute(name, value)])
        return replace(self, node=node)

    def problem(self, shapes: Mapping[str, Sequence[int]]) -> Any:
        """Return the conv problem, a `_native.Problem`, for inputs of `shapes`, among which may be others."""
        known = {name: tuple(tensor.dims) for name, tensor in self.constants.items()}
        known.update({name: tuple(shape) for name, shape in shapes.items()})
        data, weights, bias, residual, depthwise, depthwise_bias = self._inputs
        return _native.Problem(
            x_shape=known[data],
            w_shape=known[weights],
            has_bias=bool(bias),
            type=self.type_name,
            precision=self.setting("precision", DEFAULT_PRECISION),
            residual_shape=known.get(residual),
            depthwise_shape=known.get(depthwise),
            has_depthwise_bias=bool(depthwise_bias),
            **self.attributes,
        )

    def model(self, shapes: Mapping[str, int | Sequence[int]], *, ours: bool) -> SplitModel:
        """Return the model of this layer alone, of our one node or of the ones of ONNX's that it replaces.

        Its fed inputs have the given shapes; of those that are a rank alone the extents are open, so that it
        runs with any batch.
        """
        nodes, constants, weights = (
            ((self.node,), self.constants, self.weights) if ours else self._default_side
        )
        graph = helper.make_graph(
            list(nodes),
            "layer",
            [
                helper.make_tensor_value_info(name, self.element_type, _extents(shapes[name]))
                for name in self.fed
            ],
            [helper.make_tensor_value_info(self.node.output[0], self.element_type, None)],
            list(constants.values()),
        )
        opsets = [opset for opset in self.opsets if ours or opset.domain != DOMAIN]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = self.ir_version
        return SplitModel(model, weights)

    @property
    def _default_side(self) -> tuple[Sequence[onnx.NodeProto], Mapping[str, onnx.TensorProto], Weights]:
        """What the default side runs, and the constants that it reads."""
        # A weight that something was folded into is another than the one as given, of the same name.
        if self.replaced is not None:
            return self.replaced.nodes, self.replaced.constants, self.replaced.weights
        lengths = {name: tensor.dims[0] for name, tensor in self.constants.items() if tensor.dims}
        nodes = plain_nodes(self.node, onnx_opset(self.opsets), self.element_type, lengths)
        return nodes, self.constants, self.weights


def _extents(shape: int | Sequence[int]) -> Sequence[int | None]:
    return [None] * shape if isinstance(shape, int) else shape


_TYPE_NAMES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.BFLOAT16: "bfloat16",
    onnx.TensorProto.DOUBLE: "float64",
}


def conv_layers(swapped: AnyModel, unfused: AnyModel | None = None) -> tuple[ConvLayer, ...]:
    """Return the swapped Convs of the main graph of `swapped`, fused or not, in order.

    `unfused` is the model as it was before Convs were fused; without it a FusedConv stands for ONNX's nodes
    that compute the same. Those in subgraphs are left out: what a branch or a loop feeds them cannot be taken
    out of a session.
    """
    message, weights = split = as_split(swapped)
    tensors = constants_of(message.graph)
    convs = [node for node in message.graph.node if is_convswap_op(node)]
    computed = {node.input[1] for node in convs} - tensors.keys()
    inferred = _inferred_types(split, computed)
    replaced = {} if unfused is None else find_replaced_nodes(convs, tensors.keys(), as_split(unfused))
    return tuple(
        ConvLayer(
            node=node,
            constants={name: tensors[name] for name in node.input if name in tensors},
            opsets=tuple(message.opset_import),
            ir_version=message.ir_version,
            element_type=tensors[node.input[1]].data_type
            if node.input[1] in tensors
            else inferred[node.input[1]],
            weights=weights,
            replaced=replaced.get(node.output[0]),
        )
        for node in convs
    )


class Capture:
    """Gives the inputs that the layers get while the default side runs the whole model."""

    def __init__(self, swapped: ir.Model, layers: Sequence[ConvLayer], device: Device) -> None:
        split = as_split(plain_model(swapped))
        model = split.message
        self._device = device
        self._graph_inputs = {value.name for value in model.graph.input}
        self._captured = [
            name
            for name in dict.fromkeys(name for layer in layers for name in layer.fed)
            if name not in self._graph_inputs
        ]
        present = {value.name for value in model.graph.output}
        model.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in self._captured if name not in present
        )
        # Each run is for a few values: not worth the memory of weights in the order of other kernels.
        self._session = make_session(split, DEFAULT, device, optimizes=False)

    def inputs(
        self, layer: ConvLayer, feeds: Mapping[str, onnxruntime.OrtValue]
    ) -> dict[str, onnxruntime.OrtValue]:
        """Return what `layer` is fed when the model is fed `feeds`, in the memory of the device.

        One layer at a time, so that the inputs of a deep model never lie in memory together.
        """
        return self._values(layer.fed, feeds)

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
    """Return the element types of the values called `names`, of a Conv's weights that the model computes.

    `swap` swaps no Conv whose type is unknown; one that another program wrote is float32 then.
    """
    if not names:
        return {}
    # Nothing can be inferred through our op, so that the model is taken with ONNX's.
    model = plain_model(swapped.to_model())
    types = ValueTypes(model)
    found = dict.fromkeys(names, int(onnx.TensorProto.FLOAT))
    for node in model.graph:
        if node.op_type != "Conv" or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        name = str(node.inputs[1].name)
        if name in found:
            values = [node.inputs[1], *node.inputs, *node.outputs]
            known = types.element_type(value for value in values if value is not None)
            found[name] = found[name] if known is None else int(known)
    return found
