"""A user's kernel as a program of the processor: its text, translated for `emulation/run_kernel.cc`."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from convswap.runtime import library
from convswap.tutorial.lab.host_header import precompiled_header
from convswap.tutorial.lab.kernel import Kernel

_MAIN = Path(__file__).parent / "emulation" / "run_kernel.cc"
# `extern __shared__ float tile[];` is a block's memory, whose size the launch gives.
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?"
    r"([\w:\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)
_CALLS = {
    "course": "forward(y, x, w, s[0], s[4], s[1], s[2], s[3], s[6])",
    "conv": "forward(y, x, w, b, std::bit_cast<convswap::Conv>("
    "*reinterpret_cast<const std::array<int, 16>*>(s)))",
}
# -O1 halves the time of compiling and running together; warnings are NVRTC's affair. A misaligned access is
# an illegal instruction then, as it is an error on a card. Threads are fibers that longjmp to each other,
# which the fortified one, on by default in some distributions, takes for an error.
_OPTIONS = (
    *("-std=c++20", "-O1", "-w", "-fpermissive", "-U_FORTIFY_SOURCE"),
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
)
MOST_SECONDS = 60


class NotTranslatedError(Exception):
    """The processor's compiler does not take the kernel; says its first error."""


def find_host_compiler() -> str | None:
    """Return the path of g++ or clang++; None where there is neither."""
    return next(filter(None, map(shutil.which, ("g++", "clang++"))), None)


def build_host_program(kernel: Kernel, compiler: str, folder: Path) -> Path:
    """Compile `kernel` for the processor, in `folder`, and return the program.

    Raises:
        NotTranslatedError: the kernel uses something of CUDA that the emulation has not.
    """
    (folder / "kernel.h").write_text(_translated(kernel), encoding="utf-8")
    program = folder / "run_kernel"
    compiled = precompiled_header(compiler, _OPTIONS)
    first = [] if compiled is None else [compiled]
    includes = [*first, folder, library.INSTALLED / "emulation", library.INSTALLED / "include"]
    call = _CALLS[kernel.interface]
    command = [compiler, *_OPTIONS, *(f"-I{each}" for each in includes), f"-DLAB_CALL(y,x,w,b,s)={call}"]
    try:
        done = subprocess.run(
            [*command, "-o", program, _MAIN],
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise NotTranslatedError(f"{Path(compiler).name} took more than {MOST_SECONDS} s") from None
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        raise NotTranslatedError(errors[0].strip() if errors else f"{Path(compiler).name} failed")
    return program


def _translated(kernel: Kernel) -> str:
    """Return the kernel's text, line by line where it was, for the host's compiler."""
    text = _DYNAMIC.sub(
        lambda found: (
            f"static {found[1]}* const {found[2]} = reinterpret_cast<{found[1]}*>(lab::dynamic_shared);"
            + "\n" * found[0].count("\n")
        ),
        kernel.text,
    )
    name = kernel.name.replace("\\", "\\\\").replace(chr(34), "\\" + chr(34))
    return f'#include "convswap/lab.h"\n#line 1 "{name}"\n{text}\n'
