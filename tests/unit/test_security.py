"""Promises of SECURITY.md about the package's source, and about the workflows that build it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_tools import REPOSITORY

# Calls that load pickles, or run text as a program.
UNSAFE = re.compile(
    r"(pickle|torch|joblib|dill)\.loads?|eval|exec|os\.(system|popen)|yaml\.load|(\w+\.)*extractall"
)
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def unsafe_calls(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        keywords = {each.arg: ast.unparse(each.value) for each in node.keywords}
        if (
            UNSAFE.fullmatch(function)
            or keywords.get("shell") == "True"
            or "allow_pickle=True" in ast.unparse(node)
        ):
            yield ast.unparse(node)


def test_the_package_loads_no_pickles_and_runs_no_text() -> None:
    folders = [REPOSITORY / name for name in ("python", "models", "export")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    assert len(files) > 150
    found = {str(file): list(unsafe_calls(file.read_text(encoding="utf-8"))) for file in files}
    assert {file: calls for file, calls in found.items() if calls} == {}


def test_unsafe_calls_are_found() -> None:
    calls = [
        "pickle.load(f)",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "run(x, shell=True)",
        "eval(x)",
    ]
    assert list(unsafe_calls("\n".join(calls))) == calls
    assert list(unsafe_calls("module.eval()\nnp.load(f, allow_pickle=False)\nre.compile(x)")) == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_unless_a_job_says_otherwise(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    assert "\npermissions:\n  contents: read\n" in text
    # Publishing needs an identity, and nothing else needs more than to read.
    granted = re.findall(r"^ +([a-z-]+): write$", text, re.MULTILINE)
    assert granted == (["id-token"] if workflow.name == "release.yml" else [])
    # Every action has a version, and no checkout leaves its token behind.
    used = re.findall(r"uses: (\S+)", text)
    assert all(action.startswith("./") or "@" in action for action in used)
    assert sum("/checkout@" in action for action in used) == text.count("persist-credentials: false")
    targets = set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"run: make ([a-z-]+)", text)) <= targets


def test_the_workflow_of_wheels_builds_for_every_python_that_it_checks() -> None:
    text = (REPOSITORY / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")
    built = re.findall(r'"(\d{3})"', text)
    checked = re.findall(r'files: "cp(\d+)\*\.whl"', text)
    assert built == checked and built[0] == "311"
