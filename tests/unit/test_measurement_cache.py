"""The planner's choices for an H200 against the measurements in benchmarks/h200.json."""

from __future__ import annotations

import importlib
from math import inf
from statistics import geometric_mean

import pytest
from build_tools import BENCHMARKS
from convswap import _native
from results import Results

# Sections of `python benchmarks/fit.py`: number of problems, least share of choices within 5 % of the fastest
# algorithm, and the largest loss of the geometric mean. All choices must be within 25 %. Algorithms that take
# over three times as long as the fastest have no times.
SECTIONS = {
    "planner-suites": (434, 0.97, 0.004),
    "planner-held-out": (200, 0.96, 0.006),
    "planner-default": (100, 0.93, 0.008),
}
NEAR, FAR = 1.05, 1.25


@pytest.mark.parametrize("section", SECTIONS)
def test_the_planner_is_near_the_best_that_was_measured(section, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    fit = importlib.import_module("fit")
    ratios = []
    for row in Results()[section]:
        problem = fit.problem_numbered(row["problem"]).problem()
        chosen = _native.choose(problem, "cuda", compute_capability=90)
        ratios.append(row["ms"].get(chosen, inf) / min(row["ms"].values()))
    count, near, loss = SECTIONS[section]
    assert len(ratios) == count
    assert sum(ratio <= NEAR for ratio in ratios) / count >= near
    assert sum(ratio > FAR for ratio in ratios) <= 0.01 * count
    assert geometric_mean(ratios) - 1 < loss
