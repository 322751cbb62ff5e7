"""Which package brings CUPTI, NVIDIA's interface for profilers, and for which driver.

`cupti-python` has the version of a CUDA toolkit: one newer than the driver's CUDA does not start, an older
one of the same first number does. CUDA 13.0 is the first for which it names who else holds CUPTI.
"""

from __future__ import annotations

import importlib.metadata

PACKAGE = "cupti-python"
OLDEST_DRIVER_CUDA = 13
# The library is named beside the Python package, which by itself takes the newest of the same first number:
# newer than the driver may be, and with longer records than the package reads.
INSTALL_CUPTI = 'pip install "cupti-python~=13.0.1" "nvidia-cuda-cupti~=13.0.0"'


def installed_version() -> str | None:
    """Return the version of the installed package, None where there is none."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def why_not_importable() -> str:
    """Return why the package cannot be imported, in one line; "" where it can."""
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
