"""Shape arithmetic: the name, the input shape and the parameters of every layer of a network."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from convswap.models.layers import Activation, Convolution, Flatten, FullyConnected, Layer, MaxPool, Softmax
from convswap.models.networks import Network

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PlacedLayer:
    """A layer in its network, at `index` of its layers.

    The shapes are those of one image: (channels, height, width) or (features,). `parameters` maps the name of
    each array (`conv1.weight`, `fc1.bias`) to its shape.
    """

    index: int
    name: str
    layer: Layer
    input_shape: Shape
    output_shape: Shape
    parameters: dict[str, Shape]


def place(network: Network) -> tuple[PlacedLayer, ...]:
    """Return the layers of `network` in order, named by kind and number: conv1, tanh1, pool1, conv2, fc1.

    Raises ValueError where a layer does not fit what comes before it: a mistake in a declaration.
    """
    shape: Shape = (network.channels, network.image_size, network.image_size)
    seen: Counter[str] = Counter()
    placed = []
    for index, layer in enumerate(network.layers):
        seen[layer.kind] += 1
        name = f"{layer.kind}{seen[layer.kind]}"
        output_shape = _output_shape(layer, shape)
        if min(output_shape) < 1:
            raise ValueError(f"{network.name}: {name} has nothing to compute on an input of shape {shape}")
        placed.append(PlacedLayer(index, name, layer, shape, output_shape, _parameters(name, layer, shape)))
        shape = output_shape
    return tuple(placed)


def last_fully_connected(network: Network) -> PlacedLayer:
    """Return the last fully connected layer of `network`, the one that is fitted to data."""
    return [placed for placed in place(network) if isinstance(placed.layer, FullyConnected)][-1]


def _output_shape(layer: Layer, shape: Shape) -> Shape:
    match layer, shape:
        case Convolution(), (_, height, width):
            return (layer.out_channels, height - layer.kernel + 1, width - layer.kernel + 1)
        case MaxPool(), (channels, height, width):
            extra = layer.kernel - 1 if layer.ceil else 0
            return (channels, (height + extra) // layer.kernel, (width + extra) // layer.kernel)
        case Flatten(), _:
            return (math.prod(shape),)
        case FullyConnected(), (_,):
            return (layer.out_features,)
        case ((Activation() | Softmax()), _):
            return shape
    raise ValueError(f"{layer} does not take an input of shape {shape}")


def _parameters(name: str, layer: Layer, shape: Shape) -> dict[str, Shape]:
    match layer:
        case Convolution():
            return {f"{name}.weight": (layer.out_channels, shape[0], layer.kernel, layer.kernel)}
        case FullyConnected():
            return {f"{name}.weight": (layer.out_features, shape[0]), f"{name}.bias": (layer.out_features,)}
        case _:
            return {}
