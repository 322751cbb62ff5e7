"""Quantised models in the forms of several tools, and their evaluation with QuantConv in NumPy."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from convswap.graph.domain import DOMAIN, QUANT_OP
from convswap.graph.plain_model import onnx_opset, plain_nodes
from convswap.graph.serialisation import to_proto
from convswap.reference.provider_node import names_read
from convswap.reference.quantised import quant_conv
from fused_conv_reference import attributes_of
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from op_sessions import onnx_outputs

__all__ = ["attributes_of", "to_proto"]
OPSET = 17
IR_VERSION = 9


def quant_convs(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the QuantConv nodes of the main graph."""
    return [node for node in model.graph.node if (node.domain, node.op_type) == (DOMAIN, QUANT_OP)]


def ops(model: onnx.ModelProto) -> list[str]:
    """Return the ops of the main graph in order."""
    return [node.op_type for node in model.graph.node]


def node_named(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    """Return the node called `name`."""
    return next(node for node in model.graph.node if node.name == name)


def initializer(model: onnx.ModelProto, name: str) -> np.ndarray:
    """Return the initializer called `name`."""
    return numpy_helper.to_array(next(tensor for tensor in model.graph.initializer if tensor.name == name))


def run_plain(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] = ()
) -> list[np.ndarray]:
    """Return outputs of `model` by ONNX Runtime's CPU provider, not optimised.

    `outputs` may name any values; by default the outputs of the graph.
    """
    return onnx_outputs(_with_outputs(model, outputs), feeds, list(outputs) or None, optimised=False)


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {output.name for output in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return copy


def run_swapped(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return outputs of `model`: QuantConv in NumPy, all other nodes by the CPU provider, one by one."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values |= feeds
    for node in model.graph.node:
        if (node.domain, node.op_type) == (DOMAIN, QUANT_OP):
            values[node.output[0]] = run_quant_conv(model, node, values)
            continue
        plain = [node]
        if node.domain == DOMAIN:
            shapes = {name: values[name].shape for name in node.input if name}
            plain = plain_nodes(node, onnx_opset(model.opset_import), int(TensorProto.FLOAT), shapes)
        for part in plain:
            results = _run_node(part, model, {name: values[name] for name in names_read(part)})
            values |= dict(zip([name for name in part.output if name], results, strict=True))
    return [values[output.name] for output in model.graph.output]


def run_quant_conv(
    model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return the result of a QuantConv of `model`; `values` has its inputs that are no initializers."""
    assert all(node.input), "an input without a name"
    inputs = [values[name] if name in values else initializer(model, name) for name in node.input]
    return quant_conv(*inputs, attributes=attributes_of(node))


def _run_node(
    node: onnx.NodeProto, model: onnx.ModelProto, values: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Return the results of `node`, which also reads `values` in its subgraphs."""
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in values.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    opsets = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    return run_plain(helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version), values)


class GraphBuilder:
    """Builds a graph node by node; a value is its name."""

    def __init__(self, seed: int = 0, opset: int = OPSET) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.opset = opset
        self.numbers = np.random.default_rng(seed)
        self._count = 0

    def add(self, op: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> str:
        self._count += 1
        output = f"{name or op}_{self._count}"
        self.nodes.append(
            helper.make_node(op, list(inputs), [output], name=name or output, domain=domain, **attributes)
        )
        return output

    def constant(self, array: Any, dtype: Any = np.float32) -> str:
        self._count += 1
        name = f"constant_{self._count}"
        self.initializers.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def model(
        self, shape: Sequence[int | str], output: str | Sequence[str], *, x_type: int = TensorProto.FLOAT
    ) -> onnx.ModelProto:
        outputs = [output] if isinstance(output, str) else output
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", x_type, shape)],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self.initializers,
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        inferred = onnx.shape_inference.infer_shapes(model)
        types = {info.name: info.type for info in (*inferred.graph.value_info, *inferred.graph.output)}
        for info in model.graph.output:
            if info.name in types:
                info.type.CopyFrom(types[info.name])
        return model

    def conv(
        self,
        x: str,
        channels: int,
        filters: int,
        kernel: int,
        *,
        name: str = "",
        group: int = 1,
        bias: bool = True,
        pads: int | None = None,
        **attributes: Any,
    ) -> str:
        """Add a float Conv with random weights."""
        shape = (filters, channels // group, kernel, kernel)
        scale = 1.5 / np.sqrt(channels // group * kernel * kernel)
        inputs = [x, self.constant(self.numbers.standard_normal(shape) * scale)]
        if bias:
            inputs.append(self.constant(self.numbers.standard_normal(filters) * 0.3))
        border = kernel // 2 if pads is None else pads
        return self.add("Conv", *inputs, name=name, group=group, pads=[border] * 4, **attributes)


def residual_net(seed: int = 0, *, projected: bool = False, normalised: bool = False) -> onnx.ModelProto:
    """Return a float model like ResNet: a stem with a pool, two residual blocks, pooling and MatMul.

    With `normalised`, a batch normalisation is behind each Conv.
    """
    graph, channels = GraphBuilder(seed), 16

    def conv(x: str, channels_in: int, kernel: int, name: str, **attributes: Any) -> str:
        y = graph.conv(x, channels_in, channels, kernel, name=name, **attributes)
        if not normalised:
            return y
        parameters = [graph.constant(graph.numbers.uniform(0.8, 1.2, channels)) for _ in range(4)]
        return graph.add("BatchNormalization", y, *parameters)

    x = graph.add("Relu", conv("x", 3, 7, "stem", strides=[2, 2]))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in ("a", "b"):
        y = graph.add("Relu", conv(x, channels, 3, f"{block}1"))
        y = conv(y, channels, 3, f"{block}2")
        shortcut = conv(x, channels, 1, f"{block}s") if projected else x
        x = graph.add("Relu", graph.add("Add", y, shortcut))
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    x = graph.add("MatMul", x, graph.constant(graph.numbers.standard_normal((channels, 10))), name="fc")
    return graph.model(["n", 3, 30, 34], x)


def mobile_net() -> onnx.ModelProto:
    """Return a float model like MobileNetV2: depthwise Convs, Clip, and a residual without activation."""
    graph = GraphBuilder()
    low, high = graph.constant(0), graph.constant(6)

    def relu6(value: str) -> str:
        return graph.add("Clip", value, low, high)

    x = relu6(graph.conv("x", 3, 16, 3, strides=[2, 2], name="stem"))
    for block in ("a", "b"):
        y = relu6(graph.conv(x, 16, 32, 1, name=f"{block}1"))
        y = relu6(graph.conv(y, 32, 32, 3, group=32, name=f"{block}2"))
        x = graph.add("Add", x, graph.conv(y, 32, 16, 1, name=f"{block}3"))
    return graph.model(["n", 3, 20, 22], graph.conv(x, 16, 8, 1, name="head"))


def yolo_net() -> onnx.ModelProto:
    """Return a float model like YOLOv8: SiLU, halves, a residual, poolings, Resize, and Concats of them."""
    graph = GraphBuilder()

    def silu_conv(x: str, channels: int, filters: int, kernel: int = 3, **attributes: Any) -> str:
        y = graph.conv(x, channels, filters, kernel, **attributes)
        return graph.add("Mul", y, graph.add("Sigmoid", y))

    x = silu_conv(silu_conv("x", 3, 16, strides=[2, 2]), 16, 32)
    graph.nodes.append(helper.make_node("Split", [x], ["half_a", "half_b"], "split", axis=1))
    y = graph.add("Add", "half_b", silu_conv(silu_conv("half_b", 16, 16), 16, 16))
    skip = silu_conv(graph.add("Concat", "half_a", "half_b", y, axis=1), 48, 16, 1)
    x = silu_conv(skip, 16, 16, strides=[2, 2])
    y = graph.add("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4)
    z = graph.add("MaxPool", y, kernel_shape=[3, 3], pads=[1] * 4)
    x = silu_conv(graph.add("Concat", x, y, z, axis=1), 48, 16, 1)
    x = graph.add("Resize", x, "", graph.constant([1, 1, 2, 2]), mode="nearest")
    x = silu_conv(graph.add("Concat", x, skip, axis=1), 32, 16)
    x = graph.add("Concat", graph.conv(x, 16, 16, 1), graph.conv(silu_conv(x, 16, 16), 16, 16, 1), axis=1)
    return graph.model(["n", 3, 16, 24], graph.add("Reshape", x, graph.constant([0, 32, -1], np.int64)))


class RandomData(CalibrationDataReader):
    """A few batches of normally distributed data."""

    def __init__(self, shape: Sequence[int], batches: int = 3) -> None:
        numbers = np.random.default_rng(7)
        self._batches: Iterator[dict[str, np.ndarray]] = iter(
            [{"x": numbers.standard_normal(shape).astype(np.float32)} for _ in range(batches)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantised(
    model: onnx.ModelProto,
    *,
    qdq: bool = True,
    per_channel: bool = False,
    activations: QuantType = QuantType.QInt8,
    weights: QuantType = QuantType.QInt8,
    reduce_range: bool = False,
    op_types_to_quantize: Sequence[str] | None = None,
    **extra: Any,
) -> onnx.ModelProto:
    """Return `model` as onnxruntime.quantization quantises it."""
    shape = [dim.dim_value or 2 for dim in model.graph.input[0].type.tensor_type.shape.dim]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "float.onnx", Path(folder) / "quantised.onnx"
        onnx.save(model, source)
        quantize_static(
            source,
            target,
            RandomData(shape),
            quant_format=QuantFormat.QDQ if qdq else QuantFormat.QOperator,
            per_channel=per_channel,
            activation_type=activations,
            weight_type=weights,
            reduce_range=reduce_range,
            op_types_to_quantize=op_types_to_quantize,
            extra_options=extra,
        )
        return onnx.load(target)


class QuantisedBuilder(GraphBuilder):
    """Builds quantised graphs by hand, in the forms of several tools."""

    def __init__(
        self, seed: int = 0, opset: int = OPSET, *, dtype: Any = np.int8, float_type: Any = np.float32
    ) -> None:
        super().__init__(seed, opset)
        self.dtype, self.float_type = np.dtype(dtype), np.dtype(float_type)

    def quantisation(self, scale: float, zero_point: int = 0, dtype: Any = None) -> list[str]:
        """Return constants of a scale and a zero point for each tensor."""
        return [self.constant(scale, self.float_type), self.constant(zero_point, dtype or self.dtype)]

    def quantize(self, value: str, quantisation: Sequence[str], **attributes: Any) -> str:
        return self.add("QuantizeLinear", value, *quantisation, **attributes)

    def dequantize(self, value: str, quantisation: Sequence[str], **attributes: Any) -> str:
        return self.add("DequantizeLinear", value, *quantisation, **attributes)

    def rounded(self, value: str, quantisation: Sequence[str]) -> str:
        """Add a QuantizeLinear and a DequantizeLinear."""
        return self.dequantize(self.quantize(value, quantisation), quantisation)

    def weights(
        self, shape: Sequence[int], *, per_channel: bool, form: str = "codes", largest: int = 63
    ) -> tuple[str, np.ndarray]:
        """Return dequantised weights and their scales.

        `form` is "codes" for an int8 constant, "float" for a float constant that is quantised in the graph,
        and "uint8" for a constant with the zero point 128. No weight is larger than `largest`: sums of int16
        then do not saturate in ONNX Runtime's kernels for older processors.
        """
        codes = self.numbers.integers(-largest, largest + 1, shape)
        count = shape[0] if per_channel else 1
        scale = self.numbers.uniform(0.5, 1.5, count) / (40 * np.sqrt(np.prod(shape[1:])))
        scale = (scale if per_channel else scale[0]).astype(self.float_type)
        axis = {"axis": 0} if per_channel else {}
        if form == "uint8":
            zeros = np.full(scale.shape, 128)
            quantisation = [self.constant(scale, scale.dtype), self.constant(zeros, np.uint8)]
            return self.dequantize(self.constant(codes + 128, np.uint8), quantisation, **axis), scale
        quantisation = [self.constant(scale, scale.dtype), self.constant(np.zeros(scale.shape), np.int8)]
        if form == "codes":
            return self.dequantize(self.constant(codes, np.int8), quantisation, **axis), scale
        per_filter = np.reshape(scale, (-1, *[1] * (len(shape) - 1)))
        numbers = self.constant(codes * per_filter, self.float_type)
        return self.dequantize(self.quantize(numbers, quantisation, **axis), quantisation, **axis), scale

    def bias(self, filters: int, x_scale: float, scale: np.ndarray, *, form: str) -> list[str]:
        """Return the bias of a Conv as a list: "codes" (int32), "float", or "none"."""
        if form == "none":
            return []
        numbers = self.numbers.standard_normal(filters)
        if form == "float":
            return [self.constant(numbers, self.float_type)]
        # Float32 products, as onnxruntime.quantization computes them.
        factor = np.float32(x_scale) * scale.astype(np.float32)
        codes = self.constant(np.rint(numbers / factor), np.int32)
        quantisation = [self.constant(factor), self.constant(np.zeros(factor.shape), np.int32)]
        return [self.dequantize(codes, quantisation, **({"axis": 0} if factor.ndim else {}))]


def model_optimizer_net(*, shared_scales: bool = True) -> onnx.ModelProto:
    """Return a residual net as NVIDIA's ModelOpt writes it.

    Weights are float32 and quantised in the graph along axis 0, biases are float32, and only inputs of Convs
    and the residual are quantised, each by nodes of its own.
    """
    graph = QuantisedBuilder()

    def conv(x: str, scale: float, channels: int, filters: int, kernel: int, name: str) -> str:
        data = graph.rounded(x, graph.quantisation(scale))
        w, w_scale = graph.weights((filters, channels, kernel, kernel), per_channel=True, form="float")
        bias = graph.bias(filters, scale, w_scale, form="float")
        return graph.add("Conv", data, w, *bias, name=name, pads=[kernel // 2] * 4)

    x = graph.add("Relu", conv("x", 0.03, 3, 16, 3, "stem"))
    scale = 0.02
    for block in ("a", "b"):
        y = graph.add("Relu", conv(x, scale, 16, 16, 3, f"{block}1"))
        y = conv(y, 0.03, 16, 16, 3, f"{block}2")
        shortcut = graph.rounded(x, graph.quantisation(scale if shared_scales else 1.1 * scale))
        x = graph.add("Relu", graph.add("Add", y, shortcut))
        scale *= 1.5
    x = conv(x, scale, 16, 8, 1, "head")
    return graph.model(["n", 3, 12, 14], x)


def exported_net() -> onnx.ModelProto:
    """Return a net as PyTorch exports its quantised models.

    Activations are uint8 with zero points, weights int8 for each filter, biases float32. Every tensor between
    operators is rounded.
    """
    graph = QuantisedBuilder(dtype=np.uint8)
    x = graph.rounded("x", graph.quantisation(0.03, 121))
    scales = {"x": 0.03}

    def conv(x: str, channels: int, filters: int, kernel: int, name: str, **attributes: Any) -> str:
        group = attributes.get("group", 1)
        w, w_scale = graph.weights((filters, channels // group, kernel, kernel), per_channel=True)
        bias = graph.bias(filters, scales["x"], w_scale, form="float")
        return graph.add("Conv", x, w, *bias, name=name, pads=[kernel // 2] * 4, **attributes)

    y = conv(x, 3, 16, 3, "stem")
    x = graph.rounded(
        graph.add("Mul", y, graph.add("HardSigmoid", y, alpha=1 / 6)), graph.quantisation(0.02, 9)
    )
    y = conv(x, 16, 32, 1, "expand")
    y = graph.rounded(graph.add("Relu", y), graph.quantisation(0.02))
    y = conv(y, 32, 32, 5, "depthwise", group=32)
    y = graph.rounded(graph.add("Mul", y, graph.add("Sigmoid", y)), graph.quantisation(0.015, 18))
    y = graph.rounded(conv(y, 32, 16, 1, "project"), graph.quantisation(0.02, 130))
    x = graph.rounded(graph.add("Add", y, x), graph.quantisation(0.03, 110))
    return graph.model(["n", 3, 12, 14], conv(x, 16, 8, 1, "head"))


def drawn_block(seed: int) -> tuple[onnx.ModelProto, bool]:
    """Return a Conv and random steps behind it; and whether all of them belong to one QuantConv.

    The data, codes of a random quantisation, are rounded from the input "x". Opset, type of the codes, forms
    of weights and bias, attributes of the Conv, and the steps are random.
    """
    draw = random.Random(seed)
    opset = draw.choice((11, 13, 13, 17, 19, 21))
    dtype = draw.choice((np.int8, np.uint8))
    graph = QuantisedBuilder(seed, opset, dtype=dtype)
    lowest = int(np.iinfo(dtype).min)

    def quantisation(scale: float) -> list[str]:
        # Scales without a simple ratio: halves, which both sides round differently, are rare.
        return graph.quantisation(scale * draw.uniform(0.9, 1.1), lowest + draw.choice((0, 100, 128, 128)))

    per_channel = opset >= 13 and draw.random() < 0.6
    kernel, group, channels = draw.choice(
        ((1, 1, 16), (3, 1, 8), (3, 1, 3), (3, 16, 16), (3, 2, 8), (5, 1, 4))
    )
    filters = draw.choice((16, 24) if group == 1 else (16,))
    strides = draw.choice(([1, 1], [1, 1], [2, 2], [1, 2]))
    padding = draw.choice(
        (
            {"pads": [kernel // 2] * 4},
            {"pads": [0, 1, 1, 0]},
            {"auto_pad": "SAME_UPPER"},
            {"auto_pad": "VALID"},
        )
    )
    x_scale = draw.uniform(0.025, 0.035)
    x = graph.rounded("x", graph.quantisation(x_scale, lowest + draw.choice((0, 100, 128, 128))))
    w, w_scale = graph.weights(
        (filters, channels // group, kernel, kernel),
        per_channel=per_channel,
        form=draw.choice(("codes", "float", "uint8")),
    )
    bias_form = draw.choice(("codes", "float", "none")) if opset >= 13 or not per_channel else "float"
    bias = graph.bias(filters, x_scale, w_scale, form=bias_form)
    y = graph.add(
        "Conv", x, w, *bias, name="conv", group=group, strides=strides, kernel_shape=[kernel] * 2, **padding
    )
    has_residual = draw.random() < 0.4
    is_rounded = draw.random() < 0.5
    conv = y
    if is_rounded:
        y = graph.rounded(y, quantisation(0.02))
    if has_residual:
        # Another Conv of the data gives the residual its shape.
        other, _ = graph.weights((filters, channels // group, kernel, kernel), per_channel=False)
        z = graph.add(
            "Conv", x, other, name="other", group=group, strides=strides, kernel_shape=[kernel] * 2, **padding
        )
        z = graph.rounded(z, quantisation(0.03))
        y = graph.add("Add", *draw.sample((y, z), 2))
    activation = draw.choice(("None", "Relu", "Relu", "Clip", "LeakyRelu", "SiLU", "HardSwish", "Tanh"))
    if activation == "SiLU" and is_rounded and not has_residual:
        y = graph.add("Mul", graph.rounded(graph.add("Sigmoid", y), graph.quantisation(1 / 256, lowest)), y)
    else:
        y = _activated(graph, y, activation)
    pool = draw.choice(("None", "None", "None", "MaxPool", "AveragePool"))
    if pool != "None":
        y = graph.add(pool, y, kernel_shape=[2, 2], strides=draw.choice(([1, 1], [2, 2])))
    if ends_in_codes := draw.random() < 0.8:
        y = graph.quantize(y, quantisation(0.03))
    # Numbers end at the codes of a rounding.
    is_whole = ends_in_codes or not is_rounded or y == conv
    return graph.model(["n", channels, 11, 13], y), is_whole


def _activated(graph: GraphBuilder, value: str, activation: str) -> str:
    match activation:
        case "None":
            return value
        case "Clip":
            return graph.add("Clip", value, graph.constant(-0.7), graph.constant(1.2))
        case "SiLU":
            return graph.add("Mul", value, graph.add("Sigmoid", value))
        case "HardSwish":
            return graph.add("Mul", graph.add("HardSigmoid", value, alpha=1 / 6, beta=0.5), value)
    return graph.add(activation, value)
