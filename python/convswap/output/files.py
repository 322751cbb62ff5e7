"""Result files: refused before the long work starts, and never left half written.

A link is followed. What is no regular file, such as /dev/null or a named pipe, is written to as it is, and so
is whatever this process writes to already, which /dev/stdout names: none of them may be renamed over.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError


def check_writable(path: str | os.PathLike[str] | None, *others: str | os.PathLike[str] | None) -> None:
    """Raise ConvswapError where a result file cannot be written to `path`; None is no file at all.

    `others` are the files that the same command reads or writes: the result must be none of them, unless it
    is no regular file.
    """
    if path is None:
        return
    try:
        _check_writable(Path(path), [Path(other) for other in others if other is not None])
    except OSError as error:  # a name that is too long, for one
        raise _cannot_write(path, error) from None


def _check_writable(given: Path, others: list[Path]) -> None:
    if given.is_dir():
        raise ConvswapError(f"cannot write '{given}': it is a folder; name a file")
    if _is_written_straight(given):
        if not os.access(given, os.W_OK):
            raise ConvswapError(f"cannot write '{given}': it is not writable")
        return
    target = followed(given)
    if not target.parent.is_dir():
        raise ConvswapError(f"cannot write '{given}': there is no folder '{target.parent}'; make it first")
    for other in others:
        if _is_same_file(target, other):
            raise ConvswapError(f"cannot write '{given}': it is also '{other}'; choose another name")
    if not os.access(target.parent, os.W_OK):
        raise ConvswapError(f"cannot write '{given}': the folder '{target.parent}' is not writable")


def followed(path: Path) -> Path:
    """Return what the link `path` leads to, whether or not that exists; `path` itself where it is no link."""
    # Only where needed: an error names the folder as the user did.
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_same_file(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.absolute() == other.absolute()


def _is_written_straight(path: Path) -> bool:
    return path.exists() and (not path.is_file() or _own_stream(path) is not None)


def _own_stream(path: Path) -> int | None:
    """Return the descriptor, 1 or 2, by which this process writes to the file `path`; None for neither."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a closed stream is no file
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
    return None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `path` as JSON, all of it or nothing.

    Raises ConvswapError where the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` in UTF-8, all of it or nothing; what of a file's name is no text, as "?".

    Raises ConvswapError where the file cannot be written.
    """
    write_bytes(path, text.encode(errors="replace"))


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`, all of it or nothing where that is a regular file.

    Raises:
        ConvswapError: the file cannot be written.
        BrokenPipeError: it is a pipe whose reader has left.
    """
    check_writable(path)
    given = Path(path)
    try:
        if _is_written_straight(given):
            _write_straight(given, content)
        else:
            _replace(followed(given), content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write_straight(path: Path, content: bytes) -> None:
    descriptor = _own_stream(path)
    if descriptor is None:
        path.write_bytes(content)
        return
    # Not opened anew: a file would be written from its start again, and a socket cannot be opened.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)


def _replace(target: Path, content: bytes) -> None:
    # In the target's own folder, because a file can be renamed only within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convswap-") as folder:
        part = Path(folder) / target.name
        part.write_bytes(content)
        part.replace(target)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> ConvswapError:
    return ConvswapError(f"cannot write '{os.fspath(path)}': {error.strerror}")


def finite(value: Any) -> Any:
    """Return `value` with None for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
