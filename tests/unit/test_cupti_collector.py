"""CUPTI's records become convswap's records, and its errors messages of one line."""

from __future__ import annotations

import sys
from types import ModuleType

import fake_cupti
import pytest
from convswap.errors import ConvswapError
from convswap.profiling import cupti_collector as module
from convswap.profiling.cupti_collector import connect
from convswap.profiling.records import Activity, Call
from fake_cupti import FakeCupti
from refused import refused


@pytest.fixture
def cupti(monkeypatch):
    """Replace the package cupti by a fake."""
    fake = FakeCupti()
    package = ModuleType("cupti")
    package.cupti = fake
    monkeypatch.setitem(sys.modules, "cupti", package)
    monkeypatch.setitem(sys.modules, "cupti.cupti", fake)
    module.connect.cache_clear()
    yield fake
    module.connect.cache_clear()


def test_records_of_every_kind_become_plain_ones(cupti):
    collector = connect()
    collector.start()
    cupti.pending = [
        fake_cupti.runtime(211, 100, 105, correlation=1),
        fake_cupti.kernel("_Z4tickPfi", 130, 150, correlation=1),
        fake_cupti.memcpy(fake_cupti.ActivityMemcpyKind.HTOD, 200, 260, correlation=2, size=4096),
        fake_cupti.memcpy(fake_cupti.ActivityMemcpyKind.DTOH, 300, 310, correlation=3),
        fake_cupti.memcpy(fake_cupti.ActivityMemcpyKind.UNKNOWN, 320, 330, correlation=3),
        fake_cupti.memset(400, 401, correlation=4),
        fake_cupti.runtime(41, 190, 199, correlation=2),
        fake_cupti.runtime(307, 500, 503, correlation=5, kind=4),
        fake_cupti.runtime(470, 600, 603, correlation=6, kind=4),
    ]
    records = collector.stop()
    assert records.activities == (
        Activity("kernel", "_Z4tickPfi", 130, 150, 1, stream=7),
        Activity("memcpy", "[CUDA memcpy HtoD]", 200, 260, 2, stream=7, size=4096),
        Activity("memcpy", "[CUDA memcpy DtoH]", 300, 310, 3, stream=7, size=64),
        Activity("memcpy", "[CUDA memcpy unknown]", 320, 330, 3, stream=7, size=64),
        Activity("memset", "[CUDA memset]", 400, 401, 4, stream=7, size=4),
    )
    assert records.calls == (
        Call("cudaLaunchKernel", 100, 105, 1, thread=11),
        Call("cudaMemcpyAsync", 190, 199, 2, thread=11),
        Call("cuLaunchKernel", 500, 503, 5, thread=11),
        Call("cuLaunchKernel", 600, 603, 6, thread=11),
    )


def test_unfinished_work_and_other_records_are_left_out(cupti):
    collector = connect()
    collector.start()
    cupti.pending = [
        fake_cupti.kernel("k", 0, 0, correlation=1),
        fake_cupti.runtime(211, 100, 0, correlation=1),
        fake_cupti.SimpleNamespace(kind=int(fake_cupti.ActivityKind.OVERHEAD)),
    ]
    records = collector.stop()
    assert (records.activities, records.calls) == ((), ())


def test_records_from_before_the_timed_runs_are_kept_and_the_next_recording_begins_empty(cupti):
    collector = connect()
    collector.start()
    cupti.pending = [fake_cupti.kernel("a", 1, 2, correlation=1)]
    collector.prepare(0)
    cupti.pending = [fake_cupti.kernel("b", 3, 4, correlation=2)]
    assert [each.name for each in collector.stop().activities] == ["a", "b"]
    collector.start()
    assert collector.stop().activities == ()


@pytest.mark.parametrize(
    ("kernels", "kind"),
    [
        ([(1_000, 101_001)], "KERNEL"),
        ([(1_000, 101_000)], "CONCURRENT_KERNEL"),
        # Just below and above half of the time in long kernels; kernels before the warm-up do not count.
        (
            [(1_000, 1_000), (10_000, 210_000), *[(300_000 + i, 300_100 + i) for i in range(2000)]],
            "CONCURRENT_KERNEL",
        ),
        ([(10_000, 210_000), *[(300_000 + i, 300_100 + i) for i in range(1999)]], "KERNEL"),
        ([(0, 900_000), (1_000_000, 1_002_000)], "CONCURRENT_KERNEL"),
        ([], "CONCURRENT_KERNEL"),
    ],
)
def test_long_kernels_are_recorded_one_after_the_other(cupti, kernels, kind):
    collector = connect()
    collector.start()
    cupti.pending = [fake_cupti.kernel("k", begin, end, correlation=1) for begin, end in kernels]
    # Long copies do not count.
    cupti.pending.append(
        fake_cupti.memcpy(fake_cupti.ActivityMemcpyKind.HTOD, 2_000, 9_002_000, correlation=2)
    )
    assert collector.prepare(1_000) == (kind == "KERNEL")
    names = {fake_cupti.ActivityKind(each).name for each in cupti.enabled}
    assert names == {kind, "MEMCPY", "MEMSET", "RUNTIME", "DRIVER"}
    cupti.pending = [fake_cupti.kernel("timed", 2, 5, correlation=2, kind=fake_cupti.ActivityKind[kind])]
    records = collector.stop()
    assert [each.name for each in records.activities].count("timed") == 1
    assert cupti.enabled == []
    # The next recording begins with concurrent kernels again.
    collector.start()
    assert fake_cupti.ActivityKind.CONCURRENT_KERNEL in cupti.enabled
    collector.stop()


@pytest.mark.parametrize("long_kernels", [False, True])
def test_kernels_are_recorded_as_asked(cupti, long_kernels):
    collector = connect()
    collector.start()
    cupti.pending = [fake_cupti.kernel("k", 0, 5 if long_kernels else 900_000, correlation=1)]
    assert collector.prepare(0, long_kernels) is long_kernels
    assert (fake_cupti.ActivityKind.KERNEL in cupti.enabled) is long_kernels
    assert (fake_cupti.ActivityKind.CONCURRENT_KERNEL in cupti.enabled) is not long_kernels
    collector.stop()


def test_a_refusal_at_the_start_leaves_nothing_enabled(cupti, monkeypatch):
    enable = cupti.activity_enable

    def refuse_driver_calls(kind):
        cupti.refuse = {"activity_enable": fake_cupti.Result.ERROR_UNKNOWN} if kind.name == "DRIVER" else {}
        enable(kind)

    monkeypatch.setattr(cupti, "activity_enable", refuse_driver_calls)
    collector = connect()
    with pytest.raises(ConvswapError, match="refuses to record: ERROR_UNKNOWN"):
        collector.start()
    assert cupti.enabled == []
    monkeypatch.setattr(cupti, "activity_enable", enable)
    cupti.refuse = {}
    collector.start()
    collector.stop()
    assert cupti.enabled == []


def test_a_refusal_of_the_other_kernel_records_leaves_nothing_enabled(cupti):
    collector = connect()
    collector.start()
    cupti.refuse = {"activity_enable": fake_cupti.Result.ERROR_UNKNOWN}
    with pytest.raises(ConvswapError, match="refuses to record: ERROR_UNKNOWN"):
        collector.prepare(0, True)
    collector.stop()
    assert cupti.enabled == []


def test_nothing_stays_enabled_and_a_process_subscribes_once(cupti):
    for _ in range(2):
        collector = connect()
        collector.start()
        names = {fake_cupti.ActivityKind(kind).name for kind in cupti.enabled}
        assert names == {"CONCURRENT_KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "DRIVER"}
        assert collector.now() == 123_456
        collector.stop()
        assert cupti.enabled == []
    assert cupti.subscribers == ["convswap profile"]


def refusal(cupti, function: str, result: fake_cupti.Result) -> str:
    cupti.refuse = {function: int(result)}
    with refused() as error:
        connect().start()
    return str(error.value)


def test_another_profiler_is_named(cupti):
    cupti.holder = "CUPTI for Nsight Systems"
    line = refusal(cupti, "subscribe_v2", fake_cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    assert line == (
        "another profiler (CUPTI for Nsight Systems) holds CUPTI in this process, which takes one at a time; "
        "run the command without it"
    )


def test_another_profiler_without_a_name_is_reported_too(cupti):
    line = refusal(cupti, "activity_enable", fake_cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    assert line.startswith("another profiler holds CUPTI")


def test_a_driver_that_forbids_profiling_says_how_to_allow_it(cupti):
    line = refusal(cupti, "activity_enable", fake_cupti.Result.ERROR_INSUFFICIENT_PRIVILEGES)
    assert "NVreg_RestrictProfilingToAdminUsers=0" in line and "ERROR_INSUFFICIENT_PRIVILEGES" in line


def test_a_version_that_does_not_fit_the_driver_says_what_to_install(cupti):
    line = refusal(cupti, "subscribe_v2", fake_cupti.Result.ERROR_NOT_INITIALIZED)
    assert "does not fit the driver" in line and 'pip install "cupti-python~=13.0.1"' in line


def test_any_other_refusal_is_named(cupti):
    line = refusal(cupti, "activity_register_callbacks", fake_cupti.Result.ERROR_UNKNOWN)
    assert line == "CUPTI refuses to record: ERROR_UNKNOWN; see `convswap doctor`"
    assert "error 12345" in refusal(cupti, "subscribe_v2", 12345)


def test_a_refusal_is_not_remembered(cupti):
    refusal(cupti, "subscribe_v2", fake_cupti.Result.ERROR_UNKNOWN)
    cupti.refuse = {}
    connect()


def test_a_missing_package_says_what_to_install(monkeypatch):
    module.connect.cache_clear()
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(ConvswapError, match="needs CUPTI, which is not installed") as error:
        connect()
    assert 'pip install "cupti-python~=13.0.1" "nvidia-cuda-cupti~=13.0.0"' in str(error.value)


def test_a_missing_library_says_which_one(cupti, monkeypatch):
    """The bindings load CUPTI and the driver at their first call, which may raise a RuntimeError."""

    def fail(*_arguments):
        raise RuntimeError("CUDA driver is not found (libcuda.so.1: cannot open shared object file)")

    monkeypatch.setattr(cupti, "subscribe_v2", fail)
    with pytest.raises(ConvswapError, match=r"not installed \(CUDA driver is not found"):
        connect()


def test_the_package_has_all_that_the_collector_uses():
    """The fake has the names of the real package."""
    real = pytest.importorskip("cupti.cupti", reason="cupti-python is not installed")
    for name in ("SUBSCRIBER_PARAMS_SIZE", "SubscriberParams", "subscribe_v2", "activity_register_callbacks"):
        assert hasattr(real, name), name
    for name in ("activity_enable", "activity_disable", "activity_flush_all", "get_callback_name"):
        assert callable(getattr(real, name)), name
    for group in ("ActivityKind", "CallbackDomain", "ActivityMemcpyKind", "Result"):
        fake = getattr(fake_cupti, group)
        assert {each.name: int(each) for each in fake}.items() <= {
            each.name: int(each) for each in getattr(real, group)
        }.items()
    assert real.cuptiError(39).status == 39
    fields = {
        "ActivityAPI": ("kind", "cbid", "start", "end", "correlation_id", "thread_id"),
        "ActivityMemcpy6": ("copy_kind", "bytes", "start", "end", "correlation_id", "stream_id"),
        "ActivityMemset4": ("bytes", "start", "end", "correlation_id", "stream_id"),
    }
    for record, names in fields.items():
        for name in names:
            assert hasattr(getattr(real, record), name), f"{record}.{name}"
