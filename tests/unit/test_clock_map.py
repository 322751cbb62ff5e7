"""Times of one clock are mapped to another with any offset and drift."""

from __future__ import annotations

import time

import pytest
from convswap.profiling.recording import ClockMap, SystemClocks

EPOCH = 1_795_299_862_021_541_694


class ManualClocks:
    """Two clocks that are set by hand, the second with an offset and a rate."""

    def __init__(self) -> None:
        self.now = EPOCH
        self.rate = 1.0
        self.offset = -EPOCH + 5

    def system(self) -> int:
        return self.now

    def other(self) -> int:
        return EPOCH + self.offset + round((self.now - EPOCH) * self.rate)


def test_an_offset_is_exact_to_the_nanosecond():
    manual = ManualClocks()
    clocks = ClockMap(manual.system, manual.other)
    clocks.sample()
    assert clocks.to_collector(EPOCH) == 5
    assert clocks.to_collector(EPOCH + 123_456_789) == 5 + 123_456_789
    assert clocks.to_collector(EPOCH - 7) == -2


def test_a_drift_between_samples_is_followed():
    manual = ManualClocks()
    manual.rate = 1 + 5e-4
    clocks = ClockMap(manual.system, manual.other)
    clocks.sample()
    manual.now += 10**9
    clocks.sample()
    middle = EPOCH + 5 * 10**8
    assert clocks.to_collector(middle) == 5 + 5 * 10**8 + 250_000
    # Without the second sample the error would be 250 us, more than most nodes take.


def test_outside_the_samples_the_nearest_offset_holds():
    manual = ManualClocks()
    clocks = ClockMap(manual.system, manual.other)
    clocks.sample()
    manual.now += 1000
    manual.offset += 40
    clocks.sample()
    assert clocks.to_collector(EPOCH + 2000) == 5 + 40 + 2000
    assert clocks.to_collector(EPOCH - 2000) == 5 - 2000


def test_of_several_readings_the_quickest_counts():
    """A thread that is interrupted between reading the two clocks pairs distant moments."""
    readings = iter([0, 1_000_000, *[2_000_000, 2_000_010] * 4])
    other_readings = iter([900_000, *[2_000_005] * 4])
    clocks = ClockMap(lambda: next(readings), lambda: next(other_readings))
    clocks.sample()
    assert clocks.to_collector(2_000_005) == 2_000_005


def test_nothing_sampled_is_an_error():
    with pytest.raises(ValueError, match="no moment was sampled"):
        ClockMap(time.time_ns, time.time_ns).to_collector(0)


@pytest.mark.parametrize("clock", SystemClocks.CLOCKS)
def test_the_clock_that_showed_a_time_is_found(clock):
    clocks = SystemClocks()
    assert clocks.which(clock()) is clock


def test_a_time_of_no_clock_is_of_none():
    clocks = SystemClocks()
    assert clocks.which(12) is None
    assert clocks.which(time.time_ns() + 10**12) is None
