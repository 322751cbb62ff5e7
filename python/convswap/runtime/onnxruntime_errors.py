"""What ONNX Runtime raises, as errors of one line; what a message of its own needs beside it is said here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from convswap.errors import ConvswapError

# What ONNX Runtime says where no provider has a kernel for a node's op and types; the last where the fallback
# to the CPU is forbidden. The status NOT_IMPLEMENTED does not tell: it stands for a missing cuDNN too.
_NO_KERNEL = (
    "Could not find an implementation for",
    "Failed to find kernel for",
    "fallback to CPU EP has been explicitly disabled",
)
_UNKNOWN_OP = "is not a registered function/op"


class NoKernelError(ConvswapError):
    """A provider that may be used has no kernel for a node of the model: for its op, or for its types."""


@contextmanager
def plain_errors(what: str) -> Iterator[None]:
    """Turn what ONNX Runtime raises into a ConvswapError of one line that starts with `what`.

    Where it has no kernel for a node, it is a NoKernelError.
    """
    try:
        yield
    except ConvswapError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common class but this one.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = " ".join(lines) or type(error).__name__
        if _UNKNOWN_OP in said:
            said += "; if that is a custom op, --op-library names the library that has it"
        kind = NoKernelError if any(reason in said for reason in _NO_KERNEL) else ConvswapError
        raise kind(f"{what}: {said}") from error
