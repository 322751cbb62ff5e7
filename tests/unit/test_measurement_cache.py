"""The planner's choices for an H200 against the measurements in benchmarks/h200.json."""

from __future__ import annotations

from statistics import geometric_mean

import pytest
from convswap import _native
from convswap.timing.suites import SUITES, SuiteLayer
from results import Results

# Sections of `python benchmarks/rule.py SUITE`: number of rows, limit of rows that are more than MISSED above
# the best, and limits of the geometric mean and of a single row.
MISSED = 1.05
RULE_SECTIONS = {
    "course": (126, 2, 1.01, 1.06),
    "fused": (68, 1, 1.01, 1.12),
    "small-groups": (90, 4, 1.01, 1.24),
    "depthwise-grouped": (144, 0, 1.01, MISSED),
    "first-layers": (48, 5, 1.02, 1.14),
    "many-channels": (90, 1, 1.01, 1.06),
    "many-channels-ieee": (29, 0, 1.01, MISSED),
    "one-image": (688, 21, 1.01, 1.43),
}


def problem_of(row: dict, layer: SuiteLayer) -> _native.Problem:
    is_float32 = row["precision"] in ("tf32", "ieee")
    return _native.Problem(
        layer.input_shape(row["batch"]),
        layer.weight_shape,
        type="float32" if is_float32 else row["precision"],
        precision=row["precision"] if is_float32 else "tf32",
        **layer.attributes,
        **layer.epilogue,
    )


@pytest.mark.parametrize("section", RULE_SECTIONS)
def test_the_rule_is_near_the_best_that_was_measured(section):
    layers = {layer.name: layer for layer in SUITES[section.removesuffix("-ieee")]}
    above = []
    for row in Results()[f"rule-{section}"]["rows"]:
        problem = problem_of(row, layers[row["layer"]])
        chosen = _native.choose(problem, "cuda", compute_capability=90)
        assert chosen in row["ms"], (row["layer"], row["batch"], row["precision"])
        above.append(row["ms"][chosen] / min(row["ms"].values()))
    rows, max_missed, mean, worst = RULE_SECTIONS[section]
    assert len(above) == rows
    assert sum(each > MISSED for each in above) <= max_missed
    assert geometric_mean(above) < mean
    assert max(above) < worst
