"""The process in which kernels run, apart from the one that asked: it may be stopped at any time.

    python -m convswap.tutorial.lab.worker DESCRIPTOR [--without-card]

Receives from the connection of that descriptor, as `process.py` sends them, requests, each with whether its
counters are wanted, and answers with dicts: {"stage", "seconds", "shown"}, what begins, how long it may take,
and whether the user is told; then {"result", "lost"}, the latter where no other kernel can run here, or
{"refused"} with the message of bad input.
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

# Tells that no request will need the card, so that none is opened.
WITHOUT_CARD = "--without-card"
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Answer requests until there are no more; return the exit status."""
    # Whoever asked may be killed while a kernel hangs here.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(sys.argv[1]))

    def tell(stage: str, seconds: float, *, shown: bool = True) -> None:
        connection.send({"stage": stage, "seconds": seconds, "shown": shown})

    tell("starting", 60)
    from convswap.tutorial.lab.warm_up import Opening

    # Before the other modules, whose import takes as long.
    opening = None if WITHOUT_CARD in sys.argv[2:] else Opening()
    from convswap.errors import ConvswapError
    from convswap.tutorial.lab.runner import BenchTop

    bench_top = BenchTop(tell, opening)
    while True:
        try:
            request, of_counters = connection.recv()
        except EOFError:
            return 0
        try:
            result = _serve(bench_top.counters if of_counters else bench_top.run, request)
            connection.send({"result": result, "lost": bench_top.is_lost})
        except ConvswapError as error:
            connection.send({"refused": str(error)})


def _serve(what: Callable[[Request, str], object], request: Request) -> object:
    # A copy, since the user may save the file while it is read again; and its name is the user's.
    with tempfile.TemporaryDirectory(prefix="convswap-lab-") as folder:
        path = Path(folder) / (Path(request.kernel.name).name or "kernel.cu")
        path.write_text(request.kernel.text, encoding="utf-8")
        return what(request, str(path))


if __name__ == "__main__":
    sys.exit(main())
