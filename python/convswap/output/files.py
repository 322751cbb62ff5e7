"""Result files: checked before long work starts, and written completely or not at all.

A symbolic link is followed. A file that is no regular file, such as /dev/null or a named pipe, is written in
place: renaming a finished file over it would replace it. The same holds for a file that is this process's
standard output or error, such as /dev/stdout.
"""

from __future__ import annotations

import contextlib
import errno
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
    reserved: Mapping[str, Iterable[str | os.PathLike[str]]] | None = None,
    option: str = "the result",
) -> None:
    """Raise ConvswapError if a result file cannot be written to `path`; None means that no file is written.

    `reserved` has the other files that the command reads or writes, by their role, such as "the model that is
    read". The file that `option` writes must be none of them, unless it is no regular file.
    """
    if path is None:
        return
    try:
        _check_writable(as_path(path, "the path of a file to write"), reserved or {}, option)
    except OSError as error:  # such as a name that is too long
        raise _cannot_write(path, error) from None


def _check_writable(
    path: Path, reserved: Mapping[str, Iterable[str | os.PathLike[str]]], option: str
) -> None:
    try:
        path.stat()
    except OSError as error:
        # Path's own tests return False for these from Python 3.14 on.
        if error.errno in (errno.ENAMETOOLONG, errno.EACCES):
            raise
    if path.is_dir():
        raise ConvswapError(f"cannot write '{path}': it is a folder; name a file")
    if _is_written_in_place(path):
        if not os.access(path, os.W_OK):
            raise ConvswapError(f"cannot write '{path}': it is not writable")
        return
    target = resolve_link(path)
    if not target.parent.is_dir():
        raise ConvswapError(f"cannot write '{path}': there is no folder '{target.parent}'; make it first")
    for role, others in reserved.items():
        if any(_is_same_file(target, Path(other)) for other in others):
            raise ConvswapError(
                f"cannot write '{path}': it is {role}, and {option} would replace it; choose another name"
            )
    check_folder_writable(path, target.parent)


def check_folder_writable(path: Path, folder: Path) -> None:
    """Raise ConvswapError if no file can be created in `folder`, where the result `path` will be written.

    Permission bits are no proof: a read-only file system, a full disk or /proc refuses even root.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".convswap-", buffering=0) as probe:
            probe.write(b"\n")
    except OSError as error:
        raise ConvswapError(
            f"cannot write '{path}': the folder '{folder}' is not writable ({error.strerror}); name another"
        ) from None


def resolve_link(path: Path) -> Path:
    """Return the target of the link `path`, which need not exist; return `path` itself if it is no link."""
    # Other paths are not resolved, so that errors name the folder as the user did.
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _is_same_file(path: Path, other: Path) -> bool:
    if path.exists() and other.exists():
        return path.samefile(other)
    return path.absolute() == other.absolute()


def _is_written_in_place(path: Path) -> bool:
    return path.exists() and (not path.is_file() or _standard_stream(path) is not None)


def _standard_stream(path: Path) -> int | None:
    """Return the descriptor, 1 (stdout) or 2 (stderr), that is open on the file `path`; else None."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a closed stream is no file
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
    return None


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `path` as JSON, completely or not at all.

    Raises ConvswapError if the file cannot be written.
    """
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return `value` as the text of a JSON file."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` in UTF-8, completely or not at all.

    Characters that UTF-8 cannot encode, from file names that are no valid text, become "?".

    Raises ConvswapError if the file cannot be written.
    """
    write_bytes(path, text.encode(errors="replace"))


def write_cache(path: Path, text: str) -> None:
    """Write `text` to `path`, a file of the user's cache, completely or not at all; create its folder.

    Raises ConvswapError if the file cannot be written, or `path` exists and is no regular file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise ConvswapError(f"'{path}' is no regular file; remove it")
        _replace(resolve_link(path), text.encode(errors="replace"))
    except OSError as error:
        raise ConvswapError(f"cannot write in the folder '{path.parent}': {error.strerror}") from None


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`; a regular file is written completely or not at all.

    Raises:
        ConvswapError: the file cannot be written.
        BrokenPipeError: the file is a pipe without a reader.
    """
    check_writable(path)
    file = Path(path)
    try:
        if _is_written_in_place(file):
            _write_in_place(file, content)
        else:
            _replace(resolve_link(file), content)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write_in_place(path: Path, content: bytes) -> None:
    descriptor = _standard_stream(path)
    if descriptor is None:
        path.write_bytes(content)
        return
    # The descriptor is duplicated: opening the file again would overwrite it from its start, and a socket
    # cannot be opened.
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with os.fdopen(os.dup(descriptor), "wb") as stream:
        stream.write(content)


def _replace(target: Path, content: bytes) -> None:
    # The temporary folder is beside the target, because a file can be renamed only within a file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convswap-") as folder:
        temporary = Path(folder) / target.name
        temporary.write_bytes(content)
        temporary.replace(target)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> ConvswapError:
    return ConvswapError(f"cannot write '{os.fspath(path)}': {error.strerror}")


def finite(value: Any) -> Any:
    """Return `value` with None in place of infinities and NaN, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value
