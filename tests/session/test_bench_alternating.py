"""`convswap bench --alternate`: runs whose batch changes each time, against runs of fixed batches."""

from __future__ import annotations

import json

import pytest
from convswap.bench.alternating import AlternatingRuns, run_alternating
from convswap.cli.main import main
from convswap.errors import ConvswapError
from convswap.runtime.sessions import BoundRun
from convswap.timing.sampler import Times


class RecordedRuns:
    """A stand-in for a session's bound runs that records starts and waits."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events

    def start(self, runs: int) -> None:
        self.events += [self.name] * runs

    def wait(self) -> None:
        self.events.append(f"wait {self.name}")


def test_the_shape_changes_with_every_run():
    events: list[str] = []
    runs = AlternatingRuns([RecordedRuns(name, events) for name in "abc"])
    runs.start(2)
    runs.wait()
    assert events == ["a", "b", "c", "a", "b", "c", "wait a", "wait b", "wait c"]


def times(milliseconds: float) -> Times:
    return Times(milliseconds, milliseconds, milliseconds, 5)


def test_rows_hold_the_mean_time_of_a_run_in_turn_and_fixed(monkeypatch):
    """Samples: the default's fixed batches, the default's runs in turn, then ours in the same order."""
    monkeypatch.setattr(
        "convswap.bench.alternating.measure",
        lambda samples, rule: dict(enumerate(map(times, [3.0, 6.0, 18.0, 90.0, 3.0, 3.0, 12.0, 6.6]))),
    )
    (row,) = run_alternating(layers="2017", batches=[1, 2, 3], device="cpu")
    assert row == {
        "layer": "2017-conv1",
        "precision": "tf32",
        "batches": [1, 2, 3],
        "algorithm": "direct",
        "default_fixed_ms": 3.0,
        "default_ms": 30.0,
        "convswap_fixed_ms": 2.0,
        "convswap_ms": pytest.approx(2.2),
    }


def test_only_the_session_in_turn_sees_more_than_one_shape(monkeypatch):
    shapes: dict[int, set[int]] = {}
    bind = BoundRun.__init__

    def keep(self, session, feeds, device, outputs=None):
        shapes.setdefault(id(session), set()).add(feeds["x"].shape()[0])
        bind(self, session, feeds, device, outputs)

    monkeypatch.setattr(BoundRun, "__init__", keep)
    monkeypatch.setattr(
        "convswap.bench.alternating.measure", lambda samples, rule: dict.fromkeys(samples, times(1.0))
    )
    run_alternating(layers="2017", batches=[1, 2, 3], device="cpu")
    assert sorted(map(len, shapes.values())) == [1] * 6 + [3] * 2


def test_fixed_runs_are_started_from_as_many_bindings_as_those_in_turn(monkeypatch):
    bindings: list[int] = []
    create = AlternatingRuns.__init__

    def keep(self, runs):
        bindings.append(len({id(run) for run in runs}))
        create(self, runs)

    monkeypatch.setattr(AlternatingRuns, "__init__", keep)
    monkeypatch.setattr(
        "convswap.bench.alternating.measure", lambda samples, rule: dict.fromkeys(samples, times(1.0))
    )
    run_alternating(layers="2017", batches=[1, 2, 3], device="cpu")
    assert bindings == [3] * 8


def test_both_sides_are_timed(device):
    (row,) = run_alternating(layers="2017", batches=[2, 3, 4], device=device)
    for side in ("default", "convswap"):
        # A run in turn does no less work; the factor allows for a busy machine.
        assert row[f"{side}_ms"] > 0.3 * row[f"{side}_fixed_ms"] > 0


def test_type_that_the_provider_has_no_conv_for_leaves_the_default_open(capsys):
    arguments = ["--layers", "2017", "--batch", "1,2", "--device", "cpu", "--precision", "bfloat16"]
    assert main(["bench", "--alternate", *arguments]) == 0
    text = capsys.readouterr().out
    assert "the default provider has no Conv in bfloat16 here" in text
    (line,) = [line for line in text.splitlines() if line.startswith(" 2017")]
    assert line.split()[1:5] == ["bfloat16", "-", "-", "-"]


def test_command_prints_the_worst_ratio_last_and_writes_the_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "convswap.bench.alternating.measure",
        lambda samples, rule: dict(enumerate(map(times, [2.0, 6.0, 40.0, 2.0, 6.0, 4.2]))),
    )
    file = tmp_path / "rows.json"
    arguments = ["--layers", "2017", "--batch", "1,2", "--device", "cpu", "--json", str(file)]
    assert main(["bench", "--alternate", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "Worst on convswap: batches in turn take 1.05 times what fixed ones do (2017-conv1)."
    (row,) = json.loads(file.read_text())
    assert row["default_ms"] == 20.0


def test_the_reason_for_the_cpu_is_printed_unless_it_was_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(
        "convswap.runtime.device._missing_for_cuda", lambda: "no NVIDIA card or driver was found"
    )
    monkeypatch.setattr(
        "convswap.bench.alternating.measure", lambda samples, rule: dict.fromkeys(samples, times(1.0))
    )
    arguments = ["bench", "--alternate", "--layers", "2017", "--batch", "1,2"]
    reason = "on the CPU, against the default CPU provider: no NVIDIA card or driver was found"
    assert main(arguments) == 0
    assert reason in capsys.readouterr().out
    assert main([*arguments, "--device", "cpu"]) == 0
    assert reason not in capsys.readouterr().out


@pytest.mark.parametrize("batches", [None, [64], [64, 64, 63]], ids=str)
def test_fewer_than_two_different_batches_are_refused(batches):
    with pytest.raises(ConvswapError, match="two different batch sizes or more, such as --batch 62"):
        run_alternating(batches=batches, device="cpu")


def test_other_sides_are_refused(capsys):
    assert main(["bench", "--alternate", "--batch", "1,2", "--against", "all", "--device", "cpu"]) == 2
    assert "--against has no meaning beside --alternate" in capsys.readouterr().err
