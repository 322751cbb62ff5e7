"""Targets of a kernel: a network or a model with its convolutions, or one layer of a suite."""

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
from convswap.tutorial.lab.kernel import ALGORITHM, LabKernel

# The course's layers get the ladder's batch, others a batch that fills a card.
_COURSE_BATCH, _BATCH = 10_000, 64
# Samples for which a whole model's outputs are compared.
NETWORK_SAMPLES = 3


@dataclass(frozen=True)
class TargetLayer:
    """A convolution, the shapes of its inputs, and the reason why the kernel does not support it, or ""."""

    layer: ConvLayer
    shapes: Mapping[str, tuple[int, ...]]
    why_not: str

    @property
    def problem(self) -> _native.Problem:
        """The conv problem, as the planner takes it."""
        return self.layer.problem(self.shapes)


@dataclass(frozen=True)
class Target:
    """A target: its title, the images of a run, its convolutions and, unless it is one layer, its model.

    In `swapped` the kernel computes the Convs that it supports, `plain` is the original model, and `feeds`
    are the inputs of both. All three are None for one layer.
    """

    title: str
    batch: int
    layers: tuple[TargetLayer, ...]
    swapped: ir.Model | None = None
    plain: ir.Model | None = None
    feeds: Mapping[str, np.ndarray] | None = None

    @property
    def supported(self) -> tuple[TargetLayer, ...]:
        """The convolutions that the kernel supports."""
        return tuple(conv for conv in self.layers if not conv.why_not)


def check_target(name: str) -> None:
    """Raise ConvswapError unless there is a network, a layer or a file called `name`."""
    if name in ALL_NETWORKS or name in _suite_layers() or Path(name).is_file():
        return
    if Path(name).suffix or "/" in name:
        raise ConvswapError(
            f"cannot read '{name}': there is no such file; give a network, a layer or a model"
        )
    raise unknown_name("network or layer", name, [*ALL_NETWORKS, *_suite_layers()])


def open_target(name: str, kernel: LabKernel, batch: int | None, device: Device) -> Target:
    """Return the target `name`, a network, layer or file, for runs of `batch` images on the card `device`.

    Raises:
        ConvswapError: there is no such target, the batch is out of range, or the kernel supports none of its
            convolutions; the message gives the reason for the first.
    """
    require_count("batch", batch)
    check_target(name)
    suite = _suite_layers()
    target = (
        _layer_target(name, suite[name], kernel, batch)
        if name in suite and name not in ALL_NETWORKS
        else _model_target(name, kernel, batch, device)
    )
    if not target.supported:
        first = target.layers[0] if target.layers else None
        why = "it has no convolution" if first is None else f"{first.layer.name}: {first.why_not}"
        raise ConvswapError(f"{kernel.name} computes no convolution of {name}: {why}")
    return target


def _suite_layers() -> dict[str, SuiteLayer]:
    """Return the layers of all suites by name; an earlier suite or layer wins where names are equal."""
    return {
        layer.name: layer
        for suite in reversed(list(SUITES.values()))
        for layer in reversed(suite)
        if layer.activation is None and layer.rank == 2
    }


def _layer_target(name: str, layer: SuiteLayer, kernel: LabKernel, batch: int | None) -> Target:
    images = batch or layer.batch or _COURSE_BATCH
    conv = single_node(layer, DEFAULT_PRECISION, ALGORITHM)
    shapes = {"x": layer.input_shape(images)}
    return Target(name, images, (_target_layer(conv, shapes, kernel),))


def _model_target(name: str, kernel: LabKernel, batch: int | None, device: Device) -> Target:
    is_course = name in ALL_NETWORKS and name not in LARGE_NETWORKS
    images = batch or (_COURSE_BATCH if is_course else _BATCH)
    tested = open_model_with_data(name, "random")
    source = source_of(tested, NETWORK_SAMPLES, NETWORK_SAMPLES, device)
    feeds = source.first(source.batch)
    swapped = swap(tested.model).model
    layers = conv_layers(swapped)
    # Shapes of a small run; a large run differs only in the first dimension.
    shapes = Capture(swapped, layers, device).shapes(on_device(feeds, device))
    fixed = source.batch != NETWORK_SAMPLES
    images = source.batch if fixed else images
    convs = []
    for layer in layers:
        layer_shapes = {each: (images, *shapes[each][1:]) for each in layer.input_names}
        convs.append(_target_layer(layer, layer_shapes, kernel))
    _assign_kernel(swapped, {conv.layer.node.output[0] for conv in convs if not conv.why_not})
    return Target(tested.title, images, tuple(convs), swapped, tested.plain, feeds)


def _target_layer(layer: ConvLayer, shapes: Mapping[str, Sequence[int]], kernel: LabKernel) -> TargetLayer:
    shapes_of_ints = {name: tuple(int(extent) for extent in shape) for name, shape in shapes.items()}
    return TargetLayer(layer, shapes_of_ints, kernel.source.why_not(layer.problem(shapes_of_ints)))


def _assign_kernel(swapped: ir.Model, outputs: set[str]) -> None:
    """Assign the kernel to the Convs with these `outputs`; the library computes the others."""
    for node in swapped.graph:
        if node.outputs and node.outputs[0].name in outputs:
            node.attributes["algorithm"] = ir.AttrString("algorithm", ALGORITHM)
