"""Drawn convolutions of codes: the CPU and every algorithm of a card against NumPy, code by code."""

from __future__ import annotations

import os
from random import Random
from typing import Any

import numpy as np
import pytest
from convswap import _native
from drawn_codes import Codes

# Environment variable with the number of problems to draw, for longer runs.
PROBLEMS = "CONVSWAP_TEST_PROBLEMS"
PARTS, USUAL = 8, 160
ALGORITHMS = [each.name for each in _native.catalog() if each.device == "cuda" and not each.by_name_alone]
# channels_last takes steps of 16 channels, or first layers; the others take these, too.
CHANNELS = (1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64, 80, 128, 144)
ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"activation": "Relu"},
    {"activation": "Clip", "activation_alpha": -3.5, "activation_beta": 40.25},
    {"activation": "LeakyRelu", "activation_alpha": 0.125},
)


def zero_point_of(draw: Random, dtype: Any) -> int:
    """Return a zero point, often the least or the largest code."""
    limits = np.iinfo(dtype)
    return draw.choice((limits.min, limits.max, 0, draw.randint(limits.min, limits.max)))


def drawn_problem(seed: int) -> Codes:
    """Return a small problem: any rank, padding, stride and group; scales from 1e-6 to 1e3."""
    draw, numbers = Random(seed), np.random.default_rng(seed)
    rank = draw.choices((1, 2, 3), (20, 70, 10))[0]
    kind = draw.choices(("dense", "one tap", "depthwise", "groups"), (45, 25, 20, 10))[0]
    channels, filters, group = draw.choice(CHANNELS), draw.choice(CHANNELS), 1
    if kind == "depthwise":
        group = filters = channels
    elif kind == "groups":
        group = draw.choice((2, 3, 4))
        channels, filters = channels * group, filters * group
    taps = [1 if kind == "one tap" else draw.choice((1, 2, 3, 3, 3, 5, 7) if rank < 3 else (1, 2, 3))
            for _ in range(rank)]  # fmt: skip
    dilations = [draw.choice((1, 1, 1, 2)) for _ in taps]
    reach = [dilation * (tap - 1) + 1 for tap, dilation in zip(taps, dilations, strict=True)]
    size = [max(extent, draw.randint(1, {1: 60, 2: 17, 3: 7}[rank])) for extent in reach]
    x_type, y_type = (draw.choice((np.int8, np.uint8)) for _ in range(2))
    if draw.random() < 0.15:
        y_type = draw.choice((np.float32, np.float16))
    is_code = np.issubdtype(y_type, np.integer)
    attributes: dict[str, Any] = {
        "pads": [draw.randrange(extent) for extent in reach * 2],
        "strides": [draw.choice((1, 1, 2, 3)) for _ in taps],
        "dilations": dilations,
        "group": group,
        "x_zero_point": zero_point_of(draw, x_type),
        "input_layout": draw.choice(("NHWC", "NHWC", "NHWC", "NCHW")),
        "output_layout": draw.choice(("NHWC", "NHWC", "NHWC", "NCHW")),
        **draw.choice(ACTIVATIONS),
    }
    if draw.random() < 0.5:
        attributes["y_scale"] = 10 ** draw.uniform(-2, 2)
    x_shape = (draw.randint(1, 4), channels, *size)
    if attributes["input_layout"] == "NHWC":
        x_shape = (x_shape[0], *size, channels)
    w_shape = (filters, channels // group, *taps)
    # Most scales use the range of the codes, some make every result saturate or vanish.
    usual = 40 / (5500 * np.sqrt(np.prod(w_shape[1:])))
    scale = usual * numbers.uniform(0.3, 3, filters)
    if draw.random() < 0.3:
        scale = 10 ** numbers.uniform(-6, 3, filters)
    limits = np.iinfo(x_type)
    codes = Codes(
        numbers.integers(limits.min, limits.max + 1, x_shape).astype(x_type),
        numbers.integers(-128, 128, w_shape).astype(np.int8),
        scale.astype(np.float32),
        np.array(zero_point_of(draw, y_type) if is_code else 0, y_type),
        numbers.integers(-20_000, 20_000, filters).astype(np.int32) if draw.random() < 0.7 else None,
        attributes=attributes,
    )
    if draw.random() < 0.25:
        codes.offset = numbers.uniform(-20, 20, filters).astype(np.float32)
    if draw.random() < 0.3:
        shape = codes.problem().output_shape
        codes.residual = numbers.integers(limits.min, limits.max + 1, shape).astype(x_type)
        attributes |= {"residual_layout": attributes["output_layout"]}
        attributes |= {"z_scale": 10 ** draw.uniform(-2, 1), "z_zero_point": zero_point_of(draw, x_type)}
    if draw.random() < 0.3:
        attributes["sum_zero_point"] = zero_point_of(draw, x_type)
        if draw.random() < 0.5:
            attributes["sum_scale"] = 10 ** draw.uniform(-1, 1)
        else:
            codes.sum_values = numbers.uniform(-90, 90, 256).astype(np.float32)
    return codes


def seeds_of(part: int) -> range:
    count = max(1, int(os.environ.get(PROBLEMS, USUAL)) // PARTS)
    return range(part * count, (part + 1) * count)


@pytest.mark.parametrize("part", range(PARTS))
def test_the_cpu_computes_drawn_codes(part):
    for seed in seeds_of(part):
        codes = drawn_problem(seed)
        with np.errstate(over="ignore"):
            expected = codes.expected()
        np.testing.assert_array_equal(codes.on_cpu(), expected, f"seed {seed}: {codes.problem().text}")


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(PARTS))
def test_a_card_computes_drawn_codes_by_every_algorithm(part):
    computed = 0
    for seed in seeds_of(part):
        codes = drawn_problem(seed)
        problem = codes.problem()
        with np.errstate(over="ignore"):
            expected = codes.expected()
        for algorithm in ALGORITHMS:
            if _native.why_not(problem, algorithm, "cuda"):
                continue
            tiling = Random(seed).randrange(len(_native.alternatives(problem, algorithm, 1000)))
            note = f"seed {seed}, {algorithm}, tiling {tiling}: {problem.text}"
            np.testing.assert_array_equal(codes.on_card(algorithm, tiling), expected, note)
            computed += 1
    # Each problem by `quantised`, and on a card of 9.0 some by another.
    others = 1 if _native.cuda_devices()[0]["compute_capability"] >= 90 else 0
    assert computed >= len(seeds_of(part)) + others
