"""The lab's functions: run one kernel, run it again on each save, or run the kernels of a class."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError, require_count
from convswap.progress import Progress, silent
from convswap.runtime.cards import as_capability
from convswap.tutorial.lab.counters import counted_hint
from convswap.tutorial.lab.kernel import CHECK_SECONDS, DEFAULT_CAPABILITY, Request, read_kernel
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.result import Fault, LabResult

DEFAULT_TARGET = "ece408-2017-high"
_MAX_SECONDS = 3600

# A call of stat takes a few microseconds, and nobody notices a delay of 50 ms.
_POLL_SECONDS = 0.05
# An editor may truncate a file before it writes, or replace it. A save is over when two calls of stat agree.
_SETTLED_SECONDS = 0.05


def run(
    source: str | os.PathLike[str],
    target: str = DEFAULT_TARGET,
    *,
    batch: int | None = None,
    device: str | None = None,
    seconds: float = CHECK_SECONDS,
    baselines: bool = True,
    time: bool = True,
    profile: bool = False,
    compute_capability: int | float | str | None = None,
    progress: Progress | None = None,
    process: LabProcess | None = None,
) -> LabResult:
    """Compile, check and time a kernel that replaces the Conv nodes of `target`; return the result.

    The kernel runs in a process of its own. A kernel that does not compile, hangs, faults or computes wrong
    outputs gives a result with a `fault`; no error is raised.

    Args:
        source: the path of a CUDA file, or its text; `convswap.lab.new` writes a file to start from.
        target: the name of a network or of a layer of `convswap bench`, or the path of an ONNX model.
        batch: images in a timed run; by default 10,000 for the course's layers.
        device: "cuda", or "cpu" for a check without the card; by default the card if there is one.
        seconds: time limit of one check of the kernel.
        baselines: whether to time every rung of the ladder too; if not, only the default provider and the
            planner's choice are timed.
        time: whether to time the kernel at all.
        profile: whether to read the card's counters by CUPTI, too. If they cannot be read, a note says why.
        compute_capability: the target of the compiler on a machine without a card: 90, the default, is 9.0.
        progress: called with a few words at the start of every step.
        process: a worker to use for several calls; by default each call starts and ends its own.

    Raises:
        ConvswapError: the file cannot be read, its launch, only or interface line is missing or wrong, or an
            argument is unknown or out of range.
    """
    kernel = read_kernel(source)
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= _MAX_SECONDS:
        raise ConvswapError(f"seconds must be above 0 and at most {_MAX_SECONDS}, but {seconds!r} were given")
    require_count("batch", batch)
    capability = None if compute_capability is None else as_capability(compute_capability)
    request = Request(
        kernel, target, batch, device, seconds, baselines, time, capability or DEFAULT_CAPABILITY
    )
    if process is not None:
        return _run(request, profile, progress or silent, process)
    with LabProcess(device) as new_process:
        return _run(request, profile, progress or silent, new_process)


def _run(request: Request, profile: bool, progress: Progress, process: LabProcess) -> LabResult:
    result = process.run(request, progress)
    if not profile or result.fault is not None or result.card is None:
        return result
    counters, why_not = process.counters(request, progress)
    notes = (f"the card's counters were not read: {why_not}",) if why_not else ()
    return replace(
        result,
        counters=counters,
        hint=counted_hint(counters) or result.hint,
        notes=(*result.notes, *notes),
    )


def submit(
    folder: str | os.PathLike[str],
    target: str = DEFAULT_TARGET,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> list[LabResult]:
    """Run every file *.cu of `folder`, in the order of their names; return the results.

    `options` are arguments of `run`. A file that cannot be read or has no launch line gives a result with a
    fault, so that one student's file does not stop the others.

    Raises:
        ConvswapError: there is no such folder, it has no such file, or the target is unknown.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConvswapError(
            f"'{path}' is no folder: expected a folder with one CUDA file, NAME.cu, for each student"
        )
    files = sorted(path.glob("*.cu"))
    if not files:
        raise ConvswapError(f"'{path}' has no file that ends in .cu: expected one for each student")
    report = progress or silent
    results = []
    with LabProcess(options.get("device")) as process:
        for number, file in enumerate(files, 1):
            report(f"{file.name}, {number} of {len(files)}")
            results.append(_run_file(file, target, process, options))
    return results


def _run_file(file: Path, target: str, process: LabProcess, options: dict[str, Any]) -> LabResult:
    try:
        return run(file, target, process=process, **options)
    except ConvswapError as error:
        # Only errors about this file become its result. An unknown target, for example, stops all.
        if not str(error).startswith((file.name, f"'{file}", f"cannot read '{file}")):
            raise
        fault = Fault("launch", f"{error}.")
        return LabResult(file.name, "", "course", target, options.get("batch"), None, fault=fault)


def watch(
    source: str | os.PathLike[str],
    target: str,
    on_result: Callable[[LabResult | ConvswapError, float], None],
    *,
    progress: Progress | None = None,
    saves: int | None = None,
    **options: Any,
) -> None:
    """Run the file now and after each save; pass each result and the seconds since the save to `on_result`.

    Return after `saves` saves; by default never, until an interrupt. An error in the file's comments is
    passed to `on_result` in the place of a result. `options` are arguments of `run`.

    Raises:
        ConvswapError: the file does not exist at the start.
    """
    path = Path(source)
    if not path.is_file():
        read_kernel(path)  # raises the error that fits
    report = progress or silent
    with LabProcess(options.get("device")) as process:
        process.start()
        seen: tuple[int, ...] = ()
        rounds = 0
        while saves is None or rounds <= saves:
            seen, saved_at = _wait_for_save(path, seen)
            begin = time.monotonic()
            try:
                result: LabResult | ConvswapError = run(
                    path, target, process=process, progress=report, **options
                )
            except ConvswapError as error:
                result = error
            on_result(result, time.monotonic() - begin + max(0.0, begin - saved_at))
            # A fault may have ended the worker. The next one starts while the user types.
            process.start()
            rounds += 1


def _wait_for_save(path: Path, seen: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """Wait until the file's state differs from `seen`; return the new state and the time of the change."""
    while (now := _file_state(path)) == seen or not now:
        time.sleep(_POLL_SECONDS)
    noticed = time.monotonic()
    while True:
        time.sleep(_SETTLED_SECONDS)
        if (later := _file_state(path)) == now and now:
            return now, noticed
        now = later


def _file_state(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
