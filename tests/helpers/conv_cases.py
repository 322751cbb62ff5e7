"""Test cases of convolutions: a list over every attribute and rank, seeded draws, and a reference in NumPy.

The reference follows the definition of the ONNX operator Conv, in float64, and shares no code with the
library: padding by ONNX's formulas for `auto_pad`, then one term per filter tap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ConvCase:
    """A conv problem: x is (N, C, spatial...), w is (K, C / group, filter...); attributes as in ONNX."""

    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    has_bias: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        attributes = " ".join(f"{name}={value}".replace(" ", "") for name, value in self.attributes.items())
        bias = " bias" if self.has_bias else ""
        return f"{list(self.x_shape)}*{list(self.w_shape)}{bias} {attributes}".replace(", ", ",").strip()

    @property
    def terms(self) -> int:
        """Number of products in an output's sum, plus one for the bias."""
        return math.prod(self.w_shape[1:]) + 1

    def arrays(self, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return normal data, weights and bias (None without one) that depend only on the case."""
        random = np.random.default_rng([*self.x_shape, *self.w_shape])
        x = random.normal(size=self.x_shape).astype(dtype)
        w = random.normal(size=self.w_shape).astype(dtype)
        return x, w, random.normal(size=self.w_shape[:1]).astype(dtype) if self.has_bias else None

    @property
    def reference(self) -> np.ndarray:
        """The float64 convolution of the float32 arrays."""
        return convolve(*self.arrays(), **self.attributes)

    @property
    def magnitude(self) -> np.ndarray:
        """Sum of the absolute values of each output's terms."""
        return sum_of_magnitudes(*self.arrays(), **self.attributes)

    def check(self, y: np.ndarray, unit: float, operand: float = 0.0) -> None:
        """Assert that `y` is the case's reference but for rounding; see assert_within_rounding."""
        assert_within_rounding(y, self.arrays(), unit, operand, **self.attributes)


CASES = tuple(
    itertools.starmap(
        ConvCase,
        [
            # 1-D: defaults only, then all attributes together.
            ((1, 1, 1), (1, 1, 1)),
            ((2, 3, 17), (4, 3, 5)),
            (
                (2, 4, 19),
                (6, 2, 3),
                True,
                {"group": 2, "pads": [3, 1], "strides": [2], "dilations": [3], "kernel_shape": [3]},
            ),
            ((1, 2, 10), (2, 2, 4), False, {"auto_pad": "SAME_UPPER"}),
            ((1, 2, 10), (2, 2, 4), True, {"auto_pad": "SAME_LOWER", "strides": [3]}),
            # Padding at one end only.
            ((1, 1, 4), (1, 1, 3), False, {"pads": [1, 0]}),
            ((2, 2, 4), (3, 2, 3), True, {"pads": [0, 2]}),
            # Single taps, whose stride reaches into and across the padding; dilation has no effect on them.
            ((2, 2, 9), (1, 2, 1), True, {"pads": [1, 1], "strides": [3], "dilations": [2]}),
            ((3, 1, 8), (2, 1, 2), False, {"pads": [2, 2], "strides": [2], "dilations": [2]}),
            ((2, 3, 11), (4, 3, 3), True, {"auto_pad": "VALID", "strides": [2], "dilations": [3]}),
            ((2, 4, 7), (6, 2, 1), True, {"group": 2}),
            # 2-D.
            ((2, 3, 9, 8), (4, 3, 3, 3)),
            ((2, 3, 9, 8), (4, 3, 3, 3), True),
            ((1, 3, 9, 8), (4, 3, 1, 1), True, {"strides": [2, 3]}),
            ((1, 2, 11, 12), (3, 2, 3, 2), False, {"kernel_shape": [3, 2]}),
            ((1, 2, 11, 12), (3, 2, 5, 4), True, {"pads": [0, 3, 2, 1]}),
            ((1, 2, 11, 12), (3, 2, 3, 3), False, {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
            ((1, 2, 11, 12), (3, 2, 3, 3), False, {"dilations": [2, 3], "pads": [0, 2, 0, 2]}),
            ((1, 2, 14, 15), (3, 2, 3, 3), True, {"dilations": [2, 3], "strides": [3, 2]}),
            ((1, 2, 14, 15), (3, 2, 3, 3), True, {"dilations": [3, 2], "strides": [2, 4]}),
            ((1, 2, 9, 9), (3, 2, 2, 2), False, {"strides": [4, 3]}),
            ((2, 2, 9, 8), (3, 2, 4, 2), True, {"auto_pad": "SAME_UPPER"}),
            ((2, 2, 9, 8), (3, 2, 4, 2), True, {"auto_pad": "SAME_LOWER"}),
            ((1, 2, 9, 8), (3, 2, 5, 3), False, {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
            ((1, 2, 9, 8), (3, 2, 5, 3), False, {"auto_pad": "SAME_LOWER", "strides": [2, 3]}),
            ((1, 2, 9, 8), (3, 2, 3, 2), False, {"auto_pad": "SAME_LOWER", "dilations": [2, 3]}),
            ((1, 2, 9, 8), (3, 2, 3, 3), False, {"auto_pad": "VALID", "strides": [2, 1]}),
            ((1, 2, 9, 8), (3, 2, 3, 3), False, {"auto_pad": "NOTSET", "pads": [1, 0, 0, 1]}),
            # Strides that do and do not divide the image, and strides beyond the filter, which need no
            # padding.
            ((1, 1, 5, 5), (1, 1, 3, 3), False, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
            ((1, 1, 6, 6), (1, 1, 3, 3), True, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
            ((1, 2, 7, 8), (3, 2, 1, 2), True, {"auto_pad": "SAME_UPPER", "strides": [3, 5]}),
            ((1, 2, 7, 8), (3, 2, 2, 1), False, {"auto_pad": "SAME_LOWER", "strides": [5, 3]}),
            ((1, 2, 6, 6), (1, 2, 4, 4), True, {"pads": [1, 2, 3, 1], "strides": [2, 3]}),
            # An image of one pixel, with filters of one tap and of more.
            ((1, 1, 1, 1), (1, 1, 1, 1), True),
            ((2, 1, 1, 1), (2, 1, 3, 3), False, {"pads": [1, 1, 1, 2], "strides": [3, 1]}),
            # Padding beyond the filter: some outputs see zeros only.
            ((1, 1, 3, 3), (2, 1, 2, 2), True, {"pads": [4, 5, 6, 3]}),
            # The filter is as large as the image, or larger and padded.
            ((3, 2, 5, 6), (4, 2, 5, 6)),
            ((1, 2, 2, 3), (3, 2, 5, 7), True, {"pads": [2, 3, 2, 3]}),
            # Images of one column and of one row.
            ((1, 3, 12, 1), (2, 3, 5, 1)),
            ((1, 3, 1, 12), (2, 3, 1, 5)),
            # Groups: depthwise, with a channel multiplier, and of several channels; channels that fill no
            # vector.
            ((2, 6, 9, 8), (6, 1, 3, 3), False, {"group": 6}),
            ((2, 5, 9, 8), (15, 1, 3, 3), True, {"group": 5, "pads": [1, 1, 1, 1]}),
            ((1, 12, 7, 8), (18, 4, 3, 3), True, {"group": 3}),
            ((1, 15, 2, 2), (15, 1, 2, 2), True, {"group": 15}),
            ((3, 15, 6, 7), (15, 1, 3, 3), True, {"group": 15, "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
            ((1, 6, 7, 8), (6, 1, 3, 2), True, {"group": 6, "dilations": [2, 3], "pads": [2, 1, 2, 2]}),
            ((1, 2, 3, 3), (4, 1, 1, 1), True, {"group": 2}),
            ((2, 6, 5, 4), (9, 2, 1, 1), True, {"group": 3, "strides": [2, 1]}),
            ((1, 13, 7, 8), (7, 13, 3, 3)),
            ((1, 1, 7, 70), (13, 1, 3, 3)),
            ((1, 40, 5, 5), (4, 40, 3, 3), True),
            # 3-D: defaults, then all attributes together.
            ((1, 2, 5, 6, 7), (3, 2, 2, 3, 2)),
            (
                (2, 4, 6, 7, 8),
                (6, 2, 3, 2, 3),
                True,
                {
                    "group": 2,
                    "pads": [0, 1, 2, 2, 0, 1],
                    "strides": [1, 2, 3],
                    "dilations": [2, 1, 2],
                    "kernel_shape": [3, 2, 3],
                },
            ),
            ((1, 2, 5, 6, 7), (3, 2, 2, 3, 4), True, {"auto_pad": "SAME_UPPER", "strides": [2, 1, 3]}),
            ((1, 2, 5, 6, 7), (3, 2, 2, 3, 4), False, {"auto_pad": "SAME_LOWER"}),
            ((1, 1, 4, 4, 4), (1, 1, 1, 1, 1), False, {"pads": [2] * 6, "strides": [2, 2, 2]}),
            (
                (2, 1, 4, 4, 4),
                (2, 1, 2, 2, 2),
                True,
                {"pads": [2] * 6, "strides": [2, 2, 2], "dilations": [2, 2, 2]},
            ),
            ((1, 4, 3, 4, 5), (6, 2, 1, 1, 1), True, {"group": 2}),
            ((1, 3, 4, 5, 6), (6, 1, 2, 3, 3), True, {"group": 3, "pads": [1, 1, 0, 0, 1, 2]}),
        ],
    )
)

# An extent of 0: no images, filters, channels or rows. Outputs, if any, are the bias.
EMPTY_CASES = tuple(
    itertools.starmap(
        ConvCase,
        [
            ((0, 2, 4, 4), (2, 2, 1, 1)),
            ((0, 3, 9, 8), (4, 3, 3, 3), True, {"pads": [1, 1, 1, 1]}),
            ((0, 1, 5), (1, 1, 2)),
            ((0, 4, 3, 4, 5), (6, 2, 2, 2, 2), True, {"group": 2}),
            ((2, 3, 9, 8), (0, 3, 3, 3), True),
            ((2, 2, 5), (0, 2, 1)),
            ((2, 0, 5), (3, 0, 1)),
            ((2, 0, 9, 8), (4, 0, 3, 3), True, {"strides": [2, 1]}),
            ((2, 0, 4, 5, 6), (4, 0, 2, 2, 2), True, {"group": 2}),
            ((1, 2, 0, 5), (3, 2, 1, 1), True, {"pads": [1, 0, 1, 0]}),
            ((2, 1, 0), (2, 1, 2), True, {"pads": [2, 1]}),
        ],
    )
)


def case_id(case: object) -> str:
    """Return the name of a case in pytest."""
    return str(case)


def random_cases(
    seed: int, count: int, *, ranks: Sequence[int] = (1, 2, 3), max_products: int = 20_000_000
) -> Iterator[ConvCase]:
    """Yield `count` valid draws over every attribute: 1 to 16 channels and rows of 1 to 11 taps.

    `max_products` bounds the products of a draw, so that none takes long.
    """
    random = np.random.default_rng(seed)
    while count > 0:
        case = _draw(random, int(random.choice(ranks)))
        if case is not None:
            outputs = math.prod(output_shape(case.x_shape, case.w_shape, **case.attributes))
            if outputs * case.terms <= max_products:
                count -= 1
                yield case


def _draw(random: np.random.Generator, rank: int) -> ConvCase | None:
    def integers(low: int, high: int) -> list[int]:
        return [int(value) for value in random.integers(low, high + 1, rank)]

    group = int(random.choice([1, 1, 1, 2, 3, 5]))
    channels = int(random.integers(1, max(1, 16 // group) + 1))
    filters = int(random.integers(1, 70 // group + 1))
    kernel = integers(1, (11, 11, 4)[rank - 1])
    size = integers(1, (200, 40, 12)[rank - 1])
    attributes: dict[str, Any] = {}
    if random.random() < 0.5:
        attributes["strides"] = integers(1, 4)
    if random.random() < 0.3:
        attributes["dilations"] = integers(1, 3)
    padding = random.random()
    if padding < 0.4:
        attributes["pads"] = integers(0, 6) + integers(0, 6)
    elif padding < 0.6:
        attributes["auto_pad"] = str(random.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if random.random() < 0.3:
        attributes["kernel_shape"] = kernel
    if group > 1:
        attributes["group"] = group
    case = ConvCase(
        (int(random.integers(1, 6)), channels * group, *size),
        (filters * group, channels, *kernel),
        bool(random.random() < 0.5),
        attributes,
    )
    begin, end = padding_of(case.x_shape, case.w_shape, **attributes)
    dilations = attributes.get("dilations", [1] * rank)
    fits = all(size[i] + begin[i] + end[i] >= (kernel[i] - 1) * dilations[i] + 1 for i in range(rank))
    return case if fits else None


def padding_of(
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    *,
    auto_pad: str = "NOTSET",
    pads: Sequence[int] = (),
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    **_: Any,
) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial axis, by the formulas of ONNX's Conv."""
    rank = len(x_shape) - 2
    if auto_pad == "VALID":
        return [0] * rank, [0] * rank
    if auto_pad == "NOTSET":
        both = list(pads) or [0] * 2 * rank
        return both[:rank], both[rank:]
    begin, end = [], []
    for axis in range(rank):
        size, kernel = x_shape[axis + 2], w_shape[axis + 2]
        stride = strides[axis] if strides else 1
        dilation = dilations[axis] if dilations else 1
        outputs = math.ceil(size / stride)
        total = max(0, (outputs - 1) * stride + (kernel - 1) * dilation + 1 - size)
        small, large = math.floor(total / 2), math.ceil(total / 2)
        begin.append(small if auto_pad == "SAME_UPPER" else large)
        end.append(large if auto_pad == "SAME_UPPER" else small)
    return begin, end


def output_shape(x_shape: Sequence[int], w_shape: Sequence[int], **attributes: Any) -> tuple[int, ...]:
    """Return (N, K, output...), by the formulas of ONNX's Conv for each mode of `auto_pad`."""
    rank = len(x_shape) - 2
    strides = list(attributes.get("strides", ())) or [1] * rank
    dilations = list(attributes.get("dilations", ())) or [1] * rank
    spans = [(w_shape[axis + 2] - 1) * dilations[axis] + 1 for axis in range(rank)]
    mode = attributes.get("auto_pad", "NOTSET")
    sizes = []
    begin, end = padding_of(x_shape, w_shape, **attributes)
    for axis in range(rank):
        size = x_shape[axis + 2]
        if mode.startswith("SAME"):
            sizes.append(math.ceil(size / strides[axis]))
        elif mode == "VALID":
            sizes.append(math.ceil((size - spans[axis] + 1) / strides[axis]))
        else:
            sizes.append(math.floor((size + begin[axis] + end[axis] - spans[axis]) / strides[axis] + 1))
    return (x_shape[0], w_shape[0], *sizes)


def convolve(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, *, group: int = 1, **attributes: Any
) -> np.ndarray:
    """Return the convolution in float64, summed tap by tap."""
    shape = output_shape(x.shape, w.shape, **attributes)
    rank = x.ndim - 2
    begin, end = padding_of(x.shape, w.shape, **attributes)
    strides = list(attributes.get("strides", ())) or [1] * rank
    dilations = list(attributes.get("dilations", ())) or [1] * rank
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    images = padded.reshape(len(x), group, w.shape[1], *padded.shape[2:])
    filters = w.astype(np.float64).reshape(group, w.shape[0] // group, *w.shape[1:])
    y = np.zeros((len(x), *filters.shape[:2], *shape[2:]))
    for tap in np.ndindex(*w.shape[2:]):
        windows = tuple(
            slice(
                tap[i] * dilations[i], tap[i] * dilations[i] + (shape[i + 2] - 1) * strides[i] + 1, strides[i]
            )
            for i in range(rank)
        )
        y += np.einsum("gkc,ngc...->ngk...", filters[(..., *tap)], images[(..., *windows)])
    y = y.reshape(shape)
    return y if b is None else y + b.astype(np.float64).reshape(-1, *[1] * rank)


def assert_within_rounding(
    y: np.ndarray,
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    unit: float,
    operand: float = 0.0,
    **attributes: Any,
) -> None:
    """Assert that every element of `y` is the convolution of x, w and b within the bound of rounding errors.

    `unit` is the relative error of an addition or multiplication, `operand` that of rounding an operand
    first. To first order, a sum of n terms t in any order has an error of at most
    (2 * operand + n * unit) * sum(|t|) (Higham, Accuracy and Stability of Numerical Algorithms, section
    4.2). 1 % and two more operations allow for higher orders.
    """
    reference = convolve(*arrays, **attributes)
    assert y.shape == reference.shape
    terms = math.prod(arrays[1].shape[1:]) + 1
    bound = 1.01 * (2 * operand + (terms + 2) * unit) * sum_of_magnitudes(*arrays, **attributes)
    wrong = np.argwhere(~(np.abs(y - reference) <= bound))  # NaN is wrong too
    assert wrong.size == 0, (
        f"{len(wrong)} of {y.size} outputs are wrong, the first at {wrong[0].tolist()}: "
        f"{y[tuple(wrong[0])]}, expected {reference[tuple(wrong[0])]} within {bound[tuple(wrong[0])]:.3g}"
    )


def sum_of_magnitudes(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None = None, **attributes: Any
) -> np.ndarray:
    """Return the sum of the absolute values of each output's terms, with which rounding errors scale."""
    return convolve(np.abs(x), np.abs(w), None if b is None else np.abs(b), **attributes)
