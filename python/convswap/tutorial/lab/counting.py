"""Reads the counters of a kernel, in the worker."""

from __future__ import annotations

import ctypes

from convswap import _native
from convswap.tutorial.lab.card_check import layer_case
from convswap.tutorial.lab.counter_names import NAMES
from convswap.tutorial.lab.cupti_counters import Counters
from convswap.tutorial.lab.targets import ALGORITHM, TargetLayer


def counters_of(path: str, one: TargetLayer) -> dict[str, float]:
    """Return the counters of the kernel whose file is `path`, by name, for some images of a layer.

    Raises:
        ConvswapError: CUPTI is not installed, or refuses.
    """
    case = layer_case(one)
    x, w, b = case.arrays
    on_card = _native.DeviceArray.from_numpy
    arrays = on_card(x), on_card(w), None if b is None else on_card(b)
    y = _native.DeviceArray(case.problem.output_shape)

    def launch() -> None:
        _native.conv_device(*arrays, y, algorithm=ALGORITHM, files={"convswap.lab": path}, **case.attributes)

    launch()  # which compiles and loads
    counters = Counters(NAMES)
    try:
        return counters.read(launch, _primary_context())
    finally:
        counters.close()


def _primary_context() -> int:
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    driver.cuCtxSetCurrent(context)
    return int(context.value or 0)
