"""The collector that records with CUPTI: the only file that knows it.

It uses CUPTI's activity records, the way that costs least: records of kernels, copies and API calls go into
buffers, and CUPTI hands them over when they are full or flushed. No counter is read, and the clocks of the
card stay as they are.

CUPTI knows two ways to take the times of kernels, and neither suits all. Where kernels may run beside each
other it adds instructions to every block: cuDNN's changes of layout, which have very many, took up to 8 %
longer on an H200 than under Nsight Compute. Where they run one after the other each seems 0.6 to 2.4 us
longer. So recording begins the first way; the timed runs are recorded the second way where kernels over
100 us take more than half of the time of all kernels in the warm-up. Copies and memsets do not count.

CUPTI takes one subscriber in a process, which subscribes here first: another profiler is noticed at once, and
named. The subscription stays until the process ends, since records may be collected again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from convswap.errors import ConvswapError
from convswap.profiling.records import COPY, KERNEL, SET, Activity, Call, Records
from convswap.runtime.packages import INSTALL_CUPTI

SUBSCRIBER = "convswap profile"
_KINDS = ("MEMCPY", "MEMSET", "RUNTIME", "DRIVER")
# Kernels beside each other, and one after the other.
_SHORT_KERNELS, _LONG_KERNELS = "CONCURRENT_KERNEL", "KERNEL"
_LONG_NANOSECONDS = 100_000
# Room for some 40,000 records.
_BUFFER_BYTES = 8 << 20
_ANY_NUMBER_OF_RECORDS = 0
_COMPLETE_ONLY, _FORCED = 0, 1
_NOT_ENDED = 0
# cudaLaunchKernel_v7000 is the same call as cudaLaunchKernel, since CUDA 7.0.
_VERSION_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


def _not_installed(error: Exception) -> ConvswapError:
    """Return the error where the Python package or the library that it loads is not there."""
    return ConvswapError(f"the profiler needs CUPTI, which is not installed ({error}): {INSTALL_CUPTI}")


def _refused(result: str, holder: str | None) -> ConvswapError:
    """Return the error where CUPTI refused with `result`, by its name, and `holder` holds it."""
    if result == "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED":
        named = f" ({holder})" if holder else ""
        return ConvswapError(
            f"another profiler{named} holds CUPTI in this process, which takes one at a time; "
            "run the command without it"
        )
    if "INSUFFICIENT_PRIVILEGES" in result:
        return ConvswapError(
            f"CUPTI may not be used ({result}): run as root, or have an administrator load the driver "
            "with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if result in ("ERROR_NOT_INITIALIZED", "ERROR_NOT_COMPATIBLE"):
        return ConvswapError(f"CUPTI does not fit the driver ({result}): {INSTALL_CUPTI}")
    return ConvswapError(f"CUPTI refuses to record: {result}; see `convswap doctor`")


class CuptiCollector:
    """Records with CUPTI, whose subscriber the process is; see `records.Collector`, and `connect`.

    Every method raises ConvswapError where CUPTI does not fit the driver, is held by another profiler or
    refuses.
    """

    def __init__(self, cupti: Any) -> None:
        self.cupti = cupti
        self._kinds = [getattr(cupti.ActivityKind, name) for name in _KINDS]
        self._copies = int(cupti.ActivityKind.MEMCPY)
        self._sets = int(cupti.ActivityKind.MEMSET)
        self._short_kernels = getattr(cupti.ActivityKind, _SHORT_KERNELS)
        self._long_kernels = getattr(cupti.ActivityKind, _LONG_KERNELS)
        self._enabled: list[Any] = []
        self._work = {int(self._short_kernels), int(self._long_kernels), self._copies, self._sets}
        self._domains = {
            int(cupti.ActivityKind.RUNTIME): cupti.CallbackDomain.RUNTIME_API,
            int(cupti.ActivityKind.DRIVER): cupti.CallbackDomain.DRIVER_API,
        }
        self._call_names: dict[tuple[int, int], str] = {}
        self._activities: list[Activity] = []
        self._calls: list[Call] = []
        self._subscribe()
        self._check(cupti.activity_register_callbacks, self._buffer, self._take_over)

    def start(self) -> None:
        """Begin to record."""
        self._activities, self._calls = [], []
        try:
            for kind in (self._short_kernels, *self._kinds):
                self._enable(kind)
        except ConvswapError:
            self._disable_all()
            raise

    def now(self) -> int:
        """Return CUPTI's time in nanoseconds."""
        return int(self._check(self.cupti.get_timestamp))

    def prepare(self, since: int, long_kernels: bool | None = None) -> bool:
        """Empty CUPTI's buffers, and record as suits the kernels that ran since then, or as asked."""
        # Nothing runs, so what is not complete never will be.
        self._check(self.cupti.activity_flush_all, _FORCED)
        if long_kernels is None:
            times = [one.duration for one in self._activities if one.kind == KERNEL and one.start >= since]
            long_kernels = 2 * sum(time for time in times if time > _LONG_NANOSECONDS) > sum(times)
        if long_kernels:
            self._disable(self._short_kernels)
            self._enable(self._long_kernels)
        return long_kernels

    def stop(self) -> Records:
        """End the recording and return it."""
        self._check(self.cupti.activity_flush_all, _COMPLETE_ONLY)
        self._disable_all()
        # What never completed would keep a whole buffer back.
        self._check(self.cupti.activity_flush_all, _FORCED)
        records = Records(tuple(self._activities), tuple(self._calls))
        self._activities, self._calls = [], []
        return records

    def _enable(self, kind: Any) -> None:
        self._check(self.cupti.activity_enable, kind)
        self._enabled.append(kind)

    def _disable_all(self) -> None:
        for kind in tuple(self._enabled):
            self._disable(kind)

    def _disable(self, kind: Any) -> None:
        self._enabled.remove(kind)
        self._check(self.cupti.activity_disable, kind)

    def _subscribe(self) -> None:
        parameters = self.cupti.SubscriberParams()
        parameters.struct_size = self.cupti.SUBSCRIBER_PARAMS_SIZE
        parameters.subscriber_name = SUBSCRIBER
        self._check(
            self.cupti.subscribe_v2,
            *(_ignore, None, parameters.ptr),
            holder=lambda: parameters.old_subscriber_name,
        )

    def _check(
        self, function: Callable[..., Any], *arguments: Any, holder: Callable[[], str | None] = lambda: None
    ) -> Any:
        """Return what `function` of the bindings gives; where it is refused, `holder` holds CUPTI."""
        try:
            return function(*arguments)
        except self.cupti.cuptiError as error:
            raise _refused(self._result(error), holder()) from error
        except RuntimeError as error:
            # The bindings load CUPTI's library and the driver's when the first function is called.
            raise _not_installed(error) from error

    def _result(self, error: Any) -> str:
        try:
            return str(self.cupti.Result(error.status).name)
        except ValueError:
            return f"error {error.status}"

    def _buffer(self) -> tuple[int, int]:
        return _BUFFER_BYTES, _ANY_NUMBER_OF_RECORDS

    def _take_over(self, records: list[Any]) -> None:
        """Copy what counts out of `records`, each of which would keep its whole buffer in memory."""
        for record in records:
            kind = int(record.kind)
            if kind in self._domains:
                if record.end != _NOT_ENDED:
                    self._calls.append(self._call(record, kind))
            elif kind in self._work and record.end != _NOT_ENDED:
                self._activities.append(self._activity(record, kind))

    def _call(self, record: Any, kind: int) -> Call:
        key = kind, int(record.cbid)
        if key not in self._call_names:
            name = str(self.cupti.get_callback_name(self._domains[kind], record.cbid))
            self._call_names[key] = _VERSION_SUFFIX.sub("", name)
        return Call(
            name=self._call_names[key],
            start=int(record.start),
            end=int(record.end),
            correlation=int(record.correlation_id),
            thread=int(record.thread_id),
        )

    def _activity(self, record: Any, kind: int) -> Activity:
        if kind == self._copies:
            sort, name = COPY, f"[CUDA memcpy {self._direction(record.copy_kind)}]"
        elif kind == self._sets:
            sort, name = SET, "[CUDA memset]"
        else:
            sort, name = KERNEL, str(record.name)
        return Activity(
            kind=sort,
            name=name,
            start=int(record.start),
            end=int(record.end),
            correlation=int(record.correlation_id),
            stream=int(record.stream_id),
            size=0 if sort == KERNEL else int(record.bytes),
        )

    def _direction(self, copy_kind: int) -> str:
        """Return "HtoD" for HTOD, as nvprof writes it."""
        name = str(self.cupti.ActivityMemcpyKind(copy_kind).name)
        return f"{name[0]}to{name[-1]}" if re.fullmatch("[AHDP]TO[AHDP]", name) else name.lower()


def _ignore(*_arguments: Any) -> None:
    """Do nothing when called back: no domain of callbacks is enabled."""


@cache
def connect() -> CuptiCollector:
    """Return the process's collector, which becomes CUPTI's subscriber when it is first asked for.

    Raises:
        ConvswapError: CUPTI is not installed, does not fit the driver, is held by another profiler, or
            refuses.
    """
    try:
        from cupti import cupti
    except ImportError as error:
        raise _not_installed(error) from error
    return CuptiCollector(cupti)
