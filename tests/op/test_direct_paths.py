"""Code paths of `direct` for filters of few channels: along rows, and along channels for small images.

Each result is compared on every instruction set with the float64 convolution and epilogue.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from conv_cases import ConvCase, case_id, output_shape
from conv_property import ACTIVATIONS, Draw, check
from convswap import _native
from repeats import repeats

ROWS, SMALL_IMAGES = "rows from strips", "small images"
# Limit of a drawn convolution: one in twenty has more products, and those took most of the time.
MAX_PRODUCTS = 2_000_000
POOLS: list[dict[str, Any]] = [
    {},
    {"pool": "MaxPool", "pool_kernel_shape": [2, 2], "pool_strides": [2, 2]},
    {
        "pool": "AveragePool",
        "pool_kernel_shape": [3, 2],
        "pool_strides": [1, 2],
        "pool_pads": [1, 0, 1, 1],
        "pool_count_include_pad": 1,
    },
]


def drawn_case(random: np.random.Generator, rank: int, max_size: int) -> ConvCase:
    """Return a case of groups of few channels and filters, with image sizes up to `max_size`."""

    def integers(low: int, high: int) -> list[int]:
        return [int(value) for value in random.integers(low, high + 1, rank)]

    while True:
        group = int(random.integers(1, 40))
        channels = int(random.choice([1, 1, 1, 1, 3, 8]))
        filters = int(random.choice([1, 1, 1, 2, 4]))
        kernel, size = integers(1, (9, 8, 3)[rank - 1]), integers(1, max_size)
        attributes = {
            "group": group,
            "strides": integers(1, int(random.choice([1, 2, 4]))),
            "dilations": integers(1, int(random.choice([1, 1, 3]))),
            "pads": integers(0, 4) + integers(0, 4),
        }
        x_shape = (int(random.integers(1, 3)), group * channels, *size)
        case = ConvCase(x_shape, (group * filters, channels, *kernel), random.random() < 0.5, attributes)
        shape = output_shape(case.x_shape, case.w_shape, **attributes)
        if min(shape) > 0 and math.prod(shape) * math.prod(case.w_shape[1:]) <= MAX_PRODUCTS:
            return case


@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.get("pool", "no pool"))
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_epilogues_are_computed_on_every_path(activation, pool):
    random = np.random.default_rng([len(activation), len(pool)])
    for number in range(repeats(12, minimum=4)):
        rank = 2 if pool else int(random.integers(1, 4))
        case = drawn_case(random, rank, (150, (18, 50)[number % 2], 10)[rank - 1])
        # An average of padding only is undefined.
        spatial = output_shape(case.x_shape, case.w_shape, **case.attributes)[2:]
        fused = pool if not pool or min(spatial) >= 3 else {}
        epilogue = {"activation": activation, **ACTIVATIONS[activation], **fused}
        kind = str(random.choice(["float32", "float32", "float32", "float16", "bfloat16"]))
        check(Draw(case, kind, "ieee", 8 * number, epilogue, has_residual=number % 3 == 0), "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS, ids=lambda pool: pool.get("pool", "no pool"))
def test_epilogues_of_convolutions_of_many_tasks_are_computed(pool):
    """`direct` has 32 tasks from 6.4 million products on, which is beyond the limit of draws."""
    case = ConvCase((2, 38, 18, 39), (152, 1, 8, 8), True, {"group": 38, "pads": [3, 4, 3, 4]})
    check(Draw(case, "float32", "ieee", 3, {"activation": "SiLU", **pool}), "cpu")


@pytest.mark.parametrize("x_depth", [1, 2])
def test_plane_of_outputs_that_sees_padding_alone_is_the_bias(x_depth):
    attributes = {"group": 4, "strides": [2 * x_depth, 1, 1], "pads": [1, 0, 0, 0, 0, 0]}
    case = ConvCase((1, 4, x_depth, 2, 8), (4, 1, 1, 1, 1), True, attributes)
    check(Draw(case, "float32", "ieee", 0), "cpu")


@pytest.mark.parametrize(
    ("path", "case"),
    [
        # Rows in segments, with strides, and filters that reach over several segments; a single column.
        (ROWS, ConvCase((2, 3, 5003), (3, 1, 3), True, {"group": 3, "pads": [8, 8], "dilations": [8]})),
        (ROWS, ConvCase((1, 2, 6001), (4, 1, 4), True, {"group": 2, "pads": [3, 0], "strides": [2]})),
        (ROWS, ConvCase((1, 2, 9001), (2, 1, 3), False, {"group": 2, "pads": [700, 2], "dilations": [1500]})),
        (ROWS, ConvCase((1, 2, 5000), (2, 1, 5), False, {"group": 2, "strides": [3]})),
        (ROWS, ConvCase((2, 3, 900, 1), (3, 1, 5, 1), True, {"group": 3, "pads": [2, 0, 2, 0]})),
        # Bands of rows, of more taps than a run has, and of rows that are not adjacent.
        (ROWS, ConvCase((1, 1, 300, 301), (2, 1, 11, 3), True, {"pads": [5, 1, 5, 1]})),
        (ROWS, ConvCase((1, 2, 90, 70), (2, 1, 3, 3), True, {"group": 2, "dilations": [5, 2]})),
        (
            ROWS,
            ConvCase(
                (1, 2, 90, 70), (2, 1, 5, 5), True, {"group": 2, "strides": [4, 4], "dilations": [6, 2]}
            ),
        ),
        (ROWS, ConvCase((1, 2, 64, 70), (2, 1, 2, 2), False, {"group": 2, "strides": [5, 4]})),
        # Groups of several channels and filters; 3-D.
        (ROWS, ConvCase((2, 32, 20, 33), (32, 4, 3, 3), True, {"group": 8, "pads": [1, 1, 1, 1]})),
        (ROWS, ConvCase((1, 5, 6, 9, 33), (10, 1, 3, 3, 3), True, {"group": 5, "pads": [1] * 6})),
        # Channels that fill no vector, and images of fewer pixels than a vector has lanes.
        (SMALL_IMAGES, ConvCase((2, 37, 7, 7), (37, 1, 3, 3), True, {"group": 37, "pads": [1, 1, 1, 1]})),
        (SMALL_IMAGES, ConvCase((1, 33, 14, 14), (33, 1, 5, 5), False, {"group": 33, "strides": [2, 2]})),
        (SMALL_IMAGES, ConvCase((3, 19, 3, 3), (19, 1, 3, 3), True, {"group": 19, "pads": [1, 1, 1, 1]})),
        (SMALL_IMAGES, ConvCase((1, 16, 9, 8), (16, 1, 2, 3), True, {"group": 16, "dilations": [2, 3]})),
    ],
    ids=lambda value: case_id(value) if isinstance(value, ConvCase) else value,
)
def test_its_path_computes_it_on_every_instruction_set(path, case):
    draw = Draw(case, "float32", "ieee", 0)
    # The path of narrow rows depends on the vector length.
    if _native.direct_instruction_sets()[0] == "avx512":
        assert _native.describe_plan(draw.problem, "cpu", "direct").startswith(path)
    assert check(draw, "cpu") >= 2


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_small_groups_are_the_same_on_any_number_of_threads(threads):
    random = np.random.default_rng(5)
    for rank in (1, 2, 3, 2):
        case = drawn_case(random, rank, (4000, 60, 12)[rank - 1])
        x, w, b = case.arrays()
        alone = _native.conv(x, w, b, algorithm="direct", threads=1, **case.attributes)
        shared = _native.conv(x, w, b, algorithm="direct", threads=threads, **case.attributes)
        assert np.array_equal(alone, shared)
