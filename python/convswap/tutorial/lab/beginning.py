"""Writes a file to begin with: a slow kernel, or a copy of a rung."""

from __future__ import annotations

import os
from pathlib import Path

from convswap.errors import ConvswapError, unknown_name
from convswap.output.files import check_writable, write_text
from convswap.tutorial.lab.rung_copies import rung_copy
from convswap.tutorial.lab.templates import BY_INTERFACE


def new(path: str | os.PathLike[str], *, rung: str | None = None, what: str = "course") -> Path:
    """Write a kernel that computes a convolution to `path`, which must not be there; return it.

    Args:
        path: the file, whose name should end in .cu for the sake of editors.
        rung: an algorithm's name such as "ladder_04_shared_memory", which the file is a copy of.
        what: "course" for the course's interface, "conv" for the whole op.

    Raises:
        ConvswapError: the file is there or cannot be written, or there is no such rung or interface.
    """
    if what not in BY_INTERFACE:
        raise unknown_name("interface", what, BY_INTERFACE)
    if rung is not None and what != "course":
        raise ConvswapError(f"a copy of {rung} has the course's interface: leave --what out")
    target = Path(path)
    text = BY_INTERFACE[what].replace("@NAME@", target.name) if rung is None else rung_copy(rung)
    if target.exists():
        raise ConvswapError(f"'{target}' is there already: choose another name, or remove it first")
    check_writable(target)
    write_text(target, text)
    return target
