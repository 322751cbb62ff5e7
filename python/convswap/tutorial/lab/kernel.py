"""A kernel of the user's own: its file, read and looked at, but not compiled."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field

from convswap import _native
from convswap.errors import ConvswapError, as_path

# Far more than anybody types; beyond it, it is another file.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Kernel:
    """A kernel's `name`, which messages begin with, its `text`, and what its comments say, in `source`."""

    name: str
    text: str
    source: _native.LabSource = field(repr=False)

    @property
    def digest(self) -> str:
        """What tells this text from every other: 16 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def interface(self) -> str:
        """What `forward` takes: "course" or "conv"."""
        return self.source.interface


def kernel_of(source: str | os.PathLike[str]) -> Kernel:
    """Return the kernel of a file, or of CUDA text, which has line feeds.

    Raises:
        ConvswapError: the file cannot be read, or its comments do not say what they must.
    """
    if isinstance(source, str) and "\n" in source:
        return _kernel("kernel.cu", source)
    path = as_path(source, "a file such as mine.cu")
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise ConvswapError(
            f"'{path}' is a folder: expected a file such as mine.cu; `convswap lab submit` takes folders"
        ) from None
    except OSError as error:
        raise ConvswapError(
            f"cannot read '{path}': {error.strerror}; `convswap lab new {path}` writes a file to begin with"
        ) from error
    if len(content) > _MOST_BYTES:
        raise ConvswapError(
            f"'{path}' has {len(content):,} bytes: expected a CUDA file of at most {_MOST_BYTES:,}"
        )
    try:
        return _kernel(path.name, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConvswapError(
            f"'{path}' is no text in UTF-8 (byte {error.start}): expected a CUDA file"
        ) from error


def _kernel(name: str, text: str) -> Kernel:
    if "\0" in text:
        raise ConvswapError(f"'{name}' has a byte 0: expected CUDA text")
    return Kernel(name, text, _native.LabSource(name, text))
