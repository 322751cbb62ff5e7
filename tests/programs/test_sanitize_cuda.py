"""`tools/sanitize_cuda.py` with a stand-in for compute-sanitizer."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import sanitize_cuda

pytestmark = [pytest.mark.slow, pytest.mark.extended]

# Reports that the stand-in logs, by a word in the file of a test.
REPORTS = {
    "BAD": """\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at void convswap::tiled::kernel<float, 8, 4>(Arguments)+0x1f0
=========     by thread (3,0,0) in block (0,0,0)
=========""",
    "FAILING": """\
========= Program hit cudaErrorStreamCaptureUnsupported (error 900) on CUDA API call to cudaMalloc.
=========         Host Frame:  [0x159d7a] in _native.cpython-312-x86_64-linux-gnu.so
=========""",
    "STRANGE": """\
========= Uninitialized __global__ memory read of size 2 bytes
=========     at void cudnn::ops::nhwcToNchwKernel<float>(int)+0x80
=========         Host Frame: cudnnConvolutionForward [0x1] in libcudnn.so.9
=========
========= ERROR SUMMARY: 1 error""",
    "UNSEEN": """\
========= Internal Sanitizer Error: The Sanitizer encountered an error while launching _ZN8convswap6kernelEv \
and didn't track the launch. Errors might go undetected.
=========""",
    "LOST": "========= Internal Sanitizer Error: Detected a failure to track a kernel launch.",
}
STAND_IN = """\
#!{python}
import os, sys
if sys.argv[1:] == ["--version"]:
    sys.exit(print("Version 2026.4.0.0 (build 1)"))
log, command = sys.argv[sys.argv.index("--log-file") + 1], sys.argv[sys.argv.index(sys.executable):]
text = "".join(open(word.split("::")[0]).read() for word in command if "::" in word)
with open(log, "w") as file:
    for word, report in {reports!r}.items():
        if word in text and not (word == "FAILING" and "--report-api-errors" in sys.argv):
            print(report, file=file)
os.execv(command[0], command)
"""
ONE_OF_TWO = "def test_one(): pass\ndef test_two(): assert False\n"


@pytest.fixture
def sanitize(monkeypatch, tmp_path, capsys):
    """Return a function that runs the program on test files of given texts; it returns status and output."""
    monkeypatch.setattr(sanitize_cuda, "MARKERS", "not gpu")
    program = tmp_path / "bin" / "compute-sanitizer"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, reports=REPORTS))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    # Loading all plugins would take four times as long.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  failing_calls\n")

    def run(*options: str, **tests: str) -> tuple[int, str]:
        for name, text in tests.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        files = [f"test_{name}.py" for name in tests]
        try:
            status = sanitize_cuda.main(["--state", "new/state.jsonl", "--jobs", "2", *options, "--", *files])
        except SystemExit as ended:
            status = ended.code
        printed = capsys.readouterr()
        # Summaries of single processes go to standard error.
        return status, printed.out or printed.err

    return run


def test_clean_tests_run_under_each_tool_and_not_again(sanitize, tmp_path):
    options = ["--tools", "memcheck", "racecheck"]
    status, output = sanitize(*options, clean=ONE_OF_TWO)
    assert status == 0
    for tool in ("memcheck", "racecheck"):
        assert f"{tool}: 1 failed, 1 passed, 0 left; 0 reports of ours, 0 others\n" in output
    assert "  failed without a report of ours: test_clean.py::test_two: assert False\n" in output
    before = (tmp_path / "new" / "state.jsonl").read_text()
    assert sanitize(*options, clean=ONE_OF_TWO) == (0, output)
    assert (tmp_path / "new" / "state.jsonl").read_text() == before


def test_a_report_of_ours_is_printed(sanitize):
    options = ["--group", "1", "--tools", "memcheck"]
    status, output = sanitize(*options, bad=ONE_OF_TWO + "# BAD, STRANGE", clean=ONE_OF_TWO)
    assert status == 1
    assert "memcheck: 2 failed, 2 passed, 0 left; 2 reports of ours, 2 others\n" in output
    assert "  Invalid __global__ read of size 4 bytes\n" in output and "Uninitialized" not in output
    # A failure with a report is not listed.
    assert "test_clean.py::test_two" in output and "test_bad.py::test_two" not in output


@pytest.mark.parametrize("report", ["UNSEEN", "LOST"])
def test_no_test_passes_with_an_unchecked_launch_in_its_process(report, sanitize):
    options = ["--group", "1", "--tools", "synccheck"]
    status, output = sanitize(*options, unseen=ONE_OF_TWO + f"# {report}", clean=ONE_OF_TWO)
    assert status == 1
    assert "synccheck: 2 failed, 1 passed, 1 unchecked, 0 left; 0 reports of ours, 0 others\n" in output
    assert "  unchecked without a report of ours: test_unseen.py::test_one\n" in output
    status, output = sanitize(*options, "--again", unseen=ONE_OF_TWO, clean=ONE_OF_TWO)
    assert status == 0 and "synccheck: 2 failed, 2 passed, 0 left;" in output


def test_calls_that_fail_on_purpose_are_not_reported(sanitize):
    mark = "@pytest.mark.failing_calls"
    marked = f"import pytest\n{mark}\ndef test_three(): 'FAILING'\n"
    status, output = sanitize("--tools", "memcheck", marked=marked, clean=ONE_OF_TWO)
    assert status == 0 and "memcheck: 1 failed, 2 passed, 0 left; 0 reports of ours" in output
    status, output = sanitize("--tools", "memcheck", unmarked=marked.replace(mark, ""))
    assert status == 1 and "memcheck: 1 passed, 0 left; 1 reports of ours, 0 others" in output


def test_failures_without_a_report_run_again_on_request(sanitize):
    # Each test fails the first time only: the second time it finds the file of the first.
    once = "import pathlib\ndef test_one():\n f = pathlib.Path('{0}')\n if not f.exists(): f.touch(); {1}\n"
    tests = {
        "crash": once.format("crashed", "import os; os.abort()"),
        "fail": once.format("failed", "assert False"),
        "bad": ONE_OF_TWO + "# BAD",
    }
    status, output = sanitize("--tools", "racecheck", "--group", "1", **tests)
    assert status == 1 and "racecheck: 1 crashed, 2 failed, 1 passed, 0 left; 2 reports" in output
    status, output = sanitize("--tools", "racecheck", "--group", "1", "--again", **tests)
    assert status == 1 and "racecheck: 1 failed, 3 passed, 0 left; 2 reports" in output


def test_tests_that_the_time_cuts_off_are_left_for_the_next_run(sanitize, tmp_path, monkeypatch):
    class CutOff(subprocess.Popen):
        """A process whose time is over when the endless test has begun."""

        def wait(self, timeout=None):
            if timeout is None:
                return super().wait()
            while not (tmp_path / "begun").exists():
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess, "Popen", CutOff)
    endless = "import pathlib, time\ndef test_three(): pathlib.Path('begun').touch(); time.sleep(900)\n"
    status, output = sanitize("--tools", "memcheck", slow=ONE_OF_TWO + endless)
    assert status == 0
    assert "memcheck: 1 failed, 1 passed, 1 left;" in output
    assert output.endswith("  left: test_slow.py::test_three\n")


def test_a_crash_is_printed_and_does_not_stop_the_other_tests(sanitize):
    crash = "import os\ndef test_one(): pass\ndef test_two(): os.abort()\ndef test_three(): pass\n"
    status, output = sanitize("--tools", "memcheck", crash=crash)
    assert status == 1 and "memcheck: 1 crashed, 1 passed, 1 left;" in output
    assert "  crashed without a report of ours: test_crash.py::test_two\n" in output
    status, output = sanitize("--tools", "memcheck", crash=crash)
    assert status == 1 and "memcheck: 1 crashed, 2 passed, 0 left;" in output


def test_tests_that_load_the_same_kernels_are_neighbours():
    tests = [f"test_{i}.py::test[{name}]" for i in range(2) for name in ("tiled-ieee", "float16-tiled", "x")]
    assert sanitize_cuda.groups_of(tests, 4) == [
        ["test_0.py::test[x]", "test_1.py::test[x]", "test_0.py::test[float16-tiled]"],
        ["test_1.py::test[float16-tiled]", *(f"test_{i}.py::test[tiled-ieee]" for i in range(2))],
    ]
    assert sanitize_cuda.groups_of([], 4) == []


def test_a_tool_under_which_nothing_runs_is_no_success(sanitize, tmp_path):
    (tmp_path / "bin" / "compute-sanitizer").write_text(
        "#!/bin/sh\necho Device not supported >&2\nexit 255\n"
    )
    status, output = sanitize("--tools", "memcheck", "--group", "1", clean=ONE_OF_TWO)
    assert status == 1 and "memcheck: 2 crashed, 0 left;" in output


def test_wrong_options_and_missing_tools_are_refused_in_a_line(sanitize, tmp_path, monkeypatch):
    def refuses(expected: str, *options: str, **tests: str) -> None:
        status, output = sanitize(*options, **tests)
        assert status == 2 and expected in output

    refuses("invalid choice: 'memchek' (choose from ", "--tools", "memchek")
    refuses("pytest cannot collect the tests, status ", "--tools", "memcheck", broken="import nothing\n")
    (tmp_path / "bin" / "compute-sanitizer").write_text("#!/bin/sh\necho Version 2025.3.1.0\n")
    refuses("initcheck needs compute-sanitizer 2026.4, but this one is 2025.3; pip install")
    monkeypatch.setenv("PATH", str(tmp_path))
    refuses("there is no compute-sanitizer; it comes with the CUDA toolkit\n")
