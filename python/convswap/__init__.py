"""Fast convolutions for ONNX models in ONNX Runtime.

`register` loads the op library into a session, `swap` rewrites a model to use it, `compare` runs both sides,
`explain` says how each Conv is computed and why, `tune` measures which algorithm is fastest,
`override_session` runs an unmodified model on it.
"""

from typing import Any

from convswap.errors import NO_ONNXRUNTIME, ConvswapError
from convswap.library import library_path, register
from convswap.override import override_session
from convswap.swap import Left, SwapResult, swap

try:
    from convswap.compare import compare
    from convswap.explain import explain
    from convswap.tune import tune
except ModuleNotFoundError as error:
    # Which onnxruntime to install is the user's choice, and swapping a model needs none.
    if error.name != "onnxruntime":
        raise

    def _without_onnxruntime(*_arguments: Any, **_options: Any) -> Any:
        raise ConvswapError(NO_ONNXRUNTIME)

    compare = explain = tune = _without_onnxruntime


__all__ = [
    "ConvswapError",
    "Left",
    "SwapResult",
    "compare",
    "explain",
    "library_path",
    "override_session",
    "register",
    "swap",
    "tune",
]
