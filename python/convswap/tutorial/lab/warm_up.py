"""Warms up the card in the background, while modules are imported and the kernel is compiled."""

from __future__ import annotations

import contextlib
import threading

from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.packages import load_cuda_libraries


class WarmUp:
    """Loads the CUDA libraries and creates the card's context, in a thread of its own."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=_warm_up_card, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the card is ready. Errors are ignored here; the first use of the card raises them."""
        self._thread.join()


def _warm_up_card() -> None:
    with contextlib.suppress(OSError, RuntimeError, ConvswapError):
        load_cuda_libraries("cuda")
        _native.DeviceArray([1])
