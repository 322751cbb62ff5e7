"""The compiled op library, and how a session loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError

OVERRIDE_ENTRY = "convswap.override"
DISABLED_OPTIMIZERS_ENTRY = "optimization.disable_specified_optimizers"
# At full optimisation the CPU provider turns Conv into ops of its own before it looks for a kernel.
CONV_OPTIMIZERS = "ConvActivationFusion;NchwcTransformer"


def library_path() -> Path:
    """Return the path of `libconvswap.so`, which any program that uses ONNX Runtime can register.

    Raises ConvswapError where the package was installed without it.
    """
    path = Path(__file__).with_name("libconvswap.so")
    if not path.is_file():
        raise ConvswapError(f"{path} is missing: the package was not built; run `make` or `pip install .`")
    return path


def register(session_options: Any, override: bool = False) -> None:
    """Register the op library in an `onnxruntime.SessionOptions`.

    After it, models with the op `convswap.Conv` load in a session made with these options. With `override`,
    every float32 `Conv` of an unmodified model runs on our op as well; for the CPU provider this switches off
    the optimisers that would take the Conv nodes first.

    Raises ConvswapError where the library is missing or ONNX Runtime refuses it.
    """
    path = library_path()
    if override:
        session_options.add_session_config_entry(OVERRIDE_ENTRY, "1")
        session_options.add_session_config_entry(DISABLED_OPTIMIZERS_ENTRY, CONV_OPTIMIZERS)
    try:
        session_options.register_custom_ops_library(str(path))
    except Exception as error:  # onnxruntime's own exception types are private to it
        reason = str(error).strip().splitlines()[0]
        raise ConvswapError(f"ONNX Runtime did not load {path.name}: {reason}") from error
