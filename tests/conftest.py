"""What all tests share: tests marked `gpu` are skipped, with the reason, where they cannot run."""

from __future__ import annotations

import pytest
from convswap import _native


def why_no_gpu() -> str:
    """Return why tests on a GPU cannot run here; "" where they can."""
    if not _native.has_cuda_kernels:
        return _native.no_cuda_reason
    if not _native.cuda_devices():
        return "no NVIDIA card or driver was found"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_no_gpu()
    if reason:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))
