"""Builds ONNX models: `ModelWriter` collects nodes, `build` turns a network and its weights into a model.

Every model that convswap exports has the input `image`, float32 [batch, channels, height, width] with a
symbolic batch, and states its versions: opset 20 and IR 9 are the newest that ONNX Runtime 1.17, the oldest
supported one, reads, while onnx writes its own newest unless told otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from convswap.models import (
    Activation,
    Convolution,
    Flatten,
    FullyConnected,
    MaxPool,
    Network,
    PlacedLayer,
    Softmax,
    place,
)
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
IR_VERSION = 9
INPUT = "image"

_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu"}


class ModelWriter:
    """Collects the nodes and constants of one graph, keeping the names of its values apart."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[TensorProto] = []
        self._names = {INPUT}

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add `array` as an initializer and return its name: `name`, with a number where that is taken."""
        name = self._unused(name)
        self._initializers.append(numpy_helper.from_array(array, name))
        return name

    def node(
        self, operator: str, inputs: Sequence[str], name: str, output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node and return the name of its one output: `output`, else `<name>_output`."""
        result = self._unused(output or f"{name}_output")
        self._nodes.append(helper.make_node(operator, inputs, [result], name=name, **attributes))
        return result

    def finish(
        self,
        name: str,
        image_shape: Sequence[int],
        output: str,
        output_shape: Sequence[int],
        metadata: Mapping[str, str],
    ) -> onnx.ModelProto:
        """Return the model, checked, with the shape of every value inferred.

        Shapes are those of one image: `image_shape` of the input, `output_shape` of the value `output`.
        `metadata` becomes the model's properties, `convswap.` put before each key.
        Raises onnx.checker.ValidationError or onnx.shape_inference.InferenceError where the graph is not
        valid.
        """
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["batch", *image_shape])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *output_shape])],
            self._initializers,
        )
        model = helper.make_model(
            graph,
            producer_name="convswap",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        helper.set_model_props(model, {f"convswap.{key}": value for key, value in metadata.items()})
        onnx.checker.check_model(model, full_check=True)
        return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)

    def _unused(self, wanted: str) -> str:
        name, number = wanted, 2
        while name in self._names:
            name, number = f"{wanted}_{number}", number + 1
        self._names.add(name)
        return name


def build(
    network: Network,
    weights: Mapping[str, NDArray[np.float32]],
    metadata: Mapping[str, str],
    output: str = "probabilities",
) -> onnx.ModelProto:
    """Return `network` as a model with the result `output`, float32 [batch, features of the last layer].

    `weights` holds an array for every parameter that `convswap.models.place` names.
    """
    writer = ModelWriter()
    layers = place(network)
    value = INPUT
    for placed in layers:
        arrays = [writer.constant(name, weights[name]) for name in placed.parameters]
        value = _write_layer(writer, placed, value, arrays, output if placed is layers[-1] else None)
    image_shape = (network.channels, network.image_size, network.image_size)
    return writer.finish(network.name, image_shape, value, layers[-1].output_shape, metadata)


def _write_layer(
    writer: ModelWriter, placed: PlacedLayer, value: str, arrays: Sequence[str], output: str | None
) -> str:
    name = placed.name
    match placed.layer:
        case Convolution(kernel=kernel):
            return writer.node("Conv", [value, *arrays], name, output, kernel_shape=[kernel, kernel])
        case Activation(function=function):
            return writer.node(_ACTIVATIONS[function], [value], name, output)
        case MaxPool(kernel=kernel, ceil=ceil):
            window = [kernel, kernel]
            return writer.node(
                "MaxPool", [value], name, output, kernel_shape=window, strides=window, ceil_mode=int(ceil)
            )
        case Flatten():
            return writer.node("Flatten", [value], name, output, axis=1)
        case FullyConnected():
            return writer.node("Gemm", [value, *arrays], name, output, transB=1)
        case Softmax():
            return writer.node("Softmax", [value], name, output, axis=1)
    raise ValueError(f"no ONNX operator for {placed.layer}")
