"""The CUDA libraries that pip installed beside ONNX Runtime."""

from __future__ import annotations

import ctypes
import io
from contextlib import redirect_stdout
from functools import cache

import onnxruntime


@cache
def load_cuda_libraries(device: str) -> None:
    """Load the CUDA libraries that pip installed beside ONNX Runtime, from 1.21 on; once.

    It prints which ones pip did not install. The system may have those; if not, the session says so.
    """
    if device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        with redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()


@cache
def cudnn_version() -> int | None:
    """Return the version of ONNX Runtime's cuDNN, 91900 for 9.19.0; None where it is not there."""
    load_cuda_libraries("cuda")
    try:
        return int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except (OSError, AttributeError):
        return None
