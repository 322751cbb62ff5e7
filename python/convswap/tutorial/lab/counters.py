"""The card's counters of a kernel, by CUPTI's range profiler: the only file of the lab that knows it.

Their names are those of Nsight Compute; every card from compute capability 7.5 on has them. CUPTI runs a
kernel as often as the counters take, and puts the memory that it wrote back in between.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convswap import _native
from convswap.errors import ConvswapError
from convswap.runtime.packages import INSTALL_CUPTI
from convswap.tutorial.lab.kernel import ALGORITHM

# The process that asks has no need of ONNX, which takes a second to import.
if TYPE_CHECKING:
    from convswap.tutorial.lab.checks import Case

SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
SHARED_READS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
ACTIVE_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ACTIVE_THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ARITHMETIC = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

# What each counts, in the order of a report.
MEANINGS: Mapping[str, str] = {
    SECTORS: "sectors of 32 bytes for each read of a warp: 4 where neighbours read neighbouring floats",
    SHARED_READS: "reads of shared memory, 32 floats at once",
    CONFLICTS: "of these, reads that waited since two threads wanted the same bank",
    ACTIVE_WARPS: "% of the places for warps that were taken",
    ACTIVE_THREADS: "of a warp's 32 threads, those that took part in an instruction",
    MEMORY: "% of the memory's speed",
    ARITHMETIC: "% of the multiprocessors' speed",
}
NAMES = tuple(MEANINGS)

# Beyond these a counter alone is reason enough for a hint.
_MANY_SECTORS = 8.0
_MANY_CONFLICTS = 0.25
_FEW_THREADS = 24.0

_LIBRARIES = ("libnvperf_host.so", "libnvperf_target.so", "libcupti.so.13")
_RANGE_PROFILER = 0
# Each launch is a range of its own, and is done again for each pass.
_AUTO_RANGE, _KERNEL_REPLAY = 1, 2
_MOST_RANGES = 1
_NOT_PERMITTED = 35

_Size, _Pointer, _Text = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p

# What each function takes, behind the size of the structure and a pointer that stays empty.
_FIELDS: dict[str, list[tuple[str, Any]]] = {
    "cuptiProfilerInitialize": [],
    "cuptiDeviceGetChipName": [("device", _Size), ("chip", _Text)],
    "cuptiProfilerHostInitialize": [
        *(("kind", ctypes.c_int), ("chip", _Text), ("available", _Pointer), ("host", _Pointer)),
    ],
    "cuptiProfilerHostDeinitialize": [("host", _Pointer)],
    "cuptiProfilerHostConfigAddMetrics": [("host", _Pointer), ("names", _Pointer), ("count", _Size)],
    "cuptiProfilerHostGetConfigImageSize": [("host", _Pointer), ("bytes", _Size)],
    "cuptiProfilerHostGetConfigImage": [("host", _Pointer), ("bytes", _Size), ("image", _Pointer)],
    "cuptiProfilerHostEvaluateToGpuValues": [
        *(("host", _Pointer), ("data", _Pointer), ("data_bytes", _Size), ("range", _Size)),
        *(("names", _Pointer), ("count", _Size), ("values", _Pointer)),
    ],
    "cuptiRangeProfilerEnable": [("context", _Pointer), ("profiler", _Pointer)],
    "cuptiRangeProfilerDisable": [("profiler", _Pointer)],
    "cuptiRangeProfilerGetCounterDataSize": [
        *(("profiler", _Pointer), ("names", _Pointer), ("count", _Size), ("ranges", _Size)),
        *(("nodes", ctypes.c_uint32), ("bytes", _Size)),
    ],
    "cuptiRangeProfilerCounterDataImageInitialize": [
        *(("profiler", _Pointer), ("bytes", _Size), ("image", _Pointer)),
    ],
    "cuptiRangeProfilerSetConfig": [
        *(("profiler", _Pointer), ("config_bytes", _Size), ("config", _Pointer)),
        *(("data_bytes", _Size), ("data", _Pointer), ("range", ctypes.c_int), ("replay", ctypes.c_int)),
        *(("ranges", _Size), ("levels", ctypes.c_uint16), ("least_level", ctypes.c_uint16)),
        *(("pass_index", _Size), ("level", ctypes.c_uint16)),
    ],
    "cuptiRangeProfilerStart": [("profiler", _Pointer)],
    "cuptiRangeProfilerStop": [
        *(("profiler", _Pointer), ("pass_index", _Size), ("level", _Size), ("all", ctypes.c_uint8)),
    ],
    "cuptiRangeProfilerDecodeData": [("profiler", _Pointer), ("dropped", _Size)],
    "cuptiRangeProfilerGetCounterDataInfo": [("data", _Pointer), ("data_bytes", _Size), ("ranges", _Size)],
}


def counted_hint(counters: Mapping[str, float]) -> str:
    """Return the hint that the counters give; "" where none stands out."""
    if counters.get(SECTORS, 0.0) > _MANY_SECTORS:
        return (
            f"uncoalesced: a warp's read touches {counters[SECTORS]:.1f} sectors of 32 bytes, and 4 would "
            "do. Let threadIdx.x count along the rows of x and y: rung 3 (docs/tutorial/ladder.md)."
        )
    reads = counters.get(SHARED_READS, 0.0)
    if reads > 0 and counters.get(CONFLICTS, 0.0) > _MANY_CONFLICTS * reads:
        share = counters[CONFLICTS] / reads
        return (
            f"shared memory: {share:.0%} of its reads wait for a bank that another thread reads. Give rows "
            "an odd length, or let neighbours read neighbours: rung 9 (docs/tutorial/ladder.md)."
        )
    if 0 < counters.get(ACTIVE_THREADS, 32.0) < _FEW_THREADS:
        return (
            f"idle threads: of a warp's 32 threads {counters[ACTIVE_THREADS]:.1f} take part in an "
            "instruction. Let blocks be flat, and their threads take outputs by number: rung 5 "
            "(docs/tutorial/ladder.md)."
        )
    return ""


def counters_of(path: str, case: Case) -> dict[str, float]:
    """Return the counters of the kernel whose file is `path`, by name, for a convolution.

    Raises:
        ConvswapError: CUPTI is not installed, or refuses.
    """
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


def structure_of(function: str) -> type[ctypes.Structure]:
    """Return the structure that a function takes."""
    fields = [("size", _Size), ("private", _Pointer), *_FIELDS[function]]
    return type(function, (ctypes.Structure,), {"_fields_": fields})


def size_of(structure: type[ctypes.Structure]) -> int:
    """Return the bytes up to the last field's end, which is what CUPTI is told."""
    last = getattr(structure, structure._fields_[-1][0])
    return int(last.offset + last.size)


class Counters:
    """Reads counters, by their names, of the kernels that a function launches on the first card."""

    def __init__(self, names: Sequence[str], chip: str | None = None) -> None:
        """Prepare for `names`; `chip`, such as "GH100", is that of the first card by default.

        Raises:
            ConvswapError: CUPTI is not installed, or does not know a name on this chip.
        """
        self._cupti = _load()
        self._names = (_Text * len(names))(*(name.encode() for name in names))
        if chip is None:
            self._call("cuptiProfilerInitialize")
            chip_name = self._call("cuptiDeviceGetChipName", device=0).chip
        else:
            chip_name = chip.encode()
        self._host = self._call("cuptiProfilerHostInitialize", kind=_RANGE_PROFILER, chip=chip_name).host
        self._call("cuptiProfilerHostConfigAddMetrics", host=self._host, **self._named)
        count = self._call("cuptiProfilerHostGetConfigImageSize", host=self._host).bytes
        self._config = (ctypes.c_uint8 * count)()
        self._call("cuptiProfilerHostGetConfigImage", host=self._host, bytes=count, image=_at(self._config))

    def close(self) -> None:
        """Give back what was prepared."""
        self._call("cuptiProfilerHostDeinitialize", host=self._host)

    def read(self, launch: Callable[[], object], context: int) -> dict[str, float]:
        """Return the counters, by name, of the kernel that `launch` launches in the `context` and waits for.

        Raises:
            ConvswapError: CUPTI refuses, or nothing was launched.
        """
        profiler = self._call("cuptiRangeProfilerEnable", context=context).profiler
        try:
            return self._read(profiler, launch)
        finally:
            self._call("cuptiRangeProfilerDisable", profiler=profiler)

    def _read(self, profiler: int, launch: Callable[[], object]) -> dict[str, float]:
        sizes = {"ranges": _MOST_RANGES, "nodes": _MOST_RANGES}
        asked = self._call("cuptiRangeProfilerGetCounterDataSize", profiler=profiler, **self._named, **sizes)
        data = (ctypes.c_uint8 * asked.bytes)()
        self._call(
            "cuptiRangeProfilerCounterDataImageInitialize",
            profiler=profiler,
            bytes=len(data),
            image=_at(data),
        )
        self._call(
            "cuptiRangeProfilerSetConfig",
            profiler=profiler,
            config_bytes=len(self._config),
            config=_at(self._config),
            data_bytes=len(data),
            data=_at(data),
            range=_AUTO_RANGE,
            replay=_KERNEL_REPLAY,
            ranges=_MOST_RANGES,
            levels=1,
            least_level=1,
        )
        self._call("cuptiRangeProfilerStart", profiler=profiler)
        launch()
        self._call("cuptiRangeProfilerStop", profiler=profiler)
        self._call("cuptiRangeProfilerDecodeData", profiler=profiler)
        read = {"data": _at(data), "data_bytes": len(data)}
        if self._call("cuptiRangeProfilerGetCounterDataInfo", **read).ranges == 0:
            raise ConvswapError("CUPTI counted nothing: no kernel was launched while it looked")
        values = (ctypes.c_double * len(self._names))()
        self._call(
            "cuptiProfilerHostEvaluateToGpuValues",
            host=self._host,
            range=0,
            values=_at(values),
            **read,
            **self._named,
        )
        return {name.decode(): float(value) for name, value in zip(self._names, values, strict=True) if name}

    @property
    def _named(self) -> dict[str, Any]:
        return {"names": _at(self._names), "count": len(self._names)}

    def _call(self, function: str, **fields: Any) -> Any:
        structure = structure_of(function)
        parameters = structure(size=size_of(structure), **fields)
        result = int(getattr(self._cupti, function)(ctypes.byref(parameters)))
        if result == _NOT_PERMITTED:
            raise ConvswapError(
                "CUPTI may not read counters: run as root, or have an administrator load the driver with "
                "NVreg_RestrictProfilingToAdminUsers=0"
            )
        if result != 0:
            raise ConvswapError(f"CUPTI refuses to read counters: {function} gives {result}")
        return parameters


def _at(array: Any) -> int:
    return ctypes.addressof(array)


def _load() -> ctypes.CDLL:
    found = importlib.util.find_spec("nvidia")
    for place in [] if found is None else found.submodule_search_locations or []:
        folder = Path(place) / "cu13" / "lib"
        if (folder / _LIBRARIES[-1]).is_file():
            loaded = [ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in _LIBRARIES]
            return loaded[-1]
    raise ConvswapError(f"counters need CUPTI, which is not installed: {INSTALL_CUPTI}")
