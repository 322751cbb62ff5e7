"""Checks of Python packages and their libraries: ONNX Runtime, CUPTI, the CUDA libraries."""

from __future__ import annotations

import ctypes
import importlib.metadata
import io
from contextlib import redirect_stdout
from functools import cache

NAME = "onnxruntime"

PACKAGE = "cupti-python"
# `cupti-python` has the version of a CUDA toolkit. A version newer than the driver's CUDA does not start; an
# older one with the same major version does. From CUDA 13.0 on CUPTI names the other subscriber.
OLDEST_DRIVER_CUDA = 13
# The command pins the library too. By itself the Python package installs the newest library of the same major
# version. That may be newer than the driver, and has longer records than the package reads.
INSTALL_CUPTI = 'pip install "cupti-python~=13.0.1" "nvidia-cuda-cupti~=13.0.0"'


def why_broken() -> str:
    """Return why the installed onnxruntime cannot be used, in one line; "" if it can, or is absent."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        return "" if error.name == NAME else str(error)
    except Exception as error:  # its compiled module may raise anything
        return " ".join(str(error).split()) or type(error).__name__
    if hasattr(onnxruntime, "InferenceSession"):
        return ""
    # Python imports any folder of that name as a module, even an empty one.
    folders = [str(folder) for folder in getattr(onnxruntime, "__path__", ())]
    return f"{' and '.join(folders) or NAME} does not hold all of it"


def cupti_version() -> str | None:
    """Return the version of the installed cupti-python, None if it is not installed."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def why_cupti_not_importable() -> str:
    """Return why cupti-python cannot be imported, in one line; "" if it can."""
    try:
        from cupti import cupti  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def why_no_cupti_for(driver_cuda: str) -> str:
    """Return why there is no CUPTI for a driver whose CUDA is, for example, "12.8"; "" if there is one."""
    major, _, _ = driver_cuda.partition(".")
    if major.isdecimal() and int(major) < OLDEST_DRIVER_CUDA:
        return (
            f"the profiler needs a driver for CUDA {OLDEST_DRIVER_CUDA}.0 or newer (580), "
            f"and this one is for CUDA {driver_cuda}"
        )
    return ""


def is_newer_than_driver(version: str, driver_cuda: str) -> bool:
    """Return whether CUPTI of `version` ("13.4.0") is for a newer CUDA than the driver's ("13.0")."""
    return _numbers(version) > _numbers(driver_cuda)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


@cache
def load_cuda_libraries(device: str) -> None:
    """Load the CUDA libraries that pip installed beside ONNX Runtime, once; from ONNX Runtime 1.21 on."""
    import onnxruntime

    if device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        # `preload_dlls` prints the libraries that pip did not install. The system may have them; if it does
        # not, the session reports the error.
        with redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()


@cache
def cudnn_version() -> int | None:
    """Return the version of ONNX Runtime's cuDNN, 91900 for 9.19.0; None if it cannot be loaded."""
    load_cuda_libraries("cuda")
    try:
        return int(ctypes.CDLL("libcudnn.so.9").cudnnGetVersion())
    except (OSError, AttributeError):
        return None
