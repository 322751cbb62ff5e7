"""What `explain` and `tune` both say of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convswap.graph.fusion.fuse import Fused, NotFused
from convswap.graph.swap import Left
from convswap.runtime.device import Device

SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model planned for runs of `batch` samples on a device.

    `left`, `fused` and `not_fused` are those of `convswap.swap`; `notes` are sentences for a reader.
    """

    model: str
    device: Device
    environment: Mapping[str, str | None]
    batch: int
    precision: str
    algorithm: str
    left: tuple[Left, ...]
    fused: tuple[Fused, ...]
    not_fused: tuple[NotFused, ...]
    notes: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """Return these as JSON has them."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device.name,
            "device_name": self.device.title,
            "environment": dict(self.environment),
            "batch": self.batch,
            "precision": self.precision,
            "algorithm": self.algorithm,
            "left": [{"node": left.node, "reason": left.reason} for left in self.left],
            "fused": [fused.to_json() for fused in self.fused],
            "not_fused": [not_fused.to_json() for not_fused in self.not_fused],
            "notes": list(self.notes),
        }
