"""Preparation for `compare`: its options, both models, their data, and a check of the free memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import onnx
import onnxruntime

from convswap.comparison.verdict import Measure
from convswap.errors import ConvswapError, unknown_name
from convswap.graph.algorithms import check_algorithm
from convswap.graph.external_weights import SplitModel, as_split
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import DEFAULT_PRECISION, FLOAT16_ON_CPU, PRECISIONS, SwapResult, swap
from convswap.inputs.feeds import Source, declared_inputs
from convswap.inputs.model_with_data import (
    ModelWithData,
    UserModel,
    no_labels_error,
    open_model_with_data,
    source_of,
)
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.user_inputs import UserInputs
from convswap.reference.metrics import ROUNDING, TOLERANCES
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer, conv_layers
from convswap.runtime.library import OpLibraries
from convswap.runtime.memory import (
    free_memory,
    in_bytes,
    mapped,
    session_weight_bytes,
    too_large,
    too_much,
    values_of_run,
    while_made,
)
from convswap.runtime.sessions import AGAINST, DEFAULT, Side, make_session, other_sides, our_side

_QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear")
_STORED = {int(onnx.TensorProto.FLOAT16): "float16", int(onnx.TensorProto.BFLOAT16): "bfloat16"}


@dataclass(frozen=True)
class CompareOptions:
    """The arguments of `convswap.compare` other than the model; see there."""

    data: str | None = None
    images: int | None = None
    batch: int | None = None
    device: str | None = None
    precision: str = DEFAULT_PRECISION
    algorithm: str = "auto"
    only: str | None = None
    fuse: bool = False
    tolerance: float | None = None
    against: str = "default"
    labelled: bool = False
    time_layers: bool = True
    input_shape: InputShape | None = None
    inputs: UserInputs | None = None
    op_libraries: OpLibraries = ()

    def check(self) -> None:
        """Raise ConvswapError for an option that is wrong whatever the model and the device."""
        if self.against not in AGAINST:
            raise unknown_name("choice of sides", self.against, AGAINST)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.tolerance is not None and not (isinstance(self.tolerance, Real) and self.tolerance >= 0):
            raise ConvswapError(f"tolerance must be a number from 0 on, but {self.tolerance!r} was given")


@dataclass(frozen=True)
class Compared:
    """The original and the swapped model, and their data."""

    options: CompareOptions
    device: Device
    tested: ModelWithData
    source: Source
    swapping: SwapResult
    layers: Sequence[ConvLayer]
    sides: tuple[Side, ...]

    @property
    def ours(self) -> Side:
        """The side of our op."""
        return next(side for side in self.sides if side.ours)

    @property
    def swapped_convs(self) -> int:
        """How many Convs of our side are swapped, including those that already were."""
        return self.tested.swapped_before + len(self.swapping.swapped)

    @property
    def shaped(self) -> tuple[Any, ...]:
        """The arguments of `shape_notes` and `shape_notes_on_error`."""
        return declared_inputs(self.tested.model), self.source.inputs, self.source.batch

    @property
    def measure(self) -> Measure:
        """The tolerance that was asked for, and that of the coarsest arithmetic."""
        usual = max((TOLERANCES[kind] for kind in self._arithmetic), default=TOLERANCES[DEFAULT_PRECISION])
        return Measure(usual if self.options.tolerance is None else self.options.tolerance, usual)

    @property
    def rounding(self) -> float:
        """The relative rounding error of the coarsest arithmetic among the Convs."""
        # The CPU has no TF32.
        on_cpu = self.device.name == "cpu"
        kinds = {"ieee" if kind == "tf32" and on_cpu else kind for kind in self._arithmetic}
        return max((ROUNDING[kind] for kind in kinds), default=ROUNDING["ieee"])

    @property
    def rounds_to_float16_on_cpu(self) -> bool:
        """Whether our Convs round values to float16 that the default side keeps in float32, on the CPU."""
        is_float16 = FLOAT16_ON_CPU in self.swapping.notes or "float16" in self._arithmetic
        return self.device.name == "cpu" and is_float16

    @property
    def quantises(self) -> bool:
        """Whether the model has quantising nodes, in its main graph or in a function."""
        plain = self.tested.plain
        nodes = [*plain.graph, *(node for function in plain.functions.values() for node in function)]
        return any(node.op_type in _QUANTISING or node.op_type.startswith("QLinear") for node in nodes)

    @property
    def _arithmetic(self) -> set[str]:
        """The precisions and storage types of the Convs on our side."""
        kinds = {
            _STORED.get(layer.element_type, layer.setting("precision", DEFAULT_PRECISION))
            for layer in self.layers
        }
        return kinds | ({self.options.precision} if self.swapping.swapped else set())

    @functools.cached_property
    def plain(self) -> SplitModel:
        """The model that the default side runs, as sessions take it."""
        return as_split(self.tested.plain)

    @functools.cached_property
    def swapped(self) -> SplitModel:
        """The model that our side runs, as sessions take it."""
        return as_split(self.swapping.model)

    def model(self, side: Side) -> SplitModel:
        """Return the model that `side` runs."""
        return self.swapped if side.ours else self.plain

    def session(self, side: Side) -> onnxruntime.InferenceSession:
        """Return a session of the whole model; its errors are those of `make_session`."""
        return make_session(self.model(side), side, self.device)

    def capture(self) -> Capture:
        """Return the capture of the layers' inputs."""
        return Capture(self.swapping.model, self.layers, self.device)


def prepare(model: UserModel, options: CompareOptions, device: Device) -> Compared:
    """Return `model` as both sides run it, with its data; the errors are those of `compare`."""
    tested = open_model_with_data(model, options.data, options.input_shape, options.inputs)
    source = source_of(tested, options.images, options.batch, device)
    if options.labelled and source.labels is None:
        raise no_labels_error(tested.dataset)
    swapping = swap(
        tested.model,
        algorithm=options.algorithm,
        precision=options.precision,
        only=options.only,
        fuse=options.fuse,
    )
    check_algorithm(options.algorithm, device.name)
    sides = (DEFAULT, our_side(device, options.precision), *other_sides(device, options.against))
    layers = conv_layers(swapping.model, unfused_model(tested.model, swapping))
    return Compared(options, device, tested, source, swapping, layers, sides)


@dataclass(frozen=True)
class Plan:
    """The order of a comparison's steps that suits the free memory, with a note if it is not the usual one.

    `weights` are the bytes of the large weights, and `free` those that were free before.
    """

    weights: int
    free: int | None
    one_side_at_a_time: bool = False
    notes: tuple[str, ...] = ()


def plan_memory(compared: Compared) -> Plan:
    """Return the plan for the memory that the weights take.

    On the CPU a session keeps the weights a second time, in the order of its kernels, and takes more while it
    is made. For the reference the largest weight is widened to float64.

    Raises:
        ConvswapError: the memory does not suffice even for one side at a time.
    """
    arrays, free = list(compared.plain.weights.values()), free_memory()
    weights = sum(values.nbytes for values in arrays)
    if free is None:
        return Plan(weights, free)
    # All others are in memory already, and not among what is free.
    own, making = mapped(arrays), while_made(arrays)
    widest = max((8 * values.size for values in arrays), default=0)
    least = own + max(making, widest)
    if too_much(least, free):
        raise _too_large(compared, least, free)
    others = session_weight_bytes(arrays) * (len(compared.sides) - 1) if compared.device.name == "cpu" else 0
    both = max(least, own + making + others)
    if too_much(both, free):
        note = (
            f"both sides at once would take about {in_bytes(both)} of memory, and {in_bytes(free)} are "
            "free: they were timed one after the other, not in turn"
        )
        return Plan(weights, free, one_side_at_a_time=True, notes=(note,))
    return Plan(weights, free)


def check_memory(compared: Compared, plan: Plan, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a batch for whose values there is too little memory.

    `shapes` are those of the layers' inputs for one sample.

    Raises:
        ConvswapError: there is too little memory.
    """
    if plan.free is None:
        return
    fed = (shapes[name] for layer in compared.layers for name in layer.fed)
    values = values_of_run(fed, compared.source.batch)
    needed = plan.weights + values * (1 if plan.one_side_at_a_time else 2)
    if too_much(needed, plan.free):
        raise _too_large(compared, needed, plan.free)


def _too_large(compared: Compared, needed: int, free: int) -> ConvswapError:
    weights = sum(values.nbytes for values in compared.plain.weights.values())
    return too_large(
        "comparing",
        f"weights of {in_bytes(weights)} and batches of {compared.source.batch}",
        needed,
        free,
        "give a smaller batch, or close other programs",
    )
