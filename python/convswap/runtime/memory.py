"""How much memory of the host there is to be had."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from convswap.errors import ConvswapError

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
# Of what is free, the rest is for the others on the machine, and for what is not counted.
_SHARE_OF_FREE = 0.9
# What lies in memory at a time of a run without training: the inputs and outputs of a few nodes.
_VALUES_AT_A_TIME = 3
# Of glibc's malloc.h, and what the first becomes by itself at most; the second then is twice as large.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_LARGEST_THRESHOLD = 32 << 20
# Weights of fewer axes are matrices.
_RANK_OF_CONVS = 3


def free_memory() -> int | None:
    """Return how many bytes a process may still take before the system ends one; None where nobody knows.

    In a container that is what its group of processes is allowed and does not use.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    allowed = _left_to_the_group()
    return free if allowed is None else min(free, allowed)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Have what is allocated and freed meanwhile go back to the system at once, by pieces of 1 MiB or more.

    glibc would keep pieces of up to 32 MiB, such as the copies of weights that ONNX Runtime frees while it
    makes a session. Afterwards it keeps them, as it does by itself in a process that has freed one. What it
    keeps from before goes back first.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.malloc_trim(0)
    libc.mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    try:
        yield
    finally:
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGEST_THRESHOLD)


def too_much(needed: int, free: int) -> bool:
    """Return whether what is `needed` is more than may be taken of what is `free`."""
    return needed > _SHARE_OF_FREE * free


def while_made(weights: Iterable[np.ndarray]) -> int:
    """Return how many bytes a session on the CPU takes while it is made, beside its `weights` themselves.

    Each is copied once. ONNX Runtime holds those of all Convs once more until they are in the order of its
    kernels, and one Conv's five times meanwhile. float16 is widened to float32, and both are held.
    """
    own = list(weights)
    of_convs = [_size_in_session(values) for values in own if values.ndim >= _RANK_OF_CONVS]
    widened = [values for values in own if values.dtype == np.float16]
    in_order = sum(of_convs) + 3 * max(of_convs, default=0)
    return session_weight_bytes(own) + session_weight_bytes(widened) + in_order


def session_weight_bytes(weights: Iterable[np.ndarray]) -> int:
    """Return how many bytes a session on the CPU keeps of its `weights`, in the order of its kernels."""
    return sum(map(_size_in_session, weights))


def _size_in_session(values: np.ndarray) -> int:
    return values.nbytes * (2 if values.dtype == np.float16 else 1)


def values_of_run(shapes: Iterable[Sequence[int]], batch: int) -> int:
    """Return how many bytes the values of a run of `batch` samples take at a time.

    `shapes` are those of values, for one sample.
    """
    return 4 * max(map(math.prod, shapes), default=0) * batch * _VALUES_AT_A_TIME


def mapped(weights: Iterable[np.ndarray]) -> int:
    """Return the bytes of those `weights` that are mapped from files, and so not in memory yet."""
    return sum(values.nbytes for values in weights if isinstance(_root(values), np.memmap))


def _root(values: np.ndarray) -> object:
    """Return what holds the memory of an array."""
    held: object = values
    while isinstance(held, np.ndarray) and held.base is not None and not isinstance(held, np.memmap):
        held = held.base
    return held


def too_large(doing: str, what: str, needed: int, free: int, advice: str) -> ConvswapError:
    """Return the error that `doing` something takes more memory than is free, for `what` there is."""
    return ConvswapError(
        f"the memory does not suffice: {doing} takes about {in_bytes(needed)}, for {what}, and "
        f"{in_bytes(free)} are free; {advice}"
    )


def in_bytes(size: int) -> str:
    """Return a size in words for a reader, in GB or MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _left_to_the_group() -> int | None:
    try:
        limit = int((_GROUP / "memory.max").read_text(encoding="utf-8"))
        used = int((_GROUP / "memory.current").read_text(encoding="utf-8"))
        lines = (_GROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        # Pages of files are given back when memory is asked for.
        cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, StopIteration):
        # No such group, or one without a limit, which says "max".
        return None
    return max(0, limit - used + cached)
