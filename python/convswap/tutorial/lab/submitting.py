"""A class's kernels: every file of a folder, one after the other, by one worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from convswap.errors import ConvswapError
from convswap.progress import Progress, silent
from convswap.tutorial.lab.faults import Fault
from convswap.tutorial.lab.laboratory import DEFAULT_TARGET, run
from convswap.tutorial.lab.process import LabProcess
from convswap.tutorial.lab.result import LabResult


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
