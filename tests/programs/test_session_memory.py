"""What a session leaves behind when it is closed: nothing of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest
from build_tools import TOOLS
from session_memory import MOST_MORE

pytestmark = [pytest.mark.slow, pytest.mark.extended]


def more_of(kind: str, device: str) -> float:
    """Return by how many bytes more a process grows for a session of the kind than for one without our op."""
    done = subprocess.run(
        [sys.executable, TOOLS / "session_memory.py", kind, device],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize("kind", ["swapped", "override"])
def test_closed_session_leaves_no_more_than_one_without_our_op(device: str, kind: str) -> None:
    more = more_of(kind, device)
    assert more < MOST_MORE, f"{more:.0f} bytes more for each session"


def test_memory_that_a_session_keeps_is_noticed() -> None:
    more = more_of("keeping", "cpu")
    assert MOST_MORE < more < 4 * MOST_MORE
