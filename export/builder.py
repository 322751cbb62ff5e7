"""Builds ONNX models: `ModelWriter` collects nodes, `build` makes a model of a network and its weights.

The models built here have the input `image`, float32 [batch, channels, height, width]. The input of
`export_torch` is [batch, ...] in the shape and element type of its module. All have a symbolic batch, opset
20
and IR 9: the newest versions that ONNX Runtime 1.17, the oldest supported version, reads. Without explicit
versions, onnx would write its newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from convswap.models import (
    IMAGE,
    Activation,
    BatchNormalization,
    ChannelsFirst,
    ChannelsLast,
    Concatenation,
    Convolution,
    Flatten,
    FlattenPixels,
    FullyConnected,
    GlobalAveragePool,
    LayerNormalization,
    LayerScale,
    LocalResponseNormalization,
    MaxPool,
    Network,
    PlacedLayer,
    Residual,
    Softmax,
    Split,
    Upsample,
    place,
)
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 9
INPUT = "image"

# Shape inference reads the values of small constants only, such as shapes.
_SMALL_BYTES = 4096

_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "gelu": "Gelu"}


class ModelWriter:
    """Collects the nodes and constants of one graph and gives its values unique names."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._value_infos: list[onnx.ValueInfoProto] = []
        self._names = {INPUT}

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add `array` as an initializer and return its name: `name`, with a number if that is taken."""
        name = self._unused(name)
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(
        self, operator: str, inputs: Sequence[str], name: str, output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node and return the name of its only output: `output` or, by default, `<name>_output`."""
        result = self._unused(output or f"{name}_output")
        self._nodes.append(helper.make_node(operator, inputs, [result], name=name, **attributes))
        return result

    def split(self, value: str, name: str, parts: int) -> list[str]:
        """Add a node that splits `value` into equal parts along axis 1, and return their names."""
        results = [self._unused(f"{name}_output_{part}") for part in range(parts)]
        self._nodes.append(helper.make_node("Split", [value], results, name=name, axis=1, num_outputs=parts))
        return results

    def declare_shape(self, value: str, shape: Sequence[int]) -> None:
        """Declare the shape of one image of `value`, for a value whose batch name inference would lose."""
        self._value_infos.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", *shape]))

    def finish(
        self,
        name: str,
        image_shape: Sequence[int],
        output: str,
        output_shape: Sequence[int],
        metadata: Mapping[str, str],
    ) -> onnx.ModelProto:
        """Check the model, infer the shape of every value, and return the model.

        Shapes are those of one image: `image_shape` of the input, `output_shape` of the value `output`.
        `metadata` becomes the model's properties, with the prefix `convswap.` before each key.
        Raises onnx.checker.ValidationError or onnx.shape_inference.InferenceError for an invalid graph.
        """
        large = [tensor for tensor in self._initializers if len(tensor.raw_data) > _SMALL_BYTES]
        inputs = [
            helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *image_shape]),
            # Large weights are inputs for now: the checker and inference would copy half a gigabyte each
            # time.
            *(helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in large),
        ]
        graph = helper.make_graph(
            self._nodes,
            name,
            inputs,
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *output_shape])],
            [tensor for tensor in self._initializers if len(tensor.raw_data) <= _SMALL_BYTES],
            value_info=self._value_infos,
        )
        model = helper.make_model(
            graph,
            producer_name="convswap",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        helper.set_model_props(model, {f"convswap.{key}": value for key, value in metadata.items()})
        onnx.checker.check_model(model, full_check=True)
        model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        del model.graph.input[1:]
        del model.graph.initializer[:]
        model.graph.initializer.extend(self._initializers)
        return model

    def _unused(self, preferred: str) -> str:
        name, number = preferred, 2
        while name in self._names:
            name, number = f"{preferred}_{number}", number + 1
        self._names.add(name)
        return name


def build(
    network: Network,
    weights: Mapping[str, NDArray[np.float32]],
    metadata: Mapping[str, str],
    output: str = "probabilities",
) -> onnx.ModelProto:
    """Return `network` as a model whose output, called `output`, is float32 [batch, ...] of the last layer.

    `weights` has an array for every parameter and statistic of `convswap.models.place`.
    """
    writer = ModelWriter()
    layers = place(network)
    values = {IMAGE: INPUT}
    for placed in layers:
        inputs = [values[source] for source in placed.sources]
        if isinstance(placed.layer, Split):
            parts = writer.split(inputs[0], placed.name, len(placed.outputs))
            values |= zip(placed.outputs, parts, strict=True)
            continue
        inputs += _constants(writer, placed, weights)
        values[placed.name] = _write_layer(writer, placed, inputs, output if placed is layers[-1] else None)
    image_shape = (network.channels, network.image_size, network.image_size)
    last = layers[-1]
    return writer.finish(network.name, image_shape, values[last.name], last.output_shape, metadata)


def _constants(
    writer: ModelWriter, placed: PlacedLayer, weights: Mapping[str, NDArray[np.float32]]
) -> list[str]:
    arrays = {name: weights[name] for name in (*placed.parameters, *placed.statistics)}
    if isinstance(placed.layer, FullyConnected) and placed.layer.per_pixel:
        # MatMul cannot transpose its operand, unlike Gemm.
        arrays[f"{placed.name}.weight"] = np.ascontiguousarray(arrays[f"{placed.name}.weight"].T)
    arrays |= {f"{placed.name}.{name}": array for name, array in _constant_inputs(placed).items()}
    return [writer.constant(name, array) for name, array in arrays.items()]


def _constant_inputs(placed: PlacedLayer) -> dict[str, NDArray[Any]]:
    match placed.layer:
        case Activation(function="relu6"):
            return {"least": np.array(np.float32(0.0)), "most": np.array(np.float32(6.0))}
        case Upsample(factor=factor):
            return {"scales": np.array([1, 1, factor, factor], np.float32)}
        case FlattenPixels():
            # 0 keeps the batch, and -1 is inferred: the number of pixels.
            return {"shape": np.array([0, placed.input_shape[0], -1], np.int64)}
    return {}


# The operator and attributes of layers without settings.
_OPERATORS: dict[type, tuple[str, dict[str, Any]]] = {
    GlobalAveragePool: ("GlobalAveragePool", {}),
    LayerScale: ("Mul", {}),
    ChannelsLast: ("Transpose", {"perm": [0, 2, 3, 1]}),
    ChannelsFirst: ("Transpose", {"perm": [0, 3, 1, 2]}),
    Residual: ("Add", {}),
    FlattenPixels: ("Reshape", {}),
    Flatten: ("Flatten", {"axis": 1}),
    Softmax: ("Softmax", {"axis": 1}),
}


def _write_layer(writer: ModelWriter, placed: PlacedLayer, inputs: Sequence[str], output: str | None) -> str:
    def write(operator: str, **attributes: Any) -> str:
        return writer.node(operator, inputs, placed.name, output, **attributes)

    match placed.layer:
        case Convolution(kernel=kernel, stride=stride, padding=padding, groups=groups):
            return write(
                "Conv",
                kernel_shape=[kernel, kernel],
                **_unless_default("strides", [stride] * 2, [1, 1]),
                **_unless_default("pads", [padding] * 4, [0] * 4),
                **_unless_default("group", groups, 1),
            )
        case Activation(function="relu6"):
            return write("Clip")
        case Activation(function="silu"):
            inputs = [*inputs, writer.node("Sigmoid", inputs, f"{placed.name}_sigmoid")]
            return write("Mul")
        case Activation(function=function):
            return write(_ACTIVATIONS[function])
        case MaxPool(kernel=kernel, ceil=ceil, step=step, padding=padding):
            return write(
                "MaxPool",
                kernel_shape=[kernel, kernel],
                strides=[step, step],
                ceil_mode=int(ceil),
                **_unless_default("pads", [padding] * 4, [0] * 4),
            )
        case BatchNormalization(epsilon=epsilon):
            return write("BatchNormalization", epsilon=epsilon)
        case LocalResponseNormalization(size=size, alpha=alpha, beta=beta):
            return write("LRN", size=size, alpha=alpha, beta=beta, bias=1.0)
        case LayerNormalization(epsilon=epsilon):
            return write("LayerNormalization", axis=-1, epsilon=epsilon)
        case Concatenation(axis=axis):
            return write("Concat", axis=axis + 1)
        case Upsample():
            # The same attributes as PyTorch's exporter. The second input, a region of interest, is unused.
            inputs = [inputs[0], "", inputs[1]]
            rounding = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
            enlarged = write("Resize", mode="nearest", **rounding)
            writer.declare_shape(enlarged, placed.output_shape)
            return enlarged
        case FullyConnected(per_pixel=True):
            product = writer.node("MatMul", inputs[:2], f"{placed.name}_product")
            inputs = [product, inputs[2]]
            return write("Add")
        case FullyConnected():
            return write("Gemm", transB=1)
    operator, attributes = _OPERATORS[type(placed.layer)]
    return write(operator, **attributes)


def _unless_default(name: str, value: Any, default: Any) -> dict[str, Any]:
    """Return the attribute `name`, or no attribute if the value is ONNX's default."""
    return {} if value == default else {name: value}
