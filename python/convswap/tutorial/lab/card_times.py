"""Times a kernel and its baselines in ONNX Runtime sessions: the default provider, the ladder, our best."""

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
from convswap.tutorial.lab.kernel import ALGORITHM, LabKernel
from convswap.tutorial.lab.ranking import lab_table
from convswap.tutorial.lab.result import LayerTimes
from convswap.tutorial.lab.targets import Target, TargetLayer

BEST, DEFAULT_PROVIDER = "auto", "default provider"
_RULE = replace(BACK_TO_BACK, burst_ms=20.0)
# The floor of all kernels is that of TF32, as in the ladder.
_FLOOR_PRECISION = "tf32"

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS marks (
  card TEXT NOT NULL, driver TEXT NOT NULL, convswap TEXT NOT NULL, problem TEXT NOT NULL, name TEXT NOT NULL,
  milliseconds REAL NOT NULL, PRIMARY KEY (card, driver, convswap, problem, name)
)
"""


class CardTimes:
    """Times kernels on a card, each layer in sessions of its own, on one stream.

    Baselines are timed once per process. The ranking's file also caches the times of the rungs and of the
    default provider, whose session takes a second to create.
    """

    def __init__(self, device: Device, timer: GpuTimer) -> None:
        self._device = device
        self._timer = timer
        self._baselines: dict[tuple[str, str], float] = {}

    def baseline(self, conv: TargetLayer, name: str) -> float:
        """Return the layer's milliseconds by the algorithm `name`, or by the `DEFAULT_PROVIDER`.

        Raises:
            ConvswapError: ONNX Runtime cannot load or run the layer's model.
        """
        key = conv.problem.text, name
        if key not in self._baselines:
            # The planner's choice is not cached: its kernels change while a developer works on the library,
            # and the version does not.
            cache_key = None if name == BEST else (conv.problem.text, _cache_name(name))
            milliseconds = cached_baseline(self._device, *cache_key) if cache_key else None
            if milliseconds is None:
                side, algorithm = (DEFAULT, None) if name == DEFAULT_PROVIDER else (CONVSWAP, name)
                milliseconds = self._time(conv, side, algorithm)
                if cache_key:
                    cache_baseline(self._device, *cache_key, milliseconds)
            self._baselines[key] = milliseconds
        return self._baselines[key]

    def layer(
        self, conv: TargetLayer, kernel: LabKernel, path: str, baselines: Mapping[str, float]
    ) -> LayerTimes:
        """Time the layer by `kernel`, whose file is `path`; return the result with the times of `baselines`.

        Raises:
            ConvswapError: ONNX Runtime cannot load or run the layer's model.
        """
        problem = conv.problem
        return LayerTimes(
            node=conv.layer.name,
            milliseconds=self._time(conv, CONVSWAP.with_entries({LAB_ENTRY: path}), ALGORITHM),
            baselines=dict(baselines),
            floor_ms=floor_ms(problem, self._device.card, _FLOOR_PRECISION),
            bytes=problem.bytes,
            operations=problem.operations,
            facts={**facts_of(kernel, problem), "outputs": math.prod(problem.output_shape)},
        )

    def _time(self, conv: TargetLayer, side: Side, algorithm: str | None) -> float:
        # One session at a time, because the outputs of a large batch take a gigabyte.
        feeds = on_device(
            {name: spread_values(shape, conv.layer.element_type) for name, shape in conv.shapes.items()},
            self._device,
        )
        bound = self._bound(conv, feeds, side, algorithm)
        return measure({"": sample_of(bound, self._timer)}, _RULE)[""].median

    def _bound(
        self, conv: TargetLayer, feeds: Mapping[str, onnxruntime.OrtValue], side: Side, algorithm: str | None
    ) -> BoundRun:
        layer = conv.layer if algorithm is None else conv.layer.with_algorithm(algorithm)
        model = layer.model(
            {name: len(shape) for name, shape in conv.shapes.items()}, swapped=side.uses_convswap
        )
        side_with_options = side.with_options(self._timer.provider_options)
        session = make_session(model, side_with_options, self._device, only_device=True)
        return BoundRun(session, feeds, self._device)


def _cache_name(name: str) -> str:
    """Return a baseline's name in the cache; the default provider's has the versions it depends on."""
    if name != DEFAULT_PROVIDER:
        return name
    return f"{name} of ONNX Runtime {onnxruntime.__version__} with cuDNN {cudnn_version()}"


def facts_of(kernel: LabKernel, problem: _native.Problem) -> Mapping[str, object]:
    """Return the registers, memory and launch shape of the kernel on the card; see `LayerTimes.facts`."""
    return kernel.source.facts(problem)


def available_baselines(conv: TargetLayer) -> list[str]:
    """Return the baselines of a layer: the default provider, the rungs that support it, and our best."""
    problem = conv.problem
    supporting_rungs = [
        rung.name
        for rung in rungs()
        if rung.device == "cuda" and not _native.why_not(problem, rung.name, "cuda")
    ]
    return [DEFAULT_PROVIDER, *supporting_rungs, BEST]


def network_error(target: Target, path: str, device: Device) -> float | None:
    """Return the largest relative L2 distance of an output of the whole model from the default provider's.

    The kernel computes the model's Convs. Return None for a layer alone.
    """
    if target.swapped is None or target.plain is None or target.feeds is None:
        return None
    # All other nodes compute in float32 on both sides.
    exact = {"use_tf32": "0"} if device.name == "cuda" else {}
    convswap_side = CONVSWAP.with_entries({LAB_ENTRY: path}).with_options(exact)
    outputs = run(make_session(target.swapped, convswap_side, device), target.feeds)
    expected_outputs = run(make_session(target.plain, DEFAULT.with_options(exact), device), target.feeds)
    errors = [
        relative_l2_error(output, expected)
        for output, expected in zip(outputs, expected_outputs, strict=True)
        if np.issubdtype(output.dtype, np.floating)
    ]
    if not errors:
        raise ConvswapError(f"{target.title} has no output in floating point: give another model")
    return max(errors)


def cached_baseline(device: Device, problem: str, name: str) -> float | None:
    """Return the cached milliseconds of a `Problem.text` by a baseline on the card, or None."""
    condition = "card = ? AND driver = ? AND convswap = ? AND problem = ? AND name = ?"
    # If the file cannot be used, the baseline is measured again.
    with contextlib.suppress(ConvswapError), lab_table(_CREATE_TABLE) as table:
        query = f"SELECT milliseconds FROM marks WHERE {condition}"
        row = table.execute(query, (*_environment_key(device), problem, name)).fetchone()
        return None if row is None else float(row[0])
    return None


def cache_baseline(device: Device, problem: str, name: str, milliseconds: float) -> None:
    """Cache the milliseconds of a `Problem.text` by a baseline, if the file can be used."""
    with contextlib.suppress(ConvswapError), lab_table(_CREATE_TABLE) as table:
        row = (*_environment_key(device), problem, name, milliseconds)
        table.execute("INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?)", row)


def _environment_key(device: Device) -> tuple[str, str, str]:
    versions = environment(device)
    return device.title, str(versions["driver"]), str(versions["convswap"])
