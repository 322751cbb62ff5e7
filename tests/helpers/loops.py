"""Processor time in units of a Python loop, so that limits also hold on slow or busy machines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def loop_seconds() -> float:
    """Return the processor time of a loop of a million steps."""
    start = time.process_time()
    for _ in range(1_000_000):
        pass
    return time.process_time() - start


@contextmanager
def at_most_loops(limit: int) -> Iterator[None]:
    """Assert that the block takes at most the processor time of `limit` loops of a million steps."""
    loop = loop_seconds()
    start = time.process_time()
    yield
    seconds = time.process_time() - start
    loop = max(loop, loop_seconds())
    assert seconds < limit * loop, f"{seconds:.2f} s, and a loop takes {loop:.3f} s"
