"""Splits AlexNet's time over batch sizes into copies, convolution, fully connected, max-pool and set-up.

The table and the plots are those of a course assignment in which students write AlexNet's layers in CUDA. The
profiler measures the card's time: each kernel and copy counts for the node that started it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from convswap.errors import ConvswapError, batch_sizes, unknown_name
from convswap.export import export_network
from convswap.graph.algorithms import check_algorithm
from convswap.graph.model_file import model_from_proto
from convswap.graph.swap import DEFAULT_PRECISION, swap
from convswap.inputs.feeds import Feeds, declared_inputs, random_feeds
from convswap.profiling.profile import connected_card
from convswap.profiling.recording import record
from convswap.profiling.records import RUN, AttributedActivity, Collector
from convswap.profiling.result import INPUTS, OUTPUTS, node_title, timeline_of
from convswap.progress import Progress, silent
from convswap.runtime.device import Device, environment
from convswap.runtime.packages import cupti_version
from convswap.runtime.sessions import DEFAULT, Side, convswap_side

SCHEMA = 1
NETWORK = "alexnet"
STUDIES = (NETWORK,)
BATCHES = tuple(2**power for power in range(11))

COPY_IN, CONVOLUTION, FULLY_CONNECTED, MAX_POOL = "copy in", "convolution", "fully connected", "max-pool"
OTHER, COPY_OUT = "other", "copy out"
# In the order of a run. `other` is activations and local response normalisation.
PARTS = (COPY_IN, CONVOLUTION, FULLY_CONNECTED, MAX_POOL, OTHER, COPY_OUT)
_PART_OF_OP = {
    "Conv": CONVOLUTION,
    "FusedConv": CONVOLUTION,
    "Gemm": FULLY_CONNECTED,
    "FusedGemm": FULLY_CONNECTED,
    "MatMul": FULLY_CONNECTED,
    "FusedMatMul": FULLY_CONNECTED,
    "MaxPool": MAX_POOL,
}
_PART_OF_TITLE = {INPUTS: COPY_IN, OUTPUTS: COPY_OUT}

# Error messages of ONNX Runtime, its arena, CUDA, cuBLAS, cuDNN and C++ if memory is too small.
_SHORT_OF_MEMORY = (
    "out of memory",
    "Failed to allocate memory",
    "cudaErrorMemoryAllocation",
    "CUDA failure 2:",
    "STATUS_ALLOC_FAILED",
    "bad allocation",
    "bad_alloc",
)

_HOST_SHORT_OF_MEMORY = "the host is out of memory"


@dataclass(frozen=True)
class StudyRow:
    """One side at one batch: the median milliseconds of each part of `PARTS` over all runs.

    `run_ms` is the median time of a run by the host's clock. The set-up is the session's creation and first
    run, by the same clock. `long_kernels` says which way kernels were recorded (cupti_collector.py). If there
    are no times, `failure` says why and `parts` is empty.
    """

    batch: int
    side: str
    parts: Mapping[str, float]
    run_ms: float = 0.0
    session_ms: float = 0.0
    first_run_ms: float = 0.0
    runs: int = 0
    long_kernels: bool | None = None
    failure: str = ""

    @property
    def total_ms(self) -> float:
        """The sum of all parts: the card's time in a run."""
        return sum(self.parts.values())

    @property
    def set_up_ms(self) -> float:
        """The time of the session's creation and first run."""
        return self.session_ms + self.first_run_ms

    def to_json(self) -> dict[str, Any]:
        """Return the row as `convswap study --json` writes it, with None for unknown times."""
        is_known = not self.failure
        times = {
            **{f"{part.replace(' ', '_').replace('-', '_')}_ms": self.parts.get(part) for part in PARTS},
            "total_ms": self.total_ms,
            "run_ms": self.run_ms,
            "set_up_ms": self.set_up_ms,
            "session_ms": self.session_ms,
            "first_run_ms": self.first_run_ms,
        }
        return {
            "batch": self.batch,
            "side": self.side,
            **{name: time if is_known else None for name, time in times.items()},
            "runs": self.runs,
            "long_kernels": self.long_kernels,
            "failure": self.failure,
        }


@dataclass(frozen=True)
class Study:
    """The outcome of a study: a row for each batch and side."""

    device: Device
    precision: str
    algorithm: str
    fuse: bool
    environment: Mapping[str, str | None]
    rows: tuple[StudyRow, ...]

    def of_side(self, side: str) -> tuple[StudyRow, ...]:
        """Return the rows of a side that have times, in the order of the batches."""
        return tuple(row for row in self.rows if row.side == side and not row.failure)

    @property
    def sides(self) -> tuple[str, ...]:
        """The names of the sides."""
        return tuple(dict.fromkeys(row.side for row in self.rows))

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap study --json` writes."""
        return {
            "schema": SCHEMA,
            "network": NETWORK,
            "precision": self.precision,
            "algorithm": self.algorithm,
            "fuse": self.fuse,
            "environment": dict(self.environment),
            "rows": [row.to_json() for row in self.rows],
        }


def study(
    network: str = NETWORK,
    *,
    batches: int | Sequence[int] | None = None,
    precision: str = DEFAULT_PRECISION,
    algorithm: str = "auto",
    fuse: bool = False,
    runs: int | None = None,
    progress: Progress | None = None,
) -> Study:
    """Measure the parts of a run of `network`, which must be "alexnet", for each of `batches` on both sides.

    `batches` are by default the powers of 2 up to 1024. The other arguments are those of `profile`. A batch
    that does not fit in memory gets a row with its `failure`.

    Raises:
        ConvswapError: the same errors as those of `profile`.
    """
    if network not in STUDIES:
        raise unknown_name("study", network, STUDIES)
    sizes = batch_sizes(BATCHES if batches is None else batches)
    device, collector = connected_card(precision, runs)
    report = progress or silent
    model = export_network(network)
    check_algorithm(algorithm, device.name)
    swapped = ir.to_proto(swap(model, algorithm=algorithm, precision=precision, fuse=fuse).model)
    models: dict[Side, onnx.ModelProto] = {DEFAULT: model, convswap_side(device, precision): swapped}
    report("loading both sides' libraries")
    inputs = declared_inputs(model_from_proto(model))
    for side, side_model in models.items():
        # The first session of a process loads libraries, which must not count as a batch's set-up.
        _row(collector, device, side, side_model, random_feeds(inputs, 1, seed=0), 1, runs=1)
    rows: list[StudyRow] = []
    for batch in sizes:
        report(f"batch {batch:,}: making images")
        try:
            feeds = random_feeds(inputs, batch, seed=0)
        except MemoryError:
            rows += [StudyRow(batch, side.name, {}, failure=_HOST_SHORT_OF_MEMORY) for side in models]
            continue
        # The kernels of both sides are recorded the same way, which the first side that runs decides.
        long_kernels: bool | None = None
        for side, side_model in models.items():
            report(f"batch {batch:,}, {side.name}")
            rows.append(_row(collector, device, side, side_model, feeds, batch, runs, long_kernels))
            long_kernels = rows[-1].long_kernels
    return Study(
        device=device,
        precision=precision,
        algorithm=algorithm,
        fuse=fuse,
        environment={**environment(device), "cupti": cupti_version()},
        rows=tuple(rows),
    )


def part_of(activity: AttributedActivity) -> str:
    """Return the part of `PARTS` that an activity counts for."""
    if activity.node is not None:
        return _PART_OF_OP.get(activity.node.op, OTHER)
    return _PART_OF_TITLE.get(node_title(activity), OTHER)


def _row(
    collector: Collector,
    device: Device,
    side: Side,
    model: onnx.ModelProto,
    feeds: Feeds,
    batch: int,
    runs: int | None,
    long_kernels: bool | None = None,
) -> StudyRow:
    """Measure one side and return its row; if `long_kernels` is None, the recording chooses it."""
    try:
        recording = record(
            {side: model}, feeds, device, collector, runs=runs, long_kernels=long_kernels, progress=silent
        )
    except MemoryError:
        return StudyRow(batch, side.name, {}, long_kernels=long_kernels, failure=_HOST_SHORT_OF_MEMORY)
    except ConvswapError as error:
        if not any(sign in str(error) for sign in _SHORT_OF_MEMORY):
            raise
        return StudyRow(batch, side.name, {}, long_kernels=long_kernels, failure="out of memory")
    finally:
        # The exception keeps a failed session alive, with all its memory on the card, until it is collected.
        gc.collect()
    host = recording.host[side.name]
    return StudyRow(
        batch=batch,
        side=side.name,
        parts=_medians(timeline_of(recording).activities, len(host.runs)),
        run_ms=float(np.median(host.runs)),
        session_ms=host.session,
        first_run_ms=host.first_run,
        runs=len(host.runs),
        long_kernels=recording.long_kernels,
    )


def _medians(activities: Iterable[AttributedActivity], runs: int) -> dict[str, float]:
    """Return the median milliseconds of each part in a run."""
    sums = {part: np.zeros(runs) for part in PARTS}
    for attributed in activities:
        if attributed.window is not None and attributed.window.phase == RUN:
            sums[part_of(attributed)][attributed.window.number] += attributed.activity.duration / 1e6
    return {part: float(np.median(milliseconds)) for part, milliseconds in sums.items()}
