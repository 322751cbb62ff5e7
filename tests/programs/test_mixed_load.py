"""The mixed load runs without errors, and its tool detects wrong bits, leaks and missing refusals."""

from __future__ import annotations

import re
import subprocess
import sys

import conv_property
import mixed_load
import numpy as np
import pytest
from build_tools import TOOLS
from mixed_load import MAX_EXTRA_BYTES, MIB, Problem, Spec, draw_specs, extra_bytes_per_session, judge
from op_sessions import make_session

pytestmark = [pytest.mark.slow, pytest.mark.extended]

# Without a card, about a thousand runs.
SECONDS = {"cpu": 4, "cuda": 15}
SMALL = ["--problems", "24", "--threads", "3"]


def run_tool(*arguments: str) -> str:
    command = [sys.executable, str(TOOLS / "mixed_load.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.many_threads
@pytest.mark.parametrize("options", [[], ["--lasting"]], ids=["coming and going", "lasting"])
def test_sessions_compute_what_was_checked(device: str, options: list[str]) -> None:
    seconds = SECONDS[device]
    printed = run_tool("--device", device, "--seconds", str(seconds), *SMALL, *options)
    # Growth is not judged: first runs allocate memory, and a busy machine rests too seldom.
    found = re.search(
        r"([\d,]+) runs, ([\d,]+) sessions, 0 errors; (growth host|no growth to judge)", printed
    )
    assert found, printed
    runs, sessions = (int(number.replace(",", "")) for number in found.groups()[:2])
    assert runs > 200 and sessions > (5 if options else 20)


@pytest.mark.parametrize("kind", ["swapped", "override"])
def test_closed_session_leaves_no_more_than_one_without_our_op(device: str, kind: str) -> None:
    extra_bytes = float(run_tool("--device", device, "--per-session", kind).splitlines()[0])
    assert extra_bytes < MAX_EXTRA_BYTES, f"{extra_bytes:.0f} bytes more for each session"


def test_memory_that_a_session_keeps_is_noticed(monkeypatch) -> None:
    leaked: list[np.ndarray] = []

    def leaking():
        leaked.append(np.ones(4 * MAX_EXTRA_BYTES, np.uint8))
        return make_session(mixed_load.parser.parse_model(mixed_load.ADD).SerializeToString(), ours=False)

    assert MAX_EXTRA_BYTES < extra_bytes_per_session(leaking, "cpu") < 8 * MAX_EXTRA_BYTES


def test_one_wrong_bit_is_reported(monkeypatch, capsys) -> None:
    def with_one_bit_changed(draw, arrays, device):
        for name, y in conv_property.results(draw, arrays, device):
            y.reshape(-1).view(np.uint8)[:1] ^= 1
            yield name, y

    monkeypatch.setattr(mixed_load, "results", with_one_bit_changed)
    monkeypatch.setattr(mixed_load, "judge", lambda *_: ("memory is not judged", False))
    assert mixed_load.main(["--device", "cpu", "--seconds", "3", *SMALL]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"AssertionError: .* 1 of \d+ differ, first \[\[0", printed)
    assert int(re.search(r"([\d,]+) errors", printed)[1].replace(",", "")) > 20


@pytest.fixture
def spec() -> Spec:
    return next(
        spec
        for spec in (Spec(draw, "cpu") for draw in draw_specs(1, 20) if draw.type == "float32")
        if spec.problems[0].expected.size > 10 and not spec.problems[0].draw.has_residual
    )


@pytest.fixture
def problem(spec: Spec) -> Problem:
    return spec.problems[0]


@pytest.fixture
def session(spec: Spec):
    return mixed_load.open_session(spec.models["constant"], "constant", "cpu")


def test_missing_refusal_is_reported(problem, session) -> None:
    problem.require_refusal(session)
    problem.misfit = problem.arrays["x"]
    with pytest.raises(AssertionError, match="a channel too many gave no error"):
        problem.require_refusal(session)


def test_output_that_is_not_written_is_reported(problem, session) -> None:
    binding, y = problem.bind(session)
    with pytest.raises(AssertionError, match="differ"):
        problem.require(y)
    session.run_with_iobinding(binding)
    problem.require(y)


def rests_of(memory, count=36) -> list[dict[str, int]]:
    return [{"host": MIB, "card": int(memory(rest / count))} for rest in range(count)]


def test_leak_after_the_warm_up_is_measured_in_full() -> None:
    # Growth counts for 7 of 9 parts of the time.
    assert judge(rests_of(lambda time: 500 * MIB + time * 8.5 * MIB * 9 / 7))[1]
    assert not judge(rests_of(lambda time: 500 * MIB + time * 7.5 * MIB * 9 / 7))[1]


def test_neither_the_warm_up_nor_a_single_rest_is_taken_for_a_leak() -> None:
    assert not judge(rests_of(lambda time: 500 * MIB if 0.2 < time < 0.96 or time > 0.98 else 0))[1]


def test_too_few_rests_are_not_taken_for_good_ones() -> None:
    words, bad = judge(rests_of(lambda time: MIB, count=8))
    assert bad and words == "no growth to judge: 8 rests"
