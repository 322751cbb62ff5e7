"""The result of `convswap.compare`, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from convswap.comparison.verdict import Verdict
from convswap.graph.fusion.fuse import Fused, NotFused
from convswap.graph.layout.choose import LayoutChange
from convswap.graph.swap import NotSwapped
from convswap.output.files import finite
from convswap.reference.metrics import CodeDifference
from convswap.runtime.device import Device
from convswap.runtime.layers import INT8
from convswap.timing.sampler import Times

SCHEMA = 1


@dataclass(frozen=True)
class SideResult:
    """One side: its time on one batch, its top-1 accuracy (None without labels), its float64 errors."""

    times: Times
    accuracy: float | None
    max_abs_error: float
    relative_l2_error: float
    provider_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerResult:
    """One Conv alone: the median milliseconds and the relative L2 error of each side, by the side's name.

    `fused` has the ops that are fused with the Conv, in order; the other sides compute them in separate
    nodes. `floor_ms` is None if the device's bandwidth and rate are not known. `precision` is that of the
    products, "int8" for a QuantConv. `codes` has the differences from float64 if the results are codes; the
    relative L2 error is that of the dequantised numbers.
    """

    node: str
    algorithm: str
    milliseconds: Mapping[str, float]
    floor_ms: float | None
    relative_l2_error: Mapping[str, float]
    fused: tuple[str, ...] = ()
    precision: str = ""
    codes: Mapping[str, CodeDifference] | None = None

    @property
    def title(self) -> str:
        """The names of the nodes that are timed, such as "conv1 + Tanh + MaxPool"."""
        return " + ".join([self.node, *self.fused])


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison; `sides` has "default", "convswap" and, with `against="all"`, the others.

    `images` samples were run on both sides for accuracy and agreement; batches of `batch` samples were timed;
    `truth_images` samples were evaluated in float64 for the errors. `top1_agreement` is the share of samples
    with the same class on both sides. It is None if no sample has a class, as for outputs that are empty or
    not finite. `without_class` counts the samples without a class on either side. `notes` are sentences for a
    reader. `verdict` says whether the outputs agree; if it is None, the error of the convswap side decides.
    `elements_that_differ` has, for each output that is not floating-point, the share of its elements in which
    each side differs from the reference.
    """

    model: str
    device: Device
    precision: str
    options: Mapping[str, Any]
    environment: Mapping[str, str | None]
    images: int
    batch: int
    truth_images: int
    dataset: str
    sides: Mapping[str, SideResult]
    top1_agreement: float | None
    swapped: int
    left: tuple[NotSwapped, ...]
    layers: tuple[LayerResult, ...]
    tolerance: float
    notes: tuple[str, ...] = ()
    fused: tuple[Fused, ...] = ()
    not_fused: tuple[NotFused, ...] = ()
    layout: LayoutChange | None = None
    verdict: Verdict | None = None
    elements_that_differ: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    without_class: int = 0

    @property
    def default(self) -> SideResult:
        """The default provider's result."""
        return self.sides["default"]

    @property
    def convswap(self) -> SideResult:
        """The result of the model with its Convs swapped."""
        return self.sides["convswap"]

    @property
    def speedup(self) -> float:
        """The speedup over the default: its median over that of the convswap side."""
        return self.speedup_over("default")

    @property
    def within_tolerance(self) -> bool:
        """Whether the outputs of the convswap side are right, by the rules of `comparison.verdict`."""
        if self.verdict is not None:
            return self.verdict.agree
        return self.convswap.relative_l2_error <= self.tolerance

    def speedup_over(self, side: str) -> float:
        """Return the median of `side` over that of the convswap side."""
        return self.sides[side].times.median / self.convswap.times.median

    def layers_sum(self, side: str) -> float:
        """Return the sum of the layers' medians of `side` in milliseconds."""
        return sum(layer.milliseconds[side] for layer in self.layers)

    def op_seconds(self, side: str) -> float:
        """Return the seconds that the layers of `side` take for all images: the sum of their medians."""
        return self.layers_sum(side) / 1e3 * self.images / self.batch

    def to_json(self) -> dict[str, Any]:
        """Return the object that `convswap compare --json` writes; an infinite or NaN number becomes None.

        Beyond the schema's keys it has "tolerance", "within_tolerance", "truth_images", "layers_sum_ms" (of
        each side, None if no Conv was timed alone), "notes", "fused" and "not_fused" as `swap --report`
        writes them, its "layout" if that was asked for, the "elements_that_differ", the ops "fused" of each
        layer and, for the other options of the provider, "others" and "others_ms" of each layer. A layer that
        is a QuantConv has "precision" and, if it gives codes, "equal_codes" (a share) and "largest_step".
        """
        both = ("default", "convswap")
        others = [name for name in self.sides if name not in both]
        result = {
            "schema": SCHEMA,
            "model": self.model,
            "device": self.device.name,
            "precision": self.precision,
            "options": dict(self.options),
            "environment": dict(self.environment),
            "images": self.images,
            "batch": self.batch,
            "dataset": self.dataset,
            "accuracy": {name: self.sides[name].accuracy for name in both},
            "top1_agreement": self.top1_agreement,
            "max_abs_error": {name: self.sides[name].max_abs_error for name in both},
            "relative_l2_error": {name: self.sides[name].relative_l2_error for name in both},
            "time_ms": {name: self.sides[name].times.to_json() for name in both},
            "speedup": self.speedup,
            "swapped": self.swapped,
            "left": [{"node": left.node, "reason": left.reason} for left in self.left],
            "fused": [fused.to_json() for fused in self.fused],
            "not_fused": [not_fused.to_json() for not_fused in self.not_fused],
            "layers": [_layer_json(layer, others) for layer in self.layers],
            "layers_sum_ms": {name: self.layers_sum(name) if self.layers else None for name in self.sides},
            "tolerance": self.tolerance,
            "within_tolerance": self.within_tolerance,
            "truth_images": self.truth_images,
            "elements_that_differ": {
                name: dict(shares) for name, shares in self.elements_that_differ.items()
            },
            "others": {name: self._other_json(name) for name in others},
            "notes": list(self.notes),
            **({} if self.layout is None else {"layout": self.layout.to_json()}),
        }
        return {key: finite(value) for key, value in result.items()}

    def _other_json(self, name: str) -> dict[str, Any]:
        side = self.sides[name]
        return {
            "provider_options": dict(side.provider_options),
            "accuracy": side.accuracy,
            "max_abs_error": side.max_abs_error,
            "relative_l2_error": side.relative_l2_error,
            "time_ms": side.times.to_json(),
            "speedup": self.speedup_over(name),
        }


def _layer_json(layer: LayerResult, other_names: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "node": layer.node,
        "fused": list(layer.fused),
        "algorithm": layer.algorithm,
        "default_ms": layer.milliseconds["default"],
        "convswap_ms": layer.milliseconds["convswap"],
        "floor_ms": layer.floor_ms,
        "relative_l2_error": {name: layer.relative_l2_error[name] for name in ("default", "convswap")},
    }
    if layer.precision == INT8:
        result["precision"] = layer.precision
    if layer.codes is not None:
        result["equal_codes"] = {name: layer.codes[name].equal for name in ("default", "convswap")}
        result["largest_step"] = {name: layer.codes[name].steps for name in ("default", "convswap")}
    if other_names:
        result["others_ms"] = {name: layer.milliseconds[name] for name in other_names}
    return result
