"""The process in which kernels run, apart from the one that asked: it may be stopped at any time.

    python -m convswap.lab.worker [--without-card]

Reads a request in each line of standard input, as `process.py` writes it, and answers with lines of JSON on
what was its standard output: {"stage", "seconds", "shown"}, what begins, how long it may take, and whether
the user is told; then {"result", "lost"}, the latter where no other kernel can run here, or {"refused"} with
the message of bad input. What kernels print goes to standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

# Tells that no request will need the card, so that none is opened.
WITHOUT_CARD = "--without-card"
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Answer requests until there are no more; return the exit status."""
    # Whoever asked may be killed while a kernel hangs here.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _answer(answers, {"stage": "starting", "seconds": 60, "shown": True})
    from convswap.tutorial.lab.warm_up import Opening

    # Before the other modules, whose import takes as long.
    opening = None if WITHOUT_CARD in sys.argv[1:] else Opening()
    from convswap.errors import ConvswapError
    from convswap.tutorial.lab.runner import BenchTop

    def tell(stage: str, seconds: float, *, shown: bool = True) -> None:
        _answer(answers, {"stage": stage, "seconds": seconds, "shown": shown})

    bench_top = BenchTop(tell, opening)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = _serve(bench_top, request)
            _answer(answers, {"result": result, "lost": bench_top.is_lost})
        except ConvswapError as error:
            _answer(answers, {"refused": str(error)})
    return 0


def _serve(bench_top: Any, request: dict[str, Any]) -> dict[str, Any]:
    from convswap.tutorial.lab.kernel import kernel_of

    # A copy, since the user may save the file while it is read again; and its name is the user's.
    with tempfile.TemporaryDirectory(prefix="convswap-lab-") as folder:
        path = Path(folder) / (Path(request["name"]).name or "kernel.cu")
        path.write_text(request["text"], encoding="utf-8")
        kernel = kernel_of(path)
        asked = kernel, str(path), request["target"], request["options"]
        if request["counters"]:
            return dict(bench_top.counters(*asked))
        return dict(bench_top.run(*asked).to_json())


def _answer(stream: TextIO, answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
