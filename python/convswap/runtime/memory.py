"""How much memory of the host there is to be had."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Return how many bytes a process may still take before the system ends one; None where nobody knows.

    In a container that is what its group of processes is allowed and does not use.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    allowed = _left_to_the_group()
    return free if allowed is None else min(free, allowed)


def in_bytes(size: int) -> str:
    """Return a size in words for a reader, in GB or MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _left_to_the_group() -> int | None:
    try:
        limit = int((_GROUP / "memory.max").read_text(encoding="utf-8"))
        used = int((_GROUP / "memory.current").read_text(encoding="utf-8"))
        lines = (_GROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        # Pages of files are given back when memory is asked for.
        cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, StopIteration):
        # No such group, or one without a limit, which says "max".
        return None
    return max(0, limit - used + cached)
