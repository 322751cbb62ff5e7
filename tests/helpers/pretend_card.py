"""A pretended card for the lab: arrays are NumPy's, and sessions run on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from convswap import _native
from convswap.runtime.device import Device

CARD = {"name": "NVIDIA H200", "compute_capability": 90, "multiprocessors": 132, "memory_bandwidth": None}
# Properties of the pretended kernel.
FACTS = {
    "name": "mine.cu",
    "registers": 32,
    "spilled_bytes": 0,
    "shared_bytes": 0,
    "threads": 256,
    "blocks": 1000,
    "resident_blocks": 8,
    "threads_per_multiprocessor": 2048,
}


class PretendArray:
    """A fake of `_native.DeviceArray` in host memory, with a fence on both sides."""

    def __init__(self, shape: Sequence[int], type: str = "float32", device: int = 0, fence: int = 0) -> None:
        self.shape, self._fence = tuple(shape), fence // 4
        self._all = np.full(int(np.prod(shape)) + 2 * self._fence, np.nan, np.float32)
        self._all.view(np.uint32)[:] = 0xFFFFFFFF

    @staticmethod
    def from_numpy(array: np.ndarray, device: int = 0, fence: int = 0) -> PretendArray:
        made = PretendArray(array.shape, fence=fence)
        made.values[...] = array
        return made

    @property
    def values(self) -> np.ndarray:
        return self._all[self._fence : len(self._all) - self._fence].reshape(self.shape)

    def with_fence(self) -> np.ndarray:
        return self._all

    def to_numpy(self) -> np.ndarray:
        return self.values.copy()

    def poison(self) -> None:
        self.values.view(np.uint32)[...] = 0xFFFFFFFF

    def damage(self) -> int | None:
        intact = self._all.view(np.uint32) == 0xFFFFFFFF
        intact[self._fence : len(intact) - self._fence] = True
        return None if intact.all() else 4 * (int(np.argmin(intact)) - self._fence)


# Fills y from the arrays and the attributes of a run.
PretendKernel = Callable[..., None]


def right_kernel(
    x: PretendArray, w: PretendArray, b: PretendArray | None, y: PretendArray, **attributes: Any
) -> None:
    bias = None if b is None else b.values
    y.values[...] = _native.conv(x.values, w.values, bias, algorithm="direct", **attributes)


class PretendTimer:
    """A fake of GpuTimer that measures wall time."""

    provider_options: ClassVar[dict[str, str]] = {}

    def milliseconds(self, start: Callable[[], None]) -> float:
        begin = time.perf_counter()
        start()
        return (time.perf_counter() - begin) * 1e3


def pretend_card(monkeypatch: Any, kernel: PretendKernel = right_kernel) -> None:
    """Make the lab find a card, on which `kernel` replaces the kernel of the user's file."""
    from convswap.tutorial.lab import card_check, card_times, runner, targets, warm_up

    def conv_device(
        *arrays: Any, algorithm: str = "auto", precision: str = "", files: Any = None, **attributes: Any
    ) -> float:
        (kernel if files else right_kernel)(*arrays, **attributes)
        return 1.0

    class Native:
        DeviceArray = PretendArray

        def __getattr__(self, name: str) -> Any:
            return getattr(_native, name)

    native = Native()
    native.conv_device = conv_device  # type: ignore[attr-defined]
    native.fill_shared_memory = lambda: None  # type: ignore[attr-defined]
    for module in (card_check, warm_up):
        monkeypatch.setattr(module, "_native", native)
    for module in (card_times, targets):
        monkeypatch.setattr(module, "ALGORITHM", "direct")
    monkeypatch.setattr(card_times, "facts_of", lambda *_: dict(FACTS))
    monkeypatch.setattr(card_times, "rungs", lambda: [])
    monkeypatch.setattr(runner, "GpuTimer", PretendTimer)
    monkeypatch.setattr(warm_up, "load_cuda_libraries", lambda _device: None)
    monkeypatch.setattr(runner, "choose_device", lambda _name=None: Device("cpu", "pretended", CARD))
