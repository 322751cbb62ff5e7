"""The floor of a convolution: the least time it can take on a card.

floor = max(bytes moved once / bandwidth, operations / rate); an operation is one multiplication or one
addition. The bandwidth of a measured card is that of a copy, in bytes read and written, or the driver's
figure if that is less. The rates are those of the datasheet. The rate of `tf32` is float16's, since scaled
float16 keeps as many bits of a number as TF32 does. The rate of `ieee` is a third of it: the accuracy of
float32 takes at least three products of float16, and the tensor cores compute three of those sooner than the
FMA units compute one of float32. For other cards only the bandwidth is known, from the device's attributes,
so their floor is a lower bound of this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of a card: bytes per second, and operations per second by precision."""

    bandwidth: float
    rates: Mapping[str, float] = field(default_factory=dict)


# Names must match in full: "NVIDIA H200 NVL", "NVIDIA GH200 480GB" and "NVIDIA H200 MIG 1g.18gb" differ.
_RATES = {"tf32": 989e12, "ieee": 989e12 / 3, "float16": 989e12, "bfloat16": 989e12, "int8": 1979e12}
_MEASURED = {"NVIDIA H200": Ceilings(4.30e12, _RATES), "NVIDIA H100 80GB HBM3": Ceilings(3.00e12, _RATES)}


def ceilings(card: Mapping[str, Any]) -> Ceilings | None:
    """Return the peak rates of a card of `convswap._native.cuda_devices()`; None if none is known."""
    known = _MEASURED.get(str(card["name"]))
    # The product of the memory's clock and width, in bytes per second; a copy reaches less.
    reported = float(card.get("memory_bandwidth") or 0)
    if known is None:
        return Ceilings(reported) if reported > 0 else None
    return replace(known, bandwidth=min(known.bandwidth, reported)) if reported > 0 else known


def bound_by(problem: Any, card: Mapping[str, Any] | None, precision: str) -> str | None:
    """Return which of the two makes the floor, "memory" or "arithmetic"; None if either rate is unknown."""
    known = ceilings(card) if card is not None else None
    if known is None or precision not in known.rates:
        return None
    moving = problem.bytes / known.bandwidth
    return "memory" if moving >= problem.operations / known.rates[precision] else "arithmetic"


def floor_ms(problem: Any, card: Mapping[str, Any] | None, precision: str) -> float | None:
    """Return the floor in milliseconds of a `convswap._native.Problem`; None if no rate is known."""
    known = ceilings(card) if card is not None else None
    if known is None:
        return None
    seconds = problem.bytes / known.bandwidth
    if precision in known.rates:
        seconds = max(seconds, problem.operations / known.rates[precision])
    return seconds * 1e3
