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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError, as_path


def check_writable(
    path: str | os.PathLike[str] | None,
    taken: Mapping[str, Iterable[str | os.PathLike[str]]] | None = None,
    option: str = "the result",
) -> None:
    """Raise ConvswapError where a result file cannot be written to `path`; None is no file at all.

    `taken` has the other files that the same command reads or writes, by their roles, as in "the model that
    is read": what `option` writes must be none of them, unless it is no regular file.
    """
    if path is None:
        return
    try:
        _check_writable(as_path(path, "the path of a file to write"), taken or {}, option)
    except OSError as error:  # a name that is too long, for one
        raise _cannot_write(path, error) from None


def _check_writable(given: Path, taken: Mapping[str, Iterable[str | os.PathLike[str]]], option: str) -> None:
    if given.is_dir():
        raise ConvswapError(f"cannot write '{given}': it is a folder; name a file")
    if _is_written_straight(given):
        if not os.access(given, os.W_OK):
            raise ConvswapError(f"cannot write '{given}': it is not writable")
        return
    target = followed(given)
    if not target.parent.is_dir():
        raise ConvswapError(f"cannot write '{given}': there is no folder '{target.parent}'; make it first")
    for role, others in taken.items():
        if any(_is_same_file(target, Path(other)) for other in others):
            raise ConvswapError(
                f"cannot write '{given}': it is {role}, and {option} would replace it; choose another name"
            )
    check_folder(given, target.parent)


def check_folder(given: Path, folder: Path) -> None:
    """Raise ConvswapError where no file can be made in `folder`, which is the one of the result `given`.

    Permissions do not tell: root may do what a read-only file system, a full disk or /proc refuses.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".convswap-", buffering=0) as trial:
            trial.write(b"\n")
    except OSError as error:
        raise ConvswapError(
            f"cannot write '{given}': the folder '{folder}' is not writable ({error.strerror}); name another"
        ) from None


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
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return `value` as the text of a JSON file."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` in UTF-8, all of it or nothing; what of a file's name is no text, as "?".

    Raises ConvswapError where the file cannot be written.
    """
    write_bytes(path, text.encode(errors="replace"))


def write_cache(path: Path, text: str) -> None:
    """Write `text` to `path`, a file of the user's cache, all of it or nothing, and make its folder first.

    Raises ConvswapError where the file cannot be written, or something else is in its place.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ConvswapError(f"'{path}' is no regular file; remove it")
        _replace(followed(path), text.encode(errors="replace"))
    except OSError as error:
        raise ConvswapError(f"cannot write in the folder '{path.parent}': {error.strerror}") from None


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
