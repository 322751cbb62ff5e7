"""CUDA algorithms that the card in use lacks for its compute capability.

conftest.py skips the tests of such an algorithm: those whose parameter `algorithm` is its name, and those
marked `algorithm("NAME")`. The lists are not taken from the library, so that a test fails if the library
refuses an algorithm on a card that has it.
"""

from __future__ import annotations

from convswap import _native

# Algorithms on mma instructions of compute capability 8.0.
FROM_8_0 = (
    "few_channels",
    "many_channels",
    "separable",
    "sliced_k",
    "ladder_14_tensor_cores",
    "ladder_15_automatic",
    "ladder_16_fused",
)
# Algorithms on wgmma, which no other capability has.
ON_9_0 = ("channels_last", "implicit_gemm", "pointwise", "row_windows", "toeplitz")


def capability() -> int:
    """Return the compute capability of the card, or CONVSWAP_COMPUTE_CAPABILITY: 90 for 9.0."""
    return _native.cuda_devices()[0]["compute_capability"]


def why_lacking(algorithm: str) -> str:
    """Return why the card in use lacks the algorithm; "" if it has it."""
    if algorithm in ON_9_0 and capability() != 90:
        return f"{algorithm} needs compute capability 9.0"
    if algorithm in FROM_8_0 and capability() < 80:
        return f"{algorithm} needs compute capability 8.0 or newer"
    return ""


def first_on_card(*algorithms: str) -> str:
    """Return the first of the algorithms that the card in use has."""
    return next(each for each in algorithms if not why_lacking(each))
