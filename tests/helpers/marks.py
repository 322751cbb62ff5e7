"""Marks that several test modules share."""

from __future__ import annotations

import pytest
from convswap import _native

needs_cuda_kernels = pytest.mark.skipif(
    not _native.has_cuda_kernels, reason=_native.no_cuda_reason or "built with CUDA kernels"
)
