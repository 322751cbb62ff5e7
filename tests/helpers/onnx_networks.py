"""Networks that the onnx package ships, with what to feed them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from convswap.errors import ConvswapError
from convswap.graph.swap import swap
from onnx import helper, numpy_helper

CONVERTED = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted"
# Of ONNX's networks without weights those of moderate size, and how many Convs take in how many nodes there.
LIGHT = {
    "densenet121": (62, 240),
    "inception_v1": (57, 58),
    "inception_v2": (69, 278),
    "shufflenet": (49, 94),
    "squeezenet": (26, 27),
}


def light_network(name: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a network of LIGHT with random weights, and what to feed it."""
    original = with_weights(onnx.load(CONVERTED.parent / "light" / f"light_{name}.onnx"))
    (given,) = original.graph.input
    shape = [dimension.dim_value for dimension in given.type.tensor_type.shape.dim]
    return original, {given.name: np.random.default_rng(3).standard_normal(shape).astype(np.float32)}


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with random weights where it has constants without values."""
    random = np.random.default_rng(4)
    shapes = {name: numpy_helper.to_array(value) for name, value in initializers(model).items()}
    made = onnx.ModelProto.FromString(model.SerializeToString())
    # From this version on initializers need not be inputs, and those that are may change.
    made.ir_version = 4
    del made.graph.node[:], made.graph.input[:]
    made.graph.input.extend(value for value in model.graph.input if value.name not in shapes)
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            made.graph.node.append(node)
            continue
        shape = shapes[node.input[0]]
        # Vectors are variances too, which are positive.
        values = random.uniform(0.5, 1.5, shape) if len(shape) == 1 else random.standard_normal(shape)
        values = values * np.sqrt(2 / max(1, np.prod(shape[1:])))
        made.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    return made


def initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {value.name: value for value in model.graph.initializer}


def converted_case(folder: Path) -> tuple[onnx.ModelProto | None, dict[str, np.ndarray], np.ndarray]:
    """Return a model that ONNX ships, fused (None where it has no Conv), its feeds and its output."""
    original = onnx.load(folder / "model.onnx")
    constants = {value.name for value in original.graph.initializer}
    names = [value.name for value in original.graph.input if value.name not in constants]
    cases = folder / "test_data_set_0"
    arrays = [numpy_helper.to_array(onnx.load_tensor(file)) for file in sorted(cases.glob("input_*.pb"))]
    expected = numpy_helper.to_array(onnx.load_tensor(cases / "output_0.pb"))
    feeds = dict(zip(names, arrays, strict=True))
    try:
        return swap(original, fuse=True).to_proto(), feeds, expected
    except ConvswapError as error:
        assert "has no Conv" in str(error)
        assert not any(node.op_type == "Conv" for node in original.graph.node)
        return None, feeds, expected


def converted_and_more(folder: Path, what: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model that ONNX ships with `what` put behind its Conv, and what to feed it.

    ONNX's models are of one Conv each, in an old format: initializers among the inputs, opset 6.
    """
    original = onnx.version_converter.convert_version(onnx.load(folder / "model.onnx"), 9)
    (conv,) = original.graph.node
    filters = next(value.dims[0] for value in original.graph.initializer if value.name == conv.input[1])
    given = {value.name for value in original.graph.initializer}
    y, conv.output[0] = conv.output[0], "conv_y"
    shape = [
        dimension.dim_value
        for dimension in onnx.shape_inference.infer_shapes(original)
        .graph.output[0]
        .type.tensor_type.shape.dim
    ]
    random = np.random.default_rng(2)
    match what:
        case "norm":
            for number in range(4):
                values = random.uniform(0.5, 1.5, size=filters).astype(np.float32)
                original.graph.initializer.append(numpy_helper.from_array(values, f"n{number}"))
                original.graph.input.append(
                    helper.make_tensor_value_info(f"n{number}", onnx.TensorProto.FLOAT, [filters])
                )
            nodes = [
                helper.make_node("BatchNormalization", ["conv_y", "n0", "n1", "n2", "n3"], ["h"]),
                helper.make_node("Elu", ["h"], [y]),
            ]
        case "residual":
            original.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, shape))
            nodes = [helper.make_node("Add", ["z", "conv_y"], ["h"]), helper.make_node("Tanh", ["h"], [y])]
        case _:
            nodes = [
                helper.make_node("Sigmoid", ["conv_y"], ["s"]),
                helper.make_node("Mul", ["conv_y", "s"], ["h"]),
                helper.make_node("MaxPool", ["h"], [y], kernel_shape=[2, 1]),
            ]
            original.graph.output[0].type.tensor_type.ClearField("shape")
    original.graph.node.extend(nodes)
    feeds = {
        value.name: random.standard_normal(
            [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in original.graph.input
        if value.name not in given and not value.name.startswith("n")
    }
    return original, feeds
