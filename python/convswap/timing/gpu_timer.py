"""The time that a card spends on what sessions start, without the time that the host takes to start it.

Sessions are put on one stream by ONNX Runtime's option `user_compute_stream`. The stream is held up first,
by a host function that sleeps; meanwhile all work is queued, between two events. The card then runs it
without a gap, so that the events are as far apart as the work takes, even where a kernel takes less time than
its launch. The hold ends by itself, so that a full queue cannot block for ever. Where it ended before all was
queued, the host's time is in the card's, so the work is started once more after a longer hold.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from convswap.errors import ConvswapError

# The host starts 200 runs of a one-node session in less: 0.01 to 0.05 ms each.
HOLD_MICROSECONDS = 20_000
# For slow hosts. Where a full queue keeps the host, no hold is long enough, but then the card has work.
LONGEST_HOLD_MICROSECONDS = 320_000
_NON_BLOCKING = 1


class GpuTimer:
    """A stream of the first card, and a clock for what is started on it; kept until the process ends."""

    def __init__(self) -> None:
        self._driver = _library("libcuda.so.1")
        self._sleep = _library("libc.so.6").usleep
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._stream, self._begin, self._end = (ctypes.c_void_p() for _ in range(3))
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        # The context that the CUDA runtime, and so ONNX Runtime, uses.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        for event in (self._begin, self._end):
            self._call("cuEventCreate", ctypes.byref(event), 0)

    @property
    def stream(self) -> int:
        """The stream, as the driver's handle."""
        return int(self._stream.value or 0)

    @property
    def provider_options(self) -> dict[str, str]:
        """The options that put the work of a session of the CUDA provider on the stream."""
        return {"user_compute_stream": str(self.stream)}

    def milliseconds(self, start: Callable[[], None]) -> float:
        """Return the time that the card takes for what `start` starts on the stream, without waiting.

        `start` is called again, after a longer hold, where the host took longer than the hold.
        """
        hold = HOLD_MICROSECONDS
        elapsed, queueing = self._held(start, hold)
        while queueing >= hold and hold < LONGEST_HOLD_MICROSECONDS:
            hold *= 4
            elapsed, queueing = self._held(start, hold)
        return elapsed

    def _held(self, start: Callable[[], None], hold: int) -> tuple[float, float]:
        """Return the card's milliseconds for `start`, and the microseconds that the host took to queue it."""
        begin = time.perf_counter()
        self._call("cuLaunchHostFunc", self._stream, self._sleep, ctypes.c_void_p(hold))
        self._call("cuEventRecord", self._begin, self._stream)
        start()
        self._call("cuEventRecord", self._end, self._stream)
        queueing = (time.perf_counter() - begin) * 1e6
        self._call("cuEventSynchronize", self._end)
        elapsed = ctypes.c_float()
        self._call("cuEventElapsedTime", ctypes.byref(elapsed), self._begin, self._end)
        return elapsed.value, queueing

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._driver, name)(*arguments)
        if status != 0:
            raise _cannot_measure(f"{name} of the driver gives error {status}")


def _library(name: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise _cannot_measure(str(error)) from error


def _cannot_measure(why: str) -> ConvswapError:
    return ConvswapError(
        f"the card's time cannot be measured: {why}; see `convswap doctor`, or use --device cpu"
    )
