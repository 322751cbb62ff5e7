"""Models for which the error against float64 is no verdict, and a fault for our Convs."""

from __future__ import annotations

import numpy as np
import onnx
from convswap.graph.external_weights import as_split
from convswap.runtime.sessions import make_session
from onnx import TensorProto, helper, numpy_helper
from swap_models import text_model


def constant(name: str, values) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values), name)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def checked_model(nodes, inputs, outputs, tensors) -> onnx.ModelProto:
    """Return a checked model of opset 17, which ONNX's own evaluator and ONNX Runtime fully support."""
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def after_a_conv(
    nodes: str, *tensors: onnx.TensorProto, outputs: str = "float[2, 4, 6, 6] y", domains: str = ""
) -> onnx.ModelProto:
    """Return a model of a Conv from x to c [2, 4, 6, 6], followed by `nodes`."""
    return text_model(
        f"[conv] c = Conv(x, w)  {nodes}",
        *(constant("w", normal(0, 4, 3, 3, 3)), *tensors),
        inputs="float[2, 3, 8, 8] x",
        outputs=outputs,
        opset=17,
        domains=domains,
    )


def quantised_chain(depth: int, seed: int, side: int = 16, channels: int = 16) -> onnx.ModelProto:
    """Return `depth` Convs with 7-bit weights, which cannot saturate, and 8-bit tensors between them."""
    generator = np.random.default_rng(seed)
    nodes = "q = QuantizeLinear(x, s, z)  d0 = DequantizeLinear(q, s, z)"
    tensors = [constant("s", np.float32(0.03)), constant("z", np.uint8(128))]
    width = 3
    for index in range(depth):
        scale = np.full(channels, 0.35 / np.sqrt(width * 9) / 8, np.float32)
        weights = generator.integers(-63, 64, (channels, width, 3, 3)).astype(np.int8)
        tensors += [
            constant(f"w{index}", weights),
            constant(f"ws{index}", scale),
            constant(f"wz{index}", np.zeros(channels, np.int8)),
        ]
        nodes += f"""
          wd{index} = DequantizeLinear <axis = 0> (w{index}, ws{index}, wz{index})
          [conv{index}] c{index} = Conv <pads = [1, 1, 1, 1]> (d{index}, wd{index})
          q{index} = QuantizeLinear(c{index}, s, z)
          d{index + 1} = DequantizeLinear(q{index}, s, z)"""
        width = channels
    kinds = {"inputs": f"float[1, 3, {side}, {side}] x", "outputs": f"float[1, {channels}, {side}, {side}] y"}
    return text_model(f"{nodes}  y = Identity(d{depth})", *tensors, **kinds, opset=17)


def class_map(seed: int) -> onnx.ModelProto:
    """Return a model of the class of each of 128 x 128 pixels, by float16 scores with ties."""
    weights = (np.random.default_rng(seed).standard_normal((21, 64, 1, 1)) * 0.1).astype(np.float16)
    nodes = "[conv] c = Conv(x, w)  y = ArgMax <axis = 1, keepdims = 0> (c)"
    kinds = {"inputs": "float16[1, 64, 128, 128] x", "outputs": "int64[1, 128, 128] y"}
    return text_model(nodes, constant("w", weights), **kinds)


def make_our_convs_wrong(monkeypatch, factor: float) -> None:
    """Multiply the outputs of our op by `factor`, in the whole model and in single-node models."""

    def wrong_session(model, side, device, **options):
        split = as_split(model)
        scaled = split._replace(message=_scaled(split.message, factor)) if side.uses_convswap else split
        return make_session(scaled, side, device, **options)

    for module in ("outputs", "compare", "preparation"):
        monkeypatch.setattr(f"convswap.comparison.{module}.make_session", wrong_session)


def _scaled(model: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    scaled = onnx.ModelProto()
    scaled.CopyFrom(model)
    kinds = {tensor.name: tensor.data_type for tensor in scaled.graph.initializer}
    nodes = list(scaled.graph.node)
    del scaled.graph.node[:]
    for node in nodes:
        output = node.output[0]
        if node.domain == "convswap":
            kind = helper.tensor_dtype_to_np_dtype(kinds.get(node.input[1], TensorProto.FLOAT))
            value = numpy_helper.from_array(np.array(factor, kind))
            node.output[0] = f"{output}_right"
            scaled.graph.node.append(helper.make_node("Constant", [], [f"{output}_factor"], value=value))
        scaled.graph.node.append(node)
        if node.domain == "convswap":
            scaled.graph.node.append(
                helper.make_node("Mul", [f"{output}_right", f"{output}_factor"], [output])
            )
    return scaled


def float16_overflow(*, second: bool = False) -> onnx.ModelProto:
    """Return a float16 model whose Conv "large" overflows float16 before a division.

    With `second` it also has a Conv "small" with its own output. ONNX Runtime's CPU provider keeps float32
    between the ops and returns the float64 result, 81.
    """
    nodes, outputs = "[large] c = Conv(x, w)  y = Div(c, d)", "float16[1, 2, 6, 6] y"
    tensors = [constant("w", np.full((2, 3, 3, 3), 100, np.float16)), constant("d", np.float16(1000))]
    if second:
        nodes, outputs = f"{nodes}  [small] z = Conv(x, v)", f"{outputs}, float16[1, 2, 6, 6] z"
        tensors.append(constant("v", np.full((2, 3, 3, 3), 0.5, np.float16)))
    return text_model(nodes, *tensors, inputs="float16[1, 3, 8, 8] x", outputs=outputs)


FLOAT16_FEEDS = {"x": np.full((1, 3, 8, 8), 30, np.float16)}
