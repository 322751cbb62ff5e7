"""The planner's rule beside the measurements that the repository keeps: what it would choose for an H200."""

from __future__ import annotations

import json

from build_tools import REPOSITORY
from convswap import _native
from convswap.timing.suites import SUITES
from each_case import each

# As a fraction of the time of the best algorithm that was measured.
MOST_ABOVE_THE_BEST = 0.05
# The times of one kernel of 3 us differ by 0.17 us from measurement to measurement, those of two by more.
NOISE_MS = 0.00025
LAYERS = {layer.name: layer for layer in SUITES["course"]}


def rows() -> list[dict]:
    """Return the kept rows of `convswap bench course --against algorithms`."""
    names = ("", "-ieee", "-float16")
    return [
        row
        for name in names
        for row in json.loads((REPOSITORY / f"benchmarks/h200/bench-algorithms{name}.json").read_text())
    ]


def problem_of(row: dict) -> _native.Problem:
    layer = LAYERS[row["layer"]]
    is_float32 = row["precision"] in ("tf32", "ieee")
    return _native.Problem(
        layer.input_shape(row["batch"]),
        layer.weight_shape,
        type="float32" if is_float32 else row["precision"],
        precision=row["precision"] if is_float32 else "tf32",
    )


@each("row", rows())
def test_the_rule_is_within_five_percent_of_the_best_that_was_measured(row):
    times = {name: each["median_ms"] for name, each in row["algorithms"].items()}
    problem = problem_of(row)
    chosen = _native.choose(problem, "cuda", compute_capability=90)
    assert times[chosen] <= (1 + MOST_ABOVE_THE_BEST) * min(times.values()) + NOISE_MS
