"""The lab: compiles, checks, times and ranks a user's kernel that replaces Conv nodes.

`new` writes a starting file and `run` runs a kernel, like the commands of `convswap lab`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convswap.tutorial.lab.api import run
    from convswap.tutorial.lab.process import LabProcess
    from convswap.tutorial.lab.result import Fault, LabResult
    from convswap.tutorial.lab.scaffold import new

__all__ = ["Fault", "LabProcess", "LabResult", "new", "run"]

# Modules are imported at the first use of a name, as in `convswap/__init__.py`.
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
