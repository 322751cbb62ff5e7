"""What convswap knows of MXNet's operators: the shapes they need and give, and the equal ONNX nodes.

Each takes one value that depends on the image, then its parameters. Shapes are those of one image, the batch
left out: (channels, height, width) or (features,). The semantics are those of MXNet 1.x's operator reference.
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
class Writing:
    """Where an operator's ONNX nodes go, with the shape and names of its inputs; `output` is None for any."""

    writer: ModelWriter
    node: SymbolNode
    shape: Shape
    inputs: Sequence[str]
    output: str | None

    def last(self, operator: str, inputs: Sequence[str] | None = None, **attributes: Any) -> str:
        """Add the node that gives the result, called as MXNet's, and return the result's name."""
        return self.writer.node(operator, inputs or self.inputs, self.node.name, self.output, **attributes)


@dataclass(frozen=True)
class Operator:
    """One operator of MXNet.

    `output_shape(node, shape)` gives the result's shape, `parameters(node, shape)` the shapes of the arrays
    in the node's inputs after the first, and `write` adds the ONNX nodes and returns the result's name. The
    first two raise ConvswapError for what convswap cannot take. `label` is True where a last input holds
    labels, which only training reads.
    """

    output_shape: Callable[[SymbolNode, Shape], Shape]
    write: Callable[[Writing], str]
    parameters: Callable[[SymbolNode, Shape], tuple[Shape, ...]] = _no_parameters
    label: bool = False


def _require_image(node: SymbolNode, shape: Shape) -> None:
    if len(shape) != 3:
        raise node.wrong(
            f"an input with {len(shape)} dimensions for each image", "3: channels, height and width"
        )


def _require_usual_layout(node: SymbolNode) -> None:
    node.choice("layout", ("None", "NCHW"), "None")


def _biasless(node: SymbolNode) -> bool:
    # The course's own convolution, New, has no bias and no attribute that says so.
    return node.operator == "New" or node.flag("no_bias")


def _convolution_output(node: SymbolNode, shape: Shape) -> Shape:
    _require_image(node, shape)
    _require_usual_layout(node)
    kernel = node.integers("kernel", 2)
    stride = node.integers("stride", 2, (1, 1))
    dilate = node.integers("dilate", 2, (1, 1))
    pad = node.integers("pad", 2, (0, 0), least=0)
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
    return (weight,) if _biasless(node) else (weight, (filters,))


def _write_convolution(to: Writing) -> str:
    node = to.node
    return to.last(
        "Conv",
        kernel_shape=node.integers("kernel", 2),
        strides=node.integers("stride", 2, (1, 1)),
        dilations=node.integers("dilate", 2, (1, 1)),
        pads=node.integers("pad", 2, (0, 0), least=0) * 2,
        group=node.integer("num_group", 1),
    )


def _write_activation(to: Writing) -> str:
    return to.last(_ACTIVATIONS[to.node.choice("act_type", _ACTIVATIONS)])


def _activation_output(node: SymbolNode, shape: Shape) -> Shape:
    node.choice("act_type", _ACTIVATIONS)
    return shape


def _pooling_output(node: SymbolNode, shape: Shape) -> Shape:
    _require_image(node, shape)
    _require_usual_layout(node)
    average = node.choice("pool_type", ("max", "avg"), "max") == "avg"
    if node.flag("global_pool"):
        return (shape[0], 1, 1)
    kernel = node.integers("kernel", 2)
    stride = node.integers("stride", 2, (1, 1))
    pad = node.integers("pad", 2, (0, 0), least=0)
    full = node.choice("pooling_convention", ("valid", "full"), "valid") == "full"
    sizes = []
    for axis, size in enumerate(shape[1:]):
        if pad[axis] >= kernel[axis]:
            raise node.wrong(f"pad {pad[axis]} with kernel {kernel[axis]}", "a pad smaller than the kernel")
        room = size + 2 * pad[axis] - kernel[axis]
        steps = -(-room // stride[axis]) if full else room // stride[axis]
        # MXNet divides by the window's size and has windows beyond the image; ONNX has neither.
        if full and room % stride[axis] and (average or steps * stride[axis] >= size + pad[axis]):
            raise node.wrong(
                "pooling_convention 'full' with a window that is not all inside the padded image",
                "'valid', or a max-pool whose windows all touch the image",
            )
        sizes.append(steps + 1)
    return (shape[0], *sizes)


def _write_pooling(to: Writing) -> str:
    node = to.node
    average = node.choice("pool_type", ("max", "avg"), "max") == "avg"
    if node.flag("global_pool"):
        return to.last("GlobalAveragePool" if average else "GlobalMaxPool")
    window: dict[str, Any] = {
        "kernel_shape": node.integers("kernel", 2),
        "strides": node.integers("stride", 2, (1, 1)),
        "pads": node.integers("pad", 2, (0, 0), least=0) * 2,
        "ceil_mode": int(node.attributes.get("pooling_convention") == "full"),
    }
    if average:
        include = int(node.flag("count_include_pad", True))
        return to.last("AveragePool", count_include_pad=include, **window)
    return to.last("MaxPool", **window)


def _flatten_output(node: SymbolNode, shape: Shape) -> Shape:
    return (math.prod(shape),)


def _write_flatten(to: Writing) -> str:
    return to.last("Flatten", axis=1)


def _flattens(node: SymbolNode, shape: Shape) -> bool:
    return len(shape) > 1 and node.flag("flatten", True)


def _fully_connected_output(node: SymbolNode, shape: Shape) -> Shape:
    kept = () if _flattens(node, shape) else shape[:-1]
    return (*kept, node.integer("num_hidden"))


def _fully_connected_parameters(node: SymbolNode, shape: Shape) -> tuple[Shape, ...]:
    hidden = node.integer("num_hidden")
    features = math.prod(shape) if _flattens(node, shape) else shape[-1]
    return ((hidden, features),) if _biasless(node) else ((hidden, features), (hidden,))


def _write_fully_connected(to: Writing) -> str:
    writer, name = to.writer, to.node.name
    data, weight, *bias = to.inputs
    if _flattens(to.node, to.shape):
        data = writer.node("Flatten", [data], f"{name}_flatten", axis=1)
    elif len(to.shape) > 1:
        transposed = writer.node("Transpose", [weight], f"{name}_transpose", perm=[1, 0])
        if not bias:
            return to.last("MatMul", [data, transposed])
        product = writer.node("MatMul", [data, transposed], name)
        return writer.node("Add", [product, *bias], f"{name}_add", to.output)
    return to.last("Gemm", [data, weight, *bias], transB=1)


def _reshape_output(node: SymbolNode, shape: Shape) -> Shape:
    """Apply MXNet's codes: 0 keeps a size, -1 takes what is left, -2 keeps all that follow, -3 joins two."""
    if node.flag("reverse"):
        raise node.wrong("reverse True", "False")
    wanted = node.integers("shape", None, least=-4)
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
            raise node.wrong(f"shape {wanted} for an input of {times(shape)} for each image", expected)
    total = math.prod(shape)
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = total // known if known else 0
    if not sizes or min(sizes) < 1 or math.prod(sizes) != total:
        raise node.wrong(f"shape {wanted} for an input of {times(shape)} for each image", expected)
    return tuple(sizes)


def _write_reshape(to: Writing) -> str:
    # In ONNX, too, 0 keeps the size in that place: the batch.
    target = np.array([0, *_reshape_output(to.node, to.shape)], np.int64)
    return to.last("Reshape", [*to.inputs, to.writer.constant(f"{to.node.name}_shape", target)])


def _softmax_output(node: SymbolNode, shape: Shape) -> Shape:
    if len(shape) != 1:
        raise node.wrong(f"an input of {times(shape)} for each image", "one row of classes for each image")
    return shape


def _write_softmax(to: Writing) -> str:
    return to.last("Softmax", axis=1)


def times(shape: Shape) -> str:
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
