"""README and the pages of docs/ say what is so: their links lead somewhere, their commands are understood."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from build_tools import REPOSITORY
from convswap.cli.main import parser_of_all

PAGES = [
    *(REPOSITORY / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the kind and the text of each block of code."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """Return the command lines of the program in blocks of code, without what is behind them."""
    lines = [line for kind, text in blocks(page) if kind in ("", "sh") for line in text.splitlines()]
    own = [line.split(" #")[0].strip() for line in lines]
    return [line.removeprefix(".venv/bin/") for line in own if re.match(r"(\.venv/bin/)?convswap ", line)]


def test_the_first_page_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


@every_page
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert missing == []


@every_page
def test_commands_are_understood(page):
    for command in commands(page):
        parser_of_all().parse_args(shlex.split(command)[1:])


def test_commands_are_found_on_the_pages():
    found = [command for page in PAGES for command in commands(page)]
    used = {command.split()[1] for command in found}
    assert {"compare", "swap", "bench", "explain", "tune", "warm", "export", "train", "profile"} <= used


@every_page
def test_blocks_of_python_are_python(page):
    for kind, text in blocks(page):
        if kind == "python":
            ast.parse(text)


def test_every_page_of_docs_is_linked_from_the_first():
    first = (REPOSITORY / "README.md").read_text()
    assert [
        page.name for page in PAGES if page.parent.name == "docs" and f"docs/{page.name}" not in first
    ] == []


def test_the_public_names_satisfy_a_strict_type_checker(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import convswap\n\n"
        'result: convswap.SwapResult = convswap.swap("model.onnx", fuse=True)\n'
        'result.save("faster.onnx")\n'
        'speedup: float = convswap.compare("model.onnx", images=2).speedup\n'
        "path: str = str(convswap.library_path())\n"
        'reveal_type(convswap.explain("model.onnx"))\n'
    )
    pytest.importorskip("mypy", reason="mypy, which `make lint` installs, is not here")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", program]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "Any" not in checked.stdout and checked.stdout.endswith("no issues found in 1 source file\n")
