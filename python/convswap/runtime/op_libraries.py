"""Op libraries of others, which a model may need: what sessions load beside, or without, our own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import onnxruntime

from convswap.errors import ConvswapError, as_path
from convswap.runtime.library import library_path

# A session is made in many places for one answer, down to those of a single node, and each needs them.
_IN_USE: ContextVar[tuple[str, ...]] = ContextVar("op_libraries", default=())

OpLibraries = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@contextmanager
def sessions_with(files: OpLibraries) -> Iterator[None]:
    """Have all sessions that are made in this context load the libraries `files`, on both sides.

    Raises:
        ConvswapError: there is no such file, or ONNX Runtime cannot register it.
    """
    # One path is no sequence of letters.
    named = files if isinstance(files, Iterable) and not isinstance(files, (str, os.PathLike)) else [files]
    expected = "the file of an op library, such as libops.so, or several"
    # With a folder, since the loader would look for a bare name in the system's.
    paths = list(dict.fromkeys(as_path(file, expected).resolve() for file in named))
    options = onnxruntime.SessionOptions()
    for path in paths:
        if not path.is_file():
            raise ConvswapError(f"there is no op library '{path}'; give the file of one, such as libops.so")
        if path == library_path().resolve():
            raise ConvswapError(
                f"op library '{path}' is convswap's own, which is loaded anyway; leave it out"
            )
        _register(options, str(path))
    token = _IN_USE.set(tuple(map(str, paths)))
    try:
        yield
    finally:
        _IN_USE.reset(token)


def op_libraries_in_use() -> tuple[str, ...]:
    """Return the paths of the libraries in use, to be named to another process."""
    return _IN_USE.get()


def register_op_libraries(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Register the libraries in use in `options`, and return these.

    Raises:
        ConvswapError: ONNX Runtime cannot.
    """
    for file in _IN_USE.get():
        _register(options, file)
    return options


def _register(options: onnxruntime.SessionOptions, file: str) -> None:
    try:
        options.register_custom_ops_library(file)
    except Exception as error:  # onnxruntime's own exception types are private to it
        reason = " ".join(str(error).split())
        raise ConvswapError(
            f"ONNX Runtime cannot register the op library '{file}': {reason}; give a library of custom ops "
            "that is built for this machine"
        ) from error
