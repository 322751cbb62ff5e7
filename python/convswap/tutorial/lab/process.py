"""The parent's side of the worker: sends requests, and ends the worker if a kernel exceeds its time limit.

A kernel that hangs or faults ends only the worker. The next request starts another worker.
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
from convswap.tutorial.lab.kernel import LabKernel, Request
from convswap.tutorial.lab.result import MAX_PRINTED_CHARACTERS, Fault, LabResult, flood_of
from convswap.tutorial.lab.worker import WITHOUT_CARD

# A kernel that prints more is stopped.
_FLOOD_BYTES = 1 << 18
_START_SECONDS = 60.0


class LabProcess:
    """A worker process that runs kernels, started at the first request. A context manager.

    `device` is the device of the requests. With "cpu" the worker does not open the card in advance.
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

    def run(self, request: Request, progress: Progress) -> LabResult:
        """Run a kernel and return the result. Faults, hangs and crashes are results, not errors.

        Raises:
            ConvswapError: the target or an option is wrong.
        """
        worker = self._started()
        begin = time.perf_counter()
        printed_before = os.fstat(self._printed.fileno()).st_size
        reply, stage = self._send(request, progress)
        if "refused" in reply:
            raise ConvswapError(reply["refused"])
        if "result" in reply:
            result = self._with_printed_text(reply["result"], printed_before)
            if reply["lost"]:
                self.close()
            return result
        # The worker ended or exceeded a limit.
        fault = self._fault_of_lost_worker(request.kernel, worker, reply, stage, printed_before)
        self.close()
        return request.result(fault=fault, seconds=time.perf_counter() - begin)

    def counters(self, request: Request, progress: Progress) -> tuple[dict[str, float], str]:
        """Return the counters of a correct kernel, by name, and "", or an empty dict and the reason.

        The worker ends, and the next request starts another: where other processes read counters too, CUPTI
        has left a context in which every later call failed.
        """
        self._started()
        reply, _ = self._send(request, progress, counters=True)
        self.close()
        if "result" in reply:
            return reply["result"], ""
        if "refused" in reply:
            return {}, str(reply["refused"])
        return {}, "the process that read them ended" if "ended" in reply else "reading them took too long"

    def start(self) -> None:
        """Start the worker if it is not running, so that the next request need not wait."""
        self._started()

    def close(self) -> None:
        """Kill the worker."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._connection.close()
        # The whole process group: the worker starts compilers and programs.
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
        # The worker's temporary files, which it cannot remove itself when it is killed.
        self._folder = tempfile.TemporaryDirectory(prefix="convswap-lab-", ignore_cleanup_errors=True)
        self._connection, worker_end = multiprocessing.Pipe()
        # A session of its own, so that Ctrl-C reaches only the parent, which ends the worker. -P keeps files
        # of the current folder from shadowing Python's modules.
        self._worker = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "convswap.tutorial.lab.worker",
                str(worker_end.fileno()),
                *self._options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=self._printed,
            pass_fds=[worker_end.fileno()],
            start_new_session=True,
            env={**os.environ, "TMPDIR": self._folder.name},
        )
        worker_end.close()
        return self._worker

    def _send(
        self, request: Request, progress: Progress, counters: bool = False
    ) -> tuple[dict[str, Any], str]:
        """Send a request; return the reply and its stage.

        Without a reply from the worker, the only key is "timeout", "ended" or "flood".
        """
        printed_before = os.fstat(self._printed.fileno()).st_size
        try:
            self._connection.send((request, counters))
            return self._receive(progress, printed_before)
        except ConnectionError:
            return {"ended": True}, "starting"
        except BaseException:
            self.close()
            raise

    def _receive(self, progress: Progress, printed_before: int) -> tuple[dict[str, Any], str]:
        stage, seconds = "starting", _START_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            if os.fstat(self._printed.fileno()).st_size - printed_before > _FLOOD_BYTES:
                return {"flood": True}, stage
            if not self._connection.poll(min(0.5, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    return {"timeout": seconds}, stage
                continue
            try:
                reply: dict[str, Any] = self._connection.recv()
            except (EOFError, OSError):
                return {"ended": True}, stage
            if "stage" not in reply:
                return reply, stage
            stage, seconds = reply["stage"], reply["seconds"]
            deadline = time.monotonic() + seconds
            if reply["shown"]:
                progress(stage)

    def _fault_of_lost_worker(
        self,
        kernel: LabKernel,
        worker: subprocess.Popen[bytes],
        reply: Mapping[str, Any],
        stage: str,
        printed_before: int,
    ) -> Fault:
        case = stage.removeprefix("checking ")
        if "flood" in reply:
            return flood_of(kernel.name, self._printed_text(printed_before))
        if "timeout" in reply:
            if stage.startswith("compiling"):
                return Fault(
                    "time",
                    f"{kernel.name} does not compile in time: the compiler was stopped after "
                    f"{reply['timeout']:g} s. An unrolled loop has too many iterations, or a template calls "
                    "itself.",
                    {"case": stage},
                )
            return Fault(
                "time",
                f"{kernel.name} does not end: for {case}, it was stopped after {reply['timeout']:g} s. The "
                "condition of a loop stays true, or not all threads of a block reach the same "
                "__syncthreads().",
                {"case": case},
            )
        status = worker.wait()
        lines = self._printed_text(printed_before).strip().splitlines()
        if stage.startswith("starting") and lines:
            raise ConvswapError(f"the lab's process does not start: {lines[-1][:MAX_PRINTED_CHARACTERS]}")
        cause = signal.Signals(-status).name if status < 0 else f"status {status}"
        last_line = f" Its last words: {lines[-1][:MAX_PRINTED_CHARACTERS]}." if lines else ""
        return Fault(
            "crash",
            f"{kernel.name} ended its process ({cause}) while {stage}.{last_line} The driver or the compiler "
            "crashed; look for unusual code in the file.",
            {"case": case},
        )

    def _with_printed_text(self, result: LabResult, printed_before: int) -> LabResult:
        """Return `result` with a note on the kernel's printed lines, or a fault if there are too many."""
        printed = self._printed_text(printed_before)
        lines = printed.splitlines()
        if not lines:
            return result
        if len(printed) >= _FLOOD_BYTES and result.fault is None:
            return replace(result, fault=flood_of(result.kernel, printed))
        first = lines[0][:MAX_PRINTED_CHARACTERS]
        note = f"{result.kernel} printed {len(lines):,} lines, the first: {first!r}"
        return replace(result, notes=(*result.notes, note))

    def _printed_text(self, printed_before: int) -> str:
        return os.pread(self._printed.fileno(), _FLOOD_BYTES, printed_before).decode(errors="replace")
