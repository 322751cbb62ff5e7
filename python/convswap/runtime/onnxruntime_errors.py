"""ONNX Runtime's exceptions as errors of one line, with advice that its messages lack."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from convswap.errors import ConvswapError

# Messages of ONNX Runtime if no provider has a kernel for a node's op and types; the last one if the fallback
# to the CPU is forbidden. The status NOT_IMPLEMENTED does not identify them: a missing cuDNN has it too.
_NO_KERNEL = (
    "Could not find an implementation for",
    "Failed to find kernel for",
    "fallback to CPU EP has been explicitly disabled",
)
_UNKNOWN_OP = "is not a registered function/op"


class NoKernelError(ConvswapError):
    """No provider in use has a kernel for a node of the model, for its op or for its types."""


@contextmanager
def plain_errors(what: str) -> Iterator[None]:
    """Turn ONNX Runtime's exceptions into a ConvswapError of one line that starts with `what`.

    If ONNX Runtime has no kernel for a node, the error is a NoKernelError.
    """
    try:
        yield
    except ConvswapError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common class but this one.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = " ".join(lines) or type(error).__name__
        if _UNKNOWN_OP in message:
            message += "; if that is a custom op, --op-library names the library that has it"
        kind = NoKernelError if any(reason in message for reason in _NO_KERNEL) else ConvswapError
        raise kind(f"{what}: {message}") from error
