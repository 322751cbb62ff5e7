"""How long a model takes to its first answer: session creation and first run, on both sides.

Each is measured in a process of its own, since what one session loads the next one finds. The libraries, the
driver, the model and the inputs are in place when the clock starts; only our own library is not, since to
register it belongs to making a session. Sides take turns, in an order that turns round too; the first of
each, which fills the system's file cache, does not count.
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
from convswap.graph.swap import DEFAULT_PRECISION, swap
from convswap.inputs.model_with_data import RunInputs, UserModel, open_model, run_inputs
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.tensor_inputs import with_tensor_inputs
from convswap.inputs.user_inputs import UserInputs
from convswap.output.tables import milliseconds, plain_table, print_notes
from convswap.progress import Progress, silent
from convswap.runtime.device import choose_device, device_lines, environment
from convswap.runtime.library import OpLibraries, op_libraries_in_use, sessions_with

PROCESSES = 5
SIDES = ("default", "convswap")
# Even an exhaustive search for a deep network takes less.
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

    `model` is a network's name, the path of an ONNX file, or a model that holds its weights itself; `batch`
    by default what `compare` takes; its inputs get seeded random values, and `input_shape` where the model
    leaves their shape open, or the values in `inputs`, as for `compare`. `op_libraries` are files with custom
    ops of others that the model needs. `progress` is called with a few words before each process.

    Raises:
        ConvswapError: an argument is not known, the model cannot be read, swapped or run, or the device
            cannot be used.
    """
    if processes < 1:
        raise ConvswapError(f"processes must be at least 1, but {processes} was given")
    chosen = choose_device(device)
    title, opened = open_model(model)
    opened, inputs = with_tensor_inputs(opened, inputs)
    fed = run_inputs(opened, batch=batch, device=chosen, input_shape=input_shape, user_inputs=inputs)
    shapes = {name: list(shape) for name, shape in fed.shapes.items()}
    swapped = swap(opened, algorithm=algorithm, precision=precision).model
    check_algorithm(algorithm, chosen.name)
    with (
        sessions_with(op_libraries),
        tempfile.TemporaryDirectory(prefix="convswap-") as folder,
    ):
        common: dict[str, Any] = {"device": chosen.name, "precision": precision, "input_shapes": shapes}
        common |= {"values": _saved_values(fed, Path(folder)), "op_libraries": op_libraries_in_use()}
        jobs = {}
        for side, own in zip(SIDES, (plain_model(opened), swapped), strict=True):
            path = Path(folder) / f"{side}.onnx"
            save_model(own, path)
            jobs[side] = {"model": str(path), "ours": side == "convswap", **common}
        with fed.notes_on_error():
            found = _alternate(jobs, processes, progress or silent)
    medians = {
        f"{side}{key}": float(np.median([_value(times, key) for times in found[side]]))
        for side in SIDES
        for key in ("_ms", "_session_ms", "_run_ms")
    }
    return {
        "model": title,
        "device": chosen.name,
        "environment": environment(chosen),
        "batch": fed.batch,
        "precision": precision,
        "algorithm": algorithm,
        "processes": processes,
        "input_shapes": shapes,
        "notes": fed.notes(),
        **medians,
    }


def _saved_values(fed: RunInputs, folder: Path) -> str | None:
    """Return the file with the values that a user gave, in the order of the inputs; None for none."""
    if fed.source is None:
        return None
    path = folder / "values.npz"
    feeds = fed.feeds()
    # A file has no names for types that NumPy has not itself.
    own = (feeds[x.name] if x.is_numpys else feeds[x.name].view(f"u{x.dtype.itemsize}") for x in fed.inputs)
    np.savez(path, *own)
    return str(path)


def print_first_run(found: Mapping[str, Any], console: Console, device: str | None = None) -> None:
    """Print what `first_run` returned on `device`, with the ratio of the sides below it."""
    console.print(
        Text(
            f"{found['model']}, batch {found['batch']:,}, precision {found['precision']}, "
            f"algorithm {found['algorithm']}\n"
            f"{device_lines(choose_device(device))}\n"
            f"medians of {found['processes']} fresh processes of each side, in turn\n"
        )
    )
    table = plain_table("To the first answer (ms)", "side", ">session", ">first run", ">both")
    for side in SIDES:
        cells = [milliseconds(found[f"{side}{key}"]) for key in ("_session_ms", "_run_ms", "_ms")]
        table.add_row(side, *cells)
    console.print(table)
    print_notes(found["notes"], console)
    ratio = found["convswap_ms"] / found["default_ms"]
    console.print(Text(f"convswap takes {ratio:.2f} times what the default does until its first answer."))


def _alternate(
    jobs: Mapping[str, Job], processes: int, report: Progress
) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {side: [] for side in jobs}
    for number in range(processes + 1):
        for side in _order(jobs, number):
            report(f"first run {number} of {processes}, {side}" if number else f"warming up, {side}")
            times = _run_alone(side, jobs[side])
            if number:
                found[side].append(times)
    return found


def _order(sides: Iterable[str], number: int) -> list[str]:
    return list(sides) if number % 2 == 0 else list(sides)[::-1]


def _run_alone(side: str, job: Job) -> dict[str, float]:
    # -P: no module of the folder that the user is in gets in the way.
    command = [sys.executable, "-P", "-m", "convswap.bench.first_run_process", json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ConvswapError(
            f"the first run of the {side} side took more than {TIMEOUT_SECONDS} s; give a smaller batch"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        # What a signal ended had no last word, and may have written something else before.
        ended = f"its process ended with status {done.returncode}"
        reason = lines[-1] if lines and done.returncode > 0 else ended
        raise ConvswapError(f"the first run of the {side} side failed: {reason}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _value(times: Mapping[str, float], key: str) -> float:
    return sum(times.values()) if key == "_ms" else times[key.removeprefix("_")]
