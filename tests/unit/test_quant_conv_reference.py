"""QuantConv in NumPy against loops over single elements."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from convswap.reference.quantised import quant_conv

_FLOAT = np.float32
_SIZES = {1: (9,), 2: (6, 7), 3: (4, 5, 3)}


class DrawnProblem:
    """A random QuantConv of small tensors; `inputs` are in NCHW, `attributes` those of the op."""

    def __init__(self, seed: int) -> None:
        draw, numbers = random.Random(seed), np.random.default_rng(seed)
        axes = draw.choice((1, 2, 2, 2, 3))
        group = draw.choice((1, 1, 2))
        self.code_type = draw.choice((np.int8, np.uint8))
        limits = np.iinfo(self.code_type)
        self.kernel = tuple(draw.randint(1, 3) for _ in range(axes))
        self.strides = [draw.randint(1, 2) for _ in range(axes)]
        self.dilations = [draw.randint(1, 2) for _ in range(axes)]
        self.pads = [draw.randint(0, 2) for _ in range(2 * axes)]
        channels, filters = 2 * group, 3 * group
        self.x = numbers.integers(limits.min, limits.max + 1, (2, channels, *_SIZES[axes])).astype(
            self.code_type
        )
        self.w = numbers.integers(-128, 128, (filters, 2, *self.kernel)).astype(np.int8)
        self.scale = numbers.uniform(0.001, 0.01, filters).astype(_FLOAT)
        self.bias = numbers.integers(-2000, 2000, filters).astype(np.int32) if draw.random() < 0.5 else None
        has_offset = self.bias is not None and draw.random() < 0.5
        self.offset = numbers.standard_normal(filters).astype(_FLOAT) if has_offset else None
        self.attributes = {
            "group": group,
            "strides": self.strides,
            "dilations": self.dilations,
            "pads": self.pads,
            "x_zero_point": int(draw.choice((0, limits.min, 3, 100))),
        }
        if draw.random() < 0.5:
            self.attributes |= {"sum_zero_point": draw.choice((0, 5)), "sum_scale": draw.uniform(0.5, 2)}
        self.sum_values = None
        if "sum_scale" in self.attributes and draw.random() < 0.5:
            del self.attributes["sum_scale"]
            self.sum_values = numbers.uniform(-30, 30, 256).astype(_FLOAT)
        self.residual = None
        if self.offset is not None and draw.random() < 0.7:
            self.residual = numbers.integers(limits.min, limits.max + 1, (2, filters, *self.output))
            self.residual = self.residual.astype(self.code_type)
            self.attributes |= {"z_scale": draw.uniform(0.1, 1), "z_zero_point": draw.choice((0, 7))}
        activation = draw.choice(("None", "Relu", "Clip", "LeakyRelu", "HardSigmoid"))
        self.attributes |= {"activation": activation, "activation_alpha": 0.125, "activation_beta": 3.3}
        self.y_type = draw.choice((np.int8, np.uint8, np.float32, np.float16))
        self.y_zero_point = np.array(
            draw.choice((0, 9)) if np.issubdtype(self.y_type, np.integer) else 0, self.y_type
        )
        if np.issubdtype(self.y_type, np.integer):
            self.attributes["y_scale"] = draw.choice((1.0, 0.37))

    @property
    def output(self) -> tuple[int, ...]:
        axes = len(self.kernel)
        return tuple(
            (size + self.pads[i] + self.pads[axes + i] - (self.kernel[i] - 1) * self.dilations[i] - 1)
            // self.strides[i]
            + 1
            for i, size in enumerate(_SIZES[axes])
        )

    def inputs(self, x: np.ndarray, residual: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
        return x, self.w, self.scale, self.y_zero_point, self.bias, self.offset, residual, self.sum_values

    def expected(self) -> np.ndarray:
        """Return the result by the steps of the specification, for one element after another."""
        filters = len(self.scale)
        y = np.empty((2, filters, *self.output), self.y_type)
        for n, k, *place in itertools.product(range(2), range(filters), *map(range, self.output)):
            y[n, k, *place] = self._element(n, k, place)
        return y

    def _element(self, n: int, k: int, place: list[int]) -> float | int:
        given = self.attributes
        per_group = len(self.scale) // given["group"]
        total = 0 if self.bias is None else int(self.bias[k])
        for c, *tap in itertools.product(range(2), *map(range, self.kernel)):
            at = [
                p * stride - pad + t * dilation
                for p, stride, pad, t, dilation in zip(
                    place, self.strides, self.pads, tap, self.dilations, strict=False
                )
            ]
            if all(0 <= a < size for a, size in zip(at, self.x.shape[2:], strict=True)):
                code = int(self.x[n, k // per_group * 2 + c, *at]) - given["x_zero_point"]
                total += code * int(self.w[k, c, *tap])
        v = _FLOAT(total) * self.scale[k]
        if self.offset is not None:
            v = v + self.offset[k]
        if self.sum_values is not None:
            code = self._rounded(v, given["sum_zero_point"], self.code_type)
            v = self.sum_values[code - np.iinfo(self.code_type).min]
        elif "sum_scale" in given:
            code = self._rounded(v, given["sum_zero_point"], self.code_type)
            v = _FLOAT(code - given["sum_zero_point"]) * _FLOAT(given["sum_scale"])
        if self.residual is not None:
            z = int(self.residual[n, k, *place]) - given["z_zero_point"]
            v = v + _FLOAT(z) * _FLOAT(given["z_scale"])
        alpha, beta = _FLOAT(given["activation_alpha"]), _FLOAT(given["activation_beta"])
        v = {
            "None": v,
            "Relu": max(v, _FLOAT(0)),
            "Clip": min(max(v, alpha), beta),
            "LeakyRelu": v * alpha if v < 0 else v,
            "HardSigmoid": min(max(alpha * v + beta, _FLOAT(0)), _FLOAT(1)),
        }[given["activation"]]
        if not np.issubdtype(self.y_type, np.integer):
            return self.y_type(v)
        y_scale = _FLOAT(given["y_scale"])
        return self._rounded(
            v if y_scale == 1 else v * (_FLOAT(1) / y_scale), int(self.y_zero_point), self.y_type
        )

    @staticmethod
    def _rounded(v: np.float32, zero_point: int, dtype: type) -> int:
        limits = np.iinfo(dtype)
        # Python rounds half to even.
        return min(max(round(float(v)) + zero_point, limits.min), limits.max)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_problem_has_the_results_of_loops(seed):
    problem = DrawnProblem(seed)
    actual = quant_conv(*problem.inputs(problem.x, problem.residual), attributes=problem.attributes)
    expected = problem.expected()
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("seed", range(12))
def test_layouts_only_permute(seed):
    problem = DrawnProblem(seed)
    expected = quant_conv(*problem.inputs(problem.x, problem.residual), attributes=problem.attributes)
    layouts = {"input_layout": "NHWC", "output_layout": "NHWC", "residual_layout": "NHWC"}
    residual = None if problem.residual is None else np.moveaxis(problem.residual, 1, -1)
    inputs = problem.inputs(np.moveaxis(problem.x, 1, -1), residual)
    actual = quant_conv(*inputs, attributes=problem.attributes | layouts)
    np.testing.assert_array_equal(np.moveaxis(actual, -1, 1), expected)


def test_halves_are_rounded_to_even():
    x = np.arange(-4, 5, dtype=np.int8).reshape(1, 1, 9)
    y = quant_conv(x, np.ones((1, 1, 1), np.int8), np.array([0.5], _FLOAT), np.array(0, np.int8))
    assert y.ravel().tolist() == [-2, -2, -1, 0, 0, 0, 1, 2, 2]


def test_same_padding_with_even_filter_pads_more_at_the_end():
    x = np.ones((1, 1, 4), np.int8)
    w = np.ones((1, 1, 2), np.int8)
    inputs = (x, w, np.ones(1, _FLOAT), np.array(0, np.int8))
    assert quant_conv(*inputs, attributes={"auto_pad": "SAME_UPPER"}).ravel().tolist() == [2, 2, 2, 1]
    assert quant_conv(*inputs, attributes={"auto_pad": "SAME_LOWER"}).ravel().tolist() == [1, 2, 2, 2]


def test_padding_counts_as_the_zero_point():
    x = np.full((1, 1, 3), 7, np.uint8)
    w = np.ones((1, 1, 3), np.int8)
    attributes = {"pads": [1, 1], "x_zero_point": 5}
    y = quant_conv(x, w, np.ones(1, _FLOAT), np.array(0, np.uint8), attributes=attributes)
    assert y.ravel().tolist() == [4, 6, 4]


@pytest.mark.parametrize(("pool", "expected"), [("MaxPool", [3, 5]), ("AveragePool", [2, 4])])
def test_pools_come_before_the_rounding(pool, expected):
    x = np.arange(1, 6, dtype=np.int8).reshape(1, 1, 1, 5)
    attributes = {"pool": pool, "pool_kernel_shape": [1, 3], "pool_strides": [1, 2], "pool_pads": [0] * 4}
    y = quant_conv(
        x, np.ones((1, 1, 1, 1), np.int8), np.ones(1, _FLOAT), np.array(0, np.int8), attributes=attributes
    )
    assert y.ravel().tolist() == expected


def test_sum_beyond_int32_is_an_error():
    inputs = (np.full((1, 1, 1), 100, np.int8), np.ones((1, 1, 1), np.int8), np.ones(1, _FLOAT))
    bias = np.array([2**31 - 50], np.int32)
    with pytest.raises(OverflowError):
        quant_conv(*inputs, np.array(0, np.int8), bias)
