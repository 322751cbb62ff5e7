"""What a comparison is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from convswap.errors import ConvswapError, unknown_name
from convswap.graph.swap import DEFAULT_PRECISION, PRECISIONS
from convswap.inputs.given import Given
from convswap.inputs.sample_shapes import InputShape
from convswap.runtime.op_libraries import OpLibraries
from convswap.runtime.sessions import AGAINST


@dataclass(frozen=True)
class CompareOptions:
    """The arguments of `convswap.compare` beside the model; it tells what each means."""

    data: str | None = None
    images: int | None = None
    batch: int | None = None
    device: str | None = None
    precision: str = DEFAULT_PRECISION
    algorithm: str = "auto"
    only: str | None = None
    fuse: bool = False
    tolerance: float | None = None
    against: str = "default"
    labelled: bool = False
    time_layers: bool = True
    input_shape: InputShape | None = None
    inputs: Given | None = None
    op_libraries: OpLibraries = ()

    def check(self) -> None:
        """Raise ConvswapError for what can be refused without a model or a device."""
        if self.against not in AGAINST:
            raise unknown_name("choice of sides", self.against, AGAINST)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.tolerance is not None and not (isinstance(self.tolerance, Real) and self.tolerance >= 0):
            raise ConvswapError(f"tolerance must be a number from 0 on, but {self.tolerance!r} was given")
