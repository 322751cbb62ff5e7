"""Mixed load: threads run random convolutions in sessions that come and go, and memory is logged.

    python tools/mixed_load.py --device cuda --seconds 540 --seed 1 --log load.csv

A fixed pool of problems is drawn as in conv_property.py and checked there against float64; what a session
computes must be, bit for bit, what was checked. Sessions have constant weights or weights as inputs, run the
swapped or the unmodified model (override mode), are shared by all threads, or replay a CUDA graph from memory
of the card; their inputs change shape from run to run, and some do not fit, which must give a status and
leave the session as it was. A shared session of each model is never closed.

Memory is logged once a second, and whatever the run's length, its clock is cut into nine "minutes". With
sessions coming and going, memory varies by more than a leak adds. So every 15 seconds all threads pause for
two, all sessions but the long-lived close, and the C library gives back the free memory that it keeps for
later: what is in use at the end of such a rest is what the process holds for good. Growth is the median of
these figures in the last minute less their median in the third, times 7/6, since the middles of the two are
6 minutes apart and the time from 2:00 to the end is 7. A steady leak shows in full, a single odd sample does
not. Rests begin at whole multiples of 15 seconds of the clock, so that processes which share a card and were
started together rest together: what is logged of the card includes them. The same difference over all samples
is printed as well, and not judged.

Prints one line and exits 1 where anything went wrong or memory grew by 8 MiB or more.

Three things of ONNX Runtime's own grow too, and are kept apart. Its CUDA provider keeps some memory of every
session for good, with our library or without (session_memory.py): `--lasting` closes none before its
end. A session sets up a stream and its libraries' workspaces, some 70 MiB of the card, whenever more runs are
in flight than ever before: with `--lasting`, all threads first run each session at once. And its telemetry
notes every failed run, and holds such notes until they are sent: it is turned off.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import dataclasses
import faulthandler
import gc
import io
import itertools
import math
import mmap
import os
import re
import statistics
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

# Before the runtime is loaded: it reads this once.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime
from conv_property import MOST_OPERATIONS, Draw, check, draws, results
from convswap import _native, override_session
from cuda_driver import bus_id, on_card
from element_types import ort_value
from hypothesis import HealthCheck, Phase, given, seed, settings
from onnx import helper
from op_sessions import PROVIDERS, conv_model, make_session

MIB = 1 << 20
MOST_GROWTH = 8 * MIB
MINUTES = 9
# In samples, of which a run of 9 minutes takes one a second.
SAMPLES_PER_RUN = 60 * MINUTES
REST_EVERY, REST = 15, 2
SHORTEST_INTERVAL = 0.05
# The tensors of a problem: small, so that all that are in flight together stay within a few MiB.
MOST_BYTES = 1 << 19
SHAPES_PER_SPEC = 3
# How often a session is used before another takes its place. A capture stops all threads, hence more.
USES, USES_OF_GRAPH = range(20, 60), range(200, 600)
MOST_RUNS_PER_USE = 6
MISFIT_SHARE = 0.05
# Enough for the threads to be in flight together, whichever is let go first.
RUNS_AT_ONCE = 50
# ONNX Runtime captures the third run at the latest.
RUNS_TO_CAPTURE = 4
HANG_SECONDS = 30
SHOWN_ERRORS = 10


# The problems


@dataclass(frozen=True)
class Reshaped(Draw):
    """A draw with the weights and bias of another, and an input and a residual of its own."""

    original: Draw = field(kw_only=True)

    def arrays(self) -> list[np.ndarray | None]:
        """Return what a draw returns, with w and b of the original."""
        x, _, _, *others = super().arrays()
        return [x, *self.original.arrays()[1:3], *others]


class Problem:
    """A checked problem, ready to run: its arrays, the bits that must come out, an input that is unfit."""

    def __init__(self, draw: Draw, device: str) -> None:
        check(draw, device)
        arrays = draw.arrays()
        chosen = _native.choose(draw.problem, device)
        # Of the instruction sets of a CPU algorithm the first is the one that it takes by itself.
        self.expected = next(y for name, y in results(draw, arrays, device) if name.split()[0] == chosen)
        self.draw = draw
        self.type = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        self.arrays = {key: a for key, a in zip("xwbz", arrays[:4], strict=True) if a is not None}
        self.values = {key: ort_value(array, self.type) for key, array in self.arrays.items()}
        batch, channels, *sizes = arrays[0].shape
        # Kept, since an OrtValue may use the array's memory.
        self._unfit_array = np.zeros((batch, channels + 1, *sizes), arrays[0].dtype)
        self.unfit = ort_value(self._unfit_array, self.type)

    def poisoned_output(self) -> np.ndarray:
        """Return memory for the output in which whatever is not written shows."""
        return np.full(self.expected.shape, np.nan, self.expected.dtype)

    def require(self, y: np.ndarray) -> None:
        """Raise AssertionError where `y` is not, bit for bit, what was checked against float64."""
        if y.shape != self.expected.shape or y.dtype != self.expected.dtype:
            raise AssertionError(f"{self.draw}: {y.dtype} {y.shape}, expected {self.expected.shape}")
        bytes_given, bytes_expected = (
            np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (y, self.expected)
        )
        if not np.array_equal(bytes_given, bytes_expected):
            differ = np.argwhere(~(y == self.expected))
            raise AssertionError(
                f"{self.draw}: {len(differ)} of {y.size} differ, first {differ[:1].tolist()}"
            )


class Spec:
    """What a session is made for: a model for each kind of session, and problems for it to run."""

    def __init__(self, draw: Draw, device: str) -> None:
        self.problems = [Problem(each, device) for each in shapes_of(draw)]
        arrays = self.problems[0].arrays
        is_fused = bool(draw.epilogue)
        attributes = {
            **draw.case.attributes,
            **draw.epilogue,
            "op": "FusedConv" if is_fused else "Conv",
            "z": [None] * arrays["x"].ndim if draw.has_residual else None,
            "precision": draw.precision,
            "x": [None] * arrays["x"].ndim,
            "element_type": self.problems[0].type,
        }
        constants = {"w": arrays["w"], "b": arrays.get("b")}
        undeclared = {key: None if a is None else [None] * a.ndim for key, a in constants.items()}
        constant = conv_model(**attributes, **constants)
        self.models = {
            "inputs": conv_model(**attributes, **undeclared),
            "constant": constant,
            # ONNX has no FusedConv, which is ours in any case.
            "override": constant if is_fused else conv_model(**{**attributes, "domain": ""}, **constants),
            "graph": constant,
        }

    def problems_for(self, kind: str) -> list[Problem]:
        """Return what a session of that kind can run: an array without elements has no memory to bind."""
        if kind != "graph":
            return self.problems
        return [each for each in self.problems if each.arrays["x"].size and each.expected.size]


def shapes_of(draw: Draw) -> list[Draw]:
    """Return the draw and the same with larger inputs."""
    batch, channels, *sizes = draw.case.x_shape
    others = [
        dataclasses.replace(draw.case, x_shape=(batch + more, channels, *(size + more for size in sizes)))
        for more in range(1, SHAPES_PER_SPEC)
    ]
    how = (draw.type, draw.precision, draw.data_seed + 1, draw.epilogue, draw.has_residual)
    return [draw, *(Reshaped(case, *how, original=draw) for case in others)]


def is_small(draw: Draw) -> bool:
    """Return whether many of the draw may be in flight together."""
    problem = draw.problem
    return problem.bytes <= MOST_BYTES and problem.operations <= 2 * MOST_OPERATIONS


def draw_specs(number: int, count: int) -> list[Draw]:
    """Return `count` draws, all of whose shapes are small."""
    found: dict[str, Draw] = {}

    @seed(number)
    @settings(
        max_examples=20 * count,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(draws())
    def collect(draw: Draw) -> None:
        if len(found) < count and all(map(is_small, shapes_of(draw))):
            found.setdefault(repr(draw), draw)

    collect()
    return list(found.values())


# Sessions that come and go


class Gate:
    """Many may be inside together, or one alone; who waits to be alone goes first."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._waiting = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Be inside beside others."""
        with self._condition:
            self._condition.wait_for(lambda: self._inside >= 0 and not self._waiting)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Be inside with nobody else."""
        with self._condition:
            self._waiting += 1
            self._condition.wait_for(lambda: self._inside == 0)
            self._waiting -= 1
            self._inside = -1
        try:
            yield
        finally:
            with self._condition:
                self._inside = 0
                self._condition.notify_all()


class FixedMemory:
    """The inputs and the output of one problem at fixed addresses of the device, bound to a session."""

    def __init__(self, session: onnxruntime.InferenceSession, problem: Problem, device: str) -> None:
        self._session, self._problem = session, problem
        self._on_card = device == "cuda"
        self._binding = session.io_binding()
        self._inputs = []  # kept while they are bound
        for value in session.get_inputs():
            array = problem.arrays[value.name]
            fixed = _native.DeviceArray.from_numpy(array) if self._on_card else array
            address = fixed.pointer if self._on_card else fixed.ctypes.data
            self._inputs.append(fixed)
            self._binding.bind_input(value.name, device, 0, problem.type, list(array.shape), address)
        shape = list(problem.expected.shape)
        if self._on_card:
            self._y = _native.DeviceArray(shape, problem.draw.type)
            address = self._y.pointer
        else:
            self._y = problem.poisoned_output()
            address = self._y.ctypes.data
        self._binding.bind_output("y", device, 0, problem.type, shape, address)

    def run(self) -> None:
        """Run the session into poisoned memory."""
        if self._on_card:
            self._y.poison()
        else:
            self._y.fill(np.nan)
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()
        self._problem.require(self._y.to_numpy() if self._on_card else self._y)


@dataclass
class Opened:
    """A session with what it runs, and how many more uses it has."""

    spec: Spec
    session: onnxruntime.InferenceSession
    inputs: list[str]
    uses: int
    fixed: FixedMemory | None = None


class Slot:
    """A place for one session of a kind at a time; each session is of another spec than the one before."""

    def __init__(self, kind: str, lives_long: bool, load: Load, random: Random) -> None:
        self.kind, self.lives_long = kind, lives_long
        self._load, self._random = load, random
        self._lock = threading.Lock()
        self._queue: list[Spec] = []
        self._opened: Opened | None = None

    def take(self) -> Opened:
        """Return the open session, or a new one where there is none or it has been used enough."""
        with self._lock:
            self._renew()
            self._opened.uses -= 1
            return self._opened

    def renew(self) -> None:
        """Open a session where there is none or it has been used enough."""
        with self._lock:
            self._renew()

    def _renew(self) -> None:
        if self.is_spent():
            # Whoever still runs the old one keeps it until then.
            self._opened = None
            self._opened = self._open()

    def is_spent(self) -> bool:
        """Return whether another session is to take this one's place."""
        return self._opened is None or (self._opened.uses <= 0 and not self.lives_long)

    def close(self) -> None:
        """Close the session, unless it lives long."""
        if not self.lives_long:
            self._opened = None

    def _open(self) -> Opened:
        spec = self._next_spec()
        session = self._load.open_session(spec.models[self.kind], self.kind)
        inputs = [value.name for value in session.get_inputs()]
        if self.kind != "graph":
            return Opened(spec, session, inputs, self._random.choice(USES))
        problem = self._random.choice(spec.problems_for("graph"))
        fixed = FixedMemory(session, problem, self._load.device)
        for _ in range(RUNS_TO_CAPTURE):
            fixed.run()
        return Opened(spec, session, inputs, self._random.choice(USES_OF_GRAPH), fixed)

    def _next_spec(self) -> Spec:
        """Return specs in random order, every one before any again, so that all are met early on."""
        if not self._queue:
            self._queue = [spec for spec in self._load.specs if spec.problems_for(self.kind)]
            self._random.shuffle(self._queue)
        return self._queue.pop()


class Load:
    """The threads, the sessions they use, and what came of it."""

    def __init__(
        self,
        device: str,
        threads: int,
        specs: Sequence[Spec],
        number: int,
        lasting: bool = False,
    ) -> None:
        self.device, self.specs = device, specs
        self.gate = Gate()
        self.errors: list[str] = []
        self._stopping = False
        # A session may end, and take it, wherever the garbage collector runs.
        self._lock = threading.RLock()
        self._runs = [0] * threads
        self._opened = self._closed = 0
        self._all_threads = threading.Barrier(threads)
        self._all_ready = threading.Barrier(threads + 1)
        self._lasting = lasting
        random = Random(number)
        # A third more sessions than threads, so that some are shared and some idle.
        kinds = [("inputs", "constant", "override")[i % 3] for i in range(threads * 4 // 3)]
        self._long_lived = [Slot(kind, True, self, Random(random.random())) for kind in sorted(set(kinds))]
        self._shared = [Slot(kind, lasting, self, Random(random.random())) for kind in kinds]
        # ONNX Runtime keeps a graph for each thread that runs the session, so each has one owner.
        graphs = [Slot("graph", lasting, self, Random(random.random())) for _ in range(max(1, threads // 5))]
        self._slots = [*self._long_lived, *self._shared, *graphs]
        self._threads = [
            threading.Thread(
                target=self._work,
                args=(i, Random(random.random()), graphs[i] if i < len(graphs) else None),
                daemon=True,
            )
            for i in range(threads)
        ]

    @property
    def runs(self) -> int:
        """How many runs all threads have made."""
        return sum(self._runs)

    @property
    def sessions_opened(self) -> int:
        """How many sessions were opened, those that are closed by now among them."""
        return self._opened

    @property
    def open_sessions(self) -> int:
        """How many sessions are open."""
        return self._opened - self._closed

    def start(self) -> None:
        """Start the threads, and return once all have done what comes before the load."""
        for thread in self._threads:
            thread.start()
        self._all_ready.wait()

    def stop(self) -> None:
        """Let the threads end, and wait until they have."""
        self._stopping = True
        for thread in self._threads:
            thread.join()

    @contextlib.contextmanager
    def rest(self) -> Iterator[None]:
        """Hold all threads, with no session open but those that live long."""
        with self.gate.alone():
            for slot in self._slots:
                slot.close()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            most = sum(slot.lives_long for slot in self._slots)
            if self.open_sessions > most:
                self.fail(f"{self.open_sessions} sessions are open, and at most {most} should be")
            yield

    def open_session(self, model: bytes, kind: str) -> onnxruntime.InferenceSession:
        """Open and count a session of the model; `kind` is how our op comes into it."""
        # Runs that fail on purpose would be logged; and a thread pool of each session would hide what the
        # threads here do.
        entries = {"log_severity_level": 4, "intra_op_num_threads": 1}
        provider_options = {}
        if self.device == "cuda":
            provider_options["arena_extend_strategy"] = "kSameAsRequested"
            if kind == "graph":
                provider_options["enable_cuda_graph"] = "1"
        if kind == "override":
            options = onnxruntime.SessionOptions()
            if self.device == "cuda":
                options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            for name, value in entries.items():
                setattr(options, name, value)
            providers = [(PROVIDERS[self.device], provider_options)]
            session = override_session(model, options, providers=providers)
        else:
            session = make_session(model, self.device, provider_options=provider_options, **entries)
        with self._lock:
            self._opened += 1
        weakref.finalize(session, self._note_closed)
        return session

    def fail(self, what: str) -> None:
        """Count an error, and print it where there are few."""
        self.errors.append(what)
        if len(self.errors) <= SHOWN_ERRORS:
            print(f"error {len(self.errors)}: {what}", flush=True)

    def _note_closed(self) -> None:
        with self._lock:
            self._closed += 1

    def _work(self, number: int, random: Random, graph: Slot | None) -> None:
        slots = [*self._long_lived, *self._shared]
        if self._lasting:
            self._run_each_at_once(slots, number)
        self._all_ready.wait()
        while not self._stopping:
            try:
                if graph is not None and random.random() < 0.5:
                    self._use_graph(graph, number, random)
                else:
                    with self.gate.shared():
                        self._use(random.choice(slots).take(), number, random)
            except Exception:
                self.fail(traceback.format_exc())

    def _run_each_at_once(self, slots: Sequence[Slot], number: int) -> None:
        """Run every session in all threads at the same time, with nothing in between that holds the GIL."""
        for slot in slots:
            try:
                opened = slot.take()
                problem = opened.spec.problems[0]
                binding, y = bind(opened.session, problem, opened.inputs)
                self._all_threads.wait()
                for _ in range(RUNS_AT_ONCE):
                    opened.session.run_with_iobinding(binding)
                problem.require(y)
            except Exception:
                # The others would wait for this thread for ever.
                self._all_threads.abort()
                self.fail(traceback.format_exc())
                return
            self._runs[number] += RUNS_AT_ONCE

    def _use_graph(self, slot: Slot, number: int, random: Random) -> None:
        if slot.is_spent():
            # While ONNX Runtime captures, CUDA refuses to allocate memory in every thread of the process.
            with self.gate.alone():
                slot.renew()
        with self.gate.shared():
            if slot.is_spent():  # a rest came in between
                return
            opened = slot.take()
            for _ in range(random.randint(1, MOST_RUNS_PER_USE)):
                opened.fixed.run()
                self._runs[number] += 1

    def _use(self, opened: Opened, number: int, random: Random) -> None:
        for _ in range(random.randint(1, MOST_RUNS_PER_USE)):
            problem = random.choice(opened.spec.problems)
            names = opened.inputs
            if random.random() < MISFIT_SHARE:
                require_refusal(opened.session, problem, names)
            elif problem.draw.type != "bfloat16" and random.random() < 0.5:
                feeds = {name: problem.arrays[name] for name in names}
                problem.require(opened.session.run(None, feeds)[0])
            else:
                problem.require(run_bound(opened.session, problem, names))
            self._runs[number] += 1


def run_bound(
    session: onnxruntime.InferenceSession,
    problem: Problem,
    names: Sequence[str],
    **others: onnxruntime.OrtValue,
) -> np.ndarray:
    """Run with values bound, `others` in place of the problem's own, into memory that held NaN."""
    binding, y = bind(session, problem, names, **others)
    session.run_with_iobinding(binding)
    return y


def bind(
    session: onnxruntime.InferenceSession,
    problem: Problem,
    names: Sequence[str],
    **others: onnxruntime.OrtValue,
) -> tuple[onnxruntime.IOBinding, np.ndarray]:
    """Return a binding as `run_bound` needs it, and the output that it writes."""
    y = problem.poisoned_output()
    binding = session.io_binding()
    for name in names:
        binding.bind_ortvalue_input(name, others.get(name, problem.values[name]))
    binding.bind_ortvalue_output("y", ort_value(y, problem.type))
    return binding, y


def require_refusal(session: onnxruntime.InferenceSession, problem: Problem, names: Sequence[str]) -> None:
    """Raise AssertionError where an input with a channel too many gives anything but our op's status."""
    try:
        run_bound(session, problem, names, x=problem.unfit)
    except Exception as error:  # onnxruntime's own exception types are private to it
        message = str(error)
    else:
        raise AssertionError(f"{problem.draw}: a channel too many was taken")
    named = re.search("convswap (Fused)?Conv node", message)
    if not named or "channels" not in message:
        raise AssertionError(f"{problem.draw}: a channel too many gave: {message}")


# Memory


@dataclass(frozen=True)
class Sample:
    """What a row of the log holds: memory in bytes, `rests` 1 at the end of a rest, sessions so far."""

    seconds: float
    device_memory: int
    host_memory: int
    open_sessions: int
    runs: int
    rests: int
    sessions_opened: int = 0


def host_memory() -> int:
    """Return the resident set of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


class _Process(ctypes.Structure):
    """What NVML says of a process that uses a card."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class CardMemory:
    """The memory in use on the first card: by this process where NVML tells, since others may share the card.

    Else by all, by NVML or where that is missing by CUDA's driver.
    """

    MOST_PROCESSES = 256
    NOT_TOLD = 2**64 - 1

    def __init__(self) -> None:
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self._nvml = None
            return
        self._card = ctypes.c_void_p()
        _require_success("nvmlInit", self._nvml.nvmlInit_v2())
        # NVML's own numbers count the cards that CUDA_VISIBLE_DEVICES hides as well.
        status = self._nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id(0), ctypes.byref(self._card))
        _require_success("nvmlDeviceGetHandleByPciBusId", status)

    def used(self) -> int:
        """Return the bytes of the card that this process uses, or all do where it cannot be told."""
        if self._nvml is not None:
            own = self._used_by_this_process()
            if own is not None:
                return own
            total_free_used = (ctypes.c_ulonglong * 3)()
            status = self._nvml.nvmlDeviceGetMemoryInfo(self._card, total_free_used)
            _require_success("nvmlDeviceGetMemoryInfo", status)
            return total_free_used[2]
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with on_card(0):
            status = ctypes.CDLL("libcuda.so.1").cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        _require_success("cuMemGetInfo", status)
        return total.value - free.value

    def _used_by_this_process(self) -> int | None:
        processes = (_Process * self.MOST_PROCESSES)()
        count = ctypes.c_uint(self.MOST_PROCESSES)
        status = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(
            self._card, ctypes.byref(count), processes
        )
        if status:
            return None
        own = [each.used for each in processes[: count.value] if each.pid == os.getpid()]
        return own[0] if own and own[0] != self.NOT_TOLD else None


def _require_success(what: str, status: int) -> None:
    if status:
        raise OSError(f"{what} gave the status {status}")


def device_memory(card: CardMemory, load: Load, at_rest: bool) -> int:
    """Return what is in use on the card, asked while no graph is being captured."""
    with contextlib.nullcontext() if at_rest else load.gate.shared():
        return card.used()


def watch(load: Load, seconds: float, log: Path) -> list[Sample]:
    """Log memory until the time is over, with the rests of all threads in between; return what was logged."""
    card = CardMemory() if load.device == "cuda" else None
    interval = min(1.0, max(SHORTEST_INTERVAL, seconds / SAMPLES_PER_RUN))
    samples: list[Sample] = []
    started = time.time()
    with log.open("w", newline="") as file, contextlib.ExitStack() as resting:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(field.name for field in dataclasses.fields(Sample))
        at_rest = False
        # Whole multiples of the interval, so that processes that share a card take them together.
        for tick in itertools.count(math.ceil(time.time() / interval)):
            if tick * interval - started >= seconds:
                return samples
            time.sleep(max(0.0, tick * interval - time.time()))
            ends_rest = at_rest and tick % REST_EVERY == REST
            sample = Sample(
                round(time.time() - started, 3),
                0 if card is None else device_memory(card, load, at_rest),
                host_memory(),
                load.open_sessions,
                load.runs,
                int(ends_rest),
                load.sessions_opened,
            )
            samples.append(sample)
            rows.writerow(dataclasses.astuple(sample))
            file.flush()
            if tick % REST_EVERY == 0:
                resting.enter_context(load.rest())
                at_rest = True
            elif ends_rest:
                resting.close()
                at_rest = False
    raise AssertionError("the loop ends by itself")


def growth(samples: Sequence[Sample], seconds: float, memory: str) -> float:
    """Return by how many bytes `memory`, a field of the samples, grew from minute 2 to the end.

    See the text at the top. Raises StatisticsError where one of the two minutes holds no sample.
    """

    def median_of_minute(minute: int) -> float:
        first, end = (seconds * edge / MINUTES for edge in (minute, minute + 1))
        return statistics.median(getattr(each, memory) for each in samples if first <= each.seconds < end)

    first, last = 2, MINUTES - 1
    return (median_of_minute(last) - median_of_minute(first)) * (MINUTES - first) / (last - first)


def judge(samples: Sequence[Sample], seconds: float) -> tuple[str, bool]:
    """Return what memory did in words, and whether it grew too much."""
    rests = [sample for sample in samples if sample.rests]
    parts, grew = [], False
    for name, memory in (("device", "device_memory"), ("host", "host_memory")):
        try:
            at_rest = growth(rests, seconds, memory)
        except statistics.StatisticsError:
            return "no growth to judge: one of the two minutes had no rest", True
        under_load = growth(samples, seconds, memory)
        most = max(getattr(sample, memory) for sample in samples)
        parts.append(
            f"{name} {at_rest / MIB:+.2f} MiB (under load {under_load / MIB:+.2f}, most {most / MIB:.0f})"
        )
        grew |= at_rest >= MOST_GROWTH
    return "growth " + ", ".join(parts), grew


# The tool


def main(arguments: list[str] | None = None) -> int:
    """Run the load of the command line; return 1 where something failed or memory grew."""
    started = time.time()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--seconds", type=float, default=540, help="of load; default 540")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True, metavar="FILE.csv")
    parser.add_argument("--threads", type=int, help="default 16 on a GPU, else 4")
    parser.add_argument("--problems", type=int, default=150, help="how many are drawn; default 150")
    parser.add_argument("--lasting", action="store_true", help="close no session before the end")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    drawn = draw_specs(options.seed, math.ceil(options.problems / SHAPES_PER_SPEC))
    specs = [Spec(draw, options.device) for draw in drawn]
    threads = options.threads or (16 if options.device == "cuda" else 4)
    load = Load(options.device, threads, specs, options.seed, options.lasting)
    # A thread that hangs must not keep the process from ending.
    faulthandler.dump_traceback_later(2 * HANG_SECONDS, exit=True, file=sys.__stderr__)
    load.start()
    prepared = time.time() - started
    faulthandler.dump_traceback_later(options.seconds + HANG_SECONDS, exit=True, file=sys.__stderr__)
    samples = watch(load, options.seconds, options.log)
    load.stop()
    faulthandler.cancel_dump_traceback_later()
    memory, grew = judge(samples, options.seconds)
    print(
        f"{options.device} seed {options.seed}: {load.runs:,} runs, {load.sessions_opened:,} sessions, "
        f"{len(load.errors)} errors; {memory}; {len(specs) * SHAPES_PER_SPEC} problems after {prepared:.0f} s"
    )
    return 1 if load.errors or grew else 0


if __name__ == "__main__":
    sys.exit(main())
