"""The lab: a kernel of your own in the place of Conv nodes, compiled, checked, timed and ranked.

`new` writes a file to begin with, `run` says what comes of one, as `convswap lab` does.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convswap.tutorial.lab.api import run
    from convswap.tutorial.lab.process import LabProcess
    from convswap.tutorial.lab.result import Fault, LabResult
    from convswap.tutorial.lab.scaffold import new

__all__ = ["Fault", "LabProcess", "LabResult", "new", "run"]

# Loaded when they are first asked for, as the package's own names are.
_HOMES = {
    "Fault": "result",
    "LabProcess": "process",
    "LabResult": "result",
    "new": "scaffold",
    "run": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
