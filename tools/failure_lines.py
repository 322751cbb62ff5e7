"""A plugin of pytest that says in a line why a test failed, at once: for runs that may not come to their end.

`python -m pytest -p failure_lines`, with this folder on PYTHONPATH.
"""

from __future__ import annotations

import pytest

BEGINNING = "WHY "


class FailureLines:
    """Writes `WHY test - reason` after each test that failed."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the line, where the reporter has written how the test ended."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason, *_ = str(crash.message if crash else report.longrepr).strip().splitlines() or [""]
            self._terminal.ensure_newline()
            self._terminal.write_line(f"{BEGINNING}{report.nodeid} - {reason}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin to listen, where there is a reporter to write by."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(FailureLines(terminal))
