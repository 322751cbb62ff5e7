"""Mixed load: threads run random convolutions in sessions that come and go, and memory must not grow.

    python tools/mixed_load.py --device cuda --seconds 540 --seed 1
    python tools/mixed_load.py --device cuda --seconds 540 --seed 1 --lasting
    python tools/mixed_load.py --device cuda --per-session override

A fixed set of problems is drawn as in conv_property.py and checked there against float64; every later run
must give the same bits. Sessions have constant weights or weights as inputs, run the swapped or the original
model (override mode), are shared by all threads, or replay a CUDA graph. Inputs change shape from run to run.
Some inputs have a wrong shape, for which our op must return its status and leave the session usable.

Every 15 seconds all threads rest for two. All sessions except one of each kind close, the C library returns
its free memory, and the memory in use is recorded. Growth is the median of the last ninth of the rests minus
the median of the third ninth, times 7/6: the middles of both are 6 ninths apart, and 7 ninths follow the
warm-up. Rests begin at multiples of 15 seconds of the clock, so processes that share a card rest together.
Exits 1 if a run was wrong, or memory grew by 8 MiB or more.

ONNX Runtime's CUDA provider keeps some host memory of every session that has run, with or without our op:
109,000 bytes, and 2,500 more if the model has a weight (H100). On a card memory is therefore judged with
`--lasting`, which closes no session. `--per-session` prints how many bytes more a closed session of our op
leaves in the process than a session without our op: the median of a few rounds in an otherwise idle process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

# Set before ONNX Runtime is loaded, which reads the variable once. Telemetry keeps records of failed runs.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime
from conv_property import MAX_OPERATIONS, Draw, check, draws, for_each_draw, results
from convswap import _native, override_session
from cuda_driver import free_bytes
from element_types import ort_value
from onnx import helper, parser
from op_sessions import CASE, PROVIDERS, conv_model, make_session
from repeats import repeats

MIB = 1 << 20
MAX_GROWTH = 8 * MIB
RESTS, MAX_SECONDS_BETWEEN_RESTS, REST_SHARE = 36, 15, 2 / 15
# Bytes of the tensors of a problem, so that all problems in flight take a few MiB.
MAX_TENSOR_BYTES = 1 << 19
SHAPES_PER_SPEC = 3
# Uses of a session before another session replaces it.
USES = range(20, 60)
MAX_RUNS_PER_USE = 6
MISFIT_SHARE = 0.05
# Enough runs for those of all threads to overlap.
RUNS_AT_ONCE = 50
# ONNX Runtime captures the third run at the latest.
RUNS_TO_CAPTURE = 4
HANG_SECONDS = 60
SHOWN_ERRORS = 10
KINDS = ("inputs", "constant", "override")

# Closed sessions of a round of `--per-session`, and rounds.
SESSIONS, ROUNDS = repeats(60), repeats(3)
# A model without a convolution, with as many tensors.
ADD = """<ir_version: 9, opset_import: ["": 20]>
net (float[2, 3, 9, 8] x) => (float[2, 3, 9, 8] y) <float[1] w = {1}> { y = Add(x, w) }"""
# Bytes of two pages. Rounds of one model differ by a page (H100, 60 sessions).
MAX_EXTRA_BYTES = 8 << 10

Session = onnxruntime.InferenceSession


@dataclass(frozen=True)
class Reshaped(Draw):
    """A draw with the weights and bias of another draw, and a separate input and residual."""

    original: Draw = field(kw_only=True)

    def arrays(self) -> list[np.ndarray | None]:
        """Return the arrays of this draw, with w and b of the original."""
        x, _, _, *others = super().arrays()
        return [x, *self.original.arrays()[1:3], *others]


def shapes_of(draw: Draw) -> list[Draw]:
    """Return the draw and copies with larger inputs."""
    batch, channels, *sizes = draw.case.x_shape
    settings = (draw.type, draw.precision, draw.data_seed + 1, draw.epilogue, draw.has_residual)
    shapes = [(batch + extra, channels, *(s + extra for s in sizes)) for extra in range(1, SHAPES_PER_SPEC)]
    return [draw, *(Reshaped(replace(draw.case, x_shape=x), *settings, original=draw) for x in shapes)]


def is_small(draw: Draw) -> bool:
    """Return whether many runs of the draw may be in flight together."""
    return draw.problem.bytes <= MAX_TENSOR_BYTES and draw.problem.operations <= 2 * MAX_OPERATIONS


def draw_specs(number: int, count: int) -> list[Draw]:
    """Return up to `count` draws, all of whose shapes are small."""
    specs: dict[str, Draw] = {}

    def collect(draw: Draw) -> None:
        if len(specs) < count and all(map(is_small, shapes_of(draw))):
            specs.setdefault(repr(draw), draw)

    for_each_draw(collect, draws(), number, 20 * count)
    return list(specs.values())


class Problem:
    """A problem checked against float64: its arrays, the expected bits, and an input of a wrong shape."""

    def __init__(self, draw: Draw, device: str) -> None:
        check(draw, device)
        arrays = draw.arrays()
        chosen = _native.choose(draw.problem, device)
        # The first instruction set of a CPU algorithm is its default.
        self.expected = next(y for name, y in results(draw, arrays, device) if name.split()[0] == chosen)
        self.draw = draw
        self.type = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        self.arrays = {key: a for key, a in zip("xwbz", arrays[:4], strict=True) if a is not None}
        batch, channels, *sizes = arrays[0].shape
        self.misfit = np.zeros((batch, channels + 1, *sizes), arrays[0].dtype)

    def bind(self, session: Session, **replacements: np.ndarray) -> tuple[onnxruntime.IOBinding, np.ndarray]:
        """Return a binding of the arrays, with `replacements` for some, and its output, filled with NaN."""
        y = np.full_like(self.expected, np.nan)
        binding = session.io_binding()
        for value in session.get_inputs():
            array = replacements.get(value.name, self.arrays[value.name])
            binding.bind_ortvalue_input(value.name, ort_value(array, self.type))
        binding.bind_ortvalue_output("y", ort_value(y, self.type))
        return binding, y

    def run(self, session: Session, with_arrays: bool = False) -> None:
        """Run the session, with a binding unless `with_arrays`, and require the expected bits."""
        if with_arrays and self.draw.type != "bfloat16":
            y = session.run(None, {value.name: self.arrays[value.name] for value in session.get_inputs()})[0]
        else:
            binding, y = self.bind(session)
            session.run_with_iobinding(binding)
        self.require(y)

    def require(self, y: np.ndarray) -> None:
        """Raise AssertionError unless `y` has the expected bits."""
        assert (y.shape, y.dtype) == (self.expected.shape, self.expected.dtype), f"{self.draw}: {y.shape}"
        if y.tobytes() != self.expected.tobytes():
            differ = np.argwhere(~(y == self.expected)).tolist()
            raise AssertionError(f"{self.draw}: {len(differ)} of {y.size} differ, first {differ[:1]}")

    def require_refusal(self, session: Session) -> None:
        """Raise AssertionError unless our op refuses an input with a channel too many with its status."""
        message = "no error"
        try:
            session.run_with_iobinding(self.bind(session, x=self.misfit)[0])
        except Exception as error:  # onnxruntime's own exception types are private
            message = str(error)
        is_ours = re.search("convswap (Fused)?Conv node.*channels", message, re.DOTALL)
        assert is_ours, f"{self.draw}: a channel too many gave {message}"


class Spec:
    """A model for each kind of session, and problems for these sessions to run."""

    def __init__(self, draw: Draw, device: str) -> None:
        self.problems = [Problem(each, device) for each in shapes_of(draw)]
        # An array without elements has no memory to bind.
        self.bindable = [each for each in self.problems if each.arrays["x"].size and each.expected.size]
        arrays = self.problems[0].arrays
        undeclared = [None] * arrays["x"].ndim
        attributes = {
            **draw.case.attributes,
            **draw.epilogue,
            "op": "FusedConv" if draw.epilogue else "Conv",
            "z": undeclared if draw.has_residual else None,
            "precision": draw.precision,
            "x": undeclared,
            "element_type": self.problems[0].type,
        }
        constants = {key: arrays.get(key) for key in "wb"}
        inputs = {key: None if a is None else [None] * a.ndim for key, a in constants.items()}
        # ONNX has no FusedConv, so override mode runs ours.
        domain = "convswap" if draw.epilogue else ""
        self.models = {
            "inputs": conv_model(**attributes, **inputs),
            "constant": conv_model(**attributes, **constants),
            "override": conv_model(**{**attributes, "domain": domain}, **constants),
        }


class Graph:
    """A captured session that replays its graph over fixed memory of the card."""

    def __init__(self, session: Session, problem: Problem) -> None:
        self._session, self._problem, self._binding = session, problem, session.io_binding()
        self._inputs = []  # owns the memory of the binding
        for value in session.get_inputs():
            array = _native.DeviceArray.from_numpy(problem.arrays[value.name])
            self._inputs.append(array)
            shape = list(problem.arrays[value.name].shape)
            self._binding.bind_input(value.name, "cuda", 0, problem.type, shape, array.pointer)
        shape = list(problem.expected.shape)
        self._y = _native.DeviceArray(shape, problem.draw.type)
        self._binding.bind_output("y", "cuda", 0, problem.type, shape, self._y.pointer)
        for _ in range(RUNS_TO_CAPTURE):
            self.run()

    def run(self) -> None:
        """Run the session into poisoned memory, and require the expected bits."""
        self._y.poison()
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()
        self._problem.require(self._y.to_numpy())


def open_session(model: bytes, kind: str, device: str) -> Session:
    """Open a session of the model; `kind` is a key of `Spec.models`, or "graph"."""
    provider_options = {"arena_extend_strategy": "kSameAsRequested"} if device == "cuda" else {}
    if kind == "graph":
        provider_options["enable_cuda_graph"] = "1"
    # No messages about runs that fail on purpose, and no threads.
    entries = {"log_severity_level": 4, "intra_op_num_threads": 1}
    if kind != "override":
        return make_session(model, device, provider_options=provider_options, **entries)
    options = onnxruntime.SessionOptions()
    for name, value in entries.items():
        setattr(options, name, value)
    if device == "cuda":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return override_session(model, options, providers=[(PROVIDERS[device], provider_options)])


class Slot:
    """One open session of a kind at a time; each new session has the next spec."""

    def __init__(
        self, kind: str, device: str, specs: Sequence[Spec], random: Random, is_lasting: bool
    ) -> None:
        self._kind, self._device, self._is_lasting, self._random = kind, device, is_lasting, random
        self._specs = itertools.cycle(random.sample(specs, len(specs)))
        self._lock = threading.Lock()
        self._uses_left = 0
        self._open: tuple[Spec, Session] | None = None
        self.opened = 0

    def take(self) -> tuple[Spec, Session]:
        """Return the open session; open a new session if there is none, or if its uses are spent."""
        with self._lock:
            if self._open is None or (self._uses_left <= 0 and not self._is_lasting):
                self._open = None  # a thread that still runs the old session keeps it alive
                spec = next(self._specs)
                self._open = spec, open_session(spec.models[self._kind], self._kind, self._device)
                self._uses_left = self._random.choice(USES)
                self.opened += 1
            self._uses_left -= 1
            return self._open

    def close(self) -> None:
        """Close the session, except a lasting one."""
        if not self._is_lasting:
            self._open = None


class Load:
    """Threads that run sessions, and rest together."""

    def __init__(self, device: str, threads: int, specs: Sequence[Spec], number: int, lasting: bool) -> None:
        self.errors: list[str] = []
        self._device, self._specs, self._lasting = device, specs, lasting
        self._runs = [0] * threads
        self._graphs: list[Graph | None] = [None] * (max(1, threads // 5) if device == "cuda" else 0)
        self._graphs_opened = 0
        random = Random(number)
        # A lasting session of each kind, and a third more sessions than threads: some are shared, some idle.
        kinds = [*KINDS, *(KINDS[i % 3] for i in range(threads * 4 // 3))]
        self._slots = [
            Slot(kind, device, specs, Random(random.random()), lasting or i < len(KINDS))
            for i, kind in enumerate(kinds)
        ]
        self._capturing = threading.Lock()
        self._resting, self._over = threading.Event(), False
        self._threads_meet, self._all_meet = threading.Barrier(threads), threading.Barrier(threads + 1)
        self._threads = [
            threading.Thread(target=self._work, args=(i, Random(random.random())), daemon=True)
            for i in range(threads)
        ]

    @property
    def runs(self) -> int:
        """Number of runs of all threads."""
        return sum(self._runs)

    @property
    def sessions(self) -> int:
        """Number of opened sessions."""
        return self._graphs_opened + sum(slot.opened for slot in self._slots)

    def run(self, seconds: float) -> list[dict[str, int]]:
        """Run for `seconds`; return the memory in use at each rest."""
        rests, interval = [], min(MAX_SECONDS_BETWEEN_RESTS, seconds / RESTS)
        for thread in self._threads:
            thread.start()
        end = time.time() + seconds
        while time.time() < end:
            self._resting.clear()
            self._all_meet.wait()  # threads prepare
            self._all_meet.wait()  # threads run
            rest_at = (time.time() // interval + 1) * interval
            time.sleep(max(0.0, rest_at - time.time()))
            self._resting.set()
            self._all_meet.wait()  # threads rest
            for slot in self._slots:
                slot.close()
            if not self._lasting:
                self._graphs = [None] * len(self._graphs)
            time.sleep(max(0.0, rest_at + REST_SHARE * interval - time.time()))
            rests.append(memory_in_use(self._device))
        self._over = True
        self._all_meet.wait()
        for thread in self._threads:
            thread.join()
        return rests

    def _work(self, number: int, random: Random) -> None:
        if self._lasting:
            self._attempt(self._run_each_at_once)
        while True:
            self._all_meet.wait()
            if self._over:
                return
            if number < len(self._graphs) and self._graphs[number] is None:
                self._attempt(self._capture, number, random)
            self._all_meet.wait()
            while not self._resting.is_set():
                self._attempt(self._use, number, random)
            self._all_meet.wait()

    def _attempt(self, function: Callable[..., None], *arguments: object) -> None:
        """Call the function; record its error, and print the first SHOWN_ERRORS errors."""
        try:
            function(*arguments)
        except Exception:
            self.errors.append(traceback.format_exc())
            if len(self.errors) <= SHOWN_ERRORS:
                print(f"error {len(self.errors)}: {self.errors[-1]}", flush=True)

    def _run_each_at_once(self) -> None:
        """Run every session in all threads at the same time, without Python code between the runs.

        A session sets up a stream and workspaces, about 70 MiB of the card, whenever more runs are in flight
        than ever before.
        """
        for slot in self._slots:
            spec, session = slot.take()
            binding, y = spec.problems[0].bind(session)
            self._threads_meet.wait(HANG_SECONDS)
            for _ in range(RUNS_AT_ONCE):
                session.run_with_iobinding(binding)
            spec.problems[0].require(y)

    def _capture(self, number: int, random: Random) -> None:
        """Capture a graph in the thread that replays it, because ONNX Runtime keeps graphs by thread.

        All other threads wait: during a capture CUDA refuses allocations in every thread of the process.
        """
        with self._capturing:
            spec = random.choice([spec for spec in self._specs if spec.bindable])
            session = open_session(spec.models["constant"], "graph", self._device)
            self._graphs[number] = Graph(session, random.choice(spec.bindable))
            self._graphs_opened += 1

    def _use(self, number: int, random: Random) -> None:
        graph = self._graphs[number] if number < len(self._graphs) and random.random() < 0.5 else None
        if graph is None:
            spec, session = random.choice(self._slots).take()
        for _ in range(random.randint(1, MAX_RUNS_PER_USE)):
            if graph is not None:
                graph.run()
            elif random.random() < MISFIT_SHARE:
                random.choice(spec.problems).require_refusal(session)
            else:
                random.choice(spec.problems).run(session, with_arrays=random.random() < 0.5)
            self._runs[number] += 1


def host_memory() -> int:
    """Return the resident set of this process in bytes, after it has returned all free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def memory_in_use(device: str) -> dict[str, int]:
    """Return the host memory in use, and the card's up to a constant (minus its free memory)."""
    return {"host": host_memory()} | ({"card": -free_bytes()} if device == "cuda" else {})


def growth(rests: Sequence[int]) -> float:
    """Return the growth of the memory at rests after the warm-up, as defined at the top of this file."""
    first, later, last = (len(rests) * ninth // 9 for ninth in (2, 3, 8))
    return (statistics.median(rests[last:]) - statistics.median(rests[first:later])) * 7 / 6


def judge(rests: Sequence[dict[str, int]]) -> tuple[str, bool]:
    """Return the growth in words, and whether it is too much."""
    if len(rests) < 9:
        return f"no growth to judge: {len(rests)} rests", True
    grown = {name: growth([rest[name] for rest in rests]) for name in rests[0]}
    words = ", ".join(f"{name} {size / MIB:+.2f} MiB" for name, size in grown.items())
    return f"growth {words}", max(grown.values()) >= MAX_GROWTH


def extra_bytes_per_session(ours: Callable[[], Session], device: str) -> float:
    """Return how many bytes more a closed session of `ours` leaves than a session without our op."""
    x = CASE.arrays()[0]
    add = parser.parse_model(ADD).SerializeToString()

    def growth_per_session(make: Callable[[], Session]) -> float:
        before = host_memory()
        for _ in range(SESSIONS):
            session = make()
            for _ in range(3):
                session.run(None, {"x": x})
            del session
        return (host_memory() - before) / SESSIONS

    def difference() -> float:
        return growth_per_session(ours) - growth_per_session(
            lambda: make_session(add, device, ours=False, intra_op_num_threads=1)
        )

    difference()
    return statistics.median(difference() for _ in range(ROUNDS))


def main(arguments: list[str] | None = None) -> int:
    """Run the load or the comparison of sessions; return 1 if a run failed or memory grew."""
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--device", choices=["cpu", "cuda"], required=True)
    command.add_argument("--seconds", type=float, default=540, help="duration of the load; default 540")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--threads", type=int, help="default 16 on a GPU, else 4")
    command.add_argument("--problems", type=int, default=150, help="number of problems to draw; default 150")
    command.add_argument("--lasting", action="store_true", help="close no session before the end")
    command.add_argument("--per-session", choices=["swapped", "override"], help="measure closed sessions")
    options = command.parse_args(arguments)
    if options.device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()
    if options.per_session:
        overrides = options.per_session == "override"
        model = conv_model(domain="" if overrides else "convswap")
        session_options = {"override": overrides, "intra_op_num_threads": 1}
        extra_bytes = extra_bytes_per_session(
            lambda: make_session(model, options.device, **session_options), options.device
        )
        print(extra_bytes)
        return int(extra_bytes >= MAX_EXTRA_BYTES)
    drawn = draw_specs(options.seed, math.ceil(options.problems / SHAPES_PER_SPEC))
    specs = [Spec(draw, options.device) for draw in drawn]
    threads = options.threads or (16 if options.device == "cuda" else 4)
    load = Load(options.device, threads, specs, options.seed, options.lasting)
    # A thread that hangs must not keep the process from ending.
    faulthandler.dump_traceback_later(options.seconds + 2 * HANG_SECONDS, exit=True, file=sys.__stderr__)
    rests = load.run(options.seconds)
    faulthandler.cancel_dump_traceback_later()
    memory, grew = judge(rests)
    print(
        f"{options.device} seed {options.seed}: {load.runs:,} runs, {load.sessions:,} sessions, "
        f"{len(load.errors)} errors; {memory}"
    )
    return 1 if load.errors or grew else 0


if __name__ == "__main__":
    sys.exit(main())
