"""The choice for a Conv: fastest in the mean, slower at no batch, and as accurate as the default."""

from __future__ import annotations

import pytest
from convswap.graph.fusion.fuse import Stage
from convswap.optimizing.choice import (
    DEFAULT_VARIANT,
    fastest_convswap_variant,
    is_as_accurate,
    select_variant,
    speedup,
)

SWAPPED, ACTIVATED, POOLED = Stage.FOLDED, Stage.ACTIVATION, Stage.POOL


def test_the_fastest_way_is_taken_though_one_fused_further_is_slower():
    times = {DEFAULT_VARIANT: (1.0,), SWAPPED: (0.8,), ACTIVATED: (0.5,), POOLED: (1.4,)}
    assert select_variant(times) is ACTIVATED


def test_what_gains_no_more_than_noise_is_left():
    assert select_variant({DEFAULT_VARIANT: (1.0,), SWAPPED: (0.99,)}) is DEFAULT_VARIANT
    assert select_variant({DEFAULT_VARIANT: (1.0,), SWAPPED: (0.97,)}) is SWAPPED


def test_what_loses_at_one_batch_is_not_taken_though_its_mean_is_the_best():
    times = {DEFAULT_VARIANT: (1.0, 1.0), SWAPPED: (0.9, 0.9), ACTIVATED: (0.2, 1.03)}
    assert select_variant(times) is SWAPPED


def test_of_several_batches_the_geometric_mean_counts():
    assert speedup([1.0, 4.0], [0.5, 4.0]) == pytest.approx(2**0.5)
    assert select_variant({DEFAULT_VARIANT: (1.0, 1.0), SWAPPED: (0.5, 1.0), POOLED: (0.8, 0.8)}) is SWAPPED


def test_the_fastest_variant_of_convswap_is_found_even_if_it_is_slower_than_the_default():
    assert fastest_convswap_variant({DEFAULT_VARIANT: (1.0,), SWAPPED: (3.0,), POOLED: (2.0,)}) is POOLED


@pytest.mark.parametrize(
    ("ours", "default", "expected"),
    [
        (3.1e-4, 3.0e-4, True),  # both round to TF32
        (3.2e-4, 3.0e-4, False),
        (2.9e-4, 6e-8, False),  # ours rounds to TF32, the default does not
        (9e-7, 6e-8, True),  # ours has only float32's rounding
    ],
)
def test_a_precision_is_taken_only_where_it_is_as_accurate_as_the_default(ours, default, expected):
    assert is_as_accurate(ours, default) is expected
