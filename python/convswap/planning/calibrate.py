"""Measure this machine's card, and adapt the planner's estimates to it.

The estimates rest on a table of coefficients that was fitted on one card. Calibration times the algorithms on
layers of the bench suites and fits a few factors to the times: one for each property of a card that the
coefficients follow (launch, memory, tensor cores, clock), and one for each algorithm. The planner multiplies
the table by these factors in every later process on this card.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from convswap import _native
from convswap.errors import ConvswapError
from convswap.graph.algorithms import AUTO
from convswap.output.tables import plain_table, versions_line
from convswap.planning.fitting import (
    EstimatedTimes,
    Vector,
    fitted_factors,
    residuals_of,
    root_mean_square,
)
from convswap.planning.problems import SCHEMA
from convswap.progress import Progress, silent
from convswap.runtime.cluster import connected
from convswap.runtime.device import Device, choose_device, environment
from convswap.runtime.tuning import TuningEntry, check_storable, store
from convswap.timing.sampler import StoppingRule, measure
from convswap.timing.suites import SUITES, usual_batch
from convswap.timing.timed_conv import TimedConv

# How many layers of each suite are timed.
_LAYERS: Mapping[str, int] = {
    "course": 6,
    "many-channels": 8,
    "one-d": 4,
    "three-d": 3,
    "depthwise-grouped": 8,
    "small-groups": 5,
    "first-layers": 6,
    "fused": 8,
    "one-image": 14,
}
_MAX_BATCH = 1024
_PRECISIONS = ("tf32", "float16", "ieee")
_RULE = StoppingRule(samples=3, seconds=5, burst_ms=3, max_burst=20, drop_slower=10, drop_first=30)
# Measuring stops after this time; the fit then has fewer times.
_SECONDS = 120.0
# The weight of the logarithm of a factor beside that of a relative error.
_RIDGE = 0.5


@dataclass(frozen=True)
class Calibration:
    """The factors of a card.

    Attributes:
        device: the card.
        environment: versions, as in other results.
        base: the card whose table is multiplied.
        factors: by property or algorithm: how much longer than by the table its share of an estimate is.
        times: how many times the factors were fitted to.
        rms_before: the root mean square of log(time / estimate) with the estimates of before.
        rms_after: the same with the factors.
        table: the file in which the factors are stored.
    """

    device: Device
    environment: Mapping[str, str | None]
    base: str
    factors: Mapping[str, float]
    times: int
    rms_before: float
    rms_after: float
    table: Path

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap calibrate --json` writes."""
        return {
            "schema": SCHEMA,
            "device_name": self.device.title,
            "environment": dict(self.environment),
            "base": self.base,
            "factors": dict(self.factors),
            "times": self.times,
            "rms_before": self.rms_before,
            "rms_after": self.rms_after,
            "table": str(self.table),
        }


def calibrate(*, progress: Progress | None = None) -> Calibration:
    """Time the algorithms on the first card, fit factors for its estimates, and store them.

    The factors are stored in the user's tuning table. Processes that start later use them.

    Args:
        progress: called with a few words before each step.

    Raises:
        ConvswapError: there is no card, CONVSWAP_COMPUTE_CAPABILITY makes it an older one, or the table
            cannot be written.
    """
    check_storable()
    return _stored([_measured(progress or silent)])[0]


def calibrate_cluster(address: str, progress: Progress = silent) -> list[Calibration]:
    """Do the same as `calibrate` on one card of each kind in a Ray cluster; store all in the table here.

    Raises:
        ConvswapError: as for `calibrate`; or the cluster has no card, or cannot be used.
    """
    check_storable()
    progress("starting workers")
    with connected(address, "cuda") as cluster:
        progress(f"calibrating {cluster.device.title}")
        pending = [worker.run.remote(_measured, silent) for worker in cluster.kinds().values()]
        return _stored([cluster.result(each) for each in pending])


def _stored(measured: Sequence[tuple[Calibration, TuningEntry]]) -> list[Calibration]:
    """Store the entries, and return the calibrations with the path of the table."""
    table = store([entry for _, entry in measured])
    return [replace(calibration, table=table) for calibration, _ in measured]


def _measured(report: Progress) -> tuple[Calibration, TuningEntry]:
    """Return the calibration of the first card, and its entry for a table that is not written yet."""
    device = choose_device()
    if device.card is None:
        raise ConvswapError(f"there is no card to calibrate: {device.reason}; see `convswap doctor`")
    if device.card["is_restricted"]:
        raise ConvswapError(
            "CONVSWAP_COMPUTE_CAPABILITY makes the card an older one, which cannot be calibrated: unset it"
        )
    times = _times(device.card["compute_capability"], report)
    base, costs = _native.fitted_costs()
    _, before = _native.cost_table()
    report("fitting the factors")
    names = factor_names(times)

    def with_factors(factors: Vector) -> list[float]:
        return _native.with_factors(costs, dict(zip(names, factors.tolist(), strict=True)))

    factors = fitted_factors(lambda tried: residuals_of(times, with_factors(tried)), len(names), _RIDGE)
    named = dict(zip(names, factors.tolist(), strict=True))
    calibration = Calibration(
        device=device,
        environment=environment(device),
        base=base,
        factors=named,
        times=len(residuals_of(times, costs)),
        rms_before=root_mean_square(residuals_of(times, before)),
        rms_after=root_mean_square(residuals_of(times, with_factors(factors))),
        table=Path(),
    )
    entry = TuningEntry.measured("cuda", _native.calibration_problem, AUTO, {AUTO: 1.0, **named})
    return calibration, entry


def factor_names(times: Sequence[EstimatedTimes]) -> list[str]:
    """Return the properties of a card, and the algorithms that have times and a table."""
    scales = {scale for *_, scale in _native.coefficients()} - {"fixed"}
    families = {family for family, *_ in _native.coefficients()}
    return [*sorted(scales), *sorted(families & {each.algorithm for each in times})]


def print_calibration(calibration: Calibration, console: Console) -> None:
    """Print the factors, and how far times are from the estimates without and with them."""
    title = versions_line(dict(calibration.environment), calibration.device.title)
    console.print(Text(f"Calibration of the planner's estimates\n{title}\n"))
    table = plain_table(f"Times relative to the table of an {calibration.base}", "of", ">factor")
    for name, factor in calibration.factors.items():
        table.add_row(name, f"{factor:.2f}")
    console.print(table)
    console.print(
        Text(
            f"Root mean square of log(time / estimate) over {calibration.times} times: "
            f"{calibration.rms_before:.1%} before, {calibration.rms_after:.1%} now. Stored in "
            f"{calibration.table}; processes that start from now on use the factors."
        )
    )


def _cases() -> Iterator[TimedConv]:
    """Yield a layer in NHWC, and layers that are spread over the suites, with one precision each."""
    nhwc = {"input_layout": "NHWC", "output_layout": "NHWC"}
    yield TimedConv((64, 28, 28, 128), (128, 128, 3, 3), "float16", attributes={"pads": [1] * 4, **nhwc})
    for suite, count in _LAYERS.items():
        layers = SUITES[suite]
        for place in range(count):
            layer = layers[place * len(layers) // count]
            yield TimedConv(
                layer.input_shape(min(_MAX_BATCH, usual_batch(suite, layer, "cuda"))),
                layer.weight_shape,
                _PRECISIONS[place % len(_PRECISIONS)],
                attributes={**layer.attributes, **layer.epilogue},
            )


def _times(compute_capability: int, report: Progress) -> list[EstimatedTimes]:
    """Return the times of each case's algorithms."""
    cases = [(case, _tilings(case.problem())) for case in _cases()]
    kernels = {kernel for _, tilings in cases for _, names in tilings.values() for kernel in names}
    report(f"compiling kernels: {len(kernels)}")
    _native.compile_ahead(sorted(kernels), compute_capability)
    end = time.monotonic() + _SECONDS
    times = []
    for number, (case, tilings) in enumerate(cases, start=1):
        if time.monotonic() > end:
            break
        report(f"timing layer {number} of {len(cases)}")
        tensors = case.tensors()
        measured = measure({name: case.sample(tensors, name) for name in tilings}, _RULE)
        times += [
            EstimatedTimes(case.problem(), name, [tiling], [measured[name].median])
            for name, (tiling, _) in tilings.items()
        ]
    return times


def _tilings(problem: _native.Problem) -> dict[str, tuple[str, Sequence[str]]]:
    """Return the tiling that each algorithm with an estimate chooses, and its kernels."""
    found: dict[str, tuple[str, Sequence[str]]] = {}
    for entry in _native.catalog():
        if entry.device != "cuda" or entry.by_name_alone or _native.why_not(problem, entry.name, "cuda"):
            continue
        (first,) = _native.alternatives(problem, entry.name, 1)
        if first["milliseconds"] is not None:
            found[entry.name] = (first["tiling"], first["kernels"])
    return found
