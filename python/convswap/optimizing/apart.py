"""A model whose large weights are beside it: in memory once, whatever is made of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
import onnxruntime

from convswap.graph.swap import NodeChoice, SwapResult, swap_chosen
from convswap.graph.weights_apart import Weights, moved_apart, put_together
from convswap.runtime.device import Device
from convswap.runtime.memory import freed_at_once
from convswap.runtime.sessions import Side, make_session


@dataclass(frozen=True)
class Apart:
    """A model without its large weights, and those, as `convswap.graph.weights_apart` has them."""

    model: onnx.ModelProto
    weights: Weights

    def session(self, side: Side, device: Device) -> onnxruntime.InferenceSession:
        """Return a session of the whole model; its errors are those of `make_session`."""
        return make_session(self.model, side, device, weights=self.weights)

    def swapped(self, choices: Mapping[str, NodeChoice], why_others: str) -> tuple[Apart, SwapResult]:
        """Return this as `swap_chosen` swaps it, and what was swapped, whose model is without weights."""
        with freed_at_once():
            result = swap_chosen(put_together(self.model, self.weights), choices, why_others)
            return Apart(*moved_apart(result.model)), result
