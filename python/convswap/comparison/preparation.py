"""Preparation for `compare`: its options, both models, their data, and a check of the free memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import onnx
import onnxruntime

from convswap.comparison.verdict import Tolerances
from convswap.errors import ConvswapError, unknown_name
from convswap.graph.algorithms import check_algorithm
from convswap.graph.external_weights import SplitModel, as_split
from convswap.graph.layout.choose import LAYOUTS
from convswap.graph.replaced import unfused_model
from convswap.graph.swap import (
    DEFAULT_PRECISION,
    FLOAT16_ON_CPU,
    PRECISIONS,
    SwapResult,
    swap_to_run,
)
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
from convswap.runtime.layers import Capture, ConvLayer, conv_layers, in_layouts_of
from convswap.runtime.library import OpLibraries
from convswap.runtime.memory import (
    exceeds_free_memory,
    file_backed_bytes,
    free_memory,
    memory_error,
    run_value_bytes,
    session_creation_bytes,
    session_weight_bytes,
    size_text,
)
from convswap.runtime.sessions import AGAINST, DEFAULT, Side, convswap_side, make_session, other_sides

_QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear")
_STORED = {int(onnx.TensorProto.FLOAT16): "float16", int(onnx.TensorProto.BFLOAT16): "bfloat16"}


@dataclass(frozen=True)
class CompareOptions:
    """The arguments of `convswap.compare` other than the model."""

    data: str | None = None
    images: int | None = None
    batch: int | None = None
    device: str | None = None
    precision: str = DEFAULT_PRECISION
    algorithm: str = "auto"
    only: str | None = None
    fuse: bool = False
    layout: str | None = None
    tolerance: float | None = None
    against: str = "default"
    labelled: bool = False
    time_layers: bool = True
    input_shape: InputShape | None = None
    inputs: UserInputs | None = None
    op_libraries: OpLibraries = ()

    def check(self) -> None:
        """Raise ConvswapError for an option that is wrong for every model and device."""
        if self.against not in AGAINST:
            raise unknown_name("choice of sides", self.against, AGAINST)
        if self.layout is not None and self.layout not in LAYOUTS:
            raise unknown_name("layout", self.layout, LAYOUTS)
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
    def convswap_side(self) -> Side:
        """The side that runs the swapped model."""
        return next(side for side in self.sides if side.uses_convswap)

    @property
    def swapped_convs(self) -> int:
        """The number of swapped Convs, including those that were swapped in the user's model."""
        return self.tested.swapped_before + len(self.swapping.swapped)

    @property
    def shape_arguments(self) -> tuple[Any, ...]:
        """The arguments of `shape_notes` and `shape_notes_on_error`."""
        return declared_inputs(self.tested.model), self.source.inputs, self.source.batch

    @property
    def tolerances(self) -> Tolerances:
        """The requested tolerance, and the usual tolerance of the coarsest arithmetic."""
        usual = max((TOLERANCES[kind] for kind in self._arithmetic), default=TOLERANCES[DEFAULT_PRECISION])
        return Tolerances(usual if self.options.tolerance is None else self.options.tolerance, usual)

    @property
    def rounding(self) -> float:
        """The relative rounding error of the coarsest arithmetic among the Convs."""
        # The CPU has no TF32.
        on_cpu = self.device.name == "cpu"
        kinds = {"ieee" if kind == "tf32" and on_cpu else kind for kind in self._arithmetic}
        return max((ROUNDING[kind] for kind in kinds), default=ROUNDING["ieee"])

    @property
    def rounds_to_float16_on_cpu(self) -> bool:
        """Whether, on the CPU, swapped Convs round to float16 what the default side keeps in float32."""
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
        """The precisions and storage types of the swapped Convs."""
        kinds = {
            _STORED.get(layer.element_type, layer.setting("precision", DEFAULT_PRECISION))
            for layer in self.layers
            if not layer.is_quantised
        }
        return kinds | ({self.options.precision} if self.swapping.swapped else set())

    @functools.cached_property
    def plain(self) -> SplitModel:
        """The model that the default side runs, as a split model."""
        return as_split(self.tested.plain)

    @functools.cached_property
    def swapped(self) -> SplitModel:
        """The model that the convswap side runs, as a split model."""
        return as_split(self.swapping.model)

    def model(self, side: Side) -> SplitModel:
        """Return the model that `side` runs."""
        return self.swapped if side.uses_convswap else self.plain

    def session(self, side: Side) -> onnxruntime.InferenceSession:
        """Return a session of the whole model; `make_session` documents the errors."""
        return make_session(self.model(side), side, self.device)

    def capture(self) -> Capture:
        """Return the capture of the layers' inputs."""
        return Capture(self.swapping.nchw_model, self.layers, self.device)


def prepare(model: UserModel, options: CompareOptions, device: Device) -> Compared:
    """Return the models of both sides and their data; `compare` documents the errors."""
    tested = open_model_with_data(model, options.data, options.input_shape, options.inputs)
    source = source_of(tested, options.images, options.batch, device)
    if options.labelled and source.labels is None:
        raise no_labels_error(tested.dataset)
    swapping = swap_to_run(
        tested.model,
        algorithm=options.algorithm,
        precision=options.precision,
        only=options.only,
        fuse=options.fuse,
        layout=options.layout,
        batch=source.batch,
    )
    check_algorithm(options.algorithm, device.name)
    sides = (DEFAULT, convswap_side(device, options.precision), *other_sides(device, options.against))
    # Each Conv alone is compared in NCHW, the layout of the default provider, a QuantConv in its own.
    layers = in_layouts_of(
        conv_layers(swapping.nchw_model, unfused_model(tested.model, swapping)), swapping.layout
    )
    return Compared(options, device, tested, source, swapping, layers, sides)


@dataclass(frozen=True)
class MemoryPlan:
    """The order of a comparison's steps for the free memory, with a note if the order is not the usual one.

    `weights` is the number of bytes of the large weights, and `free` the number that was free before.
    """

    weights: int
    free: int | None
    one_side_at_a_time: bool = False
    notes: tuple[str, ...] = ()


def plan_memory(compared: Compared) -> MemoryPlan:
    """Return the plan for the memory that the weights take.

    On the CPU a session keeps a second copy of the weights, packed for its kernels, and its creation takes
    more. The reference widens the largest weight to float64.

    Raises:
        ConvswapError: the memory does not suffice even for one side at a time.
    """
    arrays, free = list(compared.plain.weights.values()), free_memory()
    weights = sum(values.nbytes for values in arrays)
    if free is None:
        return MemoryPlan(weights, free)
    # Weights that are not mapped from files are in memory already, and not part of the free memory.
    file_bytes, creation = file_backed_bytes(arrays), session_creation_bytes(arrays)
    widest = max((8 * values.size for values in arrays), default=0)
    one_side = file_bytes + max(creation, widest)
    if exceeds_free_memory(one_side, free):
        raise _too_large(compared, one_side, free)
    others = session_weight_bytes(arrays) * (len(compared.sides) - 1) if compared.device.name == "cpu" else 0
    both = max(one_side, file_bytes + creation + others)
    if exceeds_free_memory(both, free):
        note = (
            f"both sides at once would take about {size_text(both)} of memory, and {size_text(free)} are "
            "free: they were timed one after the other, not in turn"
        )
        return MemoryPlan(weights, free, one_side_at_a_time=True, notes=(note,))
    return MemoryPlan(weights, free)


def check_memory(compared: Compared, plan: MemoryPlan, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse a batch for whose values there is too little memory.

    `shapes` are those of the layers' inputs for one sample.

    Raises:
        ConvswapError: there is too little memory.
    """
    if plan.free is None:
        return
    input_shapes = (shapes[name] for layer in compared.layers for name in layer.input_names)
    values = run_value_bytes(input_shapes, compared.source.batch)
    needed = plan.weights + values * (1 if plan.one_side_at_a_time else 2)
    if exceeds_free_memory(needed, plan.free):
        raise _too_large(compared, needed, plan.free)


def _too_large(compared: Compared, needed: int, free: int) -> ConvswapError:
    weights = sum(values.nbytes for values in compared.plain.weights.values())
    return memory_error(
        "comparing",
        f"weights of {size_text(weights)} and batches of {compared.source.batch}",
        needed,
        free,
        "give a smaller batch, or close other programs",
    )
