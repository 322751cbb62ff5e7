"""Measure every algorithm on every problem of a model, and remember the fastest for `algorithm="tuned"`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.errors import ConvswapError, require_count
from convswap.graph.algorithms import AUTO, able_algorithms, rungs
from convswap.graph.names import name_pattern
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.inputs.model_with_data import UserModel
from convswap.inputs.sample_shapes import InputShape
from convswap.inputs.user_inputs import UserInputs
from convswap.output.tables import plain_table, print_notes, times_faster, versions_line
from convswap.planning.problems import (
    ConvProblems,
    PlannedConv,
    PlannedModel,
    PlanOptions,
    conv_problems,
    naming_conv,
)
from convswap.progress import Progress, silent
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.library import OpLibraries
from convswap.runtime.tuning import TuningEntry, check_storable, store, table_path
from convswap.timing.algorithm_times import algorithm_lines, algorithm_rows, explain_stars
from convswap.timing.sampler import FIND_FASTEST, Times, measure
from convswap.timing.single_node import samples_of

# The maximum time for all problems. A note names the problems that were not measured; their lines in the
# table stay.
TOTAL_SECONDS = 900.0


@dataclass(frozen=True)
class TunedProblem:
    """One problem of the model: the nodes that compute it, and the times of each algorithm that supports it.

    `compared` is the algorithm that the best is compared with: the planner's choice, or the algorithm that
    was asked for.
    """

    nodes: tuple[str, ...]
    problem: str
    times: Mapping[str, Times]
    compared: str

    @property
    def best(self) -> str:
        """The algorithm with the shortest median; the first in the catalog's order if several are equal."""
        return min(self.times, key=lambda name: self.times[name].median)

    @property
    def gain(self) -> float:
        """The speedup of the best algorithm over `compared`, by medians."""
        return self.times[self.compared].median / self.times[self.best].median

    def to_json(self) -> dict[str, Any]:
        """Return the problem with the keys of `convswap tune --json`."""
        return {
            "nodes": list(self.nodes),
            "problem": self.problem,
            "best": self.best,
            "compared": self.compared,
            "gain": self.gain,
            "algorithms": algorithm_rows(self.times),
        }


@dataclass(frozen=True, kw_only=True)
class Tuning(PlannedModel):
    """The measurements of `tune`, which are stored in the tuning table at `table`.

    `not_stored` is the reason if they could not be stored. `table` is None if there is no home folder.
    """

    problems: tuple[TunedProblem, ...]
    table: Path | None
    not_stored: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap tune --json` writes."""
        return {**self.facts(), "problems": [problem.to_json() for problem in self.problems]}


def tune(
    model: UserModel,
    *,
    batch: int | None = None,
    device: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = AUTO,
    fuse: bool = False,
    runs: int = FIND_FASTEST.samples,
    only: str | None = None,
    input_shape: InputShape | None = None,
    inputs: UserInputs | None = None,
    op_libraries: OpLibraries = (),
    progress: Progress | None = None,
) -> Tuning:
    """Time each supporting algorithm on each distinct problem of `model`, and store the results.

    Results are stored problem by problem in the user's tuning table, so that an interrupted call loses none.
    If the table cannot be written, the result has `not_stored`. The inputs are seeded normal data, timed by
    the rule `FIND_FASTEST` of `convswap.timing.sampler`.

    Args:
        model: a network's name, the path of an ONNX file, or a model that holds its weights itself.
        batch: how many samples a run takes; by default as for `compare`.
        device: "cuda" or "cpu"; by default the GPU if there is one, with onnxruntime-gpu and CUDA kernels.
        precision: "tf32" or "ieee".
        algorithm: the algorithm that the best is compared with; "auto" is the planner's choice.
        fuse: whether to fuse Convs with the nodes behind them; see `convswap.swap`.
        runs: how many samples of each algorithm are timed.
        only: a regular expression; only Convs whose name contains a match are measured.
        input_shape: the shape of one sample if the model leaves it open, as for `compare`.
        inputs: the values of the model's inputs, as for `compare`; only their shapes count.
        op_libraries: files with custom ops of others that the model needs.
        progress: called with a few words before each problem.

    Raises:
        ConvswapError: an argument is not known or out of range, the model cannot be read, swapped or run, the
            device cannot be used, its memory does not suffice, or the table that $CONVSWAP_TUNING names
            cannot be written.
    """
    if algorithm in [rung.name for rung in rungs()]:
        raise ConvswapError(
            f"algorithm {algorithm!r} is a rung of the ladder, which tune does not measure; "
            "`convswap ladder` does"
        )
    require_count("runs", runs)
    wanted = name_pattern(only, "node names", "conv[12]$")
    chosen = choose_device(device)
    options = PlanOptions(batch, precision, algorithm, fuse, input_shape, inputs, op_libraries)
    problems = conv_problems(model, options, chosen)
    groups = _groups(conv for conv in problems.convs if wanted.search(conv.layer.name))
    if not groups:
        raise ConvswapError(_nothing_to_measure(problems, only))
    table = _TuningTable()
    measured = _measure_groups(groups, chosen, algorithm, runs, progress or silent, table)
    return Tuning(
        model=problems.title,
        device=chosen,
        environment=environment(chosen),
        batch=problems.batch,
        precision=precision,
        algorithm=algorithm,
        problems=tuple(measured),
        left=problems.left,
        fused=problems.fused,
        not_fused=problems.not_fused,
        table=table.path,
        not_stored=table.write_error,
        notes=(*problems.notes, *_notes(chosen, groups[len(measured) :])),
    )


def print_tuning(tuning: Tuning, console: Console) -> None:
    """Print the times of each problem, its best algorithm, and the speedup over the compared algorithm.

    A console that is not a terminal should be 120 columns wide; long names are wrapped, never cut.
    """
    console.print(
        Text(
            f"{tuning.model}: every algorithm on every problem, batch {tuning.batch:,}\n"
            f"{versions_line(dict(tuning.environment), tuning.device.title)}\n"
        )
    )
    compared = "the planner's" if tuning.algorithm == AUTO else tuning.algorithm
    table = plain_table("Median ms of a run", "node", "problem", "ms of each", "best", f">against {compared}")
    for tuned in tuning.problems:
        table.add_row(
            Text("\n".join(tuned.nodes)),
            Text(tuned.problem),
            Text("\n".join(algorithm_lines(algorithm_rows(tuned.times)))),
            tuned.best,
            f"{times_faster(tuned.gain)} {tuned.compared}",
        )
    explain_stars(table, (algorithm_rows(tuned.times) for tuned in tuning.problems))
    console.print(table)
    print_notes(tuning.notes, console)
    if tuning.not_stored is not None:
        console.print(Text("No later process knows these times: they could not be stored."))
        return
    console.print(
        Text(
            f"Problems stored in {tuning.table}: {len(tuning.problems)}. They count where the algorithm is "
            "tuned, as after `convswap swap --algorithm tuned`."
        )
    )


class _TuningTable:
    """The tuning table; `write_error` is the reason if it cannot be written.

    The constructor raises ConvswapError if the user named a table that cannot be written, so that nothing is
    measured in vain.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.write_error: str | None = None
        try:
            self.path = table_path()
            check_storable()
        except ConvswapError as error:
            if os.environ.get("CONVSWAP_TUNING"):
                raise
            self._disable(error)

    def add(self, entry: TuningEntry) -> None:
        """Store the measurements of a problem at once, so that an interrupted call loses nothing."""
        if self.write_error is None:
            try:
                store([entry])
            except ConvswapError as error:
                self._disable(error)

    def _disable(self, error: ConvswapError) -> None:
        self.write_error = f"the measurements could not be stored: {error}"


def _nothing_to_measure(problems: ConvProblems, only: str | None) -> str:
    names = ", ".join(conv.layer.name for conv in problems.convs)
    if not names:
        left = (f"{left.op} {left.node} is left as it was: {left.reason}" for left in problems.left)
        return f"there is no Conv that can be measured: {'; '.join([*problems.notes, *left])}"
    if only is not None:
        return f"no Conv with an output has a name that matches {only!r}; the model has {names}"
    return (
        "no Conv of the model has an output to compute, so there is nothing to measure; give a larger batch"
    )


def _groups(convs: Iterable[PlannedConv]) -> list[list[PlannedConv]]:
    """Return groups of Convs with the same problem, in order, without Convs whose output is empty."""
    groups: dict[str, list[PlannedConv]] = {}
    for conv in convs:
        if 0 not in conv.problem.output_shape:
            groups.setdefault(conv.problem.text, []).append(conv)
    return list(groups.values())


def _measure_groups(
    groups: Sequence[Sequence[PlannedConv]],
    device: Device,
    algorithm: str,
    runs: int,
    report: Progress,
    table: _TuningTable,
) -> list[TunedProblem]:
    """Measure one problem after the other until the time is up; store and return each."""
    end = time.monotonic() + TOTAL_SECONDS
    measured: list[TunedProblem] = []
    for number, group in enumerate(groups, start=1):
        seconds = min(FIND_FASTEST.seconds, end - time.monotonic())
        if seconds <= 0:
            break
        report(f"measuring problem {number} of {len(groups)}: {_names(group)}")
        tuned = _measure(group, device, algorithm, runs, seconds)
        medians = {name: each.median for name, each in tuned.times.items()}
        table.add(TuningEntry.measured(device.name, tuned.problem, tuned.best, medians))
        measured.append(tuned)
    return measured


def _names(group: Sequence[PlannedConv]) -> str:
    more = len(group) - 1
    return group[0].layer.name + (f" and {more} more of the same" if more else "")


def _measure(
    group: Sequence[PlannedConv], device: Device, algorithm: str, runs: int, seconds: float
) -> TunedProblem:
    layer, problem = group[0].layer, group[0].problem
    with naming_conv(layer.name):
        compared = _native.choose(problem, device.name, algorithm)
        able = able_algorithms(problem, device.name)
        try:
            rule = replace(FIND_FASTEST, samples=runs, seconds=seconds)
            times = measure(samples_of(layer, group[0].shapes, able, device), rule)
        except RuntimeError as error:
            raise ConvswapError(
                f"it cannot be measured: {error}; if memory is short, give a smaller batch"
            ) from error
    return TunedProblem(tuple(conv.layer.name for conv in group), problem.text, times, compared)


def _notes(device: Device, not_measured: Sequence[Sequence[PlannedConv]]) -> Iterable[str]:
    if device.name == "cpu" and device.reason != "asked for":
        yield f"measured on the CPU: {device.reason}"
    if not_measured:
        yield (
            f"after {TOTAL_SECONDS / 60:.0f} minutes {len(not_measured)} problems were not measured, from "
            f"{_names(not_measured[0])} on; measure them with --only"
        )
