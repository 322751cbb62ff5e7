"""Convert convswap's ops back to ONNX's ops ("plain" nodes), so that the default provider can run a model.

A FusedConv computes y = pool(activation(conv(u, W) + B + Z)), where u is X, or
depthwise_activation(depthwise_conv(X, D) + DB). A LayoutConv computes the same between Transposes, and a
LayoutPool the pool alone. A LayerNormalization or Mul is ONNX's operator. Batch normalisations that were
folded into the weights stay folded, because ONNX Runtime folds them, too.

A QuantConv becomes a Conv of float32 numbers that are the integers, with the other steps of the op behind it.
Such a Conv is exact while its sums are below 2^24.
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
from convswap.graph.domain import (
    DOMAIN,
    LAYER_NORM_OP,
    ONNX_DOMAINS,
    is_convswap_conv,
    is_convswap_op,
    is_layout_pool,
    is_operator_of_onnx,
    is_quant_op,
)
from convswap.graph.epilogue import max_finite
from convswap.graph.names import nodes_of
from convswap.graph.serialisation import copy_of

# Attributes of convswap.Conv that ONNX's Conv does not have. They control how a node is computed, not its
# result.
CONVSWAP_ATTRIBUTES = ("algorithm", "precision", "tuned")

# Attributes of ONNX's Conv. The other attributes of a FusedConv describe the operations fused into it.
CONV_ATTRIBUTES = frozenset({"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"})
# Attributes of the fused depthwise convolution, without their prefix "depthwise_".
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
_LAYOUTS = ("NCHW", "NHWC")
# Extents of tensors by name; None for an unknown extent.
TensorShapes = Mapping[str, Sequence[int | None]]
# In older opsets, Add and other binary operators broadcast by attributes.
_OLDEST_OPSET = 7
# The first opset with QuantizeLinear.
_OLDEST_QUANTISED_OPSET = 10
_LAYER_NORM_SINCE = 17
_FIRST_OPSET_WITH_CEIL_MODE = 10  # of MaxPool and AveragePool


def plain_model(model: ir.Model) -> ir.Model:
    """Return a copy of `model` with ONNX's ops in place of convswap's, also in subgraphs and functions.

    Raises:
        ConvswapError: a node of convswap cannot be expressed in ONNX's operators of the model's opset.
    """
    copy = model.clone()
    constants = Constants(copy)
    bodies: list[ir.Model | ir.Function] = [copy, *copy.functions.values()]
    for body in bodies:
        opset = next((body.opset_imports[name] for name in ONNX_DOMAINS if name in body.opset_imports), 1)
        body.opset_imports.pop(DOMAIN, None)
        for node in list(ir.traversal.RecursiveGraphIterator(body.graph)):
            if _is_in_onnx(node, opset):
                node.domain = ""
                for name in CONVSWAP_ATTRIBUTES:
                    node.attributes.pop(name, None)
            elif (
                is_convswap_op(node) or is_quant_op(node) or is_layout_pool(node) or is_operator_of_onnx(node)
            ):
                _expand(node, opset, constants)
    return copy


def plain_nodes(
    node: onnx.NodeProto, opset: int, element_type: int, shapes: TensorShapes
) -> list[onnx.NodeProto]:
    """Return the ONNX nodes that are equivalent to `node`, which is no QuantConv.

    The other arguments are those of `expand_fused`.

    Raises:
        ConvswapError: see `plain_model`.
    """
    if _is_in_onnx(node, opset):
        plain = copy_of(node)
        plain.domain = ""
        for index in reversed(range(len(plain.attribute))):
            if plain.attribute[index].name in CONVSWAP_ATTRIBUTES:
                del plain.attribute[index]
        return [plain]
    if is_layout_pool(node):
        return expand_layout_pool(node, opset)
    if is_operator_of_onnx(node):
        return expand_layer_norm(node, opset, element_type)
    return expand_fused(node, opset, element_type, shapes)


def _is_in_onnx(node: onnx.NodeProto | ir.Node, opset: int) -> bool:
    """Return whether the op of `node`, without attributes of convswap, is an operator of ONNX in `opset`."""
    is_older = node.op_type == LAYER_NORM_OP and opset < _LAYER_NORM_SINCE
    return is_convswap_conv(node) or (is_operator_of_onnx(node) and not is_older)


def count_swapped(model: ir.Model) -> int:
    """Return how many convolutions the convswap nodes of `model` compute, also in subgraphs and functions.

    A node with a fused depthwise Conv counts as two.
    """
    return sum(
        count_convolutions(ir.to_proto(node))
        for node in nodes_of(model)
        if is_convswap_op(node) or is_quant_op(node)
    )


def onnx_opset(opsets: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of ONNX's domain in `opsets`; 1 if it is missing."""
    return next((opset.version for opset in opsets if opset.domain in ONNX_DOMAINS), 1)


def count_convolutions(node: onnx.NodeProto) -> int:
    """Return how many convolutions `node` computes if it is a convswap op, else 0.

    A node with a fused depthwise Conv computes two.
    """
    if is_quant_op(node):
        return 1
    if not is_convswap_op(node):
        return 0
    return 2 if not is_convswap_conv(node) and depthwise_weights(node) else 1


def _expand(node: ir.Node, opset: int, constants: Constants) -> None:
    """Replace `node` by ONNX nodes in its graph; the last of them has its output."""
    values = {value.name: value for value in node.inputs if value is not None}
    shapes: dict[str, Sequence[int | None]] = {}
    for name, value in values.items():
        shape = value.shape if (tensor := constants.direct_tensor(value)) is None else tensor.shape
        if name and shape:
            shapes[name] = [extent if isinstance(extent, int) and extent > 0 else None for extent in shape]
    if is_quant_op(node):
        types = [_code_type(node.inputs[index], constants) for index in (0, 3)]
        nodes = expand_quantised(ir.to_proto(node), opset, types[0], types[1], shapes)
    else:
        nodes = plain_nodes(ir.to_proto(node), opset, _element_type(node, constants), shapes)
    expanded = []
    for proto in nodes:
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
    """Return the element type of `node`; float32 if none of its values has a known type."""
    # Weights and bias come first, because their types are certain.
    for value in (*node.inputs[1:3], *node.inputs, *node.outputs):
        if value is not None:
            tensor = constants.direct_tensor(value)
            dtype = value.dtype if tensor is None else tensor.dtype
            if dtype is not None:
                return int(dtype)
    return int(onnx.TensorProto.FLOAT)


def _code_type(value: ir.Value | None, constants: Constants) -> int:
    """Return the type of data or of a zero point of a QuantConv; int8 if it is not known."""
    while value is not None:
        tensor, writer = constants.direct_tensor(value), value.producer()
        dtype = value.dtype if tensor is None else tensor.dtype
        if dtype is not None:
            return int(dtype)
        if writer is None or not (is_quant_op(writer) or writer.op_type == "QuantizeLinear"):
            break
        zero_point = 3 if is_quant_op(writer) else 2
        if len(writer.inputs) <= zero_point:
            break
        value = writer.inputs[zero_point]
    return int(onnx.TensorProto.INT8)


def expand_quantised(
    node: onnx.NodeProto, opset: int, x_type: int, y_type: int, shapes: TensorShapes
) -> list[onnx.NodeProto]:
    """Return the ONNX nodes that are equivalent to `node`, a convswap.QuantConv.

    The last node has the name and output of `node`. `x_type` and `y_type` are the types of data and result,
    values of `onnx.TensorProto`. The other arguments are those of `expand_fused`.

    Raises:
        ConvswapError: the opset is older than 10, an attribute has an unknown value, or the rank of the data
            is unknown.
    """
    if opset < _OLDEST_QUANTISED_OPSET:
        raise ConvswapError(
            f"{node.op_type} {node.name!r} is in a model of opset {opset}; its parts need "
            f"{_OLDEST_QUANTISED_OPSET} or newer"
        )
    return _QuantExpansion(node, opset, x_type, y_type, shapes).nodes


def expand_fused(
    node: onnx.NodeProto, opset: int, element_type: int, shapes: TensorShapes | None = None
) -> list[onnx.NodeProto]:
    """Return the ONNX nodes that are equivalent to `node`, a convswap.FusedConv or LayoutConv.

    The last node has the name and output of `node`. `opset` is the version of ONNX's domain in the model;
    `element_type` is that of the data, a value of `onnx.TensorProto`. `shapes` has shapes of the node's
    inputs. A depthwise Conv needs that of its weights: ONNX's Conv has the number of channels in its
    attribute `group`, FusedConv only in its weights. An NHWC tensor needs the rank, from the shape of X or W
    or the length of an attribute.

    Raises:
        ConvswapError: the opset is older than 7, an attribute has an unknown value, or the number of channels
            of a depthwise convolution or the rank of an NHWC tensor is unknown.
    """
    if opset < _OLDEST_OPSET:
        raise ConvswapError(
            f"{node.op_type} {node.name!r} is in a model of opset {opset}; its parts need {_OLDEST_OPSET} or "
            "newer"
        )
    return _Expansion(node, opset, element_type, shapes or {}).nodes


def expand_layout_pool(node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
    """Return the ONNX nodes that are equivalent to `node`, a convswap.LayoutPool: a pool between Transposes.

    The last node has the name and output of `node`.

    Raises:
        ConvswapError: the attribute `pool` has an unknown value.
    """
    attributes = _attributes(node)
    kind = str(attributes.pop("pool", "None"))
    if kind not in _POOLS[1:]:
        raise unknown_name(f"pool of {node.op_type} {node.name!r}", kind, _POOLS[1:])
    if opset < _FIRST_OPSET_WITH_CEIL_MODE:
        attributes.pop("ceil_mode", None)  # always 0 there
    nchw, pooled = f"{node.output[0]}/expanded_0", f"{node.output[0]}/expanded_1"
    return [
        helper.make_node("Transpose", node.input, [nchw], name=nchw, perm=[0, 3, 1, 2]),
        helper.make_node(kind, [nchw], [pooled], name=pooled, **attributes),
        helper.make_node("Transpose", [pooled], node.output, name=node.name, perm=[0, 2, 3, 1]),
    ]


def expand_layer_norm(node: onnx.NodeProto, opset: int, element_type: int) -> list[onnx.NodeProto]:
    """Return nodes of opsets before 17 that are equivalent to `node`, a convswap.LayerNormalization.

    The last node has the name and output of `node`. `element_type` is that of the data, a value of
    `onnx.TensorProto`.

    Raises:
        ConvswapError: the opset is older than 7.
    """
    if opset < _OLDEST_OPSET:
        raise ConvswapError(
            f"{node.op_type} {node.name!r} is in a model of opset {opset}; its parts need {_OLDEST_OPSET} or "
            "newer"
        )
    epsilon = float(_attributes(node).get("epsilon", 1e-5))
    dtype = helper.tensor_dtype_to_np_dtype(element_type)
    nodes: list[onnx.NodeProto] = []

    def add(op: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{node.output[0]}/expanded_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    x = node.input[0]
    centred = add("Sub", [x, add("ReduceMean", [x], axes=[-1], keepdims=1)])
    variance = add("ReduceMean", [add("Mul", [centred, centred])], axes=[-1], keepdims=1)
    constant = add("Constant", [], value=numpy_helper.from_array(np.array(epsilon, dtype)))
    deviation = add("Sqrt", [add("Add", [variance, constant])])
    result = add("Mul", [add("Div", [centred, deviation]), node.input[1]])
    if _input(node, 2):
        add("Add", [result, node.input[2]])
    nodes[-1].name, nodes[-1].output[0] = node.name, node.output[0]
    return nodes


def fused_parts(node: onnx.NodeProto, shapes: TensorShapes | None = None) -> tuple[str, ...]:
    """Return the ops that a fused node or a QuantConv computes besides its main convolution, in order.

    These are a depthwise Conv and its activation before it, and an Add, an activation and a pool after it.
    The roundings of a QuantConv are left out. `shapes` has those of its constants.
    """
    attributes = _attributes(node)
    residual = code_residual(node, shapes or {}) if is_quant_op(node) else _residual(node)
    parts = (
        "Conv" if not is_quant_op(node) and depthwise_weights(node) else "None",
        attributes.get("depthwise_activation", "None"),
        "Add" if residual else "None",
        attributes.get("activation", "None"),
        attributes.get("pool", "None"),
    )
    return tuple(part for part in parts if part != "None")


def code_residual(node: onnx.NodeProto, shapes: TensorShapes) -> str:
    """Return the name of the residual of a QuantConv; "" if there is none.

    A constant with one axis stands for an absent residual before a present input.
    """
    name = _input(node, 6)
    return "" if len(shapes.get(name, ())) == 1 else name


def depthwise_weights(node: onnx.NodeProto) -> str:
    """Return the name of the weights of the fused depthwise convolution; "" if there is none."""
    return _input(node, 4)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {
        name: value.decode(errors="replace") if isinstance(value, bytes) else value
        for name, value in values.items()
    }


def _residual(node: onnx.NodeProto) -> str:
    """Return the name of the residual that is added to the convolution; "" if there is none."""
    return _input(node, 3)


def _input(node: onnx.NodeProto, index: int) -> str:
    return str(node.input[index]) if len(node.input) > index else ""


class _Expansion:
    """The ONNX nodes that are equivalent to one fused node; each reads the result of the node before."""

    def __init__(self, node: onnx.NodeProto, opset: int, element_type: int, shapes: TensorShapes) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._node = node
        self._opset = opset
        self._element_type = element_type
        self._count = 0
        self._shapes = shapes
        attributes = _attributes(node)
        pool = self._named_choice(attributes, "pool", _POOLS)
        self._value = self._to_nchw(attributes, "input_layout", node.input[0])
        self._convolve(attributes)
        self._value = self._activate(attributes, "activation")
        if pool != "None":
            self._pool(attributes)
        self._finish()
        if self._is_nhwc(attributes, "output_layout"):
            rank = self._rank(attributes)
            self._value = self._add("Transpose", self._value, perm=[0, *range(2, rank), 1])
        self.nodes[-1].output[0] = node.output[0]
        self.nodes[-1].name = node.name

    def _convolve(self, attributes: Mapping[str, Any]) -> None:
        """Add the nodes before the activation."""
        inputs = list(self._node.input[:3])
        if depthwise_weights(self._node):
            self._value = self._convolve_depthwise(attributes)
        inputs[0] = self._value
        conv = {name: value for name, value in attributes.items() if name in CONV_ATTRIBUTES}
        self._value = self._add("Conv", *_without_trailing_empty(inputs), **conv)
        if _residual(self._node):
            residual = self._to_nchw(attributes, "residual_layout", _residual(self._node))
            self._value = self._add("Add", self._value, residual)

    def _finish(self) -> None:
        """Add the nodes behind the pooling."""

    def _is_nhwc(self, attributes: Mapping[str, Any], name: str) -> bool:
        return self._named_choice(attributes, name, _LAYOUTS, "NCHW") == "NHWC"

    def _to_nchw(self, attributes: Mapping[str, Any], name: str, value: str) -> str:
        """Add a Transpose of `value` if its layout is NHWC; return the name of the NCHW value."""
        if not self._is_nhwc(attributes, name):
            return value
        rank = self._rank(attributes)
        return self._add("Transpose", value, perm=[0, rank - 1, *range(1, rank - 1)])

    def _rank(self, attributes: Mapping[str, Any]) -> int:
        """Return the rank of the data."""
        for name in self._node.input[:2]:
            if name in self._shapes:
                return len(self._shapes[name])
        for name in ("kernel_shape", "strides", "dilations"):
            if name in attributes:
                return len(attributes[name]) + 2
        raise ConvswapError(
            f"the rank of {self._node.input[1]!r}, the weights of {self._node.op_type} {self._node.name!r}, "
            "is not known; expected a constant"
        )

    def _convolve_depthwise(self, attributes: Mapping[str, Any]) -> str:
        weights = depthwise_weights(self._node)
        channels = next(iter(self._shapes.get(weights, ())), None)
        if channels is None:
            raise ConvswapError(
                f"the shape of {weights!r}, the depthwise weights of {self._node.op_type} "
                f"{self._node.name!r}, is not known; expected a constant"
            )
        conv = {
            name: attributes[f"depthwise_{name}"]
            for name in _DEPTHWISE_ATTRIBUTES
            if f"depthwise_{name}" in attributes
        }
        inputs = [self._value, weights, _input(self._node, 5)]
        self._value = self._add("Conv", *_without_trailing_empty(inputs), group=channels, **conv)
        return self._activate(attributes, "depthwise_activation")

    def _named_choice(
        self, attributes: Mapping[str, Any], name: str, allowed: Sequence[str], default: str = "None"
    ) -> str:
        value = str(attributes.get(name, default))
        if value not in allowed:
            raise unknown_name(f"{name} of {self._node.op_type} {self._node.name!r}", value, allowed)
        return value

    def _activate(self, attributes: Mapping[str, Any], attribute: str) -> str:
        """Add the nodes of the activation that `attribute` names; return the name of their result."""
        activation, x = self._named_choice(attributes, attribute, _ACTIVATIONS), self._value

        def parameter(name: str, default: float | None = None) -> float:
            # The op also rejects a node without a required parameter.
            value = attributes.get(f"{attribute}_{name}", default)
            if not isinstance(value, float | int):
                raise ConvswapError(
                    f"{attribute}_{name} of {self._node.op_type} {self._node.name!r} is {value!r}; expected "
                    "a number"
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
                limit = max_finite(helper.tensor_dtype_to_np_dtype(self._element_type))
                low, high = parameter("alpha", -limit), parameter("beta", limit)
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
        pool = {
            name: attributes[f"pool_{name}"]
            for name in ("kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad")
            if f"pool_{name}" in attributes
        }
        if self._opset < _FIRST_OPSET_WITH_CEIL_MODE:
            pool.pop("ceil_mode", None)  # always 0 there
        self._value = self._add(attributes["pool"], self._value, **pool)

    def _constant(self, number: float) -> str:
        with np.errstate(over="ignore"):  # a bound beyond the type's range becomes infinite
            array = np.array(number, helper.tensor_dtype_to_np_dtype(self._element_type))
        return self._add("Constant", value=numpy_helper.from_array(array))

    def _add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{self._node.output[0]}/expanded_{self._count}"
        self._count += 1
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output


class _QuantExpansion(_Expansion):
    """The ONNX nodes that are equivalent to one QuantConv: its steps, in float32."""

    def __init__(
        self, node: onnx.NodeProto, opset: int, x_type: int, y_type: int, shapes: TensorShapes
    ) -> None:
        self._x_type, self._y_type = x_type, y_type
        super().__init__(node, opset, onnx.TensorProto.FLOAT, shapes)

    def _convolve(self, attributes: Mapping[str, Any]) -> None:
        node = self._node
        data = self._difference(self._value, attributes.get("x_zero_point", 0))
        conv = {name: value for name, value in attributes.items() if name in CONV_ATTRIBUTES}
        self._value = self._add("Conv", data, self._as_float(node.input[1]), **conv)
        if bias := _input(node, 4):
            self._value = self._add("Add", self._value, self._per_channel(self._as_float(bias), attributes))
        self._value = self._add("Mul", self._value, self._per_channel(node.input[2], attributes))
        if offset := _input(node, 5):
            self._value = self._add("Add", self._value, self._per_channel(offset, attributes))
        if "sum_zero_point" in attributes:
            # The type of the zero point is that of the codes.
            zero_point = self._integers(attributes["sum_zero_point"], self._x_type)
            codes = self._add("QuantizeLinear", self._value, self._constant(1.0), zero_point)
            if "sum_scale" in attributes:
                scale = self._constant(attributes["sum_scale"])
                self._value = self._add("DequantizeLinear", codes, scale, zero_point)
            else:
                self._value = self._add("Gather", _input(node, 7), self._place(codes))
        if residual := code_residual(node, self._shapes):
            codes = self._to_nchw(attributes, "residual_layout", residual)
            difference = self._difference(codes, attributes.get("z_zero_point", 0))
            scaled = self._add("Mul", difference, self._constant(attributes.get("z_scale", 1.0)))
            self._value = self._add("Add", self._value, scaled)

    def _finish(self) -> None:
        if self._y_type not in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8):
            self._value = self._add("Cast", self._value, to=self._y_type)
            return
        y_scale = np.float32(_attributes(self._node).get("y_scale", 1.0))
        if y_scale != 1:
            self._value = self._add("Mul", self._value, self._constant(float(np.float32(1) / y_scale)))
        self._value = self._add("QuantizeLinear", self._value, self._constant(1.0), self._node.input[3])

    def _place(self, codes: str) -> str:
        """Add the nodes of codes - the least code."""
        places = self._add("Cast", codes, to=onnx.TensorProto.INT32)
        least = np.iinfo(helper.tensor_dtype_to_np_dtype(self._x_type)).min
        return (
            self._add("Sub", places, self._integers(int(least), onnx.TensorProto.INT32)) if least else places
        )

    def _difference(self, codes: str, zero_point: int) -> str:
        """Add the nodes of codes - zero_point in float32."""
        numbers = self._as_float(codes)
        return self._add("Sub", numbers, self._constant(zero_point)) if zero_point else numbers

    def _as_float(self, integers: str) -> str:
        return self._add("Cast", integers, to=onnx.TensorProto.FLOAT)

    def _per_channel(self, numbers: str, attributes: Mapping[str, Any]) -> str:
        shape = self._integers([-1, *[1] * (self._rank(attributes) - 2)], onnx.TensorProto.INT64)
        return self._add("Reshape", numbers, shape)

    def _integers(self, values: int | Sequence[int], element_type: int) -> str:
        array = np.array(values, helper.tensor_dtype_to_np_dtype(element_type))
        return self._add("Constant", value=numpy_helper.from_array(array))


def _without_trailing_empty(inputs: Sequence[str]) -> list[str]:
    """Return `inputs` without the empty names at the end."""
    trimmed = list(inputs)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return trimmed
