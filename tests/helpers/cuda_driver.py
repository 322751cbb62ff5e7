"""CUDA driver API for tests: streams, memory and the current card.

The driver is present with every card, whatever CUDA libraries pip has installed. A stream of the driver is
also one of the CUDA runtime.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

NON_BLOCKING = 1
NOT_READY = 600
CAPTURE_UNSUPPORTED = 900
CAPTURE_INVALIDATED = 901
# Mode of a capture, as of ONNX Runtime's: calls that a graph cannot hold are errors in every thread.
CAPTURE_GLOBAL = 0


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    status = driver.cuInit(ctypes.c_uint(0))
    assert status == 0, f"cuInit failed with error {status}"
    return driver


def _check(function: str, *arguments: object) -> None:
    status = getattr(_driver(), function)(*arguments)
    assert status == 0, f"{function} failed with error {status}"


def _device(card: int) -> ctypes.c_int:
    device = ctypes.c_int()
    _check("cuDeviceGet", ctypes.byref(device), ctypes.c_int(card))
    return device


@cache
def _context(card: int) -> ctypes.c_void_p:
    """Return the context that the CUDA runtime uses on the card; it stays until the process ends."""
    context = ctypes.c_void_p()
    _check("cuDevicePrimaryCtxRetain", ctypes.byref(context), _device(card))
    return context


@contextmanager
def on_card(card: int) -> Iterator[None]:
    """Make the card current for this thread within the block."""
    _check("cuCtxPushCurrent_v2", _context(card))
    try:
        yield
    finally:
        _check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def current_card() -> int | None:
    """Return the current card of this thread, or None."""
    context = ctypes.c_void_p()
    _check("cuCtxGetCurrent", ctypes.byref(context))
    if not context.value:
        return None
    card = ctypes.c_int()
    _check("cuCtxGetDevice", ctypes.byref(card))
    return card.value


def is_in_use(card: int) -> bool:
    """Return whether the card's primary context is active in this process."""
    flags, active = ctypes.c_uint(), ctypes.c_int()
    _check("cuDevicePrimaryCtxGetState", _device(card), ctypes.byref(flags), ctypes.byref(active))
    return active.value != 0


def free_bytes(card: int = 0) -> int:
    """Return the free memory of the card."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with on_card(card):
        _check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def synchronize(card: int = 0) -> None:
    """Wait for all work of the card's context."""
    with on_card(card):
        _check("cuCtxSynchronize")


def copy_to_host(target: np.ndarray, source: int, card: int = 0) -> None:
    """Copy memory of the card at `source` into all of an array."""
    with on_card(card):
        address, size = target.ctypes.data, target.nbytes
        _check("cuMemcpyDtoH_v2", ctypes.c_void_p(address), ctypes.c_uint64(source), ctypes.c_size_t(size))


class Stream:
    """A stream that does not synchronise with the default stream."""

    def __init__(self, card: int = 0) -> None:
        self.card = card
        self._handle = ctypes.c_void_p()
        with on_card(card):
            _check("cuStreamCreate", ctypes.byref(self._handle), ctypes.c_uint(NON_BLOCKING))

    @property
    def pointer(self) -> int:
        assert self._handle.value
        return self._handle.value

    def sleep(self, seconds: float) -> None:
        """Delay later work of the stream."""
        # C's usleep takes its argument in place of the driver's user pointer. A Python function would wait
        # for the interpreter's lock.
        usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
        microseconds = ctypes.c_void_p(round(seconds * 1e6))
        with on_card(self.card):
            _check("cuLaunchHostFunc", self._handle, usleep, microseconds)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes within the card's memory."""
        with on_card(self.card):
            _check(
                "cuMemcpyDtoDAsync_v2",
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(size),
                self._handle,
            )

    @contextmanager
    def captured(self) -> Iterator[list[int]]:
        """Capture the stream's work into a graph and discard the graph.

        Yields a list that holds the error of the capture at the end, if there was one.
        """
        errors: list[int] = []
        with on_card(self.card):
            _check("cuStreamBeginCapture_v2", self._handle, ctypes.c_int(CAPTURE_GLOBAL))
        try:
            yield errors
        finally:
            graph = ctypes.c_void_p()
            with on_card(self.card):
                status = _driver().cuStreamEndCapture(self._handle, ctypes.byref(graph))
                if graph.value:
                    _check("cuGraphDestroy", graph)
            if status:
                errors.append(status)

    def is_busy(self) -> bool:
        with on_card(self.card):
            status = _driver().cuStreamQuery(self._handle)
        assert status in (0, NOT_READY), f"cuStreamQuery failed with error {status}"
        return status == NOT_READY

    def synchronize(self) -> None:
        with on_card(self.card):
            _check("cuStreamSynchronize", self._handle)

    def close(self) -> None:
        with on_card(self.card):
            _check("cuStreamDestroy_v2", self._handle)
