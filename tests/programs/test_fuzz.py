"""Damaged files are read or refused in one line; and the tool that says so notices every way to fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest
from build_tools import TOOLS, environment_with_helpers
from convswap.errors import ConvswapError

pytestmark = [pytest.mark.slow, pytest.mark.extended]

CASES = {"onnx": 60}
CASES_OF_OTHERS = 80
# For a case on a busy machine; on an idle one none takes one.
MOST_SECONDS = 120.0


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Without real files, so that the seeds give the same cases everywhere. A process without threads, because
    # the tool forks.
    given = {name: value for name, value in os.environ.items() if name != "CONVSWAP_DATA"}
    environment = environment_with_helpers(given)
    command = [sys.executable, *arguments]
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("reader", fuzz.READERS)
def test_damaged_files_are_read_or_refused_in_one_line(reader: str) -> None:
    cases = CASES.get(reader, CASES_OF_OTHERS)
    options = ["--reader", reader, "--seeds", f"0:{cases}", "--seconds", str(MOST_SECONDS)]
    done = run_python(str(TOOLS / "fuzz.py"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    # Cases that were all refused, or all read, would not have come far.
    found = re.search(r"(\d+) read, (\d+) refused, 0 failed", done.stdout)
    assert found and min(int(found[1]), int(found[2])) >= cases // 50, done.stdout


def fail_with_another_exception() -> None:
    raise KeyError("w")


def crash() -> None:
    os.abort()


def hang() -> None:
    while True:
        pass


def take_two_gigabytes() -> None:
    bytearray(2 << 30)


def hide_that_memory_ran_out() -> None:
    try:
        bytearray(2 << 30)
    except MemoryError:
        raise ConvswapError("too large") from None


def refuse_in_two_lines() -> None:
    raise ConvswapError("first line\nsecond line")


def refuse_with_a_terminal_code() -> None:
    raise ConvswapError("\x1b[31mred")


def warn_on_standard_error() -> None:
    sys.stderr.write("beware")
    sys.stderr.flush()


def refuse() -> None:
    raise ConvswapError("one line")


EXPECTED = {
    fail_with_another_exception: ("failed", "KeyError: 'w'"),
    crash: ("failed", "the process ended with status 0x6"),
    hang: ("failed", "in hang"),
    take_two_gigabytes: ("failed", "MemoryError"),
    hide_that_memory_ran_out: ("failed", "refused only because memory ran out"),
    refuse_in_two_lines: ("failed", r"'first line\nsecond line'"),
    refuse_with_a_terminal_code: ("failed", r"'\x1b[31mred'"),
    warn_on_standard_error: ("failed", "beware"),
    refuse: ("refused", "one line"),
    int: ("read", ""),
}


def print_outcomes() -> None:
    """Print what the tool says of readers that do nothing but what they are called."""
    samples = {read.__name__: fuzz.Sample({"a.bin": b"a"}, lambda _, read=read: read()) for read in EXPECTED}
    seconds = {name: 0.5 if name == hang.__name__ else MOST_SECONDS for name in samples}
    outcomes = {name: vars(fuzz.run_case(sample, seconds[name])) for name, sample in samples.items()}
    print(json.dumps(outcomes))


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict]:
    done = run_python("-c", "import test_fuzz; test_fuzz.print_outcomes()")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("read", EXPECTED, ids=lambda read: read.__name__)
def test_the_tool_notices(read, outcomes) -> None:
    kind, detail = EXPECTED[read]
    outcome = outcomes[read.__name__]
    assert outcome["kind"] == kind
    assert detail in outcome["detail"]


def run_failing_reader() -> int:
    """Run the tool on a reader that fails."""
    sample = fuzz.Sample({"a.bin": b"intact"}, lambda _: fail_with_another_exception())
    fuzz.READERS["failing"] = fuzz.Reader(lambda: [sample], ".bin")
    return fuzz.main(["--reader", "failing", "--seeds", "7:9"])


def test_a_failure_is_printed_with_what_repeats_it() -> None:
    done = run_python("-c", "import sys, test_fuzz; sys.exit(test_fuzz.run_failing_reader())")
    assert done.returncode == 1
    assert "FAILED: --reader failing --seeds 8:9\nTraceback" in done.stdout
    assert "0 read, 0 refused, 2 failed" in done.stdout
