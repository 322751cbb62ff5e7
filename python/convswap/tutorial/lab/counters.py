"""Hardware counters of a kernel, by CUPTI's range profiler.

The counters have Nsight Compute's names; every card of compute capability 7.5 or newer has them. CUPTI runs
the kernel once for each pass that the counters need, and restores the memory that it wrote between passes.
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

# Importing ONNX takes a second, and the parent process does not need it.
if TYPE_CHECKING:
    from convswap.tutorial.lab.checks import Case

SECTORS = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
SHARED_READS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
ACTIVE_WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ACTIVE_THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
ARITHMETIC = "sm__throughput.avg.pct_of_peak_sustained_elapsed"

# Meaning of each counter, in the order of the report.
MEANINGS: Mapping[str, str] = {
    SECTORS: "32-byte sectors per read of a warp: 4 if adjacent threads read adjacent floats",
    SHARED_READS: "wavefronts of shared-memory reads, up to 32 floats each",
    CONFLICTS: "bank conflicts of these reads: two threads of a warp need the same bank",
    ACTIVE_WARPS: "achieved occupancy: active warps in % of a multiprocessor's warp slots",
    ACTIVE_THREADS: "threads of a warp, of 32, that execute an instruction together",
    MEMORY: "% of the memory bandwidth",
    ARITHMETIC: "% of the multiprocessors' peak throughput",
}
NAMES = tuple(MEANINGS)

# Thresholds for a hint from one counter: sectors and bank conflicts above, active threads below.
_MANY_SECTORS = 8.0
_MANY_CONFLICTS = 0.25
_FEW_THREADS = 24.0

_LIBRARIES = ("libnvperf_host.so", "libnvperf_target.so", "libcupti.so.13")
_RANGE_PROFILER = 0
# Each launch is a range of its own, and the kernel is replayed for each pass.
_AUTO_RANGE, _KERNEL_REPLAY = 1, 2
_MAX_RANGES = 1
_NOT_PERMITTED = 35

_Size, _Pointer, _Text = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p

# Fields of each function's parameter structure, after its size and a reserved pointer.
_FIELDS: dict[str, list[tuple[str, Any]]] = {
    "cuptiProfilerInitialize": [],
    "cuptiDeviceGetChipName": [("device", _Size), ("chip", _Text)],
    "cuptiProfilerHostInitialize": [
        *(("profiler_type", ctypes.c_int), ("chip", _Text), ("available", _Pointer), ("host", _Pointer)),
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
        *(("ranges", _Size), ("nesting_levels", ctypes.c_uint16), ("min_nesting_level", ctypes.c_uint16)),
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
    """Return a hint drawn from the counters, or "" if none exceeds its threshold."""
    if counters.get(SECTORS, 0.0) > _MANY_SECTORS:
        return (
            f"uncoalesced: a warp's read touches {counters[SECTORS]:.1f} sectors of 32 bytes; 4 are enough. "
            "Let threadIdx.x count along the rows of x and y: rung 3 (docs/tutorial/ladder.md)."
        )
    reads = counters.get(SHARED_READS, 0.0)
    if reads > 0 and counters.get(CONFLICTS, 0.0) > _MANY_CONFLICTS * reads:
        share = counters[CONFLICTS] / reads
        return (
            f"shared memory: bank conflicts are {share:.0%} of its reads. Give rows an odd length, or let "
            "adjacent threads read adjacent floats: rung 9 (docs/tutorial/ladder.md)."
        )
    if 0 < counters.get(ACTIVE_THREADS, 32.0) < _FEW_THREADS:
        return (
            f"idle threads: of a warp's 32 threads {counters[ACTIVE_THREADS]:.1f} take part in an "
            "instruction. Use one-dimensional blocks whose threads number the outputs: rung 5 "
            "(docs/tutorial/ladder.md)."
        )
    return ""


def counters_of(path: str, case: Case) -> dict[str, float]:
    """Return the counters, by name, of the kernel whose file is `path`, for one convolution.

    Raises:
        ConvswapError: CUPTI is not installed, or returns an error.
    """
    x, w, b = case.arrays
    on_card = _native.DeviceArray.from_numpy
    arrays = on_card(x), on_card(w), None if b is None else on_card(b)
    y = _native.DeviceArray(case.problem.output_shape)

    def launch() -> None:
        _native.conv_device(*arrays, y, algorithm=ALGORITHM, files={"convswap.lab": path}, **case.attributes)

    launch()  # compiles and loads the kernel
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
    """Return the parameter structure of a CUPTI function."""
    fields = [("size", _Size), ("private", _Pointer), *_FIELDS[function]]
    return type(function, (ctypes.Structure,), {"_fields_": fields})


def size_of(structure: type[ctypes.Structure]) -> int:
    """Return the bytes up to the last field's end, which CUPTI expects in `structSize`."""
    last = getattr(structure, structure._fields_[-1][0])
    return int(last.offset + last.size)


class Counters:
    """Reads named counters of the kernels that a function launches on the first card."""

    def __init__(self, names: Sequence[str], chip: str | None = None) -> None:
        """Prepare the counters `names`; `chip`, such as "GH100", is by default the first card's.

        Raises:
            ConvswapError: CUPTI is not installed, or this chip has no counter of a name.
        """
        self._cupti = _load_cupti()
        self._names = (_Text * len(names))(*(name.encode() for name in names))
        if chip is None:
            self._call("cuptiProfilerInitialize")
            chip_name = self._call("cuptiDeviceGetChipName", device=0).chip
        else:
            chip_name = chip.encode()
        self._host = self._call(
            "cuptiProfilerHostInitialize", profiler_type=_RANGE_PROFILER, chip=chip_name
        ).host
        self._call("cuptiProfilerHostConfigAddMetrics", host=self._host, **self._metric_fields)
        count = self._call("cuptiProfilerHostGetConfigImageSize", host=self._host).bytes
        self._config = (ctypes.c_uint8 * count)()
        self._call(
            "cuptiProfilerHostGetConfigImage", host=self._host, bytes=count, image=_address(self._config)
        )

    def close(self) -> None:
        """Release CUPTI's host object."""
        self._call("cuptiProfilerHostDeinitialize", host=self._host)

    def read(self, launch: Callable[[], object], context: int) -> dict[str, float]:
        """Return the counters, by name, of the kernel that `launch` launches in `context` and waits for.

        Raises:
            ConvswapError: CUPTI returns an error, or no kernel was launched.
        """
        profiler = self._call("cuptiRangeProfilerEnable", context=context).profiler
        try:
            return self._read(profiler, launch)
        finally:
            self._call("cuptiRangeProfilerDisable", profiler=profiler)

    def _read(self, profiler: int, launch: Callable[[], object]) -> dict[str, float]:
        sizes = {"ranges": _MAX_RANGES, "nodes": _MAX_RANGES}
        sizes_needed = self._call(
            "cuptiRangeProfilerGetCounterDataSize", profiler=profiler, **self._metric_fields, **sizes
        )
        data = (ctypes.c_uint8 * sizes_needed.bytes)()
        self._call(
            "cuptiRangeProfilerCounterDataImageInitialize",
            profiler=profiler,
            bytes=len(data),
            image=_address(data),
        )
        self._call(
            "cuptiRangeProfilerSetConfig",
            profiler=profiler,
            config_bytes=len(self._config),
            config=_address(self._config),
            data_bytes=len(data),
            data=_address(data),
            range=_AUTO_RANGE,
            replay=_KERNEL_REPLAY,
            ranges=_MAX_RANGES,
            nesting_levels=1,
            min_nesting_level=1,
        )
        self._call("cuptiRangeProfilerStart", profiler=profiler)
        launch()
        self._call("cuptiRangeProfilerStop", profiler=profiler)
        self._call("cuptiRangeProfilerDecodeData", profiler=profiler)
        read = {"data": _address(data), "data_bytes": len(data)}
        if self._call("cuptiRangeProfilerGetCounterDataInfo", **read).ranges == 0:
            raise ConvswapError("CUPTI counted nothing: no kernel was launched while it was recording")
        values = (ctypes.c_double * len(self._names))()
        self._call(
            "cuptiProfilerHostEvaluateToGpuValues",
            host=self._host,
            range=0,
            values=_address(values),
            **read,
            **self._metric_fields,
        )
        return {name.decode(): float(value) for name, value in zip(self._names, values, strict=True) if name}

    @property
    def _metric_fields(self) -> dict[str, Any]:
        return {"names": _address(self._names), "count": len(self._names)}

    def _call(self, function: str, **fields: Any) -> Any:
        structure = structure_of(function)
        parameters = structure(size=size_of(structure), **fields)
        result = int(getattr(self._cupti, function)(ctypes.byref(parameters)))
        if result == _NOT_PERMITTED:
            raise ConvswapError(
                "CUPTI has no permission to read counters: run as root, or have an administrator load the "
                "driver with NVreg_RestrictProfilingToAdminUsers=0"
            )
        if result != 0:
            raise ConvswapError(f"CUPTI cannot read counters: {function} returned {result}")
        return parameters


def _address(array: Any) -> int:
    return ctypes.addressof(array)


def _load_cupti() -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    for folder_of_package in [] if spec is None else spec.submodule_search_locations or []:
        folder = Path(folder_of_package) / "cu13" / "lib"
        if (folder / _LIBRARIES[-1]).is_file():
            loaded = [ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL) for name in _LIBRARIES]
            return loaded[-1]
    raise ConvswapError(f"counters need CUPTI, which is not installed: {INSTALL_CUPTI}")
