"""Timing is fair: sides take turns, first runs are separate, and one rule decides when sampling stops."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from convswap.runtime.device import Device
from convswap.timing.sampler import (
    BACK_TO_BACK,
    FIND_FASTEST,
    MIN_SAMPLES,
    SINGLE_RUNS,
    SINGLE_RUNS_ON_CARD,
    WARM_UPS,
    Times,
    measure,
    sample_of,
    single_runs,
)


class FakeClock:
    """A clock that advances only during runs of the sides, and a record of the samples in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sampled: list[tuple[str, int]] = []

    def side(self, name: str, *milliseconds: float):
        """Return a sample function whose calls take these times, and the last time from then on."""
        remaining = list(milliseconds)

        def sample(runs: int) -> float:
            self.sampled.append((name, runs))
            duration = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            self.now += runs * duration / 1e3
            return duration

        return sample

    def measure(self, rule, **milliseconds) -> dict[str, Times]:
        sides = {
            name: self.side(name, *(times if isinstance(times, list) else [times]))
            for name, times in milliseconds.items()
        }
        return measure(sides, rule, clock=lambda: self.now)


def test_sides_take_turns_from_the_first_run_to_the_last():
    clock = FakeClock()
    clock.measure(SINGLE_RUNS, a=10.0, b=20.0)
    assert clock.sampled == [("a", 1), ("b", 1)] * (1 + WARM_UPS + 20)


def test_first_run_and_warm_ups_count_in_neither_median_nor_percentile():
    times = FakeClock().measure(SINGLE_RUNS, a=[3000.0, *[500.0] * WARM_UPS, 10.0], b=20.0)
    assert times == {"a": Times(10.0, 10.0, 3000.0, 20), "b": Times(20.0, 20.0, 20.0, 20)}


def test_percentile_is_above_the_median_when_some_runs_are_slow():
    times = FakeClock().measure(SINGLE_RUNS, a=[*[10.0] * (1 + WARM_UPS + 17), 50.0])["a"]
    assert (times.median, times.p95) == (10.0, 50.0)


def test_side_that_takes_many_seconds_gets_fewer_samples_and_says_how_many():
    clock = FakeClock()
    times = clock.measure(SINGLE_RUNS, a=9000.0, b=1.0)
    assert [side.runs for side in times.values()] == [5, 5]
    # One warm-up run takes longer than all warm-ups may take.
    assert sum(name == "a" for name, _ in clock.sampled) == 1 + 1 + 5


def test_no_side_gets_fewer_than_three_samples():
    assert FakeClock().measure(SINGLE_RUNS, a=1e6)["a"].runs == MIN_SAMPLES == 3


def test_slow_first_run_alone_does_not_shorten_the_measurement():
    assert FakeClock().measure(SINGLE_RUNS, a=[90_000.0, 1.0])["a"].runs == 20


def test_runs_below_100_microseconds_are_bursts_of_2_milliseconds_on_both_sides():
    clock = FakeClock()
    times = clock.measure(SINGLE_RUNS_ON_CARD, a=0.04, b=0.3)
    assert [side.median for side in times.values()] == [0.04, 0.3]
    assert [side.burst for side in times.values()] == [50, 7]
    assert clock.sampled[-40:] == [("a", 50), ("b", 7)] * 20


def test_runs_above_100_microseconds_are_single():
    clock = FakeClock()
    assert clock.measure(SINGLE_RUNS_ON_CARD, a=0.15)["a"].burst == 1
    assert set(clock.sampled) == {("a", 1)}


def test_short_runs_are_single_where_the_host_computes_them():
    assert single_runs(Device("cuda", "asked for")) is SINGLE_RUNS_ON_CARD
    assert FakeClock().measure(single_runs(Device("cpu", "asked for")), a=0.005)["a"].burst == 1


@pytest.mark.parametrize("slow", [20.0, 100.0, 3000.0])
def test_bursts_of_a_short_run_do_not_multiply_the_time_of_a_slow_side(slow):
    clock = FakeClock()
    times = clock.measure(SINGLE_RUNS_ON_CARD, a=0.005, b=slow)
    assert (times["a"].burst, times["b"].burst) == (400, 1)


def test_back_to_back_runs_take_turns_five_times_with_200_runs_each():
    clock = FakeClock()
    times = clock.measure(BACK_TO_BACK, a=0.01, b=0.02)
    assert [side.median for side in times.values()] == [0.01, 0.02]
    assert clock.sampled == [("a", 1), ("b", 1)] * (1 + WARM_UPS) + [("a", 200), ("b", 200)] * 5


def test_only_sides_of_long_runs_make_fewer():
    clock = FakeClock()
    clock.measure(BACK_TO_BACK, a=0.01, b=20.0, c=900.0)
    assert clock.sampled[-3:] == [("a", 200), ("b", 10), ("c", 1)]


def test_planning_counts_in_neither_the_length_nor_the_median():
    clock = FakeClock()
    times = clock.measure(BACK_TO_BACK, a=[5000.0, 0.1, 0.1, 0.1, 0.3, 0.9, 0.2, 0.4, 0.1])
    assert times["a"].median == 0.3
    assert clock.sampled[-1] == ("a", 200)


def test_clearly_slower_side_is_dropped_after_a_few_samples():
    times = FakeClock().measure(FIND_FASTEST, fast=1.0, near=4.9, slow=5.1)
    assert {name: (each.runs, each.stopped_early) for name, each in times.items()} == {
        "fast": (20, False),
        "near": (20, False),
        "slow": (3, True),
    }


def test_hopeless_side_runs_once():
    clock = FakeClock()
    times = clock.measure(FIND_FASTEST, fast=10.0, hopeless=1000.0)
    assert times["hopeless"] == Times(1000.0, 1000.0, 1000.0, 1, stopped_early=True)
    assert clock.sampled.count(("hopeless", 1)) == 1


def test_planning_alone_makes_no_side_hopeless():
    assert FakeClock().measure(FIND_FASTEST, fast=1.0, planned=[99.0, 1.0])["planned"].runs == 20


def test_time_is_bounded_except_for_a_few_samples():
    assert FakeClock().measure(replace(FIND_FASTEST, seconds=10), a=1000.0)["a"].runs == 11
    assert FakeClock().measure(replace(FIND_FASTEST, seconds=10), a=60_000.0)["a"].runs == 3


class Started:
    """A side whose runs take a millisecond each, half of it in `start`."""

    def __init__(self) -> None:
        self.runs = 0

    def start(self, runs: int) -> None:
        self.runs += runs
        time.sleep(runs * 0.5e-3)

    def wait(self) -> None:
        time.sleep(self.runs * 0.5e-3)


def test_sample_without_a_card_is_the_host_s_time_of_one_run():
    side = Started()
    # Far below the 20 ms of all runs, with room for a busy machine.
    assert 1.0 <= sample_of(side)(20) < 20.0
    assert side.runs == 20


class Timer:
    """Stand-in for a card's clock that measures 7.5 ms for any work."""

    def milliseconds(self, start) -> float:
        start()
        return 7.5


def test_sample_on_a_card_is_its_time_divided_by_the_runs():
    side = Started()
    assert sample_of(side, Timer())(3) == 2.5
    assert side.runs == 3
