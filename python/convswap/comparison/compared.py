"""What is compared: a model with its data, on both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnxruntime

from convswap.comparison.judgement import Measure
from convswap.comparison.options import CompareOptions
from convswap.graph.swap import DEFAULT_PRECISION, FLOAT16_ON_CPU, SwapResult
from convswap.graph.weights_apart import Weights
from convswap.inputs.feeds import Source, declared_inputs
from convswap.inputs.subject import Subject
from convswap.runtime.device import Device
from convswap.runtime.layers import Capture, ConvLayer
from convswap.runtime.sessions import Side, make_session
from convswap.truth.closeness import ROUNDING, TOLERANCES

_QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear")
_STORED = {int(onnx.TensorProto.FLOAT16): "float16", int(onnx.TensorProto.BFLOAT16): "bfloat16"}


@dataclass(frozen=True)
class Compared:
    """The model as given and swapped, both without their large weights, and what they are fed.

    `swapped_weights` has the large weights of `swapped`; `subject` has its own.
    """

    options: CompareOptions
    device: Device
    subject: Subject
    source: Source
    swapping: SwapResult
    swapped: onnx.ModelProto
    swapped_weights: Weights
    layers: Sequence[ConvLayer]
    sides: tuple[Side, ...]

    @property
    def ours(self) -> Side:
        """The side of our op."""
        return next(side for side in self.sides if side.ours)

    @property
    def shaped(self) -> tuple[Any, ...]:
        """What notes and errors about shapes that were made up are told of."""
        return declared_inputs(self.subject.model), self.source.inputs, self.source.batch

    @property
    def measure(self) -> Measure:
        """What answers are measured by: the tolerance asked for, or that of the coarsest arithmetic."""
        usual = max((TOLERANCES[kind] for kind in self._arithmetic), default=TOLERANCES[DEFAULT_PRECISION])
        return Measure(usual if self.options.tolerance is None else self.options.tolerance, usual)

    @property
    def rounding(self) -> float:
        """What the coarsest arithmetic among the Convs makes a value be off by, of its size."""
        # The CPU has no TF32.
        on_cpu = self.device.name == "cpu"
        kinds = {"ieee" if kind == "tf32" and on_cpu else kind for kind in self._arithmetic}
        return max((ROUNDING[kind] for kind in kinds), default=ROUNDING["ieee"])

    @property
    def rounds_to_float16_on_cpu(self) -> bool:
        """Whether Convs of ours round to float16 what the default side, on the CPU, keeps in float32."""
        is_float16 = FLOAT16_ON_CPU in self.swapping.notes or "float16" in self._arithmetic
        return self.device.name == "cpu" and is_float16

    @property
    def quantises(self) -> bool:
        """Whether the model rounds values to steps, in its main graph or in a function."""
        nodes = [*self.subject.plain.graph.node, *(n for f in self.subject.plain.functions for n in f.node)]
        return any(node.op_type in _QUANTISING or node.op_type.startswith("QLinear") for node in nodes)

    @property
    def _arithmetic(self) -> set[str]:
        """The precisions and storage types of the Convs on our side."""
        kinds = {
            _STORED.get(layer.element_type, layer.setting("precision", DEFAULT_PRECISION))
            for layer in self.layers
        }
        return kinds | ({self.options.precision} if self.swapping.swapped else set())

    def weights(self, *, ours: bool) -> Weights:
        """Return the large weights of the swapped model, or of the one as given."""
        return self.swapped_weights if ours else self.subject.weights

    def layer_weights(self, layer: ConvLayer, *, ours: bool) -> Weights:
        """Return the large weights that a layer alone may have; on the default side, of what it replaces.

        A weight that something was folded into is another than the one as given, of the same name.
        """
        return self.weights(ours=ours or layer.replaced is None)

    def model(self, side: Side) -> onnx.ModelProto:
        """Return what `side` runs, without its large weights."""
        return self.swapped if side.ours else self.subject.plain

    def session(self, side: Side) -> onnxruntime.InferenceSession:
        """Return a session of the whole model; its errors are those of `make_session`."""
        return make_session(self.model(side), side, self.device, weights=self.weights(ours=side.ours))

    def capture(self) -> Capture:
        """Return what gives the layers their inputs."""
        return Capture(self.swapped, self.layers, self.device, self.swapped_weights)
