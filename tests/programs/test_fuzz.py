"""Damaged files are read or refused in one line, and tools/fuzz.py detects every kind of failure."""

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

CASES = 80
# Time limit of a case on a busy machine; on an idle machine every case takes less than a second.
MAX_SECONDS = 120.0


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process without the tests' threads, because the tool forks."""
    command, folder = [sys.executable, *arguments], Path(__file__).parent
    environment = environment_with_helpers()
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("reader", fuzz.READERS)
def test_damaged_files_are_read_or_refused_in_one_line(reader: str) -> None:
    options = ["--reader", reader, "--seeds", f"0:{CASES}", "--seconds", str(MAX_SECONDS)]
    done = run_python(str(TOOLS / "fuzz.py"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    # If all cases were refused or all read, the damage would not have reached the format.
    found = re.search(r"(\d+) read, (\d+) refused, 0 failed", done.stdout)
    assert found and min(int(found[1]), int(found[2])) >= CASES // 50, done.stdout


def refusing(message: str):
    def read(_: Path) -> None:
        raise ConvswapError(message)

    return read


def hang(_: Path) -> None:
    while True:
        pass


def hide_memory_error(_: Path) -> None:
    try:
        bytearray(2 << 30)
    except MemoryError:
        raise ConvswapError("too large") from None


READERS = {
    "another exception": (lambda _: {}["w"], "failed", "KeyError: 'w'"),
    "a crash": (lambda _: os.abort(), "failed", "the process ended with status -6"),
    "no end": (hang, "failed", "in hang"),
    "2 GiB of memory": (lambda _: bytearray(2 << 30), "failed", "MemoryError"),
    "hidden lack of memory": (hide_memory_error, "failed", "refused only because memory ran out"),
    "two lines": (refusing("first\nsecond"), "failed", r"'first\nsecond'"),
    "a terminal's code": (refusing("\x1b[31mred"), "failed", r"'\x1b[31mred'"),
    "a warning": (lambda _: os.write(2, b"beware"), "failed", "beware"),
    "a refusal": (refusing("one line"), "refused", "one line"),
    "nothing": (lambda _: None, "read", ""),
}


def print_outcomes() -> None:
    """Print the tool's outcome of every reader of READERS."""
    outcomes = {}
    for name, (read, *_) in READERS.items():
        outcomes[name] = fuzz.run_case(fuzz.Sample({"a": b""}, read), 1.0 if read is hang else MAX_SECONDS)
    print(json.dumps(outcomes))


def test_the_tool_detects_every_kind_of_failure() -> None:
    done = run_python("-c", "import test_fuzz; test_fuzz.print_outcomes()")
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    for name, (_, kind, detail) in READERS.items():
        assert outcomes[name][0] == kind and detail in outcomes[name][1], (name, outcomes[name])


def run_failing_reader() -> int:
    """Run the tool on a reader that fails."""
    sample = fuzz.Sample({"a.bin": b"intact"}, READERS["another exception"][0])
    fuzz.READERS["failing"] = fuzz.Reader(lambda: [sample], ".bin", lambda content, _: content)
    return fuzz.main(["--reader", "failing", "--seeds", "7:9"])


def test_a_failure_is_printed_with_the_seed_that_repeats_it() -> None:
    done = run_python("-c", "import sys, test_fuzz; sys.exit(test_fuzz.run_failing_reader())")
    assert done.returncode == 1
    assert "FAILED: --reader failing --seeds 8:9\nTraceback" in done.stdout
    assert "0 read, 0 refused, 2 failed" in done.stdout
