"""The collector that records with CUPTI; no other file uses CUPTI.

The collector uses CUPTI's activity records, which cost least: records of kernels, copies and API calls go
into buffers, which CUPTI delivers when they are full or flushed. No counter is read, and the clocks of the
card stay as they are.

CUPTI has two kinds of kernel records, and neither suits all kernels. With CONCURRENT_KERNEL, which lets
kernels overlap, CUPTI adds instructions to every block: cuDNN's layout transformations, which have very many
blocks, took up to 8 % longer on an H200 than under Nsight Compute. With KERNEL, which serialises kernels,
each kernel seems 0.6 to 2.4 us longer. So recording begins with CONCURRENT_KERNEL. The timed runs are
recorded with KERNEL if kernels over 100 us take more than half of the time of all kernels in the warm-up.
Copies and memsets do not count.

CUPTI allows one subscriber in a process. The collector subscribes before it records, so another profiler is
noticed at once, and named in the error. The subscription stays until the process ends, since records may be
collected again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from convswap.errors import ConvswapError
from convswap.profiling.records import KERNEL, MEMCPY, MEMSET, Activity, Call, Records
from convswap.runtime.packages import INSTALL_CUPTI

SUBSCRIBER = "convswap profile"
_KINDS = ("MEMCPY", "MEMSET", "RUNTIME", "DRIVER")
_CONCURRENT_KERNELS, _SERIAL_KERNELS = "CONCURRENT_KERNEL", "KERNEL"
_LONG_KERNEL_NS = 100_000
# The size of some 40,000 records.
_BUFFER_BYTES = 8 << 20
_ANY_NUMBER_OF_RECORDS = 0
_COMPLETE_ONLY, _FORCED = 0, 1
_NOT_ENDED = 0
# cudaLaunchKernel_v7000 is the same call as cudaLaunchKernel, since CUDA 7.0.
_VERSION_SUFFIX = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")


def _not_installed(error: Exception) -> ConvswapError:
    """Return the error for a missing Python package, or a missing library that the package loads."""
    return ConvswapError(f"the profiler needs CUPTI, which is not installed ({error}): {INSTALL_CUPTI}")


def _refused(result: str, holder: str | None) -> ConvswapError:
    """Return the error for `result`, CUPTI's name of an error; `holder` names the subscriber."""
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
    """A `records.Collector` that records with CUPTI; `connect` makes the collector of the process.

    Every method raises ConvswapError if CUPTI does not fit the driver, is held by another profiler or
    refuses.
    """

    def __init__(self, cupti: Any) -> None:
        self.cupti = cupti
        self._kinds = [getattr(cupti.ActivityKind, name) for name in _KINDS]
        self._memcpy_kind = int(cupti.ActivityKind.MEMCPY)
        self._memset_kind = int(cupti.ActivityKind.MEMSET)
        self._concurrent_kernels = getattr(cupti.ActivityKind, _CONCURRENT_KERNELS)
        self._serial_kernels = getattr(cupti.ActivityKind, _SERIAL_KERNELS)
        self._enabled: list[Any] = []
        self._activity_kinds = {
            int(self._concurrent_kernels),
            int(self._serial_kernels),
            self._memcpy_kind,
            self._memset_kind,
        }
        self._domains = {
            int(cupti.ActivityKind.RUNTIME): cupti.CallbackDomain.RUNTIME_API,
            int(cupti.ActivityKind.DRIVER): cupti.CallbackDomain.DRIVER_API,
        }
        self._call_names: dict[tuple[int, int], str] = {}
        self._activities: list[Activity] = []
        self._calls: list[Call] = []
        self._subscribe()
        self._check(cupti.activity_register_callbacks, self._buffer, self._copy_records)

    def start(self) -> None:
        """Begin to record."""
        self._activities, self._calls = [], []
        try:
            for kind in (self._concurrent_kernels, *self._kinds):
                self._enable(kind)
        except ConvswapError:
            self._disable_all()
            raise

    def now(self) -> int:
        """Return CUPTI's time in nanoseconds."""
        return int(self._check(self.cupti.get_timestamp))

    def prepare(self, since: int, long_kernels: bool | None = None) -> bool:
        """Empty CUPTI's buffers, and select the kind of kernel records by `long_kernels`.

        By default the kernels that ran since `since` decide.
        """
        # Nothing runs, so records that are not complete never will be.
        self._check(self.cupti.activity_flush_all, _FORCED)
        if long_kernels is None:
            times = [
                activity.duration
                for activity in self._activities
                if activity.kind == KERNEL and activity.start >= since
            ]
            long_kernels = 2 * sum(time for time in times if time > _LONG_KERNEL_NS) > sum(times)
        if long_kernels:
            self._disable(self._concurrent_kernels)
            self._enable(self._serial_kernels)
        return long_kernels

    def stop(self) -> Records:
        """End the recording and return it."""
        self._check(self.cupti.activity_flush_all, _COMPLETE_ONLY)
        self._disable_all()
        # A record that never completed would keep its buffer from being delivered.
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
        """Return the result of a `function` of the bindings.

        If CUPTI refuses, `holder` returns the name of the subscriber that holds CUPTI.
        """
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

    def _copy_records(self, records: list[Any]) -> None:
        """Copy the fields in use out of `records`, each of which would keep its whole buffer in memory."""
        for record in records:
            kind = int(record.kind)
            if kind in self._domains:
                if record.end != _NOT_ENDED:
                    self._calls.append(self._call(record, kind))
            elif kind in self._activity_kinds and record.end != _NOT_ENDED:
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
        if kind == self._memcpy_kind:
            activity_kind, name = MEMCPY, f"[CUDA memcpy {self._direction(record.copy_kind)}]"
        elif kind == self._memset_kind:
            activity_kind, name = MEMSET, "[CUDA memset]"
        else:
            activity_kind, name = KERNEL, str(record.name)
        return Activity(
            kind=activity_kind,
            name=name,
            start=int(record.start),
            end=int(record.end),
            correlation=int(record.correlation_id),
            stream=int(record.stream_id),
            size=0 if activity_kind == KERNEL else int(record.bytes),
        )

    def _direction(self, copy_kind: int) -> str:
        """Return "HtoD" for HTOD, as nvprof writes it."""
        name = str(self.cupti.ActivityMemcpyKind(copy_kind).name)
        return f"{name[0]}to{name[-1]}" if re.fullmatch("[AHDP]TO[AHDP]", name) else name.lower()


def _ignore(*_arguments: Any) -> None:
    """Ignore callbacks, which CUPTI does not send since no callback domain is enabled."""


@cache
def connect() -> CuptiCollector:
    """Return the process's collector; the first call makes it CUPTI's subscriber.

    Raises:
        ConvswapError: CUPTI is not installed, does not fit the driver, is held by another profiler, or
            refuses.
    """
    try:
        from cupti import cupti
    except ImportError as error:
        raise _not_installed(error) from error
    return CuptiCollector(cupti)
