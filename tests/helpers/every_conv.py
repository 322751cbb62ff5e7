"""A model with Convs of all element types, precisions and algorithms of a device, some with an epilogue, and
its reference.

All Convs read the same float32 input, cast to their types, and each has an output. The last Conv reads the
output of the first, so the order of execution matters too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime
from card_algorithms import first_on_card
from conv_cases import ConvCase, assert_within_rounding
from convswap import _native
from element_types import TYPES, assert_rounded_once
from onnx import TensorProto, helper, numpy_helper
from op_sessions import ROUNDING

CHANNELS = 3
# Algorithms of a device for each name in CONVS: the first that the card has is taken.
ALGORITHMS = {
    "cpu": {"fast": ("direct",), "plain": ("reference",), "auto": ("auto",)},
    "cuda": {"fast": ("few_channels", "tiled"), "plain": ("naive",), "auto": ("auto",)},
}


@dataclass(frozen=True)
class Conv:
    """A Conv node, its constants, and its input: the model's input, or the output of another Conv."""

    name: str
    element_type: str = "float32"
    precision: str = "ieee"
    algorithm: str = "auto"
    filters: int = 5
    kernel: tuple[int, int] = (3, 3)
    reads: str = "x"
    channels: int = CHANNELS
    attributes: dict[str, Any] = field(default_factory=dict)
    epilogue: dict[str, Any] = field(default_factory=dict)  # attributes; the node is then a FusedConv

    @cached_property
    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        shape = (self.filters, self.channels, *self.kernel)
        random = np.random.default_rng([*self.name.encode()])
        kind = np.float32 if self.element_type == "float32" else TYPES[self.element_type][0]
        return random.normal(size=shape).astype(kind), random.normal(size=self.filters).astype(kind)

    def check(self, x: np.ndarray, y: np.ndarray, device: str) -> None:
        """Assert that `y` is the convolution of `x` but for rounding."""
        arrays = (x, *self.constants)
        if self.epilogue:
            self.check_fused(arrays, y, device)
        elif self.element_type == "float32":
            rounding = ROUNDING[device if self.precision == "tf32" else "cpu"]
            assert_within_rounding(y, arrays, *rounding, **self.attributes)
        else:
            case = ConvCase(x.shape, self.constants[0].shape, True, self.attributes)
            # The model's casts are exact, so the cast back is exact too.
            narrow = y.astype(TYPES[self.element_type][0])
            assert_rounded_once(narrow, case, arrays, self.element_type, device)

    def check_fused(self, arrays: tuple[np.ndarray, ...], y: np.ndarray, device: str) -> None:
        """Assert that `y` is the reference of FusedConv within rounding; no activation is steeper than 1."""
        wide = [array.astype(np.float64) for array in arrays]
        options = {"algorithm": "reference", **self.attributes}
        reference = _native.conv(*wide, **options, **self.epilogue)
        pool = {key: value for key, value in self.epilogue.items() if key.startswith("pool")}
        magnitude = _native.conv(*map(np.abs, wide), **options, **{**pool, "pool": "MaxPool"})
        unit, operand = ROUNDING[device if self.precision == "tf32" else "cpu"]
        terms = math.prod(self.constants[0].shape[1:]) + 1
        bound = 1.01 * (2 * operand + (terms + 14) * unit) * magnitude
        assert y.shape == reference.shape
        assert (np.abs(y - reference) <= bound).all(), f"{self.name} is wrong"


POOL_2 = {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]}
# Windows that overlap: on CUDA a second kernel pools, from scratch memory.
POOL_3 = {"pool": "MaxPool", "pool_kernel_shape": [3, 3], "pool_strides": [2, 2], "pool_pads": [1, 1, 1, 1]}
CONVS = (
    Conv("tf32", precision="tf32", algorithm="fast", filters=20, attributes={"pads": [1, 0, 2, 1]}),
    Conv("strided", precision="tf32", algorithm="fast", kernel=(5, 4), attributes={"strides": [2, 1]}),
    Conv("ieee", algorithm="plain", attributes={"dilations": [1, 2], "pads": [1, 2, 1, 2]}),
    Conv("float16", "float16"),
    Conv("bfloat16", "bfloat16", attributes={"strides": [1, 2]}),
    Conv("float64", "float64", algorithm="plain", kernel=(2, 5)),
    Conv("fused", precision="tf32", filters=7, epilogue={"activation": "Tanh", **POOL_2}),
    Conv("pooled", precision="tf32", algorithm="fast", epilogue={"activation": "Relu", **POOL_3}),
    Conv("pooled_plainly", algorithm="plain", epilogue={"activation": "Sigmoid", **POOL_3}),
    Conv("chained", precision="tf32", algorithm="fast", filters=6, reads="tf32", channels=20),
)
ONNX_TYPES = {name: element_type for name, (_, element_type, *_) in TYPES.items()}


def model(device: str) -> bytes:
    """Return the model, whose nodes name algorithms of the device."""
    nodes, constants, outputs = [], [], []
    for conv in CONVS:
        name, kind = conv.name, conv.element_type
        x, y = conv.reads, conv.name
        if kind in ONNX_TYPES:
            x = f"x_{name}"
            nodes.append(helper.make_node("Cast", ["x"], [x], to=ONNX_TYPES[kind]))
        # NumPy has no bfloat16; float32 represents both 16-bit types exactly.
        widened = kind in ("float16", "bfloat16")
        nodes.append(
            helper.make_node(
                "FusedConv" if conv.epilogue else "Conv",
                [x, f"w_{name}", f"b_{name}"],
                [f"narrow_{name}" if widened else y],
                name=name,
                domain="convswap",
                precision=conv.precision,
                algorithm=first_on_card(*ALGORITHMS[device][conv.algorithm]),
                **conv.attributes,
                **conv.epilogue,
            )
        )
        if widened:
            nodes.append(helper.make_node("Cast", [f"narrow_{name}"], [y], to=TensorProto.FLOAT))
        for key, array in zip("wb", conv.constants, strict=True):
            constants.append(numpy_helper.from_array(array, f"{key}_{name}"))
        element_type = TensorProto.DOUBLE if kind == "float64" else TensorProto.FLOAT
        outputs.append(helper.make_tensor_value_info(y, element_type, None))
    x_info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", CHANNELS, "H", "W"])
    graph = helper.make_graph(nodes, "every_conv", [x_info], outputs, constants)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("convswap", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def make_input(seed: int, batch: int = 2, height: int = 11, width: int = 14) -> np.ndarray:
    """Return data that all element types represent exactly: seven bits and a sign."""
    random = np.random.default_rng(seed)
    return (random.integers(-127, 128, (batch, CHANNELS, height, width)) / 16).astype(np.float32)


def answers(session: onnxruntime.InferenceSession, x: np.ndarray) -> list[np.ndarray]:
    """Return the output of every Conv, in the order of CONVS."""
    return session.run(None, {"x": x})


def check(x: np.ndarray, outputs: list[np.ndarray], device: str) -> None:
    """Assert that every output is the convolution of its Conv's input."""
    values = {"x": x, **{conv.name: y for conv, y in zip(CONVS, outputs, strict=True)}}
    for conv in CONVS:
        conv.check(values[conv.reads], values[conv.name], device)


def same_bits(arrays: list[np.ndarray], other_arrays: list[np.ndarray]) -> bool:
    """Return whether two lists of arrays are the same, bit for bit."""
    return [(y.shape, y.dtype, y.tobytes()) for y in arrays] == [
        (y.shape, y.dtype, y.tobytes()) for y in other_arrays
    ]
