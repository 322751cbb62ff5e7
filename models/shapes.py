"""Shape inference: the name, the shapes, the inputs and the parameters of every layer of a network."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from convswap.models.layers import (
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
    Keep,
    Layer,
    LayerNormalization,
    LayerScale,
    LocalResponseNormalization,
    MaxPool,
    Residual,
    Softmax,
    Split,
    Take,
    Upsample,
)
from convswap.models.networks import Network

# The network's input, as a source of a layer.
IMAGE = "image"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PlacedLayer:
    """A layer with its name, inputs, shapes and parameters in a network.

    `index` is its index in the network's layers, or that of the Residual that contains it. `sources` names
    the layers whose outputs are its inputs; IMAGE is the network's input, and `split1.1` the second part of a
    Split. The shapes are those of one image: (channels, height, width), (channels, pixels) or (features,).
    The `input_shape` of a Concatenation is that of its concatenated sources; the `output_shape` of a Split is
    that of one part. `parameters` maps the names of trained arrays (`conv1.weight`, `fc1.bias`) to their
    shapes, `statistics` the names of measured arrays (`bn1.mean`).
    """

    index: int
    name: str
    layer: Layer
    sources: tuple[str, ...]
    input_shape: Shape
    output_shape: Shape
    parameters: dict[str, Shape]
    statistics: dict[str, Shape]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, as other layers have them among their `sources`."""
        if isinstance(self.layer, Split):
            return tuple(f"{self.name}.{part}" for part in range(len(self.layer.labels)))
        return (self.name,)


def place(network: Network) -> tuple[PlacedLayer, ...]:
    """Return the layers of `network`, each after its sources, named by kind and number: conv1, tanh1, pool1.

    A Residual becomes the layers of its body, those of its shortcut, and itself, the sum of both. Keep and
    Take become no layers; they only determine the sources of others.
    Raises ValueError if a layer does not fit its input, which is a mistake in a declaration.
    """
    placing = _Placing(network.name)
    source = IMAGE
    shape: Shape = (network.channels, network.image_size, network.image_size)
    for index, layer in enumerate(network.layers):
        source, shape = placing.add(layer, index, source, shape)
    return tuple(placing.placed)


class _Placing:
    def __init__(self, network: str) -> None:
        self.placed: list[PlacedLayer] = []
        self._network = network
        self._counts: Counter[str] = Counter()
        self._saved: dict[str, tuple[str, Shape]] = {}

    def add(self, layer: Layer, index: int, source: str, shape: Shape) -> tuple[str, Shape]:
        """Add `layer` after the output `source`, which has `shape`.

        Return the name and the shape of the next layer's input.
        """
        match layer:
            case Residual():
                return self._add_residual(layer, index, source, shape)
            case Keep():
                self._saved[layer.label] = source, shape
                return source, shape
            case Take():
                return self._find(layer.label)
            case Split():
                return self._add_split(layer, index, source, shape)
            case Concatenation():
                return self._add_concatenation(layer, index)
        placed = self._add_one(layer, index, (source,), shape)
        return placed.name, placed.output_shape

    def _find(self, label: str) -> tuple[str, Shape]:
        if label not in self._saved:
            raise ValueError(f"{self._network}: nothing was saved as {label!r}")
        return self._saved[label]

    def _add_split(self, layer: Split, index: int, source: str, shape: Shape) -> tuple[str, Shape]:
        placed = self._add_one(layer, index, (source,), shape)
        parts = [(output, placed.output_shape) for output in placed.outputs]
        self._saved.update(zip(layer.labels, parts, strict=True))
        return parts[-1]

    def _add_concatenation(self, layer: Concatenation, index: int) -> tuple[str, Shape]:
        sources, shapes = zip(*map(self._find, layer.labels), strict=True)
        first, axis = shapes[0], layer.axis
        others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        if len(others) > 1 or axis >= len(first):
            raise ValueError(f"{self._network}: {layer} does not take inputs of shapes {shapes}")
        joined = (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])
        placed = self._add_one(layer, index, sources, joined)
        return placed.name, placed.output_shape

    def _add_residual(self, layer: Residual, index: int, source: str, shape: Shape) -> tuple[str, Shape]:
        ends = []
        for path in (layer.body, layer.shortcut):
            end = source, shape
            for inner in path:
                end = self.add(inner, index, *end)
            ends.append(end)
        (body, body_shape), (shortcut, shortcut_shape) = ends
        if body_shape != shortcut_shape:
            raise ValueError(f"{self._network}: {body} gives {body_shape}, {shortcut} {shortcut_shape}")
        placed = self._add_one(layer, index, (body, shortcut), body_shape)
        return placed.name, placed.output_shape

    def _add_one(self, layer: Layer, index: int, sources: tuple[str, ...], shape: Shape) -> PlacedLayer:
        self._counts[layer.kind] += 1
        name = f"{layer.kind}{self._counts[layer.kind]}"
        output_shape = _output_shape(layer, shape)
        if min(output_shape) < 1:
            raise ValueError(f"{self._network}: {name} has nothing to compute on an input of shape {shape}")
        placed = PlacedLayer(
            index,
            name,
            layer,
            sources,
            shape,
            output_shape,
            _parameters(name, layer, shape),
            _statistics(name, layer, shape),
        )
        self.placed.append(placed)
        return placed


def last_fully_connected(network: Network) -> PlacedLayer:
    """Return the last fully connected layer of `network`, which `export/fitting.py` fits to data."""
    return [placed for placed in place(network) if isinstance(placed.layer, FullyConnected)][-1]


def _output_shape(layer: Layer, shape: Shape) -> Shape:
    match layer, shape:
        case Convolution(), (channels, height, width) if channels % layer.groups == 0:
            rows, columns = (
                (size + 2 * layer.padding - layer.kernel) // layer.stride + 1 for size in (height, width)
            )
            return (layer.out_channels, rows, columns)
        case MaxPool(), (channels, height, width):
            extra = layer.step - 1 if layer.ceil else 0
            rows, columns = (
                (size + 2 * layer.padding - layer.kernel + extra) // layer.step + 1
                for size in (height, width)
            )
            return (channels, rows, columns)
        case GlobalAveragePool(), (channels, _, _):
            return (channels, 1, 1)
        case Split(labels=labels), (channels, height, width) if channels % len(labels) == 0:
            return (channels // len(labels), height, width)
        case Upsample(factor=factor), (channels, height, width):
            return (channels, factor * height, factor * width)
        case FlattenPixels(), (channels, height, width):
            return (channels, height * width)
        case Flatten(), _:
            return (math.prod(shape),)
        case FullyConnected(per_pixel=False), (_,):
            return (layer.out_features,)
        case FullyConnected(per_pixel=True), (height, width, _):
            return (height, width, layer.out_features)
        case ChannelsLast(), (channels, height, width):
            return (height, width, channels)
        case ChannelsFirst(), (height, width, channels):
            return (channels, height, width)
        case ((BatchNormalization() | LocalResponseNormalization() | LayerScale()), (_, _, _)):
            return shape
        case ((Activation() | Softmax() | LayerNormalization() | Residual() | Concatenation()), _):
            return shape
    raise ValueError(f"{layer} does not take an input of shape {shape}")


def _parameters(name: str, layer: Layer, shape: Shape) -> dict[str, Shape]:
    match layer:
        case Convolution():
            per_group = shape[0] // layer.groups
            weight = {f"{name}.weight": (layer.out_channels, per_group, layer.kernel, layer.kernel)}
            return weight | ({f"{name}.bias": (layer.out_channels,)} if layer.bias else {})
        case FullyConnected():
            return {f"{name}.weight": (layer.out_features, shape[-1]), f"{name}.bias": (layer.out_features,)}
        case BatchNormalization():
            return {f"{name}.scale": shape[:1], f"{name}.bias": shape[:1]}
        case LayerNormalization():
            return {f"{name}.scale": shape[-1:], f"{name}.bias": shape[-1:]}
        case LayerScale():
            return {f"{name}.scale": (shape[0], 1, 1)}
        case _:
            return {}


def _statistics(name: str, layer: Layer, shape: Shape) -> dict[str, Shape]:
    if isinstance(layer, BatchNormalization):
        return {f"{name}.mean": shape[:1], f"{name}.variance": shape[:1]}
    return {}
