"""A model with our ops turned back into ONNX's own, so that the default provider can run it.

A FusedConv stands for y = pool(activation(conv(u, W) + B + Z)), where u is X, or
depthwise_activation(depthwise_conv(X, D) + DB). Batch normalisations folded into the weights stay folded,
as ONNX Runtime folds them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from convswap.errors import ConvswapError, unknown_name
from convswap.graph.constants import Constants
from convswap.graph.domain import DOMAIN, FUSED_OP, ONNX_DOMAINS, is_our_conv, is_ours
from convswap.graph.epilogue import largest
from convswap.graph.names import nodes_of
from convswap.graph.serialisation import copy_of

# What says how a Conv of ours is computed, and not what it computes.
OWN_ATTRIBUTES = ("algorithm", "precision", "tuned")

# What ONNX's Conv has of its own; the other attributes of a FusedConv tell of what is beside it.
CONV_ATTRIBUTES = frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"})
# Of the depthwise convolution in front, whose names begin with "depthwise_".
_DEPTHWISE_ATTRIBUTES = ("dilations", "pads", "strides")
_ACTIVATIONS = (
    "None",
    "Relu",
    "LeakyRelu",
    "Clip",
    "Tanh",
    "Sigmoid",
    "HardSigmoid",
    "HardSwish",
    "SiLU",
    "Gelu",
    "GeluTanh",
    "Elu",
)
_POOLS = ("None", "MaxPool", "AveragePool")
# Before, Add and others broadcast by attributes.
_OLDEST_OPSET = 7


def plain_model(model: ir.Model) -> ir.Model:
    """Return a copy of `model` with every Conv of ours, in subgraphs too, turned back into ONNX's.

    A FusedConv becomes the nodes that it stands for.

    Raises:
        ConvswapError: a FusedConv is none that ONNX's operators of the model's opset can stand for.
    """
    copy = model.clone()
    constants = Constants(copy)
    bodies: list[ir.Model | ir.Function] = [copy, *copy.functions.values()]
    for body in bodies:
        opset = next((body.opset_imports[name] for name in ONNX_DOMAINS if name in body.opset_imports), 1)
        body.opset_imports.pop(DOMAIN, None)
        for node in list(ir.traversal.RecursiveGraphIterator(body.graph)):
            if is_our_conv(node):
                node.domain = ""
                for name in OWN_ATTRIBUTES:
                    node.attributes.pop(name, None)
            elif is_ours(node):
                _expand(node, opset, constants)
    return copy


def plain_nodes(
    node: onnx.NodeProto, opset: int, element_type: int, lengths: Mapping[str, int]
) -> list[onnx.NodeProto]:
    """Return the nodes of ONNX that stand for `node`, a Conv or FusedConv of ours.

    `opset` is the version of ONNX's own operators, `element_type` that of the data, of `onnx.TensorProto`,
    and `lengths` are as for `expand_fused`.

    Raises:
        ConvswapError: see `plain_model`.
    """
    if node.op_type == FUSED_OP:
        return expand_fused(node, opset, element_type, lengths)
    plain = copy_of(node)
    plain.domain = ""
    for index in reversed(range(len(plain.attribute))):
        if plain.attribute[index].name in OWN_ATTRIBUTES:
            del plain.attribute[index]
    return [plain]


def count_swapped(model: ir.Model) -> int:
    """Return how many Convs of ours `model` has, fused or not, in subgraphs and functions too.

    A node with a depthwise Conv in front counts as two.
    """
    return sum(count_convolutions(ir.to_proto(node)) for node in nodes_of(model) if is_ours(node))


def onnx_opset(opsets: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of ONNX's own operators among `opsets`; 1 where they have none."""
    return next((opset.version for opset in opsets if opset.domain in ONNX_DOMAINS), 1)


def count_convolutions(node: onnx.NodeProto) -> int:
    """Return how many convolutions `node` computes, if it is one of ours: two with a depthwise in front."""
    if not is_ours(node):
        return 0
    return 2 if node.op_type == FUSED_OP and depthwise_weights(node) else 1


def _expand(node: ir.Node, opset: int, constants: Constants) -> None:
    """Put ONNX's nodes in the place of `node`, a FusedConv."""
    values = {value.name: value for value in node.inputs if value is not None}
    element_type, lengths = _element_type(node, constants), {}
    for name, value in values.items():
        shape = value.shape if (tensor := constants.own_tensor(value)) is None else tensor.shape
        if name and shape and isinstance(shape[0], int) and shape[0] > 0:
            lengths[name] = shape[0]
    expanded = []
    for proto in expand_fused(ir.to_proto(node), opset, element_type, lengths):
        expanded.append(
            ir.Node(
                "",
                proto.op_type,
                [values.get(name) for name in proto.input],
                [ir.serde.deserialize_attribute(attribute) for attribute in proto.attribute],
                name=proto.name,
                outputs=[ir.Value(name=proto.output[0])],
            )
        )
        values[proto.output[0]] = expanded[-1].outputs[0]
    graph = node.graph
    assert graph is not None
    ir.convenience.replace_nodes_and_values(graph, node, [node], expanded, node.outputs, expanded[-1].outputs)


def _element_type(node: ir.Node, constants: Constants) -> int:
    """Return the element type of `node`, of whose values `swap` makes one a constant or declares it."""
    # Weights and bias first, whose types are certain.
    for value in (*node.inputs[1:3], *node.inputs, *node.outputs):
        if value is not None:
            tensor = constants.own_tensor(value)
            known = value.dtype if tensor is None else tensor.dtype
            if known is not None:
                return int(known)
    return int(onnx.TensorProto.FLOAT)


def expand_fused(
    node: onnx.NodeProto, opset: int, element_type: int, lengths: Mapping[str, int] | None = None
) -> list[onnx.NodeProto]:
    """Return the nodes of ONNX that stand for `node`, a convswap.FusedConv.

    The last of them has the node's name and output. `opset` is the version of ONNX's own operators in the
    model; `element_type` is that of the data, a value of `onnx.TensorProto`. `lengths` has the extents of the
    first axes of tensors, by name: ONNX's Conv says how many channels a depthwise convolution has, FusedConv
    leaves that to its weights.

    Raises:
        ConvswapError: the opset is older than 7, an attribute has a value that FusedConv does not know, or
            how many channels a depthwise convolution in front has is not known.
    """
    if opset < _OLDEST_OPSET:
        raise ConvswapError(
            f"FusedConv {node.name!r} is in a model of opset {opset}; its parts need {_OLDEST_OPSET} or newer"
        )
    return _Expansion(node, opset, element_type, lengths or {}).nodes


def fused_parts(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return what `node`, a convswap.FusedConv, computes beside the convolution, in order.

    That is a depthwise Conv in front and its activation, then Add, activation and pool.
    """
    attributes = _attributes(node)
    parts = (
        "Conv" if depthwise_weights(node) else "None",
        attributes.get("depthwise_activation", "None"),
        "Add" if _residual(node) else "None",
        attributes.get("activation", "None"),
        attributes.get("pool", "None"),
    )
    return tuple(part for part in parts if part != "None")


def depthwise_weights(node: onnx.NodeProto) -> str:
    """Return the name of the weights of the depthwise convolution in front; "" where there is none."""
    return _input(node, 4)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _residual(node: onnx.NodeProto) -> str:
    """Return the name of what is added to the convolution; "" where nothing is."""
    return _input(node, 3)


def _input(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if len(node.input) > index else ""


class _Expansion:
    """The nodes that stand for one; each takes the result of the one before."""

    def __init__(
        self, node: onnx.NodeProto, opset: int, element_type: int, lengths: Mapping[str, int]
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._node = node
        self._opset = opset
        self._element_type = element_type
        self._count = 0
        attributes = _attributes(node)
        pool = self._word(attributes, "pool", _POOLS)
        inputs = list(node.input[:3])
        if depthwise_weights(node):
            inputs[0] = self._value = self._convolve_depthwise(attributes, lengths)
        conv = {name: value for name, value in attributes.items() if name in CONV_ATTRIBUTES}
        self._value = self._add("Conv", *_given(inputs), **conv)
        if _residual(node):
            self._value = self._add("Add", self._value, _residual(node))
        self._value = self._activate(attributes, "activation")
        if pool != "None":
            self._pool(attributes)
        self.nodes[-1].output[0] = node.output[0]
        self.nodes[-1].name = node.name

    def _convolve_depthwise(self, attributes: Mapping[str, Any], lengths: Mapping[str, int]) -> str:
        weights = depthwise_weights(self._node)
        if weights not in lengths:
            raise ConvswapError(
                f"the shape of {weights!r}, the depthwise weights of FusedConv {self._node.name!r}, is not "
                "known; expected a constant"
            )
        conv = {
            name: attributes[f"depthwise_{name}"]
            for name in _DEPTHWISE_ATTRIBUTES
            if f"depthwise_{name}" in attributes
        }
        inputs = [self._node.input[0], weights, _input(self._node, 5)]
        self._value = self._add("Conv", *_given(inputs), group=lengths[weights], **conv)
        return self._activate(attributes, "depthwise_activation")

    def _word(self, attributes: Mapping[str, Any], name: str, known: Sequence[str]) -> str:
        given = str(attributes.get(name, "None"))
        if given not in known:
            raise unknown_name(f"{name} of FusedConv {self._node.name!r}", given, known)
        return given

    def _activate(self, attributes: Mapping[str, Any], which: str) -> str:
        """Return the name of the activation of the value; `which` is the attribute that tells of it."""
        activation, x = self._word(attributes, which, _ACTIVATIONS), self._value

        def parameter(name: str, default: float | None = None) -> float:
            # The op refuses a node that lacks it, too.
            value = attributes.get(f"{which}_{name}", default)
            if not isinstance(value, float | int):
                raise ConvswapError(
                    f"{which}_{name} of FusedConv {self._node.name!r} is {value!r}; expected a number"
                )
            return value

        match activation:
            case "None":
                return x
            case "Relu" | "Tanh" | "Sigmoid":
                return self._add(activation, x)
            case "LeakyRelu" | "Elu":
                return self._add(activation, x, alpha=parameter("alpha"))
            case "HardSigmoid":
                return self._add("HardSigmoid", x, alpha=parameter("alpha"), beta=parameter("beta"))
            case "Clip":
                most = largest(helper.tensor_dtype_to_np_dtype(self._element_type))
                low, high = parameter("alpha", -most), parameter("beta", most)
                if self._opset < 11:
                    return self._add("Clip", x, min=low, max=high)
                return self._add("Clip", x, self._constant(low), self._constant(high))
            case "HardSwish":
                return self._add("Mul", x, self._add("HardSigmoid", x, alpha=1 / 6, beta=0.5))
            case "SiLU":
                return self._add("Mul", x, self._add("Sigmoid", x))
            case "Gelu":
                scaled = self._add("Mul", x, self._constant(np.sqrt(0.5)))
                return self._half_of_x_times_1_plus(self._add("Erf", scaled))
            case "GeluTanh":
                cube = self._add("Mul", x, self._add("Mul", x, x))
                inner = self._add("Add", x, self._add("Mul", cube, self._constant(0.044715)))
                scaled = self._add("Mul", inner, self._constant(np.sqrt(2 / np.pi)))
                return self._half_of_x_times_1_plus(self._add("Tanh", scaled))
            case _:
                raise ValueError(f"no ONNX nodes are known for the activation {activation!r}")

    def _half_of_x_times_1_plus(self, value: str) -> str:
        half = self._add("Mul", self._value, self._constant(0.5))
        return self._add("Mul", half, self._add("Add", value, self._constant(1.0)))

    def _pool(self, attributes: Mapping[str, Any]) -> None:
        given = {
            name: attributes[f"pool_{name}"]
            for name in ("kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad")
            if f"pool_{name}" in attributes
        }
        if self._opset < 10:
            given.pop("ceil_mode", None)  # which is 0 then: the model could not have said otherwise
        self._value = self._add(attributes["pool"], self._value, **given)

    def _constant(self, number: float) -> str:
        with np.errstate(over="ignore"):  # a bound beyond the type's numbers is none
            array = np.array(number, helper.tensor_dtype_to_np_dtype(self._element_type))
        return self._add("Constant", value=numpy_helper.from_array(array))

    def _add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._node.output[0]}/expanded_{self._count}"
        self._count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output


def _given(inputs: Sequence[str]) -> list[str]:
    """Return `inputs` without those at the end that are left out."""
    found = list(inputs)
    while found and not found[-1]:
        found.pop()
    return found
