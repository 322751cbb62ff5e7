"""The worker: a process that runs kernels and that its parent may kill at any time.

    python -m convswap.tutorial.lab.worker DESCRIPTOR [--without-card]

DESCRIPTOR is the file descriptor of a connection to the parent, `process.py`. A request is a pair: a
`Request`, and whether to read its counters. The worker replies with dicts. {"stage", "seconds", "shown"}
announces a stage, its time limit, and whether to show it to the user. The last reply is {"result", "lost"} or
{"refused"}. "lost" says that the worker must not run another kernel; "refused" is the message of bad input.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convswap.tutorial.lab.kernel import Request

# With this option no request needs the card, so the worker does not open it in advance.
WITHOUT_CARD = "--without-card"
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Reply to requests until the connection is closed; return the exit status."""
    # The parent may be killed while a kernel hangs here. The operating system then ends this process too.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))

    def report_stage(stage: str, seconds: float, *, shown: bool = True) -> None:
        connection.send({"stage": stage, "seconds": seconds, "shown": shown})

    report_stage("starting", 60)
    from convswap.tutorial.lab.warm_up import WarmUp

    # The card warms up while the other modules are imported, which takes as long.
    warm_up = None if WITHOUT_CARD in sys.argv[2:] else WarmUp()
    from convswap.errors import ConvswapError
    from convswap.tutorial.lab.runner import Runner

    runner = Runner(report_stage, warm_up)
    while True:
        try:
            request, reads_counters = connection.recv()
        except EOFError:
            return 0
        try:
            result = _serve(runner.counters if reads_counters else runner.run, request)
            connection.send({"result": result, "lost": runner.is_lost})
        except ConvswapError as error:
            connection.send({"refused": str(error)})


def _serve(task: Callable[[Request, str], object], request: Request) -> object:
    # NVRTC reads a copy, because the user may save the file meanwhile. It keeps the file's name for messages.
    with tempfile.TemporaryDirectory(prefix="convswap-lab-") as folder:
        path = Path(folder) / (Path(request.kernel.name).name or "kernel.cu")
        path.write_text(request.kernel.text, encoding="utf-8")
        return task(request, str(path))


if __name__ == "__main__":
    sys.exit(main())
