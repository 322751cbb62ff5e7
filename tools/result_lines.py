"""A pytest plugin that writes JSON lines to $CONVSWAP_RESULT_LINES, complete up to a crash.

`python -m pytest -p result_lines`, with this folder on PYTHONPATH. A test writes {"test", "marks"} when it is
collected, and {"test", "outcome", "said"} when it ends; "said" is the first line of a failure's reason.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

FILE = "CONVSWAP_RESULT_LINES"


def write_line(**line: object) -> None:
    """Append the line to the file."""
    with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the marks of each selected test."""
    for item in session.items:
        write_line(test=item.nodeid, marks=sorted({mark.name for mark in item.iter_markers()}))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the outcome of the test, or of a set-up or teardown that failed or skipped it."""
    if report.when != "call" and report.passed:
        return
    outcome = "error" if report.failed and report.when != "call" else report.outcome
    crash = getattr(report.longrepr, "reprcrash", None)
    reason = str(crash.message if crash else report.longrepr or "").strip() if report.failed else ""
    outcome = "xfailed" if hasattr(report, "wasxfail") else outcome
    write_line(test=report.nodeid, outcome=outcome, said=reason.partition("\n")[0])
