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
    named = [entry for entry in catalog if device in (None, entry.device)]
    if name in (AUTO, TUNED, *(entry.name for entry in named)):
        return
    # Who does not climb the ladder need not read the names of its rungs.
    means_rung = isinstance(name, str) and name.startswith("ladd")
    usable = [AUTO, TUNED, *(entry.name for entry in named if entry.by_name_alone == means_rung)]
    if any(entry.name == name for entry in catalog):
        raise ConvswapError(
            f"algorithm {name!r} is not for the device {device}, which has {', '.join(usable)}"
        )
    kind = "algorithm" if device is None else f"algorithm for the device {device}"
    raise unknown_name(kind, name, usable)


def rungs() -> list[_native.Algorithm]:
    """Return the rungs of the ladder in this build, from the first to the last."""
    return [entry for entry in _native.catalog() if entry.by_name_alone]


def able_algorithms(problem: Any, device: str) -> list[str]:
    """Return the algorithms for `device` that can compute a `convswap._native.Problem`, in catalog order.

    The rungs of the ladder are not among them: they are there to be read, and to be asked for by name.
    """
    return [
        entry.name
        for entry in _native.catalog()
        if entry.device == device
        and not entry.by_name_alone
        and not _native.why_not(problem, entry.name, device)
    ]
