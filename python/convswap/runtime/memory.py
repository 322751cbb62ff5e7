"""The free memory of the host, and estimates of the memory that sessions and runs take."""

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
_CGROUP = Path("/sys/fs/cgroup")
# The share of the free memory that convswap may use; other programs and uncounted allocations have the rest.
_USABLE_SHARE = 0.9
# The number of values that are in memory at the same time in a run: inputs and outputs of a few nodes.
_LIVE_VALUES = 3
# Parameters of glibc's `mallopt`. By itself glibc raises the first up to _MAX_THRESHOLD, and sets the second
# to twice the first.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -3, -1
_MAX_THRESHOLD = 32 << 20
# The minimum rank of a Conv's weights; weights with fewer axes are matrices.
_MIN_CONV_RANK = 3


def free_memory() -> int | None:
    """Return how many bytes a process may allocate before the system kills one; None if that is unknown.

    In a container the limit is that of the cgroup.
    """
    try:
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text(encoding="utf-8").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    allowed = _cgroup_free_memory()
    return free if allowed is None else min(free, allowed)


@contextmanager
def released_at_once() -> Iterator[None]:
    """Return blocks of 1 MiB and more to the system as soon as they are freed in this context.

    By default glibc keeps freed blocks of up to 32 MiB, such as the copies of weights that ONNX Runtime frees
    while it makes a session. On entry the blocks that glibc keeps are returned too. On exit the thresholds
    are set to the maximum that glibc reaches by itself.
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
        libc.mallopt(_M_MMAP_THRESHOLD, _MAX_THRESHOLD)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MAX_THRESHOLD)


def exceeds_free_memory(needed: int, free: int) -> bool:
    """Return whether `needed` bytes are more than the usable share of `free` bytes."""
    return needed > _USABLE_SHARE * free


def session_creation_bytes(weights: Iterable[np.ndarray]) -> int:
    """Return how many bytes a session on the CPU takes during its creation, in addition to its `weights`.

    Each weight is copied once. ONNX Runtime holds the weights of all Convs once more until they are prepacked
    for its kernels, and the weights of the Conv in hand five times. float16 weights are widened to float32,
    and both are held.
    """
    arrays = list(weights)
    conv_sizes = [_size_in_session(values) for values in arrays if values.ndim >= _MIN_CONV_RANK]
    float16 = [values for values in arrays if values.dtype == np.float16]
    prepacking = sum(conv_sizes) + 3 * max(conv_sizes, default=0)
    return session_weight_bytes(arrays) + session_weight_bytes(float16) + prepacking


def session_weight_bytes(weights: Iterable[np.ndarray]) -> int:
    """Return how many bytes a session on the CPU keeps for its `weights`, prepacked for its kernels."""
    return sum(map(_size_in_session, weights))


def _size_in_session(values: np.ndarray) -> int:
    return values.nbytes * (2 if values.dtype == np.float16 else 1)


def run_value_bytes(shapes: Iterable[Sequence[int]], batch: int) -> int:
    """Return how many bytes the values of a run of `batch` samples take at the same time.

    `shapes` are the shapes of values for one sample.
    """
    return 4 * max(map(math.prod, shapes), default=0) * batch * _LIVE_VALUES


def file_backed_bytes(weights: Iterable[np.ndarray]) -> int:
    """Return the bytes of those `weights` that are mapped from files, which are not in memory yet."""
    return sum(values.nbytes for values in weights if isinstance(_memory_owner(values), np.memmap))


def _memory_owner(values: np.ndarray) -> object:
    """Return the object that owns the memory of an array."""
    owner: object = values
    while isinstance(owner, np.ndarray) and owner.base is not None and not isinstance(owner, np.memmap):
        owner = owner.base
    return owner


def memory_error(doing: str, what: str, needed: int, free: int, advice: str) -> ConvswapError:
    """Return the error that `doing`, such as "comparing", takes more memory for `what` than is free."""
    return ConvswapError(
        f"the memory does not suffice: {doing} takes about {size_text(needed)}, for {what}, and "
        f"{size_text(free)} are free; {advice}"
    )


def size_text(size: int) -> str:
    """Return a size for a reader, in GB or MB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _cgroup_free_memory() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="utf-8"))
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        lines = (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines()
        # The system reclaims cached pages of files when memory is needed.
        cached = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, StopIteration):
        # There is no cgroup, or it has no limit, for which the file has "max".
        return None
    return max(0, limit - used + cached)
