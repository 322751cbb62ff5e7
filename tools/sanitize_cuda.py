"""Run the GPU tests under the tools of compute-sanitizer.

    python tools/sanitize_cuda.py --state build/sanitized_cuda.jsonl --seconds 540
    python tools/sanitize_cuda.py --state build/racecheck.jsonl --tools racecheck -- tests/op

Tests are dealt out to groups, each group in a process of its own under one tool, several at once: the tools
look through all kernels that a process loads, which takes seconds for each file of them. So large groups take
less time in all, tests that name the same algorithm and type come together, and `--group 1` tells which test
a report belongs to. The state file gets a line for each test that ended and for each report, with a hash of
the library; a test that is in it is not run again under that tool with that library, unless it was skipped,
so that a run that its time limit ended goes on where it stopped. Where a tool had too little memory to look
at a launch, no test of its process counts as passed but as unchecked. With --again those that failed, crashed
or were unchecked without a report of ours run again: with fewer jobs, say. Tests marked `large` are left out:
the tools would take hours for tensors of 2^31 elements.

The tools look at our kernels and at every call of the driver; other libraries' kernels (cuDNN's, on the
default provider's side) run as they are. A report counts where the kernel or whoever made the call is ours;
the others are counted apart. Tests repeat themselves less, take fewer images and time fewer runs
(tests/helpers/repeats.py) under racecheck, the slowest, and under synccheck, which takes memory of the card
for each launch: 80 GB were not enough for 1,200. Tests may fail under a tool without a report, those that
measure time or free memory above all; they are named at the end with what they said, and so are those left
where they are few: a process that the tool brings to a stand does not even end a test by its time. With
--cards tests see one card each, and those of several are not collected. Calls that fail are not reported
where tests are marked `failing_calls`, which have them fail on purpose.

At each launch the tools take down the callers, also Python's, and wait for the interpreter's lock with locks
of the driver held: where a thread that has the lock is in the driver, nothing goes on (2026.4; native stacks
show it, with ONNX Runtime's own Conv and without our library too). So racecheck and synccheck, whose reports
are about kernels, take down none, nor do the others where tests are marked `many_threads`, which run kernels
in several threads of Python; memcheck does not report failed calls there, since whose they are could not be
told. racecheck leaves these tests out: it loses launches of several threads, of other libraries as well. For
memcheck they repeat themselves less; over the mixed load it does not come to an end, in code of its own.

initcheck asks for compute-sanitizer 2026.4 (CUDA 13.5, or `pip install nvidia-cuda-sanitizer-api`): those
before 2025.4 take what bulk copies wrote, and those before 2026.4 what other libraries' kernels wrote, for
never written.

Exits 1 where a report is ours, a process crashed or a test is unchecked, 2 where the tests or the tools
cannot be run.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
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
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import failure_lines
import mark_lines
from convswap import library_path

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MARKERS = "gpu and not large"
FAILING_CALLS, MANY_THREADS = "failing_calls", "many_threads"
GROUP, JOBS = 400, 12
TEST_SECONDS = 120
KERNELS = "kernel_substring=convswap"
# How much of their repetitions tests make where they are to repeat themselves less.
LESS = "0.02"
# Of the host: whose call it was, and not all of Python's below.
CALLERS = 24
INITCHECK_SINCE = (2026, 4)
# Of those left: more have had no time yet.
MOST_NAMED = 20
OURS = re.compile(r"convswap::|libconvswap|_native\.")
ENDED = re.compile(r"^(\S+::.*?) (PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)", re.MULTILINE)
SAID = re.compile(rf"^{failure_lines.BEGINNING}(\S+::.*?) - (.*)", re.MULTILINE)
MARKED = re.compile(rf"^{mark_lines.BEGINNING}(\S+::.*?) - (.*)$", re.MULTILINE)
# What the names of tests say about the kernels that they load; libraries have files of kernels for each type.
KERNELS_OF = re.compile(
    r"naive|tiled|depthwise|sliding_rows|sliced_k|separable|few_channels|toeplitz|implicit_gemm|b?float\d+|tf32|ieee"
)
# Tools that report nothing of the host's calls.
REPORT_KERNELS = ("racecheck", "synccheck")
# Of pytest: all passed, some failed; everything else is no end of its own.
ORDINARY_ENDS = (0, 1)
# What a tool says of a launch that it has let go by, or of one that it does not name.
NOT_LOOKED_AT = re.compile(r"didn't track the launch|failure to track a kernel launch")
NOT_A_REPORT = ("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "Target application returned")


class State:
    """The lines of the state file.

    {"tool", "test", "outcome", "said"} or {"tool", "tests", "ours", "report"}, each with the library's hash
    beside these; those of another library are left in the file and not read.
    """

    def __init__(self, path: Path, library: str) -> None:
        self._path = path
        self._library = library
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = []
        for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            # The last line may be half of one, where the run before was stopped.
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if line["library"] == library:
                    self.lines.append(line)

    def add(self, lines: Iterable[dict]) -> None:
        """Keep the lines, in the file too."""
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            for line in lines:
                self.lines.append(line)
                file.write(json.dumps({"library": self._library, **line}) + "\n")

    def outcomes(self, tool: str) -> dict[str, str]:
        """Return how each test ended under `tool`."""
        return {
            line["test"]: line["outcome"] for line in self.lines if "test" in line and line["tool"] == tool
        }

    def said(self, tool: str, test: str) -> str:
        """Return pytest's line about how the test failed under `tool`."""
        return next(
            line["said"] for line in reversed(self.lines) if line.get("test") == test and line["tool"] == tool
        )

    def done(self, tool: str, again: bool) -> set[str]:
        """Return the tests that need not run under `tool`; `again`: those that passed or are reported."""
        reported = {test for each in self.reports(tool) if each["ours"] for test in each["tests"]}
        return {
            test
            for test, outcome in self.outcomes(tool).items()
            if outcome == "passed" or (outcome != "skipped" and (not again or test in reported))
        }

    def reports(self, tool: str) -> list[dict]:
        """Return what `tool` reported."""
        return [line for line in self.lines if "report" in line and line["tool"] == tool]


def reports_in(log: str) -> list[str]:
    """Return the reports in what a tool logged, one text each."""
    found: list[list[str]] = [[]]
    for line in log.splitlines():
        text = line.removeprefix("=========").strip()
        if not text:
            found.append([])
        elif not text.startswith(NOT_A_REPORT):
            found[-1].append(text)
    return ["\n".join(lines) for lines in found if lines]


def environment_of(card: str | None, share: str | None = None) -> dict[str, str]:
    """Return the environment of pytest's processes, with our plugins; they see one card, None for all."""
    plugins = str(Path(failure_lines.__file__).parent)
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, [plugins, os.environ.get("PYTHONPATH")]))}
    seen = {} if card is None else {"CUDA_VISIBLE_DEVICES": card}
    shares = {} if share is None else {"CONVSWAP_TEST_SHARE": share}
    # So that reports have the lines of our kernels.
    return os.environ | {"CONVSWAP_LINE_INFO": "1"} | paths | seen | shares


def collect(arguments: Sequence[str], card: str | None) -> dict[str, set[str]]:
    """Return the names of the tests, which may depend on the card, and the marks of each.

    Ends the program where pytest cannot collect them or finds none.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", MARKERS]
    command += ["-p", mark_lines.__name__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment_of(card))
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip()[-600:]
        print(f"pytest cannot collect the tests, status {done.returncode}: {said}", file=sys.stderr)
        raise SystemExit(2)
    return {test: set(marks.split()) for test, marks in MARKED.findall(done.stdout)}


def sanitizer_version() -> tuple[int, ...]:
    """Return the version of compute-sanitizer; empty where it does not say one."""
    said = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"Version ([0-9.]+)", said.stdout)
    return tuple(map(int, match[1].split("."))) if match else ()


def library_hash() -> str:
    """Return what tells one build of the library from another."""
    return hashlib.sha256(library_path().read_bytes()).hexdigest()[:16]


def grouped(tests: Sequence[str], most: int) -> list[list[str]]:
    """Return the tests in groups of `most` at most, those together that name the same kernels."""
    ordered = sorted(tests, key=lambda test: sorted(set(KERNELS_OF.findall(test))))
    count = math.ceil(len(tests) / most)
    return [ordered[len(tests) * i // count : len(tests) * (i + 1) // count] for i in range(count)]


class Settings(NamedTuple):
    """What is to be told to a tool, and to the tests under it: how much of their repetitions to make."""

    tool: str
    options: tuple[str, ...] = ()
    share: str | None = None


def settings_of(tool: str, marks: Set[str], jobs: int) -> Settings:
    """Return what `tool` needs for a test with these marks, where so many processes run at once."""
    options: list[str] = []
    if tool == "racecheck":
        # Each would take all cores for itself, and the time would go into their waiting for each other.
        options += ["--racecheck-num-workers", str(math.ceil((os.cpu_count() or 1) / jobs))]
    if tool in REPORT_KERNELS or MANY_THREADS in marks:
        options += ["--show-backtrace", "device"]
    if tool == "memcheck" and marks & {FAILING_CALLS, MANY_THREADS}:
        options += ["--report-api-errors", "no"]
    is_less = tool in REPORT_KERNELS or (tool == "memcheck" and MANY_THREADS in marks)
    return Settings(tool, tuple(options), LESS if is_less else None)


def run_group(
    settings: Settings, tests: Sequence[str], seconds: float, card: str | None, test_seconds: int
) -> list[dict]:
    """Run the tests under a tool, for so many seconds at most, each and all; return the lines of the state.

    `card` is the one that they see; None for all.
    """
    tool = settings.tool
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder) / "log", Path(folder) / "out"
        command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", "--log-file", str(log)]
        command += ["--kernel-name", KERNELS, "--num-callers-host", str(CALLERS), *settings.options]
        command += [sys.executable, "-m", "pytest", "-v", "-m", MARKERS, "--timeout", str(test_seconds)]
        command += ["-p", "no:cacheprovider", "-p", failure_lines.__name__, *tests]
        with out.open("wb") as file:
            environment = environment_of(card, settings.share)
            process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, env=environment
            )
            is_cut_off = False
            try:
                process.wait(max(1.0, seconds))
            except subprocess.TimeoutExpired:
                is_cut_off = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = out.read_text(encoding="utf-8", errors="replace")
        logged = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    reasons = dict(SAID.findall(said))
    lines: list[dict] = [
        {"tool": tool, "test": test, "outcome": outcome.lower(), "said": reasons.get(test, "")}
        for test, outcome in ENDED.findall(said)
    ]
    if not is_cut_off and process.returncode not in ORDINARY_ENDS:
        # Whichever came next took the process with it, and would again.
        ended = {line["test"] for line in lines}
        lines += [
            {"tool": tool, "test": test, "outcome": "crashed", "said": ""}
            for test in tests
            if test not in ended
        ][:1]
        print(f"status {process.returncode} under {tool}: {said.strip()[-600:]}", file=sys.stderr, flush=True)
    reports = reports_in(logged)
    if any(map(NOT_LOOKED_AT.search, reports)):
        lines = [line | {"outcome": "unchecked"} if line["outcome"] == "passed" else line for line in lines]
    for report in reports:
        if NOT_LOOKED_AT.search(report):
            continue
        lines.append(
            {"tool": tool, "tests": list(tests), "ours": bool(OURS.search(report)), "report": report}
        )
    return lines


def summary(tool: str, state: State, tests: Sequence[str]) -> str:
    """Return in a line how many tests ended how, and what was reported."""
    outcomes = state.outcomes(tool)
    ends = Counter(outcomes[test] for test in tests if test in outcomes)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items()))
    reports = state.reports(tool)
    ours = sum(each["ours"] for each in reports)
    left = len(tests) - sum(ends.values())
    return (
        f"{tool}: {told or 'none ended'}, {left} left; {ours} reports of ours, {len(reports) - ours} others"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run what is not in the state yet; return the exit status."""
    options = parsed(arguments)
    tools = options.tools
    if why_not := why_not_with(tools):
        print(why_not, file=sys.stderr)
        return 2
    end = time.monotonic() + options.seconds
    cards = options.cards.split(",") if options.cards else [None]
    marks_of = collect(options.tests, cards[0])
    tests_of = {
        tool: [test for test, marks in marks_of.items() if tool != "racecheck" or MANY_THREADS not in marks]
        for tool in tools
    }
    state = State(options.state, library_hash())
    queue = groups_left(state, tests_of, marks_of, options)

    def work(number: int, group: tuple[Settings, list[str]]) -> None:
        settings, own = group
        seconds = end - time.monotonic()
        if seconds > 0:
            card = cards[number % len(cards)]
            state.add(run_group(settings, own, seconds, card, options.test_seconds))
            tool = settings.tool
            print(summary(tool, state, tests_of[tool]), file=sys.stderr, flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work, number, group) for number, group in enumerate(queue)]:
            future.result()
    for tool in tools:
        print_outcome(tool, state, tests_of[tool])
    if not any(state.outcomes(tool) for tool in tools):
        print("no test ended; the time was too short, or the tool cannot run them", file=sys.stderr)
        return 2
    ended = {
        outcome for tool in tools for test, outcome in state.outcomes(tool).items() if test in tests_of[tool]
    }
    is_reported = any(each["ours"] for tool in tools for each in state.reports(tool))
    return 1 if is_reported or ended & {"crashed", "unchecked"} else 0


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options, their tools as a list; end the program for what cannot be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--state", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--tools", default=",".join(TOOLS), help=f"default: {','.join(TOOLS)}")
    parser.add_argument("--seconds", type=float, default=540, help="end after so many; default: 540")
    parser.add_argument(
        "--test-seconds",
        type=int,
        default=TEST_SECONDS,
        help=f"of each test, which a tool may slow down a hundredfold; default: {TEST_SECONDS}",
    )
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"processes at once; default: {JOBS}")
    parser.add_argument("--cards", help="one for each process in turn, as 0,1; default: all for each")
    parser.add_argument("--group", type=int, default=GROUP, help=f"tests of a process; default: {GROUP}")
    parser.add_argument("--again", action="store_true", help="also what did not pass, without a report")
    parser.add_argument("tests", nargs="*", help="what pytest is to collect, after --; default: all")
    options = parser.parse_args(arguments)
    options.tools = options.tools.split(",")
    if unknown := [tool for tool in options.tools if tool not in TOOLS]:
        parser.error(f"there is no tool {unknown[0]!r}; choose from {', '.join(TOOLS)}")
    if min(options.jobs, options.group, options.test_seconds) < 1:
        parser.error("--jobs, --group and --test-seconds must be at least 1")
    return options


def why_not_with(tools: list[str]) -> str:
    """Return why the compute-sanitizer at hand cannot run the tools; "" where it can."""
    if shutil.which("compute-sanitizer") is None:
        return "there is no compute-sanitizer; it comes with the CUDA toolkit"
    version = sanitizer_version()
    if "initcheck" not in tools or version >= INITCHECK_SINCE:
        return ""
    since, own = (".".join(map(str, each)) for each in (INITCHECK_SINCE, version))
    return (
        f"initcheck needs compute-sanitizer {since}, but this one is {own or 'unknown'}; "
        "pip install nvidia-cuda-sanitizer-api, or leave it out by --tools"
    )


def groups_left(
    state: State,
    tests_of: dict[str, list[str]],
    marks_of: dict[str, set[str]],
    options: argparse.Namespace,
) -> list[tuple[Settings, list[str]]]:
    """Return the tests that are not in the state, in groups of one process each.

    The tools take turns, so that each has come as far as the others when the time is over.
    """
    groups = []
    for tool, tests in tests_of.items():
        done = state.done(tool, options.again)
        parts: dict[Settings, list[str]] = {}
        for test in tests:
            if test not in done:
                parts.setdefault(settings_of(tool, marks_of[test], options.jobs), []).append(test)
        groups.append([(own, group) for own, part in parts.items() for group in grouped(part, options.group)])
    return [
        group for turn in range(max(map(len, groups))) for own in groups for group in own[turn : turn + 1]
    ]


def print_outcome(tool: str, state: State, tests: list[str]) -> None:
    """Print what came of a tool's tests: the sum, those that ended badly, those left, and some reports."""
    print(summary(tool, state, tests))
    ours = [each for each in state.reports(tool) if each["ours"]]
    reported = {test for each in ours for test in each["tests"]}
    outcomes = state.outcomes(tool)
    ends_told = {("failed", "error"): "failed", ("crashed",): "crashed", ("unchecked",): "unchecked"}
    for ends, told in ends_told.items():
        for test in sorted(tests):
            if outcomes.get(test) in ends and test not in reported:
                said = state.said(tool, test)
                print(f"  {told} without a report of ours: {test}{said and f': {said}'}")
    left = sorted(set(tests) - outcomes.keys())
    for test in left if len(left) <= MOST_NAMED else ():
        print(f"  left: {test}")
    for each in ours[:3]:
        print("  " + each["report"].replace("\n", "\n  "))


if __name__ == "__main__":
    sys.exit(main())
