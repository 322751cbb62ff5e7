"""Shape arithmetic: the name, the input shape and the parameters of every layer of a network."""

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

# Stands for the input of a network among the sources of its layers.
IMAGE = "image"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PlacedLayer:
    """A layer in its network, at `index` of its layers or within the Residual there.

    It takes what the layers called `sources` give; IMAGE is the network's input, `split1.1` the second part
    of a Split. The shapes are those of one image: (channels, height, width), (channels, pixels) or
    (features,). `input_shape` of a Concatenation is that of its sources side by side, `output_shape` of a
    Split that of one part. `parameters` maps the name of each array that training finds (`conv1.weight`,
    `fc1.bias`) to its shape, `statistics` those that are measured (`bn1.mean`).
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
        """The names by which other layers have what it gives among their sources."""
        if isinstance(self.layer, Split):
            return tuple(f"{self.name}.{part}" for part in range(len(self.layer.labels)))
        return (self.name,)


def place(network: Network) -> tuple[PlacedLayer, ...]:
    """Return the layers of `network`, each after its sources, named by kind and number: conv1, tanh1, pool1.

    A Residual gives the layers of its body, those of its shortcut, and itself, the sum of both. Keep and Take
    give none: they say which sources others have.
    Raises ValueError where a layer does not fit what comes before it: a mistake in a declaration.
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
        self._seen: Counter[str] = Counter()
        self._kept: dict[str, tuple[str, Shape]] = {}

    def add(self, layer: Layer, index: int, source: str, shape: Shape) -> tuple[str, Shape]:
        """Place `layer` after the layer `source`, which gives `shape`.

        Return the name and the shape of what the next layer takes.
        """
        match layer:
            case Residual():
                return self._add_residual(layer, index, source, shape)
            case Keep():
                self._kept[layer.label] = source, shape
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
        if label not in self._kept:
            raise ValueError(f"{self._network}: nothing was kept as {label!r}")
        return self._kept[label]

    def _add_split(self, layer: Split, index: int, source: str, shape: Shape) -> tuple[str, Shape]:
        placed = self._add_one(layer, index, (source,), shape)
        parts = [(output, placed.output_shape) for output in placed.outputs]
        self._kept.update(zip(layer.labels, parts, strict=True))
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
        self._seen[layer.kind] += 1
        name = f"{layer.kind}{self._seen[layer.kind]}"
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
    """Return the last fully connected layer of `network`, the one that can be fitted to data."""
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
