"""The parent's side of the worker: asks it, watches the clock, and ends it where a kernel does not end.

A kernel that hangs or faults takes its process along and nothing else. The next request starts another.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from convswap.errors import ConvswapError
from convswap.progress import Progress
from convswap.tutorial.lab.kernel import Kernel, Request
from convswap.tutorial.lab.result import PRINTED_SHOWN, Fault, LabResult, flood_of
from convswap.tutorial.lab.worker import WITHOUT_CARD

# From where on a kernel's own words are too many.
_FLOOD_BYTES = 1 << 18
_STARTING_SECONDS = 60.0


class LabProcess:
    """A worker that runs kernels, started when it is first needed; a context manager.

    `device` is what its requests will ask for: "cpu" keeps it from opening the card beforehand.
    """

    def __init__(self, device: str | None = None) -> None:
        self._options = [WITHOUT_CARD] if device == "cpu" else []
        self._worker: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._printed: Any = None
        self._folder: Any = None

    def __enter__(self) -> LabProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, asked: Request, progress: Progress) -> LabResult:
        """Return what comes of a kernel; faults, hangs and crashes are results, not errors.

        Raises:
            ConvswapError: the target or an option is none.
        """
        worker = self._started()
        begin = time.perf_counter()
        printed_before = os.fstat(self._printed.fileno()).st_size
        answer, stage = self._ask(asked, progress)
        if "refused" in answer:
            raise ConvswapError(answer["refused"])
        if "result" in answer:
            result = self._with_words(answer["result"], printed_before)
            if answer["lost"]:
                self.close()
            return result
        # It ended, or had to be.
        fault = self._stopped(asked.kernel, worker, answer, stage, printed_before)
        self.close()
        return asked.result(fault=fault, seconds=time.perf_counter() - begin)

    def counters(self, asked: Request, progress: Progress) -> tuple[dict[str, float], str]:
        """Return the counters of a kernel that `run` found right, by name, or none and why."""
        self._started()
        answer, _ = self._ask(asked, progress, counters=True)
        if "result" in answer:
            return answer["result"], ""
        if "refused" in answer:
            return {}, str(answer["refused"])
        self.close()
        return {}, "the process that read them ended" if "ended" in answer else "they took too long"

    def start(self) -> None:
        """Start the worker where none is running, so that the next request need not wait for that."""
        self._started()

    def close(self) -> None:
        """End the worker, whatever it does."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._connection.close()
        # Its compilers and programs too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        self._printed.close()
        self._folder.cleanup()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._worker is not None and self._worker.poll() is None:
            return self._worker
        self.close()
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        # For what it leaves where it has to be ended.
        self._folder = tempfile.TemporaryDirectory(prefix="convswap-lab-", ignore_cleanup_errors=True)
        self._connection, theirs = multiprocessing.Pipe()
        # A group of its own: Ctrl-C is the parent's, who then ends it. -P, since a file of the user's folder
        # may be called as a module of Python's own.
        self._worker = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "convswap.tutorial.lab.worker",
                str(theirs.fileno()),
                *self._options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=self._printed,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "TMPDIR": self._folder.name},
        )
        theirs.close()
        return self._worker

    def _ask(self, asked: Request, progress: Progress, counters: bool = False) -> tuple[dict[str, Any], str]:
        """Return the answer and its stage; where there is none, one of the key "late", "ended" or "flood"."""
        printed_before = os.fstat(self._printed.fileno()).st_size
        try:
            self._connection.send((asked, counters))
            return self._await(progress, printed_before)
        except ConnectionError:
            return {"ended": True}, "starting"
        except BaseException:
            self.close()
            raise

    def _await(self, progress: Progress, printed_before: int) -> tuple[dict[str, Any], str]:
        stage, seconds = "starting", _STARTING_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            if os.fstat(self._printed.fileno()).st_size - printed_before > _FLOOD_BYTES:
                return {"flood": True}, stage
            if not self._connection.poll(min(0.5, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return {"late": seconds}, stage
                continue
            try:
                answer: dict[str, Any] = self._connection.recv()
            except (EOFError, OSError):
                return {"ended": True}, stage
            if "stage" not in answer:
                return answer, stage
            stage, seconds = answer["stage"], answer["seconds"]
            deadline = time.monotonic() + seconds
            if answer["shown"]:
                progress(stage)

    def _stopped(
        self,
        kernel: Kernel,
        worker: subprocess.Popen[bytes],
        answer: Mapping[str, Any],
        stage: str,
        printed_before: int,
    ) -> Fault:
        case = stage.removeprefix("checking ")
        if "flood" in answer:
            return flood_of(kernel.name, self._words(printed_before))
        if "late" in answer:
            if stage.startswith("compiling"):
                return Fault(
                    "time",
                    f"{kernel.name} does not come to an end in the compiler: it was stopped after "
                    f"{answer['late']:g} s. A loop that is unrolled has too many rounds, or a template "
                    "calls itself.",
                    {"case": stage},
                )
            return Fault(
                "time",
                f"{kernel.name} does not come to an end: for {case}, it was stopped after "
                f"{answer['late']:g} s. A loop's condition stays true, or not all threads of a block reach "
                "the same __syncthreads().",
                {"case": case},
            )
        status = worker.wait()
        said = self._words(printed_before).strip().splitlines()
        if stage.startswith("starting") and said:
            raise ConvswapError(f"the lab's process does not start: {said[-1][:PRINTED_SHOWN]}")
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        last = f" Its last words: {said[-1][:PRINTED_SHOWN]}." if said else ""
        return Fault(
            "crash",
            f"{kernel.name} took its process down ({how}) while {stage}.{last} The driver, or the "
            "compiler, met something that it cannot handle; see what is unusual in the file.",
            {"case": case},
        )

    def _with_words(self, result: LabResult, printed_before: int) -> LabResult:
        """Return `result` with a note of what the kernel printed, or a fault where that is too much."""
        words = self._words(printed_before)
        lines = words.splitlines()
        if not lines:
            return result
        if len(words) >= _FLOOD_BYTES and result.fault is None:
            return replace(result, fault=flood_of(result.kernel, words))
        note = f"{result.kernel} printed {len(lines):,} lines, the first: {lines[0][:PRINTED_SHOWN]!r}"
        return replace(result, notes=(*result.notes, note))

    def _words(self, printed_before: int) -> str:
        return os.pread(self._printed.fileno(), _FLOOD_BYTES, printed_before).decode(errors="replace")
