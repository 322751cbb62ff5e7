"""A kernel's time inside sessions of ONNX Runtime, beside the default provider, the ladder and our best."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnxruntime

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import rungs
from convswap.reference.metrics import relative_l2_error
from convswap.runtime.device import Device, environment
from convswap.runtime.library import LAB_ENTRY
from convswap.runtime.packages import cudnn_version
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, on_device, run
from convswap.timing.floor import floor_ms
from convswap.timing.gpu_timer import GpuTimer
from convswap.timing.sampler import BACK_TO_BACK, measure, sample_of
from convswap.timing.single_node import spread_values
from convswap.tutorial.lab.kernel import ALGORITHM, Kernel
from convswap.tutorial.lab.ranking import lab_table
from convswap.tutorial.lab.result import LayerTimes
from convswap.tutorial.lab.targets import Target, TargetLayer

BEST, PROVIDER = "auto", "default provider"
_RULE = replace(BACK_TO_BACK, burst_ms=20.0)
# One yardstick for all, as in the ladder.
_FLOOR_PRECISION = "tf32"

_TABLE = """
CREATE TABLE IF NOT EXISTS marks (
  card TEXT NOT NULL, driver TEXT NOT NULL, convswap TEXT NOT NULL, problem TEXT NOT NULL, name TEXT NOT NULL,
  milliseconds REAL NOT NULL, PRIMARY KEY (card, driver, convswap, problem, name)
)
"""


class CardTimes:
    """Times kernels on a card, each layer in sessions of its own, on one stream.

    What is not the user's is timed once. The times of the rungs and of the default provider, whose session
    takes a second to make, are kept in the ranking's file too.
    """

    def __init__(self, device: Device, timer: GpuTimer) -> None:
        self._device = device
        self._timer = timer
        self._marks: dict[tuple[str, str], float] = {}

    def mark(self, one: TargetLayer, name: str) -> float:
        """Return the layer's milliseconds by the algorithm `name`, or by the `PROVIDER`.

        Raises:
            ConvswapError: ONNX Runtime cannot load or run it.
        """
        key = one.problem.text, name
        if key not in self._marks:
            # Our best changes with the library, under one version of it while somebody works on it.
            kept = None if name == BEST else (one.problem.text, _kept_name(name))
            known = known_mark(self._device, *kept) if kept else None
            if known is None:
                side, algorithm = (DEFAULT, None) if name == PROVIDER else (CONVSWAP, name)
                known = self._time(one, side, algorithm)
                if kept:
                    keep_mark(self._device, *kept, known)
            self._marks[key] = known
        return self._marks[key]

    def layer(self, one: TargetLayer, kernel: Kernel, path: str, marks: Mapping[str, float]) -> LayerTimes:
        """Return the times of the layer by `kernel`, whose file is `path`, beside those of `marks`.

        Raises:
            ConvswapError: ONNX Runtime cannot load or run it.
        """
        problem = one.problem
        return LayerTimes(
            node=one.layer.name,
            milliseconds=self._time(one, CONVSWAP.with_entries({LAB_ENTRY: path}), ALGORITHM),
            marks=dict(marks),
            floor_ms=floor_ms(problem, self._device.card, _FLOOR_PRECISION),
            bytes=problem.bytes,
            operations=problem.operations,
            facts={**facts_of(kernel, problem), "outputs": math.prod(problem.output_shape)},
        )

    def _time(self, one: TargetLayer, side: Side, algorithm: str | None) -> float:
        # One session at a time: the outputs of a large batch take a gigabyte.
        feeds = on_device(
            {name: spread_values(shape, one.layer.element_type) for name, shape in one.shapes.items()},
            self._device,
        )
        bound = self._bound(one, feeds, side, algorithm)
        return measure({"": sample_of(bound, self._timer)}, _RULE)[""].median

    def _bound(
        self, one: TargetLayer, feeds: Mapping[str, onnxruntime.OrtValue], side: Side, algorithm: str | None
    ) -> BoundRun:
        layer = one.layer if algorithm is None else one.layer.with_algorithm(algorithm)
        model = layer.model({name: len(shape) for name, shape in one.shapes.items()}, ours=side.ours)
        optioned = side.with_options(self._timer.provider_options)
        session = make_session(model, optioned, self._device, only_device=True)
        return BoundRun(session, feeds, self._device)


def _kept_name(name: str) -> str:
    """Return by what a mark's time is kept: the default provider's belongs to its version and to cuDNN's."""
    if name != PROVIDER:
        return name
    return f"{name} of ONNX Runtime {onnxruntime.__version__} with cuDNN {cudnn_version()}"


def facts_of(kernel: Kernel, problem: _native.Problem) -> Mapping[str, object]:
    """Return what the card says of the kernel and its launch."""
    return kernel.source.facts(problem)


def able_marks(one: TargetLayer) -> list[str]:
    """Return what the layer can be set beside: the default provider, the rungs that take it, and our best."""
    problem = one.problem
    able = [
        rung.name
        for rung in rungs()
        if rung.device == "cuda" and not _native.why_not(problem, rung.name, "cuda")
    ]
    return [PROVIDER, *able, BEST]


def network_error(target: Target, path: str, device: Device) -> float | None:
    """Return how far the outputs of the whole model with the kernel are from the default provider's.

    None for a layer alone. It is the largest relative L2 error of an output.
    """
    if target.swapped is None or target.plain is None or target.feeds is None:
        return None
    # What stands around the Convs, on both sides alike.
    exact = {"use_tf32": "0"} if device.name == "cuda" else {}
    own_side = CONVSWAP.with_entries({LAB_ENTRY: path}).with_options(exact)
    ours = run(make_session(target.swapped, own_side, device), target.feeds)
    theirs = run(make_session(target.plain, DEFAULT.with_options(exact), device), target.feeds)
    errors = [
        relative_l2_error(own, other)
        for own, other in zip(ours, theirs, strict=True)
        if np.issubdtype(own.dtype, np.floating)
    ]
    if not errors:
        raise ConvswapError(f"{target.title} has no output in floating point: give another model")
    return max(errors)


def known_mark(device: Device, problem: str, name: str) -> float | None:
    """Return the milliseconds of a `Problem.text` by an algorithm on the card; None where not kept."""
    place = "card = ? AND driver = ? AND convswap = ? AND problem = ? AND name = ?"
    # Where the file cannot be used, what it would have is measured again.
    with contextlib.suppress(ConvswapError), lab_table(_TABLE) as table:
        query = f"SELECT milliseconds FROM marks WHERE {place}"
        row = table.execute(query, (*_place(device), problem, name)).fetchone()
        return None if row is None else float(row[0])
    return None


def keep_mark(device: Device, problem: str, name: str, milliseconds: float) -> None:
    """Keep such a time, where the file can be used."""
    with contextlib.suppress(ConvswapError), lab_table(_TABLE) as table:
        row = (*_place(device), problem, name, milliseconds)
        table.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)", row)


def _place(device: Device) -> tuple[str, str, str]:
    found = environment(device)
    return device.title, str(found["driver"]), str(found["convswap"])
