"""The names that an algorithm can be asked for by."""

from __future__ import annotations

from typing import Any

from convswap import _native
from convswap.errors import ConvswapError, unknown_name

# What leaves the choice to the planner: to its rule, or to what `convswap tune` measured.
AUTO = "auto"
TUNED = "tuned"


def check_algorithm(name: str, device: str | None = None) -> None:
    """Raise ConvswapError, naming the nearest, where no algorithm for `device` (None: any) has `name`."""
    catalog = _native.catalog()
    named = [entry.name for entry in catalog if device in (None, entry.device)]
    if name not in (AUTO, TUNED, *named):
        if any(entry.name == name for entry in catalog):
            usable = ", ".join([AUTO, TUNED, *named])
            raise ConvswapError(f"algorithm {name!r} is not for the device {device}, which has {usable}")
        kind = "algorithm" if device is None else f"algorithm for the device {device}"
        raise unknown_name(kind, name, {AUTO, TUNED, *named})


def able_algorithms(problem: Any, device: str) -> list[str]:
    """Return the algorithms for `device` that can compute a `convswap._native.Problem`, in catalog order.

    The rungs of the ladder are not among them: they are there to be read, and to be asked for by name.
    """
    return [
        entry.name
        for entry in _native.catalog()
        if entry.device == device
        and not entry.is_rung
        and not _native.why_not(problem, entry.name, device)
    ]
