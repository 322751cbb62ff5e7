"""The result of `optimize`: the selected variant of every Conv, and the speedup of the whole model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convswap.optimizing.choice import MIN_SPEEDUP_AT_A_BATCH, speedup
from convswap.output.files import finite
from convswap.runtime.device import Device


@dataclass(frozen=True)
class NodeResult:
    """The selected variant of one Conv, and the reason for it.

    `taken` is the variant, "default", "swapped" or "fused", and `takes_in` has the ops that are fused with
    the Conv. `default_ms` and `best_ms` are milliseconds by batch, of the Conv and the nodes that can be
    fused with it as a segment; both are None if the Conv was not measured. `default_ms` is the default
    provider's time. `best_ms` is convswap's time, even if that is slower: of the variant in the whole model
    or, if the Conv is not swapped, of the variant that would be selected. For a Conv that is fused with
    another Conv, `best_ms` is the time of its variant as a separate node.

    `precision` is that of convswap's variants, "tf32" or "ieee", or "int8" for a QuantConv. It is None if
    neither is as accurate as the default provider, or the Conv was not measured. `errors` are relative L2
    errors of the Conv without its followers, of "default" and of the precisions that were tried; they are
    None if no error was measured. `algorithm` is convswap's, and is empty for a Conv that is fused with
    another. If it differs between batches, all are listed with commas. `changes_answers` is true for a Conv
    that was left as it is because it changes the model's outputs too much by itself.
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
class WholeModelTimes:
    """The times of the original and the optimized model in runs of `batch` samples, in milliseconds."""

    batch: int
    default_ms: float
    optimized_ms: float

    @property
    def speedup(self) -> float:
        """The speedup over the original."""
        return self.default_ms / self.optimized_ms


def is_faster(times: Sequence[WholeModelTimes]) -> bool:
    """Return whether a model with these times is faster in the mean, and more than 2 % slower at no batch."""
    ratios = [at_batch.speedup for at_batch in times]
    return bool(ratios) and min(ratios) >= MIN_SPEEDUP_AT_A_BATCH and math.prod(ratios) > 1


def mean_speedup(times: Sequence[WholeModelTimes]) -> float:
    """Return the geometric mean of the speedups at all batches."""
    return speedup([at_batch.default_ms for at_batch in times], [at_batch.optimized_ms for at_batch in times])


@dataclass(frozen=True)
class Optimization:
    """The result of `optimize`.

    `whole` has the times of the whole model. It is empty if no selection of Convs was tried, or if no Conv is
    faster as a segment, no pair is fused and the whole model gains less than 2 %. `errors` are relative L2
    errors of the outputs: of "default" and "optimized" against `reference`, and of the two against each other
    ("between"). All are NaN if no output has a finite element; `answers_agree` is then true only if all
    outputs are empty. `written` is the file. It is None if no file was asked for, the model is not faster,
    its outputs differ, or the file could not be written, in which case `not_written` says why.
    """

    model: str
    device: Device
    environment: Mapping[str, str | None]
    options: Mapping[str, Any]
    nodes: tuple[NodeResult, ...]
    whole: tuple[WholeModelTimes, ...]
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
        """The geometric mean over the batches; None if `whole` is empty."""
        return mean_speedup(self.whole) if self.whole else None

    @property
    def gains(self) -> bool:
        """Whether the whole model is faster in the mean over the batches, more than 2 % slower at none."""
        return is_faster(self.whole)

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
                    "batch": at_batch.batch,
                    "default_ms": at_batch.default_ms,
                    "optimized_ms": at_batch.optimized_ms,
                    "speedup": at_batch.speedup,
                }
                for at_batch in self.whole
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
