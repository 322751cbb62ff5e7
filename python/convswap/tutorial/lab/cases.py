"""The convolutions that a kernel is checked with: small, odd ones, where a wrong kernel shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from convswap import _native
from convswap.models import NETWORKS, Convolution, place
from convswap.truth.operators import reference_conv
from convswap.tutorial.lab.kernel import Kernel

# Of the course's layers so many images: one, and a number that no block is made for.
_COURSE_BATCHES = (1, 3)


@dataclass(frozen=True)
class Case:
    """A convolution of float32 data: x is (N, C, H, W), w is (K, C / group, R, S); attributes as in ONNX."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    has_bias: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        (batch, channels, height, width), (filters, _, rows, columns) = self.x_shape, self.w_shape
        size = f"K={rows}" if rows == columns else f"R={rows} S={columns}"
        more = [f"{name}={value}".replace(" ", "") for name, value in self.attributes.items()]
        words = [f"B={batch} M={filters} C={channels} H={height} W={width} {size}", *more]
        return " ".join([*words, "bias"] if self.has_bias else words)

    @cached_property
    def problem(self) -> _native.Problem:
        """The problem, as the planner knows it."""
        return _native.Problem(self.x_shape, self.w_shape, self.has_bias, **self.attributes)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Normal data, weights and bias (None without one), which depend on the case alone."""
        random = np.random.default_rng([*self.x_shape, *self.w_shape])
        x = random.standard_normal(self.x_shape, dtype=np.float32)
        w = random.standard_normal(self.w_shape, dtype=np.float32)
        return x, w, random.standard_normal(self.w_shape[0], dtype=np.float32) if self.has_bias else None

    @cached_property
    def truth(self) -> np.ndarray:
        """The convolution in float64."""
        return reference_conv(*self.arrays, self.attributes)

    @cached_property
    def magnitude(self) -> np.ndarray:
        """For each output the sum of the absolute values of its terms: what its rounding is a share of."""
        sizes = [None if array is None else np.abs(array) for array in self.arrays]
        x, w, bias = sizes
        assert x is not None and w is not None
        return reference_conv(x, w, bias, self.attributes)


def _square(batch: int, filters: int, channels: int, height: int, width: int, kernel: int) -> Case:
    return Case((batch, channels, height, width), (filters, channels, kernel, kernel))


# Of the course's interface: one of everything, odd sizes, more rows than columns and the other way round, an
# image as large as the filter, and sizes just beyond what blocks are made of.
_COURSE = (
    _square(1, 1, 1, 5, 5, 3),
    _square(2, 3, 2, 13, 11, 3),
    _square(3, 5, 1, 7, 34, 2),
    _square(1, 7, 3, 33, 18, 1),
    _square(2, 2, 4, 7, 7, 7),
    _square(5, 17, 2, 21, 21, 5),
    _square(1, 3, 1, 67, 40, 4),
    _square(2, 16, 1, 20, 20, 5),
)
# Of the whole op, one attribute after the other, then together.
_CONV = (
    Case((2, 3, 12, 9), (4, 3, 3, 2), True),
    Case((1, 2, 11, 14), (3, 2, 3, 3), False, {"strides": [2, 3]}),
    Case((2, 2, 9, 8), (3, 2, 5, 3), True, {"pads": [2, 1, 1, 0]}),
    Case((1, 2, 13, 13), (2, 2, 3, 3), False, {"dilations": [2, 3]}),
    Case((2, 6, 8, 8), (4, 3, 3, 3), True, {"group": 2}),
    Case((1, 5, 9, 9), (5, 1, 3, 3), False, {"group": 5, "pads": [1, 1, 1, 1]}),
    Case((3, 4, 17, 15), (6, 2, 3, 5), True, {"group": 2, "strides": [2, 2], "pads": [1, 2, 1, 2]}),
)


def cases_for(kernel: Kernel) -> tuple[Case, ...]:
    """Return what `kernel` is checked with, the smallest first; empty where its `only` line admits none."""
    general: Sequence[Case] = (*_COURSE, *_CONV) if kernel.interface == "conv" else _COURSE
    taken = [case for case in general if not kernel.source.why_not(case.problem)]
    if len(taken) < len(_COURSE):
        # A file that is for some sizes only is most likely for a layer of the course.
        taken += [case for case in _course_cases() if not kernel.source.why_not(case.problem)]
    return tuple(sorted(taken, key=lambda case: case.problem.operations))


def _course_cases() -> Iterable[Case]:
    layers = {layer: None for network in NETWORKS.values() for layer in _convolutions(network)}
    for layer in layers:
        for batch in _COURSE_BATCHES:
            yield _square(batch, *dataclasses.astuple(layer))


@dataclass(frozen=True)
class _Layer:
    filters: int
    channels: int
    height: int
    width: int
    kernel: int


def _convolutions(network: Any) -> Iterator[_Layer]:
    for placed in place(network):
        if isinstance(placed.layer, Convolution):
            channels, height, width = placed.input_shape
            yield _Layer(placed.layer.out_channels, channels, height, width, placed.layer.kernel)
