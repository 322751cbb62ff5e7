"""Run the GPU tests under the tools of compute-sanitizer.

    python tools/sanitize_cuda.py --state build/sanitized_cuda.jsonl --seconds 540
    python tools/sanitize_cuda.py --state build/racecheck.jsonl --tools racecheck -- tests/op

Tests run in groups, each group in a process under one tool, several processes at once. A tool analyses all
kernels that a process loads, which takes seconds for each library of kernels. So groups are large, and
contain tests that name the same algorithm and type. `--group 1` shows which test caused a report.

The state file gets a line for each test that ended and for each report, with a hash of the library. A listed
test runs again under the same tool and library only if it was skipped, so a run continues where the time
limit ended the last run. `--again` repeats tests that failed, crashed or were unchecked without a report of
ours. If a tool has too little memory to check a launch, the tests of its process are `unchecked`; fewer jobs
may help. Tests marked `large` do not run: tensors of 2^31 elements would take hours.

A report is ours if the kernel or a caller is ours. Reports about other libraries are counted separately.
Tests that measure time or free memory may fail under a tool without a report; they are listed at the end with
the reason. Tests that did not end are listed if they are few: the time limit does not end every deadlock.

* racecheck is the slowest tool. synccheck takes memory of the card for each launch (80 GB were not enough for
  1,200). Under both, tests make fewer repetitions (tests/helpers/repeats.py).
* At each launch a tool records the call stack, including Python's: it waits for the GIL while it holds locks
  of the driver. A thread that holds the GIL and waits for the driver deadlocks (2026.4; also with ONNX
  Runtime's own Conv). So racecheck and synccheck, whose reports are about kernels, record no call stacks. Nor
  do the other tools for tests marked `many_threads`, which run kernels in several Python threads.
* memcheck reports failed calls, except in tests marked `failing_calls`, whose calls fail on purpose, and in
  `many_threads`, whose callers are unknown. The latter make fewer repetitions under memcheck, which never
  finishes the mixed load.
* racecheck does not run `many_threads`, because it loses launches of several threads.
* initcheck needs compute-sanitizer 2026.4 (CUDA 13.5, or `pip install nvidia-cuda-sanitizer-api`). Before
  2025.4 it misses writes of cp.async.bulk, and before 2026.4 writes of other libraries' kernels.

Exits 1 if a report is ours, a process crashed or a test is unchecked, 2 if the tests or the tools cannot run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import result_lines
from convswap import library_path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Tools whose reports are about kernels only, not about API calls.
KERNEL_TOOLS = ("racecheck", "synccheck")
INITCHECK_SINCE = (2026, 4)
MARKERS = "gpu and not large"
FAILING_CALLS, MANY_THREADS = "failing_calls", "many_threads"
GROUP, JOBS = 400, 12
TEST_SECONDS = 120
# Fraction of their repetitions that tests make under a slow tool.
REDUCED_SHARE = "0.02"
# Remaining tests are listed if they are no more than this; otherwise they only lacked time.
MAX_LISTED = 20
OURS = re.compile(r"convswap::|libconvswap|_native\.")
# Words in names of tests that determine the kernels they load: algorithms, types and precisions.
KERNELS_OF = re.compile(
    r"naive|tiled|channels_last_depthwise|channels_last_mma|channels_last|depthwise|sliding_rows|sliced_k|separable|"
    r"few_channels|toeplitz|implicit_gemm|quantised|layout_pool|layer_norm|test_mul|codes|b?float\d+|u?int8|tf32|ieee"
)
# Exit status of pytest if all tests passed or some failed; any other status is a crash.
NORMAL_STATUSES = (0, 1)
# A tool's message about a launch that it did not check.
UNCHECKED_LAUNCH = re.compile(r"didn't track the launch|failure to track a kernel launch")
NOT_A_REPORT = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "Target application returned")
# Outcomes of tests that are listed unless a report of ours explains them.
BAD_OUTCOMES = ("failed", "error", "crashed", "unchecked")


def lines_of(path: Path) -> list[dict]:
    """Return the complete JSON lines of a file; none if there is no file."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            lines.append(json.loads(text))
    return lines


class State:
    """The state file: {"tool", "test", "outcome", "said"} or {"tool", "tests", "ours", "report"} in a line.

    Each line also has the library's hash; lines of another library stay in the file and are ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._library = hashlib.sha256(library_path().read_bytes()).hexdigest()[:16]
        path.parent.mkdir(parents=True, exist_ok=True)
        # By tool: the last line of each test, and all reports.
        self.ends: dict[str, dict[str, dict]] = defaultdict(dict)
        self.reports: dict[str, list[dict]] = defaultdict(list)
        self._keep(line for line in lines_of(path) if line["library"] == self._library)

    def add(self, lines: Iterable[dict]) -> None:
        """Add the lines to the state and the file."""
        lines = [{"library": self._library, **line} for line in lines]
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            self._keep(lines)
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def _keep(self, lines: Iterable[dict]) -> None:
        for line in lines:
            if "test" in line:
                self.ends[line["tool"]][line["test"]] = line
            else:
                self.reports[line["tool"]].append(line)

    def reports_of_ours(self, tool: str) -> list[dict]:
        """Return the reports about our kernels and calls."""
        return [report for report in self.reports[tool] if report["ours"]]

    def reported(self, tool: str) -> set[str]:
        """Return the tests of the processes that had a report of ours."""
        return {test for report in self.reports_of_ours(tool) for test in report["tests"]}

    def is_done(self, tool: str, test: str, again: bool) -> bool:
        """Return whether the test need not run; with `again` failed tests without a report run."""
        outcome = self.ends[tool].get(test, {"outcome": "skipped"})["outcome"]
        if outcome in ("passed", "skipped"):
            return outcome == "passed"
        return not again or test in self.reported(tool)


def reports_in(log: str) -> list[str]:
    """Return the text of each report in a tool's log."""
    reports: list[list[str]] = [[]]
    for line in log.splitlines():
        text = line.removeprefix("=========").strip()
        if not text:
            reports.append([])
        elif not text.startswith(NOT_A_REPORT):
            reports[-1].append(text)
    return ["\n".join(lines) for lines in reports if lines]


def pytest_in(lines: Path, *arguments: str, share: str | None = None) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a pytest run that writes outcomes to `lines`."""
    plugins = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, plugins))}
    # Line numbers of our kernels in reports.
    environment |= {result_lines.FILE: str(lines), "CONVSWAP_LINE_INFO": "1"}
    environment |= {"CONVSWAP_TEST_SHARE": share} if share is not None else {}
    command = [sys.executable, "-m", "pytest", "-m", MARKERS, "-p", result_lines.__name__]
    return [*command, *arguments], environment


def collect(arguments: Sequence[str]) -> dict[str, set[str]]:
    """Return the marks of each test by name; end the program if pytest finds no tests."""
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "lines")
        command, environment = pytest_in(lines, "--collect-only", "-qq", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            output = (done.stdout + done.stderr).strip()[-600:]
            print(f"pytest cannot collect the tests, status {done.returncode}: {output}", file=sys.stderr)
            raise SystemExit(2)
        return {line["test"]: set(line["marks"]) for line in lines_of(lines)}


def groups_of(tests: Sequence[str], max_tests: int) -> list[list[str]]:
    """Return groups of at most `max_tests` tests; tests that name the same kernels are neighbours."""
    ordered = sorted(tests, key=lambda test: sorted(set(KERNELS_OF.findall(test))))
    count = math.ceil(len(tests) / max_tests)
    return [ordered[len(tests) * i // count : len(tests) * (i + 1) // count] for i in range(count)]


class Settings(NamedTuple):
    """A tool, its options, and the fraction of their repetitions that tests make (all if None)."""

    tool: str
    options: tuple[str, ...]
    share: str | None


def settings_of(tool: str, marks: Set[str], jobs: int) -> Settings:
    """Return the settings for a test with these marks, with `jobs` processes at once."""
    options: list[str] = []
    if tool == "racecheck":
        # Otherwise the workers of each process take all cores, and wait for each other.
        options += ["--racecheck-num-workers", str(math.ceil((os.cpu_count() or 1) / jobs))]
    if tool in KERNEL_TOOLS or MANY_THREADS in marks:
        options += ["--show-backtrace", "device"]
    if tool == "memcheck" and marks & {FAILING_CALLS, MANY_THREADS}:
        options += ["--report-api-errors", "no"]
    is_reduced = tool in KERNEL_TOOLS or (tool == "memcheck" and MANY_THREADS in marks)
    return Settings(tool, tuple(options), REDUCED_SHARE if is_reduced else None)


def run_group(settings: Settings, tests: Sequence[str], seconds: float, test_seconds: int) -> list[dict]:
    """Run the tests under a tool for at most `seconds`, and return the lines of the state."""
    tool = settings.tool
    with tempfile.TemporaryDirectory() as folder:
        log, out, outcomes = (Path(folder, name) for name in ("log", "out", "outcomes"))
        command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--log-file", str(log)]
        # The innermost callers identify the library; the frames of Python below them are cut off.
        command += ["--kernel-name", "kernel_substring=convswap", "--num-callers-host", "24"]
        pytest_options = ["-v", "--timeout", str(test_seconds), "-p", "no:cacheprovider"]
        tests_command, environment = pytest_in(outcomes, *pytest_options, *tests, share=settings.share)
        command += [*settings.options, *tests_command]
        with out.open("wb") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env=environment
            )
            try:
                process.wait(max(1.0, seconds))
                crashed = process.returncode not in NORMAL_STATUSES
            except subprocess.TimeoutExpired:
                crashed = False
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output = out.read_text(encoding="utf-8", errors="replace")
        reports = reports_in(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
        lines = [{"tool": tool, **line} for line in lines_of(outcomes) if "outcome" in line]
    if crashed:
        # The first test without an outcome crashed the process.
        remaining = [test for test in tests if test not in {line["test"] for line in lines}]
        lines += [{"tool": tool, "test": test, "outcome": "crashed", "said": ""} for test in remaining[:1]]
        print(
            f"status {process.returncode} under {tool}: {output.strip()[-600:]}", file=sys.stderr, flush=True
        )
    if any(map(UNCHECKED_LAUNCH.search, reports)):
        lines = [line | {"outcome": "unchecked"} if line["outcome"] == "passed" else line for line in lines]
    return lines + [
        {"tool": tool, "tests": list(tests), "ours": bool(OURS.search(report)), "report": report}
        for report in reports
        if not UNCHECKED_LAUNCH.search(report)
    ]


def remaining_groups(
    state: State, tests_of: dict[str, list[str]], marks_of: dict[str, set[str]], options: argparse.Namespace
) -> list[tuple[Settings, list[str]]]:
    """Return the tests to run, in groups of one process each.

    The tools take turns, so that all have run as many groups when the time is over.
    """
    queues = []
    for tool, tests in tests_of.items():
        tests_by_settings: dict[Settings, list[str]] = defaultdict(list)
        for test in tests:
            if not state.is_done(tool, test, options.again):
                tests_by_settings[settings_of(tool, marks_of[test], options.jobs)].append(test)
        queues.append(
            [
                (settings, group)
                for settings, tests_of_settings in tests_by_settings.items()
                for group in groups_of(tests_of_settings, options.group)
            ]
        )
    turns = itertools.zip_longest(*queues)
    return [group for turn in turns for group in turn if group is not None]


def summary(tool: str, state: State, tests: Sequence[str]) -> str:
    """Return a line with the number of tests by outcome, and of reports."""
    ends = Counter(state.ends[tool][test]["outcome"] for test in tests if test in state.ends[tool])
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items())) or "none ended"
    ours, remaining = len(state.reports_of_ours(tool)), len(tests) - sum(ends.values())
    others = len(state.reports[tool]) - ours
    return f"{tool}: {outcomes}, {remaining} left; {ours} reports of ours, {others} others"


def print_outcome(tool: str, state: State, tests: Sequence[str]) -> None:
    """Print the summary of a tool, failed and remaining tests, and some reports."""
    print(summary(tool, state, tests))
    ends, reported = state.ends[tool], state.reported(tool)
    bad = [end for test, end in ends.items() if test in tests and end["outcome"] in BAD_OUTCOMES]
    for end in sorted(bad, key=lambda end: (BAD_OUTCOMES.index(end["outcome"]), end["test"])):
        if end["test"] not in reported:
            outcome = end["outcome"].replace("error", "failed")
            print(
                f"  {outcome} without a report of ours: {': '.join(filter(None, (end['test'], end['said'])))}"
            )
    remaining = sorted(set(tests) - ends.keys())
    for test in remaining if len(remaining) <= MAX_LISTED else ():
        print(f"  left: {test}")
    for report in state.reports_of_ours(tool)[:3]:
        print("  " + report["report"].replace("\n", "\n  "))


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS, help="default: all")
    parser.add_argument("--seconds", type=float, default=540, help="time limit of the run; default: 540")
    parser.add_argument(
        "--test-seconds",
        type=int,
        default=TEST_SECONDS,
        help=f"time limit of a test; default: {TEST_SECONDS}",
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"processes at once; default: {JOBS}")
    parser.add_argument("--group", type=int, default=GROUP, help=f"tests of a process; default: {GROUP}")
    parser.add_argument(
        "--again", action="store_true", help="repeat tests that did not pass and have no report"
    )
    parser.add_argument("tests", nargs="*", help="for pytest to collect, after --; default: all")
    return parser.parse_args(arguments)


def why_not_with(tools: Sequence[str]) -> str:
    """Return why the installed compute-sanitizer cannot run the tools; "" if it can."""
    if shutil.which("compute-sanitizer") is None:
        return "there is no compute-sanitizer; it comes with the CUDA toolkit"
    command = ["compute-sanitizer", "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    major, minor = re.findall(r"Version (\d+)\.(\d+)", output + "Version 0.0")[0]
    if "initcheck" not in tools or (int(major), int(minor)) >= INITCHECK_SINCE:
        return ""
    return (
        "initcheck needs compute-sanitizer {}.{}, but this one is ".format(*INITCHECK_SINCE)
        + f"{major}.{minor}; pip install nvidia-cuda-sanitizer-api, or leave initcheck out by --tools"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the tests that are not in the state yet; return the exit status."""
    options = parse_options(arguments)
    tools = options.tools
    if why_not := why_not_with(tools):
        print(why_not, file=sys.stderr)
        return 2
    end = time.monotonic() + options.seconds
    marks_of = collect(options.tests)
    tests_of = {tool: list(marks_of) for tool in tools}
    if "racecheck" in tools:
        tests_of["racecheck"] = [test for test in marks_of if MANY_THREADS not in marks_of[test]]
    state = State(options.state)

    def work(group: tuple[Settings, list[str]]) -> None:
        settings, tests = group
        seconds = end - time.monotonic()
        if seconds > 0:
            state.add(run_group(settings, tests, seconds, options.test_seconds))
            tool = settings.tool
            print(summary(tool, state, tests_of[tool]), file=sys.stderr, flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, remaining_groups(state, tests_of, marks_of, options)))
    for tool in tools:
        print_outcome(tool, state, tests_of[tool])
    if not any(state.ends[tool] for tool in tools):
        print("no test ended; the time was too short, or the tool cannot run them", file=sys.stderr)
        return 2
    ends = {state.ends[tool].get(test, {}).get("outcome") for tool in tools for test in tests_of[tool]}
    return 1 if ends & {"crashed", "unchecked"} or any(map(state.reports_of_ours, tools)) else 0


if __name__ == "__main__":
    sys.exit(main())
