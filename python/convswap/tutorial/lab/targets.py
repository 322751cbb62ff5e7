"""What a kernel runs in: the convolutions of a network, a model or a suite, and the model they are of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from convswap import _native
from convswap.errors import ConvswapError, require_count, unknown_name
from convswap.graph.swap import DEFAULT_PRECISION, swap
from convswap.inputs.model_with_data import open_model_with_data, source_of
from convswap.models import ALL_NETWORKS, LARGE_NETWORKS
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer, conv_layers
from convswap.runtime.sessions import on_device
from convswap.timing.single_node import single_node
from convswap.timing.suites import SUITES, SuiteLayer
from convswap.tutorial.lab.kernel import ALGORITHM, Kernel

# What the ladder takes of the course's layers; others take what fills a card.
_COURSE_BATCH, _BATCH = 10_000, 64
# So many samples show whether a whole network still answers the same.
NETWORK_SAMPLES = 3


@dataclass(frozen=True)
class TargetLayer:
    """A convolution, the shapes of what a run feeds it, and why the kernel leaves it, or ""."""

    layer: ConvLayer
    shapes: Mapping[str, tuple[int, ...]]
    why_not: str

    @property
    def problem(self) -> _native.Problem:
        """The problem, as the planner knows it."""
        return self.layer.problem(self.shapes)


@dataclass(frozen=True)
class Target:
    """What a user named: its title, the images of a run, the convolutions, and the model if it is one.

    `swapped` has the kernel in the place of those Convs that it takes, `plain` is the model as it was, and
    `feeds` is what both are fed; None and empty for a layer alone.
    """

    title: str
    batch: int
    layers: tuple[TargetLayer, ...]
    swapped: ir.Model | None = None
    plain: ir.Model | None = None
    feeds: Mapping[str, np.ndarray] | None = None

    @property
    def taken(self) -> tuple[TargetLayer, ...]:
        """The convolutions that the kernel computes."""
        return tuple(one for one in self.layers if not one.why_not)


def check_target(name: str) -> None:
    """Raise ConvswapError where there is neither a network, a layer nor a file called so."""
    if name in ALL_NETWORKS or name in _suite_layers() or Path(name).is_file():
        return
    if Path(name).suffix or "/" in name:
        raise ConvswapError(
            f"cannot read '{name}': there is no such file; give a network, a layer or a model"
        )
    raise unknown_name("network or layer", name, [*ALL_NETWORKS, *_suite_layers()])


def open_target(name: str, kernel: Kernel, batch: int | None, device: Device) -> Target:
    """Return the target called or stored as `name`, for runs of `batch` images, on the card `device`.

    Raises:
        ConvswapError: there is none, the batch is out of range, or no convolution of it is one for the
            kernel; the message says why of the first.
    """
    require_count("batch", batch)
    check_target(name)
    suite = _suite_layers()
    target = (
        _layer_target(name, suite[name], kernel, batch)
        if name in suite and name not in ALL_NETWORKS
        else _model_target(name, kernel, batch, device)
    )
    if not target.taken:
        first = target.layers[0] if target.layers else None
        why = "it has no convolution" if first is None else f"{first.layer.name}: {first.why_not}"
        raise ConvswapError(f"{kernel.name} computes no convolution of {name}: {why}")
    return target


def _suite_layers() -> dict[str, SuiteLayer]:
    """Return the layers of all suites by name, each suite's own first where names are the same."""
    return {
        layer.name: layer
        for suite in reversed(list(SUITES.values()))
        for layer in reversed(suite)
        if layer.activation is None and layer.rank == 2
    }


def _layer_target(name: str, layer: SuiteLayer, kernel: Kernel, batch: int | None) -> Target:
    images = batch or layer.batch or _COURSE_BATCH
    conv = single_node(layer, DEFAULT_PRECISION, ALGORITHM)
    shapes = {"x": layer.input_shape(images)}
    return Target(name, images, (_target_layer(conv, shapes, kernel),))


def _model_target(name: str, kernel: Kernel, batch: int | None, device: Device) -> Target:
    is_course = name in ALL_NETWORKS and name not in LARGE_NETWORKS
    images = batch or (_COURSE_BATCH if is_course else _BATCH)
    tested = open_model_with_data(name, "random")
    source = source_of(tested, NETWORK_SAMPLES, NETWORK_SAMPLES, device)
    feeds = source.first(source.batch)
    swapped = swap(tested.model).model
    layers = conv_layers(swapped)
    # Of one sample, since all that a run of many differs by is its first extent.
    shapes = Capture(swapped, layers, device).shapes(on_device(feeds, device))
    fixed = source.batch != NETWORK_SAMPLES
    images = source.batch if fixed else images
    named = []
    for layer in layers:
        own = {each: (images, *shapes[each][1:]) for each in layer.fed}
        named.append(_target_layer(layer, own, kernel))
    _take(swapped, {one.layer.node.output[0] for one in named if not one.why_not})
    return Target(tested.title, images, tuple(named), swapped, tested.plain, feeds)


def _target_layer(layer: ConvLayer, shapes: Mapping[str, Sequence[int]], kernel: Kernel) -> TargetLayer:
    known = {name: tuple(int(extent) for extent in shape) for name, shape in shapes.items()}
    return TargetLayer(layer, known, kernel.source.why_not(layer.problem(known)))


def _take(swapped: ir.Model, outputs: set[str]) -> None:
    """Have the kernel compute the Convs with these `outputs`; our own compute the others."""
    for node in swapped.graph:
        if node.outputs and node.outputs[0].name in outputs:
            node.attributes["algorithm"] = ir.AttrString("algorithm", ALGORITHM)
