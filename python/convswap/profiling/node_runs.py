"""When ONNX Runtime ran which node: what its own profile says, by another clock than the collector's.

With profiling on, a session writes a JSON list of events: whole microseconds since the session's profiler
started. An event of category "Node" whose name ends in `_kernel_time` is one call of a node's kernel by the
host. On a GPU that says when the node launched its work, not how long the work took.

The clocks may have any offset, and run apart by hundreds of parts in a million while the system's is being
corrected. So both are read at many moments, and what lies between two of them is interpolated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from convswap.errors import ConvswapError
from convswap.profiling.records import NodeRun

Clock = Callable[[], int]

# Of so many readings the one counts during which the least time passed.
_TRIES = 5


class ClockMap:
    """Pairs of readings of a system clock, `system`, and of a collector's clock, `other`, in nanoseconds."""

    def __init__(self, system: Clock, other: Clock) -> None:
        self._system = system
        self._other = other
        self._pairs: list[tuple[int, int]] = []

    def sample(self) -> None:
        """Read both clocks."""
        readings = []
        for _ in range(_TRIES):
            before, other, after = self._system(), self._other(), self._system()
            readings.append((after - before, (before + after) // 2, other))
        _, system, other = min(readings)
        self._pairs.append((system, other))

    def to_other(self, system: int) -> int:
        """Return when it was `system`, by the other clock; outside the samples by the offset of the nearest.

        Raises:
            ValueError: nothing was sampled.
        """
        if not self._pairs:
            raise ValueError("no moment was sampled")
        # Differences to the first sample: a time since 1970 in nanoseconds does not fit into a float64.
        system_base, other_base = self._pairs[0]
        systems = [float(pair[0] - system_base) for pair in self._pairs]
        offsets = [float((pair[1] - other_base) - (pair[0] - system_base)) for pair in self._pairs]
        since = system - system_base
        return other_base + since + round(float(np.interp(since, systems, offsets)))


class SystemClocks:
    """Finds which system clock a program read between the creation of this object and `which`."""

    # ONNX Runtime's is std::chrono::high_resolution_clock: the first with libstdc++, the second elsewhere.
    CLOCKS: tuple[Clock, ...] = (time.time_ns, time.monotonic_ns)

    def __init__(self) -> None:
        self._begin = [clock() for clock in self.CLOCKS]

    def which(self, reading: int) -> Clock | None:
        """Return the clock that showed `reading` since this object was made; None where none did."""
        for clock, begin in zip(self.CLOCKS, self._begin, strict=True):
            if begin <= reading <= clock():
                return clock
        return None


_SUFFIX = "_kernel_time"
# Start and duration are both cut to whole microseconds, so that the end may be two later than their sum.
_CUT_MICROSECONDS = 2


def read_node_runs(
    path: str | Path, profile_start: int, to_collector: Callable[[int], int]
) -> tuple[NodeRun, ...]:
    """Return the node runs in the profile that ONNX Runtime wrote to `path`, in the order of their start.

    Args:
        path: what the session's `end_profiling` returned.
        profile_start: the nanosecond when the session's profiler started, by a clock of the system.
        to_collector: turns nanoseconds of that clock into those of the collector's.

    Raises:
        ConvswapError: the file is not such a profile.
    """
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8", errors="replace"))
        runs = [
            _node_run(event, profile_start, to_collector)
            for event in events
            if event.get("cat") == "Node" and str(event.get("name", "")).endswith(_SUFFIX)
        ]
    except OSError as error:
        raise ConvswapError(f"ONNX Runtime's profile cannot be read: {error.strerror}: '{path}'") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConvswapError(
            f"ONNX Runtime's profile cannot be understood ({type(error).__name__}: {error}); "
            "is the disk of the temporary folder full?"
        ) from error
    return tuple(sorted(runs, key=lambda run: run.start))


def _node_run(event: dict[str, Any], profile_start: int, to_collector: Callable[[int], int]) -> NodeRun:
    arguments = event.get("args", {})
    op = str(arguments.get("op_name", ""))
    # A node without a name has its number in the session.
    name = event["name"].removesuffix(_SUFFIX) or f"{op} {arguments.get('node_index', '')}".strip()
    begin = profile_start + int(event["ts"]) * 1000
    end = begin + (int(event["dur"]) + _CUT_MICROSECONDS) * 1000
    return NodeRun(name, op, to_collector(begin), to_collector(end))
