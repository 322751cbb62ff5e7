"""Python packages that are installed or not, and what they bring: ONNX Runtime, CUPTI, the CUDA libraries."""

from __future__ import annotations

import ctypes
import importlib.metadata
import io
from contextlib import redirect_stdout
from functools import cache

NAME = "onnxruntime"

PACKAGE = "cupti-python"
# `cupti-python` has the version of a CUDA toolkit: one newer than the driver's CUDA does not start, an older
# one of the same first number does. CUDA 13.0 is the first for which it names who else holds CUPTI.
OLDEST_DRIVER_CUDA = 13
# The library is named beside the Python package, which by itself takes the newest of the same first number:
# newer than the driver may be, and with longer records than the package reads.
INSTALL_CUPTI = 'pip install "cupti-python~=13.0.1" "nvidia-cuda-cupti~=13.0.0"'


def why_broken() -> str:
    """Return what is wrong with the installed onnxruntime, in one line; "" where it is whole or absent."""
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        return "" if error.name == NAME else str(error)
    except Exception as error:  # it passes on whatever its compiled part raises
        return " ".join(str(error).split()) or type(error).__name__
    if hasattr(onnxruntime, "InferenceSession"):
        return ""
    # Python takes any folder of the name for a module, one with nothing in it too.
    folders = [str(folder) for folder in getattr(onnxruntime, "__path__", ())]
    return f"{' and '.join(folders) or NAME} does not hold all of it"


def installed_version() -> str | None:
    """Return the version of the installed cupti-python, None where there is none."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def why_not_importable() -> str:
    """Return why cupti-python cannot be imported, in one line; "" where it can."""
    try:
        from cupti import cupti  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def why_not_for(driver_cuda: str) -> str:
    """Return why no CUPTI is to be had for a driver whose CUDA is, for example, "12.8"; "" where one is."""
    first, _, _ = driver_cuda.partition(".")
    if first.isdecimal() and int(first) < OLDEST_DRIVER_CUDA:
        return (
            f"the profiler needs a driver for CUDA {OLDEST_DRIVER_CUDA}.0 or newer (580), "
            f"and this one is for CUDA {driver_cuda}"
        )
    return ""


def newer_than_driver(version: str, driver_cuda: str) -> bool:
    """Return whether CUPTI of `version` ("13.4.0") is for a newer CUDA than the driver's ("13.0")."""
    return _numbers(version) > _numbers(driver_cuda)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


@cache
def load_cuda_libraries(device: str) -> None:
    """Load the CUDA libraries that pip installed beside ONNX Runtime, from 1.21 on; once.

    It prints which ones pip did not install. The system may have those; if not, the session says so.
    """
    import onnxruntime

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
