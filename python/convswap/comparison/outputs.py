"""The outputs of both sides for the same inputs, and their differences from the float64 reference.

If an output exceeds the tolerance, the default side runs again, also with perturbed inputs and Convs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from convswap.comparison.preparation import Compared
from convswap.comparison.verdict import OutputErrors
from convswap.errors import ConvswapError
from convswap.graph.domain import ONNX_DOMAINS
from convswap.graph.names import UniqueNames, names_in
from convswap.graph.serialisation import copy_of, nodes_of_model
from convswap.inputs.feeds import Feeds
from convswap.progress import Progress
from convswap.reference.evaluation import evaluate
from convswap.reference.metrics import (
    NO_CLASS,
    NO_DIFFERENCE,
    comparable_names,
    counted_outputs,
    difference_by_name,
    max_abs_error,
    relative_l2_error,
)
from convswap.runtime.device import Device
from convswap.runtime.sessions import DEFAULT, Side, make_session, run_named
from convswap.runtime.values import Arrays, is_floating, is_number, named_arrays

# The number of perturbed runs of the default side. Chance decides whether a perturbed value crosses a
# quantisation step or wins a tie, so a single run would say little.
_PERTURBATIONS = 8

# ONNX's operators that draw random numbers, with the type of their attribute `seed`.
_SEED_TYPES: dict[str, type[int] | type[float]] = {
    "Bernoulli": float,
    "Dropout": int,
    "Multinomial": float,
    "RandomNormal": float,
    "RandomNormalLike": float,
    "RandomUniform": float,
    "RandomUniformLike": float,
}
_SEED = 1


@dataclass(frozen=True)
class OutputComparison:
    """The differences of both sides' outputs from the reference and from each other.

    `errors` has the largest absolute and the relative L2 error of each side, NaN if no output has numbers.
    `in_float32` names the operators that were computed in float32 for the reference. `reference_note` says
    which outputs are the reference if there are none in float64. `without_elements` counts the outputs in
    which neither side has a finite element, so that nothing can be compared.
    """

    outputs: tuple[OutputErrors, ...]
    errors: Mapping[Side, tuple[float, float]]
    in_float32: tuple[str, ...]
    reference_note: str
    without_elements: int


@dataclass(frozen=True)
class _Reference:
    """The outputs that errors are measured against, and a note if they are not in float64."""

    arrays: Arrays
    in_float32: tuple[str, ...] = ()
    note: str = ""


def errors_against_reference(
    compared: Compared, feeds: Feeds, outputs_by_side: Mapping[Side, Arrays], report: Progress
) -> OutputComparison:
    """Return the differences of all sides' outputs for `feeds` from the reference.

    Raises:
        ConvswapError: ONNX Runtime cannot run the model once more.
    """
    default, convswap = outputs_by_side[DEFAULT], outputs_by_side[compared.convswap_side]
    evaluation = _reference(compared, feeds, default)
    reference = evaluation.arrays
    names = comparable_names({**reference, **default, **convswap}, default, convswap)
    numbers = [name for name in reference if is_number(reference[name])]
    counted = [numbers[index] for index in counted_outputs([reference[name] for name in numbers])] or list(
        reference
    )
    outputs = tuple(
        OutputErrors(
            name,
            is_floating=all(
                is_floating(arrays[name]) for arrays in (reference, default, convswap) if name in arrays
            ),
            default=difference_by_name(name, default, reference),
            convswap=difference_by_name(name, convswap, reference),
            between=difference_by_name(name, convswap, default),
        )
        for name in names
    )
    if any(compared.tolerances.is_exceeded(output) for output in outputs):
        report("running the default side again, to see what its answers depend on")
        outputs = _with_default_reruns(compared, feeds, outputs)
    return OutputComparison(
        outputs=outputs,
        errors={
            side: _errors(arrays, reference, [name for name in counted if name in names])
            for side, arrays in outputs_by_side.items()
        },
        in_float32=evaluation.in_float32,
        reference_note=evaluation.note,
        without_elements=sum(name not in names for name in counted),
    )


def _reference(compared: Compared, feeds: Feeds, default: Arrays) -> _Reference:
    """Return the float64 reference, else the CPU provider's outputs, else the default side's."""
    names = [value.name for value in compared.plain.message.graph.output]
    try:
        evaluation = evaluate(compared.plain, feeds)
        arrays = named_arrays(names, evaluation.outputs)
        if _same_kinds(arrays, default):
            return _Reference(arrays, evaluation.in_float32)
        reason = "evaluated in float64, its outputs have other shapes or types"
    except ConvswapError as error:
        reason = str(error)
    arrays = default
    if compared.device.name != "cpu":
        fallback = _Reference(default, note=f"the default side's own answer is the reference: {reason}")
        try:
            arrays = run_named(
                make_session(compared.plain, DEFAULT, Device("cpu", "for the reference")), feeds
            )
        except ConvswapError:
            return fallback
        if not _same_kinds(arrays, default):
            return fallback
    return _Reference(arrays, note=f"the CPU provider's answer in float32 is the reference: {reason}")


def _same_kinds(arrays: Arrays, others: Arrays) -> bool:
    """Return whether both have outputs of the same names, shapes and kinds."""
    return arrays.keys() == others.keys() and all(
        (values.shape == others[name].shape and is_floating(values) == is_floating(others[name]))
        or values.size == others[name].size == 0
        for name, values in arrays.items()
    )


def _errors(arrays: Arrays, reference: Arrays, counted: Sequence[str]) -> tuple[float, float]:
    """Return the largest absolute and relative L2 error of outputs `counted`; NaN if one has no numbers."""

    def worst(error: Callable[[np.ndarray, np.ndarray], float]) -> float:
        errors = [
            error(arrays[name], reference[name])
            if name in arrays and arrays[name].shape == reference[name].shape
            else (0.0 if reference[name].size == 0 else float("inf"))
            for name in counted
        ]
        return max(errors, default=float("nan"))

    if not all(
        is_number(arrays.get(name, reference[name])) and is_number(reference[name]) for name in counted
    ):
        return float("nan"), float("nan")
    return worst(max_abs_error), worst(relative_l2_error)


def _with_default_reruns(
    compared: Compared, feeds: Feeds, outputs: Sequence[OutputErrors]
) -> tuple[OutputErrors, ...]:
    """Return `outputs` with the changes of the default side from run to run and when perturbed."""
    session = compared.session(DEFAULT)
    first, second = run_named(session, feeds), run_named(session, feeds)
    outputs = [replace(output, again=difference_by_name(output.name, second, first)) for output in outputs]
    # Free the memory for the next sessions.
    del session
    if any(output.again.relative > compared.tolerances.limit(output) for output in outputs):
        pair = [_seeded_outputs(compared, side, feeds) for side in (compared.convswap_side, DEFAULT)]
        return tuple(replace(output, seeded=difference_by_name(output.name, *pair)) for output in outputs)
    if compared.tolerances.is_strict:
        return tuple(outputs)
    runs = (_perturbed_outputs(compared, feeds, seed) for seed in range(_PERTURBATIONS))
    completed = [arrays for arrays in runs if arrays is not None]
    return tuple(
        replace(
            output,
            perturbation=compared.rounding,
            perturbed=max(
                (difference_by_name(output.name, arrays, first) for arrays in completed if arrays),
                default=NO_DIFFERENCE,
            ),
        )
        for output in outputs
    )


def _seeded_outputs(compared: Compared, side: Side, feeds: Feeds) -> Arrays:
    """Return the first outputs of a new session of `side`, with fixed seeds for random numbers."""
    model = compared.model(side)
    session = make_session(model._replace(message=seeded(model.message)), side, compared.device)
    return run_named(session, feeds)


def _perturbed_outputs(compared: Compared, feeds: Feeds, seed: int) -> Arrays | None:
    """Return the default side's outputs with perturbed inputs and Convs; None if the run fails."""
    perturbation, generator = compared.rounding, np.random.default_rng(seed)
    perturbed_feeds = {
        name: (values * (1 + perturbation * generator.choice([-1.0, 1.0], values.shape))).astype(values.dtype)
        if is_floating(values)
        else values
        for name, values in feeds.items()
    }
    model = compared.plain._replace(message=perturbed(compared.plain.message, perturbation, seed))
    try:
        return run_named(make_session(model, DEFAULT, compared.device), perturbed_feeds)
    except ConvswapError:
        return None


class Agreement(NamedTuple):
    """The share of samples with the same class on both sides; None if no sample has a class.

    `without_class` counts the samples without a class on either side. A sample with a class on one side only
    counts as different.
    """

    share: float | None
    without_class: int


def agreement(classes: np.ndarray, others: np.ndarray) -> Agreement:
    """Return the agreement of the classes of two sides, of shapes (n,) and (m,)."""
    count = max(len(classes), len(others))
    classes, others = _padded(classes, count), _padded(others, count)
    has_class = (classes != NO_CLASS) | (others != NO_CLASS)
    share = float(np.mean(classes[has_class] == others[has_class])) if has_class.any() else None
    return Agreement(share, count - int(has_class.sum()))


def _padded(classes: np.ndarray, count: int) -> np.ndarray:
    """Return `classes`, numbers or strings, padded with NO_CLASS to `count` samples."""
    padded = np.full(count, NO_CLASS, dtype=object)
    padded[: len(classes)] = classes
    return padded


def perturbed(model: onnx.ModelProto, perturbation: float, seed: int) -> onnx.ModelProto:
    """Return a copy of `model` in which each Conv's output is multiplied by 1 + or - `perturbation`.

    The sign is drawn for each Conv of the main graph. A Conv whose weights do not show its element type
    counts as float32.
    """
    generator = np.random.default_rng(seed)
    copy = copy_of(model)
    kinds = {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    names = UniqueNames(names_in(copy.graph))
    nodes = []
    for node in copy.graph.node:
        nodes.append(node)
        if node.op_type != "Conv" or node.domain not in ONNX_DOMAINS or len(node.input) < 2:
            continue
        kind = kinds.get(node.input[1], int(onnx.TensorProto.FLOAT))
        factor, conv_output = names.make_unique("perturbation"), names.make_unique(node.output[0])
        values = np.array(1 + perturbation * generator.choice([-1.0, 1.0]), np.float32)
        copy.graph.initializer.append(
            numpy_helper.from_array(values.astype(helper.tensor_dtype_to_np_dtype(kind)), factor)
        )
        nodes.append(helper.make_node("Mul", [conv_output, factor], [node.output[0]]))
        node.output[0] = conv_output
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del copy.graph.node[:]
    copy.graph.node.extend(copies)
    return copy


def seeded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which every ONNX operator that draws random numbers has the same seed.

    With one seed for all, each operator draws the same numbers on both sides, whatever is swapped or fused
    around it.
    """
    copy = copy_of(model)
    for node in nodes_of_model(copy):
        kind = _SEED_TYPES.get(node.op_type)
        if kind is None or node.domain not in ONNX_DOMAINS:
            continue
        others = [attribute for attribute in node.attribute if attribute.name != "seed"]
        del node.attribute[:]
        node.attribute.extend([*others, helper.make_attribute("seed", kind(_SEED))])
    return copy
