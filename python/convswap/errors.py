"""The one exception that every part of convswap raises for bad usage or bad input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

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
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.4)
    advice = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConvswapError(f"unknown {kind} {given!r}; {advice}")


def require_count(name: str, given: int | None) -> None:
    """Raise ConvswapError where `given`, called `name`, is below 1 or beyond `LARGEST_COUNT`."""
    if given is not None and given < 1:
        raise ConvswapError(f"{name} must be at least 1, but {given} was given; leave it out or give more")
    if given is not None and given > LARGEST_COUNT:
        raise ConvswapError(
            f"{name} must be at most {LARGEST_COUNT}, but {given} was given; leave it out or give less"
        )


def short_of_memory(error: MemoryError) -> ConvswapError:
    """Return the error for a run whose data do not fit into memory."""
    reason = f": {error}" if str(error) else ""
    return ConvswapError(
        f"the memory does not suffice{reason}; give a smaller batch, or smaller or fewer images"
    )
