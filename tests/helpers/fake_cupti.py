"""A fake of the module `cupti.cupti` of cupti-python 13.0, with the functions that convswap calls.

As in the real module, a flush passes records to the callback as objects with the fields of CUPTI's
structures.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17


class CallbackDomain(enum.IntEnum):
    DRIVER_API = 1
    RUNTIME_API = 2


class ActivityMemcpyKind(enum.IntEnum):
    UNKNOWN = 0
    HTOD = 1
    DTOH = 2
    DTOD = 8


class Result(enum.IntEnum):
    ERROR_NOT_INITIALIZED = 15
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_UNKNOWN = 999


class cuptiError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


NAMES = {
    (CallbackDomain.RUNTIME_API, 211): "cudaLaunchKernel_v7000",
    (CallbackDomain.RUNTIME_API, 41): "cudaMemcpyAsync_v3020",
    (CallbackDomain.RUNTIME_API, 31): "cudaDeviceSynchronize_v3020",
    (CallbackDomain.DRIVER_API, 307): "cuLaunchKernel",
    (CallbackDomain.DRIVER_API, 470): "cuLaunchKernel_ptsz",
}


def kernel(name: str, start: int, end: int, correlation: int, kind: int = 10) -> SimpleNamespace:
    return SimpleNamespace(
        kind=kind, name=name, start=start, end=end, correlation_id=correlation, stream_id=7
    )


def memcpy(copy_kind: int, start: int, end: int, correlation: int, size: int = 64) -> SimpleNamespace:
    return SimpleNamespace(
        kind=1,
        copy_kind=copy_kind,
        start=start,
        end=end,
        correlation_id=correlation,
        stream_id=7,
        bytes=size,
    )


def memset(start: int, end: int, correlation: int) -> SimpleNamespace:
    return SimpleNamespace(kind=2, start=start, end=end, correlation_id=correlation, stream_id=7, bytes=4)


def runtime(cbid: int, start: int, end: int, correlation: int, kind: int = 5) -> SimpleNamespace:
    return SimpleNamespace(
        kind=kind, cbid=cbid, start=start, end=end, correlation_id=correlation, thread_id=11
    )


class FakeCupti(ModuleType):
    """The module. `pending` are records for the next flush; `refuse` maps functions to error statuses."""

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.ActivityKind = ActivityKind
        self.CallbackDomain = CallbackDomain
        self.ActivityMemcpyKind = ActivityMemcpyKind
        self.Result = Result
        self.cuptiError = cuptiError
        self.SUBSCRIBER_PARAMS_SIZE = 32
        self.pending: list[Any] = []
        self.refuse: dict[str, int] = {}
        self.holder: str | None = None
        self.enabled: list[int] = []
        self.subscribers: list[str] = []
        self._hand_over: Callable[[list[Any]], None] | None = None
        self._parameters: Any = None

    def SubscriberParams(self) -> Any:
        self._parameters = SimpleNamespace(
            struct_size=0, subscriber_name="", old_subscriber_name=self.holder, ptr=1234
        )
        return self._parameters

    def subscribe_v2(self, callback: Callable[..., None], user_data: object, parameters: int) -> int:
        self._check("subscribe_v2")
        assert parameters == 1234 and self._parameters.struct_size == self.SUBSCRIBER_PARAMS_SIZE
        self.subscribers.append(self._parameters.subscriber_name)
        return 1

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[list[Any]], None]
    ) -> None:
        self._check("activity_register_callbacks")
        size, records = requested()
        assert size >= 1 << 20 and records == 0
        self._hand_over = completed

    def activity_enable(self, kind: int) -> None:
        self._check("activity_enable")
        self.enabled.append(int(kind))

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(int(kind))

    def activity_flush_all(self, flag: int) -> None:
        self._check("activity_flush_all")
        assert flag in (0, 1) and self._hand_over is not None
        records, self.pending = self.pending, []
        self._hand_over(records)
        for record in records:
            # Callers must not keep records: each keeps its whole buffer alive.
            record.__dict__.clear()

    def get_callback_name(self, domain: int, cbid: int) -> str:
        return NAMES[CallbackDomain(domain), cbid]

    def get_timestamp(self) -> int:
        self._check("get_timestamp")
        return 123_456

    def _check(self, function: str) -> None:
        if function in self.refuse:
            raise cuptiError(self.refuse[function])
