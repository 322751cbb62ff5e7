"""The ladder's results: a row for each rung, the speedups, and the JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from convswap import _native
from convswap.output.files import finite
from convswap.runtime.device import Device
from convswap.tutorial.ladder.rung_texts import Page

SCHEMA = 1


@dataclass(frozen=True)
class RungLayer:
    """One convolution of the network by one rung: milliseconds for all images, and its kernels.

    `floor_ms` is None if the card's peak rates are unknown. `kernels` is empty on the CPU. `fused` names the
    ops that the rung fuses with the convolution. `apart_ms` is the time of the convolution by the rung before
    and of those ops by ONNX Runtime, None if nothing is fused.
    """

    node: str
    op_ms: float
    bytes: int
    operations: int
    floor_ms: float | None
    relative_l2_error: float
    kernels: tuple[_native.KernelFacts, ...] = ()
    fused: tuple[str, ...] = ()
    apart_ms: float | None = None


@dataclass(frozen=True)
class MeasuredRung:
    """A rung's measurements: those of each convolution, and those of the whole network.

    `timed_images` counts the images that were run. All times are scaled to the ladder's images. `network_ms`
    is the time of the whole network, `accuracy` its top-1 accuracy on the images that were run.
    """

    layers: tuple[RungLayer, ...]
    network_ms: float
    accuracy: float | None
    timed_images: int

    @property
    def op_ms(self) -> float:
        """The time of all convolutions, with the ops that are fused with them."""
        return sum(layer.op_ms for layer in self.layers)

    @property
    def floor_ms(self) -> float | None:
        """The sum of the layers' floors; None if one is unknown."""
        floors = [layer.floor_ms for layer in self.layers if layer.floor_ms is not None]
        return sum(floors) if len(floors) == len(self.layers) else None

    @property
    def gigabytes_per_second(self) -> float:
        """The bytes that must move, divided by the time."""
        return sum(layer.bytes for layer in self.layers) / self.op_ms / 1e6

    @property
    def relative_l2_error(self) -> float:
        """The largest error of a layer."""
        return max(layer.relative_l2_error for layer in self.layers)


@dataclass(frozen=True)
class Row:
    """A rung with its measurements; without them, `why_not` says why it does not run this network here."""

    page: Page
    tolerance: float
    measured: MeasuredRung | None = None
    why_not: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the rung's error is within the tolerance of its precision; true if it did not run."""
        return self.measured is None or self.measured.relative_l2_error <= self.tolerance


@dataclass(frozen=True)
class Ladder:
    """The rows of all rungs for a network, in order; `notes` are sentences for a reader."""

    model: str
    device: Device
    environment: Mapping[str, str | None]
    images: int
    dataset: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        """Whether every rung that was run is right."""
        return all(row.is_right for row in self.rows)

    def replaced_ms(self, row: Row) -> float | None:
        """Return the time of the rung before together with the ops that `row` fuses.

        Return None if `row` fuses nothing or is the first.
        """
        previous = self._measured_before(row)
        if (
            row.measured is None
            or not previous
            or all(layer.apart_ms is None for layer in row.measured.layers)
        ):
            return None
        times = {layer.node: layer.op_ms for layer in previous[-1].layers}
        return sum(
            times[layer.node] if layer.apart_ms is None else layer.apart_ms for layer in row.measured.layers
        )

    def speedup_over_previous(self, row: Row) -> float | None:
        """Return the speedup of `row` over the last rung before it that ran; None for the first."""
        previous = self._measured_before(row)
        if row.measured is None or not previous:
            return None
        replaced = self.replaced_ms(row)
        return (previous[-1].op_ms if replaced is None else replaced) / row.measured.op_ms

    def speedup_over_first(self, row: Row) -> float | None:
        """Return the speedup of `row` over the first rung that ran; None for that rung.

        If `row` fuses ops, their time by ONNX Runtime is added to the first rung's.
        """
        previous = self._measured_before(row)
        return None if not previous else self._speedup_over(row, previous[0])

    def speedup_over_first_on_card(self, row: Row) -> float | None:
        """Return the speedup of `row` over the first CUDA rung that ran; None if that is not before `row`.

        If `row` fuses ops, their time by ONNX Runtime is added to that rung's.
        """
        previous = [
            other.measured
            for other in self.rows[: self.rows.index(row)]
            if other.measured is not None and other.page.device == "cuda"
        ]
        return None if not previous else self._speedup_over(row, previous[0])

    def _speedup_over(self, row: Row, first: MeasuredRung) -> float | None:
        if row.measured is None:
            return None
        replaced = self.replaced_ms(row)
        unfused_ms = 0.0 if replaced is None else replaced - self._measured_before(row)[-1].op_ms
        return (first.op_ms + unfused_ms) / row.measured.op_ms

    def _measured_before(self, row: Row) -> Sequence[MeasuredRung]:
        rows = self.rows[: self.rows.index(row)]
        return [other.measured for other in rows if other.measured is not None]

    def reported(self, row: Row) -> str:
        """Return the rung's time in a report of the course, on the report's card; "" if no report has one.

        If no report has this network, return the time of another network, with its name.
        """
        reports = row.page.reported
        if self.model in reports or not reports:
            return reports.get(self.model, "")
        network, text = next(iter(reports.items()))
        return f"{text} ({network})"

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap ladder --json` writes; infinities and NaN become None."""
        fields = {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device.name,
            "environment": dict(self.environment),
            "images": self.images,
            "dataset": self.dataset,
            "within_tolerance": self.is_right,
            "rungs": [self._row_json(row) for row in self.rows],
            "notes": list(self.notes),
        }
        return {key: finite(value) for key, value in fields.items()}

    def _row_json(self, row: Row) -> dict[str, Any]:
        page, measured = row.page, row.measured
        fields: dict[str, Any] = {
            "number": page.number,
            "algorithm": page.name,
            "title": page.title,
            "device": page.device,
            "precision": page.precision,
            "reported": self.reported(row) or None,
            "tolerance": row.tolerance,
            "why_not": row.why_not or None,
        }
        if measured is None:
            return fields
        floor = measured.floor_ms
        return fields | {
            "within_tolerance": row.is_right,
            "op_ms": measured.op_ms,
            "speedup_before": self.speedup_over_previous(row),
            "speedup_first": self.speedup_over_first(row),
            "speedup_first_on_card": self.speedup_over_first_on_card(row),
            "replaced_ms": self.replaced_ms(row),
            "floor_ms": floor,
            "percent_of_floor": None if floor is None else 100 * floor / measured.op_ms,
            "gigabytes_per_second": measured.gigabytes_per_second,
            "network_ms": measured.network_ms,
            "accuracy": measured.accuracy,
            "timed_images": measured.timed_images,
            "relative_l2_error": measured.relative_l2_error,
            "layers": [asdict(layer) for layer in measured.layers],
        }
