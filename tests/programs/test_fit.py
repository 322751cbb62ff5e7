"""benchmarks/fit.py: drawn problems, their times collected in pieces, and the report of them."""

from __future__ import annotations

import importlib
import json
import re

import pytest
from build_tools import BENCHMARKS, run_script
from convswap import _native
from convswap.errors import ConvswapError
from convswap.timing.timed_conv import PRECISIONS, TimedConv
from planned_card import PlannedCard

CARD = {"name": "NVIDIA H200", "compute_capability": 90, "memory_bandwidth": 4.9e12, "clock": 1.98e9}


@pytest.fixture
def fit(monkeypatch):
    """Return the script, on whose card every tiling takes as long as its estimate, many_channels half."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("fit")
    monkeypatch.setattr(module, "_native", PlannedCard(CARD))
    monkeypatch.setattr(module, "card_and_driver", lambda: ("NVIDIA H200", "1.0"))
    monkeypatch.setattr(TimedConv, "tensors", lambda draw: {})

    def sample(draw, tensors, algorithm, tiling):
        estimate = _native.alternatives(draw.problem(), algorithm, tiling + 1, compute_capability=90)
        ms = estimate[tiling]["milliseconds"] * (0.5 if algorithm == "many_channels" else 1)
        return lambda runs: ms

    monkeypatch.setattr(TimedConv, "sample", sample)
    return module


def rows_of(file):
    head, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert head["commit"] == "abcdef01"
    return rows


def test_problems_are_drawn_from_their_numbers_and_cover_what_they_should(fit):
    draws = [fit.drawn_problem(number) for number in range(120)]
    assert draws == [fit.drawn_problem(number) for number in range(120)]
    texts = [draw.problem().text for draw in draws]
    assert len(set(texts)) == len(texts)
    assert {len(draw.x_shape) - 2 for draw in draws} == {1, 2, 3}
    assert {draw.precision for draw in draws} == set(PRECISIONS)
    for word in ("SiLU", "MaxPool", "residual", "bias=yes", "strides=2x2", "group="):
        assert any(word in text for text in texts), word
    assert sum(draw.is_held_out for draw in draws) == 40


def test_channels_last_problems_reach_the_families_that_no_other_problem_needs(fit, tmp_path):
    numbers = range(fit.NHWC_FROM, fit.NHWC_FROM + 12)
    drawn = range(fit.NHWC_FROM, fit.PLAIN_FROM, 5)
    texts = [fit.problem_numbered(number).problem().text for number in drawn]
    assert all("layout" in text for text in texts)
    for word in ("MaxPool", "residual", "of=("):
        assert any(word in text for text in texts), word
    file = tmp_path / "data.jsonl"
    fit.collect(file, numbers, 1e9, "abcdef01", 1)
    rows = rows_of(file)
    assert {row["problem"] for row in rows} == set(numbers)
    assert "channels_last" in {row["algorithm"] for row in rows}


def test_collecting_goes_on_where_it_stopped(fit, tmp_path):
    file = tmp_path / "data.jsonl"
    fit.collect(file, range(5), 1e9, "abcdef01")
    first = file.read_text()
    fit.collect(file, range(8), 1e9, "abcdef01")
    assert file.read_text().startswith(first)
    rows = rows_of(file)
    assert {row["problem"] for row in rows} == set(range(8))
    for row in rows:
        assert 1 <= len(row["tilings"]) <= fit.TILINGS
        assert len({tiling["tiling"] for tiling in row["tilings"]}) == len(row["tilings"])
    assert all(sum(row["is_chosen"] for row in rows if row["problem"] == number) == 1 for number in range(8))


def test_collecting_ends_when_its_time_is_over(fit, tmp_path, capsys):
    file = tmp_path / "data.jsonl"
    fit.collect(file, range(5), 0, "abcdef01")
    assert "problems left: 5" in capsys.readouterr().out
    assert rows_of(file) == []


def test_report_names_the_problems_on_which_another_algorithm_is_faster(fit, tmp_path, capsys):
    file = tmp_path / "data.jsonl"
    fit.collect(file, range(30), 1e9, "abcdef01")
    chosen = {row["problem"]: row["algorithm"] for row in rows_of(file) if row["is_chosen"]}
    able = {row["problem"] for row in rows_of(file) if row["algorithm"] == "many_channels"}
    capsys.readouterr()
    fit.report(file, held_out=False)
    lines = capsys.readouterr().out.splitlines()
    missed = {int(line.split()[0]) for line in lines if re.match(r" *[0-9]+ +[0-9.]+ float|bfloat", line)}
    assert missed and missed <= {number for number in able if chosen[number] != "many_channels"}
    (line,) = [line for line in lines if line.startswith("many_channels")]
    assert line.split()[3:5] == ["100%", "-50%"]  # twice as fast as estimated
    fit.report(file, held_out=True)
    assert "of 10, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collect", "data", "--problems", "5:2"], "'5:2': expected FIRST:END, such as 0:600"),
        (
            ["report", BENCHMARKS / "fit.py"],
            "fit.py, line 1: expected a line that `collect` wrote; remove it",
        ),
        (["report", "nowhere.jsonl"], "No such file or directory: 'nowhere.jsonl'"),
    ],
)
def test_wrong_input_gets_one_clear_line(arguments, message):
    answer = run_script("fit", *arguments)
    assert answer.returncode == 2 and message in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr


def test_too_large_a_tensor_is_drawn_again(fit, monkeypatch):
    monkeypatch.setattr(fit, "MAX_BYTES", 1e5)
    for number in range(20):
        draw = fit.drawn_problem(number)
        size = 4 if draw.tensor_type == "float32" else 2
        elements = 1
        for extent in draw.x_shape:
            elements *= extent
        assert elements * size <= 1e5


def test_a_problem_that_cannot_be_timed_is_left_out_with_a_line(fit, tmp_path, monkeypatch, capsys):
    def fail(draw):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(TimedConv, "tensors", fail)
    fit.collect(tmp_path / "data.jsonl", range(1), 1e9, "abcdef01")
    assert "problem 0 is left out: out of memory" in capsys.readouterr().out
    with pytest.raises(ConvswapError, match="has no times"):
        fit.report(tmp_path / "data.jsonl", held_out=False)


def test_a_conv_alone_is_timed_beside_the_default_provider(fit, tmp_path, monkeypatch, capsys):
    numbers = range(fit.PLAIN_FROM, fit.PLAIN_FROM + 12)
    draws = [fit.problem_numbered(number) for number in numbers]
    words = ("SiLU", "Relu", "Swish", "Pool", "residual", "depthwise")
    assert not [draw for draw in draws if any(word in draw.problem().text for word in words)]
    assert all(draw.is_held_out for draw in draws)
    fast = {numbers[3], numbers[7]}

    def default_sample(draw):
        planned = _native.alternatives(
            draw.problem(),
            _native.choose(draw.problem(), "cuda", compute_capability=90),
            1,
            compute_capability=90,
        )
        ms = planned[0]["milliseconds"] * (0.1 if draw.number in fast else 100)
        return lambda runs: ms

    monkeypatch.setattr(fit, "default_sample", default_sample)
    file = tmp_path / "data.jsonl"
    fit.collect(file, numbers, 1e9, "abcdef01", 1)
    assert all(len(row["tilings"]) == 1 for row in rows_of(file))
    fit.report(file, held_out=True)
    printed = capsys.readouterr().out
    slower = {int(line.split()[0]) for line in printed.splitlines() if " default 0." in line}
    assert slower == fast and "default provider: 12 problems" in printed and "on 2" in printed


def test_a_fit_estimates_the_times_that_it_is_given(fit, tmp_path, monkeypatch):
    """The times are those of a card whose memory has 0.6 of the rate, in sliding_rows."""
    names = [f"{family}.{name}" for family, name, *_ in _native.coefficients()]
    _, costs = _native.fitted_costs(compute_capability=90)
    real = [
        value * (0.6 if name == "sliding_rows.memory" else 1)
        for name, value in zip(names, costs, strict=True)
    ]
    numbers = range(fit.SUITES_FROM, fit.SUITES_FROM + len(fit.suite_problems()))
    rows = []
    for draw in map(fit.problem_numbered, numbers):
        if _native.why_not(draw.problem(), "sliding_rows", "cuda", compute_capability=90):
            continue
        offers = _native.alternatives(draw.problem(), "sliding_rows", 6, compute_capability=90)
        tilings = [offer["tiling"] for offer in offers]
        times = _native.Estimates(
            draw.problem(), "sliding_rows", tilings, compute_capability=90
        ).milliseconds(real)
        own = [{"tiling": tiling, "ms": ms} for tiling, ms in zip(tilings, times, strict=True)]
        rows.append({"problem": draw.number, "algorithm": "sliding_rows", "is_chosen": True, "tilings": own})
    file = tmp_path / "data.jsonl"
    fit.append(file, [fit.header_of_this_card("abcdef01"), *rows])
    monkeypatch.setattr(fit, "TABLES", tmp_path)
    fit.fit(file, ["sliding_rows"])
    table = (tmp_path / "h200.cc").read_text()
    (own,) = re.findall(r"\.sliding_rows = \{(.*?)\}", table, re.DOTALL)
    values = dict(re.findall(r"\.(\w+) = ([0-9.e+-]+),", own))
    fitted = [
        float(values[name]) if family == "sliding_rows" else value
        for (family, name, *_), value in zip(_native.coefficients(), costs, strict=True)
    ]
    times = [fit.times_of(row) for row in rows]
    assert fit.root_mean_square(fit.residuals_of(times, costs)) > 0.15
    assert fit.root_mean_square(fit.residuals_of(times, fitted)) < 0.02
    assert '.card = "NVIDIA H200"' in table and '.commit = "abcdef01"' in table
    with pytest.raises(ConvswapError, match=r"nothing: expected one of activation, "):
        fit.fit(file, ["nothing"])
    with pytest.raises(ConvswapError, match=r"nothing: expected a coefficient, such as "):
        fit.fit(file, ["sliding_rows"], ["nothing"])
    fit.fit(file, ["sliding_rows"], ["memory"])
    (kept,) = re.findall(
        r"\.sliding_rows = \{.*?\.memory = ([0-9.e+]+),", (tmp_path / "h200.cc").read_text(), re.DOTALL
    )
    assert float(kept) == pytest.approx(costs[names.index("sliding_rows.memory")], rel=1e-3)
