"""The floor of a convolution: the least time it can take on a card.

floor = max(bytes moved once / bandwidth, operations / rate); an operation is one multiplication or one
addition. The bandwidth of a card we measured is that of a copy, in bytes read and written, or what the driver
tells of the card where that is less; its rates are the datasheet's. That of `tf32` is float16's, since scaled
float16 keeps as many bits of a number as TF32 does. That of `ieee` is a third of it: the accuracy of float32
takes at least three products of float16, which the tensor cores compute sooner than the other cores compute
one of float32. For other cards only the memory side is known, from the device's own attributes; it is a floor
still, if a lower one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Ceilings:
    """What a card can do: bytes per second, and operations per second for each precision."""

    bandwidth: float
    rates: Mapping[str, float] = field(default_factory=dict)


# By the whole name: "NVIDIA H200 NVL", "NVIDIA GH200 480GB" and "NVIDIA H200 MIG 1g.18gb" are other cards.
_RATES = {"tf32": 989e12, "ieee": 989e12 / 3, "float16": 989e12, "bfloat16": 989e12}
_MEASURED = {"NVIDIA H200": Ceilings(4.30e12, _RATES), "NVIDIA H100 80GB HBM3": Ceilings(3.00e12, _RATES)}


def ceilings(card: Mapping[str, Any]) -> Ceilings | None:
    """Return what is known of a card of `convswap._native.cuda_devices()`; None when nothing is."""
    known = _MEASURED.get(str(card["name"]))
    # Bytes per second by the memory's clock and width: more than a copy reaches.
    told = float(card.get("memory_bandwidth") or 0)
    if known is None:
        return Ceilings(told) if told > 0 else None
    return replace(known, bandwidth=min(known.bandwidth, told)) if told > 0 else known


def bound_by(problem: Any, card: Mapping[str, Any] | None, precision: str) -> str | None:
    """Return which of the two makes the floor, "memory" or "arithmetic"; None where either is not known."""
    known = ceilings(card) if card is not None else None
    if known is None or precision not in known.rates:
        return None
    moving = problem.bytes / known.bandwidth
    return "memory" if moving >= problem.operations / known.rates[precision] else "arithmetic"


def floor_ms(problem: Any, card: Mapping[str, Any] | None, precision: str) -> float | None:
    """Return the floor in milliseconds of a `convswap._native.Problem`; None where no ceiling is known."""
    known = ceilings(card) if card is not None else None
    if known is None:
        return None
    seconds = problem.bytes / known.bandwidth
    if precision in known.rates:
        seconds = max(seconds, problem.operations / known.rates[precision])
    return seconds * 1e3
