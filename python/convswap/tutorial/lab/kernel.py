"""A user's kernel: reads its file, compiles it with NVRTC, and turns compile errors into faults."""

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

# The catalog's name for the user's kernel of a session.
ALGORITHM = "lab"
# Time limit of one check of one kernel; a check takes about a thousandth of it.
CHECK_SECONDS = 10.0
# Kernels are compiled for this compute capability on a machine without a card.
DEFAULT_CAPABILITY = 90
# A larger file is not a kernel.
_MAX_FILE_BYTES = 1 << 20

# Matches the error of `LabSource.compile`: NVRTC's version, its options, and its log.
_COMPILE_ERROR = re.compile(
    r"NVRTC (\S+) \((.*?)\) cannot compile forward for compute capability \S+: (.*)", re.DOTALL
)
_RESULT_CODE = re.compile(r"\s*\(result \d+\)\s*\Z")
# Matches the beginning of a paragraph of the log: "mine.cu(4): error: identifier ...".
_LOCATED = re.compile(r"(.+?)\((\d+)\): (?:catastrophic )?(error|warning)")
_SIGNATURE = re.compile(r'static assertion failed with "(forward must be [^"]*)"')
_NO_HEADER = re.compile(r'could not open source file "([^"]*)"')
_PARAGRAPHS_SHOWN = 5
# CUDA's limit for statically declared shared memory, on every card.
_MAX_STATIC_SHARED_BYTES = 48 << 10
_MAX_COLUMNS = 200

# The first bytes of a 64-bit ELF file, the format of a cubin.
_ELF_MAGIC = b"\x7fELF\x02\x01"
# Byte offsets in the ELF header: that of the section table; then an entry's size, the number of entries and
# the index of the section with the names. Then byte offsets in an entry.
_SECTION_TABLE, _SECTION_ENTRY_SIZE = 40, 58
_ENTRY_NAME, _ENTRY_OFFSET, _ENTRY_BYTES = 0, 24, 32


@dataclass(frozen=True)
class LabKernel:
    """A user's kernel: `name`, which messages begin with, `text`, and `source`, which parsed its comments."""

    name: str
    text: str
    source: _native.LabSource = field(repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_kernel, (self.name, self.text)

    @property
    def digest(self) -> str:
        """A hash of the text: 16 hexadecimal digits."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def interface(self) -> str:
        """The kind of parameters that `forward` takes: "course" or "conv"."""
        return self.source.interface


@dataclass(frozen=True)
class Request:
    """A request to the worker: run a kernel in the place of the Convs of `target`; see `convswap.lab.run`.

    `seconds` is the time limit of a check. `baselines` says whether the ladder is timed too, `time` whether
    the kernel is timed at all. Without a card the kernel is compiled for `compute_capability`.
    """

    kernel: LabKernel
    target: str
    batch: int | None = None
    device: str | None = None
    seconds: float = CHECK_SECONDS
    baselines: bool = True
    time: bool = True
    compute_capability: int = DEFAULT_CAPABILITY

    def result(self, **fields: Any) -> LabResult:
        """Return a result for this request with these `fields`."""
        kernel = self.kernel
        return LabResult(kernel.name, kernel.digest, kernel.interface, self.target, self.batch, **fields)


def read_kernel(source: str | os.PathLike[str]) -> LabKernel:
    """Return the kernel in a file, or in `source` itself if it has line feeds.

    Raises:
        ConvswapError: the file cannot be read, or its launch, only or interface line is missing or wrong.
    """
    if isinstance(source, str) and "\n" in source:
        return _make_kernel("kernel.cu", source)
    path = as_path(source, "a file such as mine.cu")
    try:
        content = path.read_bytes()
    except IsADirectoryError:
        raise ConvswapError(
            f"'{path}' is a folder: expected a file such as mine.cu; `convswap lab submit` takes folders"
        ) from None
    except OSError as error:
        raise ConvswapError(
            f"cannot read '{path}': {error.strerror}; `convswap lab new {path}` writes a file to start from"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConvswapError(
            f"'{path}' has {len(content):,} bytes: expected a CUDA file of at most {_MAX_FILE_BYTES:,}"
        )
    try:
        return _make_kernel(path.name, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConvswapError(
            f"'{path}' is not UTF-8 text (byte {error.start}): expected a CUDA file"
        ) from error


def _make_kernel(name: str, text: str) -> LabKernel:
    if "\0" in text:
        raise ConvswapError(f"{name} has a byte 0: expected CUDA text in UTF-8")
    return LabKernel(name, text, _native.LabSource(name, text))


def compile_kernel(kernel: LabKernel, compute_capability: int) -> Fault | None:
    """Compile `kernel` for cards of a compute capability (90 for 9.0); return the fault, or None.

    Raises:
        RuntimeError: NVRTC is missing.
    """
    try:
        code = kernel.source.compile(compute_capability)
    except RuntimeError as error:
        match = _COMPILE_ERROR.fullmatch(str(error))
        if match is None:
            raise
        return _compile_fault(kernel, _RESULT_CODE.sub("", match[3]), match[1])
    static_bytes = static_shared_bytes(code)
    if static_bytes > _MAX_STATIC_SHARED_BYTES:
        return Fault(
            "compile",
            f"{kernel.name} declares {static_bytes:,} bytes of shared memory; the limit is "
            f"{_MAX_STATIC_SHARED_BYTES:,}. For more, declare `extern __shared__ float all[];` and give its "
            "bytes in shared(...) of the launch line.",
        )
    return None


def _compile_fault(kernel: LabKernel, log: str, version: str) -> Fault:
    located = [part for part in log.split("\n\n") if _LOCATED.match(part)]
    user_errors = [
        part for part in located if part.startswith(f"{kernel.name}(") and "error" in _severity(part)
    ]
    if user_errors:
        return _user_error_fault(kernel, user_errors, version)
    if signature := _SIGNATURE.search(log):
        missing = 'has no "forward"' in log
        problem = "has no kernel `forward`" if missing else "has a `forward` with other parameters"
        return Fault(
            "compile", f"{kernel.name} {problem}: expected {signature[1].removeprefix('forward must be ')}."
        )
    if "non-__global__" in log:
        return Fault(
            "compile",
            f"{kernel.name}: `forward` is not a kernel: write __global__ before void forward(...).",
        )
    # All other errors are inside a header, or NVRTC's own.
    return Fault("compile", f"{kernel.name} does not compile (NVRTC {version}):\n{_truncated(log.strip())}")


def _user_error_fault(kernel: LabKernel, parts: list[str], version: str) -> Fault:
    paragraphs = "\n\n".join(_truncated(part.rstrip()) for part in parts[:_PARAGRAPHS_SHOWN])
    more = len(parts) - _PARAGRAPHS_SHOWN
    text = f"{kernel.name} does not compile (NVRTC {version}):\n{paragraphs}"
    if more > 0:
        text += f"\n\nand {more} more"
    if header := _NO_HEADER.search(paragraphs):
        text += (
            f"\n\nKernels are compiled without the host's headers: remove {header[1]!r}. The header "
            '"convswap/lab.h" has the sizes and convswap::ceil_div.'
        )
    lines = [int(match[2]) for part in parts if (match := _LOCATED.match(part))]
    return Fault("compile", text, {"lines": lines})


def _severity(part: str) -> str:
    match = _LOCATED.match(part)
    return "" if match is None else match[3]


def _truncated(text: str) -> str:
    """Return `text` with every line cut to `_MAX_COLUMNS`."""
    return "\n".join(
        line if len(line) <= _MAX_COLUMNS else line[: _MAX_COLUMNS - 3] + "..." for line in text.splitlines()
    )


def static_shared_bytes(code: bytes) -> int:
    """Return the statically declared bytes of shared memory of a block; 0 if `code` is not a cubin."""
    if not code.startswith(_ELF_MAGIC):
        return 0
    (table,) = struct.unpack_from("<Q", code, _SECTION_TABLE)
    size, count, names_index = struct.unpack_from("<HHH", code, _SECTION_ENTRY_SIZE)
    entries = [table + size * number for number in range(count)]
    (names,) = struct.unpack_from("<Q", code, entries[names_index] + _ENTRY_OFFSET)
    match = 0
    for entry in entries:
        (name,) = struct.unpack_from("<I", code, entry + _ENTRY_NAME)
        if code.startswith(b".nv.shared.", names + name):
            (bytes_of_section,) = struct.unpack_from("<Q", code, entry + _ENTRY_BYTES)
            match = max(match, bytes_of_section)
    return match
