"""`convswap bench --against algorithms`: the selected algorithm against the fastest of the catalog."""

from __future__ import annotations

import json

import pytest
from comparisons import ROW_KEYS
from convswap.bench.report import print_suite
from convswap.bench.suite_runs import run_suite
from convswap.cli.main import main
from convswap.timing.sampler import Times
from printed import printed


@pytest.fixture
def set_medians(monkeypatch):
    """Replace the measurement by medians from a dictionary."""

    def give(times: dict[str, float]) -> None:
        monkeypatch.setattr(
            "convswap.bench.suite_runs.measure",
            lambda samples, rule: {
                name: Times(times[name], times[name], times[name], 20, stopped_early=times[name] > 100)
                for name in samples
            },
        )

    return give


def rows_of(**options):
    defaults = {"layers": "2017", "batches": [1], "device": "cpu", "against": "algorithms"}
    return list(run_suite("course", **{**defaults, **options}))


def test_every_algorithm_that_supports_the_problem_is_measured(device):
    rows = rows_of(batches=[1, 3], device=device)
    able = {"cpu": {"direct", "reference"}, "cuda": {"naive"}}[device]
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        assert row.keys() > ROW_KEYS
        assert row["algorithms"].keys() >= able and len(row["algorithms"]) >= 2
        times = {name: entry["median_ms"] for name, entry in row["algorithms"].items()}
        assert row["convswap_ms"] == times[row["algorithm"]] > 0
        assert row["distance_percent"] == pytest.approx(100 * (row["convswap_ms"] / min(times.values()) - 1))
        # 25 products in TF32, which keeps 10 bits; on the CPU in float32.
        assert 0 < row["relative_l2_error"] < (1e-3 if device == "cuda" else 1e-6)
    json.dumps(rows, allow_nan=False)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_algorithms_are_measured_in_16_bits(precision, device):
    (row,) = rows_of(precision=precision, device=device)
    assert row["precision"] == precision
    assert 1e-4 < row["relative_l2_error"] < 2e-3  # rounded once to 11 or 8 bits


def test_distance_is_that_of_the_choice_from_the_fastest(set_medians):
    set_medians({"direct": 3.0, "reference": 2.0})
    (row,) = rows_of()
    assert (row["algorithm"], row["convswap_ms"]) == ("direct", 3.0)
    assert (row["best_other"], row["best_other_ms"]) == ("reference", 2.0)
    assert row["distance_percent"] == pytest.approx(50)
    assert row["default_ms"] is None


def test_best_choice_is_at_no_distance(set_medians):
    set_medians({"direct": 2.0, "reference": 3.0})
    (row,) = rows_of()
    assert (row["distance_percent"], row["best_other"]) == (0, "reference")


def test_algorithm_that_was_asked_for_replaces_the_choice(set_medians):
    set_medians({"direct": 1.0, "reference": 5.0})
    (row,) = rows_of(algorithm="reference")
    assert (row["algorithm"], row["distance_percent"]) == ("reference", pytest.approx(400))


def test_table_ends_with_the_worst_distance(set_medians):
    set_medians({"direct": 3.0, "reference": 2.0})
    near = rows_of()
    set_medians({"direct": 9.0, "reference": 2.0})
    far = rows_of(layers="2020-conv2", batches=[8])
    text = printed(print_suite, [*near, *far], device="cpu")
    assert max(map(len, text.splitlines())) <= 120
    assert text.splitlines()[-1] == (
        "Worst distance from the best algorithm: 350.0 % (2020-conv2, batch 8: direct, reference is faster)."
    )


def test_what_was_stopped_early_has_a_star(set_medians):
    set_medians({"direct": 3.0, "reference": 200.0})
    text = printed(print_suite, rows_of(), device="cpu")
    assert "reference 200*" in text and "direct 3.00 " in text
    assert "* clearly slower" in text


def test_command_shows_it_and_writes_the_rows(tmp_path, capsys):
    file = tmp_path / "rows.json"
    arguments = ["--layers", "2017", "--batch", "1", "--device", "cpu", "--against", "algorithms"]
    assert main(["bench", *arguments, "--json", str(file)]) == 0
    assert "Worst distance from the best algorithm: " in capsys.readouterr().out.splitlines()[-1]
    assert len(json.loads(file.read_text())) == 1


def test_lack_of_memory_is_one_line_with_what_to_do(monkeypatch, capsys):
    def fail(samples, rule):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("convswap.bench.suite_runs.measure", fail)
    assert main(["bench", "--layers", "2017", "--device", "cpu", "--against", "algorithms"]) == 2
    (line,) = [text for text in capsys.readouterr().err.splitlines() if "measured" in text]
    assert "2017-conv1 cannot be measured at batch 100: out of memory" in line and "smaller batch" in line
