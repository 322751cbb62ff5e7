"""Fast convolutions for ONNX models in ONNX Runtime.

`register` loads the op library into a session, `optimize` rewrites a model to use it where that gains, `swap`
wherever it can, `compare` runs both sides,
`explain` says how each Conv is computed and why, `tune` measures which algorithm is fastest, `profile` says
which kernels and nodes take the time of a GPU, `lab` runs a kernel of your own in the place of Convs,
`override_session` runs an unmodified model on it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convswap.comparison.compare import compare
    from convswap.errors import ConvswapError
    from convswap.graph.fusion.fuse import Fused, NotFused
    from convswap.graph.swap import Left, SwapResult, swap
    from convswap.optimizing.optimize import optimize
    from convswap.planning.explain import explain
    from convswap.planning.tune import tune
    from convswap.profiling.profile import profile
    from convswap.runtime.library import library_path, register
    from convswap.runtime.override import override_session

__all__ = [
    "ConvswapError",
    "Fused",
    "Left",
    "NotFused",
    "SwapResult",
    "compare",
    "explain",
    "library_path",
    "optimize",
    "override_session",
    "profile",
    "register",
    "swap",
    "tune",
]

# The modules that these are in, loaded when they are first asked for: some import onnxruntime, which swapping
# a model does not need and which the command line prepares first. Together they take half a second, in which
# the command line can be interrupted already.
_HOMES = {
    "ConvswapError": "errors",
    "Fused": "graph.fusion.fuse",
    "Left": "graph.swap",
    "NotFused": "graph.fusion.fuse",
    "SwapResult": "graph.swap",
    "compare": "comparison.compare",
    "explain": "planning.explain",
    "library_path": "runtime.library",
    "optimize": "optimizing.optimize",
    "override_session": "runtime.override",
    "profile": "profiling.profile",
    "register": "runtime.library",
    "swap": "graph.swap",
    "tune": "planning.tune",
}


def __getattr__(name: str) -> Any:
    if name == "lab":
        return importlib.import_module(f"{__name__}.lab")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        # Which onnxruntime to install is the user's choice.
        if error.name != "onnxruntime":
            raise
        return _without_onnxruntime


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _without_onnxruntime(*_arguments: Any, **_options: Any) -> Any:
    from convswap.errors import NO_ONNXRUNTIME, ConvswapError

    raise ConvswapError(NO_ONNXRUNTIME)
