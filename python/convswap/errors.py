"""The exception that convswap raises for bad usage or bad input, and checks of arguments that raise it."""

from __future__ import annotations

import difflib
import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

INSTALL_CPU = "pip install onnxruntime"
# The CUDA provider needs cuBLAS, which the extras of onnxruntime-gpu do not install.
INSTALL_CUDA = 'pip install "onnxruntime-gpu[cuda,cudnn]" nvidia-cublas'
NO_ONNXRUNTIME = (
    f"onnxruntime is not installed; {INSTALL_CUDA} on a machine with an NVIDIA card, "
    f"{INSTALL_CPU} on any other"
)


# Limit of batch sizes, image counts and extents. Byte sizes of tensors still fit into 64 bits.
LARGEST_COUNT = 2**31 - 1


class ConvswapError(Exception):
    """Bad usage or bad input. The message is one line: the argument, the expected value and the remedy.

    The command line prints the message on standard error and exits with status 2.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> ConvswapError:
    """Return the error for a `name` that is not in `known`; its message suggests a name of similar spelling.

    `kind` is the user's word for such names: "network", "algorithm".
    """
    names, near = sorted(known), []
    if isinstance(name, str):
        longer = [each for each in names if len(name) > 2 and name in each]
        near = sorted(longer, key=lambda each: not each.startswith(name))
        # "gpu" is not meant to be "cpu", which is two thirds the same.
        near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConvswapError(f"unknown {kind} {name!r}; {advice}")


def require_count(name: str, value: int | None) -> None:
    """Raise ConvswapError unless the argument `name` is None or an integer from 1 to `LARGEST_COUNT`."""
    if value is not None and not is_integer(value):
        raise ConvswapError(f"{name} must be a whole number, but {value!r} was given; give one such as 64")
    if value is not None and value < 1:
        raise ConvswapError(f"{name} must be at least 1, but {value} was given; leave it out or give more")
    if value is not None and value > LARGEST_COUNT:
        raise ConvswapError(
            f"{name} must be at most {LARGEST_COUNT}, but {value} was given; leave it out or give less"
        )


def is_integer(value: Any) -> bool:
    """Return whether `value` is an integer of Python or NumPy; a bool is none."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)


def batch_sizes(batches: Any) -> tuple[int, ...]:
    """Return `batches`, an integer or several, as a tuple.

    Raises ConvswapError if a batch size is no integer or out of range, or if there is none.
    """
    sizes = tuple(batches) if isinstance(batches, Iterable) and not is_integer(batches) else (batches,)
    for size in sizes:
        if isinstance(batches, str) or not is_integer(size):
            raise ConvswapError(
                f"batches were given as {batches!r}; expected whole numbers from 1 on, as in [1, 64]"
            )
        require_count("batch", size)
    if not sizes:
        raise ConvswapError(f"batches were given as {batches!r}; expected each once, and one at least")
    return tuple(map(int, sizes))


def as_path(path: object, expected: str) -> Path:
    """Return `path` as a Path; raise ConvswapError, which names what was `expected`, for another type."""
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    raise ConvswapError(f"an object of type {type(path).__name__} was given; expected {expected}")


def out_of_memory_error(error: MemoryError) -> ConvswapError:
    """Return the error for a run whose data do not fit into memory."""
    reason = f": {error}" if str(error) else ""
    return ConvswapError(
        f"the memory does not suffice{reason}; give a smaller batch, or smaller or fewer images"
    )


def unreadable(path: str | os.PathLike[str], error: Exception, expected: str) -> ConvswapError:
    """Return the error for a file of inputs that cannot be read; `expected` says what it should be."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return ConvswapError(f"cannot read the inputs '{path}': {reason}; expected {expected}")


def root_cause(error: BaseException) -> str:
    """Return the first line of the message of the first error in the chain that led to `error`.

    Unprintable characters are escaped.
    """
    while (earlier := _cause_of(error)) is not None:
        error = earlier
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename!r}"
    text = f"there is no {error}" if isinstance(error, KeyError) else str(error)
    lines = text.strip().splitlines()
    if not lines:
        return type(error).__name__
    # The message may quote names from a damaged file, which may hold any character.
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in lines[0])


def _cause_of(error: BaseException) -> BaseException | None:
    # The context counts too: onnx-ir may fail while it formats its own error message.
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
