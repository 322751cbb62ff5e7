"""The time of a model until its first outputs: session creation and first run, on both sides.

Each measurement has a fresh process, since a session profits from the libraries that an earlier one loaded.
ONNX Runtime's libraries, the driver, the model and the inputs are loaded when the clock starts. convswap's
library is not, since its registration belongs to session creation. The sides alternate, in an order that
alternates too. The first process of each side, which fills the system's file cache, does not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from convswap.errors import ConvswapError
from convswap.graph.algorithms import check_algorithm
from convswap.graph.model_file import save_model
from convswap.graph.plain_model import plain_model
from convswap.graph.swap import DEFAULT_PRECISION, swap_to_run
from convswap.inputs.model_with_data import RunInputs, UserModel, open_model, run_inputs
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.tensor_inputs import with_tensor_inputs
from convswap.inputs.user_inputs import UserInputs
from convswap.output.tables import milliseconds, plain_table, print_notes
from convswap.progress import Progress, silent
from convswap.runtime.device import choose_device, device_lines, environment
from convswap.runtime.library import OpLibraries, op_libraries_in_use, using_op_libraries

PROCESSES = 5
SIDES = ("default", "convswap")
# The limit for one process. Even cuDNN's exhaustive search for a deep network takes less.
TIMEOUT_SECONDS = 600

Job = Mapping[str, Any]


def first_run(
    model: UserModel,
    *,
    batch: int | None = None,
    device: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    processes: int = PROCESSES,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return the object of `convswap bench --first-run --json`, with medians of `processes` in milliseconds.

    `model` is a network's name, the path of an ONNX file, or a model that holds its weights itself. `batch`
    has the default of `compare`. Inputs get seeded random values of `input_shape` if the model leaves their
    shape open, or the values in `inputs`, as for `compare`. `op_libraries` are files with custom ops of
    others that the model needs. `progress` is called with a few words before each process.

    Raises:
        ConvswapError: an argument is not known, the model cannot be read, swapped or run, or the device
            cannot be used.
    """
    if processes < 1:
        raise ConvswapError(f"processes must be at least 1, but {processes} was given")
    chosen = choose_device(device)
    title, opened = open_model(model)
    opened, inputs = with_tensor_inputs(opened, inputs)
    model_run = run_inputs(opened, batch=batch, device=chosen, input_shape=input_shape, user_inputs=inputs)
    shapes = {name: list(shape) for name, shape in model_run.shapes.items()}
    swapped = swap_to_run(opened, algorithm=algorithm, precision=precision).model
    check_algorithm(algorithm, chosen.name)
    with (
        using_op_libraries(op_libraries),
        tempfile.TemporaryDirectory(prefix="convswap-") as folder,
    ):
        common: dict[str, Any] = {"device": chosen.name, "precision": precision, "input_shapes": shapes}
        common |= {"values": _saved_values(model_run, Path(folder)), "op_libraries": op_libraries_in_use()}
        jobs = {}
        for side, side_model in zip(SIDES, (plain_model(opened), swapped), strict=True):
            path = Path(folder) / f"{side}.onnx"
            save_model(side_model, path)
            jobs[side] = {"model": str(path), "swapped": side == "convswap", **common}
        with model_run.notes_on_error():
            measured = _alternate(jobs, processes, progress or silent)
    medians = {
        f"{side}{key}": float(np.median([_value(times, key) for times in measured[side]]))
        for side in SIDES
        for key in ("_ms", "_session_ms", "_run_ms")
    }
    return {
        "model": title,
        "device": chosen.name,
        "environment": environment(chosen),
        "batch": model_run.batch,
        "precision": precision,
        "algorithm": algorithm,
        "processes": processes,
        "input_shapes": shapes,
        "notes": model_run.notes(),
        **medians,
    }


def _saved_values(model_run: RunInputs, folder: Path) -> str | None:
    """Save the user's input values in the order of the inputs, and return the path; None for no values."""
    if model_run.source is None:
        return None
    path = folder / "values.npz"
    feeds = model_run.feeds()
    # The format has no names for types that NumPy does not have itself, so their bits are saved.
    arrays = (
        feeds[x.name] if x.is_numpys else feeds[x.name].view(f"u{x.dtype.itemsize}") for x in model_run.inputs
    )
    np.savez(path, *arrays)
    return str(path)


def print_first_run(result: Mapping[str, Any], console: Console, device: str | None = None) -> None:
    """Print the result of `first_run` on `device`, with the ratio of the sides below it."""
    console.print(
        Text(
            f"{result['model']}, batch {result['batch']:,}, precision {result['precision']}, "
            f"algorithm {result['algorithm']}\n"
            f"{device_lines(choose_device(device))}\n"
            f"medians of {result['processes']} fresh processes of each side, in turn\n"
        )
    )
    table = plain_table("To the first answer (ms)", "side", ">session", ">first run", ">both")
    for side in SIDES:
        cells = [milliseconds(result[f"{side}{key}"]) for key in ("_session_ms", "_run_ms", "_ms")]
        table.add_row(side, *cells)
    console.print(table)
    print_notes(result["notes"], console)
    ratio = result["convswap_ms"] / result["default_ms"]
    console.print(Text(f"convswap takes {ratio:.2f} times what the default does until its first answer."))


def _alternate(
    jobs: Mapping[str, Job], processes: int, report: Progress
) -> dict[str, list[dict[str, float]]]:
    measured: dict[str, list[dict[str, float]]] = {side: [] for side in jobs}
    for number in range(processes + 1):
        for side in _order(jobs, number):
            report(f"first run {number} of {processes}, {side}" if number else f"warming up, {side}")
            times = _run_alone(side, jobs[side])
            if number:
                measured[side].append(times)
    return measured


def _order(sides: Iterable[str], number: int) -> list[str]:
    return list(sides) if number % 2 == 0 else list(sides)[::-1]


def _run_alone(side: str, job: Job) -> dict[str, float]:
    # -P: do not import modules from the current folder.
    command = [sys.executable, "-P", "-m", "convswap.bench.first_run_process", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ConvswapError(
            f"the first run of the {side} side took more than {TIMEOUT_SECONDS} s; give a smaller batch"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        # A process that a signal ended has not written the reason, but may have written other lines.
        status = f"its process ended with status {done.returncode}"
        reason = lines[-1] if lines and done.returncode > 0 else status
        raise ConvswapError(f"the first run of the {side} side failed: {reason}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _value(times: Mapping[str, float], key: str) -> float:
    return sum(times.values()) if key == "_ms" else times[key.removeprefix("_")]
