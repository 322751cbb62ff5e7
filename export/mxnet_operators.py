"""MXNet's operators: their output shapes, the shapes of their parameters, and the equivalent ONNX nodes.

The first input of an operator depends on the image; the others are its parameters. Shapes are those of one
image, without the batch: (channels, height, width) or (features,). The semantics follow the operator
reference of MXNet 1.x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from convswap.export.builder import ModelWriter
from convswap.export.mxnet_symbol import SymbolNode

Shape = tuple[int, ...]

# ONNX's names for the functions of Activation; softrelu is log(1 + exp(x)).
_ACTIVATIONS = {
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "softrelu": "Softplus",
    "softsign": "Softsign",
}


def _no_parameters(node: SymbolNode, shape: Shape) -> tuple[Shape, ...]:
    return ()


@dataclass(frozen=True)
class WriteContext:
    """The model writer for an operator's ONNX nodes, its input shape, and its input and output names."""

    writer: ModelWriter
    node: SymbolNode
    shape: Shape
    inputs: Sequence[str]
    output: str | None

    def write_result(self, operator: str, inputs: Sequence[str] | None = None, **attributes: Any) -> str:
        """Add the node that computes the result, with the MXNet node's name; return the result's name."""
        return self.writer.node(operator, inputs or self.inputs, self.node.name, self.output, **attributes)


@dataclass(frozen=True)
class Operator:
    """One operator of MXNet.

    `output_shape(node, shape)` returns the result's shape, `parameters(node, shape)` the shapes of the arrays
    after the node's first input, and `write` adds the ONNX nodes and returns the result's name. The first two
    raise ConvswapError for unsupported attributes. `label` says whether the last input has labels, which only
    training reads.
    """

    output_shape: Callable[[SymbolNode, Shape], Shape]
    write: Callable[[WriteContext], str]
    parameters: Callable[[SymbolNode, Shape], tuple[Shape, ...]] = _no_parameters
    label: bool = False


def _require_image(node: SymbolNode, shape: Shape) -> None:
    if len(shape) != 3:
        raise node.wrong(
            f"an input with {len(shape)} dimensions for each image", "3: channels, height and width"
        )


def _require_nchw(node: SymbolNode) -> None:
    node.choice("layout", ("None", "NCHW"), "None")


def _has_no_bias(node: SymbolNode) -> bool:
    # The course's operator New is a convolution without bias, and has no attribute for it.
    return node.operator == "New" or node.flag("no_bias")


def _convolution_output(node: SymbolNode, shape: Shape) -> Shape:
    _require_image(node, shape)
    _require_nchw(node)
    kernel = node.integers("kernel", 2)
    stride = node.integers("stride", 2, (1, 1))
    dilate = node.integers("dilate", 2, (1, 1))
    pad = node.integers("pad", 2, (0, 0), minimum=0)
    return (
        node.integer("num_filter"),
        *(
            (size + 2 * pad[axis] - dilate[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
            for axis, size in enumerate(shape[1:])
        ),
    )


def _convolution_parameters(node: SymbolNode, shape: Shape) -> tuple[Shape, ...]:
    filters, groups = node.integer("num_filter"), node.integer("num_group", 1)
    if shape[0] % groups or filters % groups:
        raise node.wrong(
            f"num_group {groups} for {shape[0]} input channels and {filters} filters",
            "a number that divides both",
        )
    weight = (filters, shape[0] // groups, *node.integers("kernel", 2))
    return (weight,) if _has_no_bias(node) else (weight, (filters,))


def _write_convolution(context: WriteContext) -> str:
    node = context.node
    return context.write_result(
        "Conv",
        kernel_shape=node.integers("kernel", 2),
        strides=node.integers("stride", 2, (1, 1)),
        dilations=node.integers("dilate", 2, (1, 1)),
        pads=node.integers("pad", 2, (0, 0), minimum=0) * 2,
        group=node.integer("num_group", 1),
    )


def _write_activation(context: WriteContext) -> str:
    return context.write_result(_ACTIVATIONS[context.node.choice("act_type", _ACTIVATIONS)])


def _activation_output(node: SymbolNode, shape: Shape) -> Shape:
    node.choice("act_type", _ACTIVATIONS)
    return shape


def _pooling_output(node: SymbolNode, shape: Shape) -> Shape:
    _require_image(node, shape)
    _require_nchw(node)
    average = node.choice("pool_type", ("max", "avg"), "max") == "avg"
    if node.flag("global_pool"):
        return (shape[0], 1, 1)
    kernel = node.integers("kernel", 2)
    stride = node.integers("stride", 2, (1, 1))
    pad = node.integers("pad", 2, (0, 0), minimum=0)
    full = node.choice("pooling_convention", ("valid", "full"), "valid") == "full"
    sizes = []
    for axis, size in enumerate(shape[1:]):
        if pad[axis] >= kernel[axis]:
            raise node.wrong(f"pad {pad[axis]} with kernel {kernel[axis]}", "a pad smaller than the kernel")
        room = size + 2 * pad[axis] - kernel[axis]
        steps = -(-room // stride[axis]) if full else room // stride[axis]
        # MXNet divides an average by the full window and allows windows beyond the image; ONNX does neither.
        if full and room % stride[axis] and (average or steps * stride[axis] >= size + pad[axis]):
            raise node.wrong(
                "pooling_convention 'full' with a window that is not all inside the padded image",
                "'valid', or a max-pool whose windows all touch the image",
            )
        sizes.append(steps + 1)
    return (shape[0], *sizes)


def _write_pooling(context: WriteContext) -> str:
    node = context.node
    average = node.choice("pool_type", ("max", "avg"), "max") == "avg"
    if node.flag("global_pool"):
        return context.write_result("GlobalAveragePool" if average else "GlobalMaxPool")
    window: dict[str, Any] = {
        "kernel_shape": node.integers("kernel", 2),
        "strides": node.integers("stride", 2, (1, 1)),
        "pads": node.integers("pad", 2, (0, 0), minimum=0) * 2,
        "ceil_mode": int(node.attributes.get("pooling_convention") == "full"),
    }
    if average:
        include = int(node.flag("count_include_pad", True))
        return context.write_result("AveragePool", count_include_pad=include, **window)
    return context.write_result("MaxPool", **window)


def _flatten_output(node: SymbolNode, shape: Shape) -> Shape:
    return (math.prod(shape),)


def _write_flatten(context: WriteContext) -> str:
    return context.write_result("Flatten", axis=1)


def _flattens(node: SymbolNode, shape: Shape) -> bool:
    return len(shape) > 1 and node.flag("flatten", True)


def _fully_connected_output(node: SymbolNode, shape: Shape) -> Shape:
    leading = () if _flattens(node, shape) else shape[:-1]
    return (*leading, node.integer("num_hidden"))


def _fully_connected_parameters(node: SymbolNode, shape: Shape) -> tuple[Shape, ...]:
    hidden = node.integer("num_hidden")
    features = math.prod(shape) if _flattens(node, shape) else shape[-1]
    return ((hidden, features),) if _has_no_bias(node) else ((hidden, features), (hidden,))


def _write_fully_connected(context: WriteContext) -> str:
    writer, name = context.writer, context.node.name
    data, weight, *bias = context.inputs
    if _flattens(context.node, context.shape):
        data = writer.node("Flatten", [data], f"{name}_flatten", axis=1)
    elif len(context.shape) > 1:
        transposed = writer.node("Transpose", [weight], f"{name}_transpose", perm=[1, 0])
        if not bias:
            return context.write_result("MatMul", [data, transposed])
        product = writer.node("MatMul", [data, transposed], name)
        return writer.node("Add", [product, *bias], f"{name}_add", context.output)
    return context.write_result("Gemm", [data, weight, *bias], transB=1)


def _reshape_output(node: SymbolNode, shape: Shape) -> Shape:
    """Apply MXNet's codes: 0 keeps a size, -1 is inferred, -2 keeps all remaining sizes, -3 joins two."""
    if node.flag("reverse"):
        raise node.wrong("reverse True", "False")
    wanted = node.integers("shape", None, minimum=-4)
    expected = "a shape that keeps the batch first, such as (0, -1), and the number of elements"
    if wanted[0] != 0 and not (wanted[0] == -1 and min(wanted[1:], default=0) > 0):
        raise node.wrong(f"shape {wanted}", expected)
    sizes: list[int] = []
    remaining = list(shape)
    for code in wanted[1:]:
        if code == -2:
            sizes, remaining = sizes + remaining, []
        elif code == -3 and len(remaining) >= 2:
            sizes, remaining = [*sizes, remaining[0] * remaining[1]], remaining[2:]
        elif code == 0 and remaining:
            sizes, remaining = [*sizes, remaining[0]], remaining[1:]
        elif code > 0 or code == -1:
            sizes, remaining = [*sizes, code], remaining[1:]
        else:
            raise node.wrong(f"shape {wanted} for an input of {format_shape(shape)} for each image", expected)
    total = math.prod(shape)
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = total // known if known else 0
    if not sizes or min(sizes) < 1 or math.prod(sizes) != total:
        raise node.wrong(f"shape {wanted} for an input of {format_shape(shape)} for each image", expected)
    return tuple(sizes)


def _write_reshape(context: WriteContext) -> str:
    # 0 keeps the batch, in ONNX as in MXNet.
    target = np.array([0, *_reshape_output(context.node, context.shape)], np.int64)
    shape = context.writer.constant(f"{context.node.name}_shape", target)
    return context.write_result("Reshape", [*context.inputs, shape])


def _softmax_output(node: SymbolNode, shape: Shape) -> Shape:
    if len(shape) != 1:
        raise node.wrong(
            f"an input of {format_shape(shape)} for each image", "one row of classes for each image"
        )
    return shape


def _write_softmax(context: WriteContext) -> str:
    return context.write_result("Softmax", axis=1)


def format_shape(shape: Shape) -> str:
    """Return a shape for a message: 3x224x224."""
    return "x".join(map(str, shape))


_CONVOLUTION = Operator(_convolution_output, _write_convolution, _convolution_parameters)

OPERATORS: dict[str, Operator] = {
    "Activation": Operator(_activation_output, _write_activation),
    "Convolution": _CONVOLUTION,
    "Flatten": Operator(_flatten_output, _write_flatten),
    "FullyConnected": Operator(_fully_connected_output, _write_fully_connected, _fully_connected_parameters),
    "New": _CONVOLUTION,
    "Pooling": Operator(_pooling_output, _write_pooling),
    "Reshape": Operator(_reshape_output, _write_reshape),
    "SoftmaxOutput": Operator(_softmax_output, _write_softmax, label=True),
}
