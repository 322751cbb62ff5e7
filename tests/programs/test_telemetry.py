"""The commands and the tests turn ONNX Runtime's telemetry off before it is loaded; the library does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from build_tools import REPOSITORY, TOOLS, environment_with_helpers
from comparisons import saved, small_model
from convswap.bench import first_run
from convswap.cli.main import main

SWITCH = "ORT_DISABLE_TELEMETRY"
SCRIPT = "import sys; from convswap.cli.main import main; sys.exit(main())"
# Stand-in for ONNX Runtime that prints the switch and then fails as a missing module.
RUNTIME = f"""
import os
print("imported with", os.environ.get({SWITCH!r}))
raise ModuleNotFoundError(name="onnxruntime")
"""


def printed_lines(*arguments: str, folder: Path | None = None, switch: str | None = None) -> list[str]:
    """Return the lines that Python prints with `arguments`; `folder` comes first on its path."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    if switch is not None:
        environment[SWITCH] = switch
    path = [str(folder)] if folder is not None else []
    environment["PYTHONPATH"] = os.pathsep.join([*path, environment_with_helpers()["PYTHONPATH"]])
    result = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert "Traceback" not in result.stderr, result.stderr
    return result.stdout.splitlines()


@pytest.fixture
def runtime(tmp_path):
    (tmp_path / "onnxruntime.py").write_text(RUNTIME)
    return tmp_path


@pytest.mark.parametrize("entry", [["-m", "convswap"], ["-m", "convswap.cli"], ["-c", SCRIPT]], ids=str)
def test_telemetry_is_off_before_a_command_imports_onnxruntime(entry, runtime):
    assert printed_lines(*entry, "compare", "ece408-2017-low", folder=runtime) == ["imported with 1"]


def test_telemetry_is_off_before_the_mixed_load_imports_onnxruntime(runtime):
    tool = f"import sys; sys.path.append({str(TOOLS)!r}); __import__('mixed_load')"
    script = f"try:\n    {tool}\nexcept ModuleNotFoundError as error:\n    assert error.name == 'onnxruntime'"
    # Also against the user's setting: memory that telemetry holds would look like a leak.
    assert printed_lines("-c", script, folder=runtime, switch="0") == ["imported with 1"]


def test_user_who_sets_the_switch_is_obeyed(runtime):
    arguments = ["-m", "convswap", "explain", "ece408-2017-low"]
    assert printed_lines(*arguments, folder=runtime, switch="0") == ["imported with 0"]


def test_library_leaves_the_switch_and_onnxruntime_alone():
    expressions = f"os.environ.get({SWITCH!r}), 'onnxruntime' in sys.modules"
    program = f"import os, sys, convswap; print({expressions}); convswap.compare; print({expressions})"
    assert printed_lines("-c", program) == ["None False", "None True"]


def test_processes_of_a_command_have_the_switch_too(tmp_path, monkeypatch):
    def run(command, **options):
        switches.append((options.get("env") or os.environ).get(SWITCH))
        return subprocess.CompletedProcess(command, 0, stdout='{"session_ms": 1.0, "run_ms": 1.0}', stderr="")

    switches: list[str | None] = []
    path = saved(small_model(), tmp_path)
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(first_run.subprocess, "run", run)
    assert main(["bench", "--first-run", path, "--device", "cpu"]) == 0
    assert set(switches) == {"1"}


def test_tests_turn_it_off_before_they_import_onnxruntime():
    program = f"import os, sys, conftest; print(os.environ[{SWITCH!r}], 'onnxruntime' in sys.modules)"
    assert printed_lines("-c", program, folder=REPOSITORY / "tests") == ["1 False"]
