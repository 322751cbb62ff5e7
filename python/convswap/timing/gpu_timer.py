"""GPU time of what sessions launch, without the host's time to launch it.

ONNX Runtime's option `user_compute_stream` puts the sessions on one stream. First a host function that
sleeps holds up the stream, while the host queues all work between two events. The card then runs the work
without gaps, so the time between the events is that of the work, even if a kernel is shorter than its
launch. The hold ends by itself, so a full queue cannot block for ever. If the hold ends before all work is
queued, the measurement contains host time, and the work is launched again with a longer hold.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from convswap.errors import ConvswapError

# The host queues 200 runs of a one-node session in less: 0.01 to 0.05 ms each.
HOLD_MICROSECONDS = 20_000
# The limit on slow hosts. If a full queue blocks the host, no hold is long enough, but then the card is busy.
LONGEST_HOLD_MICROSECONDS = 320_000
_NON_BLOCKING = 1


class GpuTimer:
    """A stream of the first card, and a clock for the work on it; it lives until the process ends."""

    def __init__(self) -> None:
        self._driver = _library("libcuda.so.1")
        self._sleep = _library("libc.so.6").usleep
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._stream, self._begin, self._end = (ctypes.c_void_p() for _ in range(3))
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        # ONNX Runtime uses the primary context too, through the CUDA runtime.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuStreamCreate", ctypes.byref(self._stream), _NON_BLOCKING)
        for event in (self._begin, self._end):
            self._call("cuEventCreate", ctypes.byref(event), 0)

    @property
    def stream(self) -> int:
        """The driver's handle of the stream."""
        return int(self._stream.value or 0)

    @property
    def provider_options(self) -> dict[str, str]:
        """The options of the CUDA provider that put a session's work on the stream."""
        return {"user_compute_stream": str(self.stream)}

    def milliseconds(self, start: Callable[[], None]) -> float:
        """Return the card's time for the work that `start` queues on the stream without waiting.

        `start` is called again with a longer hold if the host takes longer than the hold.
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
