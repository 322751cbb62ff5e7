"""The cost of changing shapes: a session whose batch changes with every run, and sessions with fixed batches.

Times are by the host's clock, since planning a new shape takes host time. All sessions run from equally many
bindings in turn: Python and ONNX Runtime take longer to switch to another binding than to run the same
binding again, even if the shapes are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.bench.report import print_missing_default
from convswap.bench.suite_runs import BenchRequest, bench_request
from convswap.errors import ConvswapError, batch_sizes
from convswap.graph.swap import DEFAULT_PRECISION
from convswap.output.tables import milliseconds, plain_table, set_caption
from convswap.progress import Progress
from convswap.runtime.device import choose_device, device_lines
from convswap.runtime.sessions import DEFAULT, BoundRun, convswap_side
from convswap.timing.sampler import BACK_TO_BACK, Sample, measure, sample_of
from convswap.timing.single_node import single_node, single_node_data, single_node_feeds, single_node_sessions
from convswap.timing.suites import SuiteLayer


class AlternatingRuns:
    """Runs of one session from several bindings; each run is a run of every binding in turn."""

    def __init__(self, runs: Sequence[BoundRun]) -> None:
        self._runs = runs

    def start(self, runs: int) -> None:
        """Start a run of every binding in turn, `runs` times."""
        for _ in range(runs):
            for run in self._runs:
                run.start(1)

    def wait(self) -> None:
        """Wait for all runs that were started."""
        for run in self._runs:
            run.wait()


def run_alternating(
    suite: str = "course",
    *,
    layers: str | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    batches: int | Sequence[int] | None,
    device: str | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Return a row for every layer, with the keys of `convswap bench --alternate --json`.

    The arguments are those of `run_suite`. "convswap_ms" and "default_ms" are the mean milliseconds of a run
    while the batch cycles through `batches`; "convswap_fixed_ms" and "default_fixed_ms" are the mean over
    sessions that run one batch each. The times of the default provider are None if it has no Conv of the
    type.

    Raises:
        ConvswapError: as `run_suite`, or there are fewer than two different batches.
    """
    batches = batches if batches is None else batch_sizes(batches)
    if batches is None or len(set(batches)) != len(batches) or len(batches) < 2:
        given = "none" if batches is None else ",".join(map(str, batches))
        raise ConvswapError(
            f"--alternate needs two different batch sizes or more, such as --batch 62,63,64, but got {given}"
        )
    request = bench_request(suite, layers, batches, precision, algorithm, device)
    rows = []
    for layer in request.layers:
        if progress is not None:
            progress(f"{layer.name}, batches {', '.join(map(str, request.batches))} in turn")
        rows.append(_row(layer, request))
    return rows


def _row(layer: SuiteLayer, request: BenchRequest) -> dict[str, Any]:
    device, count = request.device, len(request.batches)
    conv = single_node(layer, request.precision, request.algorithm)
    sides = (DEFAULT, convswap_side(device, request.precision))
    feeds = [
        single_node_feeds(conv, single_node_data(layer, batch, request.precision), sides, device)
        for batch in request.batches
    ]
    # Each fixed batch has its own session, since a session that ran another shape would plan again.
    fixed = [single_node_sessions(conv, sides, device) for _ in feeds]
    changing = single_node_sessions(conv, sides, device)
    samples: list[Sample] = []
    for side, session in changing.items():
        for sessions, batch_feeds in zip(fixed, feeds, strict=True):
            same = AlternatingRuns([BoundRun(sessions[side], batch_feeds[side], device) for _ in feeds])
            samples.append(sample_of(same))
        in_turn = AlternatingRuns([BoundRun(session, batch_feeds[side], device) for batch_feeds in feeds])
        samples.append(sample_of(in_turn))
    times = iter(each.median for each in measure(dict(enumerate(samples)), BACK_TO_BACK).values())
    milliseconds_by_key: dict[str, float | None] = {}
    for side in sides:
        measured = [next(times) / count for _ in range(count + 1)] if side in changing else None
        milliseconds_by_key[f"{side.name}_fixed_ms"] = (
            None if measured is None else sum(measured[:count]) / count
        )
        milliseconds_by_key[f"{side.name}_ms"] = None if measured is None else measured[count]
    problems = [conv.problem({"x": layer.input_shape(batch)}) for batch in request.batches]
    chosen = [_native.choose(problem, device.name, request.algorithm) for problem in problems]
    return {
        "layer": layer.name,
        "precision": request.precision,
        "batches": list(request.batches),
        "algorithm": ", ".join(dict.fromkeys(chosen)),
        **milliseconds_by_key,
    }


def print_alternating(rows: Sequence[Mapping[str, Any]], console: Console, device: str | None = None) -> None:
    """Print the rows of `run_alternating` as a table, and convswap's worst layer below it."""
    chosen = choose_device(device)
    console.print(Text(device_lines(chosen)))
    batches = ", ".join(f"{batch:,}" for batch in rows[0]["batches"])
    fixed_and_in_turn = [
        heading for side in ("default", "convswap") for heading in (f">{side} fixed", ">in turn", ">ratio")
    ]
    table = plain_table(
        f"Batches {batches} in turn, and fixed (mean ms of a run)",
        *("layer", "precision", *fixed_and_in_turn, "algorithm"),
    )
    for row in rows:
        cells = [cell for side in ("default", "convswap") for cell in _cells(row, side)]
        table.add_row(row["layer"], row["precision"], *cells, row["algorithm"])
    set_caption(table, f"back-to-back runs by the host's clock, alternated {BACK_TO_BACK.samples} times")
    console.print(table)
    print_missing_default(rows, console)
    worst = max(rows, key=lambda row: _ratio(row, "convswap"))
    console.print(
        Text(
            f"Worst on convswap: batches in turn take {_ratio(worst, 'convswap'):.2f} times what fixed ones "
            f"do ({worst['layer']})."
        )
    )


def _ratio(row: Mapping[str, Any], side: str) -> float:
    return float(row[f"{side}_ms"] / row[f"{side}_fixed_ms"])


def _cells(row: Mapping[str, Any], side: str) -> tuple[str, str, str]:
    fixed, changing = row[f"{side}_fixed_ms"], row[f"{side}_ms"]
    ratio = "-" if fixed is None else f"{_ratio(row, side):.2f}"
    return milliseconds(fixed), milliseconds(changing), ratio
