"""Quantised models in the forms of several tools, and their evaluation with QuantConv in NumPy."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from convswap.graph.domain import DOMAIN, QUANT_OP
from convswap.graph.plain_model import plain_nodes
from convswap.reference.quantised import quant_conv
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

OPSET = 17
IR_VERSION = 9


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of `node`, strings as str."""
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


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


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return options


def run_plain(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] = ()
) -> list[np.ndarray]:
    """Return outputs of `model` by ONNX Runtime's CPU provider, not optimised.

    `outputs` may name any values; by default the outputs of the graph.
    """
    model = _with_outputs(model, outputs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), _options(), providers=["CPUExecutionProvider"]
    )
    return session.run(list(outputs) or None, dict(feeds))


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {output.name for output in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return copy


def run_swapped(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] = ()
) -> list[np.ndarray]:
    """Return outputs of `model`: QuantConv in NumPy, all other nodes by the CPU provider, one by one."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values |= feeds
    for node in model.graph.node:
        inputs = [values[name] if name else None for name in node.input]
        if (node.domain, node.op_type) == (DOMAIN, QUANT_OP):
            assert all(node.input), "ONNX Runtime up to 1.23.2 fails at an empty input"
            padded = [*inputs, *[None] * 7][:7]
            values[node.output[0]] = quant_conv(*padded, attributes_of(node))
            continue
        plain = plain_nodes(node, OPSET, int(TensorProto.FLOAT), {}) if node.domain == DOMAIN else [node]
        for part in plain:
            results = _run_node(part, model, [values[name] if name else None for name in part.input])
            values |= dict(zip([name for name in part.output if name], results, strict=True))
    return [values[name] for name in outputs or [output.name for output in model.graph.output]]


def _run_node(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Sequence[Any]) -> list[np.ndarray]:
    names = dict(zip(node.input, inputs, strict=True))
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in names.items()
            if name
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    opsets = [opset for opset in model.opset_import if opset.domain != DOMAIN]
    return run_plain(
        helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version),
        {name: value for name, value in names.items() if name},
    )


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


def residual_net(seed: int = 0, *, projected: bool = False, channels: int = 16) -> onnx.ModelProto:
    """Return a float model like ResNet: a stem with a pool, two residual blocks, pooling and Gemm."""
    graph = GraphBuilder(seed)
    x = graph.add("Relu", graph.conv("x", 3, channels, 7, strides=[2, 2], name="stem"))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for block in ("a", "b"):
        y = graph.add("Relu", graph.conv(x, channels, channels, 3, name=f"{block}1"))
        y = graph.conv(y, channels, channels, 3, name=f"{block}2")
        shortcut = graph.conv(x, channels, channels, 1, name=f"{block}s") if projected else x
        x = graph.add("Relu", graph.add("Add", y, shortcut))
    x = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    x = graph.add("MatMul", x, graph.constant(graph.numbers.standard_normal((channels, 10))))
    return graph.model(["n", 3, 30, 34], x)


def mobile_net(seed: int = 0) -> onnx.ModelProto:
    """Return a float model like MobileNetV2: depthwise Convs, Clip, and a residual without activation."""
    graph = GraphBuilder(seed)
    low, high = graph.constant(0), graph.constant(6)

    def relu6(value: str) -> str:
        return graph.add("Clip", value, low, high)

    x = relu6(graph.conv("x", 3, 16, 3, strides=[2, 2], name="stem"))
    for block in ("a", "b"):
        y = relu6(graph.conv(x, 16, 32, 1, name=f"{block}1"))
        y = relu6(graph.conv(y, 32, 32, 3, group=32, name=f"{block}2"))
        x = graph.add("Add", x, graph.conv(y, 32, 16, 1, name=f"{block}3"))
    return graph.model(["n", 3, 20, 22], graph.conv(x, 16, 8, 1, name="head"))


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
            extra_options=extra,
        )
        return onnx.load(target)


def choose(seed: int, *choices: Any) -> Any:
    """Return a random one of `choices`."""
    return random.Random(seed).choice(choices)
