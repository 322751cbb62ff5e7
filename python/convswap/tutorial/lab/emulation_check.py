"""Checks a kernel without a card: thread by thread on the processor, where there is a compiler for it."""

from __future__ import annotations

import contextlib
import hashlib
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from convswap import _native
from convswap.runtime import library
from convswap.tutorial.lab.checks import Case, Outcome, fault_of
from convswap.tutorial.lab.kernel import Kernel
from convswap.tutorial.lab.result import PRINTED_SHOWN, Fault, flood_of

# What a block of the largest card may have; the emulation has more.
SHARED_BYTES = 232_448
# A case takes a tenth of a second.
SECONDS = 20
# What a program may print or write: results, and a kernel's own words.
_MOST_FILE_BYTES = 64 << 20
_FLOOD = 1 << 16

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
_COMPILER_SECONDS = 60

_HEADER = library.INSTALLED / "emulation" / "cuda_emulation.h"


def check_in_emulation(
    kernel: Kernel, cases: Sequence[Case], compiler: str, seconds: float = SECONDS
) -> Fault | None:
    """Run `kernel` on the processor for each of `cases`, twice; return the first fault, or None.

    Raises:
        NotTranslatedError: the kernel uses something of CUDA that the emulation has not.
        ConvswapError: the launch line gives none that a card takes.
    """
    with tempfile.TemporaryDirectory(prefix="convswap-lab-") as name:
        folder = Path(name)
        program = build_host_program(kernel, compiler, folder)
        (folder / "problems").write_bytes(b"".join(_packed(kernel, case) for case in cases))
        printed, status = _run(program, folder, seconds)
        outcomes = dict(_read_results(folder / "results", len(cases)))
        for number, case in enumerate(cases):
            outcome = outcomes.get(number)
            if outcome is None:
                return _stopped(kernel, case, status, printed, seconds)
            if fault := fault_of(kernel.name, case, outcome):
                return fault
        return _flood(kernel, printed)


def _packed(kernel: Kernel, case: Case) -> bytes:
    """Return the problem as `run_kernel.cc` reads it."""
    grid, block, shared = kernel.source.launch(case.problem, SHARED_BYTES)
    x, w, bias = case.arrays
    filters, _, rows, columns = case.w_shape
    out = case.problem.output_shape
    given = case.attributes
    strides, dilations = given.get("strides", [1, 1]), given.get("dilations", [1, 1])
    pads, group = given.get("pads", [0, 0, 0, 0]), given.get("group", 1)
    sizes = [*case.x_shape, filters, rows, columns, *out[2:], *strides, *pads[:2], *dilations]
    counts = [x.size, w.size, 0 if bias is None else bias.size, int(np.prod(out))]
    header = [*grid, *block, shared, kernel.interface == "conv", *sizes, group, *counts]
    tensors = [x, w, *([] if bias is None else [bias])]
    return struct.pack(f"{len(header)}i", *header) + b"".join(tensor.tobytes() for tensor in tensors)


def _run(program: Path, folder: Path, seconds: float) -> tuple[bytes, int | None]:
    """Return what the program printed, at most `_MOST_FILE_BYTES`, and its status; None: it took too long."""

    printed = folder / "printed"
    with printed.open("wb") as output:
        started = subprocess.Popen(
            [program, folder / "problems", folder / "results"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
            resource.prlimit(started.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            status: int | None = started.wait(seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
            status = None
    return printed.read_bytes(), status


def _read_results(path: Path, most: int) -> Iterator[tuple[int, Outcome]]:
    """Yield what each problem left that came to its end."""
    content = path.read_bytes() if path.exists() else b""
    at = 0
    left: dict[int, list[np.ndarray]] = {}
    outside: dict[int, dict[str, int]] = {}
    changed: dict[int, dict[str, int]] = {}
    while (end := content.find(b"\n", at)) >= 0:
        word, *rest = content[at:end].decode().split()
        at = end + 1
        number = int(rest[0])
        if word == "outside":
            outside.setdefault(number, {}).setdefault(rest[1], int(rest[2]))
        elif word == "changed":
            changed.setdefault(number, {}).setdefault(rest[1], int(rest[2]))
        elif word == "y":
            bytes_of_y = 4 * int(rest[1])
            left.setdefault(number, []).append(np.frombuffer(content[at : at + bytes_of_y], np.float32))
            at += bytes_of_y + 1
    for number in range(most):
        runs = left.get(number, [])
        if len(runs) == 2:
            yield number, Outcome(runs[0], runs[1], outside.get(number, {}), changed.get(number, {}))


# What a program that a signal ended did, by the signal.
_ENDED = {
    signal.SIGFPE: "divides a whole number by zero: for {case}. A card gives any number then.",
    signal.SIGILL: "reads or writes several numbers at once, as float4, at an address that is no multiple of "
    "their size: for {case}. A row begins at such an address only where its width is a multiple too.",
}
_CRASHED = (
    "crashes: for {case}, it reads or writes at an address that belongs to no tensor, or a thread needs more "
    "memory for its own arrays and calls than it has. See every index that is computed, and functions that "
    "call themselves."
)


def _stopped(kernel: Kernel, case: Case, status: int | None, printed: bytes, seconds: float) -> Fault:
    """Return the fault of a program that ended before the case did."""
    name, detail = kernel.name, {"case": str(case)}
    if status in (None, -signal.SIGXFSZ) and (flood := _flood(kernel, printed)):
        return flood
    if status is None:
        return Fault(
            "time",
            f"{name} does not come to an end: for {case}, it was stopped after {seconds:g} s. A loop's "
            "condition stays true; see what changes its counter, and what a while waits for.",
            detail,
        )
    said = printed.decode(errors="replace").strip().splitlines()
    if status == 1 and said:
        return _reported(name, case, said[-1])
    if status == -signal.SIGABRT and said:
        return Fault("crash", f"{name} stops itself: for {case}, {said[-1][:PRINTED_SHOWN]}", detail)
    ended = next((text for number, text in _ENDED.items() if status == -number), _CRASHED)
    return Fault("crash", f"{name} {ended.format(case=case)}", detail)


# What the emulation says of itself, and what that means for the author.
_REPORTS = {
    "threads wait for each other for ever": (
        "crash",
        "threads wait for each other for ever: not all threads of a block reach the same __syncthreads(). "
        "Take it out of the `if`, and return behind it",
    ),
    "a write beyond shared memory": (
        "outside",
        "a thread writes beyond the shared memory of its block: give more in shared(...) of the launch "
        "line, or see the index",
    ),
    "__trap()": ("crash", "a thread calls __trap()"),
}


def _reported(name: str, case: Case, said: str) -> Fault:
    for words, (kind, meaning) in _REPORTS.items():
        if said.startswith(words):
            where = said.removeprefix(words).strip()
            return Fault(kind, f"{name}: for {case}, {where}, {meaning}.", {"case": str(case)})
    return Fault("crash", f"{name}: for {case}, {said[:PRINTED_SHOWN]}.", {"case": str(case)})


def _flood(kernel: Kernel, printed: bytes) -> Fault | None:
    """Return the fault of a kernel that prints more than anybody reads."""
    if len(printed) <= _FLOOD:
        return None
    return flood_of(kernel.name, printed.decode(errors="replace"))


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
            timeout=_COMPILER_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise NotTranslatedError(f"{Path(compiler).name} took more than {_COMPILER_SECONDS} s") from None
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


def precompiled_header(compiler: str, options: Sequence[str]) -> Path | None:
    """Return a folder with the emulation's header, compiled once; None where it is not to be had.

    Each kernel then takes less than half the time of g++, which else reads the header itself.
    """
    kept = _native.kernel_store()["folder"]
    # Another compiler has another format, and none of its own name.
    if not kept or Path(compiler).name != "g++":
        return None
    folder = Path(kept).parent / "emulation" / _key(compiler, options)
    compiled = folder / f"{_HEADER.name}.gch"
    try:
        if not compiled.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _compile(compiler, options, compiled)
    except (OSError, subprocess.SubprocessError):
        return None
    return folder


def _key(compiler: str, options: Sequence[str]) -> str:
    facts = Path(compiler).resolve().stat()
    parts = [
        compiler,
        str(facts.st_size),
        str(facts.st_mtime_ns),
        *options,
        _HEADER.read_text(encoding="utf-8"),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, options: Sequence[str], target: Path) -> None:
    # As a whole or not at all, also where several do so at once.
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        part = Path(name) / target.name
        command = [compiler, *options, "-x", "c++-header", str(_HEADER), "-o", str(part)]
        subprocess.run(
            command, check=True, capture_output=True, timeout=_COMPILER_SECONDS, stdin=subprocess.DEVNULL
        )
        part.replace(target)
