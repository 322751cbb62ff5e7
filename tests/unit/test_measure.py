"""Timing is fair: sides take turns, first runs stay apart, and short runs are bursts on all sides alike."""

from __future__ import annotations

import pytest
from convswap.timing import measure as method
from convswap.timing.measure import measure


class Stage:
    """A clock that stands still but for the runs of the sides, and what they did in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.played: list[str] = []

    def clock(self) -> float:
        return self.now


class Side:
    """A side whose runs take the given seconds, the last of them for ever after."""

    def __init__(self, name: str, stage: Stage, *seconds: float) -> None:
        self.name, self.stage, self.seconds = name, stage, list(seconds)

    def once(self) -> None:
        self.stage.played.append(self.name)
        self.stage.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]

    def burst(self, runs: int) -> None:
        self.stage.played.append(f"{self.name}*{runs}")
        self.stage.now += runs * self.seconds[-1]


def test_sides_take_turns_from_the_first_run_to_the_last():
    stage = Stage()
    measure([Side("a", stage, 0.01), Side("b", stage, 0.02)], clock=stage.clock)
    rounds = 1 + method.WARM_UPS + 20
    assert stage.played == ["a", "b"] * rounds


def test_first_run_and_warm_ups_count_in_neither_median_nor_percentile():
    stage = Stage()
    slow_start = Side("a", stage, 3.0, 0.5, 0.5, 0.5, 0.010)
    steady = Side("b", stage, 0.020)
    first, second = measure([slow_start, steady], clock=stage.clock)
    assert first.first == pytest.approx(3000)
    assert first.median == pytest.approx(10)
    assert first.p95 == pytest.approx(10)
    assert (second.first, second.median) == (pytest.approx(20), pytest.approx(20))
    assert first.runs == second.runs == 20


def test_percentile_is_above_the_median_when_some_runs_are_slow():
    stage = Stage()
    timed = [0.010] * 17 + [0.050] * 3
    (times,) = measure([Side("a", stage, *[0.010] * (1 + method.WARM_UPS), *timed)], clock=stage.clock)
    assert times.median == pytest.approx(10)
    assert times.p95 == pytest.approx(50)


def test_side_that_takes_many_seconds_gets_fewer_runs_and_says_how_many():
    stage = Stage()
    times = measure([Side("a", stage, 9.0), Side("b", stage, 0.001)], clock=stage.clock)
    assert [side.runs for side in times] == [4, 4]
    assert stage.played.count("a") == stage.played.count("b") == 1 + 1 + 4


def test_no_side_gets_fewer_than_three_runs():
    stage = Stage()
    (times,) = measure([Side("a", stage, 1000.0)], clock=stage.clock)
    assert times.runs == 3


def test_slow_first_run_alone_does_not_shorten_the_measurement():
    stage = Stage()
    (times,) = measure([Side("a", stage, 9.0, 0.001)], clock=stage.clock)
    assert times.runs == 20


def test_runs_below_100_microseconds_are_bursts_of_one_length_on_both_sides():
    stage = Stage()
    times = measure([Side("a", stage, 40e-6), Side("b", stage, 300e-6)], bursts=True, clock=stage.clock)
    assert [side.median for side in times] == [pytest.approx(0.04), pytest.approx(0.3)]
    assert times[0].burst == times[1].burst > 1
    length = times[0].burst
    assert stage.played[-40:] == [f"a*{length}", f"b*{length}"] * 20


def test_runs_above_100_microseconds_are_synchronised_one_by_one():
    stage = Stage()
    times = measure([Side("a", stage, 150e-6)], bursts=True, clock=stage.clock)
    assert times[0].burst == 1
    assert set(stage.played) == {"a"}


def test_short_runs_are_no_bursts_where_runs_are_synchronous_anyway():
    stage = Stage()
    times = measure([Side("a", stage, 5e-6)], clock=stage.clock)
    assert times[0].burst == 1
    assert times[0].median == pytest.approx(0.005)


@pytest.mark.parametrize("slow", [0.02, 0.1, 3.0])
def test_bursts_of_a_short_run_beside_a_slow_one_take_a_few_seconds_in_all(slow):
    stage = Stage()
    times = measure([Side("a", stage, 5e-6), Side("b", stage, slow)], bursts=True, clock=stage.clock)
    assert [side.median for side in times] == [pytest.approx(0.005), pytest.approx(slow * 1e3)]
    assert times[0].burst == times[1].burst
    spent = times[0].burst * (5e-6 + slow)
    assert spent * 20 <= 3.0 or times[0].burst == 1
