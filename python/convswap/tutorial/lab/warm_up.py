"""What a process's first run on a card waits for, while modules are imported and the kernel compiled."""

from __future__ import annotations

import contextlib
import threading

from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.packages import load_cuda_libraries


class Opening:
    """Loads the CUDA libraries and makes the card's context, in a thread of its own."""

    def __init__(self) -> None:
        self._thread = threading.Thread(target=_load, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when it is done. What cannot be done is told by whoever needs it."""
        self._thread.join()


def _load() -> None:
    with contextlib.suppress(OSError, RuntimeError, ConvswapError):
        load_cuda_libraries("cuda")
        _native.DeviceArray([1])
