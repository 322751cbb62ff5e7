"""Converts a checkpoint of the course's MXNet networks, a symbol and its parameters, to an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from convswap.data.datasets import LARGEST_IMAGE_SIZE
from convswap.errors import ConvswapError
from convswap.export.builder import INPUT, ModelWriter
from convswap.export.mxnet_operators import OPERATORS, Operator, Shape, WriteContext, format_shape
from convswap.export.mxnet_params import read_params
from convswap.export.mxnet_symbol import Symbol, SymbolNode, read_symbol
from numpy.typing import NDArray

# If the arrays do not fit the image size, a fitting size is searched for: up to this size, and with at most
# this many shape computations, which take about a second.
LARGEST_SUGGESTION = 512
MOST_SUGGESTION_STEPS = 200_000


def read_mxnet(
    symbol_path: str | os.PathLike[str],
    params_path: str | os.PathLike[str],
    image_size: int,
    channels: int = 1,
) -> onnx.ModelProto:
    """Return a checkpoint (`NAME-symbol.json`, `NAME-EPOCH.params`) as an ONNX model: opset 20, IR 9.

    The files do not say how large the images are: `image_size` is their side in pixels. The input `image` is
    float32 [batch, channels, image_size, image_size] with pixel values 0..255. The output, float32
    [batch, classes], is called `probabilities` if the last operator is SoftmaxOutput, else `output`. Nodes
    keep their names.

    Raises ConvswapError, with the node or byte, if a file cannot be read, is cut off or damaged, an operator
    is unknown, an array is missing, or an array's shape does not fit the network at that image size. In the
    last case the message names an image size that fits, if there is one.
    """
    for quantity, number in (("image size", image_size), ("number of channels", channels)):
        if not 1 <= number <= LARGEST_IMAGE_SIZE:
            raise ConvswapError(f"{quantity} {number} is out of range; expected 1 to {LARGEST_IMAGE_SIZE}")
    symbol = read_symbol(symbol_path)
    checkpoint = _Checkpoint(_operators(symbol), read_params(params_path), str(params_path))
    checkpoint.require_all_arrays()
    first = checkpoint.steps[0].node
    image = symbol.nodes[first.inputs[0]].name
    if image in checkpoint.arrays:
        raise first.wrong(f"the array {image!r} as its first input", "the image")
    name = Path(symbol_path).name.removesuffix(".json").removesuffix("-symbol")
    try:
        return _write(checkpoint, (channels, image_size, image_size), name)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConvswapError(
            f"{str(symbol_path)!r} does not give a valid ONNX model: {reason}; check its attributes"
        ) from error


@dataclass(frozen=True)
class _Step:
    """One operator of the network, and the names of its arrays."""

    node: SymbolNode
    operator: Operator
    arrays: tuple[str, ...]


class _ShapeMismatchError(ConvswapError):
    """An array that does not fit at this image size, but may fit at another."""


@dataclass(frozen=True)
class _Checkpoint:
    steps: tuple[_Step, ...]
    arrays: dict[str, NDArray[np.float32]]
    params_path: str

    def require_all_arrays(self) -> None:
        for step in self.steps:
            for name in step.arrays:
                if name not in self.arrays:
                    raise ConvswapError(
                        f"{self.params_path!r} has no array {name!r}, which node {step.node.name!r} takes; "
                        f"it has: {_listed(sorted(self.arrays))}"
                        "; check that both files belong to one network"
                    )

    def shapes(self, image: Shape) -> Iterator[tuple[_Step, Shape, Shape]]:
        """Yield each step with the shapes of its input and output for images of the shape `image`."""
        shape = image
        for step in self.steps:
            node = step.node
            output = step.operator.output_shape(node, shape)
            if min(output) < 1:
                raise _ShapeMismatchError(
                    f"at image size {image[-1]} node {node.name!r} of {node.path!r} gets "
                    f"{format_shape(shape[1:])} pixels, too few for it"
                )
            expected = step.operator.parameters(node, shape)
            if len(expected) != len(step.arrays):
                raise node.wrong(f"{len(step.arrays)} arrays among its inputs", f"{len(expected)}")
            for name, expected_shape in zip(step.arrays, expected, strict=True):
                if self.arrays[name].shape != expected_shape:
                    raise _ShapeMismatchError(
                        f"array {name!r} of {self.params_path!r} is {format_shape(self.arrays[name].shape)}, "
                        f"but at image size {image[-1]} node {node.name!r} needs "
                        f"{format_shape(expected_shape)}"
                    )
            yield step, shape, output
            shape = output

    def suggestion(self, channels: int) -> str:
        """Return a clause with an image size that the arrays fit."""
        largest = max(1, min(LARGEST_SUGGESTION, MOST_SUGGESTION_STEPS // len(self.steps)))
        for size in range(1, largest + 1):
            try:
                for _ in self.shapes((channels, size, size)):
                    pass
            except ConvswapError:
                continue
            return f"--image-size {size} fits"
        return f"no image size up to {largest} fits: check that both files belong to one network"


def _operators(symbol: Symbol) -> tuple[_Step, ...]:
    """Return the operators from the image to the head. Each has one input that is no array and no label."""
    steps: list[_Step] = []
    node = symbol.nodes[symbol.head]
    while node.operator != "null":
        operator = OPERATORS.get(node.operator)
        if operator is None:
            raise ConvswapError(
                f"node {node.name!r} of {symbol.path!r} has the unknown op {node.operator!r:.60}; "
                f"known: {', '.join(OPERATORS)}"
            )
        inputs = [symbol.nodes[place] for place in node.inputs]
        arrays = inputs[1:-1] if operator.label and len(inputs) > 1 else inputs[1:]
        if not inputs or any(array.operator != "null" for array in arrays):
            found = [given.name for given in inputs] or "none"
            raise node.wrong(f"the inputs {found}", "one from the layer before, then arrays")
        steps.append(_Step(node, operator, tuple(array.name for array in arrays)))
        node = inputs[0]
    if not steps:
        raise ConvswapError(f"the head of {symbol.path!r} is the input {node.name!r}; expected an operator")
    return tuple(reversed(steps))


def _write(checkpoint: _Checkpoint, image: Shape, name: str) -> onnx.ModelProto:
    try:
        placed = list(checkpoint.shapes(image))
    except _ShapeMismatchError as error:
        raise ConvswapError(f"{error}; {checkpoint.suggestion(image[0])}") from None
    writer = ModelWriter()
    value = INPUT
    last = placed[-1][0]
    result = "probabilities" if last.operator.label else "output"
    for step, shape, _ in placed:
        arrays = [writer.constant(array, checkpoint.arrays[array]) for array in step.arrays]
        output = result if step is last else None
        value = step.operator.write(WriteContext(writer, step.node, shape, [value, *arrays], output))
    metadata = {
        "network": name,
        "dataset": "fashion-mnist",
        "weights": f"MXNet checkpoint {Path(checkpoint.params_path).name}",
    }
    return writer.finish(name, image, value, placed[-1][2], metadata)


def _listed(names: list[str]) -> str:
    # Names in a file may have any character.
    shown = [name if name.isprintable() else repr(name) for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "") or "none"
