"""A kernel of the user's own: its file, and what NVRTC says of it, without what is not the user's."""

from __future__ import annotations

import hashlib
import os
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from convswap import _native
from convswap.errors import ConvswapError, as_path
from convswap.tutorial.lab.result import Fault, LabResult

# What the catalog calls whatever kernel a session has of the user's.
ALGORITHM = "lab"
# What one check of one kernel may take; it takes a thousandth.
SECONDS = 10.0
# The card that is compiled for where there is none.
USUAL_CAPABILITY = 90
# Far more than anybody types; beyond it, it is another file.
_MOST_BYTES = 1 << 20

# Of the compiler's class: what it was asked for, its log, and the number of the result.
_MESSAGE = re.compile(
    r"NVRTC (\S+) \((.*?)\) cannot compile forward for compute capability \S+: (.*)", re.DOTALL
)
_RESULT = re.compile(r"\s*\(result \d+\)\s*\Z")
# A message begins a paragraph: "mine.cu(4): error: identifier ...".
_LOCATED = re.compile(r"(.+?)\((\d+)\): (?:catastrophic )?(error|warning)")
_SIGNATURE = re.compile(r'static assertion failed with "(forward must be [^"]*)"')
_NO_HEADER = re.compile(r'could not open source file "([^"]*)"')
_PARAGRAPHS_SHOWN = 5
# Whatever the card.
_MOST_DECLARED = 48 << 10
_COLUMNS = 200

# Of ELF, which is the format of a compiled kernel.
_MAGIC = b"\x7fELF\x02\x01"
# In the header: where the table of sections is, how long an entry is, how many there are, and which has the
# names.
_TABLE_AT, _ENTRY_SIZE_AT = 40, 58
_NAME, _OFFSET, _SIZE = 0, 24, 32


@dataclass(frozen=True)
class Kernel:
    """A kernel's `name`, which messages begin with, its `text`, and what its comments say, in `source`."""

    name: str
    text: str
    source: _native.LabSource = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _kernel, (self.name, self.text)

    @property
    def digest(self) -> str:
        """What tells this text from every other: 16 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def interface(self) -> str:
        """What `forward` takes: "course" or "conv"."""
        return self.source.interface


@dataclass(frozen=True)
class Request:
    """What is asked of a kernel: to run in the place of the Convs of `target`; see `convswap.lab.run`.

    `seconds` is what one check may take; `marks` says whether it is set beside the ladder, `time` whether it
    is timed at all. `compute_capability` is compiled for without a card.
    """

    kernel: Kernel
    target: str
    batch: int | None = None
    device: str | None = None
    seconds: float = SECONDS
    marks: bool = True
    time: bool = True
    compute_capability: int = USUAL_CAPABILITY

    def result(self, **found: Any) -> LabResult:
        """Return a result of it that has what was `found`."""
        kernel = self.kernel
        return LabResult(kernel.name, kernel.digest, kernel.interface, self.target, self.batch, **found)


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


def compile_kernel(kernel: Kernel, compute_capability: int) -> Fault | None:
    """Compile `kernel` for cards of a compute capability (90 for 9.0); return what is wrong, or None.

    Raises:
        RuntimeError: there is no compiler.
    """
    try:
        code = kernel.source.compile(compute_capability)
    except RuntimeError as error:
        found = _MESSAGE.fullmatch(str(error))
        if found is None:
            raise
        return _fault(kernel, _RESULT.sub("", found[3]), found[1])
    declared = declared_shared_bytes(code)
    if declared > _MOST_DECLARED:
        return Fault(
            "compile",
            f"{kernel.name} declares {declared:,} bytes of shared memory: variables may have "
            f"{_MOST_DECLARED:,}. More is had by `extern __shared__ float all[];`, whose bytes stand in "
            "shared(...) of the launch line.",
        )
    return None


def _fault(kernel: Kernel, log: str, version: str) -> Fault:
    located = [part for part in log.split("\n\n") if _LOCATED.match(part)]
    own = [part for part in located if part.startswith(f"{kernel.name}(") and "error" in _kind(part)]
    if own:
        return _own_fault(kernel, own, version)
    if signature := _SIGNATURE.search(log):
        missing = 'has no "forward"' in log
        what = "has no kernel `forward`" if missing else "has another kind of `forward`"
        return Fault(
            "compile", f"{kernel.name} {what}: expected {signature[1].removeprefix('forward must be ')}."
        )
    if "non-__global__" in log:
        return Fault(
            "compile", f"{kernel.name}: `forward` is no kernel: write __global__ before void forward(...)."
        )
    # The rest are errors within a header, or NVRTC's own.
    return Fault("compile", f"{kernel.name} does not compile (NVRTC {version}):\n{_clipped(log.strip())}")


def _own_fault(kernel: Kernel, parts: list[str], version: str) -> Fault:
    shown = "\n\n".join(_clipped(part.rstrip()) for part in parts[:_PARAGRAPHS_SHOWN])
    more = len(parts) - _PARAGRAPHS_SHOWN
    text = f"{kernel.name} does not compile (NVRTC {version}):\n{shown}"
    if more > 0:
        text += f"\n\nand {more} more"
    if header := _NO_HEADER.search(shown):
        text += (
            f"\n\nKernels are compiled without the host's headers: leave out {header[1]!r}; sizes and "
            'convswap::ceil_div come with #include "convswap/lab.h".'
        )
    lines = [int(match[2]) for part in parts if (match := _LOCATED.match(part))]
    return Fault("compile", text, {"lines": lines})


def _kind(part: str) -> str:
    found = _LOCATED.match(part)
    return "" if found is None else found[3]


def _clipped(text: str) -> str:
    """Return `text` with lines no longer than a reader can take in."""
    return "\n".join(
        line if len(line) <= _COLUMNS else line[: _COLUMNS - 3] + "..." for line in text.splitlines()
    )


def declared_shared_bytes(code: bytes) -> int:
    """Return the bytes of shared memory that a kernel's variables take in a block; 0 where it is no cubin."""
    if not code.startswith(_MAGIC):
        return 0
    (table,) = struct.unpack_from("<Q", code, _TABLE_AT)
    size, count, of_names = struct.unpack_from("<HHH", code, _ENTRY_SIZE_AT)
    entries = [table + size * number for number in range(count)]
    (names,) = struct.unpack_from("<Q", code, entries[of_names] + _OFFSET)
    found = 0
    for entry in entries:
        (name,) = struct.unpack_from("<I", code, entry + _NAME)
        if code.startswith(b".nv.shared.", names + name):
            (bytes_of_section,) = struct.unpack_from("<Q", code, entry + _SIZE)
            found = max(found, bytes_of_section)
    return found
