"""The lab as functions: run a kernel in the place of Conv nodes, again on each save, or those of a class."""

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
from convswap.tutorial.lab.kernel import SECONDS, USUAL_CAPABILITY, Request, kernel_of
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.result import Fault, LabResult

DEFAULT_TARGET = "ece408-2017-high"
_MOST_SECONDS = 3600
_OLDEST, _NEWEST = 75, 199

# A look costs a few microseconds, and nobody notices the wait.
_LOOK_SECONDS = 0.05
# An editor may empty a file before it writes it, or put another in its place.
_SETTLED_SECONDS = 0.05


def run(
    source: str | os.PathLike[str],
    target: str = DEFAULT_TARGET,
    *,
    batch: int | None = None,
    device: str | None = None,
    seconds: float = SECONDS,
    marks: bool = True,
    time: bool = True,
    profile: bool = False,
    compute_capability: int | float | str | None = None,
    progress: Progress | None = None,
    process: LabProcess | None = None,
) -> LabResult:
    """Compile, check and time a kernel in the place of the Conv nodes of `target`; return what came of it.

    The kernel runs in a process of its own. That it does not compile, hangs, faults or computes something
    else is a result with a `fault`, not an error.

    Args:
        source: the path of a CUDA file, or its text; `convswap.lab.new` writes one to begin with.
        target: the name of a network or of a layer of `convswap bench`, or the path of an ONNX model.
        batch: how many images a timed run takes; by default 10,000 of the course's layers.
        device: "cuda", or "cpu" for a check without the card; by default the card where there is one.
        seconds: what one check of the kernel may take.
        marks: whether it is set beside every rung of the ladder, or beside the default provider and our best
            alone.
        time: whether it is timed at all.
        profile: whether the card's counters are read, too, by CUPTI; a note says why not where they are not.
        compute_capability: what it is compiled for where there is no card: 90, the default, is 9.0.
        progress: called with a few words at the start of every step.
        process: a worker that is kept from one call to the next, for several kernels; by default one is
            started and ended.

    Raises:
        ConvswapError: the file cannot be read, its comments do not say what they must, or an argument is not
            known or out of range.
    """
    kernel = kernel_of(source)
    if not isinstance(seconds, (int, float)) or not 0 < seconds <= _MOST_SECONDS:
        raise ConvswapError(
            f"seconds must be above 0 and at most {_MOST_SECONDS}, but {seconds!r} were given"
        )
    require_count("batch", batch)
    capability = None if compute_capability is None else as_capability(compute_capability)
    if capability is not None and not _OLDEST <= capability <= _NEWEST:
        raise ConvswapError(
            f"compute capability {capability / 10:.1f}: expected one from {_OLDEST / 10:.1f} on, such as 9.0"
        )
    asked = Request(kernel, target, batch, device, seconds, marks, time, capability or USUAL_CAPABILITY)
    if process is not None:
        return _run(asked, profile, progress or silent, process)
    with LabProcess(device) as own:
        return _run(asked, profile, progress or silent, own)


def _run(asked: Request, profile: bool, progress: Progress, process: LabProcess) -> LabResult:
    result = process.run(asked, progress)
    if not profile or result.fault is not None or result.card is None:
        return result
    counters, why_not = process.counters(asked, progress)
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
    **how: Any,
) -> list[LabResult]:
    """Return what comes of every file *.cu of `folder`, in the order of their names; `how` is as of `run`.

    A file that cannot be read or has no launch line is a result with a fault too: of a class, one must not
    stop the others.

    Raises:
        ConvswapError: there is no such folder, it has no such file, or the target is none.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConvswapError(
            f"'{path}' is no folder: expected one with a file of CUDA, NAME.cu, of each student"
        )
    files = sorted(path.glob("*.cu"))
    if not files:
        raise ConvswapError(f"'{path}' has no file that ends in .cu: expected one of each student")
    report = progress or silent
    results = []
    with LabProcess(how.get("device")) as process:
        for number, file in enumerate(files, 1):
            report(f"{file.name}, {number} of {len(files)}")
            results.append(_one(file, target, process, how))
    return results


def _one(file: Path, target: str, process: LabProcess, how: dict[str, Any]) -> LabResult:
    try:
        return run(file, target, process=process, **how)
    except ConvswapError as error:
        # Of the file alone: a target that is none stops them all.
        if not str(error).startswith((file.name, f"'{file}", f"cannot read '{file}")):
            raise
        fault = Fault("launch", f"{error}.")
        return LabResult(file.name, "", "course", target, how.get("batch"), None, fault=fault)


def watch(
    source: str | os.PathLike[str],
    target: str,
    told: Callable[[LabResult | ConvswapError, float], None],
    *,
    progress: Progress | None = None,
    saves: int | None = None,
    **how: Any,
) -> None:
    """Call `told` with what comes of the file now and after each save, and the seconds since that save.

    It goes on until it is interrupted, or after so many `saves`. What is wrong with the file's comments is
    told as the error, and watched on. `how` is as of `run`.

    Raises:
        ConvswapError: there is no such file to begin with.
    """
    path = Path(source)
    if not path.is_file():
        kernel_of(path)  # which says what is wrong
    report = progress or silent
    with LabProcess(how.get("device")) as process:
        process.start()
        seen: tuple[int, ...] = ()
        rounds = 0
        while saves is None or rounds <= saves:
            seen, saved_at = _next_save(path, seen)
            begin = time.monotonic()
            try:
                result: LabResult | ConvswapError = run(path, target, process=process, progress=report, **how)
            except ConvswapError as error:
                result = error
            told(result, time.monotonic() - begin + max(0.0, begin - saved_at))
            # After a fault the next worker gets ready while the user types.
            process.start()
            rounds += 1


def _next_save(path: Path, seen: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """Wait until the file differs from what was `seen`; return what it is now, and when that was noticed."""
    while (now := _state(path)) == seen or not now:
        time.sleep(_LOOK_SECONDS)
    noticed = time.monotonic()
    while True:
        time.sleep(_SETTLED_SECONDS)
        if (later := _state(path)) == now and now:
            return now, noticed
        now = later


def _state(path: Path) -> tuple[int, ...]:
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
