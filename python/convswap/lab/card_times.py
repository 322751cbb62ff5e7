"""A kernel's time inside sessions of ONNX Runtime, beside the default provider, the ladder and our best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import rungs
from convswap.lab.kernel import Kernel
from convswap.lab.result import LayerTimes
from convswap.lab.targets import ALGORITHM, Target, TargetLayer
from convswap.runtime.device import Device
from convswap.runtime.floor import floor_ms
from convswap.runtime.library import LAB_ENTRY
from convswap.runtime.sessions import CONVSWAP, DEFAULT, BoundRun, Side, make_session, on_device, run
from convswap.timing.back_to_back import back_to_back, session_sample
from convswap.timing.conv_runs import spread_values
from convswap.timing.gpu_timer import GpuTimer
from convswap.truth.closeness import relative_l2_error

BEST, PROVIDER = "auto", "default provider"
# What a round of one side's runs may take. There are five, and a side for each rung.
_ROUND_MS = 20.0
# One yardstick for all, as in the ladder.
_FLOOR_PRECISION = "tf32"


@dataclass
class CardTimes:
    """Times kernels on a card, and remembers the times of what is not the user's: see `marks`."""

    device: Device
    timer: GpuTimer

    def __post_init__(self) -> None:
        self._marks: dict[tuple[str, str], float] = {}

    def layer(self, one: TargetLayer, kernel: Kernel, path: str, marks: Iterable[str]) -> LayerTimes:
        """Return the times of the layer by `kernel`, whose file is `path`, and by each of `marks`.

        Raises:
            ConvswapError: ONNX Runtime cannot load or run it.
        """
        feeds = on_device(
            {name: spread_values(shape, one.layer.element_type) for name, shape in one.shapes.items()},
            self.device,
        )
        problem = one.problem
        own = self._bound(one, feeds, CONVSWAP.with_entries({LAB_ENTRY: path}), ALGORITHM)
        wanted = {name: (problem.text, name) for name in marks}
        missing = [name for name, key in wanted.items() if key not in self._marks]
        sides = {name: self._mark(one, feeds, name) for name in missing}
        samples = [session_sample(bound, self.timer) for bound in (own, *sides.values())]
        milliseconds, *others = back_to_back(samples, round_ms=_ROUND_MS)
        for name, time in zip(sides, others, strict=True):
            self._marks[wanted[name]] = time
        return LayerTimes(
            node=one.layer.name,
            milliseconds=milliseconds,
            marks={name: self._marks[key] for name, key in wanted.items()},
            floor_ms=floor_ms(problem, self.device.card, _FLOOR_PRECISION),
            bytes=problem.bytes,
            operations=problem.operations,
            facts={**kernel.source.facts(problem), "outputs": math.prod(problem.output_shape)},
        )

    def _mark(self, one: TargetLayer, feeds: Mapping[str, object], name: str) -> BoundRun:
        if name == PROVIDER:
            return self._bound(one, feeds, DEFAULT, None)
        return self._bound(one, feeds, CONVSWAP, name)

    def _bound(
        self, one: TargetLayer, feeds: Mapping[str, object], side: Side, algorithm: str | None
    ) -> BoundRun:
        layer = one.layer if algorithm is None else one.layer.with_algorithm(algorithm)
        model = layer.model({name: len(shape) for name, shape in one.shapes.items()}, ours=side.ours)
        optioned = side.with_options(self.timer.provider_options)
        session = make_session(model, optioned, self.device, only_device=True)
        return BoundRun(session, feeds, self.device)  # type: ignore[arg-type]


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
    ours = run(make_session(target.swapped, CONVSWAP.with_entries({LAB_ENTRY: path}), device), target.feeds)
    exact = {"use_tf32": "0"} if device.name == "cuda" else {}
    theirs = run(make_session(target.plain, DEFAULT.with_options(exact), device), target.feeds)
    errors = [
        relative_l2_error(own, other)
        for own, other in zip(ours, theirs, strict=True)
        if np.issubdtype(own.dtype, np.floating)
    ]
    if not errors:
        raise ConvswapError(f"{target.title} has no output in floating point: give another model")
    return max(errors)
