"""The mixed load runs without an error, and the tool that says so notices what can go wrong."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import conv_property
import mixed_load
import numpy as np
import pytest
from build_tools import TOOLS
from convswap import _native
from mixed_load import MIB, Problem, Sample, draw_specs, growth, judge

pytestmark = [pytest.mark.slow, pytest.mark.extended]

# The shortest runs whose third and last "minute" have a rest in each, if nothing else keeps the machine busy.
SECONDS = {"cpu": 10, "cuda": 15}
SMALL = ["--problems", "24", "--threads", "3"]


def judged(run: Callable[[int], tuple[int, str]], seconds: int) -> tuple[int, str, int]:
    """Return the status and words of `run(seconds)`, and the seconds that it took to judge memory.

    On a busy machine a rest can last longer than such a "minute", and the one after it then has none: the
    tool says so, and where that is all, it runs again for twice the time, at most for four times.
    """
    for longer in (seconds, 2 * seconds, 4 * seconds):
        status, printed = run(longer)
        if " 0 errors; no growth to judge" not in printed:
            break
    return status, printed, longer


@pytest.mark.many_threads
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_sessions_that_come_and_go_compute_what_was_checked(device: str, tmp_path: Path) -> None:
    log = tmp_path / "load.csv"

    def run(seconds: int) -> tuple[int, str]:
        command = [str(TOOLS / "mixed_load.py"), "--device", device, "--log", str(log), *SMALL]
        command += ["--seconds", str(seconds)]
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    _, printed, seconds = judged(run, SECONDS[device])
    found = re.search(r"([\d,]+) runs, ([\d,]+) sessions, 0 errors; growth device", printed)
    assert found, printed
    runs, sessions = (int(number.replace(",", "")) for number in found.groups())
    # That memory grows while everything runs for the first time says nothing; how much it grew is printed.
    assert runs > 200 and sessions > 20
    rows = list(csv.DictReader(log.open()))
    assert float(rows[-1]["seconds"]) > seconds - 1
    assert int(rows[-1]["runs"]) <= runs
    assert all(int(row["host_memory"]) > 10 * MIB for row in rows)
    assert device == "cpu" or all(int(row["device_memory"]) > 10 * MIB for row in rows)
    # Only the sessions that live long are open at rest, and others between.
    assert max(int(row["open_sessions"]) for row in rows if row["rests"] == "1") <= 3
    assert max(int(row["open_sessions"]) for row in rows) > 3


# What the tool notices.


def run_load(tmp_path: Path, seconds: int, *options: str) -> int:
    log = str(tmp_path / "load.csv")
    return mixed_load.main(["--device", "cpu", "--seconds", str(seconds), "--log", log, *SMALL, *options])


def test_one_wrong_bit_is_reported(monkeypatch, capsys, tmp_path) -> None:
    def with_one_bit_changed(draw, arrays, device):
        for name, y in conv_property.results(draw, arrays, device):
            y.reshape(-1).view(np.uint8)[:1] ^= 1
            yield name, y

    monkeypatch.setattr(mixed_load, "results", with_one_bit_changed)
    monkeypatch.setattr(mixed_load, "judge", lambda *_: ("memory is not judged", False))
    assert run_load(tmp_path, 3) == 1
    printed = capsys.readouterr().out
    assert re.search(r"AssertionError: .* 1 of \d+ differ, first \[\[0", printed)
    assert int(re.search(r"([\d,]+) errors", printed)[1].replace(",", "")) > 20


@pytest.fixture(scope="module")
def problem() -> Problem:
    return next(
        problem
        for problem in (Problem(draw, "cpu") for draw in draw_specs(1, 20))
        if problem.expected.size > 10 and problem.draw.type == "float32" and not problem.draw.has_residual
    )


@pytest.fixture
def session(problem):
    load = mixed_load.Load("cpu", 1, [], 0)
    return load.open_session(mixed_load.Spec(problem.draw, "cpu").models["constant"], "constant")


def test_run_that_ought_to_be_refused_and_is_not_is_reported(problem, session, monkeypatch) -> None:
    mixed_load.require_refusal(session, problem, ["x"])
    monkeypatch.setattr(problem, "unfit", problem.values["x"])
    with pytest.raises(AssertionError, match="a channel too many was taken"):
        mixed_load.require_refusal(session, problem, ["x"])


def test_output_that_is_not_written_is_reported(problem, session) -> None:
    class Lazy:
        def io_binding(self):
            return session.io_binding()

        def run_with_iobinding(self, binding):
            pass

    problem.require(mixed_load.run_bound(session, problem, ["x"]))
    with pytest.raises(AssertionError, match="differ"):
        problem.require(mixed_load.run_bound(Lazy(), problem, ["x"]))


# Growth, of runs of 9 minutes.


def samples_of(memory, rests=lambda second: second % 15 == 2) -> list[Sample]:
    return [
        Sample(float(second), int(memory(second)), int(memory(second)), 9, second, int(rests(second)))
        for second in range(540)
    ]


@pytest.mark.parametrize("memory", ["device_memory", "host_memory"])
def test_leak_shows_with_what_it_loses_from_minute_2_to_the_end(memory) -> None:
    leak = samples_of(lambda second: 500 * MIB + second * 8.5 * MIB / 420)
    assert growth(leak, 540, memory) == pytest.approx(8.5 * MIB, rel=0.01)
    assert judge(leak, 540)[1]
    assert not judge(samples_of(lambda second: 500 * MIB + second * 7.5 * MIB / 420), 540)[1]


def test_leak_shows_within_what_sessions_take_between_the_rests() -> None:
    random = np.random.default_rng(0)
    noise = [0 if second % 15 == 2 else random.integers(0, 300) * MIB for second in range(540)]
    assert not judge(samples_of(lambda second: 500 * MIB + noise[second]), 540)[1]
    assert judge(samples_of(lambda second: 500 * MIB + noise[second] + second * 8.5 * MIB / 420), 540)[1]


def test_log_without_rests_is_not_taken_for_a_good_one() -> None:
    words, bad = judge(samples_of(lambda second: MIB, rests=lambda second: False), 540)
    assert bad and "no rest" in words


# The memory of the card, by a stand-in for NVML.


@pytest.mark.gpu
@pytest.mark.parametrize("card", range(max(1, len(_native.cuda_devices()))))
def test_memory_is_that_of_the_card_in_use_though_others_are_hidden(card: int, cuda: str) -> None:
    asks = f"""
        import mixed_load
        from convswap import _native
        memory = mixed_load.CardMemory()
        first = _native.DeviceArray([1])
        before = memory.used()
        more = _native.DeviceArray([{MIB} * 256])
        print(memory.used() - before)
    """
    visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible[card] if visible else str(card)}
    program = textwrap.dedent(asks)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=TOOLS,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # A GiB; what else runs on the card may take or give back less than half of that meanwhile.
    assert 512 * MIB < int(done.stdout) < 1536 * MIB
