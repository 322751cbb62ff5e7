"""The one exception that every part of convswap raises for bad usage or bad input."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

INSTALL_CPU = "pip install onnxruntime"
# Without the last, the CUDA provider of onnxruntime-gpu does not start: its extras leave cuBLAS out.
INSTALL_CUDA = 'pip install "onnxruntime-gpu[cuda,cudnn]" nvidia-cublas'
NO_ONNXRUNTIME = (
    f"onnxruntime is not installed; {INSTALL_CUDA} on a machine with an NVIDIA card, "
    f"{INSTALL_CPU} on any other"
)


# Far more samples than a run takes, and few enough for every size of a tensor to fit into 64 bits.
LARGEST_COUNT = 2**31 - 1


class ConvswapError(Exception):
    """Bad usage or bad input: one line that names what was given, what was expected and what to do.

    The command line prints the message on standard error and exits with status 2.
    """


def unknown_name(kind: str, given: str, known: Iterable[str]) -> ConvswapError:
    """Return the error for a name that is not in `known`, naming the nearest one.

    `kind` is what the name stands for, in the words of the user: "network", "algorithm".
    """
    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.4) if isinstance(given, str) else []
    advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConvswapError(f"unknown {kind} {given!r}; {advice}")


def require_count(name: str, given: int | None) -> None:
    """Raise ConvswapError where `given`, called `name`, is no whole number from 1 to `LARGEST_COUNT`."""
    if given is not None and not is_whole_number(given):
        raise ConvswapError(f"{name} must be a whole number, but {given!r} was given; give one such as 64")
    if given is not None and given < 1:
        raise ConvswapError(f"{name} must be at least 1, but {given} was given; leave it out or give more")
    if given is not None and given > LARGEST_COUNT:
        raise ConvswapError(
            f"{name} must be at most {LARGEST_COUNT}, but {given} was given; leave it out or give less"
        )


def is_whole_number(given: Any) -> bool:
    """Return whether `given` is a whole number of Python or NumPy."""
    try:
        operator.index(given)
    except TypeError:
        return False
    return not isinstance(given, bool)


def batch_sizes(given: Any) -> tuple[int, ...]:
    """Return the batch sizes that were given, as one or as several.

    Raises ConvswapError where one is no whole number, or out of range.
    """
    sizes = tuple(given) if isinstance(given, Iterable) and not is_whole_number(given) else (given,)
    for size in sizes:
        if isinstance(given, str) or not is_whole_number(size):
            raise ConvswapError(
                f"batches were given as {given!r}; expected whole numbers from 1 on, as in [1, 64]"
            )
        require_count("batch", size)
    if not sizes:
        raise ConvswapError(f"batches were given as {given!r}; expected each once, and one at least")
    return tuple(map(int, sizes))


def as_path(given: object, expected: str) -> Path:
    """Return the path that was given; raise ConvswapError, which says what was `expected`, for no path."""
    if isinstance(given, (str, os.PathLike)):
        return Path(given)
    raise ConvswapError(f"an object of type {type(given).__name__} was given; expected {expected}")


def short_of_memory(error: MemoryError) -> ConvswapError:
    """Return the error for a run whose data do not fit into memory."""
    reason = f": {error}" if str(error) else ""
    return ConvswapError(
        f"the memory does not suffice{reason}; give a smaller batch, or smaller or fewer images"
    )


def root_cause(error: BaseException) -> str:
    """Return the first line of what caused `error` in the first place, in printable characters."""
    while (earlier := _earlier(error)) is not None:
        error = earlier
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename!r}"
    text = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    lines = text.strip().splitlines()
    if not lines:
        return type(error).__name__
    # Names in a damaged file may hold any character.
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in lines[0])


def _earlier(error: BaseException) -> BaseException | None:
    # Not the stated cause alone: onnx-ir at times fails while it words its own error.
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
