"""Runs the sides of a model under a collector, and keeps what it recorded and when which node ran.

Each side's session is made and run for the first time; then all sides warm up; then they take turns, as in
`measure`, so that a change of the card's clock meets all. In between the card is idle, so that everything in
a window of time is one side's. ONNX Runtime's profiler is on, which costs the host some time for each node,
and the card none.

That profiler writes a JSON list of events: whole microseconds since it started. An event of category "Node"
whose name ends in `_kernel_time` is one call of a node's kernel by the host. On a GPU that says when the
node launched its work, not how long the work took. Its clock and the collector's may have any offset, and run
apart by hundreds of parts in a million while the system's is being corrected. So both are read at many
moments, and what lies between two of them is interpolated.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from convswap.errors import ConvswapError
from convswap.inputs.feeds import Feeds
from convswap.profiling.records import RUN, SET_UP, WARM_UP, Collector, NodeRun, Records, Window
from convswap.progress import Progress
from convswap.runtime.device import Device
from convswap.runtime.onnxruntime_errors import plain_errors
from convswap.runtime.sessions import (
    BoundRun,
    Side,
    check_session,
    load_session,
    on_device,
    run_to_values,
    session_source,
)
from convswap.runtime.values import are_bits
from convswap.timing.sampler import MIN_SAMPLES, SINGLE_RUNS, WARM_UPS

Clock = Callable[[], int]

# Of so many readings the one counts during which the least time passed.
_TRIES = 5

_SUFFIX = "_kernel_time"
# Start and duration are both cut to whole microseconds, so that the end may be two later than their sum.
_CUT_MICROSECONDS = 2

# Runs a model once and waits for the outputs.
_Run = Callable[[], None]


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


@dataclass(frozen=True)
class HostTimes:
    """What the host's clock says of a side, in milliseconds: session creation, first run, timed runs."""

    session: float
    first_run: float
    runs: tuple[float, ...]


@dataclass(frozen=True)
class Recording:
    """All that was recorded of the sides, by name in `host`; the times of the rest are the collector's.

    `long_kernels` tells for which kernels the collector was prepared.
    """

    records: Records
    windows: tuple[Window, ...]
    nodes: tuple[NodeRun, ...]
    host: Mapping[str, HostTimes]
    long_kernels: bool = False


def record(
    models: Mapping[Side, onnx.ModelProto],
    feeds: Feeds,
    device: Device,
    collector: Collector,
    *,
    runs: int | None = None,
    resident: bool = False,
    long_kernels: bool | None = None,
    progress: Progress,
) -> Recording:
    """Record set-up, warm-up and runs of `models`, fed `feeds`.

    Args:
        models: the model of each side.
        feeds: arrays on the host, which each run brings to the device, as it fetches the outputs.
        device: where to run.
        collector: what records; it is started and stopped here.
        runs: how many runs to time; by default 20, or fewer where they take seconds.
        resident: leave inputs and outputs on the device, as `compare` does.
        long_kernels: what the collector is prepared for; by default what the warm-up shows.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: a session cannot be made or run, or the collector cannot record.
    """
    # Loads the provider and starts the driver too, which must count as the set-up of no side.
    values = on_device(feeds if resident else {"x": np.zeros(1, np.float32)}, device)

    def bind(session: onnxruntime.InferenceSession) -> _Run:
        return BoundRun(session, values, device).once if resident else _unbound(session, feeds)

    with tempfile.TemporaryDirectory(prefix="convswap-") as folder:
        collector.start()
        try:
            recorder = _Recorder(device, collector, Path(folder))
            sides = []
            for side, model in models.items():
                progress(f"setting up {side.name}")
                sides.append(recorder.set_up(side, model, bind))
            progress("warming up")
            warming = collector.now()
            for number in range(WARM_UPS):
                for one in sides:
                    recorder.run(one, WARM_UP, number)
            count = _affordable_runs(max(one.milliseconds[-1] for one in sides)) if runs is None else runs
            long_kernels = collector.prepare(warming, long_kernels)
            for one in sides:
                # The first run may pay for the change.
                recorder.run(one, WARM_UP, WARM_UPS)
                one.milliseconds.clear()
            progress(f"recording {count} runs of {' and '.join(one.side.name for one in sides)}")
            for number in range(count):
                for one in sides:
                    recorder.run(one, RUN, number)
        except BaseException:
            collector.stop()
            raise
        records = collector.stop()
        nodes = [node for one in sides for node in recorder.nodes(one)]
    return Recording(
        records=records,
        windows=tuple(recorder.windows),
        nodes=tuple(nodes),
        long_kernels=long_kernels,
        host={
            one.side.name: HostTimes(one.session_ms, one.first_run_ms, tuple(one.milliseconds))
            for one in sides
        },
    )


def _affordable_runs(milliseconds: float) -> int:
    """Return how many runs to record if a run of the slowest side takes so long."""
    affordable = int(SINGLE_RUNS.seconds * 1e3 / max(milliseconds, 1e-6))
    return max(MIN_SAMPLES, min(SINGLE_RUNS.samples, affordable))


@dataclass
class _SideRun:
    """A side with its session, ready to run, and how long that took in milliseconds."""

    side: Side
    session: onnxruntime.InferenceSession
    clock: Clock
    once: _Run
    session_ms: float
    first_run_ms: float
    milliseconds: list[float] = field(default_factory=list)


class _Recorder:
    """Makes and runs sessions, each in a window of its own."""

    def __init__(self, device: Device, collector: Collector, folder: Path) -> None:
        self._device = device
        self._collector = collector
        self._folder = folder
        self._maps = {clock: ClockMap(clock, collector.now) for clock in SystemClocks.CLOCKS}
        self.windows: list[Window] = []

    def set_up(
        self, side: Side, model: onnx.ModelProto, bind: Callable[[onnxruntime.InferenceSession], _Run]
    ) -> _SideRun:
        """Return `side` after its first run; `bind` gives the run of a session."""
        with session_source(model) as source, self._window(side.name, SET_UP, 0):
            clocks = SystemClocks()
            begin = time.perf_counter()
            prefix = str(self._folder / side.name)
            session = load_session(source, side, self._device, profile_prefix=prefix)
            session_ms = (time.perf_counter() - begin) * 1e3
            clock = clocks.which(session.get_profiling_start_time_ns())
            if clock is None:
                raise ConvswapError(
                    f"ONNX Runtime {onnxruntime.__version__} takes the times of its nodes by a clock that "
                    "convswap does not know; please report it"
                )
            check_session(session, side, self._device)
            once = bind(session)
            return _SideRun(side, session, clock, once, session_ms, _milliseconds(once))

    def run(self, one: _SideRun, phase: str, number: int) -> None:
        """Run a side once and wait for it."""
        with self._window(one.side.name, phase, number):
            one.milliseconds.append(_milliseconds(one.once))

    def nodes(self, one: _SideRun) -> Sequence[NodeRun]:
        """Return when the nodes of a side ran. This ends the profile of its session."""
        with plain_errors("ONNX Runtime cannot write its profile"):
            path = one.session.end_profiling()
            start = one.session.get_profiling_start_time_ns()
        return read_node_runs(path, start, self._maps[one.clock].to_other)

    @contextmanager
    def _window(self, side: str, phase: str, number: int) -> Iterator[None]:
        for clock_map in self._maps.values():
            clock_map.sample()
        start = self._collector.now()
        yield
        self.windows.append(Window(side, phase, number, start, self._collector.now()))
        for clock_map in self._maps.values():
            clock_map.sample()


def _unbound(session: onnxruntime.InferenceSession, feeds: Feeds) -> _Run:
    """Return a run that brings its inputs to the device and its outputs back."""
    outputs = session.get_outputs()
    names = [output.name for output in outputs]
    # Of these ONNX Runtime makes no arrays, but has them on the host all the same.
    of_bits = any(are_bits(output.type) for output in outputs)

    def once() -> None:
        with plain_errors("ONNX Runtime cannot run the model"):
            if of_bits:
                run_to_values(session, feeds, names)
            else:
                session.run(None, feeds)

    return once


def _milliseconds(action: _Run) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e3
