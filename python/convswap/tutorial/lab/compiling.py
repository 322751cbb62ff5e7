"""What NVRTC says of a kernel, without what is not the user's."""

from __future__ import annotations

import re

from convswap.tutorial.lab.cubin import declared_shared_bytes
from convswap.tutorial.lab.faults import Fault
from convswap.tutorial.lab.kernel import Kernel

# Of the compiler's class: what it was asked for, its log, and the number of the result.
_MESSAGE = re.compile(
    r"NVRTC (\S+) \((.*?)\) cannot compile forward for compute capability \S+: (.*)", re.DOTALL
)
_RESULT = re.compile(r"\s*\(result \d+\)\s*\Z")
# A message begins a paragraph: "mine.cu(4): error: identifier ...".
_LOCATED = re.compile(r"(.+?)\((\d+)\): (?:catastrophic )?(error|warning)")
# Custom text that the library appends, and what NVRTC compiles to find the kernel's name.
_CHECK, _NAME_MAP = "what forward takes", "__nv_name_map"
_SIGNATURE = re.compile(r'static assertion failed with "(forward must be [^"]*)"')
_NO_HEADER = re.compile(r'could not open source file "([^"]*)"')
_PARAGRAPHS_SHOWN = 5
# Whatever the card.
_MOST_DECLARED = 48 << 10
_COLUMNS = 200


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
