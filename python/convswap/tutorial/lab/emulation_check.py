"""Checks a kernel without a card: thread by thread on the CPU, if the host has a C++ compiler."""

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
from convswap.tutorial.lab.kernel import LabKernel
from convswap.tutorial.lab.result import MAX_PRINTED_CHARACTERS, Fault, flood_of

# Largest shared memory of a block on any card; the emulation has more.
MAX_SHARED_BYTES = 232_448
# Time limit of all cases together; one case takes a tenth of a second.
DEFAULT_SECONDS = 20
# Limits of the results file and of the text that a kernel prints.
_MAX_FILE_BYTES = 64 << 20
_FLOOD_BYTES = 1 << 16

_HARNESS = Path(__file__).parent / "emulation" / "run_kernel.cc"
# Matches dynamic shared memory, as in `extern __shared__ float tile[];`.
_DYNAMIC_SHARED = re.compile(
    r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*|alignas\s*\(\s*\d+\s*\)\s*)?"
    r"([\w:\s]+?)\s*\b(\w+)\s*\[\s*\]\s*;"
)
_CALLS = {
    "course": "forward(y, x, w, s[0], s[4], s[1], s[2], s[3], s[6])",
    "conv": "forward(y, x, w, b, std::bit_cast<convswap::Conv>("
    "*reinterpret_cast<const std::array<int, 16>*>(s)))",
}
# -O1 halves the time of compiling and running together. NVRTC reports the warnings. The alignment sanitizer
# turns a misaligned access into an illegal instruction, because a card reports an error too. Threads are
# fibers that longjmp to each other; glibc's fortified longjmp, which some distributions enable by default,
# rejects that. A kernel with several forms has the one for the oldest cards, which needs no PTX.
_OPTIONS = (
    *("-std=c++20", "-O1", "-w", "-fpermissive", "-U_FORTIFY_SOURCE", "-D__CUDA_ARCH__=750"),
    *("-fsanitize=alignment", "-fsanitize-undefined-trap-on-error"),
)
_COMPILER_SECONDS = 60

_HEADER = library.INSTALLED / "emulation" / "cuda_emulation.h"


def check_in_emulation(
    kernel: LabKernel,
    cases: Sequence[Case],
    compiler: str,
    seconds: float = DEFAULT_SECONDS,
    *,
    prints: bool = False,
) -> Fault | None:
    """Run `kernel` on the CPU for each of `cases`, twice; return the first fault, or None.

    With `prints`, what the kernel prints is printed.

    Raises:
        NotTranslatedError: the kernel uses a part of CUDA that the emulation lacks.
        ConvswapError: the launch line gives a launch that no card accepts.
    """
    with tempfile.TemporaryDirectory(prefix="convswap-lab-") as name:
        folder = Path(name)
        program = build_host_program(kernel, compiler, folder)
        (folder / "problems").write_bytes(b"".join(_pack_problem(kernel, case) for case in cases))
        printed, status = _run(program, folder, seconds)
        outcomes = dict(_read_results(folder / "results", len(cases)))
        if prints and status == 0 and len(printed) <= _FLOOD_BYTES:
            print(printed.decode(errors="replace"), end="", flush=True)
        for number, case in enumerate(cases):
            outcome = outcomes.get(number)
            if outcome is None:
                return _fault_of_exit(kernel, case, status, printed, seconds)
            if fault := fault_of(kernel.name, case, outcome):
                return fault
        return _flood_fault(kernel, printed)


def _pack_problem(kernel: LabKernel, case: Case) -> bytes:
    """Return the problem as `run_kernel.cc` reads it."""
    grid, block, shared = kernel.source.launch(case.problem, MAX_SHARED_BYTES)
    x, w, bias = case.arrays
    filters, _, rows, columns = case.w_shape
    out = case.problem.output_shape
    attributes = case.attributes
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    pads, group = attributes.get("pads", [0, 0, 0, 0]), attributes.get("group", 1)
    sizes = [*case.x_shape, filters, rows, columns, *out[2:], *strides, *pads[:2], *dilations]
    counts = [x.size, w.size, 0 if bias is None else bias.size, int(np.prod(out))]
    header = [*grid, *block, shared, kernel.interface == "conv", *sizes, group, *counts]
    tensors = [x, w, *([] if bias is None else [bias])]
    return struct.pack(f"{len(header)}i", *header) + b"".join(tensor.tobytes() for tensor in tensors)


def _run(program: Path, folder: Path, seconds: float) -> tuple[bytes, int | None]:
    """Return the program's output, at most `_MAX_FILE_BYTES`, and its status, None after a timeout."""

    printed = folder / "printed"
    with printed.open("wb") as output:
        started = subprocess.Popen(
            [program, folder / "problems", folder / "results"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            resource.prlimit(started.pid, resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
            resource.prlimit(started.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            status: int | None = started.wait(seconds)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
            status = None
    return printed.read_bytes(), status


def _read_results(path: Path, case_count: int) -> Iterator[tuple[int, Outcome]]:
    """Yield the number and outcome of each case that ran to its end."""
    content = path.read_bytes() if path.exists() else b""
    at = 0
    outputs: dict[int, list[np.ndarray]] = {}
    outside: dict[int, dict[str, int]] = {}
    changed: dict[int, dict[str, int]] = {}
    while (end := content.find(b"\n", at)) >= 0:
        record, *fields = content[at:end].decode().split()
        at = end + 1
        number = int(fields[0])
        if record == "outside":
            outside.setdefault(number, {}).setdefault(fields[1], int(fields[2]))
        elif record == "changed":
            changed.setdefault(number, {}).setdefault(fields[1], int(fields[2]))
        elif record == "y":
            bytes_of_y = 4 * int(fields[1])
            outputs.setdefault(number, []).append(np.frombuffer(content[at : at + bytes_of_y], np.float32))
            at += bytes_of_y + 1
    for number in range(case_count):
        runs = outputs.get(number, [])
        if len(runs) == 2:
            yield number, Outcome(runs[0], runs[1], outside.get(number, {}), changed.get(number, {}))


# Explanations for the signals that end the emulation's program.
_FAULTS_BY_SIGNAL = {
    signal.SIGFPE: "divides an integer by zero: for {case}. On a card the result is undefined.",
    signal.SIGILL: "reads or writes several floats at once, as float4, at an address that is not a multiple "
    "of their size: for {case}. A row begins at such an address only if the image's width is a multiple, "
    "too.",
}
_CRASH_FAULT = (
    "crashes: for {case}, it reads or writes at an address that belongs to no tensor, or a thread needs more "
    "local memory for its arrays and calls than it has. Check every index that is computed, and functions "
    "that call themselves."
)


def _fault_of_exit(
    kernel: LabKernel, case: Case, status: int | None, printed: bytes, seconds: float
) -> Fault:
    """Return the fault of a program that ended before `case` was complete."""
    name, detail = kernel.name, {"case": str(case)}
    if status in (None, -signal.SIGXFSZ) and (flood_fault := _flood_fault(kernel, printed)):
        return flood_fault
    if status is None:
        return Fault(
            "time",
            f"{name} does not end: for {case}, it was stopped after {seconds:g} s. Probably the condition of "
            "a loop stays true: check its counter, and the condition of every `while`. A kernel that is only "
            "slow needs more --seconds.",
            detail,
        )
    lines = printed.decode(errors="replace").strip().splitlines()
    if status == 1 and lines:
        return _fault_of_report(name, case, lines[-1])
    if status == -signal.SIGABRT and lines:
        return Fault(
            "crash", f"{name} stops itself: for {case}, {lines[-1][:MAX_PRINTED_CHARACTERS]}", detail
        )
    explanation = next(
        (text for number, text in _FAULTS_BY_SIGNAL.items() if status == -number), _CRASH_FAULT
    )
    return Fault("crash", f"{name} {explanation.format(case=case)}", detail)


# The emulation's own error messages, with the kind and text of the fault.
_EMULATION_ERRORS = {
    "threads wait for each other for ever": (
        "crash",
        "its threads wait forever: not all threads of a block reach the same __syncthreads(), or not all "
        "lanes of a mask the same __..._sync(). Move it out of the `if`",
    ),
    "a lane outside of its mask": (
        "crash",
        "a thread calls a __..._sync() function with a mask without its own lane: set bit threadIdx.x % 32",
    ),
    "a write beyond shared memory": (
        "outside",
        "a thread writes beyond the shared memory of its block: increase shared(...) in the launch line, or "
        "check the index",
    ),
    "__trap()": ("crash", "a thread calls __trap()"),
}


def _fault_of_report(name: str, case: Case, lines: str) -> Fault:
    for words, (kind, meaning) in _EMULATION_ERRORS.items():
        if lines.startswith(words):
            where = lines.removeprefix(words).strip()
            return Fault(kind, f"{name}: for {case}, {where}, {meaning}.", {"case": str(case)})
    return Fault("crash", f"{name}: for {case}, {lines[:MAX_PRINTED_CHARACTERS]}.", {"case": str(case)})


def _flood_fault(kernel: LabKernel, printed: bytes) -> Fault | None:
    """Return the fault of a kernel that prints too much, or None."""
    if len(printed) <= _FLOOD_BYTES:
        return None
    return flood_of(kernel.name, printed.decode(errors="replace"))


class NotTranslatedError(Exception):
    """The host's compiler cannot compile the kernel. The message is its first error."""


def find_host_compiler() -> str | None:
    """Return the path of g++ or clang++, or None."""
    return next(filter(None, map(shutil.which, ("g++", "clang++"))), None)


def build_host_program(kernel: LabKernel, compiler: str, folder: Path) -> Path:
    """Compile `kernel` for the CPU, in `folder`, and return the program.

    Raises:
        NotTranslatedError: the kernel uses a part of CUDA that the emulation lacks.
    """
    (folder / "kernel.h").write_text(_host_text(kernel), encoding="utf-8")
    program = folder / "run_kernel"
    compiled = precompiled_header(compiler, _OPTIONS)
    first = [] if compiled is None else [compiled]
    includes = [*first, folder, library.INSTALLED / "emulation", library.INSTALLED / "include"]
    call = _CALLS[kernel.interface]
    command = [compiler, *_OPTIONS, *(f"-I{each}" for each in includes), f"-DLAB_CALL(y,x,w,b,s)={call}"]
    try:
        done = subprocess.run(
            [*command, "-o", program, _HARNESS],
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


def _host_text(kernel: LabKernel) -> str:
    """Return the kernel's text for the host's compiler, with the same line numbers."""
    text = _DYNAMIC_SHARED.sub(
        lambda match: (
            f"static {match[1]}* const {match[2]} = reinterpret_cast<{match[1]}*>(lab::dynamic_shared);"
            + "\n" * match[0].count("\n")
        ),
        kernel.text,
    )
    name = kernel.name.replace("\\", "\\\\").replace(chr(34), "\\" + chr(34))
    return f'#include "convswap/lab.h"\n#line 1 "{name}"\n{text}\n'


def precompiled_header(compiler: str, options: Sequence[str]) -> Path | None:
    """Return a folder with the emulation's precompiled header, or None if it cannot be made.

    The precompiled header more than halves the time of g++ for a kernel.
    """
    store_folder = _native.kernel_store()["folder"]
    # clang++ does not use GCC's .gch files.
    if not store_folder or Path(compiler).name != "g++":
        return None
    folder = Path(store_folder).parent / "emulation" / _cache_key(compiler, options)
    compiled = folder / f"{_HEADER.name}.gch"
    try:
        if not compiled.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _compile(compiler, options, compiled)
    except (OSError, subprocess.SubprocessError):
        return None
    return folder


def _cache_key(compiler: str, options: Sequence[str]) -> str:
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
    # Written to a temporary file and renamed, so that processes that compile at once never see half a file.
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        part = Path(name) / target.name
        command = [compiler, *options, "-x", "c++-header", str(_HEADER), "-o", str(part)]
        subprocess.run(
            command, check=True, capture_output=True, timeout=_COMPILER_SECONDS, stdin=subprocess.DEVNULL
        )
        part.replace(target)
