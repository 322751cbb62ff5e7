"""Fast convolutions for ONNX models in ONNX Runtime.

`register` loads the op library into a session, `swap` rewrites a model to use it, `compare` runs both sides,
`explain` says how each Conv is computed and why, `tune` measures which algorithm is fastest, `profile` says
which kernels and nodes take the time of a GPU,
`override_session` runs an unmodified model on it.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convswap.compare import compare
    from convswap.errors import ConvswapError
    from convswap.explain import explain
    from convswap.fuse import Fused, NotFused
    from convswap.library import library_path, register
    from convswap.override import override_session
    from convswap.profile import profile
    from convswap.swap import Left, SwapResult, swap
    from convswap.tune import tune

__all__ = [
    "ConvswapError",
    "Fused",
    "Left",
    "NotFused",
    "SwapResult",
    "compare",
    "explain",
    "library_path",
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
    "Fused": "fuse",
    "Left": "swap",
    "NotFused": "fuse",
    "SwapResult": "swap",
    "compare": "compare",
    "explain": "explain",
    "library_path": "library",
    "override_session": "override",
    "profile": "profile",
    "register": "library",
    "swap": "swap",
    "tune": "tune",
}


class _Package(ModuleType):
    """Loads what is asked for; the name of a function stays its own and is not that of its module."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{self.__name__}.{_HOMES[name]}"), name)
        except ModuleNotFoundError as error:
            # Which onnxruntime to install is the user's choice.
            if error.name != "onnxruntime":
                raise
            return _without_onnxruntime

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a module sets it in its package.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


def _without_onnxruntime(*_arguments: Any, **_options: Any) -> Any:
    from convswap.errors import NO_ONNXRUNTIME, ConvswapError

    raise ConvswapError(NO_ONNXRUNTIME)


sys.modules[__name__].__class__ = _Package
