"""The conv problems of a model, and the part of the result that `explain` and `tune` have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import check_algorithm
from convswap.graph.domain import is_layout_pool, is_operator_of_onnx, type_name
from convswap.graph.fusion.fuse import Fused, NotFused
from convswap.graph.names import nodes_of, values_of
from convswap.graph.plain_model import count_swapped, plain_model
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import NotSwapped, swap_to_run
from convswap.graph.value_types import ValueTypes
from convswap.inputs.model_with_data import RunInputs, UserModel, open_model, run_inputs
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.tensor_inputs import with_tensor_inputs
from convswap.inputs.user_inputs import UserInputs
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer, conv_layers, in_layouts_of
from convswap.runtime.library import OpLibraries, using_op_libraries
from convswap.runtime.sessions import on_device

SCHEMA = 1

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model planned for runs of `batch` samples on a device.

    `left`, `fused` and `not_fused` are those of `convswap.swap`; `notes` are sentences for a reader.
    """

    model: str
    device: Device
    environment: Mapping[str, str | None]
    batch: int
    precision: str
    algorithm: str
    left: tuple[NotSwapped, ...]
    fused: tuple[Fused, ...]
    not_fused: tuple[NotFused, ...]
    notes: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return the keys of the JSON that `explain` and `tune` have in common."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device.name,
            "device_name": self.device.title,
            "environment": dict(self.environment),
            "batch": self.batch,
            "precision": self.precision,
            "algorithm": self.algorithm,
            "left": [{"node": left.node, "reason": left.reason} for left in self.left],
            "fused": [fused.to_json() for fused in self.fused],
            "not_fused": [not_fused.to_json() for not_fused in self.not_fused],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class PlanOptions:
    """Arguments that `explain`, `tune` and `warm` have in common; `convswap.explain` documents them."""

    batch: int | None
    precision: str
    algorithm: str
    fuse: bool = False
    input_shape: InputShape | None = None
    inputs: UserInputs | None = None
    op_libraries: OpLibraries = ()


@dataclass(frozen=True)
class PlannedConv:
    """A swapped Conv, the shapes of its inputs that are not constant, and its problem for these shapes.

    The shapes are those of the model in NCHW.
    """

    layer: ConvLayer
    shapes: Shapes
    problem: _native.Problem


@dataclass(frozen=True)
class ConvProblems:
    """The Convs of a model for runs of `batch` samples; `notes` are sentences for a reader.

    `op_types` are the ops of the model that are no convolutions, with the names of their element types:
    ("LayoutPool", "float32").
    """

    title: str
    batch: int
    convs: tuple[PlannedConv, ...]
    left: tuple[NotSwapped, ...]
    fused: tuple[Fused, ...]
    not_fused: tuple[NotFused, ...]
    notes: tuple[str, ...]
    op_types: tuple[tuple[str, str], ...] = ()


def conv_problems(
    model: UserModel,
    options: PlanOptions,
    device: Device,
    *,
    run_on: Device | None = None,
) -> ConvProblems:
    """Swap `model`, a network's name, a path or a model, and return the problems of its Convs in a run.

    The plan is for `device`. If a shape follows only from a run, the model runs on `run_on`, by default
    `device` too.

    Raises:
        ConvswapError: an argument is not known or out of range, or the model cannot be read, swapped or run.
    """
    check_algorithm(options.algorithm, device.name)
    title, opened = open_model(model)
    opened, inputs = with_tensor_inputs(opened, options.inputs)
    model_run = run_inputs(
        opened, batch=options.batch, device=device, input_shape=options.input_shape, user_inputs=inputs
    )
    swapping = swap_to_run(
        opened,
        algorithm=options.algorithm,
        precision=options.precision,
        fuse=options.fuse,
    )
    # A QuantConv has the layouts that `swap` gives it, every other Conv NCHW.
    swapped = swapping.nchw_model
    layers = in_layouts_of(conv_layers(swapped, unfused_model(opened, swapping)), swapping.layout)
    with model_run.notes_on_error(), using_op_libraries(options.op_libraries):
        shapes = _shapes(swapped, layers, model_run, run_on or device)
        convs = tuple(_planned(layer, shapes) for layer in layers)
    inner = count_swapped(swapped) - sum(layer.convolutions for layer in layers)
    in_subgraphs = f"{inner} swapped Conv in subgraphs are left out: what they are fed is not known"
    return ConvProblems(
        title=title,
        batch=model_run.batch,
        convs=convs,
        left=swapping.not_swapped,
        fused=swapping.fused,
        not_fused=swapping.not_fused,
        notes=(
            *model_run.notes(),
            *((in_subgraphs,) if inner > 0 else ()),
        ),
        op_types=_op_types(swapping.model),
    )


def _op_types(model: ir.Model) -> tuple[tuple[str, str], ...]:
    nodes = [node for node in nodes_of(model) if is_layout_pool(node) or is_operator_of_onnx(node)]
    if not nodes:
        return ()
    types = ValueTypes(model)
    known = {
        (node.op_type, types.element_type([value for value in (*node.inputs, *node.outputs) if value]))
        for node in nodes
    }
    return tuple(sorted((op, type_name(dtype)) for op, dtype in known if dtype is not None))


def _planned(layer: ConvLayer, shapes: Shapes) -> PlannedConv:
    input_shapes = {name: shapes[name] for name in layer.input_names}
    with naming_conv(layer.name):
        return PlannedConv(layer, input_shapes, layer.problem(input_shapes))


@contextmanager
def naming_conv(name: str) -> Iterator[None]:
    """Put the name of the node in front of the planner's error messages."""
    try:
        yield
    except ConvswapError as error:
        raise ConvswapError(f"Conv {name!r}: {error}") from error


def _shapes(swapped: ir.Model, layers: Sequence[ConvLayer], model_run: RunInputs, device: Device) -> Shapes:
    """Return the shape of every input of `layers`, which are the layers of `swapped`.

    The shapes come from ONNX's shape inference, which takes no time at any batch. If it does not find all of
    them, they come from a run with the input values, since a shape may depend on values.
    """
    wanted = {name for layer in layers for name in layer.input_names}
    inferred = _inferred(plain_model(swapped), model_run.shapes, wanted)
    if wanted <= inferred.keys():
        return inferred
    return Capture(swapped, layers, device).shapes(on_device(model_run.feeds(), device))


def _inferred(model: ir.Model, shapes: Mapping[str, Sequence[int]], wanted: Collection[str]) -> Shapes:
    """Return the shapes of the values named `wanted`, as far as they follow from inputs of `shapes`.

    This sets the shapes of the inputs of `model`.
    """
    for value in model.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[str(value.name)])
    types = ValueTypes(model)
    known = {
        str(value.name): types.static_shape(value) for value in values_of(model.graph) if value.name in wanted
    }
    return {name: extents for name, extents in known.items() if extents is not None}
