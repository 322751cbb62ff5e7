"""Random chains of ops behind Convs, with declared shapes that are right, outdated, wrong or missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from fuse_models import array, declare, node, tensor
from fused_conv_reference import attributes_of
from onnx import helper

CHANNELS = 3
# Batch, height and width: at the export, and of later runs.
SIZES = ((2, 9, 9), (1, 10, 10), (2, 8, 11), (3, 12, 7), (1, 15, 15))
# Names that exporters write for unknown extents.
PLACEHOLDERS = ("", "?", "None", "*", "-1", "unk__0")
NAMES = ("batch", "channels", "height", "width")
ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "HardSwish")
OPS = ("Conv", "Conv", "Pair", "Norm", "Bias", "Add", "Add", "Add", "Activation", "MaxPool", "AveragePool")

Extent = int | str | None


class RandomlyDeclaredModel:
    """A model of random ops; `seed` decides everything.

    Input `x` has one of SIZES. Inputs `z` and `b` have the same, or 1 along some axes; `b` may lack batch and
    channels. `model` declares random shapes for inputs and intermediate values.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, np.ndarray] = {}
        # Channels, height and width of each value at the export, which guide the choice of ops.
        self._shapes = dict.fromkeys("xzb", (CHANNELS, *SIZES[0][1:]))
        self._broadcast = {
            (name, run): self._random.random(4) < 0.25 for name in "zb" for run in range(len(SIZES))
        }
        self._ranks = {"x": 4, "z": 4, "b": int(self._choose(4, 4, 2))}
        value = self._conv("x")
        for _ in range(int(self._random.integers(1, 9))):
            value = self._append(value)
        self.model = self._declare_all(value)

    def feeds(self, run: int) -> dict[str, np.ndarray]:
        """Return values for the model's inputs, with SIZES[run]."""
        batch, height, width = SIZES[run]
        feeds = {}
        for value in self.model.graph.input:
            shape = [batch, CHANNELS, height, width]
            if value.name != "x" and (run > 0 or value.name == "b"):
                shape = [
                    1 if short else n
                    for short, n in zip(self._broadcast[value.name, run], shape, strict=True)
                ]
            shape = shape[-self._ranks[value.name] :]
            feeds[value.name] = array(value.name, *shape, low=-2, high=2).astype(np.float32)
        return feeds

    def _choose(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def _add(self, op: str, inputs: str, shape: tuple[int, int, int], **attributes: Any) -> str:
        output = f"v{len(self._nodes)}"
        self._nodes.append(node(op, inputs, output, **attributes))
        self._shapes[output] = shape
        return output

    def _constant(self, *shape: int, low: float = -1.0) -> str:
        name = f"k{len(self._constants)}"
        self._constants[name] = array(name, *shape, low=low)
        return name

    def _windows(self) -> dict[str, Any]:
        """Return kernel, strides and pads, which often keep the size."""
        if self._random.random() < 0.4:
            return {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
        kernel = [self._choose(1, 2, 3, 3) for _ in range(2)]
        windows = {"kernel_shape": kernel, "strides": [self._choose(1, 1, 2, 2, 3) for _ in range(2)]}
        auto_pad = self._choose("NOTSET", "SAME_UPPER", "SAME_UPPER", "SAME_LOWER", "VALID")
        if auto_pad == "NOTSET":
            return windows | {"pads": [int(self._random.integers(reach)) for reach in (*kernel, *kernel)]}
        return windows | {"auto_pad": auto_pad}

    def _conv(self, value: str, windows: dict[str, Any] | None = None) -> str:
        windows = windows or self._windows()
        filters = self._choose(CHANNELS, CHANNELS, CHANNELS, 1)
        channels, *sizes = self._shapes[value]
        # Scaled so that values keep their magnitude in a chain of any depth, as the tolerance assumes.
        weights = self._constant(filters, channels, *windows["kernel_shape"])
        self._constants[weights] = self._constants[weights] / math.sqrt(self._constants[weights][0].size / 3)
        return self._add("Conv", f"{value} {weights}", (filters, *_sizes(sizes, windows)), **windows)

    def _pair(self, value: str) -> str:
        """Append a depthwise Conv, often other ops, and a 1x1 Conv."""
        channels, *sizes = self._shapes[value]
        windows = self._windows()
        weights = self._constant(channels, 1, *windows["kernel_shape"])
        self._constants[weights] = self._constants[weights] / math.sqrt(self._constants[weights][0].size / 3)
        shape = (channels, *_sizes(sizes, windows))
        value = self._add("Conv", f"{value} {weights}", shape, group=channels, **windows)
        for op in self._choose((), ("Bias",), ("Activation",), ("Norm", "Activation"), ("Add",)):
            value = self._append(value, op)
        return self._conv(value, {"kernel_shape": [1, 1], "strides": self._choose([1, 1], [1, 1], [2, 1])})

    def _append(self, value: str, op: str = "") -> str:
        channels, *sizes = shape = self._shapes[value]
        match op or self._choose(*OPS):
            case "Conv":
                return self._conv(value)
            case "Pair":
                return self._pair(value)
            case "Norm":
                statistics = " ".join(self._constant(channels, low=0.5) for _ in range(4))
                return self._add("BatchNormalization", f"{value} {statistics}", shape)
            case "Bias":
                bias = self._constant(
                    *self._choose((channels, 1, 1), (1, channels, 1, 1), (1,), (2, 1, 1, 1))
                )
                return self._add("Add", self._shuffled(value, bias), shape)
            case "Add":
                other = self._second_operand(value)
                longest = np.maximum(shape, self._shapes[other])
                return self._add("Add", self._shuffled(value, other), tuple(int(n) for n in longest))
            case "Activation":
                return self._add(self._choose(*ACTIVATIONS), value, shape)
            case op:
                windows = self._windows() | {"ceil_mode": self._choose(0, 0, 1)}
                return self._add(op, value, (channels, *_sizes(sizes, windows)), **windows)

    def _second_operand(self, value: str) -> str:
        """Return another value, most often of the exported shape of `value`."""
        last = self._nodes[-1]
        if last.op_type == "Conv" and self._random.random() < 0.3:
            # The other branch of a residual block.
            windows = {name: value for name, value in attributes_of(last).items() if name != "group"}
            return self._conv(last.input[0], windows)
        others = [other for other in self._shapes if other != value]
        alike = [other for other in others if _fit(self._shapes[other], self._shapes[value])]
        return str(self._choose(*alike) if alike and self._random.random() < 0.95 else self._choose(*others))

    def _shuffled(self, value: str, other: str) -> str:
        return " ".join(self._random.permutation([value, other]))

    def _declare_all(self, last: str) -> onnx.ModelProto:
        """Return the model with its declarations."""
        read = {name for each in self._nodes for name in each.input}
        outputs = {last} | {each.output[0] for each in self._nodes if self._random.random() < 0.05}
        outputs |= {each.output[0] for each in self._nodes if each.output[0] not in read}
        names = [name for name in "xzb" if name in read]
        style = self._choose("named", "named", "placeholder", "exported", "exported", "any")
        inputs = [declare(name, self._declared_input(name, style)) for name in names]
        exported = {name: list(value.shape) for name, value in self._exported_feeds(names).items()}
        actual = self._made([declare(name, shape) for name, shape in exported.items()], sorted(outputs))
        inferred = onnx.shape_inference.infer_shapes(actual).graph
        shapes = {
            value.name: [extent.dim_value for extent in value.type.tensor_type.shape.dim]
            for value in (*inferred.value_info, *inferred.output)
        }
        declared = self._made(inputs, [])
        for each in self._nodes:
            output = each.output[0]
            declaration = declare(output, self._declared_shape(shapes.get(output)))
            if output in outputs:
                declared.graph.output.append(declaration)
            elif self._random.random() < 0.7:
                declared.graph.value_info.append(declaration)
        return declared

    def _exported_feeds(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        self.model = self._made([declare(name, None) for name in names], [])
        return self.feeds(0)

    def _made(self, inputs: list[onnx.ValueInfoProto], outputs: Sequence[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self._nodes,
            "net",
            inputs,
            [declare(name, None) for name in outputs],
            [tensor(name, values) for name, values in self._constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def _declared_input(self, name: str, style: str) -> list[Extent]:
        actual = [SIZES[0][0], CHANNELS, *SIZES[0][1:]]
        if name == "b":
            actual = [1 if short else n for short, n in zip(self._broadcast["b", 0], actual, strict=True)]
        extents: list[Extent] = []
        for axis, extent in enumerate(actual):
            kind = self._choose("named", "placeholder", "exported") if style == "any" else style
            if name == "x" and axis == 1 and self._random.random() < 0.7:
                kind = "exported"
            named = NAMES[axis]
            extents.append({"named": named, "exported": extent}.get(kind, self._choose(*PLACEHOLDERS, None)))
        return extents[-self._ranks[name] :]

    def _declared_shape(self, exported: list[int] | None) -> list[Extent] | None:
        """Return a declared shape: as exported, wrong along an axis, placeholders, names or None."""
        kind = self._choose("exported", "exported", "wrong", "placeholder", "named", "nothing")
        if not exported or kind == "nothing":
            return None
        if kind == "wrong":
            axis = int(self._random.integers(len(exported)))
            return [n + (i == axis) * self._choose(-1, 1, 5) for i, n in enumerate(exported)]
        if kind == "placeholder":
            return [self._choose(*PLACEHOLDERS, None, n) for n in exported]
        return list(exported) if kind == "exported" else list(NAMES[-len(exported) :])


def _sizes(sizes: Sequence[int], windows: dict[str, Any]) -> list[int]:
    """Return the number of pool windows along each axis."""
    counts = []
    for axis, size in enumerate(sizes):
        stride = windows.get("strides", (1, 1))[axis]
        pads = windows.get("pads", (0,) * 4)
        room = size + pads[axis] + pads[2 + axis] - windows["kernel_shape"][axis]
        same = "SAME" in windows.get("auto_pad", "")
        rounded = -(-room // stride) if windows.get("ceil_mode") else room // stride
        counts.append(max(1, -(-size // stride) if same else rounded + 1))
    return counts


def _fit(shape: Sequence[int], other: Sequence[int]) -> bool:
    return all(one == two or 1 in (one, two) for one, two in zip(shape, other, strict=True))
