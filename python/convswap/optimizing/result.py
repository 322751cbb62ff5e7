"""What `optimize` found: the way of every Conv with its times, and what the whole model gained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convswap.optimizing.choice import LEAST_SPEEDUP, speedup
from convswap.output.files import finite
from convswap.runtime.device import Device


@dataclass(frozen=True)
class NodeResult:
    """One Conv: what was taken for it, and why.

    `taken` is "default", "swapped" or "fused"; `takes_in` has the ops that it is fused with. The times are in
    milliseconds, by batch, of the Conv and all that it could take in; they are empty where nothing was
    measured, as `best_ms` is where none of ours would do: the fastest of ours, or where it takes in more than
    that in the whole model, that. `errors` are relative L2 errors of the Conv alone: of "default", and of the
    precisions that were tried. `algorithm` is what computes it so; where batches differ in it, those of all,
    with commas between. One that `changes_answers` of the model by itself is left.
    """

    node: str
    taken: str
    why: str
    takes_in: tuple[str, ...] = ()
    precision: str | None = None
    algorithm: str | None = None
    default_ms: Mapping[int, float] | None = None
    best_ms: Mapping[int, float] | None = None
    errors: Mapping[str, float] | None = None
    changes_answers: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the object of `nodes` in the JSON of `optimize`."""
        return {
            "node": self.node,
            "taken": self.taken,
            "takes_in": list(self.takes_in),
            "precision": self.precision,
            "algorithm": self.algorithm,
            "default_ms": _by_text(self.default_ms),
            "best_ms": _by_text(self.best_ms),
            "relative_l2_error": finite(dict(self.errors)) if self.errors is not None else None,
            "why": self.why,
        }


@dataclass(frozen=True)
class WholeResult:
    """The whole model in runs of `batch` samples, in milliseconds."""

    batch: int
    default_ms: float
    optimized_ms: float

    @property
    def speedup(self) -> float:
        """How many times as fast as the original the optimised model is."""
        return self.default_ms / self.optimized_ms


def gains(times: Sequence[WholeResult]) -> bool:
    """Return whether the model of these times is faster in the mean, and at no batch slower."""
    ratios = [one.speedup for one in times]
    return bool(ratios) and min(ratios) >= LEAST_SPEEDUP and math.prod(ratios) > 1


def mean_speedup(times: Sequence[WholeResult]) -> float:
    """Return how many times as fast as the original the model of these times is, in the geometric mean."""
    return speedup([one.default_ms for one in times], [one.optimized_ms for one in times])


@dataclass(frozen=True)
class Optimization:
    """What `optimize` returns.

    `whole` is empty where no Conv gains. `errors` are relative L2 errors of the outputs, of "default" and
    "optimized" against the reference that `reference` names, and of one against the other ("between").
    All are NaN if no output has a finite element; then `answers_agree` only if all outputs are empty.
    `written` is the file; None if none was asked for, the model did not gain, its answers differ, or it could
    not be written, of which `not_written` tells why.
    """

    model: str
    device: Device
    environment: Mapping[str, str | None]
    options: Mapping[str, Any]
    nodes: tuple[NodeResult, ...]
    whole: tuple[WholeResult, ...]
    errors: Mapping[str, float]
    reference: str
    answers_agree: bool
    written: Path | None
    notes: tuple[str, ...]
    not_written: str | None = None

    @property
    def nothing_compared(self) -> bool:
        """Whether no output has a finite element on either side."""
        return math.isnan(self.errors.get("between", 0.0))

    @property
    def speedup(self) -> float | None:
        """The geometric mean over the batches; None where no Conv gains."""
        return mean_speedup(self.whole) if self.whole else None

    @property
    def gains(self) -> bool:
        """Whether the whole model is faster in the mean over the batches, and at none slower."""
        return gains(self.whole)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap optimize --json` writes; see schema.json beside this file.

        An error that is infinite or NaN becomes None.
        """
        return {
            "schema": 1,
            "model": self.model,
            "device": self.device.name,
            "environment": dict(self.environment),
            "options": dict(self.options),
            "nodes": [node.to_json() for node in self.nodes],
            "whole": [
                {
                    "batch": one.batch,
                    "default_ms": one.default_ms,
                    "optimized_ms": one.optimized_ms,
                    "speedup": one.speedup,
                }
                for one in self.whole
            ],
            "speedup": self.speedup,
            "relative_l2_error": finite(dict(self.errors)),
            "reference": self.reference,
            "answers_agree": self.answers_agree,
            "written": None if self.written is None else str(self.written),
            "notes": list(self.notes),
        }


def _by_text(times: Mapping[int, float] | None) -> dict[str, float] | None:
    return None if times is None else {str(batch): time for batch, time in times.items()}
