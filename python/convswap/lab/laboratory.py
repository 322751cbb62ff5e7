"""Runs a kernel of the user's own in the place of Conv nodes: the lab as a function."""

from __future__ import annotations

import os

from convswap.errors import ConvswapError
from convswap.lab.kernel import kernel_of
from convswap.lab.process import LabProcess
from convswap.lab.result import LabResult
from convswap.progress import Progress, silent

DEFAULT_TARGET = "ece408-2017-high"
# What one check of one kernel may take; it takes a thousandth.
SECONDS = 10.0


def run(
    source: str | os.PathLike[str],
    target: str = DEFAULT_TARGET,
    *,
    batch: int | None = None,
    device: str | None = None,
    seconds: float = SECONDS,
    marks: bool = True,
    time: bool = True,
    compute_capability: int | None = None,
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
        compute_capability: what it is compiled for where there is no card: 90, the default, is 9.0.
        progress: called with a few words at the start of every step.
        process: a worker that is kept from one call to the next, for several kernels; by default one is
            started and ended.

    Raises:
        ConvswapError: the file cannot be read, its comments do not say what they must, or an argument is not
            known or out of range.
    """
    kernel = kernel_of(source)
    if not 0 < seconds <= 3600:
        raise ConvswapError(f"seconds must be above 0 and at most 3600, but {seconds:g} were given")
    options = {
        "batch": batch,
        "device": device,
        "seconds": seconds,
        "marks": marks,
        "time": time,
        "compute_capability": compute_capability,
    }
    if process is not None:
        return process.run(kernel, target, options, progress or silent)
    with LabProcess() as own:
        return own.run(kernel, target, options, progress or silent)
