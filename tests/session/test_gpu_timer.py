"""The GPU timer measures the card's work, whatever time the host takes to launch it."""

from __future__ import annotations

import ctypes
import threading
import time

import numpy as np
import pytest
from convswap.errors import ConvswapError
from convswap.runtime.device import choose_device
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, on_device
from convswap.timing import gpu_timer
from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.sampler import sample_of
from convswap.timing.single_node import single_node, single_node_data
from convswap.timing.suites import SUITES
from onnx import helper
from op_sessions import graph_model
from repeats import repeats


def test_run_in_a_burst_costs_the_host_no_more_than_one_alone():
    """ONNX Runtime's Python code for run options must not be timed as part of the layer."""
    device = choose_device("cpu")
    session = make_session(graph_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1]}), DEFAULT, device)
    run = BoundRun(session, on_device({"x": np.ones(1, np.float32)}, device), device)

    def processor_time(work) -> float:
        start = time.thread_time()
        work()
        return time.thread_time() - start

    single = min(processor_time(lambda: [run.once() for _ in range(500)]) for _ in range(5))
    burst = min(processor_time(lambda: (run.start(500), run.wait())) for _ in range(5))
    # A single run also waits and makes one more Python call; the factor of two allows for a busy machine.
    assert burst < 2 * single


class Driver:
    """A fake CUDA driver that records its calls and for how long the stream was blocked."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.called = failing, []
        self.holds: list[int] = []
        self.host_functions: list[threading.Thread] = []

    def __getattr__(self, name: str):
        def call(*arguments) -> int:
            self.called.append(name)
            if name == "cuStreamCreate":
                arguments[0]._obj.value = 4711
            if name == "cuEventElapsedTime":
                arguments[0]._obj.value = 7.5
            if name == "cuLaunchHostFunc":
                self.holds.append(arguments[2].value)
                self.host_functions.append(threading.Thread(target=arguments[1], args=[arguments[2]]))
                self.host_functions[-1].start()
            if name == "cuEventSynchronize":
                self.host_functions[-1].join()
            return 999 if name == self.failing else 0

        return call


def timer_of(driver: Driver, monkeypatch) -> GpuTimer:
    real = ctypes.CDLL
    monkeypatch.setattr(
        gpu_timer.ctypes, "CDLL", lambda name: driver if name == "libcuda.so.1" else real(name)
    )
    return GpuTimer()


class HostClock:
    """A stand-in for the timer's `time`, so that a busy host does not change the measurement."""

    def __init__(self, monkeypatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(gpu_timer, "time", self)

    def perf_counter(self) -> float:
        return self.seconds

    def pass_by(self, seconds: float) -> None:
        self.seconds += seconds


def test_stream_is_held_while_all_work_is_queued_between_two_events(monkeypatch):
    HostClock(monkeypatch)
    driver = Driver()
    timer = timer_of(driver, monkeypatch)
    assert timer.provider_options == {"user_compute_stream": "4711"}
    driver.called.clear()
    start = time.perf_counter()
    assert timer.milliseconds(lambda: driver.called.append("work")) == 7.5
    assert time.perf_counter() - start >= gpu_timer.HOLD_MICROSECONDS * 1e-6
    assert driver.called == [
        "cuLaunchHostFunc",
        *("cuEventRecord", "work", "cuEventRecord"),
        *("cuEventSynchronize", "cuEventElapsedTime"),
    ]


def test_work_is_started_again_after_a_longer_hold_where_the_host_took_longer_to_start_it(monkeypatch):
    driver, clock = Driver(), HostClock(monkeypatch)
    timer = timer_of(driver, monkeypatch)
    hold = gpu_timer.HOLD_MICROSECONDS
    # A slow first run, as if it planned.
    slow = [1.5 * hold * 1e-6]
    timer.milliseconds(lambda: clock.pass_by(slow.pop() if slow else 0))
    assert driver.holds == [hold, 4 * hold]


def test_longer_holds_end_where_the_host_is_never_done_in_time(monkeypatch):
    driver, clock = Driver(), HostClock(monkeypatch)
    timer = timer_of(driver, monkeypatch)
    monkeypatch.setattr(gpu_timer, "HOLD_MICROSECONDS", 1_000)
    monkeypatch.setattr(gpu_timer, "LONGEST_HOLD_MICROSECONDS", 16_000)
    assert timer.milliseconds(lambda: clock.pass_by(20e-3)) == 7.5
    assert driver.holds == [1_000, 4_000, 16_000]


def test_failure_of_the_driver_is_one_line_that_names_the_call(monkeypatch):
    with pytest.raises(ConvswapError, match="cuStreamCreate of the driver gives error 999; see `conv"):
        timer_of(Driver("cuStreamCreate"), monkeypatch)


@pytest.mark.alone
@pytest.mark.gpu
@pytest.mark.parametrize("side", [DEFAULT, CONVSWAP], ids=["default", "convswap"])
def test_card_s_time_is_that_of_its_work_alone(side, cuda):
    """Runs of a few microseconds, whose launch takes the host longer."""
    device = choose_device("cuda")
    timer = GpuTimer()
    layer = SUITES["course"][0]
    conv = single_node(layer, "tf32", "auto")
    on_timer = Side(side.name, side.uses_convswap, timer.provider_options)
    session = make_session(
        conv.model({"x": 4}, swapped=side.uses_convswap), on_timer, device, only_device=True
    )
    run = BoundRun(session, on_device({"x": single_node_data(layer, 1, "tf32")}, device), device)
    run.once()
    start = time.perf_counter()
    runs = repeats(200)
    run.start(runs)
    run.wait()
    host = (time.perf_counter() - start) * 1e3 / runs
    times = [sample_of(run, timer)(runs) for _ in range(repeats(5))]
    # Launching a kernel takes the card at least a microsecond; the factor allows for other work of the host.
    assert 1e-3 < np.median(times) <= 1.1 * host
    # A quarter of the runs take a quarter of the time, because the events enclose nothing else.
    assert sample_of(run, timer)(repeats(50)) == pytest.approx(np.median(times), rel=0.2)
