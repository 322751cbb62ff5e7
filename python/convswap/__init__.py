"""Fast convolutions for ONNX models in ONNX Runtime.

`register` loads the op library into a session. `swap` rewrites a model to use it for every Conv that it
supports, `optimize` only where measurements show a gain. `override_session` runs an unmodified model on it.

`compare` runs a model by the default provider and by convswap; `evaluate` does so on a whole data set.
`explain` shows the algorithm of each Conv and why it was selected. `tune` measures which algorithm is
fastest; `calibrate` adapts the planner to a card. `profile` shows which kernels and nodes take GPU time.
`lab` runs your own kernel in place of Convs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convswap.comparison.compare import compare
    from convswap.errors import ConvswapError
    from convswap.evaluation.evaluate import evaluate
    from convswap.graph.fusion.fuse import Fused, NotFused
    from convswap.graph.swap import NotSwapped, SwapResult, swap
    from convswap.optimizing.optimize import optimize
    from convswap.planning.calibrate import calibrate
    from convswap.planning.explain import explain
    from convswap.planning.tune import tune
    from convswap.profiling.profile import profile
    from convswap.runtime.library import library_path, register
    from convswap.runtime.override import override_session

__all__ = [
    "ConvswapError",
    "Fused",
    "NotFused",
    "NotSwapped",
    "SwapResult",
    "calibrate",
    "compare",
    "evaluate",
    "explain",
    "library_path",
    "optimize",
    "override_session",
    "profile",
    "register",
    "swap",
    "tune",
]

# Modules of the public names, imported at the first access. Some import onnxruntime, which swapping a model
# does not need and which the command line prepares first. Together the imports take half a second; lazily
# imported, they do not delay the command line's handling of Ctrl-C.
_MODULES = {
    "ConvswapError": "errors",
    "Fused": "graph.fusion.fuse",
    "NotFused": "graph.fusion.fuse",
    "NotSwapped": "graph.swap",
    "SwapResult": "graph.swap",
    "calibrate": "planning.calibrate",
    "compare": "comparison.compare",
    "evaluate": "evaluation.evaluate",
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        # onnxruntime is no dependency: the user chooses between onnxruntime and onnxruntime-gpu.
        if error.name != "onnxruntime":
            raise
        return _without_onnxruntime


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _without_onnxruntime(*_arguments: Any, **_options: Any) -> Any:
    from convswap.errors import NO_ONNXRUNTIME, ConvswapError

    raise ConvswapError(NO_ONNXRUNTIME)
