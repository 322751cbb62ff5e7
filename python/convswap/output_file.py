"""Result files: refused before the long work starts, and never left half written."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError


def check_writable(path: str | os.PathLike[str] | None, *others: str | os.PathLike[str] | None) -> None:
    """Raise ConvswapError where a result file cannot be written to `path`; None is no file at all.

    `others` are the files that the same command reads or writes: the result must be none of them.
    """
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise ConvswapError(f"cannot write '{target}': it is a folder; name a file")
    if not target.parent.is_dir():
        raise ConvswapError(f"cannot write '{target}': there is no folder '{target.parent}'; make it first")
    for other in others:
        if other is not None and _is_same_file(target, Path(other)):
            raise ConvswapError(f"cannot write '{target}': it is also '{other}'; choose another name")
    if not os.access(target.parent, os.W_OK):
        raise ConvswapError(f"cannot write '{target}': the folder '{target.parent}' is not writable")


def _is_same_file(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    return one.absolute() == other.absolute()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write `value` to `path` as JSON, all of it or nothing.

    Raises ConvswapError where the file cannot be written.
    """
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` in UTF-8, all of it or nothing.

    Raises ConvswapError where the file cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`, all of it or nothing.

    Raises ConvswapError where the file cannot be written.
    """
    check_writable(path)
    target = Path(path)
    try:
        # In the target's own folder, because a file can be renamed only within one file system.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convswap-") as folder:
            part = Path(folder) / target.name
            part.write_bytes(content)
            part.replace(target)
    except OSError as error:
        raise ConvswapError(f"cannot write '{target}': {error.strerror}") from error
