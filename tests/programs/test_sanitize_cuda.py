"""`tools/sanitize_cuda.py`: the GPU tests under compute-sanitizer, with a program in that one's place."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest
import sanitize_cuda

pytestmark = [pytest.mark.slow, pytest.mark.extended]

REPORT_OF_OURS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void convswap::tiled::kernel<float, 8, 4>(Arguments)+0x1f0
=========     by thread (3,0,0) in block (0,0,0)
========="""
REPORT_OF_A_CALL = """\
========= Program hit cudaErrorStreamCaptureUnsupported (error 900) on CUDA API call to cudaMalloc.
=========         Host Frame:  [0x159d7a] in _native.cpython-312-x86_64-linux-gnu.so
========="""
REPORT_OF_OTHERS = """\
========= Uninitialized __global__ memory read of size 2 bytes
=========     at void cudnn::ops::nhwcToNchwKernel<float>(int)+0x80
=========         Host Frame: cudnnConvolutionForward [0x1] in libcudnn.so.9
=========
========= ERROR SUMMARY: 1 error"""
REPORT_OF_THE_TOOL = """\
========= Internal Sanitizer Error: The Sanitizer encountered an error while launching _ZN8convswap6kernelEv and didn't track the launch. Errors might go undetected. (Unable to allocate enough memory to perform the requested operation)
========="""  # noqa: E501
REPORT_OF_A_LOST_LAUNCH = """\
========= Internal Sanitizer Error: Detected a failure to track a kernel launch. Future records might be incomplete
========="""  # noqa: E501
# Logs what the tests' text asks for, where the real one would have found it, and runs the rest.
STAND_IN = """\
#!{python}
import os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("Version 2026.4.0.0 (build 1)"))
_, _, tool, _, _, _, log, *rest = sys.argv
command = rest[rest.index(sys.executable):]
text = "".join(open(word.split("::")[0]).read() for word in command if "::" in word)
with open(log, "w") as file:
    file.write({api!r} + "\\n" if "FAILING" in text and "--report-api-errors" not in rest else "")
    file.write({ours!r} + "\\n" if "BAD IN " + tool in text else "========= COMPUTE-SANITIZER\\n")
    file.write({others!r} + "\\n" if "STRANGE" in text else "")
    file.write({tool!r} + "\\n" if "UNSEEN" in text else "")
    file.write({lost!r} + "\\n" if "LOST" in text else "")
os.execv(command[0], command)
"""


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """The program as a module, which takes tests without a card, and finds the stand-in."""
    monkeypatch.setattr(sanitize_cuda, "MARKERS", "not gpu")
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    reports = {"ours": REPORT_OF_OURS, "others": REPORT_OF_OTHERS, "api": REPORT_OF_A_CALL}
    reports |= {"tool": REPORT_OF_THE_TOOL, "lost": REPORT_OF_A_LOST_LAUNCH}
    program.write_text(STAND_IN.format(python=sys.executable, **reports))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    # Of pytest's plugins the one that it is asked for: all of them take four times as long to load.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    monkeypatch.chdir(tmp_path)
    return sanitize_cuda


def write_tests(folder, name, text):
    file = folder / f"test_{name}.py"
    file.write_text(text)
    return file.name


TWO = "def test_one(): pass\ndef test_two(): assert False\n"


def test_clean_tests_are_run_under_each_tool_and_not_again(tool, tmp_path, capsys):
    state = tmp_path / "new" / "state.jsonl"
    arguments = ["--state", str(state), "--jobs", "2", "--tools", "memcheck,racecheck"]
    assert tool.main([*arguments, "--", write_tests(tmp_path, "clean", TWO)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "memcheck: 1 failed, 1 passed, 0 left; 0 reports of ours, 0 others"
    assert said[1] == "  failed without a report of ours: test_clean.py::test_two: assert False"
    assert said[2].startswith("racecheck: ")
    lines = [json.loads(line) for line in state.read_text().splitlines()]
    assert sorted((line["tool"], line["outcome"]) for line in lines) == [
        (name, outcome) for name in ("memcheck", "racecheck") for outcome in ("failed", "passed")
    ]
    assert tool.main([*arguments, "--", write_tests(tmp_path, "clean", TWO)]) == 0
    assert len(state.read_text().splitlines()) == len(lines)


def test_a_report_of_ours_is_told_with_the_tests_of_its_group(tool, tmp_path, capsys):
    state = tmp_path / "state.jsonl"
    bad = write_tests(tmp_path, "bad", TWO + "# BAD IN racecheck, STRANGE")
    clean = write_tests(tmp_path, "clean", TWO)
    arguments = ["--state", str(state), "--group", "1", "--tools", "memcheck,racecheck"]
    assert tool.main([*arguments, "--", bad, clean]) == 1
    said = capsys.readouterr().out
    assert "memcheck: 2 failed, 2 passed, 0 left; 0 reports of ours, 2 others\n" in said
    assert "racecheck: 2 failed, 2 passed, 0 left; 2 reports of ours, 2 others\n" in said
    assert "  Invalid __global__ read of size 4 bytes\n" in said and "Uninitialized" not in said
    # What failed beside a report needs no other reason.
    memcheck, racecheck = said.split("racecheck: ")
    assert "test_bad.py::test_two" in memcheck and "test_clean.py::test_two" in memcheck
    assert "test_bad.py::test_two" not in racecheck and "test_clean.py::test_two" in racecheck
    found = [json.loads(line) for line in state.read_text().splitlines()]
    ours = [line for line in found if line.get("ours")]
    assert {test.split("::")[-1] for line in ours for test in line["tests"]} == {"test_one", "test_two"}
    assert all("test_bad" in test for line in ours for test in line["tests"])


@pytest.mark.parametrize("report", ["UNSEEN", "LOST"])
def test_where_a_launch_was_not_looked_at_nothing_passed(report, tool, tmp_path, capsys):
    unseen = write_tests(tmp_path, "unseen", TWO + f"# {report}")
    clean = write_tests(tmp_path, "clean", TWO)
    arguments = ["--state", str(tmp_path / "state.jsonl"), "--group", "1", "--tools", "synccheck"]
    assert tool.main([*arguments, "--", unseen, clean]) == 1
    said = capsys.readouterr().out
    assert "synccheck: 2 failed, 1 passed, 1 unchecked, 0 left; 0 reports of ours, 0 others\n" in said
    assert "  unchecked without a report of ours: test_unseen.py::test_one\n" in said
    write_tests(tmp_path, "unseen", TWO)
    assert tool.main([*arguments, "--again", "--", unseen, clean]) == 0
    assert "synccheck: 2 failed, 2 passed, 0 left;" in capsys.readouterr().out


def test_calls_that_a_test_has_fail_are_not_reported(tool, tmp_path, capsys):
    marked = "import pytest\n@pytest.mark.failing_calls\ndef test_three(): 'FAILING'\n"
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  failing_calls\n")
    arguments = ["--state", str(tmp_path / "state.jsonl"), "--tools", "memcheck"]
    files = [write_tests(tmp_path, "marked", marked), write_tests(tmp_path, "clean", TWO)]
    assert tool.main([*arguments, "--", *files]) == 0
    assert "memcheck: 1 failed, 2 passed, 0 left; 0 reports of ours" in capsys.readouterr().out
    unmarked = write_tests(tmp_path, "unmarked", marked.replace("@pytest.mark.failing_calls", ""))
    assert tool.main([*arguments, "--", unmarked]) == 1
    assert "memcheck: 1 passed, 0 left; 1 reports of ours, 0 others" in capsys.readouterr().out


def test_what_failed_without_a_report_runs_again_where_it_is_asked_for(tool, tmp_path, capsys):
    state = tmp_path / "state.jsonl"
    arguments = ["--state", str(state), "--tools", "racecheck", "--group", "1"]
    # Each fails the first time: the second finds what the first left behind.
    once = "import pathlib\ndef test_one():\n f = pathlib.Path('{0}')\n if not f.exists(): f.touch(); {1}\n"
    crash = write_tests(tmp_path, "crash", once.format("crashed", "import os; os.abort()"))
    fail = write_tests(tmp_path, "fail", once.format("failed", "assert False"))
    bad = write_tests(tmp_path, "bad", TWO + "# BAD IN racecheck")
    assert tool.main([*arguments, "--", crash, fail, bad]) == 1
    assert "racecheck: 1 crashed, 2 failed, 1 passed, 0 left; 2 reports" in capsys.readouterr().out
    assert tool.main([*arguments, "--again", "--", crash, fail, bad]) == 1
    said = capsys.readouterr().out
    # What there is a report of stays as it was.
    assert "racecheck: 1 failed, 3 passed, 0 left; 2 reports" in said and "without a report" not in said


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """Return a function for tests that have no end; the time of a group is over once it is called."""
    begun = tmp_path / "begun"

    class CutOff(subprocess.Popen):
        def wait(self, timeout=None):
            if timeout is None:
                return super().wait()
            while not begun.exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", CutOff)
    body = f"    pathlib.Path({str(begun)!r}).touch()\n    time.sleep(900)\n"
    return f"import pathlib, time\ndef endless():\n{body}"


def test_what_the_time_cuts_off_is_left_for_the_next_run(tool, endless, tmp_path, capsys):
    three = "def test_one(): pass\ndef test_two(): raise KeyError('x')\ndef test_three(): endless()\n"
    slow = write_tests(tmp_path, "slow", endless + three)
    assert tool.main(["--state", str(tmp_path / "state.jsonl"), "--tools", "memcheck", "--", slow]) == 0
    said = capsys.readouterr().out
    assert "memcheck: 1 failed, 1 passed, 1 left;" in said
    assert "  failed without a report of ours: test_slow.py::test_two: KeyError: 'x'\n" in said
    assert said.endswith("  left: test_slow.py::test_three\n")


def test_tests_that_load_the_same_kernels_come_together(tool):
    tests = [f"test_{i}.py::test[{name}]" for i in range(2) for name in ("tiled-ieee", "float16-tiled", "x")]
    assert tool.grouped(tests, 4) == [
        ["test_0.py::test[x]", "test_1.py::test[x]", "test_0.py::test[float16-tiled]"],
        ["test_1.py::test[float16-tiled]", *(f"test_{i}.py::test[tiled-ieee]" for i in range(2))],
    ]
    assert tool.grouped(tests, 1) == [[test] for test in tool.grouped(tests, 6)[0]]
    assert tool.grouped([], 4) == []


def test_a_process_that_crashes_is_told_and_does_not_hold_up_the_others(tool, tmp_path, capsys):
    crash = "import os\ndef test_one(): pass\ndef test_two(): os.abort()\ndef test_three(): pass\n"
    file, state = write_tests(tmp_path, "crash", crash), tmp_path / "state.jsonl"
    arguments = ["--state", str(state), "--tools", "memcheck", "--", file]
    assert tool.main(arguments) == 1
    said = capsys.readouterr()
    assert "memcheck: 1 crashed, 1 passed, 1 left;" in said.out
    assert "  crashed without a report of ours: test_crash.py::test_two\n" in said.out
    assert "status -6 under memcheck: " in said.err
    assert tool.main(arguments) == 1
    assert "memcheck: 1 crashed, 2 passed, 0 left;" in capsys.readouterr().out


def test_a_tool_under_which_nothing_runs_is_no_success(tool, tmp_path, capsys):
    program = tmp_path / "bin" / "compute-sanitizer"
    program.write_text("#!/bin/sh\necho Device not supported >&2\nexit 255\n")
    file, state = write_tests(tmp_path, "clean", TWO), tmp_path / "state.jsonl"
    assert tool.main(["--state", str(state), "--tools", "memcheck", "--group", "1", "--", file]) == 1
    said = capsys.readouterr()
    assert "memcheck: 2 crashed, 0 left;" in said.out
    assert "status 255 under memcheck: Device not supported\n" in said.err


def test_what_cannot_be_run_is_one_line(tool, tmp_path, capsys, monkeypatch):
    state = ["--state", str(tmp_path / "state.jsonl")]
    with pytest.raises(SystemExit) as ended:
        tool.main([*state, "--tools", "memchek"])
    assert ended.value.code == 2
    assert "there is no tool 'memchek'; choose from memcheck, " in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        tool.main([*state, "--test-seconds", "0"])
    assert ended.value.code == 2
    assert "--jobs, --group and --test-seconds must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        tool.main([*state, "--", str(tmp_path / "test_missing.py")])
    assert ended.value.code == 2 and "pytest cannot collect the tests, status 4: " in capsys.readouterr().err
    broken = [write_tests(tmp_path, "broken", "import nothing\n"), write_tests(tmp_path, "clean", TWO)]
    with pytest.raises(SystemExit) as ended:
        tool.main([*state, "--", *broken])
    assert ended.value.code == 2 and "No module named 'nothing'" in capsys.readouterr().err
    program = tmp_path / "bin" / "compute-sanitizer"
    program.write_text("#!/bin/sh\necho Version 2025.3.1.0\n")
    assert tool.main(state) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "initcheck needs compute-sanitizer 2026.4, but this one is 2025.3.1.0; pip install"
    )
    program.write_text("#!/bin/sh\n")
    assert tool.main(state) == 2 and "this one is unknown; " in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool.main(state) == 2
    assert capsys.readouterr().err == "there is no compute-sanitizer; it comes with the CUDA toolkit\n"
