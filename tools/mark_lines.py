"""A plugin of pytest that says in a line which marks a collected test has.

`python -m pytest --collect-only -p mark_lines`, with this folder on PYTHONPATH.
"""

from __future__ import annotations

import pytest

BEGINNING = "MARKS "


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write `MARKS test - mark mark` for each test that is left."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    for item in session.items:
        marks = " ".join(sorted({mark.name for mark in item.iter_markers()}))
        terminal.write_line(f"{BEGINNING}{item.nodeid} - {marks}")
