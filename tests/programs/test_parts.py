"""Parts of the tests marked `extended`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from build_tools import REPOSITORY
from parts import PART, is_in_part, part_of


def test_each_test_is_in_one_part_and_parts_are_about_equal():
    names = [f"tests/op/test_{number % 7}.py::test[{number}]" for number in range(1000)]
    parts = [{name for name in names if is_in_part(name, number, 4)} for number in range(1, 5)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(200 < len(part) < 300 for part in parts)


@pytest.mark.parametrize("text", ["", "x", "2/0", "0/4", "5/4", "1", "-1/4", "1/4/2"])
def test_a_part_is_one_of_several(text):
    assert part_of("2/4") == (2, 4)
    assert part_of(text) is None


@pytest.mark.extended
def test_a_run_takes_the_tests_of_its_part():
    def collected(part: str | None) -> set[str]:
        environment = {name: value for name, value in os.environ.items() if name != PART}
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "extended", "tests/programs"],
            cwd=REPOSITORY,
            env=environment | ({PART: part} if part else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        return {line for line in run.stdout.splitlines() if "::" in line}

    parts = [collected(f"{number}/2") for number in (1, 2)]
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == collected(None)
