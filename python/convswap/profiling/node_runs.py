"""When ONNX Runtime ran which node: what its own profile says, by another clock.

With profiling on, a session writes a JSON list of events: whole microseconds since the session's profiler
started. An event of category "Node" whose name ends in `_kernel_time` is one call of a node's kernel by the
host. On a GPU that says when the node launched its work, not how long the work took.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError
from convswap.profiling.records import NodeRun

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
