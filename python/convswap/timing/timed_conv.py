"""A convolution by its shapes, with everything that a FusedConv computes: its problem, data and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import TensorProto

from convswap import _native
from convswap.timing.sampler import Sample
from convswap.timing.single_node import spread_values

_TENSOR_TYPES = {"tf32": "float32", "ieee": "float32", "float16": "float16", "bfloat16": "bfloat16"}
_ONNX_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
PRECISIONS = tuple(_TENSOR_TYPES)

# By the names of arguments of `_native.conv_device`.
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class TimedConv:
    """A convolution. `precision` is "tf32" or "ieee" for float32 tensors, else the tensors' type.

    `attributes` are those of a FusedConv. `depthwise_shape` is the shape of the weights of a depthwise
    convolution in front, or None.
    """

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    precision: str
    has_bias: bool = False
    has_residual: bool = False
    depthwise_shape: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tensor_type(self) -> str:
        """The type of the tensors."""
        return _TENSOR_TYPES[self.precision]

    @property
    def onnx_type(self) -> int:
        """The type of the tensors, as ONNX numbers it."""
        return _ONNX_TYPES[self.tensor_type]

    @property
    def arithmetic(self) -> str:
        """The precision that a Conv of float32 tensors is given; of no effect on other types."""
        return self.precision if self.tensor_type == "float32" else "tf32"

    def problem(self) -> _native.Problem:
        """Return the planner's problem."""
        arguments = self.x_shape, self.w_shape, self.has_bias, self.tensor_type, self.arithmetic
        depthwise = {"depthwise_shape": self.depthwise_shape, "has_depthwise_bias": True}
        extra = {**self.attributes, **(depthwise if self.depthwise_shape else {})}
        problem = _native.Problem(*arguments, **extra)
        if not self.has_residual:
            return problem
        return _native.Problem(*arguments, residual_shape=problem.output_shape, **extra)

    def tensors(self) -> Tensors:
        """Return tensors on the card, with seeded normal values."""
        problem = self.problem()

        def on_card(shape: Sequence[int] | None) -> _native.DeviceArray | None:
            if shape is None:
                return None
            return _native.DeviceArray.from_numpy(spread_values(shape, self.onnx_type))

        return {
            "x": on_card(self.x_shape),
            "w": on_card(self.w_shape),
            "b": on_card(self.w_shape[:1] if self.has_bias else None),
            "y": _native.DeviceArray(problem.output_shape, self.tensor_type),
            "residual": on_card(problem.output_shape if self.has_residual else None),
            "depthwise": on_card(self.depthwise_shape),
            "depthwise_bias": on_card(self.depthwise_shape and self.depthwise_shape[:1]),
        }

    def sample(self, tensors: Tensors, algorithm: str, tiling: int = 0) -> Sample:
        """Return the sample of one of an algorithm's tilings, with weights prepared before the runs."""

        def run(runs: int) -> float:
            return _native.conv_device(
                **tensors,
                algorithm=algorithm,
                alternative=tiling,
                precision=self.arithmetic,
                runs=runs,
                prepared=True,
                **self.attributes,
            )

        return run
