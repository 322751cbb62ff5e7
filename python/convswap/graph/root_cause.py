"""What an exception comes from in the first place, in one line."""

from __future__ import annotations


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
