"""Whether a comparison fits into the memory, and whether both sides do at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convswap.comparison.compared import Compared
from convswap.errors import ConvswapError
from convswap.runtime.memory import free_memory, in_bytes

# Of what is free, the rest is for the others on the machine, and for what is not counted here.
_SHARE_OF_FREE = 0.9
# What lies in memory at a time of a run without training: the inputs and outputs of a few nodes.
_VALUES_AT_A_TIME = 3


@dataclass(frozen=True)
class Plan:
    """How a comparison goes about the memory, with a note for a reader where that is not as usual.

    `weights` are the bytes of the large weights, and `free` those that were free before.
    """

    weights: int
    free: int | None
    one_side_at_a_time: bool = False
    notes: tuple[str, ...] = ()


def plan_memory(compared: Compared) -> Plan:
    """Return how to go about the memory that the weights take.

    On the CPU a session keeps the weights a second time, in the order of its kernels, and ONNX Runtime holds
    those of Convs three times while it makes one. For the truth the largest weight is widened to float64.

    Raises:
        ConvswapError: the memory does not suffice even for one side at a time.
    """
    arrays, free = compared.subject.weights, free_memory()
    weights = sum(values.nbytes for values in arrays.values())
    if free is None:
        return Plan(weights, free)
    # All others are in memory already, and not among what is free.
    own = sum(values.nbytes for values in arrays.values() if isinstance(_root(values), np.memmap))
    of_convs = {name for layer in compared.layers for name in layer.constants}
    making = weights + sum(2 * values.nbytes for name, values in arrays.items() if name in of_convs)
    widest = max((8 * values.size for values in arrays.values()), default=0)
    least = own + max(making, widest)
    if least > _SHARE_OF_FREE * free:
        raise _too_large(compared, least, free)
    others = weights * (len(compared.sides) - 1) if compared.device.name == "cpu" else 0
    both = max(least, own + making + others)
    if both > _SHARE_OF_FREE * free:
        note = (
            f"both sides at once would take about {in_bytes(both)} of memory, and {in_bytes(free)} are "
            "free: they were timed one after the other, not in turn"
        )
        return Plan(weights, free, one_side_at_a_time=True, notes=(note,))
    return Plan(weights, free)


def check_memory(compared: Compared, plan: Plan, shapes: Mapping[str, Sequence[int]]) -> None:
    """Refuse what the values of a run make too large; `shapes` are of the layers' inputs for one sample.

    Raises:
        ConvswapError: they do.
    """
    if plan.free is None:
        return
    largest = max((math.prod(shapes[name]) for layer in compared.layers for name in layer.fed), default=0)
    values = 4 * largest * compared.source.batch * _VALUES_AT_A_TIME
    needed = plan.weights + values * (1 if plan.one_side_at_a_time else 2)
    if needed > _SHARE_OF_FREE * plan.free:
        raise _too_large(compared, needed, plan.free)


def _root(values: np.ndarray) -> object:
    """Return what holds the memory of an array."""
    held: object = values
    while isinstance(held, np.ndarray) and held.base is not None and not isinstance(held, np.memmap):
        held = held.base
    return held


def _too_large(compared: Compared, needed: int, free: int) -> ConvswapError:
    weights = sum(values.nbytes for values in compared.subject.weights.values())
    return ConvswapError(
        f"the memory does not suffice: comparing takes about {in_bytes(needed)}, for weights of "
        f"{in_bytes(weights)} and batches of {compared.source.batch}, and {in_bytes(free)} are free; "
        "give a smaller batch, or close other programs"
    )
