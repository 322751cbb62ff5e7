"""The names of algorithms that users can select."""

from __future__ import annotations

from typing import Any

from convswap import _native
from convswap.errors import ConvswapError, unknown_name

# Names that leave the choice to the planner: by its estimates, or by the measurements of `convswap tune`.
AUTO = "auto"
TUNED = "tuned"


def check_algorithm(name: str, device: str | None = None) -> None:
    """Raise ConvswapError, naming the nearest, if no algorithm for `device` (None: any) is called `name`."""
    catalog = _native.catalog()
    named = [entry for entry in catalog if device in (None, entry.device)]
    if name in (AUTO, TUNED, *(entry.name for entry in named)):
        return
    # The message suggests the ladder's rungs only for a name that looks like a rung.
    means_rung = isinstance(name, str) and name.startswith("ladd")
    names = (entry.name for entry in named if entry.by_name_alone == means_rung)
    usable = list(dict.fromkeys([AUTO, TUNED, *names]))
    if any(entry.name == name for entry in catalog):
        raise ConvswapError(
            f"algorithm {name!r} is not for the device {device}, which has {', '.join(usable)}"
        )
    kind = "algorithm" if device is None else f"algorithm for the device {device}"
    raise unknown_name(kind, name, usable)


def takes_codes(name: str) -> bool:
    """Return whether the algorithm `name` computes codes on some device, or leaves the planner the choice."""
    if name in (AUTO, TUNED):
        return True
    problem = _native.Problem(
        (1, 8, 8, 64), (64, 64, 1, 1), type="int8", input_layout="NHWC", output_layout="NHWC"
    )
    devices = [entry.device for entry in _native.catalog() if entry.name == name]
    capability = {"cpu": 0, "cuda": 90}
    return any(
        not _native.why_not(problem, name, device, compute_capability=capability[device])
        for device in devices
    )


def rungs() -> list[_native.Algorithm]:
    """Return the rungs of the ladder in this build, in order."""
    return [entry for entry in _native.catalog() if entry.by_name_alone]


def able_algorithms(problem: Any, device: str) -> list[str]:
    """Return the algorithms for `device` that can compute a `convswap._native.Problem`, in catalog order.

    The rungs of the ladder are left out: they are teaching code, selected by name only.
    """
    return [
        entry.name
        for entry in _native.catalog()
        if entry.device == device
        and not entry.by_name_alone
        and not _native.why_not(problem, entry.name, device)
    ]
