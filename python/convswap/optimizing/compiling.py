"""Has kernels compiled before measurements need them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
from collections.abc import Iterable

from convswap import _native
from convswap.errors import ConvswapError


def compile_side_by_side(wanted: Iterable[tuple[_native.Problem, str]]) -> None:
    """Have the kernels of problems, each by an algorithm, compiled for the card, each once.

    By as many threads as there are cores: a Conv alone would wait for its own. And before the first is timed,
    which has the host for itself then.
    """

    def plan(problem: _native.Problem, algorithm: str) -> None:
        # Who runs it is told what is wrong with it.
        with contextlib.suppress(ConvswapError, RuntimeError):
            _native.describe_plan(problem, "cuda", algorithm)

    once = {(problem.text, algorithm): problem for problem, algorithm in wanted}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (_, algorithm), problem in once.items():
            pool.submit(plan, problem, algorithm)
