"""Run the sides of a model under a collector; return its records and the time of each node run.

Each side's session is made and run once; then all sides warm up; then the timed runs of the sides alternate,
as in `measure`, so that a change of the card's clock affects all sides. Between runs the card is idle, so
that all records in a window of time belong to one side. ONNX Runtime's profiler is on, which costs the host
some time for each node, and the card none.

ONNX Runtime's profiler writes a JSON list of events, with times in whole microseconds since its start. An
event of category "Node" whose name ends in `_kernel_time` is one call of a node's kernel by the host. On a
GPU its time says when the node launched its work, not how long the work took. The profiler's clock and the
collector's clock may have any offset, and drift by hundreds of parts in a million while the system corrects
its clock. So both clocks are read at many moments, and times between two moments are interpolated.
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
from convswap.runtime.values import lacks_numpy_type
from convswap.timing.sampler import MIN_SAMPLES, SINGLE_RUNS, WARM_UPS

Clock = Callable[[], int]

# The number of readings of both clocks per sample; the reading during which the least time passed counts.
_TRIES = 5

_SUFFIX = "_kernel_time"
# Start and duration are both truncated to whole microseconds, so the end may be two later than their sum.
_CUT_MICROSECONDS = 2

# A function that runs a model once and waits for the outputs.
_Run = Callable[[], None]


class ClockMap:
    """Maps times of a system clock to times of a collector's clock, in nanoseconds."""

    def __init__(self, system: Clock, collector: Clock) -> None:
        self._system = system
        self._collector = collector
        self._pairs: list[tuple[int, int]] = []

    def sample(self) -> None:
        """Read both clocks."""
        readings = []
        for _ in range(_TRIES):
            before, collector, after = self._system(), self._collector(), self._system()
            readings.append((after - before, (before + after) // 2, collector))
        _, system, collector = min(readings)
        self._pairs.append((system, collector))

    def to_collector(self, system: int) -> int:
        """Return the collector's time at the system time `system`.

        Before the first and after the last sample, the offset is that of the nearest sample.

        Raises:
            ValueError: nothing was sampled.
        """
        if not self._pairs:
            raise ValueError("no moment was sampled")
        # Differences to the first sample: a time since 1970 in nanoseconds does not fit into a float64.
        system_base, collector_base = self._pairs[0]
        systems = [float(pair[0] - system_base) for pair in self._pairs]
        offsets = [float((pair[1] - collector_base) - (pair[0] - system_base)) for pair in self._pairs]
        since = system - system_base
        return collector_base + since + round(float(np.interp(since, systems, offsets)))


class SystemClocks:
    """Identifies the system clock that a program read between the creation of this object and `which`."""

    # ONNX Runtime reads std::chrono::high_resolution_clock: the first clock with libstdc++, else the second.
    CLOCKS: tuple[Clock, ...] = (time.time_ns, time.monotonic_ns)

    def __init__(self) -> None:
        self._begin = [clock() for clock in self.CLOCKS]

    def which(self, reading: int) -> Clock | None:
        """Return the clock that had the value `reading` since this object was made; None if none had."""
        for clock, begin in zip(self.CLOCKS, self._begin, strict=True):
            if begin <= reading <= clock():
                return clock
        return None


def read_node_runs(
    path: str | Path, profile_start: int, to_collector: Callable[[int], int]
) -> tuple[NodeRun, ...]:
    """Return the node runs in the profile that ONNX Runtime wrote to `path`, in the order of their start.

    Args:
        path: the file that the session's `end_profiling` returned.
        profile_start: the nanosecond when the session's profiler started, by a clock of the system.
        to_collector: maps nanoseconds of that clock to nanoseconds of the collector's clock.

    Raises:
        ConvswapError: the file is not a profile.
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
    # A node without a name is named by its op and its number in the session.
    name = event["name"].removesuffix(_SUFFIX) or f"{op} {arguments.get('node_index', '')}".strip()
    begin = profile_start + int(event["ts"]) * 1000
    end = begin + (int(event["dur"]) + _CUT_MICROSECONDS) * 1000
    return NodeRun(name, op, to_collector(begin), to_collector(end))


@dataclass(frozen=True)
class HostTimes:
    """Times of a side by the host's clock, in milliseconds: session creation, first run, timed runs."""

    session: float
    first_run: float
    runs: tuple[float, ...]


@dataclass(frozen=True)
class Recording:
    """The records of all sides.

    `host` has times by the host's clock, by the side's name; all other times are by the collector's clock.
    `long_kernels` says whether the collector was prepared for long kernels.
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
    """Record set-up, warm-up and runs of `models` with the inputs `feeds`.

    Args:
        models: the model of each side.
        feeds: arrays on the host; each run copies them to the device, and its outputs back.
        device: where to run.
        collector: the collector, which is started and stopped here.
        runs: how many runs to time; by default 20, or fewer if they take seconds.
        resident: leave inputs and outputs on the device, as `compare` does.
        long_kernels: whether to prepare the collector for long kernels; by default the warm-up decides.
        progress: called with a few words at the start of every step.

    Raises:
        ConvswapError: a session cannot be made or run, or the collector cannot record.
    """
    # This loads the provider and starts the driver, which must not count as the set-up of a side.
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
            warm_up_start = collector.now()
            for number in range(WARM_UPS):
                for side_run in sides:
                    recorder.run(side_run, WARM_UP, number)
            slowest = max(side_run.milliseconds[-1] for side_run in sides)
            count = _affordable_runs(slowest) if runs is None else runs
            long_kernels = collector.prepare(warm_up_start, long_kernels)
            for side_run in sides:
                # The first run after `prepare` may be slower.
                recorder.run(side_run, WARM_UP, WARM_UPS)
                side_run.milliseconds.clear()
            progress(f"recording {count} runs of {' and '.join(side_run.side.name for side_run in sides)}")
            for number in range(count):
                for side_run in sides:
                    recorder.run(side_run, RUN, number)
        except BaseException:
            collector.stop()
            raise
        records = collector.stop()
        nodes = [node for side_run in sides for node in recorder.nodes(side_run)]
    return Recording(
        records=records,
        windows=tuple(recorder.windows),
        nodes=tuple(nodes),
        long_kernels=long_kernels,
        host={
            side_run.side.name: HostTimes(
                side_run.session_ms, side_run.first_run_ms, tuple(side_run.milliseconds)
            )
            for side_run in sides
        },
    )


def _affordable_runs(milliseconds: float) -> int:
    """Return how many runs to record if a run of the slowest side takes so long."""
    affordable = int(SINGLE_RUNS.seconds * 1e3 / max(milliseconds, 1e-6))
    return max(MIN_SAMPLES, min(SINGLE_RUNS.samples, affordable))


@dataclass
class _SideRun:
    """A side with its session, ready to run, and the milliseconds of its set-up and its runs."""

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
        """Return `side` after its first run; `bind` returns the function that runs a session."""
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

    def run(self, side_run: _SideRun, phase: str, number: int) -> None:
        """Run a side once and wait for the outputs."""
        with self._window(side_run.side.name, phase, number):
            side_run.milliseconds.append(_milliseconds(side_run.once))

    def nodes(self, side_run: _SideRun) -> Sequence[NodeRun]:
        """End the profile of a side's session, and return its node runs."""
        with plain_errors("ONNX Runtime cannot write its profile"):
            path = side_run.session.end_profiling()
            start = side_run.session.get_profiling_start_time_ns()
        return read_node_runs(path, start, self._maps[side_run.clock].to_collector)

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
    """Return a run that copies its inputs to the device and its outputs back."""
    outputs = session.get_outputs()
    names = [output.name for output in outputs]
    # ONNX Runtime makes no arrays of such outputs, but its values are copied to the host all the same.
    has_bits = any(lacks_numpy_type(output.type) for output in outputs)

    def once() -> None:
        with plain_errors("ONNX Runtime cannot run the model"):
            if has_bits:
                run_to_values(session, feeds, names)
            else:
                session.run(None, feeds)

    return once


def _milliseconds(action: _Run) -> float:
    begin = time.perf_counter()
    action()
    return (time.perf_counter() - begin) * 1e3
