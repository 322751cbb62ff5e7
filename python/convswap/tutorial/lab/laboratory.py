"""Runs a kernel of the user's own in the place of Conv nodes: the lab as a function."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from convswap.errors import ConvswapError, require_count
from convswap.progress import Progress, silent
from convswap.runtime.cards import as_capability
from convswap.tutorial.lab.counter_names import counted_hint
from convswap.tutorial.lab.kernel import Kernel, kernel_of
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.result import LabResult

DEFAULT_TARGET = "ece408-2017-high"
# What one check of one kernel may take; it takes a thousandth.
SECONDS = 10.0
_MOST_SECONDS = 3600
_OLDEST, _NEWEST = 75, 199


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
    options = {
        "batch": batch,
        "device": device,
        "seconds": seconds,
        "marks": marks,
        "time": time,
        "compute_capability": capability,
    }
    if process is not None:
        return _run(kernel, target, options, profile, progress or silent, process)
    with LabProcess(device) as own:
        return _run(kernel, target, options, profile, progress or silent, own)


def _run(
    kernel: Kernel,
    target: str,
    options: Mapping[str, Any],
    profile: bool,
    progress: Progress,
    process: LabProcess,
) -> LabResult:
    result = process.run(kernel, target, options, progress)
    if not profile or result.fault is not None or result.card is None:
        return result
    counters, why_not = process.counters(kernel, target, options, progress)
    notes = (f"the card's counters were not read: {why_not}",) if why_not else ()
    return replace(
        result,
        counters=counters,
        hint=counted_hint(counters) or result.hint,
        notes=(*result.notes, *notes),
    )
