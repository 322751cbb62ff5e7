"""Programs for work on kernels: wrong input gets one clear line, correct input a result."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import convswap
import pytest
from build_tools import BENCHMARKS, TOOLS
from emulate import FORMATS

pytestmark = [pytest.mark.slow, pytest.mark.extended]

COMPARE, EMULATE = BENCHMARKS / "compare_builds.py", TOOLS / "emulate.py"
INSTALLED = Path(convswap.__file__).parents[1]


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("program", "arguments", "words"),
    [
        (EMULATE, ["nonsense"], "invalid choice: 'nonsense'"),
        (
            EMULATE,
            ["tiled", "--format", "Float16Pairs"],
            "the formats of tiled are: float, Float16, BFloat16",
        ),
        (EMULATE, ["tiled", "--seeds", "5:2"], "'5:2': expected FIRST:END, such as 0:20"),
        (EMULATE, ["tiled", "--rung", "x"], "--rung: expected a rung, such as"),
        (EMULATE, ["ladder"], "--rung: expected a rung, such as"),
        (
            EMULATE,
            ["ladder", "--rung", "ladder_05_flat_blocks", "--every-tiling"],
            "--every-tiling: a rung of the ladder has one",
        ),
        (COMPARE, ["nowhere", "nowhere"], "nowhere has no convswap/_native.*: expected a folder"),
        (COMPARE, [INSTALLED, INSTALLED, "--batch", "1,x"], "'x': expected a whole number from 1 on"),
        (COMPARE, [INSTALLED, INSTALLED, "--precision", "f8"], "'f8': expected some of tf32, ieee, float16"),
    ],
)
def test_wrong_input_gets_one_clear_line(program: Path, arguments: list[object], words: str) -> None:
    result = run(program, *arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert words in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_every_format_that_emulate_names_is_one_of_the_build() -> None:
    text = (BENCHMARKS.parent / "custom_op" / "emulation" / "CMakeLists.txt").read_text(encoding="utf-8")
    named = dict(re.findall(r"^set\((formats_of_\w+|tensor_core_formats) ([^)]*)\)", text, re.MULTILINE))
    for family, formats in FORMATS.items():
        formats_in_build = named[f"formats_of_{family}"].replace(
            "${tensor_core_formats}", named["tensor_core_formats"]
        )
        assert set(formats_in_build.split()) == set(formats), family


@pytest.mark.gpu
def test_a_build_beside_itself_has_a_row_for_each_layer() -> None:
    result = run(
        COMPARE, INSTALLED, INSTALLED, "--batch", 64, "--precision", "tf32", "--rounds", 1, "--starts", 1
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1].startswith("7 rows: ratio ")
