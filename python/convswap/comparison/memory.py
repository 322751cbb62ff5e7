"""Whether a comparison fits into the memory, and whether both sides do at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convswap.comparison.compared import Compared
from convswap.errors import ConvswapError
from convswap.runtime.memory import (
    free_memory,
    in_bytes,
    kept_by_session,
    mapped,
    too_large,
    too_much,
    values_of_run,
    while_made,
)


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

    On the CPU a session keeps the weights a second time, in the order of its kernels, and takes more while it
    is made. For the truth the largest weight is widened to float64.

    Raises:
        ConvswapError: the memory does not suffice even for one side at a time.
    """
    arrays, free = list(compared.subject.weights.values()), free_memory()
    weights = sum(values.nbytes for values in arrays)
    if free is None:
        return Plan(weights, free)
    # All others are in memory already, and not among what is free.
    own, making = mapped(arrays), while_made(arrays)
    widest = max((8 * values.size for values in arrays), default=0)
    least = own + max(making, widest)
    if too_much(least, free):
        raise _too_large(compared, least, free)
    others = kept_by_session(arrays) * (len(compared.sides) - 1) if compared.device.name == "cpu" else 0
    both = max(least, own + making + others)
    if too_much(both, free):
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
    fed = (shapes[name] for layer in compared.layers for name in layer.fed)
    values = values_of_run(fed, compared.source.batch)
    needed = plan.weights + values * (1 if plan.one_side_at_a_time else 2)
    if too_much(needed, plan.free):
        raise _too_large(compared, needed, plan.free)


def _too_large(compared: Compared, needed: int, free: int) -> ConvswapError:
    weights = sum(values.nbytes for values in compared.subject.weights.values())
    return too_large(
        "comparing",
        f"weights of {in_bytes(weights)} and batches of {compared.source.batch}",
        needed,
        free,
        "give a smaller batch, or close other programs",
    )
